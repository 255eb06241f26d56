//! A node that sends or receives copies, with a pool on a disk of its own. The bench does what the operator does:
//! it declares the pool and permits the copies.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cistern_crds::{
    AccessType, Bytes, ConditionType, ContentSource, HasImage as _, ImageTransfer,
    ImageTransferSpec, NodePool, PoolSource, PoolVolume, PoolVolumeSpec, SourceKind,
    TransferPurpose, condition,
    pool::DeviceSource,
    testing::{node_pool, volume_spec},
};
use cistern_e2e::{ControlPlane, Driver, gone};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use rustix::fs::syncfs;
use tokio::time::{sleep, timeout};

use super::snapshot::Snapshot;
use crate::{latency, pools};

/// Size of the sparse file behind each pool. A volume is never larger than its pool.
const DISK: u64 = 80 << 30;
/// How often the status of a volume is read. A copy takes much longer.
const INTERVAL: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_secs(30);
/// Deadline of a copy.
const LONGEST: Duration = Duration::from_mins(10);

/// One node. Its pool has its name.
pub(crate) struct Node {
    pub(crate) driver: Driver,
    pub(crate) name: &'static str,
    pub(super) client: Client,
    /// The folder of the pool outside the node's mount namespace.
    pub(super) folder: PathBuf,
}

impl Node {
    /// Starts a node, and waits until its pool is ready.
    pub(crate) async fn start(control_plane: &ControlPlane, name: &'static str) -> Self {
        let driver = Driver::start(control_plane, name).await;
        let disk = pools::SparseDisk::new(DISK).await;
        let source = PoolSource {
            device: Some(DeviceSource {
                paths: vec![disk.path().display().to_string()],
                ..DeviceSource::default()
            }),
            ..PoolSource::default()
        };
        let pool = NodePool {
            // The disk is sparse.
            overcommit_percent: 1000,
            ..node_pool(name, name, source)
        };
        driver.set_pools(vec![pool]).await;
        driver.ready_pool(name).await;
        disk.remove_with_pool().await;
        let folder = driver.storage_root().join("pools").join(name);
        Self {
            folder: pools::outside(&driver, &folder),
            client: control_plane.client(),
            driver,
            name,
        }
    }

    /// The process id of its agent.
    pub(crate) fn agent(&self) -> u32 {
        self.driver.node().process().id()
    }

    /// A file in the pool, for another way to copy.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The path of a file of the pool in the node's mount namespace.
    pub(crate) fn inside(&self, file: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.agent());
        let path = file.strip_prefix(root).expect("it is in the pool");
        Path::new("/").join(path)
    }

    /// Permits the copy of a snapshot for a volume of this node.
    pub(crate) async fn permit(&self, snapshot: &Snapshot, volume: &str) {
        let spec = ImageTransferSpec {
            source_node: snapshot.node.to_owned(),
            target_node: self.name.to_owned(),
            snapshot_name: Some(snapshot.name.clone()),
            move_uid: None,
            image: snapshot.image.clone(),
            base_image: None,
            volume_name: volume.to_owned(),
            purpose: TransferPurpose::Restore,
        };
        let transfer = ImageTransfer::new(volume, spec);
        let api = Api::all(self.client.clone());
        let permitted = api.create(&PostParams::default(), &transfer).await;
        permitted.expect("it is new");
    }

    /// Creates a volume of this node from a snapshot of another one; returns the seconds until it can be used.
    pub(crate) async fn restore(&self, snapshot: &Snapshot, volume: &str) -> f64 {
        let spec = PoolVolumeSpec {
            size: Bytes(snapshot.size),
            access_type: AccessType::Block,
            filesystem: None,
            content_source: Some(ContentSource {
                kind: SourceKind::Snapshot,
                name: snapshot.name.clone(),
                image: snapshot.image.clone(),
                node_name: Some(snapshot.node.to_owned()),
                snapshot_name: None,
            }),
            ..volume_spec(volume, self.name, self.name)
        };
        let api = Api::all(self.client.clone());
        let desired = PoolVolume::desired(volume, spec);
        let started = Instant::now();
        let created = api.create(&PostParams::default(), &desired).await;
        created.expect("it is new");
        let ready = async {
            loop {
                let found = api.get(volume).await.expect("it was made");
                if condition::holds(found.conditions(), ConditionType::Ready) {
                    return started.elapsed().as_secs_f64();
                }
                sleep(INTERVAL).await;
            }
        };
        timeout(LONGEST, ready).await.expect("a copy takes less")
    }

    /// Deletes a volume that was restored, and the permission of its copy.
    pub(crate) async fn remove(&self, volume: &str) {
        latency::delete(&self.driver, vec![volume.to_owned()]).await;
        let api = Api::<ImageTransfer>::all(self.client.clone());
        let deleted = api.delete(volume, &DeleteParams::default()).await;
        deleted.expect("it was made");
        gone(&api, volume, SOON).await;
    }

    /// Writes everything to the disk that the pool has in memory.
    pub(crate) fn sync(&self) {
        let folder = File::open(&self.folder).expect("the pool is mounted");
        syncfs(&folder).expect("its disk works");
    }

    /// Begins to measure the peak memory of its agent.
    pub(crate) fn forget_peak(&self) {
        let file = format!("/proc/{}/clear_refs", self.agent());
        fs::write(file, "5").expect("the agent runs");
    }

    /// Stops it.
    pub(crate) async fn finish(self) {
        self.driver.finish().await;
    }
}
