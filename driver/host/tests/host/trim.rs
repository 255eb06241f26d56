//! `fstrim` of a pool on its host. It punches the free space of the pool out of its file, because the loop
//! device of the file passes discards, see `ARCHITECTURE.md`.

use std::{fs, io, os::unix::fs::FileExt as _, path::Path, sync::Arc};

use cistern_host::ImageRequest;
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::fs::{FallocateFlags, fallocate};

use crate::{
    failing::text,
    harness::{
        Machine, POOL_SIZE, allocated, eventually, image_path, image_pool, known, must, open_new,
        request, run, unmount,
    },
    scenario::Volumes as _,
};

/// Writes a file and waits until it is on the disk.
fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes)?;
    fs::File::open(path)?.sync_all()
}

#[test]
fn no_synced_data_is_lost_when_a_pool_is_trimmed_on_its_host_and_others_take_the_space() {
    let machine = Machine::new();
    let declaration = image_pool(POOL_SIZE);
    let pool = Arc::new(open_new(&machine));
    let expectation = known(&pool);
    let at = machine.mount_point(&declaration);
    let file = at.with_extension("img");
    let size = Bytes::mib(64);
    let image = must(pool.new_image(&ImageRequest {
        uid: machine.uid("a"),
        ..request("a", size, FilesystemType::Ext4, Provisioning::Thin)
    }));
    let volume = image_path(&machine, &image.uid);
    let data: Vec<u8> = (0..=250_u8).cycle().take(32 << 20).collect();
    let writer = fs::OpenOptions::new().write(true).open(&volume).unwrap();
    writer.write_all_at(&data, 16 << 20).unwrap();
    writer.sync_all().unwrap();
    drop(writer);
    let before = fs::read(&volume).unwrap();

    run("fstrim", &[text(&at)]);
    let is_sparse = || allocated(&file) < POOL_SIZE.0 / 2;
    assert!(is_sparse(), "the trim punched no hole");
    let neighbour = fs::File::create(machine.path("neighbour")).unwrap();
    let space = rustix::fs::statvfs(&machine.folder).unwrap();
    let taken = (space.f_bavail * space.f_frsize).saturating_sub(4 << 20);
    fallocate(&neighbour, FallocateFlags::empty(), 0, taken).unwrap();
    // The pool has no blocks for this. It is acknowledged only if it found some all the same.
    let later = at.join("images/later");
    let acknowledged = write_synced(&later, &data).is_ok();

    // The neighbour goes, and the pool is mounted anew, also if XFS has shut itself down.
    neighbour.set_len(0).unwrap();
    drop(pool);
    unmount(&at);
    eventually("the full file", || {
        must(machine.root().open_pool(&declaration, expectation));
        allocated(&file) >= POOL_SIZE.0
    });
    assert!(
        fs::read(&volume).unwrap() == before,
        "the volume has changed"
    );
    if acknowledged {
        assert!(
            fs::read(&later).unwrap() == data,
            "a synced file has changed"
        );
    }
}
