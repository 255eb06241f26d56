//! The agent of a node against a real API server, real images and real mounts. The test takes the
//! place of controller and operator where it wants what they would not write.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod admission;
mod allocation;
mod block;
mod damage;
mod deletion;
mod expansion;
mod health;
mod hostility;
mod identity;
mod node_service;
mod orphans;
mod pools;
mod snapshots;
mod takeover;

use std::{path::PathBuf, time::Duration};

use cistern_crds::{
    AccessMode, AccessType, Bytes, ConditionType, FilesystemType, NodePoolStatus, PoolVolume,
    PoolVolumeSpec, PoolVolumeStatus, Provisioning, condition, names,
};
use cistern_e2e::{ControlPlane, Driver, eventually, process::output};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// How long the agent may take for anything.
const SOON: Duration = Duration::from_secs(30);

/// A node with one pool of the smallest size, named as the node.
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
        let driver = Driver::start(control_plane, name).await;
        driver.add_image_pool(name, Bytes::gib(1)).await;
        Self {
            driver,
            volumes: Api::all(control_plane.client()),
            name: name.to_owned(),
        }
    }

    /// A wish for a thin volume of ext4.
    fn wish(&self, volume: &str, size: Bytes) -> PoolVolume {
        let spec = PoolVolumeSpec {
            requested_name: volume.to_owned(),
            node_name: self.name.clone(),
            pool_name: self.name.clone(),
            size,
            access_type: AccessType::Filesystem,
            filesystem: Some(FilesystemType::Ext4),
            mkfs_options: None,
            access_modes: vec![AccessMode::SingleNodeWriter],
            provisioning: Provisioning::Thin,
            content_source: None,
            claim: None,
            deletion_requested: false,
        };
        let mut object = PoolVolume::new(&format!("{}-{volume}", self.name), spec);
        object.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        object
    }

    async fn create(&self, wish: &PoolVolume) -> PoolVolume {
        let made = self.volumes.create(&PostParams::default(), wish).await;
        made.unwrap()
    }

    /// A volume that can be used.
    async fn volume(&self, volume: &str, size: Bytes) -> PoolVolume {
        self.made(&self.wish(volume, size)).await
    }

    /// A raw block volume that can be used.
    async fn block_volume(&self, volume: &str, size: Bytes) -> PoolVolume {
        let mut wish = self.wish(volume, size);
        wish.spec.access_type = AccessType::Block;
        wish.spec.filesystem = None;
        self.made(&wish).await
    }

    async fn made(&self, wish: &PoolVolume) -> PoolVolume {
        let object = self.create(wish).await;
        let ready = said(ConditionType::Ready, "True", "AsDesired");
        self.until(&object.name_any(), "to be ready", ready).await
    }

    async fn get(&self, volume: &str) -> PoolVolume {
        self.volumes.get(volume).await.unwrap()
    }

    /// Waits until the object is as expected.
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

    /// Waits until the pool is said to be as expected.
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

    async fn patch(&self, volume: &str, patch: Value) {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.volumes.patch(volume, &parameters, &patch);
        patched.await.unwrap();
    }

    /// Writes a part of a volume's status in the agent's place, while it is away.
    async fn write_status(&self, volume: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let parameters = PatchParams::default();
        let written = self.volumes.patch_status(volume, &parameters, &patch);
        written.await.unwrap();
    }

    /// Takes the finalizer off and deletes the object by force: what the controller never does
    /// before the data is gone.
    async fn forget(&self, volume: &str) {
        self.patch(volume, json!({"metadata": {"finalizers": []}}))
            .await;
        let deleted = self.volumes.delete(volume, &DeleteParams::default()).await;
        deleted.unwrap();
        eventually(
            &format!("{volume} to be forgotten"),
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
        let reclaimed = said(ConditionType::Reclaimed, "True", "AsDesired");
        let object = self.until(volume, "to be reclaimed", reclaimed).await;
        assert_eq!(status(&object).reserved, None);
        self.forget(volume).await;
    }

    /// Where the images of the pool are, seen on the node.
    fn images(&self) -> PathBuf {
        let pools = self.driver.storage_root().join("pools");
        pools.join(format!("uid-of-{}", self.name)).join("images")
    }

    /// Runs a script on the node, with the folder of the images as `$0`.
    async fn shell(&self, script: &str, arguments: &[&str]) -> String {
        let mut command = self.driver.command_on_node("sh");
        command
            .args(["-euc", script])
            .arg(self.images())
            .args(arguments);
        output(command, SOON).await
    }

    /// Ends the test: every volume goes, and then nothing must be left.
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

/// Whether a condition is said so.
fn said(kind: ConditionType, status: &str, reason: &str) -> impl Fn(&PoolVolume) -> bool {
    move |object| {
        let conditions = object.status.as_ref().map(|status| &status.conditions[..]);
        condition::find(conditions.unwrap_or_default(), kind)
            .is_some_and(|found| found.status == status && found.reason == reason)
    }
}
