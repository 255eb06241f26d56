//! Objects in the API server: Nodes, pools, classes, claims. The test acts as kubelet, agent and the
//! driver's controller.

use cistern_crds::{
    Bytes, Condition, ConditionType, HasImage, NodePoolStatus, PoolSnapshot, PoolVolume, Reason,
    StorageNode, StoragePool,
    condition::{self, ConditionUpdate},
    names,
    testing::volume_spec,
    time,
};
use cistern_e2e::eventually;
pub(crate) use cistern_e2e::objects::change;
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolumeClaim, Pod},
        events::v1::Event,
        storage::v1::{CSINode, CSIStorageCapacity, StorageClass},
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cluster::{DEFAULT, SOON, SYSTEM};

/// Access to the objects in the API server.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) client: Client,
}

impl Objects {
    pub(crate) fn pools(&self) -> Api<StoragePool> {
        Api::all(self.client.clone())
    }

    pub(crate) fn storage_nodes(&self) -> Api<StorageNode> {
        Api::all(self.client.clone())
    }

    pub(crate) fn volumes(&self) -> Api<PoolVolume> {
        Api::all(self.client.clone())
    }

    pub(crate) fn snapshots(&self) -> Api<PoolSnapshot> {
        Api::all(self.client.clone())
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(crate) fn csi_nodes(&self) -> Api<CSINode> {
        Api::all(self.client.clone())
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), SYSTEM)
    }

    pub(crate) fn classes(&self) -> Api<StorageClass> {
        Api::all(self.client.clone())
    }

    pub(crate) fn capacity_api(&self) -> Api<CSIStorageCapacity> {
        Api::namespaced(self.client.clone(), SYSTEM)
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), DEFAULT)
    }

    /// Creates a Node with labels, on which the driver is registered and the agent is ready.
    pub(crate) async fn add_node(&self, name: &str, labels: &[(&str, &str)]) {
        self.add_node_without_agent(name, labels).await;
        self.add_agent(name, 9812).await;
    }

    /// Creates a Node as [`Self::add_node`] does, without the pod of its agent.
    pub(crate) async fn add_node_without_agent(&self, name: &str, labels: &[(&str, &str)]) {
        let mut all = json!({names::TOPOLOGY_KEY: name});
        for (key, value) in labels {
            all[key] = json!(value);
        }
        create(
            &self.nodes(),
            &json!({"metadata": {"name": name, "labels": all}}),
        )
        .await;
        self.register(name).await;
    }

    /// Registers the driver on a node, as kubelet does.
    pub(crate) async fn register(&self, node: &str) {
        let driver = json!({
            "name": names::DRIVER,
            "nodeID": node,
            "topologyKeys": [names::TOPOLOGY_KEY],
        });
        let object = json!({"metadata": {"name": node}, "spec": {"drivers": [driver]}});
        create(&self.csi_nodes(), &object).await;
    }

    /// Creates a ready pod of the DaemonSet on a node, which sends to other nodes at this port.
    pub(crate) async fn add_agent(&self, node: &str, transfer: u16) {
        let name = format!("agent-{node}");
        let pod = json!({
            "metadata": {
                "name": name,
                "labels": {names::COMPONENT_LABEL: names::NODE_COMPONENT},
            },
            "spec": {"nodeName": node, "containers": [{
                "name": "driver", "image": "x",
                "ports": [{"name": names::TRANSFER_PORT, "containerPort": transfer}],
            }]},
        });
        create(&self.pods(), &pod).await;
        self.set_agent_ready(node, true).await;
    }

    /// Sets the readiness of the agent's pod, as kubelet does.
    pub(crate) async fn set_agent_ready(&self, node: &str, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let conditions = json!([{"type": "Ready", "status": status}]);
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        let name = format!("agent-{node}");
        let parameters = PatchParams::default();
        self.pods()
            .patch_status(&name, &parameters, &patch)
            .await
            .unwrap();
    }

    /// Creates a pool of 10 GiB on the nodes with these labels.
    pub(crate) async fn add_pool(&self, name: &str, labels: &[(&str, &str)]) -> StoragePool {
        let labels: serde_json::Map<String, Value> = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        let spec = json!({
            "nodeSelector": {"matchLabels": labels},
            "source": {"image": {"size": "10Gi"}},
        });
        create(
            &self.pools(),
            &json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await
    }

    /// Creates a StorageClass of the driver.
    pub(crate) async fn add_class(&self, name: &str, parameters: Value) -> StorageClass {
        let class = json!({
            "metadata": {"name": name},
            "provisioner": names::DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": parameters,
        });
        create(&self.classes(), &class).await
    }

    /// Creates a claim in the namespace `default`.
    pub(crate) async fn add_claim(&self, name: &str, class: &str, size: &str) {
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": class,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": size}},
            },
        });
        create(&self.claims(), &claim).await;
    }

    /// Creates a volume of 1 GiB as the driver's controller does.
    pub(crate) async fn add_volume(&self, name: &str, pool: &str, node: &str) -> PoolVolume {
        let volume = PoolVolume::desired(name, volume_spec(name, node, pool));
        create(&self.volumes(), &json!(volume)).await
    }

    /// Creates a snapshot of a deleted volume as the driver's controller does.
    pub(crate) async fn add_snapshot(&self, name: &str, pool: &str, node: &str) -> PoolSnapshot {
        let snapshot = json!({
            "metadata": {
                "name": name,
                "finalizers": [names::FINALIZER],
                "labels": {(names::POOL_LABEL): pool},
            },
            "spec": {
                "requestedName": name,
                "nodeName": node,
                "poolName": pool,
                "sourceVolume": "gone",
                "sourceImage": "6b3f1a52-0000-4000-8000-000000000001",
                "accessType": "Filesystem",
                "filesystem": "ext4",
                "provisioning": "Thin",
            },
        });
        create(&self.snapshots(), &snapshot).await
    }

    /// Removes a volume or snapshot as the driver's controller does.
    pub(crate) async fn remove<K>(&self, name: &str)
    where
        K: HasImage + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api = Api::<K>::all(self.client.clone());
        change(&api, name, json!({"metadata": {"finalizers": null}})).await;
        delete(&api, name).await;
    }

    /// Reports a ready pool of 10 GiB with `room` for new volumes, as the agent does.
    pub(crate) async fn report(&self, node: &str, pool: &str, room: Bytes) {
        let status = self.ready_report(node, pool, room).await;
        self.report_pools(node, &[status]).await;
    }

    /// Returns the report of a ready pool of 10 GiB with `room` for new volumes, once the node carries it.
    pub(crate) async fn ready_report(&self, node: &str, pool: &str, room: Bytes) -> NodePoolStatus {
        let entry = self.carried(node, pool).await;
        let mut status = NodePoolStatus {
            name: pool.to_owned(),
            uid: entry.uid,
            filesystem_uuid: Some("6b3f1a52-0000-4000-8000-000000000000".to_owned()),
            size: Bytes::gib(10),
            usable: Bytes::gib(9),
            empty: Bytes::gib(9),
            reserved: Bytes::gib(9).saturating_sub(room),
            thin_room: room,
            thick_room: room,
            ..NodePoolStatus::default()
        };
        let ready = ConditionUpdate::new(ConditionType::Ready, true, Reason::Reconciled, "ready");
        let since = time::from_kubernetes(&Time(Timestamp::UNIX_EPOCH));
        condition::set(&mut status.conditions, &ready, None, since);
        status
    }

    /// Writes the status of a node with these pools, as the agent does.
    pub(crate) async fn report_pools(&self, node: &str, pools: &[NodePoolStatus]) {
        let seen = self.storage_nodes().get(node).await.unwrap();
        let body = json!({
            "apiVersion": "cistern.storage/v1alpha1",
            "kind": "StorageNode",
            "metadata": {"name": node},
            "status": {"pools": pools, "observedGeneration": seen.metadata.generation},
        });
        let parameters = PatchParams::apply(names::AGENT_MANAGER);
        let patch = Patch::Apply(body);
        self.storage_nodes()
            .patch_status(node, &parameters, &patch)
            .await
            .unwrap();
    }

    /// Waits until the spec of the StorageNode lists the pool, and returns the entry.
    pub(crate) async fn carried(&self, node: &str, pool: &str) -> cistern_crds::NodePool {
        let what = format!("{node} to carry {pool}");
        self.storage_node(&what, node, |node| {
            node.spec
                .pools
                .iter()
                .find(|entry| entry.name == pool)
                .cloned()
        })
        .await
    }

    /// Waits until `look` returns a value for the StorageNode.
    pub(crate) async fn storage_node<T>(
        &self,
        what: &str,
        name: &str,
        look: impl Fn(&StorageNode) -> Option<T>,
    ) -> T {
        wait_for(&self.storage_nodes(), what, name, look).await
    }

    /// Waits until `look` returns a value for the StoragePool.
    pub(crate) async fn pool<T>(
        &self,
        what: &str,
        name: &str,
        look: impl Fn(&StoragePool) -> Option<T>,
    ) -> T {
        wait_for(&self.pools(), what, name, look).await
    }

    /// Waits until `Ready` of a pool has this status and reason, and returns its message.
    pub(crate) async fn pool_is(&self, pool: &str, status: &str, reason: &str) -> String {
        let what = format!("{pool} to be {status} for {reason}");
        self.pool(&what, pool, |pool| {
            let conditions = &pool.status.as_ref()?.conditions;
            condition_message(conditions, ConditionType::Ready, status, reason)
        })
        .await
    }

    /// Returns node, capacity and largest volume of each capacity object of a class, sorted.
    pub(crate) async fn capacities(&self, class: &str) -> Vec<(String, Bytes, Bytes)> {
        let bytes = |quantity: &Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
            quantity.as_ref().unwrap().0.parse::<Bytes>().unwrap()
        };
        let mut found: Vec<_> = self
            .capacity_objects(class)
            .await
            .iter()
            .map(|object| {
                let labels = object
                    .node_topology
                    .as_ref()
                    .unwrap()
                    .match_labels
                    .as_ref()
                    .unwrap();
                assert_eq!(labels.len(), 1, "one key");
                let node = labels[names::TOPOLOGY_KEY].clone();
                (
                    node,
                    bytes(&object.capacity),
                    bytes(&object.maximum_volume_size),
                )
            })
            .collect();
        found.sort();
        found
    }

    /// Returns the capacity objects of a class.
    pub(crate) async fn capacity_objects(&self, class: &str) -> Vec<CSIStorageCapacity> {
        let objects = self.capacity_api().list(&ListParams::default()).await;
        let mut objects = objects.unwrap().items;
        objects.retain(|object| object.storage_class_name == class);
        objects
    }

    /// Waits until the capacity objects of a class are these pairs of node and GiB.
    pub(crate) async fn published(&self, class: &str, expected: &[(&str, u64)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(node, gib)| ((*node).to_owned(), Bytes::gib(*gib), Bytes::gib(*gib)))
            .collect();
        let what = format!("the capacity of {class} to be {expected:?}");
        eventually(&what, SOON, async || {
            let found = self.capacities(class).await;
            if found == expected {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await;
    }

    /// Returns reason and note of the events about an object, oldest first.
    pub(crate) async fn events(&self, uid: &str) -> Vec<(String, String)> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), DEFAULT);
        let mut events = api.list(&ListParams::default()).await.unwrap().items;
        events.retain(|event| {
            event
                .regarding
                .as_ref()
                .and_then(|object| object.uid.as_deref())
                == Some(uid)
        });
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let texts = events.into_iter();
        texts
            .map(|event| (event.reason.unwrap(), event.note.unwrap()))
            .collect()
    }

    /// Waits for an event with this reason about an object, and returns its note.
    pub(crate) async fn event(&self, uid: &str, reason: &str) -> String {
        eventually(&format!("an event {reason}"), SOON, async || {
            let events = self.events(uid).await;
            let found = events.iter().find(|(seen, _)| seen == reason);
            found
                .map(|(_, note)| note.clone())
                .ok_or_else(|| format!("{events:?}"))
        })
        .await
    }
}

/// Returns the message of a condition if it has this status and reason.
pub(crate) fn condition_message(
    conditions: &[Condition],
    kind: ConditionType,
    status: &str,
    reason: &str,
) -> Option<String> {
    let condition = condition::find(conditions, kind)?;
    (condition.status == status && condition.reason == reason).then(|| condition.message.clone())
}

/// Creates an object from its JSON.
pub(crate) async fn create<K>(api: &Api<K>, object: &Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let mut object = object.clone();
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

/// Deletes an object without a grace period.
pub(crate) async fn delete<K>(api: &Api<K>, name: &str)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let now = DeleteParams::default().grace_period(0);
    api.delete(name, &now).await.unwrap();
}

/// Waits until an object is gone.
pub(crate) async fn gone<K>(api: &Api<K>, name: &str)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    eventually(&format!("{name} to be gone"), SOON, async || {
        match api.get_opt(name).await.unwrap() {
            None => Ok(()),
            Some(object) => Err(format!("{object:?}")),
        }
    })
    .await;
}

async fn wait_for<K, T>(api: &Api<K>, what: &str, name: &str, look: impl Fn(&K) -> Option<T>) -> T
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    eventually(what, SOON, async || {
        let object = api.get_opt(name).await.unwrap();
        object
            .as_ref()
            .and_then(&look)
            .ok_or_else(|| format!("{object:?}"))
    })
    .await
}
