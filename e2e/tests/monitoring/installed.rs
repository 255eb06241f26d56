//! Operator, controller and one node, with a pool, a volume, and a pool and a claim with problems.

use std::time::Duration;

use cistern_crds::{Bytes, StoragePool, names};
use cistern_e2e::{
    ControlPlane, Driver, Folder,
    control_plane::free_addresses,
    process::{binary, dying_with_us},
    requests::create_claimed_volume,
    service::Service,
};
use cistern_proto::csi::v1::NodeGetInfoRequest;
use k8s_openapi::api::{
    core::v1::{Namespace, Node, PersistentVolumeClaim, Pod},
    storage::v1::{CSINode, StorageClass},
};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Name of the node.
pub(crate) const NODE: &str = "watched-1";
/// Pool on the node.
pub(crate) const POOL: &str = "watched";
/// Pool on the node whose device does not exist.
pub(crate) const BROKEN_POOL: &str = "watched-broken";
/// Volume in the pool.
pub(crate) const VOLUME: &str = "pvc-watched";
const SYSTEM: &str = "cistern-system";

/// The installation.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) operator: Service,
    pub(crate) driver: Driver,
    // Dropped, and so removed, after the processes that write into it.
    _folder: Folder,
}

impl Installed {
    /// Returns the installation that all tests of this binary share.
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Installed> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let control_plane = ControlPlane::shared().await;
        let client = control_plane.client();
        let namespace = json!({"metadata": {"name": SYSTEM}});
        create::<Namespace>(&Api::all(client.clone()), namespace).await;
        let driver = Driver::start(control_plane, NODE).await;
        register(&client).await;
        let (folder, [http]) = (Folder::new(), free_addresses());
        let mut command = dying_with_us(binary("cistern-operator"));
        command
            .env("KUBECONFIG", control_plane.kubeconfig())
            .env("NAMESPACE", SYSTEM)
            .env("HTTP_ADDRESS", http.to_string())
            .env("LOG_FORMAT", "json");
        let operator = Service::start("operator", folder.path(), http, command).await;
        declare(&client).await;
        driver.ready_pool(POOL).await;
        make_volume(&driver).await;
        let mut node = driver.node_client().await;
        node.node_get_info(NodeGetInfoRequest {}).await.unwrap();
        Self {
            operator,
            driver,
            _folder: folder,
        }
    }

    /// Returns each process with its name in the documentation.
    pub(crate) fn processes(&self) -> [(&'static str, &Service); 3] {
        [
            ("operator", &self.operator),
            ("controller", self.driver.controller()),
            ("node", self.driver.node()),
        ]
    }
}

/// Creates the Node, the CSINode and the agent's pod, as kubelet and the DaemonSet would.
async fn register(client: &kube::Client) {
    let labels = json!({names::TOPOLOGY_KEY: NODE, "watched": "yes"});
    let node = json!({"metadata": {"name": NODE, "labels": labels}});
    create::<Node>(&Api::all(client.clone()), node).await;
    let driver = json!({
        "name": names::DRIVER,
        "nodeID": NODE,
        "topologyKeys": [names::TOPOLOGY_KEY],
    });
    let csi_node = json!({"metadata": {"name": NODE}, "spec": {"drivers": [driver]}});
    create::<CSINode>(&Api::all(client.clone()), csi_node).await;
    let pods = Api::<Pod>::namespaced(client.clone(), SYSTEM);
    let labels = json!({names::COMPONENT_LABEL: names::NODE_COMPONENT});
    let pod = json!({
        "metadata": {"name": "agent", "labels": labels},
        "spec": {"nodeName": NODE, "containers": [{"name": "driver", "image": "x"}]},
    });
    create(&pods, pod).await;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let (parameters, patch) = (PatchParams::default(), Patch::Merge(ready));
    let patched = pods.patch_status("agent", &parameters, &patch);
    patched.await.unwrap();
}

/// Creates pools and classes, and a claim that waits for a missing pool.
async fn declare(client: &kube::Client) {
    let sources = [
        (POOL, json!({"image": {"size": "1Gi"}})),
        (
            BROKEN_POOL,
            json!({"device": {"paths": ["/dev/there-is-none"]}}),
        ),
    ];
    for (name, source) in sources {
        let selector = json!({"matchLabels": {"watched": "yes"}});
        let spec = json!({"nodeSelector": selector, "source": source});
        let pool = json!({"metadata": {"name": name}, "spec": spec});
        create::<StoragePool>(&Api::all(client.clone()), pool).await;
    }
    for (name, pool) in [("watched", POOL), ("homeless", "nobody-made-it")] {
        let class = json!({
            "metadata": {"name": name},
            "provisioner": names::DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {"pool": pool},
        });
        create::<StorageClass>(&Api::all(client.clone()), class).await;
    }
    let spec = json!({
        "storageClassName": "homeless",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    });
    let claim = json!({"metadata": {"name": "homeless"}, "spec": spec});
    create::<PersistentVolumeClaim>(&Api::namespaced(client.clone(), "default"), claim).await;
}

/// Creates the volume as external-provisioner does.
async fn make_volume(driver: &Driver) {
    let request = create_claimed_volume(VOLUME, POOL, Bytes::mib(16));
    let mut client = driver.controller_client().await;
    let made = tokio::time::timeout(Duration::from_mins(1), client.create_volume(request));
    made.await.unwrap().unwrap();
}

async fn create<K>(api: &Api<K>, mut object: Value)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}
