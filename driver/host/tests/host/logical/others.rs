//! What an administrator, an interrupted command or another thread does to a group meanwhile.

use std::{
    cell::RefCell,
    ops::ControlFlow,
    os::unix::fs::FileExt as _,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use cistern_host::{
    Expectation, ImageRequest, UNSTOPPED,
    image::Error,
    logical::Growth,
    system::{FailAt, Fault, System},
};
use cistern_types::Bytes;

use super::{DISK, Group, Grow as _, block, claim, open, reads_zero};
use crate::{
    device::Disk,
    harness::{Machine, eventually, must, root, run},
};

fn missing(group: &Group) -> String {
    let args = [
        "--noheadings",
        "--options",
        "vg_missing_pv_count",
        &group.name,
    ];
    group.lvm("vgs", &args).trim().to_owned()
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_is_extended_while_its_pool_is_in_use() {
    let machine = Machine::new();
    let mut group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    let before = must(pool.statistics()).size;
    let disk = Disk::of_size(&machine, "later", DISK);
    let path = disk.path().to_owned();
    group.disks.push(disk);
    group.lvm("vgextend", &["--yes", &group.name, &path]);
    must(pool.remove(&request.uid));
    must(pool.create(&request, UNSTOPPED));
    assert_eq!(missing(&group), "0");
    assert_eq!(must(pool.statistics()).size.0, 2 * before.0);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_disk_that_is_away_for_a_while_is_not_recorded_as_missing() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 2);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    let label = group.disks[1].label();
    group.disks[1].clear_label();
    for _ in 0..2 {
        let error = pool.remove(&request.uid).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("--restoremissing"), "{error}: {cause}");
    }
    group.disks[1].write(0, &label);
    assert_eq!(missing(&group), "0");
    must(pool.remove(&request.uid));
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_that_becomes_whole_while_leftovers_are_removed_is_kept() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = Arc::new(group.pool(&machine));
    let (system, faulty) = machine.faulty();
    let faulty = must(group.open_by(&faulty, Expectation::Made));
    let request = block(&machine, "raw");
    // A call that is interrupted here leaves a volume that is not whole.
    let interrupt = |at: &u64| {
        system.fail_in(*at);
        faulty.create(&request, UNSTOPPED).unwrap_err();
        system.fail_in(u64::MAX / 2);
        !group.names().is_empty()
    };
    let interrupted = (1..100).find(interrupt).unwrap();
    // Before, while and after the sweep finds what it removes.
    for at in [3, 4, 6, 8] {
        assert!(at == 3 || interrupt(&interrupted));
        let (done, is_done) = mpsc::channel();
        let (pool_there, request_there) = (Arc::clone(&pool), request.clone());
        system.meanwhile_in(at, move || {
            let (made, is_made) = mpsc::channel();
            let creating = thread::spawn(move || {
                let image = pool_there.create(&request_there, UNSTOPPED);
                // The hook has stopped waiting if this is late.
                let _ = made.send(());
                image
            });
            // It waits for the sweep if that is at this volume.
            let _ = is_made.recv_timeout(Duration::from_secs(2));
            done.send(creating).unwrap();
        });
        must(faulty.sweep());
        let Ok(creating) = is_done.try_recv() else {
            panic!("the sweep has fewer than {at} calls");
        };
        let image = must(creating.join().unwrap());
        assert_eq!(must(pool.volume(&request.uid)), Some(image), "call {at}");
        must(pool.remove(&request.uid));
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_device_that_an_interrupted_command_has_left_suspended_is_resumed() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    let device = open(&pool, &request);
    let number = must(pool.open_volume(&request.uid)).0.number();
    let path = format!("/dev/dm-{}", number.minor);
    let state = || {
        run(
            "dmsetup",
            &[
                "info",
                "--columns",
                "--noheadings",
                "--options",
                "suspended",
                &path,
            ],
        )
    };
    let resume: [&dyn Fn(); 2] = [&|| assert_eq!(must(pool.sweep()), 0), &|| {
        drop(must(pool.open_volume(&request.uid)));
    }];
    for resume in resume {
        run("dmsetup", &["suspend", &path]);
        assert_eq!(state().trim(), "Suspended");
        resume();
        assert_eq!(state().trim(), "Active");
        device.write_all_at(b"data", 0).unwrap();
        device.sync_all().unwrap();
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn no_volume_is_made_once_the_metadata_is_full_and_those_that_exist_still_grow() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    let before = must(pool.statistics());
    let long = "t".repeat(1000);
    let free = || -> u64 {
        let args = [
            "--noheadings",
            "--nosuffix",
            "--units",
            "b",
            "--options",
            "vg_mda_free",
        ];
        let text = group.lvm("vgs", &[&args[..], &[&group.name]].concat());
        text.trim().parse().unwrap()
    };
    // LVM keeps the tags in its metadata.
    for round in 0..20 {
        if free() < 64 << 10 {
            break;
        }
        let tags: Vec<String> = (0..40)
            .map(|index| format!("{long}-{round}-{index}"))
            .collect();
        let add = tags.iter().flat_map(|tag| ["--addtag", tag.as_str()]);
        let args: Vec<&str> = add.chain([group.name.as_str()]).collect();
        group.lvm("vgchange", &args);
    }
    assert!(free() < 64 << 10);
    let full = must(pool.statistics());
    assert_eq!(full.available, Bytes::ZERO);
    assert_eq!(full.empty, before.empty.saturating_sub(before.available));
    let error = pool
        .create(&block(&machine, "other"), UNSTOPPED)
        .unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert_eq!(group.names().len(), 1);
    must(pool.grow(&request.uid, Bytes::mib(60), UNSTOPPED));
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_with_a_copy_of_one_of_its_disks_is_refused_until_the_copy_is_away() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 2);
    let pool = group.pool(&machine);
    let copy = Disk::attach(machine.path("disk-1"));
    // A look at all devices is not waited for long.
    eventually("the copy to be found", || pool.check().is_err());
    for error in [
        pool.check().unwrap_err().to_string(),
        group
            .open(&machine, Expectation::Made)
            .unwrap_err()
            .to_string(),
    ] {
        assert!(
            error.contains("a second path to it") && error.contains(copy.path()),
            "{error}"
        );
    }
    copy.detach();
    must(pool.check());
}

/// vgimportclone gives a copy of a group other UUIDs, and leaves those of its logical volumes as they are.
#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_has_its_own_device_while_only_its_copy_in_another_group_is_active() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    let volume = format!("cistern-{}", request.uid);
    let name = format!("{}/{volume}", group.name);
    group.lvm("lvchange", &["--activate", "n", &name]);
    let disk = Disk::of_size(&machine, "copy", DISK);
    disk.write(0, &group.disks[0].label());
    let copy = Group {
        name: machine.uid("copy").to_string(),
        disks: vec![disk],
    };
    let import = ["--basevgname", &copy.name, copy.disks[0].path()];
    copy.lvm("vgimportclone", &import);
    copy.lvm("vgchange", &["--activate", "y", &copy.name]);
    assert_eq!(copy.names(), [volume.as_str()]);
    // Its tags are those of the group, too.
    let found = machine.root().group_inventory(&claim().uid, None);
    let why = found.unwrap().silent.unwrap();
    for name in [&group.name, &copy.name] {
        assert!(why.contains(&format!("/dev/{name}: it is pool ")), "{why}");
    }
    let devices = || {
        let mut io = must(machine.root().volume_io());
        io.retain(|io| io.image == request.uid);
        io.into_iter().map(|io| io.device).collect::<Vec<_>>()
    };
    assert!(devices().is_empty(), "{:?}", devices());

    let device = must(pool.open_volume(&request.uid)).0.number();
    assert_eq!(devices(), [device]);
    let mapping = format!("/sys/dev/block/{device}/dm/name");
    let mapping = std::fs::read_to_string(mapping).unwrap();
    let own = group.name.replace('-', "--");
    assert!(mapping.starts_with(&own), "{mapping}");
    must(pool.remove(&request.uid));
    assert_eq!(group.names(), Vec::<String>::new());
    assert_eq!(copy.names(), [volume]);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_device_that_the_kernel_does_not_open_for_writing_is_opened_for_reading() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let request = block(&machine, "raw");
    must(group.pool(&machine).create(&request, UNSTOPPED));
    let system = FailAt::new(Arc::clone(&machine.system), Fault::Busy, u64::MAX);
    let system = Arc::new(system);
    let root = root(&machine.folder, Arc::clone(&system) as Arc<dyn System>);
    let pool = must(group.open_by(&root, Expectation::Made));
    let mut opened = 0;
    for at in 1..100 {
        system.fail_in(at);
        let is_ok = pool.open_volume(&request.uid).is_ok();
        if !system.has_failed() {
            break;
        }
        opened += u32::from(is_ok);
    }
    // Without another attempt, no call may fail.
    assert_ne!(opened, 0);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_that_is_no_longer_wanted_is_not_zeroed_to_its_end() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = ImageRequest {
        size: Bytes::mib(200),
        ..block(&machine, "raw")
    };
    let percents = RefCell::new(Vec::new());
    let stop = |percent| {
        percents.borrow_mut().push(percent);
        ControlFlow::Break(())
    };
    pool.create(&request, &stop).unwrap_err();
    assert_eq!(percents.take(), [32]);
    assert_eq!(must(pool.volumes()), []);
    let made = must(pool.create(&request, UNSTOPPED));
    assert_eq!(made.size, request.size);
    must(pool.remove(&request.uid));
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_raw_block_volume_is_as_before_until_its_prepared_growth_is_finished() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    let before = must(pool.create(&request, UNSTOPPED));
    let size = before.size.saturating_add(Bytes::mib(128));
    let stop = |_: u8| ControlFlow::Break(());
    pool.prepare_growth(&request.uid, size, &stop).unwrap_err();
    let growth = must(pool.prepare_growth(&request.uid, size, UNSTOPPED));
    assert_eq!(must(pool.volume(&request.uid)), Some(before));
    // It is no remains of an interrupted call.
    assert_eq!(must(pool.sweep()), 0);
    assert_eq!(group.names().len(), 2);
    let grown = must(pool.finish_growth(&request.uid, size, growth));
    assert_eq!(grown.size, size);
    reads_zero(&open(&pool, &request), size);

    // What is not prepared is not shown to a pod, and what is not finished is removed.
    let more = size.saturating_add(Bytes::mib(8));
    let unprepared = pool.finish_growth(&request.uid, more, Growth::default());
    unprepared.unwrap_err();
    assert_eq!(must(pool.volume(&request.uid)), Some(grown));
    drop(must(pool.prepare_growth(&request.uid, more, UNSTOPPED)));
    assert_eq!(must(pool.sweep()), 1);
    assert_eq!(group.names().len(), 1);
}
