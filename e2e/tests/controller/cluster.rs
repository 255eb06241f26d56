//! The surroundings of a controller: StorageNodes as the operator declares them, and the statuses that
//! their agents write. No nodes run.

use std::{fmt::Debug, time::Duration};

use cistern_crds::{
    Bytes, Condition, ConditionType, HasImage, NodePool, NodePoolStatus, PoolSnapshot, PoolVolume,
    Reason, StorageNode, StorageNodeSpec,
    condition::{self, ConditionUpdate},
    names,
    testing::{image_source, node_pool, volume_group_source},
    time::from_kubernetes,
};
use cistern_e2e::{ControlPlane, Replica, eventually};
use cistern_proto::csi::v1;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::topology;

/// Timeout of calls and waits that are expected to succeed.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// Deadline of a call that is expected to end with ABORTED: the driver waits for half of it, and the
/// rest is for the answer of a busy machine.
pub(crate) const SHORT: Duration = Duration::from_secs(4);

/// Repeats a call with the deadline [`SHORT`] until it ends with ABORTED and says these words, and returns its message. On a busy
/// machine, the time of a call may be over before it has come so far, or before its answer arrives.
pub(crate) async fn aborted<T: Debug>(
    words: &str,
    mut call: impl AsyncFnMut() -> Result<T, Status>,
) -> String {
    let what = format!("the answer {words:?}");
    eventually(&what, PATIENCE, async || {
        let status = call().await.unwrap_err();
        match status.code() {
            Code::Aborted if status.message().contains(words) => Ok(status.message().to_owned()),
            Code::Aborted | Code::Cancelled | Code::DeadlineExceeded => Err(status.to_string()),
            _ => panic!("{status}"),
        }
    })
    .await
}

/// The nodes of one test with a pool of its own.
pub(crate) struct Cluster {
    pub(crate) pool: String,
    pub(crate) volumes: Api<PoolVolume>,
    pub(crate) snapshots: Api<PoolSnapshot>,
    nodes: Api<StorageNode>,
}

impl Cluster {
    /// Declares nodes that carry a pool of this name, each with its room in GiB.
    pub(crate) async fn new(
        control_plane: &ControlPlane,
        pool: &str,
        rooms: &[(&str, u64)],
    ) -> Self {
        let this = Self {
            pool: pool.to_owned(),
            volumes: Api::all(control_plane.client()),
            snapshots: Api::all(control_plane.client()),
            nodes: Api::all(control_plane.client()),
        };
        for &(node, gib) in rooms {
            this.add_node(node, &[(pool, gib)]).await;
        }
        this
    }

    /// Declares a node that carries these pools, each with its room in GiB.
    pub(crate) async fn add_node(&self, node: &str, pools: &[(&str, u64)]) {
        let mut object = StorageNode::new(&self.node(node), StorageNodeSpec::default());
        object.spec.pools = pools.iter().map(|(pool, _)| declared(pool)).collect();
        let parameters = PostParams::default();
        self.nodes.create(&parameters, &object).await.unwrap();
        self.report(node, pools).await;
    }

    /// Cordons a pool on a node, as the operator does.
    pub(crate) async fn cordon(&self, node: &str, pool: &str) {
        self.change_pool(node, pool, |entry| entry.cordoned = true)
            .await;
    }

    /// Makes the pool of this test a volume group on a node.
    pub(crate) async fn declare_volume_group(&self, node: &str) {
        let group = volume_group_source("vg-data");
        self.change_pool(node, &self.pool, |entry| entry.source = group)
            .await;
    }

    async fn change_pool(&self, node: &str, pool: &str, change: impl FnOnce(&mut NodePool)) {
        let name = self.node(node);
        let mut pools = self.nodes.get(&name).await.unwrap().spec.pools;
        change(pools.iter_mut().find(|entry| entry.name == pool).unwrap());
        let patch = Patch::Merge(json!({"spec": {"pools": pools}}));
        let parameters = PatchParams::default();
        self.nodes.patch(&name, &parameters, &patch).await.unwrap();
    }

    /// Returns the full name of a node of this test.
    pub(crate) fn node(&self, node: &str) -> String {
        format!("{}-{node}", self.pool)
    }

    /// Writes the agent's report of a ready pool of 10 GiB with `gib` GiB of room.
    pub(crate) async fn set_room(&self, node: &str, gib: u64) {
        self.report(node, &[(&self.pool, gib)]).await;
    }

    /// Waits until the controller sees the room of a node in GiB.
    pub(crate) async fn until_room(&self, replica: &Replica, node: &str, gib: i64) {
        let what = format!("the controller to see {gib} GiB of room on {node}");
        eventually(&what, PATIENCE, async || {
            let request = v1::GetCapacityRequest {
                parameters: [("pool".to_owned(), self.pool.clone())].into(),
                accessible_topology: Some(topology(&self.node(node))),
                ..v1::GetCapacityRequest::default()
            };
            let answer = replica.client().await.get_capacity(request).await;
            let room = answer.unwrap().into_inner().available_capacity >> 30;
            (room == gib)
                .then_some(())
                .ok_or_else(|| format!("{room} GiB"))
        })
        .await;
    }

    /// Writes the agent's report of ready pools of 10 GiB, each with its room in GiB.
    pub(crate) async fn report(&self, node: &str, pools: &[(&str, u64)]) {
        let reports: Vec<_> = pools.iter().map(|(pool, gib)| ready(pool, *gib)).collect();
        self.set_node_status(node, json!({"pools": reports, "transferKey": "a key"}))
            .await;
    }

    /// Writes the agent's report of a pool that is not ready beside the ready ones.
    pub(crate) async fn report_broken(&self, node: &str, broken: &str, pools: &[(&str, u64)]) {
        let mut report = ready(broken, 10);
        let why = "its disk does not answer";
        let finding = ConditionUpdate::new(ConditionType::Ready, false, Reason::ReadOnly, why);
        set(&mut report.conditions, &finding, None);
        let mut reports: Vec<_> = pools.iter().map(|(pool, gib)| ready(pool, *gib)).collect();
        reports.push(report);
        self.set_node_status(node, json!({"pools": reports, "transferKey": "a key"}))
            .await;
    }

    /// Asserts that a call failed because the agent on a node is silent.
    pub(crate) fn assert_silent<T: Debug>(&self, node: &str, answer: Result<T, Status>) {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{status}");
        let expected = format!("the agent on {} has been silent for", self.node(node));
        assert!(status.message().contains(&expected), "{status}");
    }

    /// Asserts that a call failed because the pool on a node is not ready.
    pub(crate) fn assert_not_ready<T: Debug>(&self, node: &str, answer: Result<T, Status>) {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        for says in [&*self.node(node), "its disk does not answer"] {
            assert!(status.message().contains(says), "{status}");
        }
    }

    /// Writes the operator's report that the agent's pod is not ready.
    pub(crate) async fn silence(&self, node: &str) {
        let mut conditions = Vec::new();
        let silent = ConditionUpdate::new(
            ConditionType::AgentReporting,
            false,
            Reason::AgentMissing,
            "no pod runs there",
        );
        set(&mut conditions, &silent, None);
        self.set_node_status(node, json!({"conditions": conditions}))
            .await;
    }

    /// Writes the operator's report that the agent's pod is ready again.
    pub(crate) async fn wake(&self, node: &str) {
        self.set_node_status(node, json!({"conditions": []})).await;
    }

    /// Deletes the StorageNode, as the operator does after the Node is deleted.
    pub(crate) async fn forget_node(&self, node: &str) {
        let name = self.node(node);
        let deleted = self.nodes.delete(&name, &DeleteParams::default()).await;
        deleted.unwrap();
    }

    async fn set_node_status(&self, node: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let parameters = PatchParams::default();
        let name = self.node(node);
        self.nodes
            .patch_status(&name, &parameters, &patch)
            .await
            .unwrap();
    }

    /// Waits until the volume is placed on this node.
    pub(crate) async fn placed(&self, volume: &str, node: &str) -> PoolVolume {
        let node = self.node(node);
        self.seen(
            &format!("{volume} to be placed on {node}"),
            volume,
            |found| found.spec.node_name == node && !found.spec.deletion_requested,
        )
        .await
    }

    /// Waits until the volume is placed in this pool of this node.
    pub(crate) async fn placed_in(&self, volume: &str, node: &str, pool: &str) -> PoolVolume {
        let node = self.node(node);
        let what = format!("{volume} to be placed in {pool} on {node}");
        self.seen(&what, volume, |found| {
            let spec = &found.spec;
            spec.node_name == node && spec.pool_name == pool && !spec.deletion_requested
        })
        .await
    }

    /// Waits until the deletion of the volume is requested.
    pub(crate) async fn unwanted(&self, volume: &str) -> PoolVolume {
        let what = format!("the deletion of {volume} to be requested");
        self.seen(&what, volume, |found| found.spec.deletion_requested)
            .await
    }

    async fn seen(&self, what: &str, name: &str, is: impl Fn(&PoolVolume) -> bool) -> PoolVolume {
        seen(&self.volumes, what, name, is).await
    }

    /// Returns whether no volume has this name.
    pub(crate) async fn is_gone(&self, name: &str) -> bool {
        self.volumes.get_opt(name).await.unwrap().is_none()
    }

    /// Admits a volume. The write has a resourceVersion, as all writes of the agent have.
    pub(crate) async fn admit(&self, volume: &PoolVolume) -> Result<PoolVolume, kube::Error> {
        let admitted = ConditionUpdate::new(
            ConditionType::Admitted,
            true,
            Reason::Reconciled,
            "admitted",
        );
        let status = json!({"reserved": volume.spec.size});
        self.write(volume, &admitted, status).await
    }

    /// Marks the volume as ready.
    pub(crate) async fn finish(&self, volume: &PoolVolume) -> Result<PoolVolume, kube::Error> {
        let ready = ConditionUpdate::new(ConditionType::Ready, true, Reason::Reconciled, "ready");
        let image = image(volume);
        let size = volume.spec.size;
        let status = json!({"reserved": size, "size": size, "image": image});
        self.write(volume, &ready, status).await
    }

    /// Refuses the volume.
    pub(crate) async fn refuse(&self, volume: &PoolVolume, reason: Reason) {
        let refused = ConditionUpdate::new(
            ConditionType::Admitted,
            false,
            reason,
            "need 1Gi, have 512Mi",
        );
        self.write(volume, &refused, json!({})).await.unwrap();
    }

    /// Refuses the size in the volume's spec.
    pub(crate) async fn refuse_growth(&self, volume: &PoolVolume, reason: Reason) {
        let refused = ConditionUpdate::new(
            ConditionType::Expanded,
            false,
            reason,
            "the volume can grow to 1536Mi",
        );
        self.write(volume, &refused, json!({})).await.unwrap();
    }

    /// Waits until the volume's spec has this size.
    pub(crate) async fn with_size(&self, volume: &str, size: Bytes) -> PoolVolume {
        let what = format!("{volume} to have the desired size {size}");
        self.seen(&what, volume, |found| found.spec.size == size)
            .await
    }

    /// Commits to the removal of the data.
    pub(crate) async fn commit(&self, volume: &PoolVolume) -> Result<PoolVolume, kube::Error> {
        let removing = ConditionUpdate::new(
            ConditionType::Reclaimed,
            false,
            Reason::DeletionRequested,
            "the image is being removed",
        );
        let status = json!({"deletionCommitted": true});
        self.write(volume, &removing, status).await
    }

    /// Commits to the removal of the data, and reports it as removed.
    pub(crate) async fn reclaim(&self, volume: &PoolVolume) {
        let committed = self.commit(volume).await.unwrap();
        let reclaimed = ConditionUpdate::new(
            ConditionType::Reclaimed,
            true,
            Reason::Reconciled,
            "removed",
        );
        let status = json!({"reserved": null, "size": null});
        self.write(&committed, &reclaimed, status).await.unwrap();
    }

    /// Reports that a volume whose deletion is requested is in use.
    pub(crate) async fn report_in_use(&self, volume: &PoolVolume) -> PoolVolume {
        let in_use = ConditionUpdate::new(
            ConditionType::Reclaimed,
            false,
            Reason::InUse,
            "it is staged",
        );
        self.write(volume, &in_use, json!({})).await.unwrap()
    }

    async fn write(
        &self,
        volume: &PoolVolume,
        update: &ConditionUpdate,
        status: Value,
    ) -> Result<PoolVolume, kube::Error> {
        write(&self.volumes, volume, update, status).await
    }

    /// Does the agent's work for one volume from its placement until it is ready.
    pub(crate) async fn make(&self, volume: &str, node: &str) -> PoolVolume {
        let placed = self.placed(volume, node).await;
        let admitted = self.admit(&placed).await.unwrap();
        self.finish(&admitted).await.unwrap()
    }
}

/// The entry of a pool in the spec of a node.
fn declared(pool: &str) -> NodePool {
    let source = image_source(Bytes::gib(20));
    node_pool(pool, &format!("uid-of-{pool}"), source)
}

/// The agent's report of a ready pool of 10 GiB with `gib` GiB of room.
fn ready(pool: &str, gib: u64) -> NodePoolStatus {
    let mut report = NodePoolStatus {
        name: pool.to_owned(),
        uid: format!("uid-of-{pool}"),
        usable: Bytes::gib(10),
        thin_room: Bytes::gib(gib),
        thick_room: Bytes::gib(gib),
        ..NodePoolStatus::default()
    };
    let finding = ConditionUpdate::new(ConditionType::Ready, true, Reason::Reconciled, "ready");
    set(&mut report.conditions, &finding, None);
    report
}

/// Waits until an object matches.
pub(crate) async fn seen<K>(api: &Api<K>, what: &str, name: &str, is: impl Fn(&K) -> bool) -> K
where
    K: Clone + Debug + DeserializeOwned,
{
    eventually(what, PATIENCE, async || match api.get_opt(name).await {
        Ok(Some(object)) if is(&object) => Ok(object),
        other => Err(format!("{other:?}")),
    })
    .await
}

/// Writes a status with one updated condition and a resourceVersion, as an agent does.
pub(crate) async fn write<K>(
    api: &Api<K>,
    object: &K,
    update: &ConditionUpdate,
    mut status: Value,
) -> Result<K, kube::Error>
where
    K: HasImage + Clone + Debug + DeserializeOwned,
{
    let mut conditions = object.conditions().to_vec();
    set(&mut conditions, update, object.meta().generation);
    status["conditions"] = json!(conditions);
    let metadata = json!({"resourceVersion": object.resource_version()});
    let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
    let parameters = PatchParams {
        field_manager: Some(names::AGENT_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    api.patch_status(&object.name_any(), &parameters, &patch)
        .await
}

/// Returns the image that an agent reports for an object.
pub(crate) fn image<K: HasImage>(object: &K) -> Value {
    json!({
        "uid": object.uid(),
        "poolUuid": "11111111-1111-4111-8111-111111111111",
        "sectorSize": 4096,
    })
}

fn set(conditions: &mut Vec<Condition>, update: &ConditionUpdate, generation: Option<i64>) {
    let now = from_kubernetes(&Time(Timestamp::now()));
    condition::set(conditions, update, generation, now);
}
