//! Ensures that an object exists as requested.
//!
//! ```text
//! find ─▶ create ─▶ compare ─▶ follow ─▶ made
//!   ▲                            └▶ refused ─▶ withdraw ─▶ the caller tries again or fails
//!   └── its removal is finished, or it has changed
//! ```
//!
//! *Invariant:* a refusal leaves no object behind: an object that no agent has admitted is
//! withdrawn first. An admitted object stays, and the error is not final ([`Error::Pending`]).

use futures::future::BoxFuture;

use super::{Error, ManagedObject, Objects, in_flight::Operation, named};

/// A request for an object, which may exist already.
pub(crate) trait Request: Sync {
    /// The custom resource that the request leads to.
    type Object: ManagedObject;

    /// Why the existing object of this name is incompatible with the request; None if it is compatible.
    fn difference(&self, existing: &Self::Object) -> Option<String>;

    /// Whether the existing object must be removed and created again in another place. True only
    /// for an object that no agent has admitted.
    fn is_left_behind(&self, _existing: &Self::Object) -> bool {
        false
    }
}

/// The outcome of following an object until an agent has made it.
#[derive(Debug)]
pub(crate) enum FollowOutcome<T, K, R> {
    /// The agent has made it.
    Made(T),
    /// The object has changed: read it again.
    Changed,
    /// No agent has admitted the object, and none will. Holds the refusal if the node refused it.
    Withdraw(Box<K>, Option<R>),
}

/// The outcome of an attempt to make an object.
#[derive(Debug)]
pub(crate) enum Attempt<T, R> {
    /// The agent has made it, now or earlier.
    Made(T),
    /// Its node refuses it, and the object is removed.
    Refused {
        /// Why the node refuses it.
        refusal: R,
        /// Whether the node was asked in this attempt. If not, the refusal may be out of date.
        is_new: bool,
    },
}

/// How the objects of a kind are followed and removed. `T` is the form in which a caller gets an
/// object.
pub(crate) trait Lifecycle<T: Send>: Sync {
    /// The custom resource that the request leads to.
    type Object: ManagedObject;
    /// Why a node refuses an object.
    type Refusal: Send;
    /// Why an operation failed.
    type Error: From<Error> + Send;

    /// The objects in the API server.
    fn objects(&self) -> &Objects<Self::Object>;

    /// Follows an object until it is made, refused or replaced. Fails if the agent that has admitted
    /// it is silent.
    fn follow(
        &self,
        object: Self::Object,
        operation: &mut Operation<Self::Object>,
    ) -> impl Future<Output = Result<FollowOutcome<T, Self::Object, Self::Refusal>, Self::Error>> + Send;

    /// Removes an object that no agent has admitted. Returns false if one has admitted it
    /// meanwhile.
    fn withdraw(
        &self,
        object: Self::Object,
        operation: &mut Operation<Self::Object>,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Finishes the removal of an object whose name is requested again. Fails with
    /// [`Error::Pending`] if the removal has to wait.
    fn finish_removal(
        &self,
        object: Self::Object,
        operation: &mut Operation<Self::Object>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Ensures that an object exists as requested, until a node refuses it. `create` writes a new
/// object, and returns None if another replica has created it meanwhile. Fails if the existing
/// object differs from the request, and with every error of `create` and `lifecycle`.
pub(crate) async fn attempt<'a, T: Send, L: Lifecycle<T>, E: From<Error> + From<L::Error>>(
    lifecycle: &L,
    wanted: &impl Request<Object = L::Object>,
    operation: &mut Operation<L::Object>,
    create: impl Fn() -> BoxFuture<'a, Result<Option<L::Object>, E>>,
) -> Result<Attempt<T, L::Refusal>, E> {
    let mut is_new = false;
    loop {
        let mut found = lifecycle.objects().find(operation.name()).await?;
        if found.is_none() {
            is_new = true;
            found = create().await?;
        }
        let Some(object) = found else { continue };
        if object.is_leaving() {
            lifecycle.finish_removal(object, operation).await?;
            continue;
        }
        let outcome = if wanted.is_left_behind(&object) {
            FollowOutcome::Withdraw(Box::new(object), None)
        } else if let Some(difference) = wanted.difference(&object) {
            let object = named::<L::Object>(operation.name());
            return Err(Error::Different { object, difference }.into());
        } else {
            lifecycle.follow(object, operation).await?
        };
        match outcome {
            FollowOutcome::Made(made) => return Ok(Attempt::Made(made)),
            FollowOutcome::Changed => {}
            FollowOutcome::Withdraw(object, refusal) => {
                let noun = L::Object::NOUN;
                operation.note(format!(
                    "the API server to remove a {noun} that no agent has admitted"
                ));
                let withdrawn = lifecycle.withdraw(*object, operation).await?;
                if let Some(refusal) = refusal.filter(|_| withdrawn) {
                    return Ok(Attempt::Refused { refusal, is_new });
                }
            }
        }
    }
}
