//! Creating and opening pools, and refusing other files.

use std::{fs, os::unix::fs::FileExt as _, path::Path, sync::Barrier, thread};

use cistern_host::{
    Expectation, ImageRequest, Pool, PoolDeclaration, image,
    pool::{Broken, Error},
};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::{
    fs::FlockOperation,
    mount::{MountFlags, UnmountFlags, mount},
};

use crate::{
    harness::{
        DISK_SIZE, Machine, POOL_SIZE, Volume, allocated, chain, eventually, has_loops, image_pool,
        known, must, open_new, remount_read_only, request, run, uid, unmount,
    },
    scenario::Volumes as _,
};

fn small(name: &str) -> ImageRequest {
    request(
        name,
        Bytes::mib(16),
        FilesystemType::Ext4,
        Provisioning::Thin,
    )
}

fn pool_error(result: Result<impl std::fmt::Debug, image::Error>) -> Error {
    match result.unwrap_err() {
        image::Error::Pool(error) => error,
        other => panic!("{other:?}"),
    }
}

/// The first MiB of a file: its superblock and what follows.
fn head(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    fs::File::open(path)
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    bytes
}

fn file_of(machine: &Machine, pool: &PoolDeclaration) -> std::path::PathBuf {
    machine.root().mount_point(&pool.uid).with_extension("img")
}

/// Unmounts a pool as a reboot does, and returns its expectation.
fn leave(machine: &Machine, pool: Pool) -> Expectation {
    let expectation = known(&pool);
    drop(pool);
    unmount(&machine.mount_point(&image_pool(Bytes::ZERO)));
    expectation
}

#[test]
fn a_pool_is_created_once_and_found_again_after_a_reboot() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    must(pool.check());
    let image = must(pool.new_image(&small("a")));
    let numbers = must(pool.statistics());
    assert!(
        numbers.empty <= numbers.size && numbers.empty > Bytes::mib(900),
        "{numbers:?}"
    );
    assert!(allocated(&file_of(&machine, &declaration)) >= POOL_SIZE.0);
    let uuid = pool.filesystem_uuid();
    let expectation = leave(&machine, pool);
    // The loop device goes with the mount.
    has_loops(&machine, 0);
    let pool = must(machine.root().open_pool(&declaration, expectation));
    assert_eq!(
        (pool.filesystem_uuid(), must(pool.images())),
        (uuid, vec![image])
    );
    // A pool that was created and never recorded is adopted with its content.
    drop(pool);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    assert_eq!(
        (pool.filesystem_uuid(), must(pool.images()).len()),
        (uuid, 1)
    );
}

#[test]
fn r07_a_known_pool_whose_file_is_missing_is_not_created_again() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let expectation = leave(&machine, open_new(&machine));
    let (file, away) = (file_of(&machine, &declaration), machine.path("away"));
    fs::rename(&file, &away).unwrap();
    let error = machine
        .root()
        .open_pool(&declaration, expectation)
        .unwrap_err();
    assert!(matches!(error, Error::BackingMissing { .. }), "{error}");
    assert!(!file.exists());
    let error = machine
        .root()
        .open_pool(&declaration, Expectation::Made)
        .unwrap_err();
    assert!(matches!(error, Error::BackingMissing { .. }), "{error}");
    assert!(!file.exists());
    fs::rename(&away, &file).unwrap();
    drop(must(machine.root().open_pool(&declaration, expectation)));
    // The same applies without a recorded UUID, and a file with the pool's marker is used.
    must(machine.root().open_pool(&declaration, Expectation::Made));
}

#[test]
fn r07_a_file_without_a_superblock_is_refused_and_left_unchanged() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let expectation = leave(&machine, open_new(&machine));
    let path = file_of(&machine, &declaration);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 512], 0).unwrap();
    let before = head(&path);
    for expectation in [expectation, Expectation::New] {
        let error = machine
            .root()
            .open_pool(&declaration, expectation)
            .unwrap_err();
        assert!(matches!(error, Error::BackingConflict { .. }), "{error}");
        assert!(head(&path) == before);
    }
}

#[test]
fn r08_two_pools_whose_files_were_swapped_are_refused_and_work_again_when_swapped_back() {
    let machine = Machine::new();
    let one = image_pool(POOL_SIZE);
    let other = PoolDeclaration {
        uid: uid("0badcafe-0000-4000-8000-00000000beef"),
        name: "slow".to_owned(),
        ..one.clone()
    };
    let expectations = [&one, &other].map(|declaration| {
        let pool = must(machine.root().open_pool(declaration, Expectation::New));
        let expectation = known(&pool);
        drop(pool);
        unmount(&machine.mount_point(declaration));
        has_loops(&machine, 0);
        expectation
    });
    let swap = || {
        let (a, b) = (file_of(&machine, &one), file_of(&machine, &other));
        let aside = machine.path("aside");
        fs::rename(&a, &aside).unwrap();
        fs::rename(&b, &a).unwrap();
        fs::rename(&aside, &b).unwrap();
    };
    swap();
    let before = head(&file_of(&machine, &one));
    for expectation in [expectations[0], Expectation::New] {
        let error = machine.root().open_pool(&one, expectation).unwrap_err();
        assert!(matches!(error, Error::BackingConflict { .. }), "{error}");
    }
    assert!(head(&file_of(&machine, &one)) == before);
    has_loops(&machine, 0);
    swap();
    must(machine.root().open_pool(&one, expectations[0]));
    must(machine.root().open_pool(&other, expectations[1]));
}

#[test]
fn r08_a_pool_that_is_not_mounted_is_never_written_at_its_mount_point() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let image = must(pool.new_image(&small("a")));
    let at = machine.mount_point(&declaration);
    rustix::mount::unmount(&at, UnmountFlags::DETACH).unwrap();
    assert!(matches!(pool.check(), Err(Error::NotMounted { .. })));
    for error in [
        pool_error(pool.new_image(&small("b"))),
        pool_error(pool.remove_image(&image.uid)),
    ] {
        assert!(matches!(error, Error::NotMounted { .. }), "{error}");
    }
    let staging = machine.staging("s");
    pool.stage(&Volume::new(&image).stage(&staging))
        .unwrap_err();
    assert_eq!(
        fs::read_dir(&at).unwrap().count(),
        0,
        "the bare mount point was written"
    );

    // Another mount in its place is refused, too.
    mount("none", &at, "tmpfs", MountFlags::empty(), None).unwrap();
    assert!(matches!(pool.check(), Err(Error::NotMounted { .. })));
    let expectation = known(&pool);
    let error = machine
        .root()
        .open_pool(&declaration, expectation)
        .unwrap_err();
    assert!(matches!(error, Error::NotMounted { .. }), "{error}");
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    unmount(&at);
    let pool = must(machine.root().open_pool(&declaration, expectation));
    assert_eq!(must(pool.images()), [image]);
}

#[test]
fn r08_a_read_only_pool_is_reported_accepts_nothing_and_is_remounted_once_unused() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let at = machine.mount_point(&declaration);
    remount_read_only(&at);
    for error in [
        pool.check().unwrap_err(),
        pool_error(pool.new_image(&small("a"))),
    ] {
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    }
    let expectation = known(&pool);
    let open = || machine.root().open_pool(&declaration, expectation);
    assert!(matches!(
        open(),
        Err(Error::InUse {
            state: Broken::ReadOnly,
            ..
        })
    ));
    drop(pool);
    let pool = must(open());
    must(pool.new_image(&small("a")));
}

#[test]
fn r08_a_file_that_is_removed_or_replaced_under_a_mounted_pool_is_noticed() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let (file, away) = (file_of(&machine, &declaration), machine.path("away"));
    fs::rename(&file, &away).unwrap();
    assert!(matches!(pool.check(), Err(Error::BackingMissing { .. })));
    // It is not unmounted while the mount is the only reference to the data.
    let expectation = known(&pool);
    let (root, removal) = (machine.root(), known(&pool));
    root.remove_pool(&declaration, removal).unwrap_err();
    fs::copy(&away, &file).unwrap();
    assert!(matches!(pool.check(), Err(Error::BackingConflict { .. })));
    let error = root.open_pool(&declaration, expectation).unwrap_err();
    assert!(matches!(error, Error::NotMounted { .. }), "{error}");
    fs::rename(&away, &file).unwrap();
    must(pool.check());
}

#[test]
fn a_marker_of_another_pool_is_refused() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let marker = machine.mount_point(&declaration).join(".cistern-pool");
    let text = fs::read_to_string(&marker).unwrap();
    let text = text.replace("9f8e7d6c", "00000000").replace("fast", "slow");
    fs::write(&marker, text).unwrap();
    assert!(matches!(pool.check(), Err(Error::BackingConflict { .. })));
    for expectation in [known(&pool), Expectation::New] {
        let error = machine
            .root()
            .open_pool(&declaration, expectation)
            .unwrap_err();
        assert!(error.to_string().contains("it is pool slow"), "{error}");
    }
    fs::remove_file(&marker).unwrap();
    let error = machine
        .root()
        .open_pool(&declaration, known(&pool))
        .unwrap_err();
    assert!(error.to_string().contains("no marker"), "{error}");
}

#[test]
fn a_pool_grows_while_its_volumes_are_in_use_and_reports_its_capacity_when_empty() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = must(pool.new_image(&small("a")));
    let staging = machine.staging("s");
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    let larger = image_pool(Bytes::gib(3));
    for _ in 0..2 {
        let grown = must(machine.root().open_pool(&larger, known(&pool)));
        assert_eq!(must(grown.resize_file(Bytes::gib(3))).shortage, None);
        let numbers = must(grown.statistics());
        assert!(numbers.size > Bytes::mib(2900), "{numbers:?}");
        // The free space and the space of the one image.
        let taken = must(grown.images())[0].allocated;
        let free_when_empty = numbers.available.saturating_add(taken);
        let off = numbers.empty.0.abs_diff(free_when_empty.0);
        assert!(off < numbers.empty.0 / 500, "{numbers:?} {free_when_empty}");
        assert!(allocated(&file_of(&machine, &larger)) >= Bytes::gib(3).0);
        // The pool that was opened before sees it too.
        assert_eq!(must(pool.statistics()).size, numbers.size);
        must(pool.check());
    }
    fs::write(staging.join("file"), "data").unwrap();
}

#[test]
fn a_pool_that_would_fill_the_hosts_filesystem_is_refused_and_leaves_nothing() {
    let machine = Machine::new();
    let large = image_pool(DISK_SIZE.percent(90));
    for _ in 0..2 {
        let error = machine
            .root()
            .open_pool(&large, Expectation::New)
            .unwrap_err();
        assert!(matches!(error, Error::HostFilesystemFull { .. }), "{error}");
        assert!(!file_of(&machine, &large).exists());
        assert!(allocated(&machine.path("root/pools")) < 1 << 20);
    }
    must(
        machine
            .root()
            .open_pool(&image_pool(POOL_SIZE), Expectation::New),
    );
}

#[test]
fn a_growth_that_does_not_fit_leaves_the_pool_in_use_at_its_old_size() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let large = image_pool(DISK_SIZE.percent(90));
    let path = file_of(&machine, &large);
    let covered = must(pool.statistics()).size;
    let is_as_before = |pool: &Pool| {
        must(pool.check());
        assert_eq!(must(pool.statistics()).size, covered);
        assert_eq!(fs::metadata(&path).unwrap().len(), POOL_SIZE.0);
        assert!(allocated(&path) < POOL_SIZE.0 + (1 << 20));
    };
    let too_large = Bytes::gib(100 << 10);
    for wanted in [DISK_SIZE.percent(90).round_down_to_mib(), too_large] {
        let file = must(pool.resize_file(wanted));
        let shortage = file.shortage.unwrap();
        assert_eq!((file.size, shortage.wanted), (POOL_SIZE, wanted));
        assert!(shortage.why.contains("its filesystem lacks"), "{shortage}");
        is_as_before(&pool);
    }
    // It can also be opened after a reboot, and accepts volumes.
    let expectation = leave(&machine, pool);
    let pool = must(machine.root().open_pool(&large, expectation));
    is_as_before(&pool);
    must(pool.new_image(&small("a")));
    // A smaller declared size changes nothing, and a size that fits is allocated.
    for (declared, size) in [(POOL_SIZE, POOL_SIZE), (Bytes::gib(2), Bytes::gib(2))] {
        let file = must(pool.resize_file(declared));
        assert_eq!((file.size, file.shortage), (size, None));
    }
    assert!(must(pool.statistics()).size > Bytes::mib(1950));
    let file = must(pool.resize_file(POOL_SIZE));
    assert_eq!((file.size, file.shortage), (Bytes::gib(2), None));
}

#[test]
fn of_two_pools_that_are_created_concurrently_only_one_that_fits_is_created() {
    let machine = Machine::new();
    let root = machine.root();
    let pools = ["one", "other"].map(|name| PoolDeclaration {
        uid: machine.uid(name),
        name: name.to_owned(),
        ..image_pool(DISK_SIZE.percent(60))
    });
    let start = Barrier::new(pools.len());
    let made = thread::scope(|scope| {
        let threads = pools.each_ref().map(|pool| {
            let (root, start) = (&root, &start);
            scope.spawn(move || {
                start.wait();
                root.open_pool(pool, Expectation::New)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let refused: Vec<_> = made.iter().filter_map(|it| it.as_ref().err()).collect();
    assert!(
        matches!(refused[..], [Error::HostFilesystemFull { .. }]),
        "{refused:?}"
    );
    let space = rustix::fs::statvfs(&machine.folder).unwrap();
    assert!(space.f_bavail * 100 >= space.f_blocks * 15);
}

#[test]
fn pools_allocate_space_of_the_hosts_filesystem_one_at_a_time() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let folder = machine.path("root/pools");
    fs::create_dir(&folder).unwrap();
    let other = fs::File::open(&folder).unwrap();
    rustix::fs::flock(&other, FlockOperation::LockExclusive).unwrap();
    let root = machine.root();
    let error = root.open_pool(&declaration, Expectation::New).unwrap_err();
    let text = chain(&error);
    assert!(
        text.contains("another pool is being created or enlarged"),
        "{text}"
    );
    assert!(!file_of(&machine, &declaration).exists());
    drop(other);
    must(root.open_pool(&declaration, Expectation::New));
}

#[test]
fn holes_in_a_pools_file_are_filled_when_it_is_opened() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let at = machine.mount_point(&declaration);
    run("fstrim", &[at.to_str().unwrap()]);
    let file = file_of(&machine, &declaration);
    assert!(
        allocated(&file) < POOL_SIZE.0 / 2,
        "the trim punched no hole"
    );
    // XFS goes on trimming for a moment when fstrim has ended.
    eventually("the full file", || {
        must(machine.root().open_pool(&declaration, known(&pool)));
        allocated(&file) >= POOL_SIZE.0
    });
}

#[test]
fn a_pool_is_removed_only_when_it_is_empty() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = open_new(&machine);
    let expectation = known(&pool);
    let image = must(pool.new_image(&small("a")));
    drop(pool);
    let root = machine.root();
    let error = root.remove_pool(&declaration, expectation).unwrap_err();
    assert!(
        matches!(error, Error::ImagesRemain { count: 1, .. }),
        "{error}"
    );
    let pool = must(root.open_pool(&declaration, expectation));
    must(pool.remove_image(&image.uid));
    drop(pool);
    for _ in 0..2 {
        must(root.remove_pool(&declaration, expectation));
        assert_eq!(machine.inventory(), cistern_host::Inventory::default());
        assert!(!file_of(&machine, &declaration).exists());
    }
    // The removal of a pool that was never created succeeds and creates nothing.
    must(root.remove_pool(&declaration, Expectation::New));
    assert_eq!(machine.inventory(), cistern_host::Inventory::default());
}
