//! Two nodes with one pool, their operator, and a volume on the first node. The disks of the pool are sparse files: they take as
//! much of the machine's disk as is written to them.

use std::{path::PathBuf, time::Duration};

use cistern_crds::{
    Bytes, ConditionType, HasImage as _, PoolVolume, PoolVolumeSpec, VolumeMove, condition, names,
    testing::volume_spec,
};
use cistern_e2e::{ControlPlane, Driver, Operator, eventually, objects};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::pools::{self, SparseDisk};

const POOL: &str = "bench-moves";
pub(super) const NODES: [&str; 2] = ["bench-from", "bench-to"];
/// Name of the volume and of everything that uses it.
pub(super) const NAME: &str = "moved";
pub(super) const NAMESPACE: &str = "default";
/// Deadline of each wait: all passes over a large volume on a slow disk, and the pauses between them.
pub(super) const LONGEST: Duration = Duration::from_mins(30);

/// The nodes, on an API server of their own.
pub(super) struct Nodes {
    pub(super) client: Client,
    pub(super) from: Driver,
    pub(super) to: Driver,
    /// The folder of the pool in the mount namespace of the first node.
    folder: PathBuf,
    operator: Operator,
    _control_plane: ControlPlane,
}

impl Nodes {
    /// Starts them with a pool that has room for a volume of this size, for what a move keeps of it, and for the snapshots and
    /// copies of its passes.
    pub(super) async fn start(volume: Bytes) -> Self {
        let control_plane = ControlPlane::start().await;
        let client = control_plane.client();
        objects::create_namespace(&client).await;
        let from = start(&control_plane, NODES[0]).await;
        let to = start(&control_plane, NODES[1]).await;
        let operator = Operator::start(&control_plane).await;
        let room = Bytes(volume.0 * 7 / 2).round_up_to_mib();
        let room = room.expect("it is no exbibyte").0;
        let disks = [SparseDisk::new(room).await, SparseDisk::new(room).await];
        let path = disks[0].name_on(&from, POOL).await;
        disks[1].name_on(&to, POOL).await;
        let folder = pools::on_device(&control_plane, &from, POOL, &path).await;
        to.ready_pool(POOL).await;
        for disk in disks {
            disk.remove_with_pool().await;
        }
        Self {
            client,
            from,
            to,
            folder,
            operator,
            _control_plane: control_plane,
        }
    }

    /// Creates a volume, its PersistentVolume and its claim.
    pub(super) async fn create_volume(&self, spec: PoolVolumeSpec) -> PoolVolume {
        let desired = PoolVolume::desired(NAME, spec);
        objects::create(&self.volumes(), json!(desired)).await;
        let made = self.until_on(NODES[0]).await;
        let all: Api<PersistentVolume> = Api::all(self.client.clone());
        objects::create(&all, persistent_volume(&made)).await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), NAMESPACE);
        objects::create(&claims, claim(&made.spec)).await;
        made
    }

    /// Waits until the volume can be used on a node.
    pub(super) async fn until_on(&self, node: &str) -> PoolVolume {
        let (what, volumes) = (format!("the volume to be on {node}"), self.volumes());
        eventually(&what, LONGEST, async || {
            let found = volumes.get(NAME).await.map_err(|error| error.to_string())?;
            let status = found.status.as_ref();
            let is_of_epoch = status.is_some_and(|it| it.epoch == found.spec.epoch);
            let is_ready =
                is_of_epoch && condition::holds(found.conditions(), ConditionType::Ready);
            if is_ready && found.spec.node_name == node {
                return Ok(found);
            }
            Err(format!("{status:#?}"))
        })
        .await
    }

    /// The path of the volume's image in the mount namespace of the first node.
    pub(super) fn image(&self, volume: &PoolVolume) -> PathBuf {
        let image = &volume.image().expect("it is made").uid;
        self.folder.join("images").join(image)
    }

    pub(super) fn moves(&self) -> Api<VolumeMove> {
        Api::all(self.client.clone())
    }

    fn volumes(&self) -> Api<PoolVolume> {
        Api::all(self.client.clone())
    }

    /// Stops them.
    pub(super) async fn finish(self) {
        self.operator.finish().await;
        self.from.finish().await;
        self.to.finish().await;
    }
}

/// A volume of this size with a filesystem, on the first node.
pub(super) fn volume(size: Bytes) -> PoolVolumeSpec {
    PoolVolumeSpec {
        size,
        ..volume_spec(NAME, NODES[0], POOL)
    }
}

async fn start(control_plane: &ControlPlane, name: &str) -> Driver {
    let driver = Driver::start(control_plane, name).await;
    let (agent, transfer) = (format!("agent-{name}"), driver.transfer());
    objects::create_node(&control_plane.client(), name, &agent, Some(transfer)).await;
    driver
}

fn persistent_volume(volume: &PoolVolume) -> Value {
    let (spec, image) = (&volume.spec, volume.image().expect("it is made"));
    let node = names::topology_value(NODES[0]);
    json!({
        "metadata": {"name": NAME},
        "spec": {
            "capacity": {"storage": spec.size},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": spec.access_type,
            "storageClassName": POOL,
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE,
                "name": NAME, "uid": "uid-of-claim",
            },
            "csi": {
                "driver": names::DRIVER, "volumeHandle": NAME, "fsType": spec.filesystem,
                "volumeAttributes": {(names::IMAGE_CONTEXT): image.uid},
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": names::TOPOLOGY_KEY, "operator": "In", "values": [node]},
            ]}]}},
        },
    })
}

fn claim(spec: &PoolVolumeSpec) -> Value {
    json!({
        "metadata": {"name": NAME},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": spec.access_type,
            "storageClassName": POOL,
            "volumeName": NAME,
            "resources": {"requests": {"storage": spec.size}},
        },
    })
}
