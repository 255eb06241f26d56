//! Filesystems are held still for a snapshot, never for long, and never for ever.

use std::{
    cell::RefCell,
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::Instant,
};

use chrono::{DateTime, Utc};
use cistern_crds::{Consistency, FilesystemType, Provisioning};
use cistern_host::{
    BlockStageRequest, Image, ImageRequest, Member, Pool,
    snapshot::{Error, HOLD_LIMIT},
};

use crate::{
    harness::{Machine, Volume, image_path, must, open_new, request, run},
    snapshot::{SIZE, cut, snapshot_of},
    stuck_writer::StuckWriter,
};

/// A volume that is staged.
fn staged(
    machine: &Machine,
    pool: &Pool,
    name: &str,
    filesystem: FilesystemType,
) -> (Image, PathBuf) {
    let image = must(pool.create_image(&request(name, SIZE, filesystem, Provisioning::Thin)));
    let staging = machine.staging(name);
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    (image, staging)
}

/// A raw block volume that is staged.
fn staged_block(machine: &Machine, pool: &Pool, name: &str) -> Image {
    let wanted = request(name, SIZE, FilesystemType::Ext4, Provisioning::Thin);
    let image = must(pool.create_image(&ImageRequest {
        uid: machine.uid(name),
        filesystem: None,
        ..wanted
    }));
    must(pool.stage_block(&BlockStageRequest {
        image: &image.uid,
        volume: image.identity.as_ref().unwrap().owner.volume().unwrap(),
        size: image.size,
        staging: &machine.staging(name),
    }));
    image
}

#[track_caller]
fn is_not_held<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::NotHeldStill { .. }), "{error}");
    error.to_string()
}

/// Nothing of a snapshot that was refused remains, and its volume can be written to.
#[track_caller]
fn leaves_no_trace(machine: &Machine, sources: usize, staging: &Path) {
    let pools = machine.inventory().pools;
    assert_eq!(pools[0].images.len(), sources, "{:?}", pools[0].images);
    assert!(pools[0].temporary.is_empty(), "{:?}", pools[0].temporary);
    fs::write(staging.join("after"), "after").unwrap();
    assert_eq!(must(machine.root().thaw_all()), []);
}

#[test]
fn what_was_only_in_memory_is_in_a_snapshot_of_a_filesystem_at_rest_and_it_wants_no_replay() {
    for filesystem in FilesystemType::ALL {
        let machine = Machine::new();
        let pool = open_new(&machine);
        let (source, live) = staged(&machine, &pool, "a", filesystem);
        fs::write(live.join("unsynced"), "unsynced").unwrap();
        let request = snapshot_of(&source, "s");
        let taken = must(cut(&machine, &pool, request, Consistency::Filesystem));
        fs::write(live.join("later"), "later").unwrap();

        let path = image_path(&machine, &taken.uid);
        if filesystem == FilesystemType::Ext4 {
            let header = run("dumpe2fs", &["-h", path.to_str().unwrap()]);
            assert!(!header.contains("needs_recovery"), "{header}");
        }
        // Nothing is replayed through it: neither filesystem nor device can be written to.
        let seen = machine.staging("seen");
        let options = match filesystem {
            FilesystemType::Ext4 => "ro,loop,noload",
            FilesystemType::Xfs => "ro,loop,norecovery,nouuid",
            // It would be taken for its source.
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
    /// The file that [`write_while_held`] writes.
    static HELD_UP: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// A clock that stands still until the filesystem that is held can be written to: only the watchdog
/// ends that.
fn write_while_held() -> DateTime<Utc> {
    HELD_UP.with_borrow(|path| fs::write(path.as_ref().unwrap(), "held up").unwrap());
    Utc::now()
}

#[test]
fn a_filesystem_is_thawed_at_the_deadline_whatever_goes_on_and_the_snapshot_is_refused() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (source, live) = staged(&machine, &pool, "a", FilesystemType::Xfs);
    HELD_UP.set(Some(live.join("held-up")));
    let begin = Instant::now();
    let member = Member {
        pool: &pool,
        request: snapshot_of(&source, "s"),
    };
    let result = machine
        .root()
        .cut(&[member], Consistency::Filesystem, write_while_held);
    let why = is_not_held(result);
    assert!(why.contains("longer than 10s"), "{why}");
    assert!(begin.elapsed() >= HOLD_LIMIT);
    leaves_no_trace(&machine, 1, &live);
}

#[test]
fn a_freeze_that_comes_back_too_late_is_given_up_and_thawed_at_once() {
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
    let result = machine.root().cut(&members, Consistency::Crash, Utc::now);
    is_not_held(result);
    // The other was thawed when that was said.
    leaves_no_trace(&machine, 2, &other_at);
    writer.end();
    leaves_no_trace(&machine, 2, &stuck_at);
}

#[test]
fn what_somebody_else_has_frozen_is_not_cut_and_stays_frozen() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (source, live) = staged(&machine, &pool, "a", FilesystemType::Ext4);
    let inside = fs::File::open(&live).unwrap();
    machine.system.freeze(inside.as_fd()).unwrap();
    let request = snapshot_of(&source, "s");
    let why = is_not_held(cut(&machine, &pool, request, Consistency::Filesystem));
    assert!(why.contains("somebody else"), "{why}");
    assert!(machine.system.thaw(inside.as_fd()).unwrap());
    leaves_no_trace(&machine, 1, &live);
}

#[test]
fn all_that_was_left_frozen_is_thawed_and_named() {
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
    let mut thawed = must(machine.root().thaw_all());
    thawed.sort();
    frozen.sort();
    assert_eq!(thawed, frozen);
    assert_eq!(must(machine.root().thaw_all()), []);
}

/// CGS-04: where it cannot be one moment, it fails.
#[test]
fn cgs_04_a_group_has_at_most_one_attached_raw_block_volume() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (files, live) = staged(&machine, &pool, "a", FilesystemType::Ext4);
    let [first, second] = ["b", "c"].map(|name| staged_block(&machine, &pool, name));
    let cut = |sources: &[(&Image, &str)]| {
        let members: Vec<_> = sources
            .iter()
            .map(|(source, name)| Member {
                pool: &pool,
                request: snapshot_of(source, name),
            })
            .collect();
        machine
            .root()
            .cut(&members, Consistency::Filesystem, Utc::now)
    };
    let why = is_not_held(cut(&[(&files, "s"), (&first, "t"), (&second, "u")]));
    assert!(why.contains("raw block"), "{why}");
    leaves_no_trace(&machine, 3, &live);
    assert_eq!(must(cut(&[(&files, "s"), (&first, "t")])).len(), 2);
    // One that nobody has does not change.
    must(machine.root().unstage(&machine.staging("c")));
    assert_eq!(must(cut(&[(&first, "v"), (&second, "w")])).len(), 2);
}

/// A filesystem whose mount is not seen here cannot be brought to rest.
#[test]
fn a_filesystem_that_is_mounted_out_of_sight_is_not_cut_at_rest() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (source, live) = staged(&machine, &pool, "a", FilesystemType::Ext4);
    let hidden = fs::File::open(&live).unwrap();
    rustix::mount::unmount(&live, rustix::mount::UnmountFlags::DETACH).unwrap();
    let request = || snapshot_of(&source, "s");
    let why = is_not_held(cut(&machine, &pool, request(), Consistency::Filesystem));
    assert!(why.contains("not mounted where"), "{why}");
    // As after a loss of power it can be had.
    must(cut(&machine, &pool, request(), Consistency::Crash));
    drop(hidden);
}
