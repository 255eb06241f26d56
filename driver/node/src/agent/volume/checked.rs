//! Makes a copy whose filesystem must be checked. The check waits for its turn and reports its
//! progress.
//!
//! *Invariant:* a waiting check holds neither the volume's lock nor a permit of its pool.

use std::{pin::pin, sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::{ExtentLimits, PoolVolume};
use cistern_host::{Checking, Pool};
use kube::runtime::controller::Action;
use tokio::time::sleep;

use super::{
    disk,
    status::{Own, VolumeOutcome},
};
use crate::agent::{
    desired::readable,
    plan::VolumeStep,
    reconcile::{LOCKED, Reconciliation},
    work::Error,
};
use crate::blocking::on_host;

/// Interval at which the progress is read.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

impl Reconciliation<'_, PoolVolume> {
    /// Makes the image of a volume and checks it, as soon as the check has its turn.
    pub(super) async fn prepare_checked(
        &self,
        step: VolumeStep,
        pool: Arc<Pool>,
        extent_limits: ExtentLimits,
    ) -> Result<Action, Error> {
        let agent = self.agent;
        let Some(ticket) = agent.checks.begin(&self.name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let claim = self.object.spec.claim.as_ref();
        let namespace = claim.map_or("", |claim| &claim.namespace);
        let volume = self.object.clone();
        let work = async {
            let turn = agent.checks.queue.turn(namespace).await;
            let guard = agent.locks.try_lock(&self.name)?;
            let now = (agent.node.now)();
            ticket.run(now);
            let work = move || {
                let progress = |percent| _ = ticket.reached(percent);
                let checking = Checking::Now(&progress);
                disk::prepare(&pool, &volume, step, extent_limits, checking, now)
            };
            Some(on_host((turn, guard), work).await)
        };
        let (mut work, mut object) = (pin!(work), self.object.clone());
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                () = sleep(PROGRESS_INTERVAL) => {}
            }
            match self.report_checking(&object).await {
                Some(reported) => object = reported,
                // The object has changed. A waiting check starts again; a running one keeps its lock.
                None => return Ok(Action::requeue(LOCKED)),
            }
        };
        let Some(done) = done else {
            return Ok(Action::requeue(LOCKED));
        };
        let done = done.map_err(|source| self.broken(source))?;
        match self.report_checking(&object).await {
            Some(object) => {
                Reconciliation::of(agent, &object)
                    .conclude(step, done)
                    .await
            }
            None => Ok(Action::requeue(LOCKED)),
        }
    }

    /// Writes the progress of the check if it changed, and returns the current object. None if another
    /// client has changed the object.
    async fn report_checking(&self, object: &PoolVolume) -> Option<PoolVolume> {
        let shown = self.agent.desired.volume(&self.name);
        let is_deleted = |volume: &PoolVolume| volume.spec.deletion_requested;
        if shown.as_deref().and_then(readable).is_some_and(is_deleted) {
            return None;
        }
        let Some(progress) = self.agent.checks.unreported_progress(object) else {
            return Some(object.clone());
        };
        let outcome = VolumeOutcome::Own(Own::Checking(progress));
        match Reconciliation::of(self.agent, object).write(&outcome).await {
            Ok(written) => written,
            Err(error) => {
                let (volume, error) = (&self.name, Chain(&error));
                tracing::warn!(volume, %error, "cannot report the progress of the check");
                Some(object.clone())
            }
        }
    }
}
