//! Reports the progress while a reconcile does work on a volume that can take long, and says when the work is over.

use std::{borrow::Cow, pin::pin};

use cistern_client::Chain;
use cistern_crds::PoolVolume;
use tokio::time::sleep;

use super::note;
use crate::agent::{
    desired::readable,
    reconcile::{
        Reconciliation,
        progress::{INTERVAL, ReportedProgress},
    },
};

impl ReportedProgress for PoolVolume {
    /// Writes what was observed since the object was written, and returns the object. None if
    /// another client has changed it, or if the volume is to be deleted.
    async fn report(reconciliation: &Reconciliation<'_, Self>, object: Self) -> Option<Self> {
        if reconciliation.is_deleted() {
            return None;
        }
        match Box::pin(note::note(reconciliation.agent, &object)).await {
            Ok(noted) => noted.map(Cow::into_owned),
            Err(error) => {
                let (volume, error) = (&reconciliation.name, Chain(&error));
                tracing::warn!(volume, %error, "cannot report the progress");
                Some(object)
            }
        }
    }
}

impl Reconciliation<'_, PoolVolume> {
    /// Waits for something; none once the object is outdated.
    pub(super) async fn unless_outdated<T>(&self, awaited: impl Future<Output = T>) -> Option<T> {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                done = &mut awaited => return Some(done),
                () = sleep(INTERVAL) => {}
            }
            if self.is_outdated() {
                return None;
            }
        }
    }

    /// Whether the spec has changed since this reconcile began, or the object is gone.
    pub(super) fn is_outdated(&self) -> bool {
        let shown = self.agent.desired.volume(&self.name);
        let shown = shown.as_deref().and_then(readable);
        shown.is_none_or(|shown| shown.metadata.generation != self.object.metadata.generation)
    }

    /// Whether the volume is to be deleted by now.
    pub(super) fn is_deleted(&self) -> bool {
        let shown = self.agent.desired.volume(&self.name);
        let is_deleted = |volume: &PoolVolume| volume.spec.deletion_requested;
        shown.as_deref().and_then(readable).is_some_and(is_deleted)
    }
}
