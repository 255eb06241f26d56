//! Pools that have a disk of their own.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_crds::StoragePool;
use cistern_e2e::{
    ControlPlane, Driver, Folder, objects,
    process::{command, output},
};
use kube::{Api, ResourceExt as _};
use serde_json::json;

/// The folder of names of disks.
const NAMES: &str = "/dev/disk/by-id";
/// Deadline of a command that changes devices or their names.
const SCRIPT: Duration = Duration::from_secs(30);

/// A sparse file as a disk. Its loop device bypasses the page cache of the file.
pub(crate) struct SparseDisk {
    device: String,
    _folder: Folder,
}

impl SparseDisk {
    /// Creates a disk of this size.
    pub(crate) async fn new(bytes: u64) -> Self {
        let folder = Folder::new();
        let file = folder.join("disk");
        let disk = fs::File::create(&file).and_then(|disk| disk.set_len(bytes));
        disk.expect("a file that takes nothing");
        let file = file.to_str().expect("our paths are text");
        let device = losetup(&[
            "--find",
            "--show",
            "--direct-io=on",
            "--sector-size=4096",
            file,
        ])
        .await;
        Self {
            device: device.trim_end().to_owned(),
            _folder: folder,
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.device)
    }

    /// Gives it a name that one node alone sees, so that the nodes of a pool have their disks at the same path. Returns the path.
    pub(crate) async fn name_on(&self, driver: &Driver, name: &str) -> PathBuf {
        let path = Path::new(NAMES).join(name);
        let script = format!(
            "mkdir -p /dev/disk
            mount -t tmpfs names /dev/disk
            mkdir {NAMES}
            ln -s {} {}",
            self.device,
            path.display()
        );
        let mut command = driver.command_on_node("sh");
        command.args(["-ec", &script]);
        output(command, SCRIPT).await;
        path
    }

    /// Removes it as soon as the pool on it is unmounted: the kernel keeps device and file until then.
    pub(crate) async fn remove_with_pool(self) {
        losetup(&["--detach", &self.device]).await;
    }
}

async fn losetup(arguments: &[&str]) -> String {
    let mut losetup = command("losetup");
    losetup.args(arguments);
    output(losetup, SCRIPT).await
}

/// Creates a pool on a device; returns its folder in the node's mount namespace.
pub(crate) async fn on_device(
    control_plane: &ControlPlane,
    driver: &Driver,
    name: &str,
    device: &Path,
) -> PathBuf {
    let pools: Api<StoragePool> = Api::all(control_plane.client());
    let spec = json!({
        "nodeSelector": {},
        "source": {"device": {"paths": [device]}},
        // The disks are sparse, or in memory, and most volumes stay nearly empty.
        "overcommitPercent": 1000,
    });
    objects::create(&pools, json!({"metadata": {"name": name}, "spec": spec})).await;
    driver.ready_pool(name).await;
    folder(control_plane, driver, name).await
}

/// Returns the folder of a pool in the node's mount namespace.
pub(crate) async fn folder(control_plane: &ControlPlane, driver: &Driver, name: &str) -> PathBuf {
    let pools: Api<StoragePool> = Api::all(control_plane.client());
    let uid = pools.get(name).await.expect("it is there").uid();
    let uid = uid.expect("it has one");
    driver.storage_root().join("pools").join(uid)
}

/// Returns the path of a node's file for a process outside the node's mount namespace.
pub(crate) fn outside(driver: &Driver, path: &Path) -> PathBuf {
    let root = format!("/proc/{}/root", driver.node().process().id());
    Path::new(&root).join(path.strip_prefix("/").expect("it is absolute"))
}
