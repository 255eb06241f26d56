//! Making a copy whose filesystem has to be checked: it waits for its turn, and says how far it is.
//!
//! *Invariant:* while it waits it holds neither its volume nor a place in its pool's lane.

use std::{pin::pin, sync::Arc, time::Duration};

use cistern_client::Chain;
use cistern_crds::PoolVolume;
use cistern_host::{Checking, Pool};
use kube::runtime::controller::Action;
use tokio::time::sleep;

use super::{
    disk,
    plan::Step,
    status::{Outcome, Own},
};
use crate::agent::{
    blocking::on_host,
    desired::readable,
    pass::{LOCKED, Pass},
    work::Error,
};

/// How often it is looked whether there is something to tell.
const TELL: Duration = Duration::from_secs(1);

impl Pass<'_, PoolVolume> {
    /// Makes the image of a volume when it is its turn to be checked.
    pub(super) async fn bring_up_checked(
        &self,
        step: Step,
        pool: Arc<Pool>,
        maximum_extents: u64,
    ) -> Result<Action, Error> {
        let agent = self.agent;
        let Some(ticket) = agent.checks.begin(&self.name) else {
            return Ok(Action::requeue(LOCKED));
        };
        let claim = self.object.spec.claim.as_ref();
        let namespace = claim.map_or("", |claim| &claim.namespace);
        let volume = self.object.clone();
        let work = async {
            let turn = agent.checks.lane.turn(namespace).await;
            let guard = agent.locks.try_lock(&self.name)?;
            let now = (agent.now)();
            ticket.run(now);
            let work = move || {
                let progress = |percent| _ = ticket.reached(percent);
                let checking = Checking::Now(&progress);
                disk::bring_up(&pool, &volume, step, maximum_extents, checking, now)
            };
            Some(on_host((turn, guard), work).await)
        };
        let (mut work, mut object) = (pin!(work), self.object.clone());
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                () = sleep(TELL) => {}
            }
            match self.tell_checking(&object).await {
                Some(told) => object = told,
                // It is another one by now: what waits begins anew, and what runs holds its lock.
                None => return Ok(Action::requeue(LOCKED)),
            }
        };
        let Some(done) = done else {
            return Ok(Action::requeue(LOCKED));
        };
        let done = done.map_err(|source| self.broken(source))?;
        match self.tell_checking(&object).await {
            Some(object) => Pass::over(agent, &object).conclude(step, done).await,
            None => Ok(Action::requeue(LOCKED)),
        }
    }

    /// Writes down how far the check is, where that is news, and gives the object as it is then. None
    /// where somebody has changed it.
    async fn tell_checking(&self, object: &PoolVolume) -> Option<PoolVolume> {
        let shown = self.agent.desired.volume(&self.name);
        let is_to_go = |volume: &PoolVolume| volume.spec.deletion_requested;
        if shown.as_deref().and_then(readable).is_some_and(is_to_go) {
            return None;
        }
        let Some(stage) = self.agent.checks.news_of(object) else {
            return Some(object.clone());
        };
        let outcome = Outcome::Own(Own::Checking(stage));
        match Pass::over(self.agent, object).write(&outcome).await {
            Ok(written) => written,
            Err(error) => {
                let (volume, error) = (&self.name, Chain(&error));
                tracing::warn!(volume, %error, "cannot say how far the check is");
                Some(object.clone())
            }
        }
    }
}
