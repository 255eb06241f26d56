//! Reports the progress while a reconcile waits for work that can take long.

use std::{pin::pin, time::Duration};

use tokio::time::sleep;

use super::{ReconciledImage, Reconciliation};

/// Interval at which the progress is read.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// A custom resource whose status reports the progress of work on its image.
pub trait ReportedProgress: ReconciledImage {
    /// Writes the progress since the object was written, and returns the object. None if another client has changed it,
    /// or if the work is to end. A failure to write is only logged.
    fn report(
        reconciliation: &Reconciliation<'_, Self>,
        object: Self,
    ) -> impl Future<Output = Option<Self>>;
}

impl<K: ReportedProgress> Reconciliation<'_, K> {
    /// Waits for work on the object and reports its progress meanwhile. Returns what the work
    /// returned, and the object as it was last written. None if another client has changed the
    /// object or `is_over`: the next reconcile continues.
    pub(in crate::agent) async fn report_while<T>(
        &self,
        work: impl Future<Output = T>,
        is_over: impl Fn(&Self) -> bool,
    ) -> Option<(T, K)> {
        let (mut work, mut object) = (pin!(work), self.object.clone());
        loop {
            tokio::select! {
                done = &mut work => return Some((done, object)),
                () = sleep(INTERVAL) => {}
            }
            if is_over(self) {
                return None;
            }
            object = K::report(self, object).await?;
        }
    }
}
