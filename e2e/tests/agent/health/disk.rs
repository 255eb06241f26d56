//! A second pool of a node, on a disk that fails on demand.

use std::path::PathBuf;

use cistern_crds::{Bytes, NodePool, NodePoolStatus, PoolVolume, pool::DeviceSource};
use cistern_e2e::{LoopDevice, eventually};
use failing_disk::{FailingDisk, Mode};

use crate::{Fixture, SOON};

/// The disk, the loop device over it, and the pool on that.
pub(super) struct Disk {
    // Dropped before the file, which it holds open.
    _device: LoopDevice,
    file: FailingDisk,
    pool: String,
}

impl Disk {
    /// Adds the pool to the node, and waits until it is ready.
    pub(super) async fn attach(node: &Fixture) -> Self {
        let pool = format!("{}-disk", node.name);
        let folder = node.driver.storage_root().join("failing");
        std::fs::create_dir(&folder).unwrap();
        let command = node
            .driver
            .command_on_node(failing_disk::program().unwrap());
        let disk = FailingDisk::start(command, &folder, Bytes::mib(512).0).unwrap();
        let file = disk.path();
        let script = "losetup --find --show $1";
        let device = node.shell(script, &[file.to_str().unwrap()]).await;
        let device = LoopDevice::new(&device);
        let mut pools = node.driver.storage_node().await.spec.pools;
        let mut declared = pools[0].clone();
        declared.name.clone_from(&pool);
        declared.uid = format!("uid-of-{pool}");
        declared.source.image = None;
        declared.source.device = Some(DeviceSource {
            paths: vec![device.path().to_str().unwrap().to_owned()],
            ..DeviceSource::default()
        });
        pools.push(declared);
        node.driver.set_pools(pools).await;
        node.driver.ready_pool(&pool).await;
        Self {
            _device: device,
            file: disk,
            pool,
        }
    }

    /// Name of the pool.
    pub(super) fn pool(&self) -> &str {
        &self.pool
    }

    /// The mount point of the pool, as the node sees it.
    pub(super) fn path(&self, node: &Fixture) -> PathBuf {
        let pools = node.driver.storage_root().join("pools");
        pools.join(format!("uid-of-{}", self.pool))
    }

    pub(super) fn set(&self, mode: Mode) {
        self.file.set(mode).unwrap();
    }

    /// Creates a volume in the pool and waits until it is ready.
    pub(super) async fn volume(&self, node: &Fixture, name: &str) -> PoolVolume {
        let mut desired = node.desired_volume(name, Bytes::mib(64));
        desired.spec.pool_name.clone_from(&self.pool);
        node.create_ready(&desired).await
    }

    /// Waits until the published status of the pool is as expected.
    pub(super) async fn pool_until(
        &self,
        node: &Fixture,
        what: &str,
        expected: impl Fn(&NodePoolStatus) -> bool,
    ) -> NodePoolStatus {
        eventually(
            &format!("pool {} {what}", self.pool),
            SOON,
            async || match self.status(node).await {
                Some(pool) if expected(&pool) => Ok(pool),
                other => Err(format!("{other:#?}")),
            },
        )
        .await
    }

    async fn status(&self, node: &Fixture) -> Option<NodePoolStatus> {
        let status = node.driver.storage_node().await.status;
        let mut pools = status.unwrap_or_default().pools.into_iter();
        pools.find(|pool| pool.name == self.pool)
    }

    /// Removes the volumes, the pool and the disk.
    pub(super) async fn detach(self, node: &Fixture) {
        let listed = node.volumes.list(&kube::api::ListParams::default()).await;
        for object in listed.unwrap() {
            if object.spec.pool_name == self.pool {
                node.remove(&kube::ResourceExt::name_any(&object)).await;
            }
        }
        let mut pools: Vec<NodePool> = node.driver.storage_node().await.spec.pools;
        for pool in &mut pools {
            pool.retiring = pool.name == self.pool;
        }
        node.driver.set_pools(pools.clone()).await;
        eventually("the pool to be gone", SOON, async || {
            match self.status(node).await {
                None => Ok(()),
                Some(pool) => Err(format!("{pool:#?}")),
            }
        })
        .await;
        pools.retain(|pool| pool.name != self.pool);
        node.driver.set_pools(pools).await;
    }
}
