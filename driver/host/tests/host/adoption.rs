//! Pools that come back with another UID, as after a restore of the cluster from a backup.

use std::{
    fs,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::PathBuf,
    sync::Arc,
};

use cistern_host::{
    Expectation, Pool, PoolDeclaration,
    pool::Error,
    system::{FailAt, Fault},
};
use cistern_types::{Bytes, FilesystemType, Provisioning};

use crate::{
    device::Disk,
    harness::{
        Machine, POOL_SIZE, Volume, device_pool, has_loops, image_pool, known, must, open_new,
        request, root, uid, unmount,
    },
    scenario::Volumes as _,
};

/// The declaration of the same pool after a restore of the cluster.
fn returned(pool: &PoolDeclaration) -> PoolDeclaration {
    PoolDeclaration {
        uid: uid("1a2b3c4d-0000-4000-8000-00000000cafe"),
        ..pool.clone()
    }
}

fn volume(pool: &Pool) -> cistern_host::Image {
    let size = Bytes::mib(16);
    let request = request("a", size, FilesystemType::Ext4, Provisioning::Thin);
    must(pool.new_image(&request))
}

/// Names in the folder of the pools.
fn homes(machine: &Machine) -> Vec<String> {
    let names = fs::read_dir(machine.path("root/pools")).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// What any write to a file changes: its first bytes, with the superblock and the log of a small XFS,
/// its allocated size, and its modification time. The allocated size is final once earlier writes are on the disk.
fn traces(path: &PathBuf) -> (Vec<u8>, u64, i64, i64) {
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    let mut bytes = vec![0; 8 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let is = file.metadata().unwrap();
    (bytes, is.blocks(), is.mtime(), is.mtime_nsec())
}

#[test]
fn a_returning_pool_is_adopted_under_its_running_volumes_and_found_after_a_reboot() {
    let machine = Machine::new();
    let first = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let image = volume(&pool);
    let staging = machine.staging("globalmount");
    let staged = Volume::new(&image);
    must(pool.stage(&staged.stage(&staging)));
    fs::write(staging.join("file"), "kept").unwrap();
    let (before, mounts) = (homes(&machine), machine.mounts());
    drop(pool);

    let declaration = returned(&first);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    must(pool.check());
    assert_eq!(must(pool.images()), std::slice::from_ref(&image));
    // Nothing was created, moved or mounted, and the volume is in its place.
    assert_eq!((homes(&machine), machine.mounts()), (before, mounts));
    assert_eq!(pool.path(), machine.mount_point(&first));
    must(pool.stage(&staged.stage(&staging)));
    assert_eq!(fs::read(staging.join("file")).unwrap(), b"kept");
    let found = &machine.inventory().pools[..];
    assert_eq!((found.len(), &found[0].uid), (1, &declaration.uid));
    assert_eq!(found[0].name.as_deref(), Some("fast"));

    must(machine.root().unstage(&staging));
    let expectation = known(&pool);
    drop(pool);
    for expectation in [expectation, Expectation::Made, Expectation::New] {
        unmount(&machine.mount_point(&first));
        let pool = must(machine.root().open_pool(&declaration, expectation));
        assert_eq!(must(pool.images())[0].uid, image.uid);
    }
    let pool = must(machine.root().open_pool(&declaration, expectation));
    must(pool.remove_image(&image.uid));
    drop(pool);
    must(machine.root().remove_pool(&declaration, expectation));
    assert_eq!(homes(&machine), Vec::<String>::new());
}

#[test]
fn a_pool_whose_name_another_pool_of_the_host_has_is_not_adopted() {
    let machine = Machine::new();
    drop(open_new(&machine));
    let first = image_pool(POOL_SIZE);
    let other = PoolDeclaration {
        others: vec![first.uid.clone()],
        ..returned(&first)
    };
    let error = machine.root().open_pool(&other, Expectation::Made);
    assert!(
        matches!(error, Err(Error::BackingMissing { .. })),
        "{error:?}"
    );
    // A pool of another name is not adopted either.
    let other = PoolDeclaration {
        name: "slow".to_owned(),
        ..returned(&first)
    };
    let error = machine.root().open_pool(&other, Expectation::Made);
    assert!(
        matches!(error, Err(Error::BackingMissing { .. })),
        "{error:?}"
    );
}

#[test]
fn r07_of_two_pools_of_one_name_none_is_adopted_changed_or_created_again() {
    let machine = Machine::new();
    let first = image_pool(POOL_SIZE);
    drop(open_new(&machine));
    unmount(&machine.mount_point(&first));
    let second = PoolDeclaration {
        uid: uid("0badcafe-0000-4000-8000-00000000beef"),
        others: vec![first.uid.clone()],
        ..first.clone()
    };
    drop(must(machine.root().open_pool(&second, Expectation::New)));
    unmount(&machine.mount_point(&second));
    let files = [&first, &second].map(|pool| machine.mount_point(pool).with_extension("img"));
    let before = files.each_ref().map(traces);
    for expectation in [Expectation::New, Expectation::Made] {
        let error = machine.root().open_pool(&returned(&first), expectation);
        let Err(Error::Ambiguous { name, found }) = error else {
            panic!("{error:?}");
        };
        let mut found: Vec<PathBuf> = found.into_iter().map(|(path, _)| path).collect();
        let mut expected = files.to_vec();
        found.sort();
        expected.sort();
        assert_eq!((name.as_str(), found), ("fast", expected));
    }
    assert!(files.each_ref().map(traces) == before);
    assert_eq!(homes(&machine).len(), 4);
}

#[test]
fn r07_a_copy_of_a_file_is_not_used_while_the_file_cannot_be_read() {
    let machine = Machine::new();
    let first = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let expectation = known(&pool);
    drop(pool);
    unmount(&machine.mount_point(&first));
    has_loops(&machine, 0);
    let file = machine.mount_point(&first).with_extension("img");
    let copy = file.with_file_name("0badcafe-0000-4000-8000-00000000beef.img");
    fs::copy(&file, &copy).unwrap();
    let before = [&file, &copy].map(traces);
    // Each call fails once, also those that read one of the two.
    for at in 1.. {
        let system = Arc::new(FailAt::new(Arc::clone(&machine.system), Fault::Error, at));
        let root = root(&machine.folder, Arc::clone(&system) as _);
        let opened = root.open_pool(&returned(&first), expectation);
        assert!(opened.is_err(), "call {at} failed: {opened:?}");
        if !system.has_failed() {
            assert!(matches!(opened, Err(Error::Ambiguous { .. })), "{opened:?}");
            break;
        }
    }
    assert!([&file, &copy].map(traces) == before);
}

#[test]
fn r07_no_pool_is_created_beside_a_file_that_may_be_that_pool() {
    let machine = Machine::new();
    let first = image_pool(POOL_SIZE);
    drop(open_new(&machine));
    unmount(&machine.mount_point(&first));
    // A process that another test starts may hold the filesystem after the unmount. Its end writes the
    // superblock again.
    has_loops(&machine, 0);
    let path = machine.mount_point(&first).with_extension("img");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 512], 0).unwrap();
    let before = traces(&path);
    let error = machine
        .root()
        .open_pool(&returned(&first), Expectation::New)
        .unwrap_err();
    assert!(matches!(error, Error::Ambiguous { .. }), "{error}");
    assert!(
        error.to_string().contains("move away those that are not"),
        "{error}"
    );
    assert!(traces(&path) == before);
    assert_eq!(homes(&machine).len(), 2);
}

#[test]
fn a_returning_device_pool_is_adopted_before_a_blank_device_is_used() {
    let machine = Machine::new();
    let (blank, disk) = (Disk::new(&machine, "blank"), Disk::new(&machine, "disk"));
    let first = device_pool([disk.device.clone()]);
    let pool = must(machine.root().open_pool(&first, Expectation::New));
    let image = volume(&pool);
    drop(pool);
    let declaration = returned(&device_pool([blank.device.clone(), disk.device.clone()]));
    // It is found while it is mounted, and after a reboot.
    for at in [&first, &declaration] {
        let pool = must(machine.root().open_pool(&declaration, Expectation::New));
        assert_eq!(must(pool.images()), std::slice::from_ref(&image));
        assert_eq!(pool.device(), disk.device);
        assert_eq!(pool.path(), machine.mount_point(at));
        drop(pool);
        unmount(&machine.mount_point(at));
    }
    assert!(blank.is_blank());
    // Under a third UID it is not mounted when it is found.
    let third = PoolDeclaration {
        uid: uid("77777777-0000-4000-8000-00000000beef"),
        ..declaration
    };
    let pool = must(machine.root().open_pool(&third, Expectation::New));
    assert_eq!(pool.device(), disk.device);
    drop(pool);
    unmount(&machine.mount_point(&third));
    assert!(blank.is_blank());
}

/// Creates a pool named fast on each disk, each under a UID of its own, and leaves it unmounted.
fn create_on_each(machine: &Machine, disks: &[Disk]) {
    for (disk, name) in disks.iter().zip(["one", "two"]) {
        let declaration = PoolDeclaration {
            uid: uid(&format!("{name}-{name}-{name}-{name}")),
            ..device_pool([disk.device.clone()])
        };
        drop(must(
            machine.root().open_pool(&declaration, Expectation::New),
        ));
        unmount(&machine.mount_point(&declaration));
    }
}

#[test]
fn r07_of_two_devices_of_one_name_none_is_adopted() {
    let machine = Machine::new();
    let disks = [Disk::new(&machine, "one"), Disk::new(&machine, "two")];
    create_on_each(&machine, &disks);
    let paths = disks.each_ref().map(|disk| disk.device.clone());
    let declaration = returned(&device_pool(paths));
    let error = machine.root().open_pool(&declaration, Expectation::New);
    assert!(matches!(error, Err(Error::Ambiguous { .. })), "{error:?}");
}

#[test]
fn r07_no_device_is_adopted_while_another_process_holds_one_that_may_be_the_pool() {
    let machine = Machine::new();
    let disks = [Disk::new(&machine, "one"), Disk::new(&machine, "two")];
    create_on_each(&machine, &disks);
    let holder = disks[0].hold();
    let paths = disks.each_ref().map(|disk| disk.device.clone());
    let declaration = returned(&device_pool(paths));
    for expectation in [Expectation::New, Expectation::Made] {
        let error = machine.root().open_pool(&declaration, expectation);
        assert!(matches!(error, Err(Error::Ambiguous { .. })), "{error:?}");
        let text = error.unwrap_err().to_string();
        let expected = format!("{}: it holds xfs (\"oneoneoneone\")", disks[0].path());
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains("something else holds it"), "{text}");
    }
    drop(holder);
}

#[test]
fn a_device_that_is_mounted_as_another_pool_does_not_stop_a_pool_from_being_adopted() {
    let machine = Machine::new();
    let disks = [Disk::new(&machine, "slow"), Disk::new(&machine, "fast")];
    let slow = PoolDeclaration {
        uid: uid("51ee51ee-0000-4000-8000-00000000beef"),
        name: "slow".to_owned(),
        ..device_pool([disks[0].device.clone()])
    };
    let mounted = must(machine.root().open_pool(&slow, Expectation::New));
    let first = device_pool([disks[1].device.clone()]);
    drop(must(machine.root().open_pool(&first, Expectation::New)));
    unmount(&machine.mount_point(&first));
    let paths = disks.each_ref().map(|disk| disk.device.clone());
    let declaration = PoolDeclaration {
        others: vec![slow.uid.clone()],
        ..returned(&device_pool(paths))
    };
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    assert_eq!(pool.device(), disks[1].device);
    drop((pool, mounted));
}
