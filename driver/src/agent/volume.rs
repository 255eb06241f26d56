//! Volumes: from the wish in a PoolVolume to an image on the disk, and back.
//!
//! ```text
//! observe (custom resource, pool) → plan (pure) → execute (one look or change of the disk) → status (pure)
//! ```
//!
//! Each pass starts from what is there, so it does not matter where the last one stopped. The
//! status is written also when a step failed: the reason is what people need.

pub mod disk;
mod expand;
pub mod plan;
pub mod status;

use std::{sync::Arc, time::Duration};

use cistern_client::{Chain, Rejection};
use cistern_crds::{Bytes, PoolVolume, Reason, names::AGENT_MANAGER};
use cistern_host::image;
use kube::{ResourceExt as _, api::PostParams, runtime::controller::Action};
use tokio::time::timeout;

use self::{
    expand::Noted,
    plan::{Image, Step},
    status::Outcome,
};
use super::{
    Agent,
    blocking::{self, on_host},
    desired::{Guarded, readable},
    pools::{Found, PoolLook, Usable},
    promises::Claim,
};

/// How often a volume that is well is looked at: what fstrim punched out of a thick one is
/// allocated again, and a missing image is noticed.
const PERIOD: Duration = Duration::from_mins(10);
/// How long a refusal waits for the room to be published that explains it.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(5);
/// How long the API server may take for a write.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// How soon to come back when somebody else works on the volume.
const LOCKED: Duration = Duration::from_millis(500);

/// Why a pass was not finished. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not take the status, or did not say whether it did.
    #[error("cannot write the status of volume {volume}")]
    Write {
        /// The volume.
        volume: String,
        /// What it said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer, and may have taken the status or not.
    #[error("the API server does not answer to the status of volume {volume}")]
    Silent {
        /// The volume.
        volume: String,
    },
    /// The work on the disk ended in a panic.
    #[error("the work on volume {volume} broke off")]
    Broken {
        /// The volume.
        volume: String,
        /// The panic.
        #[source]
        source: blocking::Broken,
    },
}

/// One pass over one volume.
pub async fn reconcile(
    object: Arc<Guarded<PoolVolume>>,
    agent: Arc<Agent>,
) -> Result<Action, Error> {
    let Some(volume) = readable(&object) else {
        tracing::error!(
            volume = object.name_any(),
            "the PoolVolume cannot be read and is left alone"
        );
        // Its pool takes no volumes as long as nobody knows what this one takes.
        agent.report.request();
        return Ok(Action::await_change());
    };
    let pass = Pass {
        agent: &agent,
        volume,
        name: volume.name_any(),
    };
    let noted = match pass.note_filesystem().await? {
        Noted::Nothing => None,
        Noted::Written(volume) => Some(*volume),
        Noted::Overtaken => return Ok(Action::await_change()),
    };
    let pass = Pass {
        volume: noted.as_ref().unwrap_or(volume),
        ..pass
    };
    let step = plan::next(pass.volume);
    tracing::debug!(
        volume = pass.name,
        pool = volume.spec.pool_name,
        ?step,
        "reconciling"
    );
    match step {
        Step::Rest if volume.spec.deletion_requested => Ok(Action::await_change()),
        Step::Rest => pass.end(Outcome::Rested).await,
        Step::Admit => pass.admit().await,
        Step::AdmitGrowth => pass.admit_growth().await,
        Step::Make | Step::Grow | Step::Keep => pass.bring_up(step).await,
        Step::Reclaim => pass.reclaim().await,
    }
}

/// A pass over one volume, as its custom resource was when the pass began.
#[derive(Debug)]
struct Pass<'a> {
    agent: &'a Agent,
    volume: &'a PoolVolume,
    name: String,
}

/// Why there is no pool to work on.
#[derive(Debug)]
struct NoPool {
    reason: Reason,
    message: String,
}

impl Pass<'_> {
    /// Promises a volume its bytes and makes it, or refuses it.
    async fn admit(&self) -> Result<Action, Error> {
        let look = match self.pool() {
            Ok((look, _)) => look,
            Err(NoPool { reason, message }) => return self.refuse(refused(reason, message)).await,
        };
        if let Some(message) = self.agent.closed(&look) {
            return self.refuse(refused(Reason::PoolNotReady, message)).await;
        }
        let image = match self.look_for_own_image().await? {
            Ok(image) => image,
            Err(error) => {
                let message = Chain(&error).to_string();
                return self.refuse(refused(error.reason(), message)).await;
            }
        };
        let claim = if image.is_some() {
            Claim::Adopted
        } else {
            Claim::New
        };
        let on_disk = image.as_ref().map_or(Bytes::ZERO, |image| image.size);
        let size = self.volume.spec.size.max(on_disk);
        if let Err(refusal) = self.agent.promise(self.volume, size, &look, claim) {
            let message = refusal.to_string();
            return self.refuse(refused(refusal.reason(), message)).await;
        }
        if let Some(image) = &image {
            let uid = &image.image.uid;
            tracing::info!(
                volume = self.name,
                image = uid,
                "the volume's image is there and is adopted"
            );
        }
        let image = image.map(|image| image.image);
        let admission = Outcome::Admitted { size, image };
        self.write_admission(&admission, Step::Make).await
    }

    /// Writes down a promise that was made, and goes on with what it is for.
    async fn write_admission(&self, admission: &Outcome, next: Step) -> Result<Action, Error> {
        match self.write(admission).await {
            Ok(Some(admitted)) => {
                self.agent.report.request();
                let pass = Pass {
                    agent: self.agent,
                    volume: &admitted,
                    name: self.name.clone(),
                };
                pass.bring_up(next).await
            }
            // Somebody was faster, perhaps an earlier write of ours that seemed to have failed. The
            // promise stands until the watch shows what became of the object.
            Ok(None) => Ok(Action::await_change()),
            Err(error) => {
                if error.was_refused() {
                    self.withdraw_promise();
                }
                Err(error)
            }
        }
    }

    async fn refuse(&self, refusal: Outcome) -> Result<Action, Error> {
        // Whoever hears of the refusal looks for another place: by then the published room must
        // say what made us refuse, or the same node is chosen again.
        match timeout(PUBLISH_PATIENCE, self.agent.publish()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = %Chain(&error), "cannot publish the room before a refusal");
            }
            Err(_) => tracing::warn!("the room is not published in time for a refusal"),
        }
        let pool = &self.volume.spec.pool_name;
        tracing::info!(volume = self.name, pool, ?refusal, "refused");
        self.end(refusal).await
    }

    /// Makes an admitted volume's image, grows it, or looks whether the one that was made is as it was.
    async fn bring_up(&self, step: Step) -> Result<Action, Error> {
        let pool = match self.pool() {
            Ok((_, usable)) => usable.pool,
            Err(NoPool { reason, message }) => {
                return self.end(Outcome::NotReady { reason, message }).await;
            }
        };
        let place = self.agent.lanes.volume(&self.volume.spec.pool_name).await;
        let Some(guard) = self.agent.locks.try_lock(&self.name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let (volume, now) = (self.volume.clone(), (self.agent.now)());
        let work = on_host((place, guard), move || {
            let image = disk::bring_up(&pool, &volume, step, now)?;
            let image = Image::read(&image, now)?;
            plan::is_the_same(&volume, &image)?;
            Ok::<_, disk::Error>(image)
        });
        let outcome = match work.await.map_err(|source| self.broken(source))? {
            Ok(image) => match self.agent.damage.of(self.volume) {
                None => Outcome::Ready(image),
                Some(message) => Outcome::NotReady {
                    reason: Reason::FilesystemDamaged,
                    message,
                },
            },
            Err(error) => {
                self.suspect_pool(&error);
                failed(step, &error)
            }
        };
        self.end(outcome).await
    }

    /// Destroys the image of a volume, because its spec asks for it.
    async fn reclaim(&self) -> Result<Action, Error> {
        let not_reclaimed = |reason, message| Outcome::NotReclaimed { reason, message };
        let usable = match self.pool() {
            Ok((_, usable)) => usable,
            Err(NoPool { message, .. }) => {
                return self
                    .end(not_reclaimed(Reason::ReclaimFailed, message))
                    .await;
            }
        };
        let place = self.agent.lanes.volume(&self.volume.spec.pool_name).await;
        let Some(guard) = self.agent.locks.try_lock(&self.name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let volume = self.volume.clone();
        let work = on_host((place, guard), move || {
            let uid = disk::destroy(&usable.pool, &volume)?;
            usable.images.removed(uid.as_str());
            Ok::<_, disk::Error>(())
        });
        let outcome = match work.await.map_err(|source| self.broken(source))? {
            Ok(()) => {
                tracing::info!(
                    volume = self.name,
                    "the volume's data is destroyed, as was asked"
                );
                Outcome::Reclaimed
            }
            Err(error) => {
                self.suspect_pool(&error);
                let reason = match error.reason() {
                    Reason::InUse => Reason::InUse,
                    _ => Reason::ReclaimFailed,
                };
                not_reclaimed(reason, Chain(&error).to_string())
            }
        };
        self.end(outcome).await
    }

    /// The pool of the volume, if it can be used.
    fn pool(&self) -> Result<(Arc<PoolLook>, Usable), NoPool> {
        let (pool, node) = (&self.volume.spec.pool_name, &self.agent.node_name);
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

    /// The image of a volume whose custom resource came back as another: same name, new UID.
    async fn look_for_own_image(&self) -> Result<Result<Option<Image>, disk::Error>, Error> {
        let Ok((_, usable)) = self.pool() else {
            return Ok(Ok(None));
        };
        let (volume, now) = (self.volume.clone(), (self.agent.now)());
        let place = self.agent.lanes.volume(&self.volume.spec.pool_name).await;
        let work = on_host(place, move || {
            disk::find_adoptable(&usable.pool, &volume, now)
        });
        work.await.map_err(|source| self.broken(source))
    }

    /// Writes what came of the pass, and says when to come back.
    async fn end(&self, outcome: Outcome) -> Result<Action, Error> {
        let was_written = self.write(&outcome).await?.is_some();
        let action = match &outcome {
            // The object has changed meanwhile, and the change brings us back.
            _ if !was_written => Action::await_change(),
            Outcome::Rested
            | Outcome::Refused { .. }
            | Outcome::Admitted { .. }
            | Outcome::GrowthAdmitted { .. }
            | Outcome::Filesystem(_) => Action::await_change(),
            Outcome::Ready(_) => Action::requeue(PERIOD),
            Outcome::GrowthRefused { .. } | Outcome::Reclaimed => {
                self.agent.report.request();
                Action::await_change()
            }
            failure @ (Outcome::NotReady { .. }
            | Outcome::NotGrown { .. }
            | Outcome::NotReclaimed { .. }) => {
                let wait = self.agent.retries.failed(self.name.clone());
                let pool = &self.volume.spec.pool_name;
                tracing::warn!(volume = self.name, pool, ?failure, ?wait, "not as desired");
                return Ok(Action::requeue(wait));
            }
        };
        self.agent.retries.forget(&self.name);
        Ok(action)
    }

    /// Writes the status if there is news. None when the object is not what it was: the write says
    /// which version it was made from.
    async fn write(&self, outcome: &Outcome) -> Result<Option<PoolVolume>, Error> {
        let status = status::after(self.volume, outcome, (self.agent.now)());
        if self.volume.status.as_ref() == Some(&status) {
            return Ok(Some(self.volume.clone()));
        }
        let mut object = self.volume.clone();
        object.status = Some(status);
        let parameters = PostParams {
            field_manager: Some(AGENT_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let volumes = &self.agent.volumes;
        let written = volumes.replace_status(&self.name, &parameters, &object);
        let Ok(answer) = timeout(WRITE_DEADLINE, written).await else {
            return Err(Error::Silent {
                volume: self.name.clone(),
            });
        };
        match answer {
            Ok(written) => Ok(Some(written)),
            Err(error) => match Rejection::from(&error) {
                Rejection::NotFound | Rejection::Conflict => Ok(None),
                Rejection::AlreadyExists
                | Rejection::Invalid
                | Rejection::Denied
                | Rejection::Unavailable => Err(Error::Write {
                    volume: self.name.clone(),
                    source: Box::new(error),
                }),
            },
        }
    }

    fn withdraw_promise(&self) {
        let uid = self.volume.uid().unwrap_or_default();
        self.agent.promises.withdraw(&uid);
        self.agent.report.request();
    }

    /// A pool that failed a volume is looked at soon.
    fn suspect_pool(&self, error: &disk::Error) {
        if error.reason() == Reason::PoolNotReady {
            self.agent.look.notify_one();
        }
    }

    fn broken(&self, source: blocking::Broken) -> Error {
        Error::Broken {
            volume: self.name.clone(),
            source,
        }
    }
}

fn refused(reason: Reason, message: String) -> Outcome {
    Outcome::Refused { reason, message }
}

/// What a step on the image that failed means to the volume.
fn failed(step: Step, error: &disk::Error) -> Outcome {
    let (reason, message) = (error.reason(), Chain(error).to_string());
    match (step, error) {
        // The disk does not have what the ledger had promised, and the image is as it was.
        (Step::Grow, disk::Error::Image(image::Error::NoSpace { .. })) => Outcome::GrowthRefused {
            reason: Reason::NoSpace,
            message,
        },
        (Step::Grow, _) if reason == Reason::ProvisioningFailed => Outcome::NotGrown { message },
        _ => Outcome::NotReady { reason, message },
    }
}

impl Error {
    /// Whether the API server said no, so that nothing of the write remains.
    fn was_refused(&self) -> bool {
        match self {
            Self::Write { source, .. } => match Rejection::from(&**source) {
                Rejection::Unavailable => false,
                Rejection::NotFound
                | Rejection::AlreadyExists
                | Rejection::Conflict
                | Rejection::Invalid
                | Rejection::Denied => true,
            },
            Self::Silent { .. } | Self::Broken { .. } => false,
        }
    }
}
