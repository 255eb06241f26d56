//! Fills the API server with the objects of a cluster.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use cistern_crds::{PoolVolume, StoragePool, names};
use cistern_e2e::{ControlPlane, objects};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// Names of the pools; each has a class of the same name.
pub(crate) const POOLS: [&str; 5] = ["pool-0", "pool-1", "pool-2", "pool-3", "pool-4"];
/// Namespace of the claims.
const CLAIMS: &str = "bench";
/// Claims that stay Pending: each asks for a whole pool, and every pool holds volumes.
const PENDING: usize = 100;
/// Number of concurrent writers.
const WRITERS: usize = 24;
/// Images that kubelet lists in the status of a Node.
const IMAGES: usize = 50;
/// How often the progress is printed.
const PROGRESS: Duration = Duration::from_secs(10);

/// Creates what belongs to no node: pools, classes and the claims that wait.
pub(crate) async fn declare(control_plane: &ControlPlane) {
    let client = control_plane.client();
    objects::create_namespace(&client).await;
    let pools: Api<StoragePool> = Api::all(client.clone());
    for pool in POOLS {
        let spec = json!({"nodeSelector": {}, "source": {"image": {"size": "1Ti"}}});
        objects::create(&pools, json!({"metadata": {"name": pool}, "spec": spec})).await;
        objects::create_class(&client, pool, pool).await;
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    objects::create(&namespaces, json!({"metadata": {"name": CLAIMS}})).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, CLAIMS);
    for number in 0..PENDING {
        let claim = json!({
            "metadata": {"name": format!("pending-{number}")},
            "spec": {
                "storageClassName": POOLS[number % POOLS.len()],
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1023Gi"}},
            },
        });
        objects::create(&claims, claim).await;
    }
}

/// The name of a node.
pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:04}")
}

/// The name of a volume, as external-provisioner makes it of a claim's UID.
pub(crate) fn volume_name(number: usize) -> String {
    format!("pvc-{number:08}-0000-4000-8000-000000000000")
}

/// The node and the pool of a volume.
pub(crate) fn place(number: usize, nodes: usize) -> (String, usize) {
    (node_name(number % nodes), number / nodes % POOLS.len())
}

/// Creates Nodes with CSINode and agent pod.
pub(crate) async fn nodes(client: &Client, numbers: std::ops::Range<usize>) {
    let nodes: Api<Node> = Api::all(client.clone());
    concurrently("nodes", numbers, async |number| {
        let name = node_name(number);
        objects::create_node(client, &name, &format!("agent-{name}"), None).await;
        let status = Patch::Merge(node_status());
        nodes
            .patch_status(&name, &PatchParams::default(), &status)
            .await
            .expect("it is there");
    })
    .await;
}

/// Creates PoolVolumes that are ready and their PersistentVolumes, spread over the nodes; returns what was made in a second.
pub(crate) async fn volumes(client: &Client, numbers: std::ops::Range<usize>, nodes: usize) -> f64 {
    let volumes: Api<PoolVolume> = Api::all(client.clone());
    let persistent: Api<PersistentVolume> = Api::all(client.clone());
    concurrently("volumes", numbers, async |number| {
        let name = volume_name(number);
        let (node, pool) = place(number, nodes);
        let pool = POOLS[pool];
        objects::create_ready_volume(&volumes, &name, (&node, pool), number).await;
        objects::create(&persistent, persistent_volume(&name, &node, pool)).await;
    })
    .await
}

/// A PersistentVolume as external-provisioner creates it, bound to a claim.
pub(crate) fn persistent_volume(name: &str, node: &str, pool: &str) -> Value {
    let here = json!({"key": names::TOPOLOGY_KEY, "operator": "In", "values": [node]});
    json!({
        "metadata": {
            "name": name,
            "annotations": {"pv.kubernetes.io/provisioned-by": names::DRIVER},
        },
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": pool,
            "volumeMode": "Filesystem",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": CLAIMS,
                "name": format!("data-{name}"), "uid": name, "resourceVersion": "1",
            },
            "csi": {
                "driver": names::DRIVER,
                "volumeHandle": name,
                "fsType": "ext4",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "bench"},
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    })
}

/// A Node's status of the usual size: most of it is the list of images.
fn node_status() -> Value {
    let image = |number: usize| {
        let digest = format!("{number:064}");
        json!({
            "names": [
                format!("registry.example.org/team/application-{number}@sha256:{digest}"),
                format!("registry.example.org/team/application-{number}:v1.0.{number}"),
            ],
            "sizeBytes": 123_456_789,
        })
    };
    let images: Vec<Value> = (0..IMAGES).map(image).collect();
    let conditions = json!([{
        "type": "Ready", "status": "True", "reason": "KubeletReady",
        "lastHeartbeatTime": objects::TIME, "lastTransitionTime": objects::TIME,
    }]);
    json!({"status": {"images": images, "conditions": conditions}})
}

/// Runs `make` for each number, several at a time, with progress; returns how many were done in a second.
async fn concurrently(
    what: &str,
    numbers: std::ops::Range<usize>,
    make: impl AsyncFn(usize),
) -> f64 {
    let (started, done, all) = (Instant::now(), AtomicUsize::new(0), numbers.len());
    let rate = || {
        let done = done.load(Ordering::Relaxed);
        (done, done as f64 / started.elapsed().as_secs_f64())
    };
    let progress = async {
        loop {
            tokio::time::sleep(PROGRESS).await;
            let (done, rate) = rate();
            eprintln!("{what}: {done} of {all} created, {rate:.0} a second");
        }
    };
    let work = stream::iter(numbers).for_each_concurrent(WRITERS, async |number| {
        make(number).await;
        done.fetch_add(1, Ordering::Relaxed);
    });
    tokio::select! {
        () = work => {}
        () = progress => {}
    }
    let (done, rate) = rate();
    eprintln!("{what}: {done} created, {rate:.0} a second");
    rate
}
