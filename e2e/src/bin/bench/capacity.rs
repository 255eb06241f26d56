//! How long after a StorageNode's status the capacity object of the scheduler says the same.

use std::{
    collections::BTreeMap,
    process::Command,
    time::{Duration, Instant},
};

use cistern_crds::{Bytes, StorageNode, names};
use cistern_e2e::{
    ControlPlane, Driver, Folder,
    control_plane::free_addresses,
    eventually,
    process::{binary, dying_with_us},
    service::Service,
};
use k8s_openapi::api::{
    core::v1::{Namespace, Node},
    storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass},
};
use kube::{Api, Client, Resource, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{Figure, NODE, POOL, latency, percentile};

const NAMESPACE: &str = "cistern-system";
const ROUNDS: usize = 10;

/// The operator's process and where it keeps its log.
pub(crate) struct Operator {
    service: Service,
    _folder: Folder,
}

impl Operator {
    /// Its process.
    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// Ends it.
    pub(crate) async fn finish(mut self) {
        self.service.stop().await;
    }
}

/// Starts the operator beside a Node that stands for the bench's own, with a class for it.
pub(crate) async fn start_operator(control_plane: &ControlPlane) -> Operator {
    let client = control_plane.client();
    let namespace: Api<Namespace> = Api::all(client.clone());
    create(&namespace, json!({"metadata": {"name": NAMESPACE}})).await;
    let segment: BTreeMap<&str, &str> = [(names::TOPOLOGY_KEY, NODE)].into();
    let node: Api<Node> = Api::all(client.clone());
    create(
        &node,
        json!({"metadata": {"name": NODE, "labels": segment}}),
    )
    .await;
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
    let class: Api<StorageClass> = Api::all(client);
    let of_ours = json!({
        "metadata": {"name": "bench"},
        "provisioner": names::DRIVER,
        "parameters": {"pool": POOL},
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    create(&class, of_ours).await;
    let folder = Folder::new();
    let [http] = free_addresses();
    let mut command: Command = dying_with_us(binary("cistern-operator"));
    command
        .arg(format!("--http={http}"))
        .arg(format!("--namespace={NAMESPACE}"))
        .env("KUBECONFIG", control_plane.kubeconfig());
    let service = Service::start("operator", folder.path(), http, command).await;
    Operator {
        service,
        _folder: folder,
    }
}

/// Makes volumes, each of which takes room away, and looks how soon the capacity object follows.
pub(crate) async fn lag(control_plane: &ControlPlane, driver: &Driver) -> Figure {
    let client = control_plane.client();
    let mut samples = Vec::new();
    for round in 0..ROUNDS {
        let mut before = room(&client).await;
        let (ids, _) = latency::create(driver, &format!("lag-{round}"), 1).await;
        let started = Instant::now();
        eventually(
            "the capacity object to follow",
            Duration::from_secs(30),
            async || {
                let now = (room(&client).await, published(&client).await);
                if now.0 < before && now.1 == now.0 {
                    Ok(())
                } else {
                    Err(format!("{now:?}"))
                }
            },
        )
        .await;
        samples.push(latency::milliseconds(started));
        before = room(&client).await;
        latency::delete(driver, ids).await;
        eventually(
            "the room to come back",
            Duration::from_secs(30),
            async || {
                let now = (room(&client).await, published(&client).await);
                if now.0 > before && now.1 == now.0 {
                    Ok(())
                } else {
                    Err(format!("{now:?}"))
                }
            },
        )
        .await;
    }
    Figure {
        what: "capacity object behind the volume, p50".to_owned(),
        ours: format!("{:.0} ms", percentile(&samples, 50)),
        beside: format!("slowest of {ROUNDS}: {:.0} ms", percentile(&samples, 100)),
        ratio: None,
        aim: "<= 1 s",
    }
}

/// The largest volume that the node's status says it has room for.
async fn room(client: &Client) -> Bytes {
    let api: Api<StorageNode> = Api::all(client.clone());
    let node = api.get(NODE).await.expect("it is there");
    node.status
        .unwrap_or_default()
        .pools
        .first()
        .map_or(Bytes::ZERO, |pool| pool.thin_room)
}

/// What the scheduler is told.
async fn published(client: &Client) -> Bytes {
    let api: Api<CSIStorageCapacity> = Api::namespaced(client.clone(), NAMESPACE);
    let objects = api
        .list(&kube::api::ListParams::default())
        .await
        .expect("the API server answers");
    let capacity = objects.items.into_iter().find_map(|object| object.capacity);
    capacity
        .and_then(|capacity| capacity.0.parse().ok())
        .unwrap_or_default()
}

async fn create<K>(api: &Api<K>, object: serde_json::Value)
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("it is of this kind");
    api.create(&PostParams::default(), &object)
        .await
        .expect("it is new");
}
