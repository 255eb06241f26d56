//! Writes what agents report about groups of snapshots, including late, wrong and repeated reports.

use std::fmt::Debug;

use cistern_crds::{
    Bytes, Condition, ConditionType, PoolSnapshot, PoolSnapshotGroup, Reason,
    condition::{self, ConditionUpdate},
    names,
    time::from_kubernetes,
};
use cistern_e2e::{ControlPlane, Replica, eventually};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, PATIENCE},
    create, request, requirement,
};

/// Creation time of every group, and the same in Unix seconds.
const MOMENT: &str = "2027-01-15T08:00:00.123456789Z";
pub(crate) const SECONDS: i64 = 1_800_000_000;

/// Two nodes with a pool, and their agents.
pub(crate) struct Agent {
    pub(crate) cluster: Cluster,
    pub(crate) groups: Api<PoolSnapshotGroup>,
    pub(crate) snapshots: Api<PoolSnapshot>,
}

impl Agent {
    pub(crate) async fn new(control_plane: &ControlPlane, pool: &str) -> Self {
        Self {
            cluster: Cluster::new(control_plane, pool, &[("a", 8), ("b", 8)]).await,
            groups: Api::all(control_plane.client()),
            snapshots: Api::all(control_plane.client()),
        }
    }

    /// Creates ready volumes on node `a` and returns their IDs.
    pub(crate) async fn volumes<const N: usize>(&self, replica: &Replica) -> [String; N] {
        let ids = std::array::from_fn(|number| format!("{}-{number}", self.cluster.pool));
        for id in &ids {
            self.volume(replica, id, "a").await;
        }
        ids
    }

    /// Creates a ready volume on a node.
    pub(crate) async fn volume(&self, replica: &Replica, name: &str, node: &str) {
        let mut wanted = request(name, &self.cluster.pool);
        wanted.accessibility_requirements = Some(requirement(&[self.cluster.node(node)]));
        let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
        let made = self.cluster.make(name, node).await;
        let image = json!({"uid": made.uid(), "poolUuid": "uuid", "sectorSize": 4096});
        let patch = Patch::Merge(json!({"status": {"image": image}}));
        let volumes = &self.cluster.volumes;
        let parameters = PatchParams::default();
        volumes
            .patch_status(name, &parameters, &patch)
            .await
            .unwrap();
        asked.await.unwrap().unwrap();
    }

    /// Waits until the group and all of its snapshots are requested.
    pub(crate) async fn asked(&self, group: &str) -> (PoolSnapshotGroup, Vec<PoolSnapshot>) {
        let what = format!("group {group} to be requested");
        eventually(&what, PATIENCE, async || {
            let found = self.groups.get_opt(group).await.unwrap();
            let Some(found) = found.filter(|found| !found.spec.deletion_requested) else {
                return Err("there is no such group".to_owned());
            };
            let mut snapshots = Vec::new();
            for member in &found.spec.members {
                match self.snapshots.get_opt(&member.snapshot).await.unwrap() {
                    Some(snapshot) if !snapshot.spec.deletion_requested => snapshots.push(snapshot),
                    other => return Err(format!("{other:?}")),
                }
            }
            Ok((found, snapshots))
        })
        .await
    }

    /// Waits until the group is requested, and takes all of it.
    pub(crate) async fn take(&self, group: &str) -> PoolSnapshotGroup {
        let (group, snapshots) = self.asked(group).await;
        for snapshot in &snapshots {
            let admitted = self.admit(snapshot).await;
            self.finish_snapshot(&admitted).await;
        }
        self.finish(&group).await.unwrap()
    }

    /// Marks a snapshot as ready.
    pub(crate) async fn finish_snapshot(&self, snapshot: &PoolSnapshot) {
        let status = json!({"size": Bytes::gib(1), "creationTime": MOMENT});
        write(&self.snapshots, snapshot, &ready(), status).await;
    }

    /// Marks a group as taken.
    pub(crate) async fn finish(
        &self,
        group: &PoolSnapshotGroup,
    ) -> Result<PoolSnapshotGroup, kube::Error> {
        let status = json!({"creationTime": MOMENT});
        try_write(&self.groups, group, &ready(), status).await
    }

    /// Admits a snapshot, with a reservation.
    pub(crate) async fn admit(&self, snapshot: &PoolSnapshot) -> PoolSnapshot {
        let admitted = update(ConditionType::Admitted, true, Reason::Reconciled);
        let status = json!({"reserved": Bytes::mib(64)});
        write(&self.snapshots, snapshot, &admitted, status).await
    }

    /// Reports why the group is not taken.
    pub(crate) async fn refuse(
        &self,
        group: &PoolSnapshotGroup,
        reason: Reason,
    ) -> PoolSnapshotGroup {
        let refused = update(ConditionType::Ready, false, reason);
        write(&self.groups, group, &refused, json!({})).await
    }

    /// Reports that the snapshot's image is missing.
    pub(crate) async fn damage(&self, snapshot: &PoolSnapshot) {
        let damaged = update(ConditionType::Ready, false, Reason::ImageMissing);
        write(&self.snapshots, snapshot, &damaged, json!({})).await;
    }

    /// Withdraws the admission and the reservation of a snapshot that has no image.
    pub(crate) async fn withdraw(&self, snapshot: &PoolSnapshot, reason: Reason) {
        let refused = update(ConditionType::Admitted, false, reason);
        let status = json!({"reserved": null});
        write(&self.snapshots, snapshot, &refused, status).await;
    }

    /// Waits until the deletion of the snapshot is requested.
    pub(crate) async fn unwanted(&self, snapshot: &str) -> PoolSnapshot {
        let what = format!("the deletion of {snapshot} to be requested");
        eventually(&what, PATIENCE, async || {
            match self.snapshots.get_opt(snapshot).await.unwrap() {
                Some(found) if found.spec.deletion_requested => Ok(found),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Waits until the deletion of a snapshot is requested, and reports its data as removed.
    pub(crate) async fn reclaim(&self, snapshot: &str) {
        let unwanted = self.unwanted(snapshot).await;
        let reclaimed = update(ConditionType::Reclaimed, true, Reason::Reconciled);
        let status = json!({"reserved": null, "size": null});
        write(&self.snapshots, &unwanted, &reclaimed, status).await;
    }

    /// Reports that a snapshot whose deletion is requested is in use.
    pub(crate) async fn report_in_use(&self, snapshot: &str) {
        let unwanted = self.unwanted(snapshot).await;
        let in_use = update(ConditionType::Reclaimed, false, Reason::InUse);
        write(&self.snapshots, &unwanted, &in_use, json!({})).await;
    }

    /// Returns whether neither the group nor any snapshot of this test exists.
    pub(crate) async fn is_gone(&self, group: &str) -> bool {
        let parameters = kube::api::ListParams::default();
        let snapshots = self.snapshots.list(&parameters).await.unwrap();
        let ours = |snapshot: &PoolSnapshot| snapshot.spec.pool_name == self.cluster.pool;
        let group = self.groups.get_opt(group).await.unwrap();
        group.is_none() && !snapshots.iter().any(ours)
    }
}

/// Returns the names of a group's snapshots.
pub(crate) fn members(group: &PoolSnapshotGroup) -> Vec<String> {
    let members = group.spec.members.iter();
    members.map(|member| member.snapshot.clone()).collect()
}

fn ready() -> ConditionUpdate {
    update(ConditionType::Ready, true, Reason::Reconciled)
}

fn update(kind: ConditionType, holds: bool, reason: Reason) -> ConditionUpdate {
    ConditionUpdate::new(kind, holds, reason, "the agent's words")
}

async fn write<K>(api: &Api<K>, object: &K, update: &ConditionUpdate, status: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + serde::Serialize,
{
    try_write(api, object, update, status).await.unwrap()
}

/// Writes a status with a resourceVersion, as the agent does.
async fn try_write<K>(
    api: &Api<K>,
    object: &K,
    update: &ConditionUpdate,
    mut status: Value,
) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + serde::Serialize,
{
    let before = serde_json::to_value(object).unwrap();
    let conditions = before["status"]["conditions"].clone();
    let mut conditions: Vec<Condition> = serde_json::from_value(conditions).unwrap_or_default();
    let now = from_kubernetes(&Time(Timestamp::now()));
    condition::set(&mut conditions, update, object.meta().generation, now);
    status["conditions"] = json!(conditions);
    let metadata = json!({"resourceVersion": object.resource_version()});
    let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
    let parameters = PatchParams {
        field_manager: Some(names::AGENT_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let name = object.name_any();
    api.patch_status(&name, &parameters, &patch).await
}
