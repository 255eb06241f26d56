//! The CSI Node service, together with the agent of its node.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_crds::{Bytes, PoolVolume, names};
use cistern_e2e::{ControlPlane, eventually, patience};
use cistern_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
    VolumeUsage,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use kube::ResourceExt as _;
use rustix::process::Signal;
use tonic::{Code, Request, Status};

use crate::{Fixture, SOON};

/// A volume with the paths that kubelet would pass for it.
pub(crate) struct KubeletVolume<'a> {
    node: &'a Fixture,
    pub(crate) volume: String,
    pub(crate) staging: PathBuf,
    /// The volume context, as in its PersistentVolume.
    context: BTreeMap<String, String>,
    access_type: cistern_crds::AccessType,
    /// The Secret that its StorageClass names.
    pub(crate) secrets: BTreeMap<String, String>,
}

impl<'a> KubeletVolume<'a> {
    pub(crate) async fn new(node: &'a Fixture) -> Self {
        Self::of(node, &node.volume("one", Bytes::mib(64)).await)
    }

    pub(crate) fn of(node: &'a Fixture, object: &PoolVolume) -> Self {
        Self::at(node, object, "staging")
    }

    /// For tests with several volumes, each of which needs its own staging path.
    pub(crate) fn at(node: &'a Fixture, object: &PoolVolume, staging: &str) -> Self {
        let staging = node.driver.kubelet_root().join(staging);
        std::fs::create_dir_all(&staging).unwrap();
        let image = crate::status(object).image.unwrap().uid;
        Self {
            node,
            volume: object.name_any(),
            staging,
            context: [(names::IMAGE_CONTEXT.to_owned(), image)].into(),
            access_type: object.spec.access_type,
            secrets: BTreeMap::new(),
        }
    }

    fn capability(&self, flags: &[&str]) -> VolumeCapability {
        match self.access_type {
            cistern_crds::AccessType::Filesystem => capability(flags),
            cistern_crds::AccessType::Block => VolumeCapability {
                access_type: Some(AccessType::Block(BlockVolume {})),
                ..capability(&[])
            },
        }
    }

    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.node.driver.kubelet_root().join(name)
    }

    pub(crate) async fn stage(&self, flags: &[&str]) -> Result<(), Status> {
        self.stage_as(self.capability(flags)).await
    }

    pub(crate) async fn stage_as(&self, capability: VolumeCapability) -> Result<(), Status> {
        let request = self.stage_request(capability);
        repeated(async || {
            let mut client = self.node.driver.node_client().await;
            client.node_stage_volume(request.clone()).await.map(drop)
        })
        .await
    }

    /// Stages the volume for a caller with a deadline.
    pub(crate) async fn stage_within(&self, deadline: Duration) -> Result<(), Status> {
        let mut client = self.node.driver.node_client().await;
        let mut request = Request::new(self.stage_request(self.capability(&[])));
        request.set_timeout(deadline);
        client.node_stage_volume(request).await.map(drop)
    }

    fn stage_request(&self, capability: VolumeCapability) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: text(&self.staging),
            volume_capability: Some(capability),
            volume_context: self.context.clone(),
            secrets: self.secrets.clone(),
            ..NodeStageVolumeRequest::default()
        }
    }

    pub(crate) async fn publish(
        &self,
        target: &str,
        flags: &[&str],
        readonly: bool,
    ) -> Result<(), Status> {
        self.publish_as(target, readonly, self.capability(flags))
            .await
    }

    pub(crate) async fn publish_in(
        &self,
        target: &str,
        mode: Mode,
        readonly: bool,
    ) -> Result<(), Status> {
        let access_mode = Some(AccessMode { mode: mode.into() });
        let capability = VolumeCapability {
            access_mode,
            ..self.capability(&[])
        };
        self.publish_as(target, readonly, capability).await
    }

    pub(crate) async fn publish_as(
        &self,
        target: &str,
        readonly: bool,
        capability: VolumeCapability,
    ) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: text(&self.staging),
            target_path: text(&self.target(target)),
            volume_capability: Some(capability),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        repeated(async || {
            let mut client = self.node.driver.node_client().await;
            client.node_publish_volume(request.clone()).await.map(drop)
        })
        .await
    }

    /// Grows the volume at its target, and returns its size in bytes.
    pub(crate) async fn expand(&self, target: &str) -> Result<i64, Status> {
        let request = NodeExpandVolumeRequest {
            volume_id: self.volume.clone(),
            volume_path: text(&self.target(target)),
            secrets: self.secrets.clone(),
            ..NodeExpandVolumeRequest::default()
        };
        repeated(async || {
            let mut client = self.node.driver.node_client().await;
            let answer = client.node_expand_volume(request.clone()).await?;
            Ok(answer.into_inner().capacity_bytes)
        })
        .await
    }

    pub(crate) async fn statistics(&self, path: &Path) -> Result<Vec<VolumeUsage>, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: self.volume.clone(),
            volume_path: text(path),
            ..NodeGetVolumeStatsRequest::default()
        };
        repeated(async || {
            let mut client = self.node.driver.node_client().await;
            let answer = client.node_get_volume_stats(request.clone()).await?;
            Ok(answer.into_inner().usage)
        })
        .await
    }

    pub(crate) async fn unpublish(&self, target: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: self.volume.clone(),
            target_path: text(&self.target(target)),
        };
        repeated(async || {
            let mut client = self.node.driver.node_client().await;
            client
                .node_unpublish_volume(request.clone())
                .await
                .map(drop)
        })
        .await
    }

    pub(crate) async fn unstage(&self) -> Result<(), Status> {
        repeated(async || self.unstage_once().await).await
    }

    pub(crate) async fn unstage_once(&self) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: text(&self.staging),
        };
        let mut client = self.node.driver.node_client().await;
        client.node_unstage_volume(request).await.map(drop)
    }
}

/// Repeats a call while it fails because the machine is slow, as kubelet repeats it. On an emulated processor, a call and the
/// probe of a pool may take longer than the driver lets them. Elsewhere there is one call.
pub(crate) async fn repeated<T>(
    mut call: impl AsyncFnMut() -> Result<T, Status>,
) -> Result<T, Status> {
    if patience() == 1 {
        return call().await;
    }
    eventually("a call to end in time", SOON, async || match call().await {
        Err(status) if is_slow(&status) => Err(status.to_string()),
        answer => Ok(answer),
    })
    .await
}

fn is_slow(status: &Status) -> bool {
    let is_of_probe = status
        .message()
        .contains("a probe of the pool takes longer");
    is_of_probe || status.code() == Code::DeadlineExceeded
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

pub(crate) fn capability(flags: &[&str]) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume {
            mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            ..MountVolume::default()
        })),
    }
}

pub(crate) fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

/// A second publish of a volume that is already published at `a` on the same node: for every mode, with
/// the same or another target, and with the same or other arguments.
///
/// A volume created as `SINGLE_NODE_WRITER` accepts all of them, because kubelet used that mode for
/// `ReadWriteOnce` before the newer modes were announced (VCP-09).
// Shows: CAP-15, NPV-09, NSV-08, SAN-20, VCP-07, VCP-08, VCP-09.
#[tokio::test]
async fn npv_23_npv_24_npv_26_to_29_a_second_publish_follows_the_table_in_every_mode() {
    // CAP-15, VCP-07, VCP-08, SAN-20.
    let node = Fixture::start("agent-modes").await;
    let kubelet = KubeletVolume::new(&node).await;
    kubelet.stage(&[]).await.unwrap();
    for (mode, elsewhere) in [
        (Mode::SingleNodeWriter, Code::FailedPrecondition),
        (Mode::SingleNodeSingleWriter, Code::FailedPrecondition),
        (Mode::SingleNodeMultiWriter, Code::Ok),
    ] {
        let publish =
            async |target: &str, readonly| code(kubelet.publish_in(target, mode, readonly).await);
        assert_eq!(publish("a", false).await, Code::Ok, "{mode:?}");
        assert_eq!(publish("a", false).await, Code::Ok, "{mode:?}");
        assert_eq!(publish("a", true).await, Code::AlreadyExists, "{mode:?}");
        for readonly in [false, true] {
            assert_eq!(publish("b", readonly).await, elsewhere, "{mode:?}");
            kubelet.unpublish("b").await.unwrap();
        }
        kubelet.unpublish("a").await.unwrap();
    }
    // NSV-08, NPV-09: multi-node modes are not supported.
    for mode in [Mode::MultiNodeReaderOnly, Mode::MultiNodeMultiWriter] {
        let refused = kubelet.publish_in("a", mode, true).await;
        assert_eq!(code(refused), Code::FailedPrecondition);
    }
    kubelet.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn nup_07_pods_of_one_node_share_a_volume_and_end_in_any_order() {
    let node = Fixture::start("agent-pods").await;
    let kubelet = KubeletVolume::new(&node).await;
    kubelet.stage(&[]).await.unwrap();
    let mode = Mode::SingleNodeMultiWriter;
    kubelet.publish_in("a", mode, false).await.unwrap();
    kubelet.publish_in("b", mode, true).await.unwrap();
    let (a, b) = (text(&kubelet.target("a")), text(&kubelet.target("b")));
    let script = "echo data > $1/file && test data = \"$(cat $2/file)\" && ! touch $2/file";
    node.shell(script, &[&a, &b]).await;
    // kubelet repeats its calls for running pods.
    kubelet.publish_in("a", mode, false).await.unwrap();
    kubelet.publish_in("b", mode, true).await.unwrap();
    kubelet.unpublish("a").await.unwrap();
    node.shell("test data = \"$(cat $1/file)\"", &[&b]).await;
    // A pod that needs exclusive access waits for the end of the last other pod.
    let alone = Mode::SingleNodeSingleWriter;
    let refused = kubelet.publish_in("c", alone, false).await;
    assert_eq!(code(refused), Code::FailedPrecondition);
    kubelet.unpublish("b").await.unwrap();
    kubelet.publish_in("c", alone, false).await.unwrap();
    kubelet.unpublish("c").await.unwrap();
    kubelet.unstage().await.unwrap();
    node.finish().await;
}

// Shows: NPV-19, NPV-22.
#[tokio::test]
async fn npv_24_npv_26_a_publish_with_another_target_or_other_options_is_not_a_repeat() {
    let node = Fixture::start("agent-publish").await;
    let kubelet = KubeletVolume::new(&node).await;
    // NPV-19: nothing is staged.
    assert_eq!(
        code(kubelet.publish("a", &[], false).await),
        Code::FailedPrecondition
    );
    assert!(!kubelet.target("a").exists(), "NPV-22");

    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    assert_eq!(
        code(kubelet.publish("a", &[], true).await),
        Code::AlreadyExists
    );
    assert_eq!(
        code(kubelet.publish("a", &["relatime"], false).await),
        Code::AlreadyExists
    );
    assert_eq!(
        code(kubelet.publish("b", &[], false).await),
        Code::FailedPrecondition
    );
    assert_eq!(
        code(kubelet.publish("b", &[], true).await),
        Code::FailedPrecondition
    );
    assert!(!kubelet.target("b").exists(), "NPV-22");

    kubelet.unpublish("a").await.unwrap();
    kubelet.publish("b", &[], true).await.unwrap();
    let target = text(&kubelet.target("b"));
    node.shell("! touch $1/file 2>/dev/null", &[&target]).await;
    for _ in 0..2 {
        kubelet.unpublish("b").await.unwrap();
        kubelet.unstage().await.unwrap();
    }
    node.finish().await;
}

// Shows: NSV-05, NSV-06.
#[tokio::test]
async fn vcp_13_sec_05_an_unsupported_mount_option_is_refused_and_not_revealed() {
    let node = Fixture::start("agent-options").await;
    let kubelet = KubeletVolume::new(&node).await;
    let status = kubelet.stage(&["MARKER"]).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(!status.message().contains("MARKER"), "{status}");
    kubelet.stage(&["strictatime", "commit=30"]).await.unwrap();
    // NSV-05, NSV-06.
    kubelet.stage(&["strictatime", "commit=30"]).await.unwrap();
    assert_eq!(code(kubelet.stage(&[]).await), Code::AlreadyExists);
    let mounts = node
        .shell("grep $1 /proc/self/mountinfo", &[&text(&kubelet.staging)])
        .await;
    assert!(
        !mounts.contains("noatime") && mounts.contains("commit=30"),
        "{mounts}"
    );
    kubelet.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn ngs_04_ngs_05_ngs_09_statistics_match_the_volume_and_exist_only_at_its_paths() {
    let node = Fixture::start("agent-statistics").await;
    let kubelet = KubeletVolume::new(&node).await;
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    let usage = kubelet.statistics(&kubelet.target("a")).await.unwrap();
    assert_eq!(usage, kubelet.statistics(&kubelet.staging).await.unwrap());
    let df = "df --block-size=1 --output=size,avail $1 | tail -1";
    let expected = node.shell(df, &[&text(&kubelet.staging)]).await;
    let expected: Vec<i64> = expected
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    assert_eq!([usage[0].total, usage[0].available], expected[..]);
    for wrong in [
        node.driver.kubelet_root(),
        "some/path".into(),
        "/nowhere".into(),
    ] {
        assert_eq!(code(kubelet.statistics(&wrong).await), Code::NotFound);
    }
    kubelet.unpublish("a").await.unwrap();
    kubelet.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn pods_are_torn_down_while_the_api_server_is_away() {
    let control_plane = ControlPlane::start().await;
    let node = Fixture::start_with(&control_plane, "agent-alone").await;
    let kubelet = KubeletVolume::new(&node).await;
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    control_plane.apiserver().signal(Signal::STOP);
    // kubelet repeats its calls for a running pod, and then the pod ends.
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    kubelet.unpublish("a").await.unwrap();
    kubelet.unstage().await.unwrap();
    control_plane.apiserver().signal(Signal::CONT);
    node.finish().await;
}

// Shows: NUS-07: unstage needs neither the lost pool nor the memory of the previous process.
#[tokio::test]
async fn nsv_05_npv_06_a_pod_that_runs_keeps_its_filesystem_when_its_pool_is_lost() {
    let node = Fixture::start("agent-lost-pool").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    keeps_its_volume(node, &object).await;
}

#[tokio::test]
async fn nsv_05_npv_06_a_pod_that_runs_keeps_its_device_when_its_pool_is_lost() {
    let node = Fixture::start("agent-lost-devices").await;
    let object = node.block_volume("one", Bytes::mib(64)).await;
    keeps_its_volume(node, &object).await;
}

/// kubelet repeats its calls for running pods after each of its restarts; an error would take the
/// volume away from them.
async fn keeps_its_volume(mut node: Fixture, object: &PoolVolume) {
    let mode = Mode::SingleNodeMultiWriter;
    {
        let kubelet = KubeletVolume::of(&node, object);
        kubelet.stage(&[]).await.unwrap();
        kubelet.publish_in("a", mode, false).await.unwrap();
    }
    let images = node.images();
    let pool = images.parent().unwrap();
    let (file, elsewhere) = (pool.with_extension("img"), pool.with_extension("lost"));
    node.shell("umount --lazy $1", &[&text(pool)]).await;
    std::fs::rename(&file, &elsewhere).unwrap();
    node.driver.restart_node().await;
    let is_lost = |pool: &cistern_crds::NodePoolStatus| !pool.is_ready();
    node.pool_until("to be lost", is_lost).await;

    let kubelet = KubeletVolume::of(&node, object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish_in("a", mode, false).await.unwrap();
    assert_eq!(
        code(kubelet.publish_in("a", mode, true).await),
        Code::AlreadyExists
    );
    // A new pod can use the staged volume as well.
    kubelet.publish_in("b", mode, false).await.unwrap();
    kubelet.statistics(&kubelet.target("b")).await.unwrap();
    kubelet.unpublish("a").await.unwrap();
    kubelet.unpublish("b").await.unwrap();
    kubelet.unstage().await.unwrap();
    // But nothing is staged again from a missing pool.
    assert_eq!(code(kubelet.stage(&[]).await), Code::FailedPrecondition);
    assert_eq!(std::fs::read_dir(&kubelet.staging).unwrap().count(), 0);

    std::fs::rename(&elsewhere, &file).unwrap();
    node.driver.ready_pool(&node.name).await;
    node.finish().await;
}
