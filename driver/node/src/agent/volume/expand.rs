//! Grows a volume: from a larger size in its spec to a larger image.
//!
//! ```text
//! spec.size raised ─▶ ledger ─▶ status.reserved ─▶ image ─▶ status.size ─▶ (Node service) filesystem
//!                        └─▶ Expanded=False, and the controller reverts spec.size
//! ```
//!
//! *Invariant:* the image grows to `status.reserved` and never beyond.

use cistern_crds::{Explanation, PoolVolume, Reason};
use kube::runtime::controller::Action;

use super::{
    plan::VolumeStep,
    status::{Own, VolumeOutcome},
};
use crate::agent::{
    ledger::Reservation, reconcile::Reconciliation, reservations::ReservationKind, work::Error,
};

impl Reconciliation<'_, PoolVolume> {
    /// Reserves the bytes of a growth and grows the image, or refuses the growth.
    pub(super) async fn admit_growth(&self) -> Result<Action, Error> {
        let refused = |reason, message| {
            VolumeOutcome::Own(Own::GrowthRefused(Explanation::new(reason, message)))
        };
        let pool_state = match self.pool() {
            Ok((pool_state, _)) => pool_state,
            // The pool may be usable again in a moment, and the growth waits.
            Err(why) => return self.end(VolumeOutcome::NotReady(why)).await,
        };
        if let Some(message) = self.agent.closed(&pool_state) {
            return self.refuse(refused(Reason::PoolClosed, message)).await;
        }
        let (size, status) = (self.object.spec.size, self.object.status.as_ref());
        let held = status.and_then(|status| status.reserved);
        let held = held.unwrap_or_default();
        let kind = ReservationKind::Growth { held };
        let reservation = Reservation::for_volume(self.object, size);
        if let Err(refusal) = self
            .agent
            .reserve(self.object, reservation, &pool_state, kind)
        {
            let message = refusal.to_string();
            return self.refuse(refused(refusal.reason(), message)).await;
        }
        let admission = VolumeOutcome::Own(Own::GrowthAdmitted { size });
        match self.write_reservation(&admission).await? {
            Some(admitted) => {
                Reconciliation::of(self.agent, &admitted)
                    .prepare(VolumeStep::Grow)
                    .await
            }
            None => Ok(Action::await_change()),
        }
    }
}
