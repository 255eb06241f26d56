//! The inventory of a host that `fsck` uses.

use std::{fs, sync::Arc};

use cistern_host::{Expectation, Pool, Root, pool::Error};

use crate::harness::{Machine, POOL_SIZE, image_pool, known, must, open_new};

/// Compares the foreign files of a pool, each by its name and its size, and those in the inventory.
#[track_caller]
fn has_strays(machine: &Machine, pool: &Pool, expected: &[(&str, Option<u64>)]) {
    let top = pool.path();
    let strays = must(pool.strays(&[], &[]));
    let found: Vec<_> = strays
        .iter()
        .map(|stray| {
            let name = stray.path.strip_prefix(&top).unwrap().to_str().unwrap();
            (name, stray.size.map(|size| size.0))
        })
        .collect();
    assert_eq!(found, expected);
    assert_eq!(machine.inventory().pools[0].strays, strays);
}

#[test]
fn r06_loop_devices_of_a_neighbour_are_ignored_whatever_their_path() {
    let machine = Machine::new();
    // Nodes that are containers on one machine share its disk and its loop devices.
    let folder = machine.path("neighbour");
    fs::create_dir(&folder).unwrap();
    let neighbour = Root::new(&folder, Arc::clone(&machine.system));
    let (_ours, _theirs) = (
        open_new(&machine),
        neighbour
            .open_pool(&image_pool(POOL_SIZE), Expectation::New)
            .unwrap(),
    );
    let (ours, theirs) = (machine.inventory(), neighbour.inventory(&[]).unwrap());
    assert_eq!((ours.loops.len(), theirs.loops.len()), (1, 1));
    assert_ne!(ours.loops, theirs.loops);
    assert_eq!((ours.mounts.len(), theirs.mounts.len()), (1, 1));
}

#[test]
fn foreign_files_are_found_with_their_size_and_delay_no_inventory_of_the_pool() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (top, images) = (pool.path(), pool.path().join("images"));
    for (path, size) in [
        (images.join("notes.txt"), 4096),
        (top.join("core"), 5 << 20),
    ] {
        let file = fs::File::create(path).unwrap();
        // Its owner may write to it at any time.
        file.set_len(size).unwrap();
    }
    // It has the name of an image and is none.
    fs::create_dir(images.join("folder")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", images.join("link")).unwrap();
    let pipe = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, images.join("pipe"), pipe, mode, 0).unwrap();

    assert_eq!(must(pool.images()), []);
    has_strays(
        &machine,
        &pool,
        &[
            ("core", Some(5 << 20)),
            ("images/folder", None),
            ("images/link", Some(0)),
            ("images/notes.txt", Some(4096)),
            ("images/pipe", Some(0)),
        ],
    );

    // The pool is not removed while it contains a foreign file.
    let declaration = image_pool(POOL_SIZE);
    let expectation = known(&pool);
    for name in ["notes.txt", "link", "pipe"] {
        fs::remove_file(images.join(name)).unwrap();
    }
    fs::remove_dir(images.join("folder")).unwrap();
    drop(pool);
    let error = machine.root().remove_pool(&declaration, expectation);
    assert!(matches!(error, Err(Error::ImagesRemain { count: 1, .. })));
    fs::remove_file(top.join("core")).unwrap();
    must(machine.root().remove_pool(&declaration, expectation));
}

#[test]
fn foreign_entries_among_unfinished_images_and_copies_are_found_and_kept() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (top, temporary) = (pool.path(), pool.path().join("tmp"));
    let incoming = top.join("incoming");
    fs::create_dir(&incoming).unwrap();
    fs::create_dir(temporary.join("folder")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", temporary.join("link")).unwrap();
    for path in [temporary.join("notes.txt"), incoming.join("notes.txt")] {
        let file = fs::File::create(path).unwrap();
        file.set_len(4096).unwrap();
    }
    fs::write(temporary.join("unfinished"), "half").unwrap();
    let found = &machine.inventory().pools[0];
    assert_eq!(found.temporary, [temporary.join("unfinished")]);
    assert_eq!(found.incoming, []);

    assert_eq!(must(pool.sweep()), 1);
    has_strays(
        &machine,
        &pool,
        &[
            ("tmp/folder", None),
            ("tmp/link", Some(0)),
            ("tmp/notes.txt", Some(4096)),
            ("incoming/notes.txt", Some(4096)),
        ],
    );

    // The pool is not removed while it contains them.
    let (declaration, expectation) = (image_pool(POOL_SIZE), known(&pool));
    drop(pool);
    let error = machine.root().remove_pool(&declaration, expectation);
    assert!(matches!(error, Err(Error::ImagesRemain { count: 4, .. })));
}
