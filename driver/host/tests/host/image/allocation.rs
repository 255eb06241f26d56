//! The blocks of thin and thick volumes.

use std::{
    cell::{Cell, RefCell},
    fs,
    ops::ControlFlow,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use cistern_host::{
    BlockStageRequest, Image, ImageRequest, Pool,
    image::Error,
    system::{FailAt, Fault},
};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::fs::{FallocateFlags, fallocate};

use super::{thick, thin};
use crate::{
    harness::{
        Machine, POOL_SIZE, Volume, allocated, eventually, image_path, image_pool, known, must,
        open_new, request, root, run, unstage,
    },
    scenario::Volumes as _,
};

#[test]
fn a_thin_image_allocates_written_blocks_and_frees_deleted_ones() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&thin("a")));
    let path = image_path(&machine, &image.uid);
    let empty = allocated(&path);
    assert!(empty < 16 << 20, "{empty}");
    let (volume, staging) = (Volume::new(&image), machine.staging("s"));
    must(pool.stage(&volume.stage(&staging)));
    fs::write(staging.join("file"), vec![1; 32 << 20]).unwrap();
    unstage(&machine, &image.uid, &staging);
    let full = allocated(&path);
    // A discard of free space releases the 64 KiB that mkfs.ext4 wrote at the end.
    assert!(full >= empty + (31 << 20), "{empty} became {full}");
    must(pool.stage(&volume.stage(&staging)));
    fs::remove_file(staging.join("file")).unwrap();
    unstage(&machine, &image.uid, &staging);
    assert!(allocated(&path) < empty + (8 << 20), "{}", allocated(&path));
}

#[test]
fn a_thick_image_is_fully_allocated_and_reallocated_after_a_trim_inside_it() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    for filesystem in FilesystemType::ALL {
        let request = request(
            filesystem.as_str(),
            Bytes::mib(300),
            filesystem,
            Provisioning::Thick,
        );
        let image = must(pool.new_image(&request));
        let path = image_path(&machine, &image.uid);
        assert!(allocated(&path) >= request.size.0);
        let (volume, staging) = (Volume::new(&image), machine.staging("s"));
        must(pool.stage(&volume.stage(&staging)));
        assert!(allocated(&path) >= request.size.0);
        run("fstrim", &[staging.to_str().unwrap()]);
        assert!(
            allocated(&path) < request.size.0 / 2,
            "the trim punched no hole"
        );
        // XFS goes on trimming for a moment when fstrim has ended.
        eventually("the full image", || {
            must(pool.allocate_all(&image.uid));
            allocated(&path) >= request.size.0
        });
        run("fstrim", &[staging.to_str().unwrap()]);
        unstage(&machine, &image.uid, &staging);
        // Staging reallocates as well.
        must(pool.stage(&volume.stage(&staging)));
        assert!(allocated(&path) >= request.size.0);
        unstage(&machine, &image.uid, &staging);
        must(pool.remove_image(&image.uid));
    }
}

#[test]
fn a_volume_in_use_becomes_thick_and_thin_again_and_keeps_its_data() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&thin("a")));
    let (path, size) = (image_path(&machine, &image.uid), image.size);
    let (volume, staging) = (Volume::new(&image), machine.staging("s"));
    must(pool.stage(&volume.stage(&staging)));
    fs::write(staging.join("file"), "kept").unwrap();
    let missing = size.saturating_sub(Bytes(allocated(&path)));
    assert_eq!(must(pool.shortfall(&image.uid)), Bytes::ZERO);

    let reached = RefCell::new(Vec::new());
    let progress = |percent: u8| {
        let is_allocated = allocated(&path) >= size.percent(u32::from(percent)).0;
        reached.borrow_mut().push((percent, is_allocated));
        ControlFlow::Continue(())
    };
    must(pool.provision(&image.uid, Provisioning::Thick));
    assert!(must(pool.reallocate(&image.uid, &progress)));
    let reached = reached.into_inner();
    let percentages: Vec<u8> = reached.iter().map(|(percent, _)| *percent).collect();
    assert!(percentages.is_sorted(), "{percentages:?}");
    assert!(percentages.len() > 1 && percentages.last() <= Some(&100));
    assert!(reached.iter().all(|(_, is_allocated)| *is_allocated));
    assert!(allocated(&path) >= size.0);
    let thick = must(pool.image(&image.uid)).unwrap();
    assert_eq!(thick.identity.unwrap().provisioning, Provisioning::Thick);
    // A repeated stage finds the mount, which still discards.
    must(pool.stage(&volume.stage(&staging)));

    must(pool.provision(&image.uid, Provisioning::Thin));
    eventually("the trim to free the blocks", || {
        run("fstrim", &[staging.to_str().unwrap()]);
        allocated(&path) < size.0 - missing.0 / 2
    });
    must(pool.allocate_all(&image.uid));
    assert!(allocated(&path) < size.0, "a thin volume was reallocated");
    assert_eq!(fs::read(staging.join("file")).unwrap(), b"kept");
    unstage(&machine, &image.uid, &staging);
}

#[test]
fn the_bytes_that_a_pool_lacks_for_a_thick_volume_are_known_before_it_becomes_thick() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&thin("a")));
    let missing = image.size.saturating_sub(image.allocated);
    let neighbour = take_all(&machine);
    let lacking = must(pool.shortfall(&image.uid));
    assert!(lacking > Bytes::ZERO && lacking <= missing, "{lacking}");
    must(pool.provision(&image.uid, Provisioning::Thick));
    let error = pool.allocate_all(&image.uid).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    fs::remove_file(neighbour).unwrap();
    eventually("the pool to have the space again", || {
        must(pool.shortfall(&image.uid)) == Bytes::ZERO
    });
    must(pool.provision(&image.uid, Provisioning::Thick));
    must(pool.allocate_all(&image.uid));
}

/// A thick raw block volume of which every other block was discarded, and what is still allocated to it.
fn full_of_holes(machine: &Machine, pool: &Pool) -> (Image, u64) {
    const BLOCK: u64 = 4096;
    let request = ImageRequest {
        filesystem: None,
        uid: machine.uid("a"),
        ..thick("a")
    };
    let image = must(pool.new_image(&request));
    let path = image_path(machine, &image.uid);
    let file = fs::File::options().write(true).open(&path).unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for block in (0..image.size.0 / BLOCK).step_by(2) {
        fallocate(&file, flags, block * BLOCK, BLOCK).unwrap();
    }
    let half = allocated(&path);
    assert!(half <= image.size.0 / 2 + (1 << 20), "{half}");
    (image, half)
}

#[test]
fn an_allocation_that_is_stopped_ends_between_two_holes_and_the_next_one_goes_on() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (image, half) = full_of_holes(&machine, &pool);
    let path = image_path(&machine, &image.uid);
    let filled = Cell::new(0);
    let stop = |_: u8| {
        filled.set(filled.get() + 1);
        if filled.get() < 10 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    assert!(!must(pool.reallocate(&image.uid, &stop)));
    assert_eq!(filled.get(), 10);
    let some = allocated(&path);
    assert!(
        half < some && some < half + (1 << 20),
        "{half} became {some}"
    );
    // What has become thin meanwhile is allocated no further.
    must(pool.provision(&image.uid, Provisioning::Thin));
    assert!(must(pool.reallocate(&image.uid, &stop)));
    assert_eq!((filled.get(), allocated(&path)), (10, some));
    must(pool.provision(&image.uid, Provisioning::Thick));
    must(pool.allocate_all(&image.uid));
    assert!(allocated(&path) >= image.size.0);
}

#[test]
fn the_holes_of_a_volume_are_read_and_filled_a_few_hundred_at_a_time() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (image, half) = full_of_holes(&machine, &pool);
    let path = image_path(&machine, &image.uid);

    // A caller that read all 8192 holes first would need 32 calls, and fail before it filled one.
    let opened = |at| {
        let system = Arc::new(FailAt::new(Arc::clone(&machine.system), Fault::Error, at));
        let root = root(&machine.folder, Arc::clone(&system) as _);
        (
            must(root.open_pool(&image_pool(POOL_SIZE), known(&pool))),
            system,
        )
    };
    let (_, counting) = opened(u64::MAX);
    let (failing, _) = opened(counting.calls() + 24);
    assert!(failing.allocate_all(&image.uid).is_err());
    let some = allocated(&path);
    assert!(half < some && some < image.size.0, "{half} became {some}");

    must(pool.allocate_all(&image.uid));
    assert!(allocated(&path) >= image.size.0);
}

/// Fills the free space of the pool with a foreign file.
pub(super) fn take_all(machine: &Machine) -> PathBuf {
    let pool = machine.mount_point(&image_pool(Bytes::ZERO));
    let neighbour = pool.join("neighbour");
    let file = fs::File::create(&neighbour).unwrap();
    let space = rustix::fs::fstatvfs(&file).unwrap();
    let mut length = space.f_bavail * space.f_frsize;
    // The filesystem needs some of the free space for its metadata.
    while fallocate(&file, FallocateFlags::KEEP_SIZE, 0, length).is_err() {
        length -= 1 << 20;
    }
    neighbour
}

#[test]
fn a_thick_volume_that_lost_blocks_is_staged_and_its_shortage_is_reported() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&thick("a")));
    let block = ImageRequest {
        filesystem: None,
        uid: machine.uid("b"),
        ..thick("b")
    };
    let device = must(pool.new_image(&block));
    let (at, device_at) = (machine.staging("a"), machine.staging("b"));
    let volume = Volume::new(&image);
    let stage = || {
        let mounted = must(pool.stage(&volume.stage(&at))).allocated;
        let put = must(pool.stage_block(&BlockStageRequest {
            unlock: None,
            image: &device.uid,
            volume: "pvc-b",
            size: block.size,
            staging: &device_at,
        }));
        [mounted, put.allocated]
    };
    let unstage_both = || {
        unstage(&machine, &image.uid, &at);
        unstage(&machine, &device.uid, &device_at);
    };
    for whole in stage() {
        assert!(matches!(whole, Ok(true)), "{whole:?}");
    }
    run("fstrim", &[at.to_str().unwrap()]);
    // As a discard of the device does.
    let path = image_path(&machine, &device.uid);
    let file = fs::File::options().write(true).open(path).unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, 0, device.size.0).unwrap();
    drop(file);
    unstage_both();
    let neighbour = take_all(&machine);
    for lacking in stage() {
        let lacking = lacking.unwrap_err();
        assert!(matches!(lacking, Error::NoSpace { .. }), "{lacking}");
    }
    assert!(machine.mounts().contains(&at));
    unstage_both();
    fs::remove_file(neighbour).unwrap();
    // XFS frees the space of a removed file some time later.
    eventually("the full images", || {
        let is_full = stage().iter().all(|it| matches!(it, Ok(true)));
        unstage_both();
        is_full
    });
    for uid in [&image.uid, &device.uid] {
        assert!(allocated(&image_path(&machine, uid)) >= block.size.0);
    }
}

#[test]
fn a_stage_that_allocates_for_too_long_ends_and_says_that_blocks_are_left() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (image, half) = full_of_holes(&machine, &pool);
    let path = image_path(&machine, &image.uid);
    let (system, slow) = machine.faulty();
    let slow = must(slow.open_pool(&image_pool(POOL_SIZE), known(&pool)));
    let staging = machine.staging("s");
    let stage = || {
        let staged = must(slow.stage_block(&BlockStageRequest {
            unlock: None,
            image: &image.uid,
            volume: "pvc-a",
            size: image.size,
            staging: &staging,
        }));
        must(staged.allocated)
    };
    // One of the thousands of holes takes longer than a stage may.
    system.meanwhile_in(1000, || thread::sleep(Duration::from_secs(11)));
    assert!(!stage());
    let some = allocated(&path);
    assert!(half < some && some < image.size.0, "{half} became {some}");
    unstage(&machine, &image.uid, &staging);
    must(pool.allocate_all(&image.uid));
    assert!(allocated(&path) >= image.size.0);
    assert!(stage());
    unstage(&machine, &image.uid, &staging);
}
