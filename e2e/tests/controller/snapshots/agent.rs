//! Writes what agents report about snapshots.

use cistern_crds::{Bytes, ConditionType, PoolSnapshot, Reason, condition::ConditionUpdate};
use serde_json::{Value, json};

use crate::cluster::{Cluster, image, seen, write};

/// Creation time of every snapshot from [`Snapshots::finish`].
const MOMENT: &str = "2026-09-21T13:33:20.123456789Z";
/// The same in Unix seconds and nanoseconds.
pub(crate) const TAKEN: (i64, i32) = (1_789_997_600, 123_456_789);

/// The snapshots of one test.
pub(crate) struct Snapshots<'a>(pub(crate) &'a Cluster);

impl Snapshots<'_> {
    /// Waits until the snapshot is requested.
    pub(crate) async fn requested(&self, name: &str) -> PoolSnapshot {
        self.seen(&format!("{name} to be requested"), name, |found| {
            !found.spec.deletion_requested
        })
        .await
    }

    /// Waits until the deletion of the snapshot is requested.
    pub(crate) async fn unwanted(&self, name: &str) -> PoolSnapshot {
        let what = format!("the deletion of {name} to be requested");
        self.seen(&what, name, |found| found.spec.deletion_requested)
            .await
    }

    async fn seen(
        &self,
        what: &str,
        name: &str,
        is: impl Fn(&PoolSnapshot) -> bool,
    ) -> PoolSnapshot {
        seen(&self.0.snapshots, what, name, is).await
    }

    /// Returns whether no snapshot has this name.
    pub(crate) async fn is_gone(&self, name: &str) -> bool {
        self.0.snapshots.get_opt(name).await.unwrap().is_none()
    }

    /// Admits a snapshot.
    pub(crate) async fn admit(&self, snapshot: &PoolSnapshot) -> Result<PoolSnapshot, kube::Error> {
        let admitted = ConditionUpdate::new(
            ConditionType::Admitted,
            true,
            Reason::Reconciled,
            "admitted",
        );
        let status = json!({"reserved": Bytes::mib(100)});
        self.write(snapshot, &admitted, status).await
    }

    /// Marks the snapshot as taken and ready.
    pub(crate) async fn finish(&self, snapshot: &PoolSnapshot) -> PoolSnapshot {
        let ready = ConditionUpdate::new(ConditionType::Ready, true, Reason::Reconciled, "taken");
        let status = json!({
            "reserved": Bytes::mib(10),
            "size": Bytes::gib(1),
            "creationTime": MOMENT,
            "image": image(snapshot),
        });
        self.write(snapshot, &ready, status).await.unwrap()
    }

    /// Reports that a taken snapshot cannot be used now.
    pub(crate) async fn disturb(&self, snapshot: &PoolSnapshot) {
        let unready = ConditionUpdate::new(
            ConditionType::Ready,
            false,
            Reason::PoolNotReady,
            "the pool is not mounted",
        );
        self.write(snapshot, &unready, json!({})).await.unwrap();
    }

    /// Refuses the snapshot.
    pub(crate) async fn refuse(&self, snapshot: &PoolSnapshot, reason: Reason) {
        let refused =
            ConditionUpdate::new(ConditionType::Admitted, false, reason, "the agent's words");
        let status = json!({"reserved": null});
        self.write(snapshot, &refused, status).await.unwrap();
    }

    /// Reports the data as removed.
    pub(crate) async fn reclaim(&self, snapshot: &PoolSnapshot) {
        let reclaimed = ConditionUpdate::new(
            ConditionType::Reclaimed,
            true,
            Reason::Reconciled,
            "removed",
        );
        let status = json!({"reserved": null, "size": null});
        self.write(snapshot, &reclaimed, status).await.unwrap();
    }

    /// Reports that a snapshot whose deletion is requested is in use.
    pub(crate) async fn report_in_use(&self, snapshot: &PoolSnapshot) {
        let in_use = ConditionUpdate::new(
            ConditionType::Reclaimed,
            false,
            Reason::InUse,
            "a volume is being made from it",
        );
        self.write(snapshot, &in_use, json!({})).await.unwrap();
    }

    async fn write(
        &self,
        snapshot: &PoolSnapshot,
        update: &ConditionUpdate,
        status: Value,
    ) -> Result<PoolSnapshot, kube::Error> {
        write(&self.0.snapshots, snapshot, update, status).await
    }

    /// Does the agent's work for one snapshot from its request until it is ready.
    pub(crate) async fn make(&self, name: &str) -> PoolSnapshot {
        let requested = self.requested(name).await;
        let admitted = self.admit(&requested).await.unwrap();
        self.finish(&admitted).await
    }
}
