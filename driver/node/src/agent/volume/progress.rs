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
    /// object or `is_over`: the next reconcile continues.
    pub(super) async fn report_while<T>(
        &self,
        work: impl Future<Output = T>,
        is_over: impl Fn(&Self) -> bool,
    ) -> Option<(T, PoolVolume)> {
        let (mut work, mut object) = (pin!(work), self.object.clone());
        loop {
            tokio::select! {
                done = &mut work => return Some((done, object)),
                () = sleep(INTERVAL) => {}
            }
            if is_over(self) {
                return None;
            }
            object = self.report(object).await?;
        }
    }

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
