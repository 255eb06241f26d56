//! Volume groups of LVM as pools. A group is on disks of its own, which had other data before.

mod claimed;
mod dependents;
mod disks;
mod encrypted;
mod extents;
mod fixture;
mod hung;
mod others;
mod power;

use std::{ops::ControlFlow, os::unix::fs::FileExt as _};

use cistern_host::{
    BlockStageRequest, Engine, Expectation, ImageRequest, UNSTOPPED, Uuid,
    image::{Content, Error},
    inventory::LogicalInventory,
};
use cistern_types::{Bytes, FilesystemType, Provisioning};

use self::fixture::{CONFIG, DISK, REMAINS, block, encrypted, open, reads_zero, volume};
pub(crate) use self::fixture::{Group, Grow, claim};
use crate::harness::{Machine, Volume, must, run, sampled};

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_of_a_group_has_what_was_requested_and_is_found_again() {
    let machine = Machine::new();
    let group = Group::new(&machine, 3);
    let pool = group.pool(&machine);
    let requests = [
        volume(&machine, "ext4", Some(FilesystemType::Ext4)),
        volume(&machine, "xfs", Some(FilesystemType::Xfs)),
        block(&machine, "raw"),
    ];
    for request in &requests {
        let made = must(pool.create(request, UNSTOPPED));
        // A whole number of extents of 4 MiB.
        assert!(
            made.size >= request.size && made.size < request.size.saturating_add(Bytes::mib(4))
        );
        assert_eq!(must(pool.create(request, UNSTOPPED)), made);
        let content = made.identity.unwrap().content;
        assert_eq!(content.filesystem(), request.filesystem);
        if let Content::Filesystem { uuid, .. } = content {
            let device = must(pool.open_volume(&request.uid)).0.number();
            let path = format!("/dev/dm-{}", device.minor);
            let found = run("blkid", &["-p", "-o", "value", "-s", "UUID", &path]);
            assert_eq!(found.trim(), uuid.to_string());
        }
    }
    let known = Expectation::Known {
        filesystem_uuid: pool.pool_uuid(),
    };
    let again = must(group.open(&machine, known));
    assert_eq!(must(again.volumes()).len(), requests.len());
    assert_eq!(must(again.sweep()), 0);
    let other = ImageRequest {
        volume: "pvc-other".to_owned(),
        ..requests[0].clone()
    };
    let error = again.create(&other, UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    let before = must(again.statistics());
    for request in &requests {
        must(again.remove(&request.uid));
        must(again.remove(&request.uid));
        assert_eq!(must(again.volume(&request.uid)), None);
    }
    let after = must(again.statistics());
    assert_eq!((after.empty, after.size), (before.empty, before.size));
    assert_eq!(after.available, after.empty);
    assert!(after.available > before.available);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_of_a_group_has_the_sectors_of_the_disks() {
    for sectors in ["512", "4096"] {
        let machine = Machine::new();
        let group = Group::on(&machine, 1, |disk| {
            run("losetup", &["--sector-size", sectors, disk.path()]);
        });
        let pool = group.pool(&machine);
        let request = block(&machine, "raw");
        let made = must(pool.create(&request, UNSTOPPED));
        assert_eq!(made.sector_size.to_string(), sectors);
        let device = must(pool.open_volume(&request.uid)).0.number();
        let path = format!("/dev/dm-{}", device.minor);
        assert_eq!(run("blockdev", &["--getss", &path]).trim(), sectors);
        let groups = [(claim().uid, Some(group.name.clone()))];
        let found = must(machine.root().inventory(&groups));
        assert_eq!(found.pools[0].images, [made]);
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn the_inventory_has_the_devices_and_mounts_of_the_volumes_of_a_group() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let engine: &dyn Engine = &pool;
    let groups = [(claim().uid, Some(group.name.clone()))];
    let files = ImageRequest {
        size: Bytes::mib(48),
        ..volume(&machine, "ext4", Some(FilesystemType::Ext4))
    };
    let raw = block(&machine, "raw");
    let image = must(pool.create(&files, UNSTOPPED));
    let size = must(pool.create(&raw, UNSTOPPED)).size;
    let (at, raw_at) = (machine.staging("files"), machine.staging("raw"));
    must(engine.stage(&Volume::new(&image).stage(&at)));
    must(engine.stage_block(&BlockStageRequest {
        unlock: None,
        image: &raw.uid,
        volume: &raw.volume,
        size,
        staging: &raw_at,
    }));
    let [files, raw] = [&files, &raw].map(|request| LogicalInventory {
        device: must(pool.open_volume(&request.uid)).0.number(),
        image: request.uid.clone(),
        is_mapped: false,
    });
    let look = || must(machine.root().inventory(&groups));
    let found = look();
    let logical = &found.pools[0].logical;
    assert!(
        logical.contains(&files) && logical.contains(&raw),
        "{logical:?}"
    );
    let mounts = found.mounts.iter().map(|it| (it.device, &it.mount_point));
    assert_eq!(mounts.collect::<Vec<_>>(), [(files.device, &at)]);
    let nodes = found.nodes.iter();
    let nodes = nodes.map(|it| (it.device, it.mount.mount_point.clone()));
    let node = raw_at.join(raw.image.as_str());
    assert_eq!(nodes.collect::<Vec<_>>(), [(raw.device, node)]);
    for staging in [&at, &raw_at] {
        must(machine.root().unstage(staging));
    }
    // They stay active.
    let found = look();
    assert_eq!((found.mounts.len(), found.nodes.len()), (0, 0));
    assert_eq!(found.pools[0].logical.len(), 2);
    // Another pool names the group, and has nothing of it.
    let other = (machine.uid("other-pool"), Some(group.name.clone()));
    let [own] = groups;
    let both = must(machine.root().inventory(&[own, other]));
    assert_eq!(both.pools, found.pools);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn every_byte_of_a_new_volume_reads_zero_whatever_the_disks_had() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let mut percents = Vec::new();
    for name in ["first", "second"] {
        let request = block(&machine, name);
        let seen = std::cell::RefCell::new(&mut percents);
        let progress = |percent| {
            seen.borrow_mut().push(percent);
            ControlFlow::Continue(())
        };
        let made = must(pool.create(&request, &progress));
        let device = open(&pool, &request);
        reads_zero(&device, made.size);
        // The next one lies where this one was.
        device.write_all_at(&vec![REMAINS; 1 << 20], 0).unwrap();
        device.sync_all().unwrap();
        drop(device);
        must(pool.remove(&request.uid));
    }
    assert_eq!(percents, [100, 100]);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn logical_volumes_of_others_are_counted_and_never_touched() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let request = block(&machine, "own");
    // The first has the name of a volume, and no tags.
    let names = [format!("cistern-{}", request.uid), "data".to_owned()];
    for name in &names {
        group.lvm(
            "lvcreate",
            &["--yes", "-Wn", "-Zn", "-l", "10", "-n", name, &group.name],
        );
    }
    let pool = group.pool(&machine);
    let before = must(pool.statistics());
    assert_eq!(before.size.saturating_sub(before.empty), Bytes::mib(80));
    assert_eq!(must(pool.volumes()), []);
    assert_eq!(must(pool.sweep()), 0);
    must(pool.remove(&request.uid));
    pool.create(&request, UNSTOPPED).unwrap_err();
    assert_eq!(group.names(), names);
    assert_eq!(must(pool.statistics()), before);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_in_use_is_not_removed_and_the_error_names_its_device() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "used");
    must(pool.create(&request, UNSTOPPED));
    let used = open(&pool, &request);
    for _ in 0..2 {
        let error = pool.remove(&request.uid).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        assert!(error.to_string().contains("block device 25"), "{error}");
        pool.check_unused(&request.uid).unwrap_err();
    }
    reads_zero(&used, request.size);
    drop(used);
    must(pool.check_unused(&request.uid));
    must(pool.remove(&request.uid));
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_grows_where_nothing_of_the_disks_can_be_read_and_a_full_group_says_so() {
    let machine = Machine::new();
    let group = Group::new(&machine, 2);
    let pool = group.pool(&machine);
    let (mut files, raw) = (
        volume(&machine, "files", Some(FilesystemType::Ext4)),
        block(&machine, "raw"),
    );
    files.size = Bytes::mib(300);
    must(pool.create(&files, UNSTOPPED));
    must(pool.create(&raw, UNSTOPPED));
    let grown = must(pool.grow(&files.uid, Bytes::mib(340), UNSTOPPED));
    assert_eq!(grown.size, Bytes::mib(340));
    assert_eq!(
        must(pool.grow(&files.uid, Bytes::mib(300), UNSTOPPED)).size,
        Bytes::mib(340)
    );
    let error = pool.grow(&raw.uid, Bytes::gib(2), UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    let error = pool.grow(&files.uid, Bytes::gib(2), UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    let large = ImageRequest {
        size: Bytes::gib(2),
        ..block(&machine, "large")
    };
    let error = pool.create(&large, UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    let thin = ImageRequest {
        provisioning: Provisioning::Thin,
        ..block(&machine, "thin")
    };
    let error = pool.create(&thin, UNSTOPPED).unwrap_err();
    assert!(error.to_string().contains("thin volumes"), "{error}");
    assert_eq!(must(pool.volumes()).len(), 2);
    assert_eq!(group.names().len(), 2);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_raw_block_volume_grows_by_zeros_whatever_the_disks_had() {
    let machine = Machine::new();
    let group = Group::new(&machine, 2);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    // The free extents are in several pieces.
    let others: Vec<String> = (0..8).map(|index| format!("other-{index}")).collect();
    for name in &others {
        let args = ["--yes", "-Wn", "-Zn", "-l", "10", "-n", name, &group.name];
        group.lvm("lvcreate", &args);
    }
    for name in others.iter().step_by(2) {
        let name = format!("{}/{name}", group.name);
        group.lvm("lvremove", &["--yes", &name]);
    }
    let free = must(pool.statistics()).available;
    let all = request.size.saturating_add(free);
    let grown = must(pool.grow(&request.uid, all, UNSTOPPED));
    assert_eq!(must(pool.statistics()).available, Bytes::ZERO);
    reads_zero(&open(&pool, &request), grown.size);
    let name = format!("{}/cistern-{}", group.name, request.uid);
    let segments = group.lvm("lvs", &["--noheadings", "--options", "seg_count", &name]);
    assert!(segments.trim().parse::<u32>().unwrap() > 2, "{segments}");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r15_an_error_at_any_call_that_grows_a_raw_block_volume_shows_no_byte_of_the_disks() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let (system, faulty) = machine.faulty();
    let faulty = must(group.open_by(&faulty, Expectation::Made));
    let request = block(&machine, "raw");
    let mut size = must(pool.create(&request, UNSTOPPED)).size;
    for at in sampled(3, 400) {
        size = size.saturating_add(Bytes::mib(4));
        system.fail_in(at);
        let grown = faulty.grow(&request.uid, size, UNSTOPPED);
        let is_over = !system.has_failed();
        assert!(!is_over || grown.is_ok(), "{grown:?}");
        assert_eq!(must(pool.grow(&request.uid, size, UNSTOPPED)).size, size);
        must(pool.sweep());
        assert_eq!(group.names().len(), 1);
        let device = open(&pool, &request);
        let mut new = vec![REMAINS; 4 << 20];
        device.read_exact_at(&mut new, size.0 - (4 << 20)).unwrap();
        assert!(new.iter().all(|byte| *byte == 0), "call {at}");
        if is_over {
            assert!(at > 20, "{at} calls");
            return;
        }
    }
    panic!("too many calls");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r15_an_error_at_any_call_that_makes_or_removes_a_logical_volume_is_recovered_by_the_next_attempt()
 {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "volume");
    let (system, faulty) = machine.faulty();
    let faulty = must(group.open_by(&faulty, Expectation::Made));
    for at in sampled(3, 200) {
        system.fail_in(at);
        let made = faulty.create(&request, UNSTOPPED);
        let is_over = !system.has_failed();
        assert!(!is_over || made.is_ok(), "{made:?}");
        // What is not whole is removed, or continued.
        let swept = if at % 2 == 0 { must(pool.sweep()) } else { 0 };
        assert!(swept <= 1);
        let made = must(pool.create(&request, UNSTOPPED));
        reads_zero(&open(&pool, &request), made.size);
        assert_eq!(group.names().len(), 1);
        system.fail_in(if is_over { u64::MAX / 2 } else { at });
        let removed = faulty.remove(&request.uid);
        assert!(removed.is_ok() || system.has_failed(), "{removed:?}");
        must(pool.remove(&request.uid));
        assert_eq!(group.names(), Vec::<String>::new());
        if is_over {
            assert!(at > 10, "{at} calls");
            return;
        }
    }
    panic!("too many calls");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_that_is_not_active_is_activated_when_it_is_used() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "kept");
    must(pool.create(&request, UNSTOPPED));
    open(&pool, &request).write_all_at(b"data", 0).unwrap();
    // As after a reboot: the host does not activate the volumes of Cistern.
    let name = format!("{}/cistern-{}", group.name, request.uid);
    group.lvm("lvchange", &["--activate", "n", &name]);
    must(pool.check_unused(&request.uid));
    let mut found = [0; 4];
    open(&pool, &request).read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"data");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_that_came_with_another_group_is_not_removed() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "merged");
    must(pool.create(&request, UNSTOPPED));
    let tag = |uuid| format!("cistern.poolUuid={uuid}");
    let name = format!("{}/cistern-{}", group.name, request.uid);
    let (own, other) = (tag(pool.pool_uuid()), tag(Uuid::new_v4()));
    group.lvm("lvchange", &["--deltag", &own, "--addtag", &other, &name]);
    let error = pool.remove(&request.uid).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    assert_eq!(group.names().len(), 1);
    group.lvm("lvchange", &["--deltag", &other, "--addtag", &own, &name]);
    must(pool.remove(&request.uid));
}
