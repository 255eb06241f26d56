//! Pools that have a disk of their own.

use std::path::{Path, PathBuf};

use cistern_crds::StoragePool;
use cistern_e2e::{ControlPlane, Driver, objects};
use kube::{Api, ResourceExt as _};
use serde_json::json;

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
        // The volumes stay nearly empty.
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
