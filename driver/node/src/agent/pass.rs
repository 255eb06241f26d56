//! A pass over an object that stands for one image: what volumes and snapshots have in common.
//!
//! ```text
//! observe (custom resource, pool) → plan (pure) → execute (one look or change of the disk) → status (pure)
//! ```
//!
//! Each pass starts from what is there, so it does not matter where the last one stopped. The
//! status is written also when a step failed: the reason is what people need.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{ConditionType, Reason, Stored, condition, volume::FilesystemStatus};
use cistern_host::Owner;
use kube::{ResourceExt as _, runtime::controller::Action};
use tokio::time::timeout;

use super::{
    Agent,
    blocking::{self, on_host},
    image::{self, Difference, Image},
    outcome::Outcome,
    pools::{Found, PoolLook, Usable},
    work::{Error, Kind, named},
};

/// How often an image that is well is looked at: what fstrim punched out of a thick volume is
/// allocated again, and a missing image is noticed.
const PERIOD: Duration = Duration::from_mins(10);
/// How long a refusal waits for the room to be published that explains it.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(5);
/// How soon to come back when somebody else works on the volume.
pub(super) const LOCKED: Duration = Duration::from_millis(500);

/// What a pass can finish: each is told in the log when it comes true.
const FINISHED: [ConditionType; 4] = [
    ConditionType::Admitted,
    ConditionType::Ready,
    ConditionType::Expanded,
    ConditionType::Reclaimed,
];

/// A kind of custom resource that stands for one image.
pub trait Kept: Kind + Stored {
    /// Outcomes that only this kind knows.
    type Own: Clone + fmt::Debug + Send + Sync;

    /// The object with the status that a step left it with.
    #[must_use]
    fn after(&self, outcome: &Outcome<Self::Own>, now: DateTime<Utc>) -> Self;

    /// Whether the status of both is the same.
    fn has_status_of(&self, other: &Self) -> bool;

    /// Whether it was ready once, so that somebody may know of it.
    fn is_announced(&self) -> bool;

    /// Name of the volume whose lock is held while the image is changed.
    fn volume(&self) -> String;

    /// Whether an image of this owner was made for an object of this name.
    fn is_named(&self, owner: &Owner) -> bool;

    /// Whether the image is what the spec asks for.
    ///
    /// Its pool needs no look: the image was found in a pool whose own identity was checked.
    fn is_served_by(&self, image: &Image) -> Result<(), Difference>;

    /// The filesystem that the status tells of.
    fn filesystem(&self) -> Option<&FilesystemStatus>;
}

/// A pass over one object, as it was when the pass began.
#[derive(Debug)]
pub struct Pass<'a, K> {
    pub(super) agent: &'a Agent,
    pub(super) object: &'a K,
    pub(super) name: String,
    began: Instant,
}

/// Why there is no pool to work on.
#[derive(Debug)]
pub struct NoPool {
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

impl<'a, K: Kept> Pass<'a, K> {
    pub(super) fn over(agent: &'a Agent, object: &'a K) -> Self {
        let name = object.name_any();
        Self {
            agent,
            object,
            name,
            began: Instant::now(),
        }
    }

    /// The pool of the object, if it can be used.
    pub(super) fn pool(&self) -> Result<(Arc<PoolLook>, Usable), NoPool> {
        let (pool, node) = (self.object.pool_name(), &self.agent.node_name);
        let unknown = || NoPool {
            reason: Reason::PoolUnknown,
            message: format!("node {node} does not carry pool {pool}"),
        };
        let look = self.agent.pools.get(pool).ok_or_else(unknown)?;
        match &look.found {
            Found::Usable(usable) => Ok((Arc::clone(&look), usable.clone())),
            Found::Unusable { message, .. } => Err(NoPool {
                reason: Reason::PoolNotReady,
                message: format!("pool {pool} on node {node} cannot be used: {message}"),
            }),
            Found::Gone => Err(unknown()),
        }
    }

    /// The image of an object that came back as another: same name, new UID.
    pub(super) async fn look_for_own_image(
        &self,
        usable: &Usable,
    ) -> Result<Result<Option<Image>, image::Error>, Error> {
        let (object, now) = (self.object.clone(), (self.agent.now)());
        let pool = Arc::clone(&usable.pool);
        let place = self.agent.lanes.volume(self.object.pool_name()).await;
        let work = on_host(place, move || image::find_adoptable(&pool, &object, now));
        let found = work.await.map_err(|source| self.broken(source))?;
        if let Ok(Some(image)) = &found {
            let (kind, name, image) = (K::NOUN, &self.name, &image.image.uid);
            tracing::info!(kind, name, image, "the image is there and is adopted");
        }
        Ok(found)
    }

    /// Writes down a promise that was made. None when somebody was faster, perhaps an earlier write
    /// of ours that seemed to have failed: the promise stands until the watch shows what became of
    /// the object.
    pub(super) async fn write_promise(
        &self,
        promise: &Outcome<K::Own>,
    ) -> Result<Option<K>, Error> {
        let written = self.write(promise).await;
        match &written {
            Ok(Some(_)) => self.agent.report.request(),
            Err(error) if error.was_refused() => {
                let uid = self.object.uid().unwrap_or_default();
                self.agent.promises.withdraw(&uid);
                self.agent.report.request();
            }
            Ok(None) | Err(_) => {}
        }
        written
    }

    pub(super) async fn refuse(&self, refusal: Outcome<K::Own>) -> Result<Action, Error> {
        self.agent.publish_before_refusal().await;
        let (kind, name, pool) = (K::NOUN, &self.name, self.object.pool_name());
        tracing::info!(kind, name, pool, ?refusal, "refused");
        self.end(refusal).await
    }

    /// Destroys the image of an object, because its spec asks for it and nobody uses it.
    ///
    /// That it is asked for binds nobody before [`Outcome::DeletionCommitted`] is written, guarded by
    /// the version of the object that asks for it. The lock is held all the while, so that nobody
    /// begins to use the image between the check and the removal.
    pub(super) async fn reclaim(&self) -> Result<Action, Error> {
        let usable = match self.pool() {
            Ok((_, usable)) => usable,
            Err(NoPool { message, .. }) => {
                let reason = Reason::ReclaimFailed;
                return self.end(Outcome::NotReclaimed { reason, message }).await;
            }
        };
        let place = self.agent.lanes.volume(self.object.pool_name()).await;
        let Some(guard) = self.agent.locks.try_lock(&self.object.volume()) else {
            return Ok(Action::requeue(LOCKED));
        };
        let held = (place, guard);
        if self.object.deletion_committed() {
            return self.destroy(usable, held).await;
        }
        let (pool, object) = (Arc::clone(&usable.pool), self.object.clone());
        let check = on_host((), move || (image::check_removable(&pool, &object), held));
        let (checked, held) = check.await.map_err(|source| self.broken(source))?;
        if let Err(error) = checked {
            return self.end(self.not_reclaimed(&error)).await;
        }
        match self.write(&Outcome::DeletionCommitted).await? {
            Some(committed) => {
                let pass = Pass::over(self.agent, &committed);
                pass.destroy(usable, held).await
            }
            None => Ok(Action::await_change()),
        }
    }

    /// Removes the image of an object whose deletion stands.
    async fn destroy(&self, usable: Usable, held: impl Send + 'static) -> Result<Action, Error> {
        let object = self.object.clone();
        let work = on_host(held, move || {
            let uid = image::destroy(&usable.pool, &object)?;
            usable.images.removed(uid.as_str());
            Ok::<_, image::Error>(())
        });
        let outcome = match work.await.map_err(|source| self.broken(source))? {
            Ok(()) => {
                let (kind, name, pool) = (K::NOUN, &self.name, self.object.pool_name());
                tracing::info!(kind, name, pool, "the data is destroyed, as was asked");
                Outcome::Reclaimed
            }
            Err(error) => self.not_reclaimed(&error),
        };
        self.end(outcome).await
    }

    /// Why an image was not removed.
    fn not_reclaimed(&self, error: &image::Error) -> Outcome<K::Own> {
        self.agent.suspect_pool(error);
        let reason = match error.reason() {
            Reason::InUse => Reason::InUse,
            _ => Reason::ReclaimFailed,
        };
        let message = Chain(error).to_string();
        Outcome::NotReclaimed { reason, message }
    }

    /// Writes what came of the pass, and says when to come back.
    pub(super) async fn end(&self, outcome: Outcome<K::Own>) -> Result<Action, Error> {
        let was_written = self.write(&outcome).await?.is_some();
        // The watch may show more than was told last: a growth that was taken up after a restart, say.
        self.agent.report.request();
        let retries = &K::work(self.agent).retries;
        let action = match &outcome {
            // The object has changed meanwhile, and the change brings us back.
            _ if !was_written => Action::await_change(),
            Outcome::NotReady { .. } | Outcome::NotReclaimed { .. } => {
                return Ok(self.come_back(&outcome));
            }
            Outcome::Ready(_) => Action::requeue(PERIOD),
            Outcome::Rested
            | Outcome::Admitted { .. }
            | Outcome::Refused { .. }
            | Outcome::DeletionCommitted
            | Outcome::Reclaimed
            | Outcome::Own(_) => Action::await_change(),
        };
        retries.forget(&self.name);
        Ok(action)
    }

    /// Says what failed, and when to try again.
    pub(super) fn come_back(&self, failure: &Outcome<K::Own>) -> Action {
        let wait = K::work(self.agent).retries.failed(self.name.clone());
        let (kind, name, pool) = (K::NOUN, &self.name, self.object.pool_name());
        tracing::warn!(kind, name, pool, ?failure, ?wait, "not as desired");
        Action::requeue(wait)
    }

    /// Writes the status if there is news. None when the object is not what it was: the write says
    /// which version it was made from.
    pub(super) async fn write(&self, outcome: &Outcome<K::Own>) -> Result<Option<K>, Error> {
        let after = self.object.after(outcome, (self.agent.now)());
        if self.object.has_status_of(&after) {
            return Ok(Some(after));
        }
        let written = K::work(self.agent).write(&after).await?;
        if written.is_some() {
            self.tell(&after);
        }
        Ok(written)
    }

    /// A line for whatever this pass has finished; none where it only looked.
    fn tell(&self, after: &K) {
        let holds = |object: &K, kind| condition::holds(object.conditions(), kind);
        let (kind, name, volume) = (K::NOUN, &self.name, self.object.volume());
        let (pool, node) = (self.object.pool_name(), &self.agent.node_name);
        let elapsed_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        for condition in FINISHED {
            if holds(after, condition) && !holds(self.object, condition) {
                tracing::info!(kind, name, volume, pool, node, %condition, elapsed_ms, "done");
            }
        }
    }

    pub(super) fn broken(&self, source: blocking::Broken) -> Error {
        Error::Broken {
            object: named(self.object),
            source,
        }
    }
}

impl Agent {
    /// Publishes what room there is, before somebody is refused for the lack of it.
    ///
    /// Whoever hears of the refusal looks for another place: by then the published room must say
    /// what made us refuse, or the same node is chosen again.
    pub(super) async fn publish_before_refusal(&self) {
        match timeout(PUBLISH_PATIENCE, self.publish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "cannot publish the room before a refusal");
            }
            Err(_) => tracing::warn!("the room is not published in time for a refusal"),
        }
    }

    /// A pool that failed a volume or snapshot is looked at soon.
    pub(super) fn suspect_pool(&self, error: &image::Error) {
        if error.reason() == Reason::PoolNotReady {
            self.look.notify_one();
        }
    }
}
