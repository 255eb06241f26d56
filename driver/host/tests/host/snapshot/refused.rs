//! What cannot be snapshotted or cloned.

use std::{fs, time::Duration};

use cistern_host::{ImageRequest, SnapshotRequest, image, snapshot};
use cistern_types::{Bytes, Consistency, ExtentLimits, FilesystemType, Provisioning};
use rustix::fs::FallocateFlags;

use super::{SIZE, block, conflicts, from, snapshot_of, take_snapshot, wanted_block};
use crate::{
    harness::{Machine, image_path, must, open_new, request, uid},
    scenario::Volumes as _,
};

#[test]
fn an_image_whose_copy_would_block_its_writers_for_too_long_is_refused() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let source = block(&machine, &pool, "a");
    // One extent, at 20 µs until the first copy of a fragmented image is measured.
    let limits = |micros| ExtentLimits {
        stall: Some(Duration::from_micros(micros)),
        ..ExtentLimits::number(1)
    };
    let mut request = snapshot_of(&source, "s");
    request.extent_limits = limits(19);
    let taken = take_snapshot(&machine, &pool, request.clone(), Consistency::Crash);
    let error = taken.map_err(of_image).unwrap_err();
    let is_it = matches!(error, image::Error::StallTooLong { extents: 1, .. });
    assert!(is_it, "{error}");
    let mut wanted = from(&source, wanted_block("b", Bytes::mib(1)));
    wanted.source.as_mut().unwrap().extent_limits = limits(19);
    let error = pool.new_image(&wanted).unwrap_err();
    assert!(
        matches!(error, image::Error::StallTooLong { .. }),
        "{error}"
    );

    request.extent_limits = limits(20);
    take_snapshot(&machine, &pool, request, Consistency::Crash).unwrap();
}

#[test]
fn sources_that_cannot_be_snapshotted_or_cloned_are_refused_and_leave_nothing() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let source = block(&machine, &pool, "a");
    assert_eq!(must(pool.extent_count(&source.uid)), 1);
    let path = image_path(&machine, &source.uid);
    let file = fs::File::options().write(true).open(path).unwrap();
    // Holes split the one extent.
    for offset in [4096, 3 * 4096, 5 * 4096] {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, offset, 4096).unwrap();
    }
    assert_eq!(must(pool.extent_count(&source.uid)), 4);

    let clone = |limit, change: fn(&mut ImageRequest)| {
        let mut wanted = from(&source, wanted_block("b", Bytes::mib(1)));
        wanted.source.as_mut().unwrap().extent_limits = ExtentLimits::number(limit);
        change(&mut wanted);
        pool.new_image(&wanted)
    };
    let taken = |limit, change: fn(&mut SnapshotRequest)| {
        let mut request = snapshot_of(&source, "s");
        request.extent_limits = ExtentLimits::number(limit);
        change(&mut request);
        take_snapshot(&machine, &pool, request, Consistency::Crash).map_err(of_image)
    };
    for result in [clone(3, |_| {}), taken(3, |_| {})] {
        let error = result.unwrap_err();
        let image::Error::TooManyExtents { extents, limit, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((extents, limit), (4, 3));
    }
    for result in [
        clone(4, |wanted| {
            wanted.source.as_mut().unwrap().uid = uid("gone");
        }),
        taken(4, |request| request.source = uid("gone")),
    ] {
        let error = result.unwrap_err();
        let is_it = matches!(error, image::Error::SourceMissing { .. });
        assert!(is_it, "{error}");
    }
    conflicts(taken(4, |request| request.volume = "pvc-b".to_owned()));
    conflicts(clone(4, |wanted| {
        wanted.filesystem = Some(FilesystemType::Ext4);
    }));
    let pools = machine.inventory().pools;
    assert_eq!(pools[0].images.len(), 1);
    assert!(pools[0].temporary.is_empty());
    must(taken(4, |_| {}));
    must(clone(4, |_| {}));
}

fn of_image(error: snapshot::Error) -> image::Error {
    match error {
        snapshot::Error::Image(error) => error,
        error @ (snapshot::Error::FreezeFailed { .. }
        | snapshot::Error::StallTooLong { .. }
        | snapshot::Error::Stopped(_)) => panic!("{error}"),
    }
}

#[test]
fn vcs_07_a_clone_smaller_than_its_source_is_refused() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let wanted = |name, size| request(name, size, FilesystemType::Ext4, Provisioning::Thin);
    let source = must(pool.new_image(&wanted("a", Bytes::mib(301))));
    conflicts(pool.new_image(&from(&source, wanted("b", SIZE))));
    assert_eq!(must(pool.images()), [source]);
}
