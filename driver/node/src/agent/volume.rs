//! Volumes: from the spec of a PoolVolume to an image on the disk, and its removal.

mod checked;
pub mod disk;
mod expand;
mod identity;
mod modify;
mod moving;
mod note;
mod progress;
pub mod status;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{
    ContentSource, Explanation, HasImage as _, PoolVolume, PoolVolumeStatus, Reason,
};
use cistern_host::Checking;
use kube::runtime::controller::Action;

use self::{
    disk::PreparedImage,
    status::{Own, VolumeOutcome},
};
use super::{
    Agent, io_limits,
    plan::{self, VolumeStep},
    pools::Permit,
    reconcile::{LOCKED, ReconciledImage, Reconciliation},
    work::{Error, Reconcile, Work},
};
use crate::{
    agent::transfers::{self, NotCopied, Wanted},
    blocking::on_host,
    image::{self, COPIES},
    usage::Volume,
};

impl Reconcile for PoolVolume {
    fn pool(&self) -> Option<&str> {
        Some(&self.spec.pool_name)
    }

    fn work(agent: &Agent) -> &Work<Self> {
        &agent.work.volumes
    }

    async fn reconcile(agent: &Agent, volume: &Self) -> Result<Action, Error> {
        let Some(volume) = note::note(agent, volume).await? else {
            return Ok(Action::await_change());
        };
        let (reconciliation, step) = (Reconciliation::of(agent, &*volume), plan::next(&volume));
        let pool = &volume.spec.pool_name;
        tracing::debug!(volume = reconciliation.name, pool, ?step, "reconciling");
        if let Some(step) = moving::next_on(agent, &volume) {
            return Box::pin(reconciliation.take_move_step(step)).await;
        }
        reconciliation.take(step).await
    }

    fn gone(agent: &Agent, name: &str) {
        agent.observations.forget(name);
        agent.checks.forget(name);
        agent.io.forget(name);
        agent.transfers.copies.forget(name);
        // A volume that is on another node now leaves its image to a replica.
        for replica in agent.desired.replicas_of(name) {
            agent.work.replicas.enqueue(&replica);
        }
    }
}

impl ReconciledImage for PoolVolume {
    type Own = Own;

    fn status_after(&self, outcome: &VolumeOutcome, now: DateTime<Utc>) -> PoolVolumeStatus {
        status::after(self, outcome, now)
    }
}

impl Reconciliation<'_, PoolVolume> {
    /// Takes a step of a volume that does not move.
    async fn take(&self, step: VolumeStep) -> Result<Action, Error> {
        match step {
            VolumeStep::Rest if self.object.spec.deletion_requested => Ok(Action::await_change()),
            VolumeStep::Rest => self.end(VolumeOutcome::Rested).await,
            VolumeStep::Admit => Box::pin(self.admit()).await,
            VolumeStep::AdmitGrowth => Box::pin(self.admit_growth()).await,
            VolumeStep::AdmitAttributes => Box::pin(self.admit_attributes()).await,
            VolumeStep::Make | VolumeStep::Grow | VolumeStep::Keep => self.prepare(step).await,
            VolumeStep::Reclaim => self.reclaim().await,
        }
    }

    /// Reserves the bytes of a volume and makes its image, or refuses it.
    async fn admit(&self) -> Result<Action, Error> {
        let (pool_state, usable) = match self.pool() {
            Ok(found) => found,
            Err(why) => return self.refuse(VolumeOutcome::Refused(why)).await,
        };
        let image = match Box::pin(self.find_left_image(&usable)).await? {
            Ok(image) => image,
            Err(error) => {
                let why = Explanation::new(error.reason(), Chain(&error).to_string());
                return self.refuse(VolumeOutcome::Refused(why)).await;
            }
        };
        let admission = &self.agent.admission;
        let size = match admission.volume(self.object, &pool_state, image.as_ref()) {
            Ok(size) => size,
            Err(why) => return self.refuse(VolumeOutcome::Refused(why)).await,
        };
        let image = image.map(|image| image.image);
        let admission = VolumeOutcome::Admitted { size, image };
        Box::pin(self.prepare_admitted(&admission, VolumeStep::Make)).await
    }

    /// Writes an admission to the status, and does the step that it permits.
    async fn prepare_admitted(
        &self,
        admission: &VolumeOutcome,
        step: VolumeStep,
    ) -> Result<Action, Error> {
        match self.write_reservation(admission).await? {
            Some(admitted) => {
                Reconciliation::of(self.agent, &admitted)
                    .prepare(step)
                    .await
            }
            None => Ok(Action::await_change()),
        }
    }

    /// Makes the image of an admitted volume, grows it, or checks that it is unchanged. The data of a volume
    /// whose source is on another node is copied first.
    async fn prepare(&self, step: VolumeStep) -> Result<Action, Error> {
        let source = self.object.spec.content_source.as_ref();
        let copied = source.and_then(|source| Some((source, source.copied_snapshot()?)));
        match copied.filter(|_| step == VolumeStep::Make) {
            Some((source, snapshot)) => self.prepare_copied(source, snapshot).await,
            None => self.prepare_here(step).await,
        }
    }

    /// Receives the copy of a snapshot, and makes the image from it.
    async fn prepare_copied(
        &self,
        source: &ContentSource,
        snapshot: &str,
    ) -> Result<Action, Error> {
        let usable = match self.pool() {
            Ok((_, usable)) => usable,
            Err(why) => return self.end(VolumeOutcome::NotReady(why)).await,
        };
        let Some(guard) = self.agent.locks.try_lock(&self.name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let wanted = match Wanted::of_snapshot(self.object, source, snapshot) {
            Ok(wanted) => wanted,
            Err(error) => return self.end(failed(VolumeStep::Make, &error.into())).await,
        };
        let target = (Arc::clone(&usable.pool), guard);
        let receiving = transfers::receive(self.agent, &wanted, target);
        let Some((received, object)) = self.report_while(Box::pin(receiving)).await else {
            return Ok(Action::requeue(LOCKED));
        };
        let reported = Reconciliation::of(self.agent, &object);
        match received {
            Ok(_) => Box::pin(reported.prepare_here(VolumeStep::Make)).await,
            Err(NotCopied::Later(why)) => reported.copy_later(why).await,
            Err(NotCopied::Gone(why)) => {
                let (pool, uid) = (usable.pool, image::name_of(&object));
                let removed = on_host((), move || -> Result<(), image::Error> {
                    Ok(pool.images_for(COPIES)?.remove_incoming(&uid?)?)
                });
                let removed = removed.await.map_err(|source| reported.broken(source))?;
                match removed {
                    Ok(()) => reported.refuse(VolumeOutcome::Refused(why)).await,
                    Err(error) => reported.end(failed(VolumeStep::Make, &error)).await,
                }
            }
        }
    }

    /// Reports why a copy waits, and when to go on. The wait does not grow: another node decides how long it lasts.
    async fn copy_later(&self, why: Explanation) -> Result<Action, Error> {
        tracing::warn!(volume = self.name, %why, "the copy waits");
        match self.write(&VolumeOutcome::NotReady(why)).await? {
            Some(_) => Ok(Action::requeue(transfers::RETRY)),
            None => Ok(Action::await_change()),
        }
    }

    /// Waits for the permits of a step on the volume.
    async fn permit_for(&self, step: VolumeStep) -> (Option<Permit>, Option<Permit>) {
        let (pools, name) = (&self.agent.pools, self.object.pool_name());
        match step {
            VolumeStep::Make => pools.permit_to_make(name).await.unzip(),
            _ => (None, pools.permit(name).await),
        }
    }

    async fn prepare_here(&self, step: VolumeStep) -> Result<Action, Error> {
        let (pool_state, usable) = match self.pool() {
            Ok(found) => found,
            Err(why) => return self.end(VolumeOutcome::NotReady(why)).await,
        };
        let Some(permit) = self.unless_deleted(self.permit_for(step)).await else {
            return Ok(Action::requeue(LOCKED));
        };
        let Some(guard) = self.agent.locks.try_lock(&self.name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let (volume, now) = (self.object.clone(), (self.agent.node.now)());
        let extent_limits = pool_state.spec.limits.extents();
        let pool = Arc::clone(&usable.pool);
        let (io, root) = (self.agent.io.clone(), self.agent.node.root.clone());
        let limits = Volume::read(&volume).ok();
        let limits = limits.map(|volume| io_limits::of(&volume, &self.agent.pools));
        let allocation = self.agent.allocations.begin(&self.name, now);
        let work = on_host((permit, guard), move || {
            let progress = |percent| allocation.reached(percent);
            let checking = Checking::Later;
            let done = disk::prepare(
                &*pool,
                &volume,
                step,
                extent_limits,
                checking,
                &progress,
                now,
            );
            if done.is_ok() {
                io.apply(&root, limits.as_slice());
            }
            done
        });
        let Some((done, object)) = self.report_while(work).await else {
            if let (true, Ok(uid)) = (self.is_deleted(), image::name_of(self.object)) {
                usable.pool.interrupt(&uid);
            }
            return Ok(Action::requeue(LOCKED));
        };
        let reported = Reconciliation::of(self.agent, &object);
        match done.map_err(|source| self.broken(source))? {
            Err(error) if error.reason() == Reason::CheckWaiting => {
                let (pool, limits) = (usable.pool, extent_limits);
                reported.prepare_checked(step, pool, limits).await
            }
            done => reported.conclude(step, done).await,
        }
    }

    /// Writes the outcome of a step on the image.
    async fn conclude(
        &self,
        step: VolumeStep,
        done: Result<PreparedImage, image::Error>,
    ) -> Result<Action, Error> {
        let outcome = match done {
            Ok(found) => {
                let missing = self.note_allocation(found.not_provisioned.as_ref());
                match (self.agent.observations.damage_of(self.object), missing) {
                    (Some(why), _) => VolumeOutcome::NotReady(why),
                    (None, Some(message)) if self.object.is_being_modified() => {
                        VolumeOutcome::Own(Own::NotModified { message })
                    }
                    (None, _) => VolumeOutcome::Ready(found.image),
                }
            }
            Err(error) => {
                self.agent.pools.suspect(&error);
                failed(step, &error)
            }
        };
        self.finish(outcome).await
    }

    /// Writes an outcome and returns when to reconcile again.
    async fn finish(&self, outcome: VolumeOutcome) -> Result<Action, Error> {
        match outcome {
            VolumeOutcome::Refused(_) | VolumeOutcome::Own(Own::AttributesRefused(_)) => {
                self.refuse(outcome).await
            }
            VolumeOutcome::Own(Own::NotGrown { .. } | Own::NotModified { .. }) => {
                match self.write(&outcome).await? {
                    Some(_) => Ok(self.retry_later(&outcome)),
                    None => Ok(Action::await_change()),
                }
            }
            outcome => self.end(outcome).await,
        }
    }

    /// Records whether a thick volume has all of its blocks, and returns the error if not. The data
    /// of the volume is complete in both cases.
    fn note_allocation(
        &self,
        not_provisioned: Option<&cistern_host::image::Error>,
    ) -> Option<String> {
        let missing = not_provisioned.map(|error| Chain(error).to_string());
        if let Some(error) = &missing {
            tracing::warn!(volume = self.name, error, "a thick volume lacks blocks");
        }
        self.agent
            .observations
            .allocated(&self.name, missing.clone());
        missing
    }
}

/// The outcome of a failed step on the image.
fn failed(step: VolumeStep, error: &image::Error) -> VolumeOutcome {
    let (reason, message) = (error.reason(), Chain(error).to_string());
    match step {
        // The disk lacks the space that the ledger reserved, and the image is unchanged.
        VolumeStep::Grow if error.is_no_space() => {
            VolumeOutcome::Own(Own::GrowthRefused(Explanation {
                reason: Reason::NoSpace,
                message,
            }))
        }
        VolumeStep::Grow if reason == Reason::ProvisioningFailed => {
            VolumeOutcome::Own(Own::NotGrown { message })
        }
        // Nothing was made, and a retry would fail in the same way.
        VolumeStep::Make
            if matches!(
                reason,
                Reason::SourceMissing
                    | Reason::TooManyExtents
                    | Reason::TooLargeToCheck
                    | Reason::NotInVolumeGroup
            ) =>
        {
            VolumeOutcome::Refused(Explanation::new(reason, message))
        }
        VolumeStep::Rest
        | VolumeStep::Admit
        | VolumeStep::Make
        | VolumeStep::AdmitGrowth
        | VolumeStep::Grow
        | VolumeStep::AdmitAttributes
        | VolumeStep::Keep
        | VolumeStep::Reclaim => VolumeOutcome::NotReady(Explanation::new(reason, message)),
    }
}
