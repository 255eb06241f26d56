//! Tests of the node agent against a real API server, with real images and real mounts. The test writes
//! itself what the controller and the operator would not write.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod admission;
mod allocation;
mod backups;
mod block;
mod damage;
mod deletion;
mod directory;
mod disks;
mod encryption;
mod expansion;
mod health;
mod hostility;
mod identity;
mod io_limits;
mod moves;
mod node_service;
mod orphans;
mod pools;
mod raw_filesystem;
mod replaced;
mod search;
mod size;
mod snapshots;
mod takeover;
mod transfers;
mod volume_group;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_crds::{
    AccessType, Bytes, ConditionType, NodePoolStatus, PoolVolume, PoolVolumeSpec, PoolVolumeStatus,
    condition, testing::volume_spec,
};
use cistern_e2e::{
    ControlPlane, Driver,
    driver::Options,
    eventually,
    objects::{change, write_status},
    process::output,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

/// Time limit for everything that the agent does.
const SOON: Duration = Duration::from_mins(2);
/// Scripts read and write up to a gibibyte, on a disk that other tests use too.
const SCRIPT: Duration = Duration::from_mins(3);

/// A node with one pool of the minimum size. The pool has the name of the node.
struct Fixture {
    driver: Driver,
    volumes: Api<PoolVolume>,
    name: String,
}

impl Fixture {
    async fn start(name: &str) -> Self {
        Self::start_with(ControlPlane::shared().await, name).await
    }

    async fn start_with(control_plane: &ControlPlane, name: &str) -> Self {
        Self::start_as(control_plane, name, Options::default()).await
    }

    async fn start_as(control_plane: &ControlPlane, name: &str, options: Options) -> Self {
        let driver = Driver::start_with(control_plane, name, options).await;
        driver.add_image_pool(name, Bytes::gib(1)).await;
        Self {
            driver,
            volumes: Api::all(control_plane.client()),
            name: name.to_owned(),
        }
    }

    /// The object of a thin ext4 volume.
    fn desired_volume(&self, volume: &str, size: Bytes) -> PoolVolume {
        let spec = PoolVolumeSpec {
            size,
            ..volume_spec(volume, &self.name, &self.name)
        };
        PoolVolume::desired(&format!("{}-{volume}", self.name), spec)
    }

    async fn create(&self, desired: &PoolVolume) -> PoolVolume {
        let created = self.volumes.create(&PostParams::default(), desired).await;
        created.unwrap()
    }

    /// Creates a filesystem volume and waits until it is ready.
    async fn volume(&self, volume: &str, size: Bytes) -> PoolVolume {
        self.create_ready(&self.desired_volume(volume, size)).await
    }

    /// Creates a raw block volume and waits until it is ready.
    async fn block_volume(&self, volume: &str, size: Bytes) -> PoolVolume {
        let mut desired = self.desired_volume(volume, size);
        desired.spec.access_type = AccessType::Block;
        desired.spec.filesystem = None;
        self.create_ready(&desired).await
    }

    async fn create_ready(&self, desired: &PoolVolume) -> PoolVolume {
        let object = self.create(desired).await;
        let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
        self.until(&object.name_any(), "to be ready", ready).await
    }

    async fn get(&self, volume: &str) -> PoolVolume {
        self.volumes.get(volume).await.unwrap()
    }

    /// Waits until a volume is as expected.
    async fn until(
        &self,
        volume: &str,
        what: &str,
        expected: impl Fn(&PoolVolume) -> bool,
    ) -> PoolVolume {
        eventually(&format!("{volume} {what}"), SOON, async || {
            let object = self.get(volume).await;
            if expected(&object) {
                Ok(object)
            } else {
                Err(format!("{:#?}", object.status))
            }
        })
        .await
    }

    /// Waits until the published status of the pool is as expected.
    async fn pool_until(
        &self,
        what: &str,
        expected: impl Fn(&NodePoolStatus) -> bool,
    ) -> NodePoolStatus {
        eventually(&format!("the pool {what}"), SOON, async || {
            match self.pool().await {
                Some(pool) if expected(&pool) => Ok(pool),
                other => Err(format!("{other:#?}")),
            }
        })
        .await
    }

    async fn pool(&self) -> Option<NodePoolStatus> {
        let status = self.driver.storage_node().await.status;
        let pools = status.unwrap_or_default().pools;
        pools.into_iter().find(|pool| pool.name == self.name)
    }

    /// Waits until the agent has published that this much is reserved, and returns what is left for thick volumes.
    async fn published_room(&self, reserved: Bytes) -> Bytes {
        let is_published = |pool: &NodePoolStatus| pool.reserved == reserved;
        let pool = self.pool_until("to publish its reservations", is_published);
        pool.await.thick_room
    }

    async fn patch(&self, volume: &str, patch: Value) {
        change(&self.volumes, volume, patch).await;
    }

    /// Patches a volume's status in place of the agent, which is stopped.
    async fn write_status(&self, volume: &str, status: Value) {
        write_status(&self.volumes, volume, status).await;
    }

    /// Removes the finalizer and deletes the object. The controller never does that before the data
    /// is gone.
    async fn force_delete(&self, volume: &str) {
        self.patch(volume, json!({"metadata": {"finalizers": []}}))
            .await;
        let deleted = self.volumes.delete(volume, &DeleteParams::default()).await;
        deleted.unwrap();
        eventually(
            &format!("{volume} to be deleted"),
            SOON,
            async || match self.volumes.get_opt(volume).await.unwrap() {
                None => Ok(()),
                Some(object) => Err(format!("{:?}", object.metadata)),
            },
        )
        .await;
    }

    /// Removes a volume as the controller does.
    async fn remove(&self, volume: &str) {
        self.patch(volume, json!({"spec": {"deletionRequested": true}}))
            .await;
        let reclaimed = has_condition(ConditionType::Reclaimed, "True", "Reconciled");
        let object = self.until(volume, "to be reclaimed", reclaimed).await;
        assert_eq!(status(&object).reserved, None);
        self.force_delete(volume).await;
    }

    /// The folder of the pool's images, as the node sees it.
    fn images(&self) -> PathBuf {
        let pools = self.driver.storage_root().join("pools");
        pools.join(format!("uid-of-{}", self.name)).join("images")
    }

    /// Runs a script on the node, with the folder of the images as `$0`.
    async fn shell(&self, script: &str, arguments: &[&str]) -> String {
        self.shell_in(&self.images(), script, arguments).await
    }

    /// The same with another folder as `$0`.
    async fn shell_in(&self, folder: &Path, script: &str, arguments: &[&str]) -> String {
        let mut command = self.driver.command_on_node("sh");
        command.args(["-euc", script]).arg(folder).args(arguments);
        output(command, SCRIPT).await
    }

    /// Fills the disk of the pool, except for 128 MiB. The ledger does not know the file, because it has the prefix of Cistern's own
    /// files.
    async fn fill(&self) {
        let fill = "cd $0/..
            free=$(($(stat -f -c '%a * %S' .) - (128 << 20)))
            until fallocate -l $free .cistern-filler; do free=$((free - (1 << 20))); done";
        self.shell(fill, &[]).await;
    }

    /// Frees what [`Self::fill`] has filled.
    async fn unfill(&self) {
        self.shell("rm $0/../.cistern-filler", &[]).await;
    }

    /// Makes the filesystem of a folder read-only, as the kernel does on errors. The kernel refuses
    /// while the agent or a program that it starts has a file open for writing.
    async fn remount_read_only(&self, folder: &Path) {
        let script = "for attempt in $(seq 1000); do
              ! mount -o remount,ro \"$1\" || exit 0; sleep 0.1
            done; exit 1";
        self.shell(script, &[folder.to_str().unwrap()]).await;
    }

    /// Ends the test: removes every snapshot and volume, and checks that nothing is left.
    async fn finish(self) {
        let ours = ListParams::default().fields(&format!("spec.nodeName={}", self.name));
        self.remove_snapshots().await;
        for object in self.volumes.list(&ours).await.unwrap() {
            self.remove(&object.name_any()).await;
        }
        self.pool_until("to be empty", |pool| pool.reserved == Bytes::ZERO)
            .await;
        self.driver.finish().await;
    }
}

fn status(object: &PoolVolume) -> PoolVolumeStatus {
    object.status.clone().unwrap_or_default()
}

/// Matches a volume that has a condition with this status and reason.
fn has_condition(kind: ConditionType, status: &str, reason: &str) -> impl Fn(&PoolVolume) -> bool {
    move |object| {
        let conditions = object.status.as_ref().map(|status| &status.conditions[..]);
        condition::find(conditions.unwrap_or_default(), kind)
            .is_some_and(|found| found.status == status && found.reason == reason)
    }
}
