//! Image pools on filesystems of the host that lack features.

use std::fs;

use cistern_host::{Expectation, pool::Error};
use cistern_types::Bytes;
use rustix::mount::UnmountFlags;

use crate::{
    device::Disk,
    failing::text,
    harness::{Machine, allocated, image_pool, known, must, run, unmount},
};

/// A pool that fits into memory.
const SIZE: Bytes = Bytes::mib(320);

/// Puts the folder of Cistern on a filesystem of its own: `arguments` are those of mount(8).
fn put_root_on(machine: &Machine, arguments: &[&str]) {
    let at = machine.path("root");
    run("mount", &[arguments, &[text(&at)]].concat());
}

/// Tries to create a pool. It must be refused with the name of the filesystem, and leave nothing.
fn refusal(machine: &Machine, filesystem: &str) -> String {
    let root = machine.root();
    let error = root
        .open_pool(&image_pool(SIZE), Expectation::New)
        .unwrap_err();
    match &error {
        Error::HostFilesystemUnfit {
            filesystem: found, ..
        } => assert_eq!(found, filesystem),
        other => panic!("{other:?}"),
    }
    let left = fs::read_dir(machine.path("root/pools")).unwrap();
    let mut left = left.map(|entry| entry.unwrap().path());
    assert!(left.all(|path| path.is_dir()), "a file is left");
    error.to_string()
}

#[test]
fn a_pool_on_a_filesystem_that_does_not_map_its_files_is_found_again_and_grows() {
    let machine = Machine::new();
    put_root_on(&machine, &["-t", "tmpfs", "-o", "size=640m", "none"]);
    let declaration = image_pool(SIZE);
    let at = machine.mount_point(&declaration);
    let root = machine.root();
    let pool = must(root.open_pool(&declaration, Expectation::New));
    let expectation = known(&pool);
    drop(pool);
    unmount(&at);
    // The free space is smaller than the file, so its space counts as allocated.
    let pool = must(root.open_pool(&declaration, expectation));
    assert_eq!(must(pool.resize_file(SIZE)).shortage, None);
    let larger = Bytes::mib(400);
    let file = must(pool.resize_file(larger));
    assert_eq!((file.size, file.shortage), (larger, None));
    assert!(allocated(&at.with_extension("img")) >= larger.0);
    let file = must(pool.resize_file(Bytes::mib(600)));
    assert!(file.shortage.is_some(), "{file:?}");
    must(pool.check());
    drop(pool);
    unmount(&at);
    rustix::mount::unmount(machine.path("root"), UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_pool_is_refused_on_a_filesystem_that_cannot_preallocate_files() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "old");
    let (features, device) = ("^extent,^64bit", text(&disk.device));
    run("mkfs.ext4", &["-q", "-F", "-O", features, device]);
    put_root_on(&machine, &[device]);
    let error = refusal(&machine, "ext4");
    assert!(error.contains("does not preallocate space"), "{error}");
    unmount(&machine.path("root"));
}

#[test]
fn a_pool_is_refused_on_a_filesystem_without_direct_io_for_its_sectors() {
    let machine = Machine::new();
    let file = machine.path("coarse");
    fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
    let device = run("losetup", &["-f", "--show", "-b", "8192", text(&file)]);
    let device = device.trim();
    run(
        "mkfs.xfs",
        &["-q", "-b", "size=8192", "-s", "size=8192", device],
    );
    put_root_on(&machine, &[device]);
    run("losetup", &["-d", device]);
    let error = refusal(&machine, "xfs");
    assert!(error.contains("no direct I/O"), "{error}");
    unmount(&machine.path("root"));
}
