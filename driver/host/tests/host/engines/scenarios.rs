//! What every engine does.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    time::Duration,
};

use cistern_host::{
    ExpandRequest, Image, UNSTOPPED, Uuid, VolumeStatistics, image::Error, mounting,
};
use cistern_types::{Bytes, FilesystemType};

use super::fixture::Fixture;
use crate::{
    harness::{chain, must, sampled},
    health_volume::subject,
    logical::Grow as _,
};

/// A size that an XFS has at least.
const SIZE: Bytes = Bytes::mib(304);
/// The size of a volume with ext4.
const SMALL: Bytes = Bytes::mib(48);
/// The filesystems of volumes that grow, and their sizes.
const FILESYSTEMS: [(FilesystemType, Bytes); 2] =
    [(FilesystemType::Ext4, SMALL), (FilesystemType::Xfs, SIZE)];
/// By how much volumes grow.
const MORE: Bytes = Bytes::mib(36);
/// How long an answer may take in the guest.
const PATIENCE: Duration = Duration::from_mins(2);
/// What a pod writes.
const DATA: &[u8] = b"what a pod has written";

fn write(folder: &Path) {
    let file = File::create(folder.join("data")).unwrap();
    file.write_all_at(DATA, 0).unwrap();
    file.sync_all().unwrap();
}

#[track_caller]
fn has_data(folder: &Path) {
    assert_eq!(fs::read(folder.join("data")).unwrap(), DATA);
}

fn blocks(folder: &Path) -> Bytes {
    let space = rustix::fs::statvfs(folder).unwrap();
    Bytes(space.f_blocks * space.f_frsize)
}

pub(super) fn a_volume_keeps_its_data_from_pod_to_pod(pool: &Fixture) {
    let staging = pool.machine.staging("globalmount");
    for (filesystem, size) in FILESYSTEMS {
        let image = pool.create(filesystem.as_str(), size, Some(filesystem));
        write(&pool.start_pod(&image, &staging));
        // kubelet repeats its calls for a running pod.
        must(pool.stage(&image, &staging));
        pool.end_pod(&image, &staging);
        has_data(&pool.start_pod(&image, &staging));
        pool.end_pod(&image, &staging);
        must(pool.engine.remove(&image.uid));
        assert_eq!(must(pool.engine.volume(&image.uid)), None);
    }
}

pub(super) fn a_raw_block_volume_keeps_its_data_from_pod_to_pod(pool: &Fixture) {
    let staging = pool.machine.staging("globalmount");
    let image = pool.create("raw", Bytes::mib(32), None);
    let target = pool.start_block_pod(&image, &staging);
    let device = File::options().write(true).open(&target).unwrap();
    device.write_all_at(DATA, 4096).unwrap();
    device.sync_all().unwrap();
    drop(device);
    must(pool.stage_block(&image, &staging));
    let still = pool.machine.root().unstage(&staging).unwrap_err();
    assert!(
        matches!(still, mounting::Error::StillPublished { .. }),
        "{still}"
    );
    pool.end_pod(&image, &staging);
    let target = pool.start_block_pod(&image, &staging);
    let mut found = vec![0; DATA.len()];
    File::open(&target)
        .unwrap()
        .read_exact_at(&mut found, 4096)
        .unwrap();
    assert_eq!(found, DATA);
    pool.end_pod(&image, &staging);
}

pub(super) fn a_volume_grows_while_a_pod_uses_it(pool: &Fixture) {
    let staging = pool.machine.staging("globalmount");
    let image = pool.create("xfs", SIZE, Some(FilesystemType::Xfs));
    let target = pool.start_pod(&image, &staging);
    write(&target);
    let before = blocks(&target);
    let wanted = SIZE.saturating_add(MORE);
    let grown = must(pool.engine.grow(&image.uid, wanted, UNSTOPPED));
    assert_eq!(grown.size, wanted);
    for _ in 0..2 {
        let size = must(pool.engine.expand(&ExpandRequest {
            image: &image.uid,
            filesystem: Some(FilesystemType::Xfs),
            path: &target,
            required: wanted,
            limit: None,
            keys: pool.volume(&image).unlock.map(|unlock| unlock.keys),
        }));
        assert_eq!(size, wanted);
        assert!(blocks(&target) > before.saturating_add(Bytes::mib(30)));
    }
    has_data(&target);
    pool.end_pod(&image, &staging);
}

pub(super) fn a_volume_that_has_grown_is_staged_at_its_new_size(pool: &Fixture) {
    let staging = pool.machine.staging("globalmount");
    for (filesystem, size) in FILESYSTEMS {
        let image = pool.create(filesystem.as_str(), size, Some(filesystem));
        let target = pool.start_pod(&image, &staging);
        write(&target);
        let before = blocks(&target);
        pool.end_pod(&image, &staging);
        must(
            pool.engine
                .grow(&image.uid, size.saturating_add(MORE), UNSTOPPED),
        );
        let target = pool.start_pod(&image, &staging);
        assert!(blocks(&target) > before.saturating_add(Bytes::mib(30)));
        has_data(&target);
        pool.end_pod(&image, &staging);
        must(pool.engine.remove(&image.uid));
    }
}

pub(super) fn a_raw_block_volume_grows_and_its_new_part_reads_zero(pool: &Fixture) {
    let (staging, size) = (pool.machine.staging("globalmount"), Bytes::mib(32));
    let image = pool.create("raw", size, None);
    let target = pool.start_block_pod(&image, &staging);
    let device = File::options().write(true).open(&target).unwrap();
    device.write_all_at(DATA, 4096).unwrap();
    device.sync_all().unwrap();
    drop(device);
    let grown = must(pool.engine.grow(&image.uid, Bytes::mib(64), UNSTOPPED));
    assert_eq!(grown.size, Bytes::mib(64));
    let unlock = pool.volume_unlock();
    let expanded = must(pool.engine.expand(&ExpandRequest {
        image: &image.uid,
        filesystem: None,
        path: &target,
        required: grown.size,
        limit: None,
        keys: unlock.map(|unlock| unlock.keys),
    }));
    assert_eq!(expanded, grown.size);
    let mut bytes = vec![1; usize::try_from(grown.size.0).unwrap()];
    File::open(&target)
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    assert_eq!(bytes[4096..4096 + DATA.len()], *DATA);
    // What an encrypted volume has never written reads as noise.
    if unlock.is_none() {
        let part = usize::try_from(size.0).unwrap();
        assert!(bytes[part..].iter().all(|byte| *byte == 0));
    }
    pool.end_pod(&image, &staging);
    must(pool.engine.remove(&image.uid));
    assert_eq!(must(pool.engine.volumes()), []);
}

pub(super) fn a_volume_in_use_is_not_removed(pool: &Fixture) {
    let is_in_use = |image: &Image| {
        for error in [
            pool.engine.check_unused(&image.uid).unwrap_err(),
            pool.engine.remove(&image.uid).unwrap_err(),
        ] {
            assert!(matches!(error, Error::InUse { .. }), "{error}");
        }
    };
    let staging = pool.machine.staging("globalmount");
    let image = pool.create("files", SMALL, Some(FilesystemType::Ext4));
    write(&pool.start_pod(&image, &staging));
    is_in_use(&image);
    pool.end_pod(&image, &staging);
    // Nothing opens the device of a raw block volume before its pod does.
    let raw = pool.create("raw", Bytes::mib(32), None);
    must(pool.stage_block(&raw, &staging));
    is_in_use(&raw);
    must(pool.machine.root().unstage(&staging));
    pool.is_unused(&raw);
    for image in [&image, &raw] {
        must(pool.engine.remove(&image.uid));
        must(pool.engine.check_unused(&image.uid));
    }
    assert_eq!(must(pool.engine.volumes()), []);
}

pub(super) fn the_volume_of_another_object_is_refused(pool: &Fixture) {
    let staging = pool.machine.staging("globalmount");
    let image = pool.create("own", SMALL, Some(FilesystemType::Ext4));
    // An encrypted volume has its filesystem from then on.
    pool.start_pod(&image, &staging);
    pool.end_pod(&image, &staging);
    let volume = pool.volume(&image);
    let own = || volume.stage(&staging);
    let refused = |request| match pool.engine.stage(&request).unwrap_err() {
        mounting::Error::Image(error) => error,
        error => panic!("{error}"),
    };
    let mut other = own();
    other.volume = "pvc-other";
    let error = refused(other);
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    let mut other = own();
    other.filesystem_uuid = Uuid::new_v4();
    let error = refused(other);
    assert!(matches!(error, Error::FilesystemConflict { .. }), "{error}");
    let mut larger = own();
    larger.size = SIZE;
    let error = refused(larger);
    assert!(matches!(error, Error::FilesystemConflict { .. }), "{error}");
    let missing = pool.machine.uid("missing");
    let mut gone = own();
    gone.image = &missing;
    let error = refused(gone);
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    pool.is_unused(&image);
}

pub(super) fn a_volume_reports_its_space_its_io_and_no_troubles(pool: &Fixture) {
    let (root, staging) = (pool.machine.root(), pool.machine.staging("globalmount"));
    let image = pool.create("files", SMALL, Some(FilesystemType::Ext4));
    let target = pool.start_pod(&image, &staging);
    write(&target);
    for path in [&staging, &target] {
        let found = must(root.statistics_of(&image.uid, path, PATIENCE));
        let VolumeStatistics::Filesystem(found) = found else {
            panic!("{found:?}");
        };
        assert!(found.total > Bytes::mib(30) && found.available < found.total);
    }
    let io = must(root.volume_io());
    let io = io.iter().find(|io| io.image == image.uid).expect("its I/O");
    assert!(io.counters.written_bytes > 0, "{io:?}");
    let mut places = must(root.mount_points_of(&image.uid));
    places.sort();
    assert_eq!(places, [staging.clone(), target]);
    assert_eq!(pool.engine.examine(&[subject(&image)], PATIENCE), [[]]);
    let vitals = pool.engine.vitals(PATIENCE);
    assert_eq!(vitals.troubles, []);
    let fill = vitals.fill.unwrap();
    assert!(fill.available < fill.size && fill.available > Bytes::ZERO);
    pool.end_pod(&image, &staging);
    must(pool.engine.remove(&image.uid));
    let troubles = pool.engine.examine(&[subject(&image)], PATIENCE);
    assert_eq!(troubles.concat().len(), 1, "{troubles:?}");
}

pub(super) fn r15_an_error_at_any_call_of_a_stage_is_recovered_by_the_next_attempt(pool: &Fixture) {
    let staging = pool.machine.staging("globalmount");
    let image = pool.create("files", SMALL, Some(FilesystemType::Ext4));
    write(&pool.start_pod(&image, &staging));
    pool.end_pod(&image, &staging);
    let (system, faulty) = pool.machine.faulty();
    let engine = pool.open_by(&faulty);
    for at in sampled(pool.stride(), 300) {
        system.fail_in(at);
        let staged = pool.stage_by(&*engine, &image, &staging);
        let is_over = !system.has_failed();
        if let Err(error) = &staged {
            assert!(!is_over, "{}", chain(error));
        }
        must(pool.stage(&image, &staging));
        has_data(&staging);
        system.fail_in(if is_over { u64::MAX / 2 } else { at });
        let unstaged = faulty.unstage(&staging);
        assert!(unstaged.is_ok() || system.has_failed(), "{unstaged:?}");
        must(pool.machine.root().unstage(&staging));
        pool.is_unused(&image);
        if is_over {
            assert!(at > 10, "{at} calls");
            return;
        }
    }
    panic!("too many calls");
}
