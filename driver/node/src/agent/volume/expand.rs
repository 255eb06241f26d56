//! Growing a volume: from a larger size in its spec to a larger image.
//!
//! ```text
//! spec.size raised ─▶ ledger ─▶ status.reserved ─▶ image ─▶ status.size ─▶ (Node service) filesystem
//!                        └─▶ Expanded=False, and the controller takes the wish back
//! ```
//!
//! *Invariant:* the image grows to what stands in `status.reserved` and never beyond.

use cistern_crds::{PoolVolume, Reason};
use kube::runtime::controller::Action;

use super::{
    plan::Step,
    status::{Outcome, Own},
};
use crate::agent::{
    ledger::Promise,
    pass::{NoPool, Pass},
    promises::Claim,
    work::Error,
};

impl Pass<'_, PoolVolume> {
    /// Promises a volume the bytes of its growth and grows its image, or refuses that.
    pub(super) async fn admit_growth(&self) -> Result<Action, Error> {
        let refused = |reason, message| Outcome::Own(Own::GrowthRefused { reason, message });
        let look = match self.pool() {
            Ok((look, _)) => look,
            // It may be usable again in a moment, and the growth waits.
            Err(NoPool { reason, message }) => {
                return self.end(Outcome::NotReady { reason, message }).await;
            }
        };
        if let Some(message) = self.agent.closed(&look) {
            return self.refuse(refused(Reason::PoolClosed, message)).await;
        }
        let (size, status) = (self.object.spec.size, self.object.status.as_ref());
        let held = status.and_then(|status| status.reserved);
        let held = held.unwrap_or_default();
        let claim = Claim::Growth { held };
        let promise = Promise::to_volume(self.object, size);
        if let Err(refusal) = self.agent.promise(self.object, promise, &look, claim) {
            let message = refusal.to_string();
            return self.refuse(refused(refusal.reason(), message)).await;
        }
        let admission = Outcome::Own(Own::GrowthAdmitted { size });
        match self.write_promise(&admission).await? {
            Some(admitted) => Pass::over(self.agent, &admitted).bring_up(Step::Grow).await,
            None => Ok(Action::await_change()),
        }
    }
}
