use std::path::PathBuf;

use cistern_crds::{PoolSource, StorageNodeSpec, StorageNodeStatus, testing::node_pool};
use cistern_host::{
    ClosedImage, Content, Discarded, Identity, Image, Owner, SnapshotRecord, Stray, Uid,
    copy::IncomingCopy,
    inventory::NodeInventory,
    system::{DeviceNumber, Mount},
};

use super::*;
use crate::testing::{
    FILESYSTEM_UUID, POOL_UUID, ready_group, ready_snapshot, ready_volume, replica, wanted_volume,
};

const BACKING: &str = "/var/lib/cistern/pools/pool-uid/images/uid-1";

fn image(uid: &str) -> Image {
    Image {
        uid: uid.parse().unwrap(),
        identity: Some(Identity {
            encryption: None,
            owner: Owner::Volume("pvc-1".into()),
            uid: uid.parse::<Uid>().unwrap(),
            pool_uuid: POOL_UUID.parse().unwrap(),
            size: Bytes::gib(1),
            content: Content::Filesystem {
                filesystem: cistern_crds::FilesystemType::Ext4,
                uuid: FILESYSTEM_UUID.parse().unwrap(),
            },
            provisioning: cistern_crds::Provisioning::Thin,
            source: None,
        }),
        size: Bytes::gib(1),
        allocated: Bytes::ZERO,
        sector_size: 4096,
    }
}

fn mount(number: u32, at: &str) -> Mount {
    Mount {
        id: 1,
        parent: 0,
        device: DeviceNumber::of_loop(number),
        root: "/".into(),
        mount_point: at.into(),
        mount_options: Vec::new(),
        filesystem: "ext4".into(),
        source: PathBuf::new(),
        filesystem_options: Vec::new(),
    }
}

/// One pool with one staged volume, without inconsistencies.
fn clean() -> View {
    let mut node = StorageNode::new(
        "node-1",
        StorageNodeSpec {
            pools: vec![node_pool("fast", "pool-uid", PoolSource::default())],
            ..StorageNodeSpec::default()
        },
    );
    node.status = Some(StorageNodeStatus {
        pools: vec![NodePoolStatus {
            name: "fast".into(),
            uid: "pool-uid".into(),
            filesystem_uuid: Some(POOL_UUID.into()),
            reserved: Bytes::gib(1),
            ..NodePoolStatus::default()
        }],
        ..StorageNodeStatus::default()
    });
    let bound = |number, backing_file: &str| BoundLoop {
        number,
        backing_file: backing_file.into(),
    };
    View {
        node: Some(node),
        volumes: vec![ready_volume()],
        snapshots: Vec::new(),
        groups: Vec::new(),
        replicas: Vec::new(),
        unreadable: Vec::new(),
        inventory: Inventory {
            pools: vec![PoolInventory {
                uid: "pool-uid".parse().unwrap(),
                name: Some("fast".into()),
                mount_point: "/var/lib/cistern/pools/pool-uid".into(),
                silent: None,
                filesystem_uuid: Some(POOL_UUID.parse().unwrap()),
                has_file: true,
                images: vec![image("uid-1")],
                logical: Vec::new(),
                discarded: Vec::new(),
                closed: Vec::new(),
                incoming: Vec::new(),
                temporary: Vec::new(),
                strays: Vec::new(),
            }],
            loops: vec![
                bound(0, "/var/lib/cistern/pools/pool-uid.img"),
                bound(1, BACKING),
            ],
            mounts: vec![
                mount(0, "/var/lib/cistern/pools/pool-uid"),
                mount(1, "/var/lib/kubelet/globalmount"),
            ],
            nodes: Vec::new(),
            strays: Vec::new(),
        },
    }
}

/// The kinds of the findings after a change to a clean node.
fn kinds(change: impl FnOnce(&mut View)) -> Vec<FindingKind> {
    let mut view = clean();
    change(&mut view);
    findings(&view)
        .into_iter()
        .map(|finding| finding.kind)
        .collect()
}

#[test]
fn r06_a_consistent_node_has_no_findings() {
    assert_eq!(kinds(|_| {}), []);
    assert_eq!(
        kinds(|view| view.volumes.push(PoolVolume {
            metadata: kube::api::ObjectMeta {
                name: Some("pvc-2".into()),
                uid: Some("uid-2".into()),
                ..Default::default()
            },
            ..wanted_volume()
        })),
        []
    );
}

#[test]
fn r06_an_image_whose_volume_is_gone_is_found_and_counted() {
    let found = kinds(|view| {
        view.inventory.loops.truncate(1);
        view.inventory.mounts.truncate(1);
        view.volumes.clear();
    });
    // The ledger counts its bytes, too.
    assert_eq!(found, [FindingKind::ImageWithoutObject]);
}

#[test]
fn r06_a_staged_volume_whose_object_is_gone_is_found() {
    let found = kinds(|view| view.volumes.clear());
    assert_eq!(
        found,
        [
            FindingKind::ImageWithoutObject,
            FindingKind::MountWithoutVolume
        ]
    );
}

#[test]
fn r06_a_volume_whose_image_is_gone_is_found() {
    let found = kinds(|view| view.inventory.pools[0].images.clear());
    assert_eq!(found, [FindingKind::VolumeWithoutImage]);
}

#[test]
fn r06_an_image_of_another_volume_is_found() {
    let found = kinds(|view| {
        let identity = view.inventory.pools[0].images[0].identity.as_mut();
        identity.unwrap().owner = Owner::Volume("pvc-2".into());
    });
    assert_eq!(found, [FindingKind::IdentityConflict]);
    let found = kinds(|view| view.inventory.pools[0].images[0].identity = None);
    assert_eq!(found, [FindingKind::IdentityConflict]);
}

#[test]
fn r06_a_loop_device_that_nothing_is_mounted_from_is_found() {
    let found = kinds(|view| view.inventory.mounts.truncate(1));
    assert_eq!(found, [FindingKind::LoopWithoutUse]);
    let found = kinds(|view| {
        view.inventory.mounts.truncate(1);
        view.inventory.loops[1].backing_file = format!("{BACKING} (deleted)").into();
    });
    assert_eq!(found, [FindingKind::LoopWithoutUse]);
}

#[test]
fn r06_an_unexplained_reservation_is_found() {
    let found = kinds(|view| {
        let status = view.node.as_mut().unwrap().status.as_mut().unwrap();
        status.pools[0].reserved = Bytes::gib(2);
    });
    assert_eq!(found, [FindingKind::LedgerMismatch]);
}

#[test]
fn r06_an_unfinished_deletion_is_found() {
    let found = kinds(|view| view.volumes[0].spec.deletion_requested = true);
    assert_eq!(found, [FindingKind::DeletionUnfinished]);
}

fn stray(size: Option<Bytes>) -> Stray {
    let path = "/x/images/.nfs".into();
    Stray { path, size }
}

#[test]
fn a_foreign_file_is_found_and_its_bytes_are_expected_in_the_ledger() {
    let lacking = kinds(|view| {
        view.inventory.pools[0]
            .strays
            .push(stray(Some(Bytes::mib(8))));
    });
    assert_eq!(lacking, [FindingKind::Stray, FindingKind::LedgerMismatch]);
    let counted = kinds(|view| {
        view.inventory.pools[0]
            .strays
            .push(stray(Some(Bytes::mib(8))));
        let status = view.node.as_mut().unwrap().status.as_mut().unwrap();
        let reserved = &mut status.pools[0].reserved;
        *reserved = reserved.saturating_add(Bytes::mib(8));
    });
    assert_eq!(counted, [FindingKind::Stray]);
}

#[test]
fn r06_unfinished_images_and_foreign_files_are_found() {
    let found = kinds(|view| {
        view.inventory.pools[0]
            .temporary
            .push("/x/tmp/uid-9".into());
        view.inventory.pools[0].strays.push(stray(None));
        view.inventory.strays.push("/x/lost+found".into());
    });
    assert_eq!(
        found,
        [
            FindingKind::Stray,
            FindingKind::UnfinishedImage,
            FindingKind::Stray
        ]
    );
}

#[test]
fn an_unmounted_pool_is_one_finding_and_not_one_for_each_volume() {
    let found = kinds(|view| {
        view.inventory.pools[0].filesystem_uuid = None;
        view.inventory.pools[0].images.clear();
        view.inventory.loops.clear();
        view.inventory.mounts.clear();
    });
    assert_eq!(found, [FindingKind::PoolNotMounted]);
}

#[test]
fn a_pool_that_no_node_carries_is_found() {
    let found = kinds(|view| {
        view.node = None;
        view.volumes.clear();
        view.inventory.pools[0].images.clear();
        view.inventory.loops.truncate(1);
        view.inventory.mounts.truncate(1);
    });
    assert_eq!(found, [FindingKind::PoolWithoutNode]);
}

#[test]
fn the_device_of_a_raw_block_volume_is_in_use_where_its_node_is() {
    let to_node = |view: &mut View| {
        let mount = view.inventory.mounts.remove(1);
        view.inventory.nodes.push(NodeInventory {
            device: mount.device,
            mount,
        });
    };
    assert_eq!(kinds(to_node), []);
    let forgotten = kinds(|view| {
        to_node(view);
        view.inventory.nodes.clear();
    });
    assert_eq!(forgotten, [FindingKind::LoopWithoutUse]);
    let without_volume = kinds(|view| {
        to_node(view);
        view.inventory.pools[0].images.clear();
        view.volumes.clear();
        view.node.as_mut().unwrap().status = None;
    });
    assert_eq!(without_volume, [FindingKind::MountWithoutVolume]);
}

#[test]
fn the_mounts_nodes_and_mappings_of_logical_volumes_are_compared_as_those_of_images() {
    let device = DeviceNumber {
        major: 253,
        minor: 5,
    };
    let on_group = |view: &mut View, is_mapped| {
        view.inventory.loops.clear();
        view.inventory.mounts.remove(0);
        view.inventory.mounts[0].device = device;
        view.inventory.pools[0].logical.push(LogicalInventory {
            device,
            image: "uid-1".parse().unwrap(),
            is_mapped,
        });
    };
    let to_node = |view: &mut View| {
        let mount = view.inventory.mounts.remove(0);
        view.inventory.nodes.push(NodeInventory { device, mount });
    };
    let forget = |view: &mut View| {
        view.inventory.pools[0].images.clear();
        view.volumes.clear();
        view.node.as_mut().unwrap().status = None;
    };
    assert_eq!(kinds(|view| on_group(view, true)), []);
    let unclaimed = kinds(|view| {
        on_group(view, false);
        forget(view);
    });
    assert_eq!(unclaimed, [FindingKind::MountWithoutVolume]);
    let published = kinds(|view| {
        on_group(view, true);
        to_node(view);
    });
    assert_eq!(published, []);
    let unclaimed = kinds(|view| {
        on_group(view, false);
        to_node(view);
        forget(view);
    });
    assert_eq!(unclaimed, [FindingKind::MountWithoutVolume]);
    // It stays active when it is unstaged, but not decrypted.
    for (is_mapped, expected) in [
        (false, vec![]),
        (true, vec![FindingKind::MappingWithoutUse]),
    ] {
        let unstaged = kinds(|view| {
            on_group(view, is_mapped);
            view.inventory.mounts.clear();
        });
        assert_eq!(unstaged, expected);
    }
}

#[test]
fn an_image_in_the_trash_has_no_owner_and_is_counted_like_any_other() {
    let found = kinds(|view| {
        view.inventory.loops.truncate(1);
        view.inventory.mounts.truncate(1);
        view.volumes.clear();
        let pool = &mut view.inventory.pools[0];
        let discarded = pool.images.drain(..).map(|image| Discarded {
            image,
            since: crate::testing::at(0),
        });
        pool.discarded = discarded.collect();
    });
    assert_eq!(found, [FindingKind::ImageWithoutObject]);
}

#[test]
fn a_pool_that_does_not_answer_has_no_other_findings() {
    let found = kinds(|view| {
        let pool = &mut view.inventory.pools[0];
        pool.silent = Some("it did not answer".into());
        pool.filesystem_uuid = None;
        pool.images.clear();
    });
    assert_eq!(found, [FindingKind::PoolSilent]);
}

/// A snapshot of the volume, alone in its group.
fn with_snapshot(view: &mut View) {
    let mut snapshot = ready_snapshot();
    snapshot.spec.group_name = Some("group-1".into());
    view.snapshots.push(snapshot);
    view.groups.push(ready_group());
    let mut image = image("uid-of-snapshot-1");
    image.allocated = Bytes::mib(64);
    image.identity.as_mut().unwrap().owner = Owner::Snapshot(SnapshotRecord {
        name: "snapshot-1".into(),
        volume: "pvc-1".into(),
        source: "uid-1".parse().unwrap(),
        time: crate::testing::at(300),
    });
    view.inventory.pools[0].images.push(image);
    let status = view.node.as_mut().unwrap().status.as_mut().unwrap();
    let pool = &mut status.pools[0];
    pool.reserved = pool.reserved.saturating_add(Bytes::mib(64));
}

#[test]
fn r06_a_snapshot_belongs_to_its_image_as_a_volume_does() {
    let found = |change: fn(&mut View)| {
        kinds(|view| {
            with_snapshot(view);
            change(view);
        })
    };
    assert_eq!(found(|_| {}), []);
    let without_image = found(|view| view.inventory.pools[0].images.truncate(1));
    assert_eq!(without_image, [FindingKind::SnapshotWithoutImage]);
    // An unclaimed image keeps its charged size.
    let without_object = found(|view| {
        view.snapshots.clear();
        view.groups.clear();
    });
    assert_eq!(without_object, [FindingKind::ImageWithoutObject]);
    let of_another = found(|view| view.snapshots[0].metadata.name = Some("snapshot-2".into()));
    assert_eq!(
        of_another,
        [FindingKind::IdentityConflict, FindingKind::GroupIncomplete],
        "and the group lacks it"
    );
    let a_volumes = found(|view| {
        let identity = view.inventory.pools[0].images[1].identity.as_mut();
        identity.unwrap().owner = Owner::Volume("snapshot-1".into());
    });
    assert_eq!(a_volumes, [FindingKind::IdentityConflict]);
    let half_gone = found(|view| view.snapshots[0].spec.deletion_requested = true);
    assert_eq!(half_gone, [FindingKind::DeletionUnfinished]);
}

#[test]
fn r06_a_group_without_a_snapshot_and_a_snapshot_without_its_group_are_found() {
    let without_group = kinds(|view| {
        with_snapshot(view);
        view.groups.clear();
    });
    assert_eq!(without_group, [FindingKind::GroupIncomplete]);
    let half_there = kinds(|view| {
        with_snapshot(view);
        let members = &mut view.groups[0].spec.members;
        let mut other = members[0].clone();
        other.snapshot = "snapshot-2".into();
        members.push(other);
    });
    assert_eq!(half_there, [FindingKind::GroupIncomplete]);
    let never_taken = kinds(|view| {
        with_snapshot(view);
        view.groups[0].status = None;
        view.groups[0].spec.members[0].snapshot = "snapshot-2".into();
    });
    assert_eq!(never_taken, [], "it is being taken");
}

#[test]
fn the_first_volume_that_claims_an_image_is_its_owner() {
    let mut view = clean();
    let mut second = ready_volume();
    second.metadata.name = Some("pvc-2".into());
    view.volumes.push(second);
    with_snapshot(&mut view);
    let image = view.snapshots[0].image().unwrap().uid.clone();
    let owners = view.owners();
    assert_eq!(owners["uid-1"].to_string(), "PoolVolume pvc-1");
    let snapshot = format!("PoolSnapshot {}", view.snapshots[0].name_any());
    assert_eq!(owners[image.as_str()].to_string(), snapshot);
    assert!(view.is_claimed("uid-1") && !view.is_claimed("uid-2"));
}

#[test]
fn an_image_in_another_pool_is_not_the_volumes() {
    let found = kinds(|view| {
        let mut other = view.inventory.pools[0].clone();
        other.uid = "other".parse().unwrap();
        view.inventory.pools[0].images.clear();
        view.inventory.pools.push(other);
    });
    assert_eq!(
        found,
        [
            FindingKind::PoolWithoutNode,
            FindingKind::VolumeWithoutImage
        ]
    );
}

/// Closes the image of the volume, as its node does before a move.
fn close(view: &mut View) {
    let pool = &mut view.inventory.pools[0];
    pool.closed = pool
        .images
        .drain(..)
        .map(|image| ClosedImage { image, by: None })
        .collect();
    view.inventory.loops.pop();
    view.inventory.mounts.pop();
}

#[test]
fn a_closed_image_is_that_of_its_volume_or_replica_and_reported_without_both() {
    assert_eq!(kinds(close), [], "the volume moves away");
    let mut retained = replica("pvc-1", 0);
    retained.status.get_or_insert_default().reserved = Some(Bytes::gib(1));
    let moved = |view: &mut View| {
        close(view);
        view.volumes.clear();
        view.replicas = vec![retained.clone()];
    };
    assert_eq!(kinds(moved), [], "the replica reserves what the volume did");
    let found = kinds(|view| {
        close(view);
        view.volumes.clear();
    });
    // The ledger counts its bytes.
    assert_eq!(found, [FindingKind::ClosedImageWithoutObject]);
    let found = kinds(|view| {
        close(view);
        view.volumes.clear();
        view.node.as_mut().unwrap().status.as_mut().unwrap().pools[0].reserved = Bytes::ZERO;
    });
    let expected = [
        FindingKind::ClosedImageWithoutObject,
        FindingKind::LedgerMismatch,
    ];
    assert_eq!(found, expected);
}

#[test]
fn r12_a_copy_is_that_of_its_replica_or_volume_and_reported_and_counted_without_both() {
    let copy = |is_point, moved_by: Option<&str>| IncomingCopy {
        volume: "uid-9".parse().unwrap(),
        is_point,
        moved_by: moved_by.map(|uid| uid.parse().unwrap()),
        allocated: Bytes::mib(64),
    };
    let with = |copies: &[IncomingCopy], change: &dyn Fn(&mut View)| {
        let mut view = clean();
        view.inventory.pools[0].incoming = copies.to_vec();
        change(&mut view);
        let found = findings(&view).into_iter();
        found
            .map(|it| (it.kind, it.object, it.message))
            .collect::<Vec<_>>()
    };
    let standby = [copy(false, Some("move-1")), copy(true, Some("move-1"))];
    let claimed = with(&standby, &|view| {
        let mut incoming = replica("pvc-9", 1);
        incoming.spec.image = "uid-9".to_owned();
        view.replicas.push(incoming);
    });
    assert_eq!(claimed, []);
    let arrived = with(&standby, &|view| {
        let mut volume = wanted_volume();
        volume.metadata.uid = Some("uid-9".to_owned());
        view.volumes.push(volume);
    });
    assert_eq!(arrived, []);

    let reserved = |view: &mut View, bytes| {
        let status = view.node.as_mut().unwrap().status.as_mut().unwrap();
        status.pools[0].reserved = bytes;
    };
    let counted = Bytes::gib(1).saturating_add(Bytes::mib(128));
    let left = with(&standby, &|view| reserved(view, counted));
    let folder = "/var/lib/cistern/pools/pool-uid/incoming";
    let expected = [format!("{folder}/uid-9"), format!("{folder}/uid-9.point")];
    for ((kind, object, message), expected) in left.iter().zip(expected) {
        assert_eq!((*kind, object), (FindingKind::CopyWithoutObject, &expected));
        assert!(message.contains("an administrator removes the file"));
    }
    assert_eq!(left.len(), 2, "{left:?}");
    let of_snapshot = with(&[copy(false, None)], &|view| {
        reserved(view, Bytes::gib(1).saturating_add(Bytes::mib(64)));
    });
    let [(FindingKind::CopyWithoutObject, _, message)] = &of_snapshot[..] else {
        panic!("{of_snapshot:?}");
    };
    assert!(message.contains("the agent removes it"), "{message}");
}

#[test]
fn a_closed_image_that_is_mounted_without_an_object_is_found() {
    let found = kinds(|view| {
        let (bound, mount) = (
            view.inventory.loops[1].clone(),
            view.inventory.mounts[1].clone(),
        );
        close(view);
        view.volumes.clear();
        let backing_file = BACKING.replace("/images/", "/closed/").into();
        view.inventory.loops.push(BoundLoop {
            backing_file,
            ..bound
        });
        view.inventory.mounts.push(mount);
    });
    assert!(
        found.contains(&FindingKind::MountWithoutVolume),
        "{found:?}"
    );
}

#[test]
fn a_replica_beside_its_volume_is_counted_once() {
    let mut retained = replica("pvc-1", 0);
    retained.status.get_or_insert_default().reserved = Some(Bytes::gib(1));
    assert_eq!(kinds(|view| view.replicas = vec![retained.clone()]), []);
}

#[test]
fn r22_while_an_object_cannot_be_read_nothing_is_said_to_be_unclaimed() {
    let unreadable = || Unreadable {
        object: "PoolVolume pvc-1".to_owned(),
        error: "its size is none".to_owned(),
    };
    let found = kinds(|view| {
        view.volumes.clear();
        view.inventory.pools[0].images.push(image("uid-2"));
        view.unreadable.push(unreadable());
    });
    assert_eq!(found, [FindingKind::ObjectUnreadable]);
    // What the objects that can be read lack is found.
    let found = kinds(|view| {
        view.inventory.pools[0].images.clear();
        view.unreadable.push(unreadable());
    });
    assert_eq!(
        found,
        [
            FindingKind::VolumeWithoutImage,
            FindingKind::ObjectUnreadable
        ]
    );
}
