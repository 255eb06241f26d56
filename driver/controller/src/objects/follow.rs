//! Waits until the agent has created what an object specifies, or refuses to.
//!
//! *Invariant:* the controller waits for an admitted object and never withdraws it.

use cistern_crds::{ConditionStatus, ConditionType, Explanation, HasImage, Reason, condition};
use kube::Resource as _;

use super::{
    Error, ManagedObject, Objects,
    ensure::{FollowOutcome, Lifecycle},
    in_flight::Operation,
    listing::Listed,
    not_ready::not_ready,
};

/// A node that refused an object, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The name of the node.
    pub node: String,
    /// The StoragePool of the object.
    pub pool: String,
    /// Reason and message of the refusal.
    pub why: Explanation,
}

impl<T: Listed<Object: ManagedObject> + Send> Lifecycle<T> for Objects<T::Object> {
    type Object = T::Object;
    type Refusal = Refusal;
    type Error = Error;

    fn objects(&self) -> &Self {
        self
    }

    async fn follow(
        &self,
        mut object: T::Object,
        operation: &mut Operation<T::Object>,
    ) -> Result<FollowOutcome<T, T::Object, Refusal>, Error> {
        let mut nodes = self.nodes.subscribe();
        loop {
            let unavailable = |object: &T::Object| {
                self.nodes
                    .unavailable(object.node_name(), object.pool_name())
            };
            match progress(&object, unavailable) {
                ObjectProgress::Ready(made) => return Ok(FollowOutcome::Made(made)),
                ObjectProgress::Withdraw(refusal) => {
                    return Ok(FollowOutcome::Withdraw(Box::new(object), refusal));
                }
                ObjectProgress::Leaving => return Ok(FollowOutcome::Changed),
                ObjectProgress::Waits(waits_for) => operation.note(waits_for),
            }
            if let Some(silent) = self.nodes.silent_for(&object) {
                return Err(silent);
            }
            let is_admitted = object.reserved().is_some();
            let pool = [(object.node_name(), object.pool_name())];
            tokio::select! {
                // An object that is not admitted is withdrawn.
                pool = self.nodes.until_not_ready(&pool), if is_admitted => {
                    return Err(not_ready(&object, pool));
                }
                change = operation.change(&object) => match change {
                    Some(changed) => object = changed,
                    None => return Ok(FollowOutcome::Changed),
                },
                // The sender lives as long as `self`.
                _ = nodes.changed() => {}
            }
        }
    }

    async fn withdraw(
        &self,
        object: T::Object,
        _operation: &mut Operation<T::Object>,
    ) -> Result<bool, Error> {
        self.withdraw(object).await
    }

    async fn finish_removal(
        &self,
        object: T::Object,
        operation: &mut Operation<T::Object>,
    ) -> Result<(), Error> {
        self.finish_removal(object, operation).await
    }
}

/// Progress of the creation of an object.
#[derive(Debug, PartialEq, Eq)]
enum ObjectProgress<L> {
    Ready(L),
    /// Its deletion is requested.
    Leaving,
    /// No agent has admitted the object, and none will. Holds the refusal if the node refused it.
    Withdraw(Option<Refusal>),
    /// The object waits for this event.
    Waits(String),
}

fn progress<L: Listed>(
    object: &L::Object,
    unavailable: impl FnOnce(&L::Object) -> Option<Explanation>,
) -> ObjectProgress<L> {
    let node = object.node_name();
    let refusal = |why| {
        let (node, pool) = (node.to_owned(), object.pool_name().to_owned());
        ObjectProgress::Withdraw(Some(Refusal { node, pool, why }))
    };
    if object.deletion_requested() {
        return ObjectProgress::Leaving;
    }
    // An object that was made counts as made, regardless of later changes.
    if let Some(made) = L::of(object) {
        return ObjectProgress::Ready(made);
    }
    if object.reserved().is_some() {
        let ready = condition::find(object.conditions(), ConditionType::Ready);
        let message = ready.map_or("", |ready| ready.message.as_str());
        return ObjectProgress::Waits(format!("node {node} to make it: {message}"));
    }
    // No agent admits an object that a user deleted.
    if object.meta().deletion_timestamp.is_some() {
        return ObjectProgress::Withdraw(None);
    }
    let admitted = condition::find(object.conditions(), ConditionType::Admitted);
    if let Some(admitted) = admitted
        && admitted.status == ConditionStatus::False.as_str()
    {
        let reason = Reason::parse(&admitted.reason).unwrap_or(Reason::OtherProblem);
        return refusal(Explanation::new(reason, &*admitted.message));
    }
    match unavailable(object) {
        Some(unavailable) => refusal(unavailable),
        None => ObjectProgress::Waits(format!("the agent of node {node} to admit it")),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use cistern_crds::{Bytes, PoolVolume, PoolVolumeStatus, condition::ConditionUpdate};
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use crate::{testing::wanted_volume, volumes::ListedVolume};

    fn volume(change: impl FnOnce(&mut PoolVolume, &mut PoolVolumeStatus)) -> PoolVolume {
        let mut volume = wanted_volume();
        let mut status = PoolVolumeStatus::default();
        change(&mut volume, &mut status);
        volume.status = Some(status);
        volume
    }

    fn admitted(status: &mut PoolVolumeStatus, holds: impl Into<ConditionStatus>, reason: Reason) {
        let finding =
            ConditionUpdate::new(ConditionType::Admitted, holds, reason, "the agent's words");
        condition::set(&mut status.conditions, &finding, None, DateTime::default());
    }

    fn silent() -> Explanation {
        Explanation {
            reason: Reason::AgentMissing,
            message: "gone".to_owned(),
        }
    }

    fn progress(
        volume: &PoolVolume,
        unavailable: impl FnOnce(&PoolVolume) -> Option<Explanation>,
    ) -> ObjectProgress<ListedVolume> {
        super::progress(volume, unavailable)
    }

    fn withdraws(progress: &ObjectProgress<ListedVolume>) -> bool {
        matches!(progress, ObjectProgress::Withdraw(_))
    }

    #[test]
    fn a_volume_is_ready_once_it_was_made_whatever_happens_to_it_later() {
        let made = volume(|volume, status| {
            status.reserved = Some(Bytes::gib(1));
            status.size = Some(Bytes::gib(1));
            volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        });
        assert!(matches!(
            progress(&made, |_| Some(silent())),
            ObjectProgress::Ready(_)
        ));
    }

    #[test]
    fn what_is_admitted_is_never_withdrawn() {
        let admitted = volume(|volume, status| {
            status.reserved = Some(Bytes::gib(1));
            admitted(status, false, Reason::NoSpace);
            volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        });
        assert!(matches!(
            progress(&admitted, |_| Some(silent())),
            ObjectProgress::Waits(_)
        ));
    }

    #[test]
    fn a_refusal_carries_the_agents_reason_and_words() {
        for reason in [
            Reason::NoSpace,
            Reason::TooLarge,
            Reason::VolumeLimitReached,
            Reason::PoolUnknown,
            Reason::PoolNotReady,
        ] {
            let refused = volume(|_, status| admitted(status, false, reason));
            let expected = Refusal {
                node: "node-1".to_owned(),
                pool: "fast".to_owned(),
                why: Explanation::new(reason, "the agent's words"),
            };
            assert_eq!(
                progress(&refused, |_| None),
                ObjectProgress::Withdraw(Some(expected))
            );
        }
    }

    #[test]
    fn an_agent_that_has_not_looked_yet_is_waited_for_unless_it_is_silent() {
        let fresh = volume(|_, status| admitted(status, ConditionStatus::Unknown, Reason::Pending));
        assert!(matches!(
            progress(&fresh, |_| None),
            ObjectProgress::Waits(_)
        ));
        assert!(withdraws(&progress(&fresh, |_| Some(silent()))));
        let unseen = wanted_volume();
        assert!(matches!(
            progress(&unseen, |_| None),
            ObjectProgress::Waits(_)
        ));
        assert!(withdraws(&progress(&unseen, |_| Some(silent()))));
    }

    #[test]
    fn a_deleted_object_is_created_again_on_any_node() {
        let deleted = volume(|volume, _| {
            volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        });
        assert_eq!(progress(&deleted, |_| None), ObjectProgress::Withdraw(None));
    }

    #[test]
    fn a_volume_that_is_asked_to_go_is_not_found_ready() {
        let leaving = volume(|volume, status| {
            status.size = Some(Bytes::gib(1));
            volume.spec.deletion_requested = true;
        });
        assert_eq!(progress(&leaving, |_| None), ObjectProgress::Leaving);
    }
}
