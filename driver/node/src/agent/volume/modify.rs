//! Changes the attributes of a volume while it is in use.
//!
//! ```text
//! spec.attributes ─▶ ledger ─▶ status.attributes ─▶ image ─▶ AttributesApplied=True
//!                       └─▶ AttributesApplied=False, and the controller restores spec.attributes
//! ```
//!
//! *Invariant:* the image gets the attributes of the status, never those of the spec.

use std::sync::Arc;

use cistern_client::Chain;
use cistern_crds::{Bytes, Explanation, NodePool, PoolVolume, Provisioning, Reason};
use kube::runtime::controller::Action;

use super::status::{Own, VolumeOutcome};
use crate::{
    agent::{
        admission::{self, Refusal},
        plan::VolumeStep,
        pools::{PoolState, Usable},
        reconcile::Reconciliation,
        work::Error,
    },
    blocking::on_host,
    image,
};

impl Reconciliation<'_, PoolVolume> {
    /// Admits a change of the attributes and applies it to the image, or refuses the change.
    pub(super) async fn admit_attributes(&self) -> Result<Action, Error> {
        let (pool_state, usable) = match self.pool() {
            Ok(found) => found,
            // The pool may be usable again in a moment, and the change waits.
            Err(why) => return self.end(VolumeOutcome::NotReady(why)).await,
        };
        let attributes = self.object.spec.attributes;
        let admitted = self.object.admitted_attributes();
        let NodePool {
            name,
            source,
            limits,
            ..
        } = &pool_state.spec;
        let held = source.holds(name, attributes.provisioning);
        let checked = held.and_then(|()| {
            let (requested, admitted) = (&attributes.io_limits, &admitted.io_limits);
            admission::check_limits(requested, admitted, &limits.volume_io)
        });
        let refusal = match checked {
            Err(why) => Some(Own::AttributesRefused(why)),
            Ok(()) if attributes.provisioning == Provisioning::Thick && !self.is_thick() => {
                self.reserve_thick(&pool_state, &usable).await?
            }
            Ok(()) => None,
        };
        if let Some(refusal) = refusal {
            return self.finish(VolumeOutcome::Own(refusal)).await;
        }
        let admission = VolumeOutcome::Own(Own::AttributesAdmitted);
        Box::pin(self.prepare_admitted(&admission, VolumeStep::Keep)).await
    }

    fn is_thick(&self) -> bool {
        self.object.admitted_attributes().provisioning == Provisioning::Thick
    }

    /// Reserves the bytes of a volume as thick. Returns why the volume stays thin; None if its
    /// bytes are reserved.
    async fn reserve_thick(
        &self,
        pool_state: &PoolState,
        usable: &Usable,
    ) -> Result<Option<Own>, Error> {
        let admission = &self.agent.admission;
        if let Some(closed) = admission.closed(pool_state) {
            let why = Explanation::new(Reason::PoolClosed, closed.to_string());
            return Ok(Some(Own::AttributesRefused(why)));
        }
        // The ledger knows what is reserved. Only the disk knows what is free.
        let admitted = match self.shortfall(usable).await? {
            Ok(Bytes::ZERO) => admission.change(self.object, pool_state),
            Ok(size) => Err(Refusal::Lacking { size }.into()),
            Err(error) => {
                let message = Chain(&error).to_string();
                return Ok(Some(Own::NotModified { message }));
            }
        };
        Ok(admitted.err().map(Own::AttributesRefused))
    }

    /// Bytes that the pool lacks now to allocate the image in full.
    async fn shortfall(&self, usable: &Usable) -> Result<Result<Bytes, image::Error>, Error> {
        let (pool, object) = (Arc::clone(&usable.pool), self.object.clone());
        let permit = self.permit().await;
        let counted = on_host(permit, move || {
            let image = image::find(&*pool, &object)?;
            match pool.images() {
                Some(pool) => Ok(pool.shortfall(&image.uid)?),
                None => Ok(Bytes::ZERO),
            }
        });
        counted.await.map_err(|source| self.broken(source))
    }
}
