//! Former disks of a pool: it leaves them, and is created on another disk. What is on them stays as it is.

use std::{fs, path::Path};

use cistern_host::{
    Expectation, ImageRequest, Pool, PoolDeclaration,
    pool::{Broken, Error, ReplacedDisk},
};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use failing_disk::Mode;

use crate::{
    candidates::Attributes,
    device::Disk,
    failing::FailingDevice,
    harness::{Machine, Volume, chain, device_pool, eventually, known, must, request, unmount},
    scenario::Volumes as _,
};

/// The pool on these devices after a disk of it was replaced.
fn after(paths: &[&Path], former: &ReplacedDisk) -> PoolDeclaration {
    PoolDeclaration {
        replaced: vec![former.clone()],
        ..device_pool(paths.iter().map(|path| path.to_path_buf()))
    }
}

fn disk_of(pool: &Pool) -> ReplacedDisk {
    ReplacedDisk {
        filesystem_uuid: pool.filesystem_uuid(),
        identity: pool.device_identity().map(str::to_owned),
    }
}

fn volume(machine: &Machine) -> ImageRequest {
    let size = Bytes::mib(64);
    ImageRequest {
        uid: machine.uid("a"),
        ..request("a", size, FilesystemType::Ext4, Provisioning::Thin)
    }
}

/// Writes to the pool until its filesystem has shut down.
fn shut_down(machine: &Machine, pool: &Pool) {
    let at = machine.mount_point(&device_pool([]));
    eventually("the filesystem to shut down", || {
        let file = fs::File::create(at.join("tmp/a"));
        let _ = file.and_then(|file| file.sync_all());
        matches!(pool.check(), Err(Error::ShutDown { .. }))
    });
}

#[test]
fn a_pool_leaves_a_dead_disk_once_it_is_unused_and_is_created_on_a_blank_one() {
    let machine = Machine::new();
    let root = machine.root();
    let (dead, blank) = (FailingDevice::new(&machine), Disk::new(&machine, "blank"));
    let _attributes = Attributes::of(&dead.path, "dead", None);
    let pool = must(root.open_pool(&device_pool([dead.path.clone()]), Expectation::New));
    let (former, expectation) = (disk_of(&pool), known(&pool));
    assert_eq!(former.identity.as_deref(), Some("serial:dead"));
    let image = must(pool.new_image(&volume(&machine)));
    let (volume, staging) = (Volume::new(&image), machine.staging("a"));
    must(pool.stage(&volume.stage(&staging)));
    dead.set(Mode::Eio);
    shut_down(&machine, &pool);
    drop(pool);

    let declaration = after(&[&dead.path, &blank.device], &former);
    match root.remove_pool(&declaration, expectation) {
        Err(Error::InUse { state, images, .. }) => {
            assert_eq!((state, images), (Broken::ShutDown, vec![image.uid.clone()]));
        }
        other => panic!("{other:?}"),
    }
    must(root.unstage(&staging));
    eventually("the pool to be removed", || {
        root.remove_pool(&declaration, expectation).is_ok()
    });
    assert!(blank.is_blank());

    // The disk is still there and fails.
    let pool = must(root.open_pool(&declaration, Expectation::New));
    assert_eq!(pool.device(), blank.device);
    assert_ne!(pool.filesystem_uuid(), former.filesystem_uuid);
    assert!(must(pool.images()).is_empty());
    let expectation = known(&pool);
    drop(pool);
    unmount(&machine.mount_point(&declaration));

    // It returns.
    dead.set(Mode::Ok);
    let pool = must(root.open_pool(&declaration, expectation));
    assert_eq!(pool.device(), blank.device);
    drop(pool);
    unmount(&machine.mount_point(&declaration));
}

#[test]
fn images_that_only_the_memory_of_the_kernel_lists_keep_no_pool_on_a_dead_disk() {
    let machine = Machine::new();
    let root = machine.root();
    let dead = FailingDevice::new(&machine);
    let before = device_pool([dead.path.clone()]);
    let pool = must(root.open_pool(&before, Expectation::New));
    let (former, expectation) = (disk_of(&pool), known(&pool));
    let image = must(pool.new_image(&volume(&machine)));
    dead.set(Mode::Eio);
    assert_eq!(must(pool.images()), [image]);
    drop(pool);
    let error = root.remove_pool(&before, expectation).unwrap_err();
    assert!(matches!(error, Error::ImagesRemain { .. }), "{error}");
    must(root.remove_pool(&after(&[&dead.path], &former), expectation));
    assert!(!machine.mounts().contains(&machine.mount_point(&before)));
}

#[test]
fn a_former_disk_that_can_be_read_is_left_only_without_images_and_is_not_used_again() {
    let machine = Machine::new();
    let root = machine.root();
    let (disk, blank) = (Disk::new(&machine, "disk"), Disk::new(&machine, "blank"));
    let before = device_pool([disk.device.clone(), blank.device.clone()]);
    let pool = must(root.open_pool(&before, Expectation::New));
    let (former, expectation) = (disk_of(&pool), known(&pool));
    let image = must(pool.new_image(&volume(&machine)));
    drop(pool);
    let declaration = after(&[&disk.device, &blank.device], &former);
    let error = root.remove_pool(&declaration, expectation).unwrap_err();
    assert!(
        matches!(error, Error::ImagesRemain { count: 1, .. }),
        "{error}"
    );
    let pool = must(root.open_pool(&declaration, expectation));
    assert_eq!(must(pool.images()), std::slice::from_ref(&image));
    must(pool.remove_image(&image.uid));
    drop(pool);
    must(root.remove_pool(&declaration, expectation));
    assert!(blank.is_blank());

    drop(disk.hold());
    let content = || fs::read(machine.path("disk")).unwrap();
    let unused = content();
    let only = after(&[&disk.device], &former);
    let error = root.open_pool(&only, Expectation::New).unwrap_err();
    let said = format!("it holds the filesystem {}", former.filesystem_uuid);
    assert!(matches!(error, Error::NoUsableDevice { .. }), "{error}");
    assert!(chain(&error).contains(&said), "{error}");
    let pool = must(root.open_pool(&declaration, Expectation::New));
    assert_eq!(pool.device(), blank.device);
    drop(pool);
    unmount(&machine.mount_point(&declaration));
    assert!(unused == content(), "the former disk was written");

    // It is used again if it is no longer listed.
    let pool = must(root.open_pool(&device_pool([disk.device.clone()]), Expectation::New));
    assert_eq!(pool.filesystem_uuid(), former.filesystem_uuid);
    drop(pool);
    unmount(&machine.mount_point(&declaration));
}

#[test]
fn a_disk_that_cannot_be_read_may_be_the_pool_unless_it_is_known_as_a_former_one() {
    let machine = Machine::new();
    let root = machine.root();
    let (failing, blank) = (FailingDevice::new(&machine), Disk::new(&machine, "blank"));
    failing.set(Mode::Eio);
    let paths: [&Path; 2] = [&failing.path, &blank.device];
    let with_identity = |identity: Option<&str>| {
        let former = ReplacedDisk {
            filesystem_uuid: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
            identity: identity.map(str::to_owned),
        };
        after(&paths, &former)
    };
    let refused = |declaration: &PoolDeclaration| {
        let error = root.open_pool(declaration, Expectation::New).unwrap_err();
        assert!(matches!(error, Error::Ambiguous { .. }), "{error}");
        assert!(blank.is_blank());
    };
    refused(&with_identity(None));
    let attributes = Attributes::of(&failing.path, "failing", None);
    refused(&with_identity(None));
    refused(&with_identity(Some("serial:other")));
    let declaration = with_identity(Some("serial:failing"));
    let pool = must(root.open_pool(&declaration, Expectation::New));
    assert_eq!(pool.device(), blank.device);
    drop(pool);
    unmount(&machine.mount_point(&declaration));
    drop(attributes);
}
