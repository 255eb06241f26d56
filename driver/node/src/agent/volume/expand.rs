//! Grows a volume: from a larger size in its spec to a larger image.
//!
//! ```text
//! spec.size raised ─▶ ledger ─▶ status.reserved ─▶ image ─▶ status.size ─▶ (Node service) filesystem
//!                        └─▶ Expanded=False, and the controller reverts spec.size
//! ```
//!
//! *Invariant:* the image grows to `status.reserved` and never beyond.

use cistern_crds::PoolVolume;
use kube::runtime::controller::Action;

use super::status::{Own, VolumeOutcome};
use crate::agent::{plan::VolumeStep, reconcile::Reconciliation, work::Error};

impl Reconciliation<'_, PoolVolume> {
    /// Reserves the bytes of a growth and grows the image, or refuses the growth.
    pub(super) async fn admit_growth(&self) -> Result<Action, Error> {
        let pool_state = match self.pool() {
            Ok((pool_state, _)) => pool_state,
            // The pool may be usable again in a moment, and the growth waits.
            Err(why) => return self.end(VolumeOutcome::NotReady(why)).await,
        };
        let size = match self.agent.admission.growth(self.object, &pool_state) {
            Ok(size) => size,
            Err(why) => {
                let refused = VolumeOutcome::Own(Own::GrowthRefused(why));
                return self.refuse(refused).await;
            }
        };
        let admission = VolumeOutcome::Own(Own::GrowthAdmitted { size });
        Box::pin(self.prepare_admitted(&admission, VolumeStep::Grow)).await
    }
}
