//! Creating, reallocating and removing images.

use std::{
    cell::{Cell, RefCell},
    fs,
    io::Write as _,
    ops::ControlFlow,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use cistern_host::{
    BlockStageRequest, Cause, Content, Image, ImageRequest, Pool, Uid,
    image::Error,
    system::{FailAt, Fault},
};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::fs::{FallocateFlags, fallocate, removexattr};

use crate::{
    harness::{
        Machine, POOL_SIZE, Volume, allocated, chain, eventually, has_loops, image_path,
        image_pool, known, linux, must, open_new, request, root, run, uid, unstage,
    },
    scenario::Volumes as _,
};

fn thin(name: &str) -> ImageRequest {
    request(
        name,
        Bytes::mib(64),
        FilesystemType::Ext4,
        Provisioning::Thin,
    )
}

fn thick(name: &str) -> ImageRequest {
    ImageRequest {
        provisioning: Provisioning::Thick,
        ..thin(name)
    }
}

#[test]
fn a_repeated_creation_finds_the_image_and_one_with_other_parameters_is_a_conflict() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let made = must(pool.new_image(&thin("a")));
    assert_eq!(must(pool.new_image(&thin("a"))), made);
    assert_eq!(must(pool.image(&made.uid)), Some(made.clone()));
    for other in [
        ImageRequest {
            volume: "pvc-b".to_owned(),
            ..thin("a")
        },
        ImageRequest {
            size: Bytes::mib(65),
            ..thin("a")
        },
        ImageRequest {
            filesystem: None,
            ..thin("a")
        },
        ImageRequest {
            filesystem: Some(FilesystemType::Xfs),
            ..thin("a")
        },
        thick("a"),
    ] {
        let error = pool.new_image(&other).unwrap_err();
        assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    }
    assert_eq!(must(pool.images()), [made]);
}

#[test]
fn an_image_with_block_access_is_empty() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let request = ImageRequest {
        filesystem: None,
        ..thin("a")
    };
    let image = must(pool.new_image(&request));
    assert_eq!(image.identity.unwrap().content, Content::Block);
    assert_eq!((image.size, image.allocated), (Bytes::mib(64), Bytes::ZERO));
}

#[test]
fn only_root_reads_a_pool() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&thin("a")));
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let path = image_path(&machine, &image.uid);
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(&machine.path("root/pools")), 0o700);
    let file = machine
        .mount_point(&image_pool(Bytes::ZERO))
        .with_extension("img");
    assert_eq!(mode(&file), 0o600);
}

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
fn take_all(machine: &Machine) -> PathBuf {
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

#[test]
fn the_space_of_a_removed_image_is_free_when_the_call_returns() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let before = must(pool.statistics());
    let request = request(
        "a",
        Bytes::mib(800),
        FilesystemType::Ext4,
        Provisioning::Thick,
    );
    for _ in 0..5 {
        must(pool.new_image(&request));
        must(pool.remove_image(&request.uid));
        let after = must(pool.statistics());
        let lost = before.available.saturating_sub(after.available);
        assert!(lost < Bytes::mib(1), "{lost}");
    }
}

#[test]
fn a_full_pool_is_reported_as_full_and_nothing_is_left_behind() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let before = must(pool.statistics());
    let request = request(
        "a",
        Bytes::gib(2),
        FilesystemType::Ext4,
        Provisioning::Thick,
    );
    let error = pool.new_image(&request).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert!(machine.inventory().pools[0].temporary.is_empty());
    let lost = before
        .available
        .saturating_sub(must(pool.statistics()).available);
    assert!(lost < Bytes::mib(1), "{lost}");
}

#[test]
fn a_tool_that_fails_for_lack_of_space_is_reported_as_a_full_pool() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let neighbour = take_all(&machine);
    let neighbour = fs::File::options().write(true).open(neighbour).unwrap();
    let mut failed_tools = 0;
    for free in [Bytes::ZERO, Bytes::mib(1), Bytes::mib(6), Bytes::mib(40)] {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if free > Bytes::ZERO {
            fallocate(&neighbour, flags, 0, free.0).unwrap();
        }
        for filesystem in FilesystemType::ALL {
            let request = request("a", Bytes::gib(2), filesystem, Provisioning::Thin);
            match pool.new_image(&request) {
                Ok(image) => must(pool.remove_image(&image.uid)),
                Err(Error::NoSpace { source, .. }) => {
                    failed_tools += u32::from(matches!(source, Cause::Command(_)));
                }
                Err(error) => panic!("{filesystem} with {free}: {}", chain(&error)),
            }
        }
    }
    assert!(failed_tools > 0);
}

#[test]
fn leftovers_of_a_creation_are_removed_but_not_those_of_a_running_one() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let folder = machine.mount_point(&image_pool(Bytes::ZERO)).join("tmp");
    for name in ["dead", "alive", "dead-too"] {
        fs::write(folder.join(name), "half").unwrap();
    }
    let alive = fs::File::open(folder.join("alive")).unwrap();
    alive.lock().unwrap();
    assert_eq!(must(pool.sweep()), 2);
    assert!(folder.join("alive").exists());
    // Closing the file would not do: a process that another test forks at this moment has a copy of
    // it until its exec(2), and the copy keeps the lock.
    alive.unlock().unwrap();
    assert_eq!(must(pool.sweep()), 1);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
}

#[test]
fn removing_a_volume_whose_creation_was_interrupted_removes_its_leftovers() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let folder = machine.mount_point(&image_pool(Bytes::ZERO)).join("tmp");
    fs::write(folder.join("uid-a"), "half").unwrap();
    must(pool.remove_image(&uid("uid-a")));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
}

/// An image that ever held data is neither formatted nor changed, whatever its state.
#[test]
fn r07_an_unexpected_image_is_refused_and_left_unchanged() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&thin("a")));
    let other = must(pool.new_image(&thin("b")));
    let path = image_path(&machine, &image.uid);
    let whole = fs::read(&path).unwrap();
    let staging = machine.staging("s");
    let refused = |what: &str, expected: &str| {
        let before = fs::read(&path).unwrap();
        let error = pool
            .stage(&Volume::new(&image).stage(&staging))
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{what}: {error}");
        assert!(
            fs::read(&path).unwrap() == before,
            "{what}: the image was written"
        );
        has_loops(&machine, 1);
        fs::write(&path, &whole).unwrap();
    };

    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(&[0; 4096]).unwrap();
    refused("superblock overwritten", "there is none");

    file.set_len(1 << 20).unwrap();
    refused("cut short", "only 1Mi");

    fs::write(&path, fs::read(image_path(&machine, &other.uid)).unwrap()).unwrap();
    refused("another filesystem", "it holds ext4");

    let mut stage = Volume::new(&image);
    stage.image = &other;
    let mut wrong = stage.stage(&staging);
    wrong.image = &image.uid;
    let error = pool.stage(&wrong).unwrap_err();
    assert!(error.to_string().contains("is not volume pvc-b"), "{error}");

    removexattr(&path, "trusted.cistern").unwrap();
    refused("no identity", "is not volume pvc-a");
    let error = pool.new_image(&thin("a")).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");

    fs::remove_file(&path).unwrap();
    let error = pool
        .stage(&Volume::new(&image).stage(&staging))
        .unwrap_err();
    assert!(error.to_string().contains("is not in pool"), "{error}");
    assert!(!path.exists());
}

#[test]
fn an_image_larger_than_its_status_is_an_interrupted_growth_and_mounts() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&thin("a")));
    let file = fs::OpenOptions::new()
        .write(true)
        .open(image_path(&machine, &image.uid))
        .unwrap();
    file.set_len(Bytes::mib(80).0).unwrap();
    let staging = machine.staging("s");
    must(pool.stage(&Volume::new(&image).stage(&staging)));
}

#[test]
fn images_are_found_again_by_another_process_under_the_same_name() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let made = must(pool.new_image(&thin("a")));
    let expectation = known(&pool);
    drop(pool);
    let again = root(&machine.folder, linux(&machine.folder));
    let pool = must(again.open_pool(&image_pool(crate::harness::POOL_SIZE), expectation));
    assert_eq!(must(pool.images()), [made]);
    assert_eq!(must(pool.image(&"unknown".parse::<Uid>().unwrap())), None);
}
