//! Image pools in a directory of another filesystem of the host.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use cistern_host::{
    Expectation, PoolDeclaration, Root, Source,
    pool::{Candidate, DirectoryFault, Error},
};
use cistern_types::{Bytes, FilesystemType, Provisioning};

use crate::{
    failing::text,
    harness::{Machine, POOL_SIZE, has_loops, image_pool, known, must, request, run, uid, unmount},
    scenario::Volumes as _,
};

/// A data disk of the host, mounted at `data`.
struct DataDisk {
    file: PathBuf,
    at: PathBuf,
}

impl DataDisk {
    fn new(machine: &Machine, size: Bytes) -> Self {
        let (file, at) = (machine.path("data-disk"), machine.path("data"));
        fs::File::create(&file).unwrap().set_len(size.0).unwrap();
        run("mkfs.ext4", &["-q", "-F", text(&file)]);
        fs::create_dir(&at).unwrap();
        let disk = Self { file, at };
        disk.mount();
        fs::create_dir(disk.folder()).unwrap();
        disk
    }

    fn mount(&self) {
        run("mount", &["-o", "loop", text(&self.file), text(&self.at)]);
    }

    fn folder(&self) -> PathBuf {
        self.at.join("cistern")
    }

    /// The root of the machine, which allows the disk.
    fn root(&self, machine: &Machine) -> Root {
        machine.root().allowing([self.at.clone()])
    }
}

fn pool_in(directory: &Path) -> PoolDeclaration {
    PoolDeclaration {
        source: Source::Image {
            size: POOL_SIZE,
            directory: Some(directory.to_owned()),
        },
        ..image_pool(POOL_SIZE)
    }
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    names.map(|it| name(it).into_string().unwrap()).collect()
}

/// Why a pool cannot be made in a directory. Nothing is left of the attempt.
fn refusal(machine: &Machine, root: &Root, directory: &Path) -> Error {
    let refused = root.open_pool(&pool_in(directory), Expectation::New);
    let error = refused.err().unwrap();
    has_loops(machine, 0);
    error
}

fn fault(machine: &Machine, root: &Root, directory: &Path) -> DirectoryFault {
    match refusal(machine, root, directory) {
        Error::DirectoryUnusable { why, .. } => why,
        error => panic!("{error:?}"),
    }
}

#[test]
fn a_pool_in_a_directory_is_found_after_a_reboot_grows_and_is_removed() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::gib(4));
    let (root, declaration) = (disk.root(&machine), pool_in(&disk.folder()));
    let file = disk.folder().join(format!("{}.img", declaration.uid));
    let pool = must(root.open_pool(&declaration, Expectation::New));
    let expectation = known(&pool);
    let small = request(
        "a",
        Bytes::mib(16),
        FilesystemType::Ext4,
        Provisioning::Thin,
    );
    let image = must(pool.new_image(&small));
    must(pool.check());
    assert!(
        file.exists()
            && !machine
                .mount_point(&declaration)
                .with_extension("img")
                .exists()
    );
    let inventory = must(root.inventory(&[]));
    assert_eq!(inventory.loops.len(), 1);
    assert!(inventory.pools[0].has_file && inventory.strays.is_empty());
    drop(pool);

    // A reboot. A file of somebody else in the directory does not matter.
    unmount(&machine.mount_point(&declaration));
    fs::write(disk.folder().join("another.img"), "not ours").unwrap();
    for expectation in [expectation, Expectation::Made, Expectation::New] {
        let pool = must(root.open_pool(&declaration, expectation));
        assert_eq!(must(pool.images())[0].uid, image.uid);
    }
    let pool = must(root.open_pool(&declaration, expectation));
    let larger = Bytes::gib(2);
    assert_eq!(must(pool.resize_file(larger)).shortage, None);
    assert_eq!(fs::metadata(&file).unwrap().len(), larger.0);
    must(pool.remove_image(&image.uid));
    drop(pool);
    for _ in 0..2 {
        must(root.remove_pool(&declaration, expectation));
        assert_eq!(names(&disk.folder()), ["another.img"]);
    }
    assert_eq!(machine.inventory(), cistern_host::Inventory::default());
    unmount(&disk.at);
}

#[test]
fn a_directory_that_the_node_does_not_allow_is_refused_and_its_pool_needs_no_removal() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::gib(4));
    let beside = machine.path("data-of-others");
    fs::create_dir(&beside).unwrap();
    for (root, directory, allowed) in [
        (machine.root(), disk.folder(), vec![]),
        (disk.root(&machine), beside, vec![disk.at.clone()]),
        (
            disk.root(&machine),
            machine.folder.clone(),
            vec![disk.at.clone()],
        ),
    ] {
        let error = refusal(&machine, &root, &directory);
        let message = error.to_string();
        let Error::DirectoryNotAllowed { allowed: found, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(found, allowed);
        let said = ["node w1", text(&directory), "POOL_DIRECTORIES"];
        assert!(said.iter().all(|it| message.contains(it)), "{message}");
        must(root.remove_pool(&pool_in(&directory), Expectation::New));
    }
    // A pool that was made is not removed, because its file cannot be.
    let (root, declaration) = (disk.root(&machine), pool_in(&disk.folder()));
    let expectation = known(&must(root.open_pool(&declaration, Expectation::New)));
    for attempt in [
        machine.root().remove_pool(&declaration, expectation),
        machine
            .root()
            .open_pool(&declaration, expectation)
            .map(drop),
    ] {
        assert!(matches!(attempt, Err(Error::DirectoryNotAllowed { .. })));
    }
    must(root.remove_pool(&declaration, expectation));
    unmount(&disk.at);
}

#[test]
fn a_link_a_file_and_a_missing_directory_are_refused_and_not_followed_or_created() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::gib(4));
    let root = disk.root(&machine);
    let outside = machine.path("outside");
    fs::create_dir_all(outside.join("below")).unwrap();
    symlink(&outside, disk.at.join("link")).unwrap();
    symlink("../outside", disk.at.join("relative")).unwrap();
    symlink("cistern", disk.at.join("inside")).unwrap();
    fs::write(disk.at.join("file"), "").unwrap();
    for (name, expected) in [
        ("link", DirectoryFault::SymbolicLink),
        ("link/below", DirectoryFault::SymbolicLink),
        ("relative", DirectoryFault::SymbolicLink),
        ("inside", DirectoryFault::SymbolicLink),
        ("file", DirectoryFault::NoDirectory),
        ("missing", DirectoryFault::Missing),
    ] {
        let directory = disk.at.join(name);
        assert_eq!(fault(&machine, &root, &directory), expected, "{name}");
        must(root.remove_pool(&pool_in(&directory), Expectation::New));
    }
    assert_eq!(names(&outside), ["below"]);
    assert!(names(&outside.join("below")).is_empty());
    assert!(!disk.at.join("missing").exists());
    unmount(&disk.at);
}

#[test]
fn a_pool_is_not_created_in_a_pool_or_a_volume() {
    let machine = Machine::new();
    let first = PoolDeclaration {
        uid: uid("0badcafe-0000-4000-8000-00000000beef"),
        name: "first".to_owned(),
        ..image_pool(POOL_SIZE)
    };
    let pool = must(machine.root().open_pool(&first, Expectation::New));
    let (in_pool, bound) = (machine.mount_point(&first), machine.path("bound"));
    fs::create_dir(&bound).unwrap();
    run("mount", &["--bind", text(&in_pool), text(&bound)]);
    for filesystem in [FilesystemType::Ext4, FilesystemType::Btrfs] {
        let volume = request(
            filesystem.as_str(),
            Bytes::mib(256),
            filesystem,
            Provisioning::Thin,
        );
        let uid = machine.uid(filesystem.as_str());
        let image = must(pool.new_image(&cistern_host::ImageRequest { uid, ..volume }));
        let at = machine.staging(filesystem.as_str());
        must(pool.stage(&crate::harness::Volume::new(&image).stage(&at)));
        let root = machine.root().allowing([at.clone()]);
        let refused = root.open_pool(&pool_in(&at), Expectation::New);
        assert!(
            matches!(
                refused,
                Err(Error::DirectoryUnusable {
                    why: DirectoryFault::InPool,
                    ..
                })
            ),
            "{filesystem}: {refused:?}"
        );
        must(machine.root().unstage(&at));
    }
    for directory in [&in_pool, &bound] {
        let root = machine.root().allowing([directory.clone()]);
        let declaration = pool_in(directory);
        let refused = root.open_pool(&declaration, Expectation::New);
        let Err(Error::DirectoryUnusable { why, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(why, DirectoryFault::InPool);
    }
    drop(pool);
    unmount(&bound);
}

#[test]
fn a_known_pool_is_not_made_again_while_its_filesystem_is_not_mounted() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::gib(4));
    // Once in a folder of the disk, and once at its mount point.
    for directory in [disk.folder(), disk.at.clone()] {
        let (root, declaration) = (disk.root(&machine), pool_in(&directory));
        let expectation = known(&must(root.open_pool(&declaration, Expectation::New)));
        unmount(&machine.mount_point(&declaration));
        unmount(&disk.at);
        for expectation in [expectation, Expectation::Made] {
            let missing = root.open_pool(&declaration, expectation);
            let Err(Error::BackingMissing { what }) = missing else {
                panic!("{missing:?}");
            };
            assert!(what.starts_with(text(&directory)), "{what}");
        }
        assert!(names(&disk.at).is_empty(), "the mount point was written");
        disk.mount();
        let pool = must(root.open_pool(&declaration, expectation));
        assert_eq!(known(&pool), expectation);
        drop(pool);
        must(root.remove_pool(&declaration, expectation));
    }
    unmount(&disk.at);
}

#[test]
fn a_new_pool_is_not_made_while_the_disk_of_its_directory_is_not_mounted() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::gib(4));
    let root = disk.root(&machine);
    unmount(&disk.at);
    let why = fault(&machine, &root, &disk.folder());
    assert_eq!(why, DirectoryFault::Missing);
    let why = fault(&machine, &root, &disk.at);
    assert_eq!(why, DirectoryFault::DefaultFilesystem);
    assert!(names(&disk.at).is_empty(), "the mount point was written");
    // As kubelet does for a directory that is to be mounted into a pod.
    fs::create_dir(disk.folder()).unwrap();
    let why = fault(&machine, &root, &disk.folder());
    assert_eq!(why, DirectoryFault::DefaultFilesystem);
    assert!(names(&disk.folder()).is_empty(), "the folder was written");
    must(root.remove_pool(&pool_in(&disk.folder()), Expectation::New));
    disk.mount();
    let declaration = pool_in(&disk.at);
    let pool = must(root.open_pool(&declaration, Expectation::New));
    let expectation = known(&pool);
    drop(pool);
    must(root.remove_pool(&declaration, expectation));
    unmount(&disk.at);
}

#[test]
fn an_open_pool_misses_its_file_as_soon_as_another_filesystem_hides_it() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::gib(4));
    let (root, declaration) = (disk.root(&machine), pool_in(&disk.folder()));
    let pool = must(root.open_pool(&declaration, Expectation::New));
    run("mount", &["-t", "tmpfs", "none", text(&disk.at)]);
    assert!(matches!(pool.check(), Err(Error::BackingMissing { .. })));
    // Nothing of the pool is recorded yet, and its file is not made a second time.
    fs::create_dir(disk.folder()).unwrap();
    let again = root.open_pool(&declaration, Expectation::New);
    assert!(
        matches!(again, Err(Error::BackingMissing { .. })),
        "{again:?}"
    );
    assert!(names(&disk.folder()).is_empty());
    unmount(&disk.at);
    must(pool.check());
    let expectation = known(&pool);
    drop(pool);
    must(root.remove_pool(&declaration, expectation));
    unmount(&disk.at);
}

#[test]
fn a_pool_leaves_the_same_share_of_the_filesystem_of_its_directory_free() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::mib(1100));
    let error = refusal(&machine, &disk.root(&machine), &disk.folder());
    assert!(
        matches!(error, Error::HostFilesystemFull { kept_percent, .. } if kept_percent > 0),
        "{error:?}"
    );
    assert!(names(&disk.folder()).is_empty(), "a file is left");
    unmount(&disk.at);
}

#[test]
fn a_pool_in_a_directory_is_adopted_after_a_restore_of_the_cluster() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::gib(4));
    let (root, first) = (disk.root(&machine), pool_in(&disk.folder()));
    let returned = PoolDeclaration {
        uid: uid("1a2b3c4d-0000-4000-8000-00000000cafe"),
        ..first.clone()
    };
    let expectation = known(&must(root.open_pool(&first, Expectation::New)));
    // While it is mounted, and after a reboot.
    for again in [expectation, Expectation::Made, Expectation::New] {
        let pool = must(root.open_pool(&returned, again));
        assert_eq!(known(&pool), expectation);
        assert_eq!(pool.path(), machine.mount_point(&first));
        drop(pool);
        unmount(&machine.mount_point(&first));
    }
    assert_eq!(names(&disk.folder()), [format!("{}.img", first.uid)]);
    must(root.remove_pool(&returned, expectation));
    assert!(names(&disk.folder()).is_empty());
    unmount(&disk.at);
}

#[test]
fn r07_no_pool_is_created_in_a_directory_beside_a_pool_of_its_name_in_another() {
    let machine = Machine::new();
    let disk = DataDisk::new(&machine, Bytes::gib(4));
    let root = disk.root(&machine);
    let returned = |directory: Option<PathBuf>| PoolDeclaration {
        uid: uid("1a2b3c4d-0000-4000-8000-00000000cafe"),
        source: Source::Image {
            size: POOL_SIZE,
            directory,
        },
        ..image_pool(POOL_SIZE)
    };
    let is_refused = |declaration: &PoolDeclaration| {
        let refused = root.open_pool(declaration, Expectation::New);
        let Err(Error::Ambiguous { found, .. }) = refused else {
            panic!("{refused:?}");
        };
        let is_elsewhere = |(_, why): &(_, Candidate)| matches!(why, Candidate::OtherDirectory);
        assert!(found.iter().any(is_elsewhere), "{found:?}");
    };
    // It is in the folder of the pools, mounted and not.
    let first = image_pool(POOL_SIZE);
    let expectation = known(&must(root.open_pool(&first, Expectation::New)));
    is_refused(&returned(Some(disk.folder())));
    unmount(&machine.mount_point(&first));
    is_refused(&returned(Some(disk.folder())));
    is_refused(&pool_in(&disk.folder()));
    must(root.remove_pool(&first, expectation));
    // It is mounted from the directory, and the folder of the pools is named.
    let first = pool_in(&disk.folder());
    let expectation = known(&must(root.open_pool(&first, Expectation::New)));
    is_refused(&returned(None));
    must(root.remove_pool(&first, expectation));
    assert!(names(&disk.folder()).is_empty());
    unmount(&disk.at);
}
