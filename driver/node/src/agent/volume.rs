//! Volumes: from the wish in a PoolVolume to an image on the disk, and back.

mod checked;
pub mod disk;
mod expand;
mod note;
pub mod plan;
pub mod status;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{Bytes, PoolVolume, Reason, volume::FilesystemStatus};
use cistern_host::{Checking, Owner};
use kube::{ResourceExt as _, runtime::controller::Action};

use self::{
    disk::BroughtUp,
    plan::Step,
    status::{Outcome, Own},
};
use super::{
    Agent,
    blocking::on_host,
    image::{self, Difference, Image},
    ledger::Promise,
    pass::{Kept, LOCKED, NoPool, Pass},
    promises::Claim,
    work::{Error, Kind, Work},
};

impl Kind for PoolVolume {
    const NOUN: &'static str = "volume";
    const CLAIM: &'static str = "PersistentVolumeClaim";

    fn pool(&self) -> Option<&str> {
        Some(&self.spec.pool_name)
    }

    fn work(agent: &Agent) -> &Work<Self> {
        &agent.volumes
    }

    async fn pass(agent: &Agent, volume: &Self) -> Result<Action, Error> {
        let Some(volume) = note::note(agent, volume).await? else {
            return Ok(Action::await_change());
        };
        let (pass, step) = (Pass::over(agent, &*volume), plan::next(&volume));
        let pool = &volume.spec.pool_name;
        tracing::debug!(volume = pass.name, pool, ?step, "reconciling");
        match step {
            Step::Rest if volume.spec.deletion_requested => Ok(Action::await_change()),
            Step::Rest => pass.end(Outcome::Rested).await,
            Step::Admit => pass.admit().await,
            Step::AdmitGrowth => pass.admit_growth().await,
            Step::Make | Step::Grow | Step::Keep => pass.bring_up(step).await,
            Step::Reclaim => pass.reclaim().await,
        }
    }

    fn gone(agent: &Agent, name: &str) {
        agent.damage.forget(name);
        agent.filesystems.forget(name);
        agent.unallocated.forget(name);
        agent.checks.forget(name);
        agent.health.forget_volume(name);
    }
}

impl Kept for PoolVolume {
    type Own = Own;

    fn after(&self, outcome: &Outcome, now: DateTime<Utc>) -> Self {
        Self {
            status: Some(status::after(self, outcome, now)),
            ..self.clone()
        }
    }

    fn has_status_of(&self, other: &Self) -> bool {
        self.status == other.status
    }

    fn is_announced(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.size.is_some())
    }

    fn volume(&self) -> String {
        self.name_any()
    }

    fn is_named(&self, owner: &Owner) -> bool {
        owner.volume() == self.metadata.name.as_deref()
    }

    fn is_served_by(&self, image: &Image) -> Result<(), Difference> {
        plan::serves(self, image)
    }

    fn filesystem(&self) -> Option<&FilesystemStatus> {
        self.status.as_ref()?.filesystem.as_ref()
    }
}

impl Pass<'_, PoolVolume> {
    /// Promises a volume its bytes and makes it, or refuses it.
    async fn admit(&self) -> Result<Action, Error> {
        let (look, usable) = match self.pool() {
            Ok(found) => found,
            Err(NoPool { reason, message }) => return self.refuse(refused(reason, message)).await,
        };
        let image = match self.look_for_own_image(&usable).await? {
            Ok(image) => image,
            Err(error) => {
                let message = Chain(&error).to_string();
                return self.refuse(refused(error.reason(), message)).await;
            }
        };
        let claim = match (&image, self.agent.closed(&look)) {
            (Some(_), _) => Claim::Adopted,
            (None, None) => Claim::New,
            (None, Some(message)) => {
                return self.refuse(refused(Reason::PoolNotReady, message)).await;
            }
        };
        let on_disk = image.as_ref().map_or(Bytes::ZERO, |image| image.size);
        let size = self.object.spec.size.max(on_disk);
        let promise = Promise::to_volume(self.object, size);
        if let Err(refusal) = self.agent.promise(self.object, promise, &look, claim) {
            let message = refusal.to_string();
            return self.refuse(refused(refusal.reason(), message)).await;
        }
        let image = image.map(|image| image.image);
        match self
            .write_promise(&Outcome::Admitted { size, image })
            .await?
        {
            Some(admitted) => Pass::over(self.agent, &admitted).bring_up(Step::Make).await,
            None => Ok(Action::await_change()),
        }
    }

    /// Makes an admitted volume's image, grows it, or looks whether the one that was made is as it was.
    async fn bring_up(&self, step: Step) -> Result<Action, Error> {
        let (look, usable) = match self.pool() {
            Ok(found) => found,
            Err(NoPool { reason, message }) => {
                return self.end(Outcome::NotReady { reason, message }).await;
            }
        };
        let place = self.agent.lanes.volume(&self.object.spec.pool_name).await;
        let Some(guard) = self.agent.locks.try_lock(&self.name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let (volume, now) = (self.object.clone(), (self.agent.now)());
        let maximum_extents = look.spec.limits.maximum_extents;
        let pool = Arc::clone(&usable.pool);
        let work = on_host((place, guard), move || {
            disk::bring_up(&pool, &volume, step, maximum_extents, Checking::Later, now)
        });
        let done = work.await.map_err(|source| self.broken(source))?;
        match done {
            Err(error) if error.reason() == Reason::CheckWaiting => {
                self.bring_up_checked(step, usable.pool, maximum_extents)
                    .await
            }
            done => self.conclude(step, done).await,
        }
    }

    /// Says what came of a step on the image.
    async fn conclude(
        &self,
        step: Step,
        done: Result<BroughtUp, image::Error>,
    ) -> Result<Action, Error> {
        let outcome = match done {
            Ok(found) => {
                self.note_allocation(found.not_refilled.as_ref());
                match self.agent.damage.of(self.object) {
                    None => Outcome::Ready(found.image),
                    Some((reason, message)) => Outcome::NotReady { reason, message },
                }
            }
            Err(error) => {
                self.agent.suspect_pool(&error);
                failed(step, &error)
            }
        };
        match outcome {
            Outcome::Refused { .. } => self.refuse(outcome).await,
            Outcome::Own(Own::NotGrown { .. }) => match self.write(&outcome).await? {
                Some(_) => Ok(self.come_back(&outcome)),
                None => Ok(Action::await_change()),
            },
            outcome => self.end(outcome).await,
        }
    }

    /// Takes note of whether a thick volume has all of its blocks. Its data is there in any case.
    fn note_allocation(&self, not_refilled: Option<&cistern_host::image::Error>) {
        match not_refilled {
            None => self.agent.unallocated.forget(&self.name),
            Some(error) => {
                let (volume, why) = (&self.name, Chain(error).to_string());
                tracing::warn!(volume, error = why, "a thick volume lacks blocks");
                self.agent.unallocated.lacks(volume, why);
            }
        }
    }
}

fn refused(reason: Reason, message: String) -> Outcome {
    Outcome::Refused { reason, message }
}

/// What a step on the image that failed means to the volume.
fn failed(step: Step, error: &image::Error) -> Outcome {
    let (reason, message) = (error.reason(), Chain(error).to_string());
    match step {
        // The disk does not have what the ledger had promised, and the image is as it was.
        Step::Grow if error.is_no_space() => Outcome::Own(Own::GrowthRefused {
            reason: Reason::NoSpace,
            message,
        }),
        Step::Grow if reason == Reason::ProvisioningFailed => {
            Outcome::Own(Own::NotGrown { message })
        }
        // Nothing was made, and trying again makes nothing.
        Step::Make
            if matches!(
                reason,
                Reason::SourceMissing | Reason::TooManyExtents | Reason::TooLargeToCheck
            ) =>
        {
            refused(reason, message)
        }
        Step::Rest
        | Step::Admit
        | Step::Make
        | Step::AdmitGrowth
        | Step::Grow
        | Step::Keep
        | Step::Reclaim => Outcome::NotReady { reason, message },
    }
}
