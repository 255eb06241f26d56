//! Two nodes with real agents in the cluster of a real operator.

use std::time::Duration;

use cistern_crds::{
    Bytes, ConditionType, HasImage as _, NodePoolStatus, PoolReplica, PoolSnapshot, PoolVolume,
    VolumeMove, condition, names, persistent_volume::nodes_of, testing::volume_spec,
};
use cistern_e2e::{
    ControlPlane, Driver,
    driver::Options,
    eventually,
    objects::{change, write_status},
};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, DEFAULT},
    objects::{Objects, create, delete, gone},
};

/// Timeout of each step.
pub(super) const SOON: Duration = Duration::from_mins(5);

/// Two nodes with a pool, and the cluster that they are in.
pub(super) struct Nodes<'a> {
    pub(super) api: Objects,
    pool: &'a str,
    pub(super) first: Driver,
    pub(super) second: Driver,
    pub(super) names: [String; 2],
}

impl<'a> Nodes<'a> {
    /// Starts the nodes `POOL-1` and `POOL-2`. The first sends `rate` bytes per second at most.
    pub(super) async fn start(cluster: &Cluster, pool: &'a str, rate: u64) -> Self {
        let (api, names) = (
            cluster.api(),
            [1, 2].map(|number| format!("{pool}-{number}")),
        );
        let [first, second] = &names;
        let control_plane = &cluster.control_plane;
        let slow = Options {
            transfer_rate: rate,
            ..Options::default()
        };
        let first = join(&api, control_plane, first, pool, slow).await;
        let second = join(&api, control_plane, second, pool, Options::default()).await;
        let spec = json!({
            "nodeSelector": {"matchLabels": {(pool): "yes"}},
            "source": {"image": {"size": "1Gi"}},
        });
        create(
            &api.pools(),
            &json!({"metadata": {"name": pool}, "spec": spec}),
        )
        .await;
        api.pool_is(pool, "True", "Reconciled").await;
        Self {
            api,
            pool,
            first,
            second,
            names,
        }
    }

    pub(super) fn moves(&self) -> Api<VolumeMove> {
        Api::all(self.api.client.clone())
    }

    pub(super) fn persistent_volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.api.client.clone())
    }

    pub(super) fn user_pods(&self) -> Api<Pod> {
        Api::namespaced(self.api.client.clone(), DEFAULT)
    }

    /// Makes a volume on the first node, and its PersistentVolume, which is bound to the claim of its name.
    pub(super) async fn add_volume(&self, name: &str) -> PoolVolume {
        self.add_volume_of(name, Bytes::mib(320)).await
    }

    /// The same with another size.
    pub(super) async fn add_volume_of(&self, name: &str, size: Bytes) -> PoolVolume {
        let volume = self.add_volume_on(name, &self.names[0], size).await;
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": format!("pv-of-{name}")},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "none",
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": DEFAULT,
                    "name": name, "uid": format!("uid-of-{name}"),
                },
                "csi": {
                    "driver": names::DRIVER, "volumeHandle": name, "fsType": "ext4",
                    "volumeAttributes": {(names::IMAGE_CONTEXT): volume.image().unwrap().uid},
                },
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": names::TOPOLOGY_KEY, "operator": "In", "values": [self.names[0]]},
                ]}]}},
            },
        });
        create(&self.persistent_volumes(), &object).await;
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "volumeName": format!("pv-of-{name}"),
                "resources": {"requests": {"storage": size}},
            },
        });
        let claims = Api::namespaced(self.api.client.clone(), DEFAULT);
        create::<k8s_openapi::api::core::v1::PersistentVolumeClaim>(&claims, &claim).await;
        volume
    }

    /// Makes a volume on a node, and no PersistentVolume.
    pub(super) async fn add_volume_on(&self, name: &str, node: &str, size: Bytes) -> PoolVolume {
        let mut spec = volume_spec(name, node, self.pool);
        spec.size = size;
        create(&self.api.volumes(), &json!(PoolVolume::desired(name, spec))).await;
        self.until(name, "to be ready", is_ready).await
    }

    pub(super) async fn until(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&PoolVolume) -> bool,
    ) -> PoolVolume {
        eventually(&format!("volume {name} {what}"), SOON, async || {
            let found = self.api.volumes().get(name).await.unwrap();
            if is(&found) {
                Ok(found)
            } else {
                Err(format!("{:#?} {:#?}", found.spec, found.status))
            }
        })
        .await
    }

    /// The node that a volume was on when it was read.
    pub(super) fn node_of(&self, volume: &PoolVolume) -> &Driver {
        if volume.spec.node_name == self.names[0] {
            &self.first
        } else {
            &self.second
        }
    }

    /// Creates a pod in the default namespace that uses claims, on a node.
    pub(super) async fn add_pod(&self, name: &str, node: &str, claims: &[&str], phase: &str) {
        let metadata = json!({"name": name});
        self.add_pod_with(metadata, node, claims, phase).await;
    }

    /// Creates a running pod with the label `app` of its own name, whose controller would make it again.
    pub(super) async fn add_pod_of_set(&self, name: &str, node: &str, claims: &[&str]) {
        let metadata = json!({
            "name": name, "labels": {"app": name},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "set", "uid": "uid-of-set",
                "controller": true,
            }],
        });
        self.add_pod_with(metadata, node, claims, "Running").await;
    }

    async fn add_pod_with(&self, metadata: Value, node: &str, claims: &[&str], phase: &str) {
        let name = metadata["name"].as_str().unwrap().to_owned();
        let volumes = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
        let volumes: Vec<Value> = volumes.collect();
        let pod = json!({
            "metadata": metadata,
            "spec": {
                "nodeName": node, "volumes": volumes,
                "containers": [{"name": "c", "image": "x"}],
            },
        });
        create(&self.user_pods(), &pod).await;
        // The API server evicts a pod that is not ready although its budget allows no eviction.
        let ready =
            json!({"type": "Ready", "status": if phase == "Running" { "True" } else { "False" }});
        let status = json!({"phase": phase, "conditions": [ready]});
        write_status(&self.user_pods(), &name, status).await;
    }

    pub(super) async fn move_volume(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["volumeName"] = json!(name);
        create(
            &self.moves(),
            &json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await;
    }

    /// Waits until the move of a volume waits for a reason, and returns its message.
    pub(super) async fn waits(&self, name: &str, reason: &str) -> String {
        eventually(&format!("{name} to wait for {reason}"), SOON, async || {
            let found = self.moves().get_opt(name).await.unwrap();
            let status = found.as_ref().and_then(|it| it.status.as_ref());
            let ready = status.and_then(|it| condition::find(&it.conditions, ConditionType::Ready));
            match ready {
                Some(ready) if ready.reason == reason => Ok(ready.message.clone()),
                _ => Err(format!("{found:#?}")),
            }
        })
        .await
    }

    pub(super) async fn until_ended(&self, name: &str) {
        eventually(
            &format!("the move of {name} to end"),
            SOON,
            async || match self.moves().get_opt(name).await.unwrap() {
                None => Ok(()),
                Some(found) => Err(format!("{found:#?}")),
            },
        )
        .await;
        let replicas = Api::<PoolReplica>::all(self.api.client.clone());
        let left = replicas.list(&ListParams::default()).await.unwrap().items;
        let mut left = left.iter().filter(|it| it.spec.volume_name == name);
        assert!(left.next().is_none(), "nothing is left of the move");
        let snapshots = Api::<PoolSnapshot>::all(self.api.client.clone());
        let of_move = ListParams::default().fields(&format!("spec.copiedFor={name}"));
        eventually(
            "no snapshot to be left of the move",
            SOON,
            async || match snapshots.list(&of_move).await.unwrap().items {
                left if left.is_empty() => Ok(()),
                left => Err(format!("{left:#?}")),
            },
        )
        .await;
    }

    /// Ends the move of a volume: a pod uses the volume on the second node until nothing is left of the move.
    pub(super) async fn end_by_use(&self, name: &str) {
        self.add_pod(name, &self.names[1], &[name], "Running").await;
        self.until_ended(name).await;
        delete(&self.user_pods(), name).await;
    }

    /// The nodes that the PersistentVolume of a volume names.
    pub(super) async fn bound_to(&self, name: &str) -> Vec<String> {
        let found = self
            .persistent_volumes()
            .get(&format!("pv-of-{name}"))
            .await;
        let found = found.unwrap();
        nodes_of(&found).into_iter().map(str::to_owned).collect()
    }

    /// The bytes that a node reserves in the pool.
    pub(super) async fn reserves(&self, node: &Driver, bytes: Bytes) {
        eventually(&format!("a node to reserve {bytes}"), SOON, async || {
            let pools = node.storage_node().await.status.unwrap().pools;
            let is_it = |pool: &&NodePoolStatus| pool.name == self.pool;
            let reserved = pools.iter().find(is_it).unwrap().reserved;
            (reserved == bytes)
                .then_some(())
                .ok_or_else(|| reserved.to_string())
        })
        .await;
    }

    pub(super) async fn finish(self, volumes: &[&str]) {
        for volume in volumes {
            let leaves = json!({"spec": {"deletionRequested": true}});
            change(&self.api.volumes(), volume, leaves).await;
            self.until(volume, "to be removed", |it| it.reserved().is_none())
                .await;
            self.api.remove::<PoolVolume>(volume).await;
        }
        for driver in [&self.first, &self.second] {
            driver.fsck().await;
        }
        delete(&self.api.pools(), self.pool).await;
        gone(&self.api.pools(), self.pool).await;
        self.first.finish().await;
        self.second.finish().await;
    }
}

/// Lets a node with its agent join the cluster.
async fn join(
    api: &Objects,
    control_plane: &ControlPlane,
    name: &str,
    label: &str,
    options: Options,
) -> Driver {
    let driver = Driver::start_with(control_plane, name, options).await;
    api.add_node_without_agent(name, &[(label, "yes")]).await;
    // No controller manager removes the taint of a new Node.
    change(&api.nodes(), name, json!({"spec": {"taints": null}})).await;
    let transfer = driver.transfer();
    api.add_agent(name, transfer.port()).await;
    let ip = transfer.ip().to_string();
    let address = json!({"podIP": ip, "podIPs": [{"ip": ip}]});
    write_status(&api.pods(), &format!("agent-{name}"), address).await;
    driver
}

pub(super) fn is_ready(volume: &PoolVolume) -> bool {
    let is_of_epoch = volume
        .status
        .as_ref()
        .is_some_and(|it| it.epoch == volume.spec.epoch);
    is_of_epoch && condition::holds(volume.conditions(), ConditionType::Ready)
}
