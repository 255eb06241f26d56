//! Volumes: from the spec of a PoolVolume to an image on the disk, and its removal.

mod checked;
mod disk;
mod expand;
mod identity;
mod left;
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
    disk::{ImageStep, PreparedImage},
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
        let move_step = moving::next_on(agent, &volume);
        if agent.allocations.is_running(&reconciliation.name) {
            let is_over = move_step.is_some() || !plan::is_on_image(step);
            if is_over && agent.allocations.stop(&reconciliation.name) {
                tracing::info!(
                    volume = reconciliation.name,
                    pool,
                    ?step,
                    "stopping the allocation of the volume"
                );
            }
            return Ok(Action::requeue(LOCKED));
        }
        if let Some(step) = move_step {
            return Box::pin(reconciliation.take_move_step(step)).await;
        }
        reconciliation.take(step).await
    }

    fn gone(agent: &Agent, name: &str) {
        agent.allocations.stop(name);
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

    fn failure_of(own: &Own) -> Option<Explanation> {
        own.failure()
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
                return self.refuse_left(why).await;
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

    /// Receives the copy of a snapshot, and makes the image from it. Refuses the volume, and removes the copy, if the
    /// snapshot is gone or the pool lacks the space.
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
        let receiving = self.report_while(Box::pin(receiving), Self::is_deleted);
        let Some((received, object)) = receiving.await else {
            return Ok(Action::requeue(LOCKED));
        };
        let reported = Reconciliation::of(self.agent, &object);
        match received {
            Ok(_) => Box::pin(reported.prepare_here(VolumeStep::Make)).await,
            Err(NotCopied::Later(why)) => reported.copy_later(why).await,
            // A pool that is full has no use for the copy, and another node may have the space.
            Err(NotCopied::Gone(why) | NotCopied::Full(why)) => {
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

    /// Waits for the permits of a step on the volume: that for work that can take long, if it is such, and that for the
    /// work.
    async fn permit_for(
        &self,
        step: VolumeStep,
        is_logical: bool,
    ) -> (Option<Permit>, Option<Permit>) {
        let (pools, name) = (&self.agent.pools, self.object.pool_name());
        let long = if step == VolumeStep::Make {
            pools.permit_to_make(name).await
        } else if plan::is_allocation(step, self.object, is_logical) {
            pools.permit_to_allocate(name).await
        } else {
            None
        };
        (long, pools.permit(name).await)
    }

    async fn prepare_here(&self, step: VolumeStep) -> Result<Action, Error> {
        let (pool_state, usable) = match self.pool() {
            Ok(found) => found,
            Err(why) => return self.end(VolumeOutcome::NotReady(why)).await,
        };
        let permit = self.permit_for(step, usable.pool.group().is_some());
        let Some(permit) = self.unless_outdated(permit).await else {
            return Ok(Action::requeue(LOCKED));
        };
        let Some(guard) = self.agent.locks.try_lock(&self.name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let (volume, now) = (self.object.clone(), (self.agent.node.now)());
        let Some(allocation) = self.agent.allocations.begin(&self.name, now) else {
            return Ok(Action::requeue(LOCKED));
        };
        let extent_limits = pool_state.spec.limits.extents();
        let pool = Arc::clone(&usable.pool);
        let (io, root) = (self.agent.io.clone(), self.agent.node.root.clone());
        let limits = Volume::read(&volume).ok();
        let limits = limits.map(|volume| io_limits::of(&volume, &self.agent.pools));
        let work = on_host(permit, move || {
            let step = ImageStep {
                pool: &*pool,
                volume: &volume,
                step,
                extent_limits,
                checking: Checking::Later,
                progress: &|percent| allocation.reached(percent),
                set_limits: &|| io.apply(&root, limits.as_slice()),
                now,
            };
            step.take(guard)
        });
        let Some((done, object)) = self.report_while(work, Self::is_outdated).await else {
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
        let is_reported = self.object.current_status().is_some();
        let outcome = match done {
            // Another step is due, and goes on from here.
            Ok(PreparedImage {
                provisioned: Ok(false),
                ..
            }) if is_reported => return Ok(Action::requeue(LOCKED)),
            Ok(found) => {
                let missing = self.note_allocation(found.provisioned.as_ref().err());
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
        let is_first = !is_reported && matches!(outcome, VolumeOutcome::Ready(_));
        let action = self.finish(outcome).await?;
        // Pods get it from now on, and its space is allocated next.
        Ok(if is_first {
            Action::requeue(LOCKED)
        } else {
            action
        })
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
        // Nothing was made. A retry would fail in the same way, and another node may have the space.
        VolumeStep::Make
            if matches!(
                reason,
                Reason::NoSpace
                    | Reason::SourceMissing
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_volume_that_a_full_pool_cannot_make_is_refused_unless_its_image_exists() {
        let full = || cistern_host::image::Error::NoSpace {
            uid: "uid-1".parse().unwrap(),
            pool: "fast".to_owned(),
            source: io::Error::from(io::ErrorKind::StorageFull).into(),
        };
        let outcome = failed(VolumeStep::Make, &image::Error::NotMade(full()));
        let VolumeOutcome::Refused(why) = &outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(why.reason, Reason::NoSpace);
        assert!(why.message.contains("no space left"), "{why}");
        // It may hold data.
        let outcome = failed(VolumeStep::Make, &full().into());
        let VolumeOutcome::NotReady(why) = &outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(why.reason, Reason::ProvisioningFailed);
    }
}
