//! Makes a copy whose filesystem must be checked. The check waits for its turn and reports its
//! progress.
//!
//! *Invariant:* a waiting check holds neither the volume's lock nor a permit of its pool.

use std::sync::Arc;

use cistern_crds::{ExtentLimits, PoolVolume};
use cistern_host::{Checking, Engine, UNSTOPPED};
use kube::runtime::controller::Action;

use super::disk::ImageStep;
use crate::agent::{
    plan::VolumeStep,
    reconcile::{LOCKED, Reconciliation, progress::ReportedProgress as _},
    work::Error,
};
use crate::blocking::on_host;

impl Reconciliation<'_, PoolVolume> {
    /// Makes the image of a volume and checks it, as soon as the check has its turn.
    pub(super) async fn prepare_checked(
        &self,
        step: VolumeStep,
        pool: Arc<dyn Engine>,
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
                let step = ImageStep {
                    pool: &*pool,
                    volume: &volume,
                    step,
                    extent_limits,
                    checking: Checking::Now(&progress),
                    progress: UNSTOPPED,
                    set_limits: &|| {},
                    now,
                };
                step.take(guard)
            };
            Some(on_host(turn, work).await)
        };
        let Some((done, object)) = self.report_while(work, Self::is_deleted).await else {
            // A waiting check starts again; a running one keeps its lock.
            return Ok(Action::requeue(LOCKED));
        };
        let Some(done) = done else {
            return Ok(Action::requeue(LOCKED));
        };
        let done = done.map_err(|source| self.broken(source))?;
        match PoolVolume::report(self, object).await {
            Some(object) => {
                Reconciliation::of(agent, &object)
                    .conclude(step, done)
                    .await
            }
            None => Ok(Action::requeue(LOCKED)),
        }
    }
}
