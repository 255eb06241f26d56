//! Objects of a cluster that tests write in place of an administrator, kubelet and the agents.

use std::{net::SocketAddr, time::Duration};

use cistern_crds::{
    PoolVolume, PoolVolumeSpec, names, testing::volume_spec, volume::ClaimReference,
};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Pod},
    storage::v1::{CSIDriver, CSINode, StorageClass},
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{cluster::NAMESPACE, eventually};

/// When everything has happened.
pub const TIME: &str = "2026-01-01T00:00:00Z";

/// Creates an object.
pub async fn create<K>(api: &Api<K>, object: Value)
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("it is of this kind");
    api.create(&PostParams::default(), &object)
        .await
        .expect("it is new");
}

/// Applies a merge patch to an object.
pub async fn change<K>(api: &Api<K>, name: &str, change: Value) -> K
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let parameters = PatchParams::default();
    let changed = api.patch(name, &parameters, &Patch::Merge(change)).await;
    changed.expect("it can be changed")
}

/// Repeats a write until the API server accepts it, which may still use an earlier definition of the kind.
pub async fn accepted<T>(mut write: impl AsyncFnMut() -> kube::Result<T>) -> T {
    let deadline = Duration::from_mins(1);
    eventually("a changed definition to be used", deadline, async || {
        write().await.map_err(|error| error.to_string())
    })
    .await
}

/// Applies a merge patch to the status of an object.
pub async fn write_status<K>(api: &Api<K>, name: &str, status: Value)
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let (parameters, status) = (
        PatchParams::default(),
        Patch::Merge(json!({"status": status})),
    );
    let written = api.patch_status(name, &parameters, &status).await;
    written.expect("its status can be written");
}

/// Creates Cistern's namespace and its CSIDriver.
pub async fn create_namespace(client: &Client) {
    let namespace: Api<Namespace> = Api::all(client.clone());
    create(&namespace, json!({"metadata": {"name": NAMESPACE}})).await;
    let driver: Api<CSIDriver> = Api::all(client.clone());
    let ours = json!({"metadata": {"name": names::DRIVER}, "spec": {}});
    create(&driver, ours).await;
}

/// Creates a class for the volumes of a pool.
pub async fn create_class(client: &Client, name: &str, pool: &str) {
    let class: Api<StorageClass> = Api::all(client.clone());
    let ours = json!({
        "metadata": {"name": name},
        "provisioner": names::DRIVER,
        "parameters": {"pool": pool},
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    create(&class, ours).await;
}

/// Creates a Node where the driver is registered, and the pod of its agent, which is ready and sends to other nodes at
/// this address, if any.
pub async fn create_node(client: &Client, name: &str, agent: &str, transfer: Option<SocketAddr>) {
    let node: Api<Node> = Api::all(client.clone());
    let labels = json!({names::TOPOLOGY_KEY: names::topology_value(name)});
    create(&node, json!({"metadata": {"name": name, "labels": labels}})).await;
    let csi_node: Api<CSINode> = Api::all(client.clone());
    let registered = json!({"drivers": [
        {"name": names::DRIVER, "nodeID": name, "topologyKeys": [names::TOPOLOGY_KEY]},
    ]});
    create(
        &csi_node,
        json!({"metadata": {"name": name}, "spec": registered}),
    )
    .await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let ports: Vec<Value> = transfer
        .iter()
        .map(|at| json!({"name": names::TRANSFER_PORT, "containerPort": at.port()}))
        .collect();
    let pod = json!({
        "metadata": {
            "name": agent,
            "labels": {names::COMPONENT_LABEL: names::NODE_COMPONENT},
        },
        "spec": {
            "nodeName": name,
            "containers": [{"name": "driver", "image": "x", "ports": ports}],
        },
    });
    create(&pods, pod).await;
    let mut status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    if let Some(at) = transfer {
        let ip = at.ip().to_string();
        status["podIP"] = json!(ip);
        status["podIPs"] = json!([{"ip": ip}]);
    }
    write_status(&pods, agent, status).await;
}

/// Creates a volume of 1 GiB that is ready, for the claim `data-NUMBER`.
pub async fn create_ready_volume(
    api: &Api<PoolVolume>,
    name: &str,
    (node, pool): (&str, &str),
    number: usize,
) {
    let spec = PoolVolumeSpec {
        claim: Some(ClaimReference {
            namespace: "bench".to_owned(),
            name: format!("data-{number}"),
        }),
        ..volume_spec(name, node, pool)
    };
    create(api, json!(PoolVolume::desired(name, spec))).await;
    let mut status = made(name);
    status["reserved"] = json!("1Gi");
    write_status(api, name, status).await;
}

/// The status that the agent adds to an admitted volume of 1 GiB once it can be used.
pub fn made(name: &str) -> Value {
    json!({
        "observedGeneration": 1,
        "size": "1Gi",
        "image": {"uid": name, "poolUuid": name, "sectorSize": 4096},
        "filesystem": {"type": "ext4", "uuid": name, "formatTime": TIME},
        "conditions": [condition("Ready", "Reconciled", "the volume can be used")],
    })
}

/// A condition that holds.
pub fn condition(kind: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": TIME,
    })
}
