//! What the agents would write about snapshots.

use cistern_crds::{Bytes, ConditionType, PoolSnapshot, Reason, condition::Finding};
use serde_json::{Value, json};

use crate::cluster::{Cluster, image, seen, write};

/// The moment that every snapshot shows which [`Snapshots::finish`] cuts.
const MOMENT: &str = "2026-09-21T13:33:20.123456789Z";
/// The same in seconds and nanoseconds.
pub(crate) const TAKEN: (i64, i32) = (1_789_997_600, 123_456_789);

/// The snapshots of one test.
pub(crate) struct Snapshots<'a>(pub(crate) &'a Cluster);

impl Snapshots<'_> {
    /// The snapshot, once it is asked for.
    pub(crate) async fn wished(&self, name: &str) -> PoolSnapshot {
        self.seen(&format!("{name} to be asked for"), name, |found| {
            !found.spec.deletion_requested
        })
        .await
    }

    /// The snapshot, once its deletion is asked for.
    pub(crate) async fn unwanted(&self, name: &str) -> PoolSnapshot {
        let what = format!("the deletion of {name} to be asked for");
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

    /// Whether there is nothing of this name.
    pub(crate) async fn is_gone(&self, name: &str) -> bool {
        self.0.snapshots.get_opt(name).await.unwrap().is_none()
    }

    /// What the agent writes when it admits a snapshot.
    pub(crate) async fn admit(&self, snapshot: &PoolSnapshot) -> Result<PoolSnapshot, kube::Error> {
        let admitted = Finding::new(ConditionType::Admitted, true, Reason::AsDesired, "admitted");
        let status = json!({"reserved": Bytes::mib(100)});
        self.write(snapshot, &admitted, status).await
    }

    /// What the agent writes when the snapshot is cut and can be used.
    pub(crate) async fn finish(&self, snapshot: &PoolSnapshot) -> PoolSnapshot {
        let ready = Finding::new(ConditionType::Ready, true, Reason::AsDesired, "cut");
        let status = json!({
            "reserved": Bytes::mib(10),
            "size": Bytes::gib(1),
            "creationTime": MOMENT,
            "image": image(snapshot),
        });
        self.write(snapshot, &ready, status).await.unwrap()
    }

    /// What the agent writes when a snapshot that was cut cannot be used now.
    pub(crate) async fn disturb(&self, snapshot: &PoolSnapshot) {
        let unready = Finding::new(
            ConditionType::Ready,
            false,
            Reason::PoolNotReady,
            "the pool is not mounted",
        );
        self.write(snapshot, &unready, json!({})).await.unwrap();
    }

    /// What the agent writes when it will not have the snapshot.
    pub(crate) async fn refuse(&self, snapshot: &PoolSnapshot, reason: Reason) {
        let refused = Finding::new(ConditionType::Admitted, false, reason, "the agent's words");
        let status = json!({"reserved": null});
        self.write(snapshot, &refused, status).await.unwrap();
    }

    /// What the agent writes when the data is gone.
    pub(crate) async fn reclaim(&self, snapshot: &PoolSnapshot) {
        let reclaimed = Finding::new(ConditionType::Reclaimed, true, Reason::AsDesired, "removed");
        let status = json!({"reserved": null, "size": null});
        self.write(snapshot, &reclaimed, status).await.unwrap();
    }

    /// What the agent writes when somebody reads a snapshot that is to go.
    pub(crate) async fn report_in_use(&self, snapshot: &PoolSnapshot) {
        let in_use = Finding::new(
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
        finding: &Finding,
        status: Value,
    ) -> Result<PoolSnapshot, kube::Error> {
        write(&self.0.snapshots, snapshot, finding, status).await
    }

    /// Does what the agent of a node does, for one snapshot, from the wish to its use.
    pub(crate) async fn cut(&self, name: &str) -> PoolSnapshot {
        let wished = self.wished(name).await;
        let admitted = self.admit(&wished).await.unwrap();
        self.finish(&admitted).await
    }
}
