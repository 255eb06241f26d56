//! The operator's process, and the objects that represent the rest of the cluster: a Node with a registered
//! driver and a ready agent pod, a pool, and a class.

use std::process::Command;

use cistern_crds::{StoragePool, names};
use cistern_e2e::{
    ControlPlane, Folder,
    cluster::NAMESPACE,
    control_plane::free_addresses,
    process::{binary, dying_with_us},
    service::Service,
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

use crate::{NODE, POOL, POOL_SIZE};

/// The operator's process and the folder of its log.
pub(crate) struct Operator {
    service: Service,
    _folder: Folder,
}

impl Operator {
    /// Starts it and creates the bench's pool on the bench's node.
    pub(crate) async fn start(control_plane: &ControlPlane) -> Self {
        let client = control_plane.client();
        declare(&client).await;
        let folder = Folder::new();
        let [http] = free_addresses();
        let mut command: Command = dying_with_us(binary("cistern-operator"));
        command
            .arg(format!("--http={http}"))
            .arg(format!("--namespace={NAMESPACE}"))
            .env("KUBECONFIG", control_plane.kubeconfig());
        let service = Service::start("operator", folder.path(), http, command).await;
        let pools: Api<StoragePool> = Api::all(client);
        let spec = json!({
            "nodeSelector": {},
            "source": {"image": {"size": POOL_SIZE}},
            // Enough for the volumes of a whole run on a machine with a small disk, because they stay empty.
            "overcommitPercent": 1000,
        });
        create(&pools, json!({"metadata": {"name": POOL}, "spec": spec})).await;
        Self {
            service,
            _folder: folder,
        }
    }

    /// Returns its process.
    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// Stops it.
    pub(crate) async fn finish(mut self) {
        self.service.stop().await;
    }
}

/// Creates the objects that the operator finds in any cluster.
async fn declare(client: &Client) {
    let namespace: Api<Namespace> = Api::all(client.clone());
    create(&namespace, json!({"metadata": {"name": NAMESPACE}})).await;
    let node: Api<Node> = Api::all(client.clone());
    let labels = json!({names::TOPOLOGY_KEY: NODE});
    create(&node, json!({"metadata": {"name": NODE, "labels": labels}})).await;
    let csi_node: Api<CSINode> = Api::all(client.clone());
    let registered = json!({"drivers": [
        {"name": names::DRIVER, "nodeID": NODE, "topologyKeys": [names::TOPOLOGY_KEY]},
    ]});
    create(
        &csi_node,
        json!({"metadata": {"name": NODE}, "spec": registered}),
    )
    .await;
    let driver: Api<CSIDriver> = Api::all(client.clone());
    create(
        &driver,
        json!({"metadata": {"name": names::DRIVER}, "spec": {}}),
    )
    .await;
    let class: Api<StorageClass> = Api::all(client.clone());
    let ours = json!({
        "metadata": {"name": "bench"},
        "provisioner": names::DRIVER,
        "parameters": {"pool": POOL},
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    create(&class, ours).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let agent = json!({
        "metadata": {
            "name": "agent",
            "labels": {names::COMPONENT_LABEL: names::NODE_COMPONENT},
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "driver", "image": "x"}]},
    });
    create(&pods, agent).await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    pods.patch_status("agent", &PatchParams::default(), &Patch::Merge(ready))
        .await
        .expect("the pod is there");
}

/// Creates an object.
pub(crate) async fn create<K>(api: &Api<K>, object: Value)
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("it is of this kind");
    api.create(&PostParams::default(), &object)
        .await
        .expect("it is new");
}
