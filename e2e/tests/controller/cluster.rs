//! What stands around a controller: StorageNodes as the operator declares them, and what their
//! agents write. No node is behind it.

use std::{fmt::Debug, time::Duration};

use cistern_crds::{
    Bytes, Condition, ConditionType, NodePool, NodePoolStatus, PoolLimits, PoolSnapshot,
    PoolSource, PoolVolume, Reason, StorageNode, StorageNodeSpec, Stored,
    condition::{self, Finding},
    names,
    pool::ImageSource,
    time::from_kubernetes,
};
use cistern_e2e::{ControlPlane, eventually};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::{Code, Status};

/// Longer than anything here takes when nothing is wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The time of a caller who is to be told that it is not done yet: half of it is what the driver
/// waits, the rest is for an answer from a busy machine.
pub(crate) const SHORT: Duration = Duration::from_secs(4);

/// The nodes of one test, which carry one pool of its own.
pub(crate) struct Cluster {
    pub(crate) pool: String,
    pub(crate) volumes: Api<PoolVolume>,
    pub(crate) snapshots: Api<PoolSnapshot>,
    nodes: Api<StorageNode>,
}

impl Cluster {
    /// Declares nodes that carry a pool of this name, with so much room each, in gibibytes.
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
            let mut object = StorageNode::new(&this.node(node), StorageNodeSpec::default());
            object.spec.pools.push(NodePool {
                name: this.pool.clone(),
                uid: this.pool_uid(),
                source: PoolSource {
                    image: Some(ImageSource {
                        size: Bytes::gib(20),
                    }),
                    device: None,
                },
                overcommit_percent: 100,
                reserved_percent: 5,
                limits: PoolLimits::default(),
                reclaim_orphans_after_hours: None,
                retiring: false,
                take_over: None,
            });
            this.nodes
                .create(&PostParams::default(), &object)
                .await
                .unwrap();
            this.set_room(node, gib).await;
        }
        this
    }

    /// The full name of a node of this test.
    pub(crate) fn node(&self, node: &str) -> String {
        format!("{}-{node}", self.pool)
    }

    /// What the agent publishes: a ready pool of 10 GiB with so much room.
    pub(crate) async fn set_room(&self, node: &str, gib: u64) {
        let mut pool = NodePoolStatus {
            name: self.pool.clone(),
            uid: self.pool_uid(),
            usable: Bytes::gib(10),
            thin_room: Bytes::gib(gib),
            thick_room: Bytes::gib(gib),
            ..NodePoolStatus::default()
        };
        let ready = Finding::new(ConditionType::Ready, true, Reason::AsDesired, "ready");
        set(&mut pool.conditions, &ready, None);
        self.set_node_status(node, json!({"pools": [pool]})).await;
    }

    /// Asserts that a call was answered with the silence of the agent on a node.
    pub(crate) fn assert_silent<T: Debug>(&self, node: &str, answer: Result<T, Status>) {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Aborted, "{status}");
        let expected = format!("the agent on {} has been silent for", self.node(node));
        assert!(status.message().contains(&expected), "{status}");
    }

    /// What the operator publishes when the agent's pod is not ready.
    pub(crate) async fn silence(&self, node: &str) {
        let mut conditions = Vec::new();
        let silent = Finding::new(
            ConditionType::AgentReporting,
            false,
            Reason::AgentMissing,
            "no pod runs there",
        );
        set(&mut conditions, &silent, None);
        self.set_node_status(node, json!({"conditions": conditions}))
            .await;
    }

    /// What the operator publishes when the agent's pod is ready again.
    pub(crate) async fn wake(&self, node: &str) {
        self.set_node_status(node, json!({"conditions": []})).await;
    }

    /// What the operator does when a node is gone for good.
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

    fn pool_uid(&self) -> String {
        format!("uid-of-{}", self.pool)
    }

    /// The volume, once it is on this node.
    pub(crate) async fn placed(&self, volume: &str, node: &str) -> PoolVolume {
        let node = self.node(node);
        self.seen(
            &format!("{volume} to be placed on {node}"),
            volume,
            |found| found.spec.node_name == node && !found.spec.deletion_requested,
        )
        .await
    }

    /// The volume, once its deletion is asked for.
    pub(crate) async fn unwanted(&self, volume: &str) -> PoolVolume {
        let what = format!("the deletion of {volume} to be asked for");
        self.seen(&what, volume, |found| found.spec.deletion_requested)
            .await
    }

    async fn seen(&self, what: &str, name: &str, is: impl Fn(&PoolVolume) -> bool) -> PoolVolume {
        seen(&self.volumes, what, name, is).await
    }

    /// Whether there is nothing of this name.
    pub(crate) async fn is_gone(&self, name: &str) -> bool {
        self.volumes.get_opt(name).await.unwrap().is_none()
    }

    /// What the agent writes when it admits a volume. Guarded, as the agent's writes are.
    pub(crate) async fn admit(&self, volume: &PoolVolume) -> Result<PoolVolume, kube::Error> {
        let admitted = Finding::new(ConditionType::Admitted, true, Reason::AsDesired, "admitted");
        let status = json!({"reserved": volume.spec.size});
        self.write(volume, &admitted, status).await
    }

    /// What the agent writes when the volume can be used.
    pub(crate) async fn finish(&self, volume: &PoolVolume) -> Result<PoolVolume, kube::Error> {
        let ready = Finding::new(ConditionType::Ready, true, Reason::AsDesired, "made");
        let image = image(volume);
        let size = volume.spec.size;
        let status = json!({"reserved": size, "size": size, "image": image});
        self.write(volume, &ready, status).await
    }

    /// What the agent writes when it will not have the volume.
    pub(crate) async fn refuse(&self, volume: &PoolVolume, reason: Reason) {
        let refused = Finding::new(
            ConditionType::Admitted,
            false,
            reason,
            "need 1Gi, have 512Mi",
        );
        self.write(volume, &refused, json!({})).await.unwrap();
    }

    /// What the agent writes when it will not have the volume grow as its spec asks now.
    pub(crate) async fn refuse_growth(&self, volume: &PoolVolume, reason: Reason) {
        let refused = Finding::new(
            ConditionType::Expanded,
            false,
            reason,
            "the volume can grow to 1536Mi",
        );
        self.write(volume, &refused, json!({})).await.unwrap();
    }

    /// The volume, once this size is asked for.
    pub(crate) async fn wished(&self, volume: &str, size: Bytes) -> PoolVolume {
        let what = format!("{volume} to be asked for with {size}");
        self.seen(&what, volume, |found| found.spec.size == size)
            .await
    }

    /// What the agent writes before it removes the data.
    pub(crate) async fn commit(&self, volume: &PoolVolume) -> Result<PoolVolume, kube::Error> {
        let removing = Finding::new(
            ConditionType::Reclaimed,
            false,
            Reason::DeletionRequested,
            "the image is being removed",
        );
        let status = json!({"deletionCommitted": true});
        self.write(volume, &removing, status).await
    }

    /// What the agent writes when it removes the data, and when that is gone.
    pub(crate) async fn reclaim(&self, volume: &PoolVolume) {
        let committed = self.commit(volume).await.unwrap();
        let reclaimed = Finding::new(ConditionType::Reclaimed, true, Reason::AsDesired, "removed");
        let status = json!({"reserved": null, "size": null});
        self.write(&committed, &reclaimed, status).await.unwrap();
    }

    /// What the agent writes when a pod still uses a volume that is to go.
    pub(crate) async fn report_in_use(&self, volume: &PoolVolume) -> PoolVolume {
        let in_use = Finding::new(
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
        finding: &Finding,
        status: Value,
    ) -> Result<PoolVolume, kube::Error> {
        write(&self.volumes, volume, finding, status).await
    }

    /// Does what the agent of a node does, for one volume, from its placement to its use.
    pub(crate) async fn make(&self, volume: &str, node: &str) -> PoolVolume {
        let placed = self.placed(volume, node).await;
        let admitted = self.admit(&placed).await.unwrap();
        self.finish(&admitted).await.unwrap()
    }
}

/// An object, once it is as it should be.
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

/// Writes a status as an agent does: one condition more, guarded.
pub(crate) async fn write<K>(
    api: &Api<K>,
    object: &K,
    finding: &Finding,
    mut status: Value,
) -> Result<K, kube::Error>
where
    K: Stored + Clone + Debug + DeserializeOwned,
{
    let mut conditions = object.conditions().to_vec();
    set(&mut conditions, finding, object.meta().generation);
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

/// What an agent says of the image that it made for an object.
pub(crate) fn image<K: Stored>(object: &K) -> Value {
    json!({
        "uid": object.uid(),
        "poolUuid": "11111111-1111-4111-8111-111111111111",
        "sectorSize": 4096,
    })
}

fn set(conditions: &mut Vec<Condition>, finding: &Finding, generation: Option<i64>) {
    let now = from_kubernetes(&Time(Timestamp::now()));
    condition::set(conditions, finding, generation, now);
}
