//! Creating and removing images.

mod allocation;

use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _};

use cistern_host::{Cause, Content, ImageRequest, Uid, image::Error};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::fs::{FallocateFlags, fallocate, removexattr};

use self::allocation::take_all;
use crate::{
    harness::{
        Machine, POOL_SIZE, Volume, chain, has_loops, image_path, image_pool, known, linux, must,
        open_new, request, root, uid,
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
    let pool = must(again.open_pool(&image_pool(POOL_SIZE), expectation));
    assert_eq!(must(pool.images()), [made]);
    assert_eq!(must(pool.image(&"unknown".parse::<Uid>().unwrap())), None);
}
