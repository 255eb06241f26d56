//! A volume that moves here: its copy is received from a closed image, and becomes the volume.

use std::{
    fs,
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::PathBuf,
};

use cistern_host::{
    Expectation, Fence, Image, ImageRequest, Pool, PoolDeclaration, Uid,
    copy::{Chunk, CopyRequest},
    image::Error,
    pool,
    system::OFlags,
};
use cistern_types::{Bytes, Consistency, ExtentSize, FilesystemType, Provisioning};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};

use crate::{
    fence::{another_move, close, is_moving, the_move},
    harness::{
        Machine, Volume, allocated, chain, image_path, image_pool, known, must, open_new, request,
        run, uid, unstage,
    },
    scenario::Volumes as _,
    snapshot::{snapshot_of, take_snapshot},
};

/// The extended attribute with the state of a copy.
const STATE: &str = "trusted.cistern.copy";

/// The pool of the node that the volume moves to.
fn target() -> PoolDeclaration {
    PoolDeclaration {
        uid: uid("4e2d1c0b-0000-4000-8000-00000000c0de"),
        name: "target".to_owned(),
        ..image_pool(Bytes::gib(1))
    }
}

pub(crate) fn open_target(machine: &Machine) -> Pool {
    must(machine.root().open_pool(&target(), Expectation::New))
}

pub(crate) fn target_path(machine: &Machine, folder: &str, image: &Uid) -> PathBuf {
    let pool = machine.mount_point(&target());
    pool.join(folder).join(image.as_str())
}

fn copy_request(source: &Pool, image: &Uid) -> CopyRequest {
    let sent = must(source.send(image, 0));
    assert_eq!(sent.closed_for(), Some(&the_move()));
    CopyRequest {
        volume: image.clone(),
        original: sent.original().clone(),
        extent_size: Some(ExtentSize::Mib1),
        point_for: None,
        base: None,
    }
}

fn chunks(source: &Pool, image: &Uid) -> Vec<Chunk> {
    let sent = must(source.send(image, 0));
    sent.filter_map(|chunk| must(chunk)).collect()
}

/// Copies a closed image in full.
fn copy(source: &Pool, image: &Uid, pool: &Pool) {
    let mut incoming = must(pool.receive(&copy_request(source, image)));
    for chunk in chunks(source, image) {
        must(incoming.write(&chunk));
    }
    must(incoming.complete());
}

/// A raw block volume of 8 MiB with some data.
fn written(machine: &Machine, pool: &Pool) -> Image {
    let image = must(pool.new_image(&ImageRequest {
        uid: machine.uid("a"),
        filesystem: None,
        ..request("a", Bytes::mib(8), FilesystemType::Ext4, Provisioning::Thin)
    }));
    let path = image_path(machine, &image.uid);
    let file = fs::File::options().write(true).open(path).unwrap();
    let data: Vec<u8> = (0..3 << 20)
        .map(|at: u32| (at % 251 + 1).to_le_bytes()[0])
        .collect();
    file.write_all_at(&data, 1 << 20).unwrap();
    image
}

#[test]
fn a_moved_volume_is_the_same_volume_with_its_files_and_owns_its_blocks() {
    for filesystem in FilesystemType::ALL {
        let machine = Machine::new();
        let (pool, other) = (open_new(&machine), open_target(&machine));
        let size = Bytes::mib(300);
        let image = must(pool.new_image(&ImageRequest {
            uid: machine.uid("a"),
            ..request("a", size, filesystem, Provisioning::Thick)
        }));
        let staging = machine.staging("source");
        must(pool.stage(&Volume::new(&image).stage(&staging)));
        must(pool.begin_closing(&image.uid, &the_move()));
        fs::write(staging.join("file"), "kept").unwrap();
        unstage(&machine, &image.uid, &staging);
        must(pool.close(&image.uid, &the_move()));

        copy(&pool, &image.uid, &other);
        let moved = must(other.open_copy(&image.uid, "pvc-a", &the_move()));
        assert_eq!(
            must(other.open_copy(&image.uid, "pvc-a", &the_move())),
            moved
        );
        let (found, mut expected) = (moved.identity.clone(), image.identity.clone());
        expected.as_mut().unwrap().pool_uuid = other.filesystem_uuid();
        assert_eq!((found, moved.size), (expected, size), "{filesystem}");
        assert_eq!(must(other.incoming()), []);
        assert_eq!(must(other.fence(&image.uid)), Fence::Open);

        let path = target_path(&machine, "images", &image.uid);
        assert!(allocated(&path) >= size.0, "{filesystem}");
        let path = path.to_str().unwrap();
        let hint = run("xfs_io", &["-r", "-c", "extsize", path]);
        assert!(hint.starts_with("[1048576]"), "{hint}");
        let file = machine.system.open(path.as_ref(), OFlags::RDONLY).unwrap();
        for name in ["trusted.cistern.fence", "trusted.cistern.copy"] {
            let value = machine.system.attribute(file.as_fd(), name).unwrap();
            assert_eq!(value, None, "{name}");
        }

        must(pool.remove_closed(&image.uid, &the_move()));
        let staging = machine.staging("target");
        must(other.stage(&Volume::new(&moved).stage(&staging)));
        assert_eq!(fs::read(staging.join("file")).unwrap(), b"kept");
        fs::write(staging.join("more"), "written").unwrap();
        unstage(&machine, &image.uid, &staging);
        must(other.remove_image(&image.uid));
    }
}

#[test]
fn a_moved_raw_block_volume_has_the_same_bytes_and_stays_thin() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let before = fs::read(image_path(&machine, &image.uid)).unwrap();
    close(&pool, &image.uid);
    copy(&pool, &image.uid, &other);
    must(other.open_copy(&image.uid, "pvc-a", &the_move()));
    let path = target_path(&machine, "images", &image.uid);
    assert!(fs::read(&path).unwrap() == before);
    assert!(allocated(&path) < Bytes::mib(5).0);
}

#[test]
fn a_volume_is_sent_only_when_it_is_closed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = written(&machine, &pool);
    let refused = || {
        let error = pool.send(&image.uid, 0).map(drop).unwrap_err();
        assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    };
    refused();
    must(pool.begin_closing(&image.uid, &the_move()));
    refused();
    must(pool.close(&image.uid, &the_move()));
    assert!(!chunks(&pool, &image.uid).is_empty());
    must(pool.reopen(&image.uid, &the_move()));
    refused();
    let taken = snapshot_of(&image, "s");
    let taken = must(take_snapshot(&machine, &pool, taken, Consistency::Crash));
    assert_eq!(must(pool.send(&taken.uid, 0)).closed_for(), None);
    must(pool.remove_image(&image.uid));
    let error = pool.send(&image.uid, 0).map(drop).unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
}

#[test]
fn a_copy_is_not_opened_before_it_is_complete_and_nothing_takes_its_place() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let uid = &image.uid;
    close(&pool, uid);
    let open = || other.open_copy(uid, "pvc-a", &the_move());
    let error = open().unwrap_err();
    assert!(matches!(error, Error::Missing { .. }), "{error}");
    let received = |result: Result<Image, Error>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
    };
    let mut incoming = must(other.receive(&copy_request(&pool, uid)));
    received(open());
    for chunk in chunks(&pool, uid) {
        must(incoming.write(&chunk));
    }
    must(incoming.sync());
    drop(incoming);
    received(open());
    let anew = ImageRequest {
        uid: uid.clone(),
        filesystem: None,
        ..request("a", image.size, FilesystemType::Ext4, Provisioning::Thin)
    };
    is_moving(other.new_image(&anew));
    must(must(other.receive(&copy_request(&pool, uid))).complete());
    // Also of the complete copy.
    is_moving(other.new_image(&anew));
    let error = other.open_copy(uid, "pvc-b", &the_move()).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    assert_eq!(must(other.images()), []);
    must(open());
}

#[test]
fn an_object_that_is_created_again_gets_no_empty_volume_beside_the_copy_of_its_volume() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    close(&pool, &image.uid);
    let anew = |name: &str| ImageRequest {
        uid: uid("uid-created-again"),
        filesystem: None,
        ..request(name, image.size, FilesystemType::Ext4, Provisioning::Thin)
    };
    must(other.refuse_copies_of("pvc-a"));
    let incoming = must(other.receive(&copy_request(&pool, &image.uid)));
    is_moving(other.new_image(&anew("a")));
    drop(incoming);
    copy(&pool, &image.uid, &other);
    is_moving(other.new_image(&anew("a")));
    assert_eq!(must(other.images()), []);
    // Of another name.
    must(other.new_image(&anew("b")));

    must(other.open_copy(&image.uid, "pvc-a", &the_move()));
    must(other.refuse_copies_of("pvc-a"));
}

#[test]
fn a_copy_of_an_undone_move_is_neither_opened_nor_continued_by_the_next_one() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let uid = &image.uid;
    close(&pool, uid);
    copy(&pool, uid, &other);
    must(pool.reopen(uid, &the_move()));
    // Between the moves, it is written to.
    let path = image_path(&machine, uid);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"later", 6 << 20).unwrap();
    drop(file);
    must(pool.begin_closing(uid, &another_move()));
    must(pool.close(uid, &another_move()));

    let error = other.open_copy(uid, "pvc-a", &another_move()).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    let request = CopyRequest {
        volume: uid.clone(),
        original: must(pool.send(uid, 0)).original().clone(),
        extent_size: None,
        point_for: None,
        base: None,
    };
    let mut incoming = must(other.receive(&request));
    assert_eq!(incoming.written(), Bytes::ZERO);
    for chunk in chunks(&pool, uid) {
        must(incoming.write(&chunk));
    }
    must(incoming.complete());
    // Neither a removal for the first move that comes late, nor one for copies of snapshots.
    must(other.remove_copy(uid, &the_move()));
    must(other.remove_incoming(uid));
    let listed = must(other.incoming());
    assert_eq!(listed[0].moved_by, Some(another_move()));
    must(other.open_copy(uid, "pvc-a", &another_move()));
    let data = fs::read(target_path(&machine, "images", uid)).unwrap();
    assert_eq!(&data[6 << 20..][..5], b"later");
    // It is the volume now.
    must(other.remove_copy(uid, &another_move()));
    assert_eq!(must(other.images()).len(), 1);
}

#[test]
fn the_copy_of_a_move_is_removed_complete_or_not_but_not_while_it_is_received() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let uid = &image.uid;
    close(&pool, uid);
    must(other.remove_copy(uid, &the_move()));
    let incoming = must(other.receive(&copy_request(&pool, uid)));
    let error = other.remove_copy(uid, &the_move()).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    drop(incoming);
    must(other.remove_copy(uid, &the_move()));
    assert_eq!(must(other.incoming()), []);
    copy(&pool, uid, &other);
    must(other.remove_copy(uid, &the_move()));
    assert_eq!(must(other.incoming()), []);
    assert_eq!(must(pool.closed()).len(), 1);
}

#[test]
fn a_pool_with_the_copy_of_a_volume_that_moves_is_not_removed() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    close(&pool, &image.uid);
    copy(&pool, &image.uid, &other);
    let listed = must(other.incoming());
    assert!(!listed[0].is_point && listed[0].is_of_move(), "{listed:?}");
    let expectation = known(&other);
    drop(other);
    let root = machine.root();
    let error = root.remove_pool(&target(), expectation).unwrap_err();
    let remains = matches!(error, pool::Error::ImagesRemain { count: 1, .. });
    assert!(remains, "{error}");

    let other = must(root.open_pool(&target(), expectation));
    must(other.remove_copy(&image.uid, &the_move()));
    drop(other);
    must(root.remove_pool(&target(), expectation));
}

#[test]
fn a_copy_never_replaces_an_image_and_none_is_received_beside_its_volume() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let uid = &image.uid;
    close(&pool, uid);
    copy(&pool, uid, &other);
    let path = target_path(&machine, "images", uid);
    fs::write(&path, "another").unwrap();
    let error = other.open_copy(uid, "pvc-a", &the_move()).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"another");
    fs::remove_file(&path).unwrap();
    must(other.open_copy(uid, "pvc-a", &the_move()));

    let request = copy_request(&pool, uid);
    let error = other.receive(&request).map(drop).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    let error = pool.receive(&request).map(drop).unwrap_err();
    assert!(matches!(error, Error::Moving { .. }), "{error}");
    let error = pool.open_copy(uid, "pvc-a", &the_move()).unwrap_err();
    assert!(matches!(error, Error::Moving { .. }), "{error}");
}

#[test]
fn an_image_from_before_the_move_is_never_taken_for_the_copy() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let uid = &image.uid;
    // The node had the volume once, was forgotten, and is back.
    let before = ImageRequest {
        uid: uid.clone(),
        filesystem: None,
        ..request("a", image.size, FilesystemType::Ext4, Provisioning::Thin)
    };
    must(other.new_image(&before));
    close(&pool, uid);
    let is_refused = |error: Error| {
        let says = chain(&error);
        assert!(says.contains(uid.as_str()), "{says}");
        assert!(says.contains("from before the VolumeMove"), "{says}");
    };
    is_refused(other.is_moved(uid, &the_move()).unwrap_err());
    let opened = other.open_copy(uid, "pvc-a", &the_move());
    is_refused(opened.unwrap_err());
    let received = other.receive(&copy_request(&pool, uid)).map(drop);
    assert!(matches!(received, Err(Error::IdentityConflict { .. })));
    assert_eq!(must(other.images()).len(), 1);

    // An administrator has removed it.
    must(other.remove_image(uid));
    assert!(!must(other.is_moved(uid, &the_move())));
    copy(&pool, uid, &other);
    assert!(must(other.is_moved(uid, &the_move())));
    assert!(!must(other.is_moved(uid, &another_move())));
    must(other.open_copy(uid, "pvc-a", &the_move()));
    // The image that this move has made is no other one.
    assert!(must(other.is_moved(uid, &the_move())));
    is_refused(other.is_moved(uid, &another_move()).unwrap_err());
    let opened = other.open_copy(uid, "pvc-a", &another_move());
    is_refused(opened.unwrap_err());
}

#[test]
fn r20_an_image_that_an_earlier_version_has_made_of_the_copy_is_taken_until_that_is_reported() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let uid = &image.uid;
    close(&pool, uid);
    copy(&pool, uid, &other);
    let mut state = vec![0; 4096];
    let received = target_path(&machine, "incoming", uid);
    let length = getxattr(&received, STATE, &mut state[..]).unwrap();
    must(other.open_copy(uid, "pvc-a", &the_move()));
    // What an agent of that version leaves that ends before it has synced the name.
    let made = target_path(&machine, "images", uid);
    removexattr(&made, "trusted.cistern.arrived").unwrap();
    setxattr(&made, STATE, &state[..length], XattrFlags::CREATE).unwrap();
    must(other.open_copy(uid, "pvc-a", &the_move()));
    setxattr(&made, STATE, &state[..length], XattrFlags::CREATE).unwrap();
    assert!(must(other.is_moved(uid, &the_move())));
    let opened = other.open_copy(uid, "pvc-a", &another_move());
    assert!(matches!(opened, Err(Error::IdentityConflict { .. })));
}

#[test]
fn a_copy_is_complete_only_after_the_sync_of_what_says_so() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let uid = &image.uid;
    close(&pool, uid);
    let request = copy_request(&pool, uid);
    let (system, root) = machine.faulty();
    let faulty = must(root.open_pool(&target(), known(&other)));
    // What the calls say that fail once each.
    let errors = |call: &dyn Fn() -> Result<(), Error>| -> Vec<String> {
        let fails = |at| {
            system.fail_in(at);
            let done = call();
            let has_failed = system.has_failed();
            system.fail_in(u64::MAX / 2);
            assert!(has_failed || done.is_ok(), "{done:?}");
            has_failed.then(|| done.err().map(|error| chain(&error)).unwrap_or_default())
        };
        (1..200).map_while(fails).collect()
    };
    let is_complete = || must(other.is_moved(uid, &the_move()));

    drop(must(faulty.receive(&request)));
    let mut begun = 1;
    // The identity is there, and its sync has failed.
    while !is_complete() {
        let incoming = must(faulty.receive(&request));
        system.fail_in(begun);
        let completed = incoming.complete();
        assert!(completed.is_err() && system.has_failed());
        system.fail_in(u64::MAX / 2);
        begun += 1;
    }
    let says = errors(&|| faulty.is_moved(uid, &the_move()).map(drop));
    let synced = says
        .iter()
        .filter(|it| it.contains("sync the complete copy"));
    assert!(synced.count() >= 2, "the file and the folder: {says:?}");
    let says = errors(&|| faulty.receive(&request)?.complete());
    let synced = says.iter().filter(|it| it.contains("write the identity"));
    assert!(synced.count() >= 2, "read and synced: {says:?}");
    assert!(is_complete());
}

#[test]
fn a_copy_of_something_else_than_its_volume_is_not_opened() {
    let machine = Machine::new();
    let (pool, other) = (open_new(&machine), open_target(&machine));
    let image = written(&machine, &pool);
    let taken = snapshot_of(&image, "s");
    let taken = must(take_snapshot(&machine, &pool, taken, Consistency::Crash));
    let request = CopyRequest {
        volume: image.uid.clone(),
        original: must(pool.send(&taken.uid, 0)).original().clone(),
        extent_size: None,
        point_for: None,
        base: None,
    };
    must(must(other.receive(&request)).complete());
    let error = other
        .open_copy(&image.uid, "pvc-a", &the_move())
        .unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    assert_eq!(must(other.images()), []);
}
