//! A volume of the shared driver with the paths that kubelet would pass for it.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use cistern_crds::Bytes;
use cistern_e2e::{Driver, eventually, mounts::attached_below, process::run};
use cistern_proto::csi::v1::{
    CreateVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
    VolumeUsage,
    volume_capability::{AccessType, access_mode::Mode},
};
use kube::ResourceExt as _;
use tonic::Status;

use crate::{POOL, SIZE, block, create, create_request, delete, mounted, objects, range, shared};

/// How long each operation on the node may take.
const SOON: Duration = Duration::from_mins(2);

/// Every kind of volume: its name, its capability, and a size that it can have.
pub(crate) fn kinds() -> [(&'static str, VolumeCapability, Bytes); 4] {
    let filesystem = |name| mounted(name, Mode::SingleNodeWriter);
    [
        ("ext4", filesystem("ext4"), SIZE),
        ("xfs", filesystem("xfs"), Bytes::mib(320)),
        ("btrfs", filesystem("btrfs"), Bytes::mib(320)),
        ("block", block(), SIZE),
    ]
}

/// A volume that was created.
pub(crate) struct Volume {
    pub(crate) id: String,
    /// The capability of its creation, and of each call.
    pub(crate) capability: VolumeCapability,
    /// Its own folder, below kubelet's root folder.
    pub(crate) folder: PathBuf,
    /// The volume context of its PersistentVolume, and of each call.
    pub(crate) context: BTreeMap<String, String>,
    driver: &'static Driver,
    uid: String,
}

impl Volume {
    /// Creates a volume, and an empty directory as its staging path.
    pub(crate) async fn new(id: &str, capability: VolumeCapability, size: Bytes) -> Self {
        let mut request = create_request(id);
        request.capacity_range = range(size, Bytes::ZERO);
        request.volume_capabilities = vec![capability];
        Self::from_request(request).await
    }

    /// Creates a volume from a request, and an empty directory as its staging path.
    pub(crate) async fn from_request(request: CreateVolumeRequest) -> Self {
        let capability = request.volume_capabilities[0].clone();
        let created = create(request).await.unwrap();
        let id = &created.volume_id;
        let driver = shared().await;
        let this = Self {
            id: id.clone(),
            capability,
            folder: driver.kubelet_root().join(id),
            context: created.volume_context,
            driver,
            uid: objects().await.get(id).await.unwrap().uid().unwrap(),
        };
        std::fs::create_dir_all(this.folder.join("staging")).unwrap();
        this
    }

    /// A path in its folder.
    pub(crate) fn path(&self, part: &str) -> String {
        self.folder.join(part).to_str().unwrap().to_owned()
    }

    /// Its image, as the node sees it.
    pub(crate) fn image(&self) -> String {
        let pool = self.driver.storage_root().join("pools");
        let images = pool.join(format!("uid-of-{POOL}")).join("images");
        images.join(&self.uid).to_str().unwrap().to_owned()
    }

    pub(crate) fn is_block(&self) -> bool {
        matches!(self.capability.access_type, Some(AccessType::Block(_)))
    }

    pub(crate) fn stage_request(&self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.path("staging"),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..NodeStageVolumeRequest::default()
        }
    }

    pub(crate) fn publish_request(&self, target: &str) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.path("staging"),
            target_path: self.path(target),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..NodePublishVolumeRequest::default()
        }
    }

    pub(crate) async fn stage(&self) -> Result<(), Status> {
        self.stage_as(self.stage_request()).await
    }

    pub(crate) async fn stage_as(&self, request: NodeStageVolumeRequest) -> Result<(), Status> {
        let mut client = self.driver.node_client().await;
        client.node_stage_volume(request).await.map(drop)
    }

    pub(crate) async fn publish(&self, target: &str, readonly: bool) -> Result<(), Status> {
        let mut request = self.publish_request(target);
        request.readonly = readonly;
        self.publish_as(request).await
    }

    pub(crate) async fn publish_as(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        let mut client = self.driver.node_client().await;
        client.node_publish_volume(request).await.map(drop)
    }

    pub(crate) async fn unpublish(&self, target: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: self.path(target),
        };
        let mut client = self.driver.node_client().await;
        client.node_unpublish_volume(request).await.map(drop)
    }

    pub(crate) async fn unstage(&self) -> Result<(), Status> {
        self.unstage_from("staging").await
    }

    pub(crate) async fn unstage_from(&self, staging: &str) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: self.path(staging),
        };
        let mut client = self.driver.node_client().await;
        client.node_unstage_volume(request).await.map(drop)
    }

    pub(crate) async fn statistics(&self, path: &str) -> Result<Vec<VolumeUsage>, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: path.to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        };
        let mut client = self.driver.node_client().await;
        let answer = client.node_get_volume_stats(request).await?;
        Ok(answer.into_inner().usage)
    }

    /// Runs a script on the node, in the folder of the volume. Returns its output, or its error output.
    pub(crate) async fn shell(&self, script: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.driver.command_on_node("sh");
        let script = format!("cd \"$0\"; {script}");
        command.args(["-euc", &script]).arg(&self.folder);
        command.args(arguments);
        let output = run(command, SOON).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// Writes into the volume as a pod would.
    pub(crate) async fn write(&self, target: &str, data: &str) -> Result<(), String> {
        let script = if self.is_block() {
            "printf '%-4096s' \"$2\" | dd of=\"$1\" bs=4096 seek=1 conv=notrunc status=none"
        } else {
            "printf '%s' \"$2\" > \"$1/file\""
        };
        self.shell(script, &[target, data]).await.map(drop)
    }

    /// Syncs the written data to the disk.
    pub(crate) async fn sync(&self, target: &str) {
        let file = if self.is_block() { "" } else { "/file" };
        let synced = self.shell("sync \"$1$2\"", &[target, file]).await;
        synced.unwrap();
    }

    /// Stages and publishes the volume.
    pub(crate) async fn use_at(&self, target: &str) {
        self.stage().await.unwrap();
        self.publish(target, false).await.unwrap();
    }

    /// Unpublishes, unstages and deletes the volume.
    pub(crate) async fn end_use_at(self, target: &str) {
        self.unpublish(target).await.unwrap();
        self.unstage().await.unwrap();
        self.end().await;
    }

    /// What [`Self::write`] wrote.
    pub(crate) async fn read(&self, target: &str) -> String {
        let script = if self.is_block() {
            "dd if=\"$1\" bs=4096 skip=1 count=1 status=none"
        } else {
            "cat \"$1/file\""
        };
        self.shell(script, &[target]).await.unwrap()
    }

    /// Number of stacked mounts at a path in its folder.
    pub(crate) fn mounts_at(&self, path: &str) -> usize {
        let mounts = self.driver.mounts_below(&self.folder);
        let at = self.folder.join(path);
        mounts.iter().filter(|mount| **mount == at).count()
    }

    /// Waits until no loop device uses its image, and nothing is mounted in its folder.
    pub(crate) async fn until_nothing_is_attached(&self) {
        let what = format!("{} to have no mount and no loop device", self.id);
        eventually(&what, SOON, async || {
            let mut left = self.driver.mounts_below(&self.folder);
            let images = attached_below(&self.driver.storage_root());
            left.extend(images.into_iter().filter(|path| path.ends_with(&self.uid)));
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        })
        .await;
    }

    /// Deletes the volume once it is no longer in use.
    pub(crate) async fn end(self) {
        let what = format!("{} to be deleted", self.id);
        eventually(&what, SOON, async || {
            let deleted = delete(&self.id).await;
            deleted.map_err(|status: Status| status.to_string())
        })
        .await;
        self.until_nothing_is_attached().await;
    }
}
