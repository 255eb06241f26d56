//! Reports the progress while a reconcile does work on a volume that can take long.

use std::{borrow::Cow, pin::pin, time::Duration};

use cistern_client::Chain;
use cistern_crds::PoolVolume;
use tokio::time::sleep;

use super::note;
use crate::agent::{desired::readable, reconcile::Reconciliation};

/// Interval at which the progress is read.
const INTERVAL: Duration = Duration::from_secs(1);

impl Reconciliation<'_, PoolVolume> {
    /// Waits for work on the volume and reports its progress meanwhile. Returns what the work
    /// returned, and the object as it was last written. None if another client has changed the
    /// object or the volume is to be deleted: the next reconcile continues.
    pub(super) async fn report_while<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Option<(T, PoolVolume)> {
        let (mut work, mut object) = (pin!(work), self.object.clone());
        loop {
            tokio::select! {
                done = &mut work => return Some((done, object)),
                () = sleep(INTERVAL) => {}
            }
            object = self.report(object).await?;
        }
    }

    /// Waits for something; none once the volume is to be deleted.
    pub(super) async fn unless_deleted<T>(&self, awaited: impl Future<Output = T>) -> Option<T> {
        let mut awaited = pin!(awaited);
        loop {
            tokio::select! {
                done = &mut awaited => return Some(done),
                () = sleep(INTERVAL) => {}
            }
            if self.is_deleted() {
                return None;
            }
        }
    }

    /// Whether the volume is to be deleted by now.
    pub(super) fn is_deleted(&self) -> bool {
        let shown = self.agent.desired.volume(&self.name);
        let is_deleted = |volume: &PoolVolume| volume.spec.deletion_requested;
        shown.as_deref().and_then(readable).is_some_and(is_deleted)
    }

    /// Writes what was observed since the object was written, and returns the object. None if
    /// another client has changed it, or if the volume is to be deleted.
    pub(super) async fn report(&self, object: PoolVolume) -> Option<PoolVolume> {
        if self.is_deleted() {
            return None;
        }
        match Box::pin(note::note(self.agent, &object)).await {
            Ok(noted) => noted.map(Cow::into_owned),
            Err(error) => {
                let (volume, error) = (&self.name, Chain(&error));
                tracing::warn!(volume, %error, "cannot report the progress");
                Some(object)
            }
        }
    }
}
