//! Growing a volume on its node: the ledger first, then the image, then what is in use.

use std::path::PathBuf;

use cistern_crds::{Bytes, ConditionType, FilesystemType, PoolVolume};
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
    Fixture,
    node_service::{Place, text},
    said, status,
};

const SMALL: Bytes = Bytes::mib(64);
const LARGE: Bytes = Bytes::mib(200);

/// Asks for a size, as the controller does.
async fn ask(node: &Fixture, volume: &str, size: Bytes) {
    node.patch(volume, json!({"spec": {"size": size}})).await;
}

fn has(size: Bytes) -> impl Fn(&PoolVolume) -> bool {
    move |object| status(object).size == Some(size)
}

/// Whether a growth is refused by now, or taken.
fn is_answered(object: &PoolVolume) -> bool {
    object.refused_growth().is_some() || has(object.spec.size)(object)
}

/// Bytes of a volume's image on the disk.
async fn image(node: &Fixture, object: &PoolVolume) -> u64 {
    let image = status(object).image.unwrap().uid;
    let size = node.shell("stat --format %s $0/$1", &[&image]).await;
    size.trim().parse().unwrap()
}

#[tokio::test]
async fn r05_a_growth_is_reserved_first_takes_two_writes_and_shows_in_the_published_room() {
    let node = Fixture::start("agent-expansion").await;
    let object = node.volume("one", SMALL).await;
    let name = object.name_any();
    let before = node
        .pool_until("to hold the volume", |pool| pool.reserved == SMALL)
        .await;
    let version = object.resource_version().unwrap();
    let only = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(60);
    let mut events = Box::pin(node.volumes.watch(&only, &version).await.unwrap());

    ask(&node, &name, LARGE).await;
    let grown = node.until(&name, "to grow", has(LARGE)).await;
    assert_eq!(image(&node, &grown).await, LARGE.0);
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
        (LARGE, small, small), // asked for by the controller
        (LARGE, large, small), // admitted
        (LARGE, large, large), // grown
    ];
    assert_eq!(seen, steps);
    node.finish().await;
}

#[tokio::test]
async fn cev_07_r12_a_growth_that_does_not_fit_says_what_would_and_takes_no_room() {
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
        ask(&node, &name, size).await;
        let refused = said(ConditionType::Expanded, "False", reason);
        let refused = node.until(&name, "to be refused", refused).await;
        let message = &refused.refused_growth().unwrap().message;
        assert!(message.contains(&format!("grow to {largest}")), "{message}");
        assert!(message.contains(&size.to_string()), "{message}");
        let status = status(&refused);
        assert_eq!((status.reserved, status.size), (Some(SMALL), Some(SMALL)));
        assert_eq!(image(&node, &refused).await, SMALL.0);
    }
    // Taken back, it is as it was, and still says why it did not grow.
    ask(&node, &name, SMALL).await;
    let settled = |object: &PoolVolume| {
        status(object).observed_generation == object.metadata.generation
            && said(ConditionType::Ready, "True", "AsDesired")(object)
            && said(ConditionType::Expanded, "False", "TooLarge")(object)
    };
    node.until(&name, "to settle", settled).await;
    let after = node.pool().await.unwrap();
    assert_eq!(
        (after.reserved, after.thin_room),
        (before.reserved, before.thin_room)
    );

    // What was named is there to be had, and then no more.
    ask(&node, &name, largest).await;
    node.until(&name, "to grow", has(largest)).await;
    ask(&node, &other.name_any(), LARGE).await;
    let refused = said(ConditionType::Expanded, "False", "NoSpace");
    node.until(&other.name_any(), "to be refused", refused)
        .await;
    ask(&node, &other.name_any(), SMALL).await;
    node.finish().await;
}

#[tokio::test]
async fn r12_of_ten_that_want_to_grow_at_once_as_many_do_as_there_is_room_for() {
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
    // Four of them find their growth.
    let more = Bytes(room.0 / 4).round_down_to_mib();
    let size = SMALL.saturating_add(more);
    let answers = join_all(names.iter().map(async |name| {
        ask(&node, name, size).await;
        node.until(name, "to be answered", is_answered).await
    }))
    .await;
    let grown = answers.iter().filter(|object| has(size)(object)).count();
    assert_eq!(grown, 4);
    let expected = Bytes(10 * SMALL.0 + 4 * more.0);
    node.pool_until("to say what it holds", |pool| pool.reserved == expected)
        .await;
    for object in answers.iter().filter(|object| !has(size)(object)) {
        ask(&node, &object.name_any(), SMALL).await;
    }
    node.finish().await;
}

#[tokio::test]
async fn r02_a_growth_goes_on_wherever_the_agent_died() {
    let mut node = Fixture::start("agent-growth-death").await;
    let promised = node.volume("promised", SMALL).await.name_any();
    let truncated = node.volume("truncated", SMALL).await;
    let forgotten = node.volume("forgotten", SMALL).await;

    node.driver.kill_node();
    // It died after it had promised the bytes …
    ask(&node, &promised, LARGE).await;
    node.write_status(&promised, json!({"reserved": LARGE}))
        .await;
    // … after it had made the image larger …
    ask(&node, &truncated.name_any(), LARGE).await;
    node.write_status(&truncated.name_any(), json!({"reserved": LARGE}))
        .await;
    // … or what it wrote was lost, with a cluster that was set back to an older state.
    for object in [&truncated, &forgotten] {
        let image = status(object).image.unwrap().uid;
        let size = LARGE.0.to_string();
        node.shell("truncate --size $2 $0/$1", &[&image, &size])
            .await;
    }
    node.driver.start_node().await;

    for name in [&promised, &truncated.name_any(), &forgotten.name_any()] {
        let object = node.until(name, "to have grown", has(LARGE)).await;
        assert_eq!(status(&object).reserved, Some(LARGE));
        assert_eq!(image(&node, &object).await, LARGE.0);
    }
    let all = Bytes(3 * LARGE.0);
    node.pool_until("to hold all", |pool| pool.reserved == all)
        .await;
    node.finish().await;
}

#[tokio::test]
async fn a_pool_that_leaves_takes_no_growth_and_one_that_is_away_lets_it_wait() {
    let node = Fixture::start("agent-growth-closed").await;
    let name = node.volume("one", SMALL).await.name_any();
    let mut pools = node.driver.storage_node().await.spec.pools;
    pools[0].retiring = true;
    node.driver.set_pools(pools.clone()).await;
    node.pool_until("to leave", |pool| pool.thin_room == Bytes::ZERO)
        .await;
    ask(&node, &name, LARGE).await;
    let refused = said(ConditionType::Expanded, "False", "PoolClosed");
    let object = node.until(&name, "to be refused", refused).await;
    assert_eq!(status(&object).reserved, Some(SMALL));

    pools[0].retiring = false;
    node.driver.set_pools(pools).await;
    node.pool_until("to stay", |pool| pool.thin_room > Bytes::ZERO)
        .await;
    // A refused wish is not carried out later behind anybody's back: it is asked for anew.
    assert!(node.get(&name).await.refused_growth().is_some());
    ask(&node, &name, SMALL).await;
    ask(&node, &name, LARGE).await;
    node.until(&name, "to grow", has(LARGE)).await;
    node.finish().await;
}

/// A volume and its staging path, as kubelet uses them.
struct Used<'a> {
    node: &'a Fixture,
    volume: String,
    staging: PathBuf,
}

impl<'a> Used<'a> {
    async fn new(node: &'a Fixture, filesystem: FilesystemType, size: Bytes) -> Self {
        let mut wish = node.wish(filesystem.as_str(), size);
        wish.spec.filesystem = Some(filesystem);
        let object = node.create(&wish).await;
        let ready = said(ConditionType::Ready, "True", "AsDesired");
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
        let mut client = self.node.driver.node_client().await;
        client.node_stage_volume(request).await.unwrap();
    }

    async fn unstage(&self) {
        let request = NodeUnstageVolumeRequest {
            volume_id: self.volume.clone(),
            staging_target_path: self.path(),
        };
        let mut client = self.node.driver.node_client().await;
        client.node_unstage_volume(request).await.unwrap();
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
        let mut client = self.node.driver.node_client().await;
        let answer = client.node_expand_volume(request).await?;
        Ok(answer.into_inner().capacity_bytes)
    }

    /// Bytes of the filesystem, as a pod sees them.
    async fn seen(&self) -> u64 {
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
    let used = Used::new(&node, FilesystemType::Xfs, Bytes::mib(300)).await;
    let (before, grown) = (used.seen().await, Bytes::mib(400));
    // The image comes first: NEV-07, and NEV-15 for what it has.
    let status = used.expand(used.request(grown)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let has_now = used.expand(used.request(Bytes::mib(300))).await;
    assert_eq!(has_now.unwrap(), Bytes::mib(300).to_i64());

    ask(&node, &used.volume, grown).await;
    used.until("to grow", has(grown)).await;
    assert_eq!(used.seen().await, before);
    let change = |change: &dyn Fn(&mut NodeExpandVolumeRequest)| {
        let mut request = used.request(grown);
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
            "NEV-07: at most",
            change(&|r| r.capacity_range.as_mut().unwrap().limit_bytes = 1),
            Code::InvalidArgument,
        ),
    ] {
        let status = used.expand(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{row}: {status}");
    }
    assert_eq!(used.seen().await, before);

    // NEV-17, NEV-18, NEV-09, NEV-12, NEV-13; and NEV-08 for the repeat.
    let bare = change(&|r| r.capacity_range = None);
    for request in [bare, used.request(grown)] {
        assert_eq!(used.expand(request).await.unwrap(), grown.to_i64());
        assert!(used.seen().await > before + (90 << 20));
    }
    used.unstage().await;
    let status = used.expand(used.request(grown)).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    node.finish().await;
}

#[tokio::test]
async fn nev_06_ext4_grows_in_use_or_says_in_a_condition_that_it_grows_at_the_next_stage() {
    let node = Fixture::start("agent-expand-ext4").await;
    let used = Used::new(&node, FilesystemType::Ext4, SMALL).await;
    let before = used.seen().await;
    ask(&node, &used.volume, LARGE).await;
    used.until("to grow", has(LARGE)).await;
    match used.expand(used.request(LARGE)).await {
        Ok(size) => {
            eprintln!("ext4 grew in use: this machine gives CAP_SYS_RESOURCE");
            assert_eq!(size, LARGE.to_i64());
            assert!(used.seen().await > before + (100 << 20));
        }
        Err(status) => {
            eprintln!("ext4 waits for its next stage: this machine lacks CAP_SYS_RESOURCE");
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("CAP_SYS_RESOURCE"), "{status}");
            assert_eq!(used.seen().await, before);
            let smaller = said(ConditionType::Expanded, "False", "FilesystemSmaller");
            used.until("to say so", smaller).await;
            let gauge = concat!(
                r#"cistern_volumes_not_expanded{node="agent-expand-ext4","#,
                r#"reason="FilesystemSmaller"} 1"#
            );
            node.driver.node().shows(gauge).await;
            // A pod's file is written all the same.
            node.shell("echo data > $1/file", &[&used.path()]).await;
        }
    }
    used.unstage().await;
    used.stage().await;
    assert!(used.seen().await > before + (100 << 20));
    let holds = said(ConditionType::Expanded, "True", "AsDesired");
    used.until("to be expanded", holds).await;
    used.unstage().await;
    node.finish().await;
}

#[tokio::test]
async fn nev_09_nev_13_nev_15_a_raw_block_volume_grows_at_its_target_and_keeps_its_bytes() {
    let mut node = Fixture::start("agent-expand-block").await;
    let object = node.block_volume("one", SMALL).await;
    let name = object.name_any();
    let (staging, target) = {
        let place = Place::of(&node, &object);
        place.stage(&[]).await.unwrap();
        place.publish("a", &[], false).await.unwrap();
        (text(&place.staging), text(&place.target("a")))
    };
    let write = "printf data | dd of=$1 conv=notrunc,fsync status=none";
    node.shell(write, &[&target]).await;
    ask(&node, &name, LARGE).await;
    node.until(&name, "to grow", has(LARGE)).await;
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
    let place = Place::of(&node, &object);
    place.unpublish("a").await.unwrap();
    place.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn a_restart_between_the_two_halves_leaves_the_second_to_the_next_stage() {
    let mut node = Fixture::start("agent-halves").await;
    for filesystem in FilesystemType::ALL {
        let used = Used::new(&node, filesystem, Bytes::mib(300)).await;
        let before = used.seen().await;
        used.unstage().await;
        let (name, grown) = (used.volume.clone(), Bytes::mib(340));
        ask(&node, &name, grown).await;
        node.until(&name, "to grow", has(grown)).await;
        let (volume, staging) = (used.volume, used.staging);
        node.driver.restart_node().await;
        let used = Used {
            node: &node,
            volume,
            staging,
        };
        used.stage().await;
        assert!(used.seen().await > before + (30 << 20), "{filesystem}");
        used.unstage().await;
        node.remove(&name).await;
    }
    node.finish().await;
}
