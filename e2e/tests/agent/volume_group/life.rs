//! The volumes of a volume group: made, used, grown, found again and removed.

use cistern_crds::{
    AccessType, Bytes, ConditionType, Encryption, FilesystemType, NodePoolStatus, PoolVolume,
    Provisioning, Reason, condition,
};
use failing_disk::Mode;
use kube::ResourceExt as _;
use serde_json::json;
use tonic::Code;

use super::{EXTENT, Group, logical_volume, names};
use crate::{
    Fixture,
    encryption::{FIRST, SECOND, with_keys},
    has_condition,
    node_service::{KubeletVolume, code, text},
    snapshots::{content_source, is},
    status,
};

pub(super) const SMALL: Bytes = Bytes::mib(64);

fn filesystem(mut desired: PoolVolume, filesystem: FilesystemType) -> PoolVolume {
    desired.spec.filesystem = Some(filesystem);
    desired
}

pub(super) fn block(mut desired: PoolVolume) -> PoolVolume {
    (desired.spec.access_type, desired.spec.filesystem) = (AccessType::Block, None);
    desired
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_volume_of_a_volume_group_is_used_grown_and_removed_and_leaves_nothing() {
    let (node, group) = Fixture::on_group("agent-group").await;
    // A group that LVM does not answer for in time has no room for a while.
    let is_open = |pool: &NodePoolStatus| pool.thick_room > Bytes::ZERO;
    let empty = node.pool_until("to have room", is_open).await;
    assert_eq!(empty.thin_room, Bytes::ZERO);
    assert_eq!(empty.thick_room, empty.usable);
    assert!(
        empty.usable > Bytes::mib(1800) && empty.size < Bytes::gib(2),
        "{empty:?}"
    );
    assert!(empty.filesystem_uuid.is_some(), "{empty:?}");
    for (kind, size, larger) in [
        (FilesystemType::Ext4, SMALL, Bytes::mib(128)),
        (FilesystemType::Xfs, Bytes::mib(320), Bytes::mib(400)),
    ] {
        let desired = filesystem(node.thick_volume(kind.as_str(), size), kind);
        let object = node.create_ready(&desired).await;
        let name = object.name_any();
        assert_eq!(group.names(), names([&logical_volume(&object)]));
        assert_eq!(status(&object).allocated, Some(size));
        node.until_reserved(size).await;
        let rest = empty.thick_room.saturating_sub(size);
        node.until_room(rest).await;
        node.driver.fsck().await;

        let kubelet = KubeletVolume::at(&node, &object, &format!("staging-{kind}"));
        for _ in 0..2 {
            kubelet.stage(&[]).await.unwrap();
            kubelet.publish("pod", &[], false).await.unwrap();
        }
        let target = kubelet.target("pod");
        let before = kubelet.statistics(&target).await.unwrap();
        assert!(
            before[0].total > 0 && before[0].total <= size.to_i64(),
            "{before:?}"
        );
        let written = "echo data >$1/file && sync $1/file";
        node.shell(written, &[&text(&target)]).await;
        node.driver.fsck().await;

        node.patch(&name, json!({"spec": {"size": larger}})).await;
        let has_grown = |object: &PoolVolume| status(object).size == Some(larger);
        node.until(&name, "to grow", has_grown).await;
        assert_eq!(kubelet.expand("pod").await.unwrap(), larger.to_i64());
        let after = kubelet.statistics(&target).await.unwrap();
        assert!(after[0].total > before[0].total + (50 << 20), "{after:?}");
        node.until_reserved(larger).await;

        node.patch(&name, json!({"spec": {"deletionRequested": true}}))
            .await;
        let in_use = has_condition(ConditionType::Reclaimed, "False", "InUse");
        node.until(&name, "to be in use", in_use).await;
        let read = node.shell("cat $1/file", &[&text(&target)]).await;
        assert_eq!(read, "data\n");
        for _ in 0..2 {
            kubelet.unpublish("pod").await.unwrap();
            kubelet.unstage().await.unwrap();
        }
        node.remove_from(&group, &object).await;
        node.until_reserved(Bytes::ZERO).await;
        node.driver.fsck().await;
    }
    assert_eq!(group.names(), names([]));
    node.until_room(empty.thick_room).await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_raw_block_volume_of_a_volume_group_grows_and_is_kept_while_it_is_staged() {
    let (node, group) = Fixture::on_group("agent-group-block").await;
    let size = Bytes::mib(30);
    let object = node
        .create_ready(&block(node.thick_volume("raw", size)))
        .await;
    let (name, volume) = (object.name_any(), logical_volume(&object));
    // It has whole extents, and those are reserved.
    let taken = Bytes::mib(32);
    assert_eq!(status(&object).reserved, Some(taken));
    node.until_reserved(taken).await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("pod", &[], false).await.unwrap();
    let target = text(&kubelet.target("pod"));
    let write = "test -b $1 && printf %4096s data | dd of=$1 bs=4096 oflag=direct status=none";
    node.shell(write, &[&target]).await;
    let bytes = node.shell("blockdev --getsize64 $1", &[&target]).await;
    assert_eq!(bytes.trim(), taken.0.to_string());
    let usage = kubelet.statistics(&kubelet.target("pod")).await.unwrap();
    assert_eq!(usage[0].total, taken.to_i64(), "{usage:?}");
    node.driver.fsck().await;

    // It grows by extents that had nothing of others.
    let larger = Bytes::mib(64);
    node.patch(&name, json!({"spec": {"size": larger}})).await;
    let has_grown = |object: &PoolVolume| status(object).size == Some(larger);
    node.until(&name, "to grow", has_grown).await;
    assert_eq!(kubelet.expand("pod").await.unwrap(), larger.to_i64());
    let bytes = node.shell("blockdev --getsize64 $1", &[&target]).await;
    assert_eq!(bytes.trim(), larger.0.to_string());
    node.until_reserved(larger).await;
    let log = node.driver.node().process().log();
    assert!(!log.contains("LedgerMismatch"), "{log}");

    node.patch(&name, json!({"spec": {"deletionRequested": true}}))
        .await;
    let in_use = || has_condition(ConditionType::Reclaimed, "False", "InUse");
    node.until(&name, "to be in use", in_use()).await;
    kubelet.unpublish("pod").await.unwrap();
    // Nothing has its device open now.
    let label = json!({"metadata": {"labels": {"reconcile": "again"}}});
    node.patch(&name, label).await;
    node.until(&name, "to be in use still", in_use()).await;
    assert_eq!(group.names(), names([&volume]));
    kubelet.unstage().await.unwrap();
    node.remove_from(&group, &object).await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_raw_block_volume_is_unpublished_and_unstaged_while_it_is_written_with_zeros_to_grow() {
    let node = Fixture::without_pools("agent-group-zeroing").await;
    let group = Group::failing(&node.name);
    node.add_group().await;
    let size = Bytes::mib(32);
    let object = node
        .create_ready(&block(node.thick_volume("raw", size)))
        .await;
    let name = object.name_any();
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("pod", &[], false).await.unwrap();

    // The volume begins at the first MiB of the disk, and grows behind that: some zeros are written, and the others wait.
    group.set(Mode::HangFrom(Bytes::mib(256).0));
    let larger = Bytes::mib(512);
    node.patch(&name, json!({"spec": {"size": larger}})).await;
    let is_zeroing = has_condition(ConditionType::Expanded, "False", "Zeroing");
    node.until(&name, "to be written with zeros", &is_zeroing)
        .await;
    kubelet.unpublish("pod").await.unwrap();
    kubelet.unstage().await.unwrap();
    let unstaged = node.get(&name).await;
    assert_eq!(status(&unstaged).size, Some(size));
    assert!(is_zeroing(&unstaged), "{unstaged:#?}");

    group.set(Mode::Ok);
    let has_grown = |object: &PoolVolume| status(object).size == Some(larger);
    node.until(&name, "to grow", has_grown).await;
    drop(kubelet);
    node.remove_from(&group, &object).await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn an_encrypted_volume_of_a_volume_group_opens_with_its_key_alone() {
    let (node, group) = Fixture::on_group("agent-group-encrypted").await;
    let mut desired = node.thick_volume("encrypted", SMALL);
    desired.spec.encryption = Some(Encryption::Luks2);
    let object = node.create_ready(&desired).await;
    node.until_reserved(SMALL.saturating_add(Encryption::HEADER))
        .await;
    let stage = async |key| {
        let kubelet = with_keys(&node, &object, "staging", &[("key", key)]);
        code(kubelet.stage(&[]).await)
    };
    let kubelet = KubeletVolume::of(&node, &object);
    assert_eq!(stage(FIRST).await, Code::Ok);
    node.driver.fsck().await;
    kubelet.unstage().await.unwrap();
    assert_eq!(stage(SECOND).await, Code::Unauthenticated);
    assert_eq!(stage(FIRST).await, Code::Ok);
    kubelet.unstage().await.unwrap();
    node.remove_from(&group, &object).await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn what_only_images_can_have_is_refused_and_leaves_nothing_in_the_volume_group() {
    let (node, group) = Fixture::on_group("agent-group-refuses").await;
    let source = node.create_ready(&node.thick_volume("source", SMALL)).await;
    let only = names([&logical_volume(&source)]);
    let mut clone = node.thick_volume("clone", SMALL);
    clone.spec.content_source = Some(content_source(&source));
    let thin = node.desired_volume("thin", SMALL);
    for (desired, expected) in [(thin, "provisioning: thick"), (clone, "clone")] {
        let name = node.create(&desired).await.name_any();
        let refused = is(ConditionType::Admitted, "False", Reason::NotInVolumeGroup);
        let object = node.until(&name, "to be refused", refused).await;
        let why = condition::find(&status(&object).conditions, ConditionType::Admitted).cloned();
        let message = why.unwrap().message;
        assert!(message.contains(expected), "{message}");
        assert_eq!(status(&object).reserved, None, "{name}");
        node.force_delete(&name).await;
    }
    let desired = node.desired_snapshot("snapshot", &source);
    let snapshot = node.create_snapshot(&desired).await.name_any();
    node.refused_snapshot(&snapshot, Reason::NotInVolumeGroup)
        .await;
    node.remove_snapshot(&snapshot).await;
    assert_eq!(group.names(), only);
    node.until_reserved(SMALL).await;

    // A volume of the group does not become thin.
    let thin = json!({"spec": {"attributes": {"provisioning": Provisioning::Thin}}});
    node.patch(&source.name_any(), thin).await;
    let refused = is(
        ConditionType::AttributesApplied,
        "False",
        Reason::NotInVolumeGroup,
    );
    let object = node
        .until(&source.name_any(), "to stay thick", refused)
        .await;
    assert!(has_condition(ConditionType::Ready, "True", "Reconciled")(
        &object
    ));
    let thick = json!({"spec": {"attributes": {"provisioning": Provisioning::Thick}}});
    node.patch(&source.name_any(), thick).await;
    node.remove_from(&group, &source).await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_new_agent_finds_the_volumes_again_also_those_that_are_not_active() {
    let (mut node, group) = Fixture::on_group("agent-group-again").await;
    let files = node.create_ready(&node.thick_volume("files", SMALL)).await;
    let raw = node
        .create_ready(&block(node.thick_volume("raw", Bytes::mib(32))))
        .await;
    let all = names([&logical_volume(&files), &logical_volume(&raw)]);
    {
        let kubelet = KubeletVolume::at(&node, &files, "files");
        kubelet.stage(&[]).await.unwrap();
        let path = text(&kubelet.staging);
        node.shell("echo data >$1/file && sync $1/file", &[&path])
            .await;
    }
    // The mount outlives the agent.
    node.driver.restart_node().await;
    let before = node.driver.ready_pool(&node.name).await;
    {
        let kubelet = KubeletVolume::at(&node, &files, "files");
        kubelet.stage(&[]).await.unwrap();
        kubelet.unstage().await.unwrap();
    }
    // Nothing activates the volumes after a reboot.
    node.driver.kill_node();
    group.change("lvchange", &["--activate", "n"]);
    assert_eq!(group.report("lvs", "lv_active"), names([]));
    node.driver.start_node().await;
    let after = node.driver.ready_pool(&node.name).await;
    assert_eq!(after.filesystem_uuid, before.filesystem_uuid);
    assert_eq!((after.reserved, after.volumes), (Bytes::mib(96), 2));
    {
        let kubelet = KubeletVolume::at(&node, &files, "files");
        kubelet.stage(&[]).await.unwrap();
        let read = node.shell("cat $1/file", &[&text(&kubelet.staging)]).await;
        assert_eq!(read, "data\n");
        kubelet.unstage().await.unwrap();
        let kubelet = KubeletVolume::at(&node, &raw, "raw");
        kubelet.stage(&[]).await.unwrap();
        kubelet.publish("pod", &[], false).await.unwrap();
        kubelet.unpublish("pod").await.unwrap();
        kubelet.unstage().await.unwrap();
    }
    assert_eq!(group.names(), all);
    // They are active and not staged, which is no problem.
    for object in [&files, &raw] {
        node.until_healthy(&object.name_any()).await;
    }
    let log = node.driver.node().process().log();
    assert!(!log.contains("MountMissing"), "{log}");
    // A volume that is not active is removed as well.
    group.change("lvchange", &["--activate", "n"]);
    for object in [files, raw] {
        node.remove_from(&group, &object).await;
    }
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_volume_that_is_recreated_as_another_object_keeps_its_logical_volume() {
    let (node, group) = Fixture::on_group("agent-group-adopted").await;
    let wanted = || node.thick_volume("one", Bytes::mib(62));
    let first = node.create_ready(&wanted()).await;
    let (name, only) = (first.name_any(), names([&logical_volume(&first)]));
    node.force_delete(&name).await;
    let kept = |pool: &cistern_crds::NodePoolStatus| pool.reserved == SMALL && pool.volumes == 0;
    node.pool_until("to keep the orphan's reservation", kept)
        .await;
    assert_eq!(group.names(), only);
    let second = node.create_ready(&wanted()).await;
    assert_ne!(second.uid(), first.uid());
    assert_eq!(status(&second).image, status(&first).image);
    node.driver.fsck().await;
    let kubelet = KubeletVolume::of(&node, &second);
    kubelet.stage(&[]).await.unwrap();
    kubelet.unstage().await.unwrap();
    assert_eq!(group.names(), only);
    node.remove_from(&group, &second).await;
    node.finish().await;
}

/// The agent knows nothing of them, and leaves them.
#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn logical_volumes_of_others_reduce_the_room_and_are_left_alone() {
    let (node, group) = Fixture::on_group("agent-group-shared").await;
    let is_open = |pool: &NodePoolStatus| pool.thick_room > Bytes::ZERO;
    let empty = node.pool_until("to have room", is_open).await;
    // The second has a name as those of Cistern have.
    let foreign = ["data", "cistern-0b0b5a3e-5a86-4bd6-8f0c-1d2f64a3a6f1"];
    for name in foreign {
        group.add_foreign(name);
    }
    node.look_again().await;
    let less = empty.usable.saturating_sub(Bytes(20 * EXTENT.0));
    node.until_room(less).await;
    let too_large = node.thick_volume("large", less.saturating_add(EXTENT));
    let large = node.create(&too_large).await.name_any();
    let refused = has_condition(ConditionType::Admitted, "False", "TooLarge");
    node.until(&large, "to be refused", refused).await;
    node.force_delete(&large).await;
    let object = node.create_ready(&node.thick_volume("one", SMALL)).await;
    let [data, other] = foreign;
    assert_eq!(
        group.names(),
        names([data, other, &logical_volume(&object)])
    );
    node.driver.fsck().await;

    // The group becomes no pool again, with what is not Cistern's.
    node.remove_from(&group, &object).await;
    assert_ne!(group.report("vgs", "vg_tags"), names([]));
    let mut pools = node.driver.storage_node().await.spec.pools;
    pools[0].retiring = true;
    node.driver.set_pools(pools).await;
    cistern_e2e::eventually("the pool to be gone", crate::SOON, async || {
        node.pool()
            .await
            .map_or(Ok(()), |pool| Err(format!("{pool:#?}")))
    })
    .await;
    assert_eq!(group.report("vgs", "vg_tags"), names([]));
    assert_eq!(group.names(), names(foreign));
    node.driver.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_volume_of_a_volume_group_is_staged_for_its_own_object_alone() {
    let (node, group) = Fixture::on_group("agent-group-swapped").await;
    let one = node.create_ready(&node.thick_volume("one", SMALL)).await;
    let two = node.create_ready(&node.thick_volume("two", SMALL)).await;
    let swap = [
        [logical_volume(&one), "swap".to_owned()],
        [logical_volume(&two), logical_volume(&one)],
        ["swap".to_owned(), logical_volume(&two)],
    ];
    let exchange = |group: &Group| {
        for [from, to] in &swap {
            group.lvm("lvrename", &[&group.name, from, to]);
        }
    };
    exchange(&group);
    let staged = KubeletVolume::of(&node, &one).stage(&[]).await;
    assert_ne!(code(staged), Code::Ok);
    exchange(&group);
    let kubelet = KubeletVolume::of(&node, &one);
    kubelet.stage(&[]).await.unwrap();
    kubelet.unstage().await.unwrap();
    node.finish().await;
}
