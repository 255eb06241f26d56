//! Expansion of a volume on its node: first the ledger, then the image, then the device or filesystem
//! in use.

use std::path::PathBuf;

use cistern_crds::{Bytes, ConditionType, FilesystemType, PoolVolume};
use cistern_e2e::environment::variable;
use cistern_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeStageVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use futures::{StreamExt as _, future::join_all};
use kube::{
    ResourceExt as _,
    api::{WatchEvent, WatchParams},
};
use serde_json::json;
use tonic::{Code, Status};

use crate::{
    Fixture, has_condition,
    node_service::{KubeletVolume, repeated, text},
    status,
};

const SMALL: Bytes = Bytes::mib(64);
const LARGE: Bytes = Bytes::mib(200);

/// Requests a size, as the controller does.
async fn request_size(node: &Fixture, volume: &str, size: Bytes) {
    node.patch(volume, json!({"spec": {"size": size}})).await;
}

fn has_size(size: Bytes) -> impl Fn(&PoolVolume) -> bool {
    move |object| status(object).size == Some(size)
}

/// Whether an expansion is refused or completed.
fn is_answered(object: &PoolVolume) -> bool {
    object.refused_growth().is_some() || has_size(object.spec.size)(object)
}

/// Size of a volume's image file, in bytes.
async fn image_size(node: &Fixture, object: &PoolVolume) -> u64 {
    let image = status(object).image.unwrap().uid;
    let size = node.shell("stat --format %s $0/$1", &[&image]).await;
    size.trim().parse().unwrap()
}

#[tokio::test]
async fn r05_an_expansion_is_reserved_first_takes_two_writes_and_reduces_the_published_room() {
    let node = Fixture::start("agent-expansion").await;
    let object = node.volume("one", SMALL).await;
    let name = object.name_any();
    let before = node
        .pool_until("to hold the volume", |pool| pool.reserved == SMALL)
        .await;
    let version = object.resource_version().unwrap();
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = Box::pin(node.volumes.watch(&only, &version).await.unwrap());

    request_size(&node, &name, LARGE).await;
    let grown = node.until(&name, "to grow", has_size(LARGE)).await;
    assert_eq!(image_size(&node, &grown).await, LARGE.0);
    let more = Bytes(LARGE.0 - SMALL.0);
    let after = node
        .pool_until("to hold the growth", |pool| pool.reserved == LARGE)
        .await;
    assert_eq!(after.thin_room, before.thin_room.saturating_sub(more));
    assert_eq!(after.thick_room, before.thick_room.saturating_sub(more));

    let mut seen = Vec::new();
    while seen.len() < 3 {
        if let WatchEvent::Modified(object) = events.next().await.unwrap().unwrap() {
            let status = status(&object);
            seen.push((object.spec.size, status.reserved, status.size));
        }
    }
    let (small, large) = (Some(SMALL), Some(LARGE));
    let steps = [
        (LARGE, small, small), // requested by the controller
        (LARGE, large, small), // admitted
        (LARGE, large, large), // grown
    ];
    assert_eq!(seen, steps);
    node.finish().await;
}

#[tokio::test]
async fn cev_07_r12_an_expansion_that_does_not_fit_names_the_largest_size_and_reserves_nothing() {
    let node = Fixture::start("agent-no-growth").await;
    let object = node.volume("one", SMALL).await;
    let other = node.volume("other", SMALL).await;
    let name = object.name_any();
    let both = Bytes(2 * SMALL.0);
    let before = node
        .pool_until("to hold both", |pool| pool.reserved == both)
        .await;
    let largest = Bytes(before.thin_room.0 + SMALL.0).round_down_to_mib();
    for (size, reason) in [
        (largest.saturating_add(Bytes::mib(1)), "NoSpace"),
        (Bytes::gib(5), "TooLarge"),
    ] {
        request_size(&node, &name, size).await;
        let refused = has_condition(ConditionType::Expanded, "False", reason);
        let refused = node.until(&name, "to be refused", refused).await;
        let message = &refused.refused_growth().unwrap().message;
        assert!(message.contains(&format!("grow to {largest}")), "{message}");
        assert!(message.contains(&size.to_string()), "{message}");
        let status = status(&refused);
        assert_eq!((status.reserved, status.size), (Some(SMALL), Some(SMALL)));
        assert_eq!(image_size(&node, &refused).await, SMALL.0);
    }
    // After the request is withdrawn, the volume is ready and still reports why it did not grow.
    request_size(&node, &name, SMALL).await;
    let withdrawn = |object: &PoolVolume| {
        status(object).observed_generation == object.metadata.generation
            && has_condition(ConditionType::Ready, "True", "Reconciled")(object)
            && has_condition(ConditionType::Expanded, "False", "TooLarge")(object)
    };
    node.until(&name, "to be ready at its old size", withdrawn)
        .await;
    let after = node.pool().await.unwrap();
    assert_eq!(
        (after.reserved, after.thin_room),
        (before.reserved, before.thin_room)
    );

    // The volume can grow to the named size, and then nothing else fits.
    request_size(&node, &name, largest).await;
    node.until(&name, "to grow", has_size(largest)).await;
    request_size(&node, &other.name_any(), LARGE).await;
    let refused = has_condition(ConditionType::Expanded, "False", "NoSpace");
    node.until(&other.name_any(), "to be refused", refused)
        .await;
    request_size(&node, &other.name_any(), SMALL).await;
    node.finish().await;
}

#[tokio::test]
async fn r12_of_ten_concurrent_expansions_as_many_succeed_as_fit() {
    let node = Fixture::start("agent-growing-crowd").await;
    let names = join_all((0..10).map(async |number| {
        let object = node.volume(&number.to_string(), SMALL).await;
        object.name_any()
    }))
    .await;
    let room = node
        .pool_until("to hold all", |pool| pool.reserved.0 == 10 * SMALL.0)
        .await
        .thin_room;
    // Four of the expansions fit.
    let more = Bytes(room.0 / 4).round_down_to_mib();
    let size = SMALL.saturating_add(more);
    let answers = join_all(names.iter().map(async |name| {
        request_size(&node, name, size).await;
        node.until(name, "to be answered", is_answered).await
    }))
    .await;
    let grown = answers
        .iter()
        .filter(|object| has_size(size)(object))
        .count();
    assert_eq!(grown, 4);
    let expected = Bytes(10 * SMALL.0 + 4 * more.0);
    node.pool_until("to publish its reservations", |pool| {
        pool.reserved == expected
    })
    .await;
    for object in answers.iter().filter(|object| !has_size(size)(object)) {
        request_size(&node, &object.name_any(), SMALL).await;
    }
    node.finish().await;
}

#[tokio::test]
async fn r02_an_expansion_is_completed_after_the_agent_dies_at_any_step() {
    let mut node = Fixture::start("agent-growth-death").await;
    let reserved = node.volume("reserved", SMALL).await.name_any();
    let truncated = node.volume("truncated", SMALL).await;
    let forgotten = node.volume("forgotten", SMALL).await;

    node.driver.kill_node();
    // It died after it had reserved the bytes …
    request_size(&node, &reserved, LARGE).await;
    node.write_status(&reserved, json!({"reserved": LARGE}))
        .await;
    // … after it had grown the image …
    request_size(&node, &truncated.name_any(), LARGE).await;
    node.write_status(&truncated.name_any(), json!({"reserved": LARGE}))
        .await;
    // … or its status was lost, because the cluster was restored to an older state.
    for object in [&truncated, &forgotten] {
        let image = status(object).image.unwrap().uid;
        let size = LARGE.0.to_string();
        node.shell("truncate --size $2 $0/$1", &[&image, &size])
            .await;
    }
    node.driver.start_node().await;

    for name in [&reserved, &truncated.name_any(), &forgotten.name_any()] {
        let object = node.until(name, "to have grown", has_size(LARGE)).await;
        assert_eq!(status(&object).reserved, Some(LARGE));
        assert_eq!(image_size(&node, &object).await, LARGE.0);
    }
    let all = Bytes(3 * LARGE.0);
    node.pool_until("to hold all", |pool| pool.reserved == all)
        .await;
    node.finish().await;
}

#[tokio::test]
async fn a_retiring_pool_refuses_an_expansion_which_has_to_be_requested_again() {
    let node = Fixture::start("agent-growth-closed").await;
    let name = node.volume("one", SMALL).await.name_any();
    let mut pools = node.driver.storage_node().await.spec.pools;
    pools[0].retiring = true;
    node.driver.set_pools(pools.clone()).await;
    node.pool_until("to retire", |pool| pool.thin_room == Bytes::ZERO)
        .await;
    request_size(&node, &name, LARGE).await;
    let refused = has_condition(ConditionType::Expanded, "False", "PoolClosed");
    let object = node.until(&name, "to be refused", refused).await;
    assert_eq!(status(&object).reserved, Some(SMALL));

    pools[0].retiring = false;
    node.driver.set_pools(pools).await;
    node.pool_until("to be open again", |pool| pool.thin_room > Bytes::ZERO)
        .await;
    // A refused size is not applied later: it has to be requested again.
    assert!(node.get(&name).await.refused_growth().is_some());
    request_size(&node, &name, SMALL).await;
    request_size(&node, &name, LARGE).await;
    node.until(&name, "to grow", has_size(LARGE)).await;
    node.finish().await;
}

/// A staged volume and its staging path, as kubelet uses them.
struct StagedVolume<'a> {
    node: &'a Fixture,
    volume: String,
    staging: PathBuf,
}

impl<'a> StagedVolume<'a> {
    async fn new(node: &'a Fixture, filesystem: FilesystemType, size: Bytes) -> Self {
        let mut desired = node.desired_volume(filesystem.as_str(), size);
        desired.spec.filesystem = Some(filesystem);
        let object = node.create(&desired).await;
        let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
        let object = node.until(&object.name_any(), "to be ready", ready).await;
        let staging = node.driver.kubelet_root().join(filesystem.as_str());
        std::fs::create_dir_all(&staging).unwrap();
        let this = Self {
            node,
            volume: object.name_any(),
            staging,
        };
        this.stage().await;
        this
    }

    async fn stage(&self) {
        let request = NodeStageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: self.path(),
            volume_capability: Some(capability(AccessType::Mount(MountVolume::default()))),
            ..NodeStageVolumeRequest::default()
        };
        let staged = repeated(async || {
            let mut client = self.node.driver.node_client().await;
            client.node_stage_volume(request.clone()).await
        });
        staged.await.unwrap();
    }

    async fn unstage(&self) {
        let request = NodeUnstageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: self.path(),
        };
        let unstaged = repeated(async || {
            let mut client = self.node.driver.node_client().await;
            client.node_unstage_volume(request.clone()).await
        });
        unstaged.await.unwrap();
    }

    fn path(&self) -> String {
        self.staging.to_str().unwrap().to_owned()
    }

    fn request(&self, required: Bytes) -> NodeExpandVolumeRequest {
        NodeExpandVolumeRequest {
            volume_id: self.volume.clone(),
            volume_path: self.path(),
            capacity_range: Some(CapacityRange {
                required_bytes: required.to_i64(),
                limit_bytes: 0,
            }),
            ..NodeExpandVolumeRequest::default()
        }
    }

    async fn expand(&self, request: NodeExpandVolumeRequest) -> Result<i64, Status> {
        repeated(async || {
            let mut client = self.node.driver.node_client().await;
            let answer = client.node_expand_volume(request.clone()).await?;
            Ok(answer.into_inner().capacity_bytes)
        })
        .await
    }

    /// Size of the filesystem in bytes, as a pod sees it.
    async fn filesystem_size(&self) -> u64 {
        let df = "df --block-size=1 --output=size $1 | tail -1";
        let size = self.node.shell(df, &[&self.path()]).await;
        size.trim().parse().unwrap()
    }

    async fn until(&self, what: &str, expected: impl Fn(&PoolVolume) -> bool) {
        self.node.until(&self.volume, what, expected).await;
    }
}

fn capability(access_type: AccessType) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(access_type),
    }
}

// Shows: NEV-02, NEV-03, NEV-04, NEV-05, NEV-07, NEV-08, NEV-09, NEV-12, NEV-13, NEV-14, NEV-15.
// Shows: NEV-16, NEV-17.
#[tokio::test]
async fn nev_01_to_nev_18_a_staged_xfs_grows_and_every_wrong_call_has_its_code() {
    let node = Fixture::start("agent-expand").await;
    let staged = StagedVolume::new(&node, FilesystemType::Xfs, Bytes::mib(300)).await;
    let (before, grown) = (staged.filesystem_size().await, Bytes::mib(400));
    // NEV-07: the image has to grow first. NEV-15: its present size is a success.
    let status = staged.expand(staged.request(grown)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let has_now = staged.expand(staged.request(Bytes::mib(300))).await;
    assert_eq!(has_now.unwrap(), Bytes::mib(300).to_i64());

    request_size(&node, &staged.volume, grown).await;
    staged.until("to grow", has_size(grown)).await;
    assert_eq!(staged.filesystem_size().await, before);
    let change = |change: &dyn Fn(&mut NodeExpandVolumeRequest)| {
        let mut request = staged.request(grown);
        change(&mut request);
        request
    };
    let long = format!("/{}", "x".repeat(4000));
    for (row, request, code) in [
        (
            "NEV-02",
            change(&|r| r.volume_id.clear()),
            Code::InvalidArgument,
        ),
        (
            "NEV-03",
            change(&|r| r.volume_path.clear()),
            Code::InvalidArgument,
        ),
        (
            "NEV-04",
            change(&|r| r.volume_id = "unknown".into()),
            Code::NotFound,
        ),
        (
            "NEV-04 before the path",
            change(&|r| {
                r.volume_id = "unknown".into();
                r.volume_path = "some/path".into();
            }),
            Code::NotFound,
        ),
        (
            "NEV-05",
            change(&|r| r.volume_capability = Some(capability(AccessType::Block(BlockVolume {})))),
            Code::InvalidArgument,
        ),
        (
            "NEV-14",
            change(&|r| r.volume_path = "/nowhere/at/all".into()),
            Code::NotFound,
        ),
        (
            "NEV-14",
            change(&|r| r.volume_path = "some/path".into()),
            Code::NotFound,
        ),
        (
            "NEV-16",
            change(&|r| r.volume_path = long.clone()),
            Code::NotFound,
        ),
        (
            "NEV-07: limit",
            change(&|r| r.capacity_range.as_mut().unwrap().limit_bytes = 1),
            Code::InvalidArgument,
        ),
    ] {
        let status = staged.expand(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{row}: {status}");
    }
    assert_eq!(staged.filesystem_size().await, before);

    // NEV-17, NEV-18, NEV-09, NEV-12, NEV-13; and NEV-08 for the repeat.
    let bare = change(&|r| r.capacity_range = None);
    for request in [bare, staged.request(grown)] {
        assert_eq!(staged.expand(request).await.unwrap(), grown.to_i64());
        assert!(staged.filesystem_size().await > before + (90 << 20));
    }
    staged.unstage().await;
    let status = staged.expand(staged.request(grown)).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    node.finish().await;
}

#[tokio::test]
async fn nev_06_ext4_grows_in_use_or_a_condition_reports_that_it_grows_at_the_next_stage() {
    let node = Fixture::start("agent-expand-ext4").await;
    let staged = StagedVolume::new(&node, FilesystemType::Ext4, SMALL).await;
    let before = staged.filesystem_size().await;
    request_size(&node, &staged.volume, LARGE).await;
    staged.until("to grow", has_size(LARGE)).await;
    match staged.expand(staged.request(LARGE)).await {
        Ok(size) => {
            eprintln!("ext4 grew in use: this machine gives CAP_SYS_RESOURCE");
            assert_eq!(size, LARGE.to_i64());
            assert!(staged.filesystem_size().await > before + (100 << 20));
        }
        Err(status) => {
            let is_expected = variable("CISTERN_EXPECT_ONLINE_EXT4").is_some();
            assert!(
                !is_expected,
                "a mounted ext4 grows on this machine: {status}"
            );
            eprintln!("ext4 waits for its next stage: this machine lacks CAP_SYS_RESOURCE");
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("CAP_SYS_RESOURCE"), "{status}");
            assert_eq!(staged.filesystem_size().await, before);
            let smaller = has_condition(ConditionType::Expanded, "False", "FilesystemSmaller");
            staged.until("to report FilesystemSmaller", smaller).await;
            let gauge = concat!(
                r#"cistern_volumes_not_expanded{node="agent-expand-ext4","#,
                r#"reason="FilesystemSmaller"} 1"#
            );
            node.driver.node().shows(gauge).await;
            // A pod can still write.
            node.shell("echo data > $1/file", &[&staged.path()]).await;
        }
    }
    staged.unstage().await;
    staged.stage().await;
    assert!(staged.filesystem_size().await > before + (100 << 20));
    let holds = has_condition(ConditionType::Expanded, "True", "Reconciled");
    staged.until("to be expanded", holds).await;
    staged.unstage().await;
    node.finish().await;
}

#[tokio::test]
async fn nev_09_nev_13_nev_15_a_raw_block_volume_grows_at_its_target_and_keeps_its_bytes() {
    let mut node = Fixture::start("agent-expand-block").await;
    let object = node.block_volume("one", SMALL).await;
    let name = object.name_any();
    let (staging, target) = {
        let kubelet = KubeletVolume::of(&node, &object);
        kubelet.stage(&[]).await.unwrap();
        kubelet.publish("a", &[], false).await.unwrap();
        (text(&kubelet.staging), text(&kubelet.target("a")))
    };
    let write = "printf data | dd of=$1 conv=notrunc,fsync status=none";
    node.shell(write, &[&target]).await;
    request_size(&node, &name, LARGE).await;
    node.until(&name, "to grow", has_size(LARGE)).await;
    let size = async |node: &Fixture| {
        let size = node.shell("blockdev --getsize64 $1", &[&target]).await;
        size.trim().parse::<u64>().unwrap()
    };
    assert_eq!(size(&node).await, SMALL.0);

    node.driver.restart_node().await;
    for path in [&target, &staging, &target] {
        let request = NodeExpandVolumeRequest {
            volume_id: name.clone(),
            volume_path: path.clone(),
            capacity_range: Some(CapacityRange {
                required_bytes: LARGE.to_i64(),
                limit_bytes: 0,
            }),
            volume_capability: Some(capability(AccessType::Block(BlockVolume {}))),
            ..NodeExpandVolumeRequest::default()
        };
        let mut client = node.driver.node_client().await;
        let answer = client.node_expand_volume(request).await.unwrap();
        assert_eq!(answer.into_inner().capacity_bytes, LARGE.to_i64());
        assert_eq!(size(&node).await, LARGE.0);
    }
    assert_eq!(node.shell("head -c 4 $1", &[&target]).await, "data");
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.unpublish("a").await.unwrap();
    kubelet.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn after_a_restart_between_image_and_filesystem_growth_the_next_stage_grows_the_filesystem() {
    let mut node = Fixture::start("agent-halves").await;
    for filesystem in FilesystemType::ALL {
        let staged = StagedVolume::new(&node, filesystem, Bytes::mib(300)).await;
        let before = staged.filesystem_size().await;
        staged.unstage().await;
        let (name, grown) = (staged.volume.clone(), Bytes::mib(340));
        request_size(&node, &name, grown).await;
        node.until(&name, "to grow", has_size(grown)).await;
        let (volume, staging) = (staged.volume, staged.staging);
        node.driver.restart_node().await;
        let staged = StagedVolume {
            node: &node,
            volume,
            staging,
        };
        staged.stage().await;
        assert!(
            staged.filesystem_size().await > before + (30 << 20),
            "{filesystem}"
        );
        staged.unstage().await;
        node.remove(&name).await;
    }
    node.finish().await;
}
