//! Filesystems are frozen for a snapshot, and always thawed by the deadline.

use std::{
    cell::RefCell,
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::mpsc,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use cistern_host::{
    BlockStageRequest, Image, ImageRequest, Member, Pool, Uid,
    snapshot::{Error, FREEZE_LIMIT},
};
use cistern_types::{Consistency, FilesystemType, Provisioning};

use crate::{
    harness::{Machine, Volume, chain, eventually, image_path, must, open_new, request, run},
    scenario::{Volumes as _, thaw},
    snapshot::{SIZE, snapshot_of, take_snapshot},
    stuck_writer::StuckWriter,
};

/// A volume that is staged.
fn staged(
    machine: &Machine,
    pool: &Pool,
    name: &str,
    filesystem: FilesystemType,
) -> (Image, PathBuf) {
    let image = must(pool.new_image(&request(name, SIZE, filesystem, Provisioning::Thin)));
    let staging = machine.staging(name);
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    (image, staging)
}

/// A raw block volume that is staged.
fn staged_block(machine: &Machine, pool: &Pool, name: &str) -> Image {
    let wanted = request(name, SIZE, FilesystemType::Ext4, Provisioning::Thin);
    let image = must(pool.new_image(&ImageRequest {
        uid: machine.uid(name),
        filesystem: None,
        ..wanted
    }));
    must(pool.stage_block(&BlockStageRequest {
        unlock: None,
        image: &image.uid,
        volume: image.identity.as_ref().unwrap().owner.volume().unwrap(),
        size: image.size,
        staging: &machine.staging(name),
    }));
    image
}

#[track_caller]
fn is_not_frozen<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::FreezeFailed { .. }), "{error}");
    error.to_string()
}

/// Asserts that a refused snapshot leaves nothing and that its volume can be written to.
#[track_caller]
fn leaves_no_trace(machine: &Machine, sources: usize, staging: &Path) {
    let pools = machine.inventory().pools;
    assert_eq!(pools[0].images.len(), sources, "{:?}", pools[0].images);
    assert!(pools[0].temporary.is_empty(), "{:?}", pools[0].temporary);
    fs::write(staging.join("after"), "after").unwrap();
    assert_eq!(thaw(&machine.root()).unwrap(), []);
}

#[test]
fn a_snapshot_of_a_frozen_filesystem_has_unsynced_data_and_needs_no_replay() {
    for filesystem in FilesystemType::ALL {
        let machine = Machine::new();
        let pool = open_new(&machine);
        let (source, live) = staged(&machine, &pool, "a", filesystem);
        fs::write(live.join("unsynced"), "unsynced").unwrap();
        let request = snapshot_of(&source, "s");
        let taken = must(take_snapshot(
            &machine,
            &pool,
            request,
            Consistency::Filesystem,
        ));
        fs::write(live.join("later"), "later").unwrap();

        let path = image_path(&machine, &taken.uid);
        if filesystem == FilesystemType::Ext4 {
            let header = run("dumpe2fs", &["-h", path.to_str().unwrap()]);
            assert!(!header.contains("needs_recovery"), "{header}");
        }
        // No log is replayed: filesystem and device are both read-only.
        let seen = machine.staging("seen");
        let options = match filesystem {
            FilesystemType::Ext4 => "ro,loop,noload",
            FilesystemType::Xfs => "ro,loop,norecovery,nouuid",
            // The kernel treats a copy of a btrfs as its source.
            FilesystemType::Btrfs => continue,
        };
        run(
            "mount",
            &[
                "-o",
                options,
                path.to_str().unwrap(),
                seen.to_str().unwrap(),
            ],
        );
        assert_eq!(
            fs::read_to_string(seen.join("unsynced")).unwrap(),
            "unsynced"
        );
        assert!(!seen.join("later").exists());
        run("umount", &[seen.to_str().unwrap()]);
    }
}

thread_local! {
    /// The file that [`write_while_frozen`] writes.
    static BLOCKED_FILE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// A clock that blocks until the frozen filesystem can be written to, so only the watchdog ends the
/// freeze.
fn write_while_frozen() -> DateTime<Utc> {
    BLOCKED_FILE.with_borrow(|path| fs::write(path.as_ref().unwrap(), "blocked").unwrap());
    Utc::now()
}

#[test]
fn a_filesystem_is_always_thawed_at_the_deadline_and_the_snapshot_is_refused() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (source, live) = staged(&machine, &pool, "a", FilesystemType::Xfs);
    BLOCKED_FILE.set(Some(live.join("blocked")));
    let begin = Instant::now();
    let member = Member {
        pool: &pool,
        request: snapshot_of(&source, "s"),
    };
    let result =
        machine
            .root()
            .take_snapshots(&[member], Consistency::Filesystem, write_while_frozen);
    let why = is_not_frozen(result);
    assert!(why.contains("longer than 10s"), "{why}");
    assert!(begin.elapsed() >= FREEZE_LIMIT);
    leaves_no_trace(&machine, 1, &live);
}

#[test]
fn a_freeze_that_returns_too_late_is_abandoned_and_thawed_immediately() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (stuck, stuck_at) = staged(&machine, &pool, "a", FilesystemType::Ext4);
    let (other, other_at) = staged(&machine, &pool, "b", FilesystemType::Ext4);
    // The kernel waits for the end of every write before a filesystem is frozen.
    let writer = StuckWriter::begin(&stuck_at.join("stuck"));
    let members = [(&stuck, "s"), (&other, "t")].map(|(source, name)| Member {
        pool: &pool,
        request: snapshot_of(source, name),
    });
    let result = machine
        .root()
        .take_snapshots(&members, Consistency::Crash, Utc::now);
    is_not_frozen(result);
    // The other filesystem is thawed before the call returns.
    leaves_no_trace(&machine, 2, &other_at);
    writer.end();
    leaves_no_trace(&machine, 2, &stuck_at);
}

#[test]
fn a_filesystem_that_another_process_froze_is_not_snapshotted_and_stays_frozen() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (source, live) = staged(&machine, &pool, "a", FilesystemType::Ext4);
    let inside = fs::File::open(&live).unwrap();
    machine.system.freeze(inside.as_fd()).unwrap();
    let request = snapshot_of(&source, "s");
    let why = is_not_frozen(take_snapshot(
        &machine,
        &pool,
        request,
        Consistency::Filesystem,
    ));
    assert!(why.contains("another process has frozen"), "{why}");
    assert!(machine.system.thaw(inside.as_fd()).unwrap());
    leaves_no_trace(&machine, 1, &live);
}

#[test]
fn every_filesystem_left_frozen_is_thawed_and_named() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let mut frozen = Vec::new();
    for filesystem in FilesystemType::ALL {
        let (image, live) = staged(&machine, &pool, filesystem.as_str(), filesystem);
        let inside = fs::File::open(live).unwrap();
        machine.system.freeze(inside.as_fd()).unwrap();
        frozen.push(image.uid);
    }
    let _untouched = staged_block(&machine, &pool, "c");
    let mut thawed = thaw(&machine.root()).unwrap();
    thawed.sort();
    frozen.sort();
    assert_eq!(thawed, frozen);
    assert_eq!(thaw(&machine.root()).unwrap(), []);
}

#[test]
fn a_filesystem_that_hangs_delays_no_thaw_of_another_and_is_thawed_once_it_answers() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volumes = ["a", "b"].map(|name| staged(&machine, &pool, name, FilesystemType::Ext4));
    for (_, live) in &volumes {
        let inside = fs::File::open(live).unwrap();
        machine.system.freeze(inside.as_fd()).unwrap();
    }
    let (system, root) = machine.faulty();
    let (answer, hangs) = mpsc::channel::<()>();
    // The first call for one of the volumes, after the two that list their devices.
    system.meanwhile_in(3, move || _ = hangs.recv());
    let is_ours = |image: &Uid| volumes.iter().any(|(ours, _)| ours.uid == *image);
    let answers = must(root.thaw_left_frozen(Duration::from_secs(5), is_ours));
    let (thawed, left): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, it)| it.is_ok());
    let [(first, Ok(true))] = &thawed[..] else {
        panic!("{thawed:?}");
    };
    let [(second, Err(error))] = &left[..] else {
        panic!("{left:?}");
    };
    assert!(chain(error).contains("timed out"), "{}", chain(error));
    let write = |image: &Uid| {
        let (_, live) = volumes.iter().find(|(it, _)| it.uid == *image).unwrap();
        fs::write(live.join("after"), "after").unwrap();
    };
    write(first);

    let again = || {
        let answers = root.thaw_left_frozen(Duration::from_secs(5), |image| image == second);
        must(answers).remove(second).unwrap()
    };
    assert!(again().is_err(), "it costs one thread");
    drop(answer);
    eventually("the filesystem to answer", || again().is_ok());
    write(second);
}

/// CGS-04: a group that cannot be snapshotted at one point in time is refused.
#[test]
fn cgs_04_a_group_has_at_most_one_attached_raw_block_volume() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (files, live) = staged(&machine, &pool, "a", FilesystemType::Ext4);
    let [first, second] = ["b", "c"].map(|name| staged_block(&machine, &pool, name));
    let take = |sources: &[(&Image, &str)]| {
        let members: Vec<_> = sources
            .iter()
            .map(|(source, name)| Member {
                pool: &pool,
                request: snapshot_of(source, name),
            })
            .collect();
        machine
            .root()
            .take_snapshots(&members, Consistency::Filesystem, Utc::now)
    };
    let why = is_not_frozen(take(&[(&files, "s"), (&first, "t"), (&second, "u")]));
    assert!(why.contains("raw block"), "{why}");
    leaves_no_trace(&machine, 3, &live);
    assert_eq!(must(take(&[(&files, "s"), (&first, "t")])).len(), 2);
    // An unstaged volume does not change.
    must(machine.root().unstage(&machine.staging("c")));
    assert_eq!(must(take(&[(&first, "v"), (&second, "w")])).len(), 2);
}

/// The clones are made one after the other while all filesystems are frozen.
#[test]
fn a_group_that_would_block_its_writers_for_too_long_together_is_refused_before_it_is_frozen() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let staged = ["a", "b"].map(|name| staged(&machine, &pool, name, FilesystemType::Ext4));
    // The agent counts with 20 µs for each extent until it has measured one.
    let stall = |image: &Image| Duration::from_micros(20 * must(pool.extent_count(&image.uid)));
    let sum: Duration = staged.iter().map(|(image, _)| stall(image)).sum();
    let take = |limit: Duration| {
        let member = |(image, _): &(Image, PathBuf)| {
            assert!(stall(image) < limit, "{image:?}");
            let mut request = snapshot_of(image, image.uid.as_str());
            request.extent_limits.stall = Some(limit);
            Member {
                pool: &pool,
                request,
            }
        };
        let members: Vec<_> = staged.iter().map(member).collect();
        machine
            .root()
            .take_snapshots(&members, Consistency::Crash, Utc::now)
    };
    let error = take(sum * 4 / 5).unwrap_err();
    assert!(matches!(error, Error::StallTooLong { .. }), "{error}");
    for (_, live) in &staged {
        leaves_no_trace(&machine, 2, live);
    }
    // What was written meanwhile takes some extents.
    assert_eq!(must(take(sum * 4)).len(), 2);
}

/// The agent cannot freeze a filesystem whose mount it does not see.
#[test]
fn a_filesystem_whose_mount_is_hidden_gets_no_frozen_snapshot() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (source, live) = staged(&machine, &pool, "a", FilesystemType::Ext4);
    let hidden = fs::File::open(&live).unwrap();
    rustix::mount::unmount(&live, rustix::mount::UnmountFlags::DETACH).unwrap();
    let request = || snapshot_of(&source, "s");
    let why = is_not_frozen(take_snapshot(
        &machine,
        &pool,
        request(),
        Consistency::Filesystem,
    ));
    assert!(why.contains("not mounted where"), "{why}");
    // A crash-consistent snapshot is still possible.
    must(take_snapshot(
        &machine,
        &pool,
        request(),
        Consistency::Crash,
    ));
    drop(hidden);
}
