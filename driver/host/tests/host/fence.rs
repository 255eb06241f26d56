//! A volume that moves away: closing, closed, opened again, removed.

mod fixture;
mod unexpected;

use std::{fs, path::Path, sync::Arc, thread, time::Duration};

use cistern_host::{
    BlockPublishRequest, Engine, Fence, ImageRequest, image::Error, pool, snapshot,
};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning};
use rustix::fs::{FallocateFlags, FlockOperation, flock};

use self::fixture::{SIZE, closed_path, device, is_not_attached, stage_device, volume};
pub(crate) use self::fixture::{another_move, close, is_moving, the_move};
use crate::{
    harness::{
        Machine, POOL_SIZE, Probes as _, Volume, allocated, eventually, has_loops, image_path,
        image_pool, known, must, open_new, request, run, unstage,
    },
    health_volume::subject,
    scenario::Volumes as _,
    snapshot::{snapshot_of, take_snapshot},
};

#[test]
fn a_closing_volume_keeps_what_uses_it_and_gets_no_new_stage_or_publish() {
    let machine = Machine::new();
    let (pool, root) = (open_new(&machine), machine.root());
    let image = volume(&machine, &pool);
    let volume = Volume::new(&image);
    let (staging, other) = (machine.staging("s"), machine.staging("other"));
    let (target, new) = (
        machine.path("kubelet/target"),
        machine.path("kubelet/new-target"),
    );
    must(pool.stage(&volume.stage(&staging)));
    must(root.publish(&volume.publish(&staging, &target)));
    for _ in 0..2 {
        must(pool.begin_closing(&image.uid, &the_move()));
    }
    let closing = Fence::Closing { by: the_move() };
    assert_eq!(must(pool.fence(&image.uid)), closing);

    fs::write(target.join("file"), "written").unwrap();
    must(pool.stage(&volume.stage(&staging)));
    must(root.publish(&volume.publish(&staging, &target)));
    is_not_attached(pool.stage(&volume.stage(&other)));
    is_not_attached(root.publish(&volume.publish(&staging, &new)));
    assert!(!new.exists());
    has_loops(&machine, 2);
    let patience = Duration::from_mins(1);
    must(root.statistics_of(&image.uid, &target, patience));
    let taken = snapshot_of(&image, "s");
    let taken = must(take_snapshot(
        &machine,
        &pool,
        taken,
        Consistency::Filesystem,
    ));
    must(pool.remove_image(&taken.uid));

    must(root.unpublish(&target));
    is_not_attached(root.publish(&volume.publish(&staging, &target)));
    unstage(&machine, &image.uid, &staging);
    is_not_attached(pool.stage(&volume.stage(&staging)));
    is_not_attached((&pool as &dyn Engine).prepare(&volume.stage(&staging)));
    has_loops(&machine, 1);
}

#[test]
fn a_closing_raw_block_volume_keeps_what_uses_it_and_gets_no_new_stage_or_publish() {
    let machine = Machine::new();
    let (pool, root) = (open_new(&machine), machine.root());
    let image = device(&machine, &pool);
    let (staging, other) = (machine.staging("s"), machine.staging("other"));
    let (target, new) = (
        machine.path("kubelet/target"),
        machine.path("kubelet/new-target"),
    );
    let publish = |target: &Path| {
        root.publish_block(&BlockPublishRequest {
            image: &image.uid,
            read_only: false,
            staging: &staging,
            target,
        })
    };
    must(stage_device(&pool, &image, &staging));
    must(publish(&target));
    must(pool.begin_closing(&image.uid, &the_move()));

    must(stage_device(&pool, &image, &staging));
    must(publish(&target));
    is_not_attached(stage_device(&pool, &image, &other));
    is_not_attached(publish(&new));
    assert!(!new.exists());
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    must(root.unpublish(&target));
    must(root.unstage(&staging));
    is_not_attached(stage_device(&pool, &image, &staging));
    assert_eq!(fs::read_dir(&staging).unwrap().count(), 0);
    has_loops(&machine, 1);
}

#[test]
fn a_closing_volume_does_not_grow_and_is_neither_reallocated_nor_removed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume(&machine, &pool);
    let path = image_path(&machine, &image.uid);
    let file = fs::File::options().write(true).open(&path).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 32 << 20, 8 << 20).unwrap();
    must(pool.begin_closing(&image.uid, &the_move()));

    is_moving(pool.grow_image(&image.uid, Bytes::mib(80)));
    is_moving(pool.allocate_all(&image.uid));
    is_moving(pool.provision(&image.uid, Provisioning::Thin));
    is_moving(pool.remove_image(&image.uid));
    is_moving(pool.discard(&image.uid, chrono::DateTime::UNIX_EPOCH));
    assert!(allocated(&path) < SIZE.0);
    // It has this size.
    assert_eq!(must(pool.grow_image(&image.uid, SIZE)).size, SIZE);

    must(pool.reopen(&image.uid, &the_move()));
    must(pool.allocate_all(&image.uid));
    assert!(allocated(&path) >= SIZE.0);
}

#[test]
fn a_closed_volume_is_out_of_reach_and_is_counted() {
    let machine = Machine::new();
    let pool = Arc::new(open_new(&machine));
    let image = volume(&machine, &pool);
    let uid = &image.uid;
    let staging = machine.staging("s");
    close(&pool, uid);
    must(pool.close(uid, &the_move()));
    must(pool.begin_closing(uid, &the_move()));
    assert_eq!(must(pool.fence(uid)), Fence::Closed { by: the_move() });

    is_not_attached(pool.stage(&Volume::new(&image).stage(&staging)));
    is_moving(pool.grow_image(uid, Bytes::mib(80)));
    is_moving(pool.remove_image(uid));
    let snapshot = snapshot_of(&image, "s");
    match take_snapshot(&machine, &pool, snapshot, Consistency::Crash).unwrap_err() {
        snapshot::Error::Image(error) => is_moving::<()>(Err(error)),
        error @ (snapshot::Error::FreezeFailed { .. }
        | snapshot::Error::StallTooLong { .. }
        | snapshot::Error::Stopped(_)) => panic!("{error}"),
    }
    // No empty volume takes its place.
    is_moving(pool.new_image(&ImageRequest {
        uid: uid.clone(),
        ..request("a", SIZE, FilesystemType::Ext4, Provisioning::Thick)
    }));
    assert_eq!(must(pool.images()), []);
    let closed = must(pool.closed());
    assert_eq!((&closed[0].image, closed.len()), (&image, 1));
    assert_eq!(closed[0].by, Some(the_move()));
    let inventory = &machine.inventory().pools[0];
    assert_eq!(
        (&inventory.closed, &inventory.strays[..]),
        (&closed, &[][..])
    );
    assert_eq!(must(pool.strays(&[], &[])), []);
    let troubles = pool.examine(&[subject(&image)], Duration::from_mins(1));
    assert_eq!(troubles, [[]]);

    fs::write(
        closed_path(&machine, uid).with_file_name("a foreign file"),
        "",
    )
    .unwrap();
    assert_eq!(must(pool.strays(&[], &[])).len(), 1);
    fs::remove_file(closed_path(&machine, uid).with_file_name("a foreign file")).unwrap();
    let expectation = known(&pool);
    drop(pool);
    let root = machine.root();
    let error = root
        .remove_pool(&image_pool(POOL_SIZE), expectation)
        .unwrap_err();
    assert!(
        matches!(error, pool::Error::ImagesRemain { count: 1, .. }),
        "{error}"
    );
}

#[test]
fn nothing_is_closed_that_is_attached_or_read_or_was_not_marked() {
    let machine = Machine::new();
    let (pool, root) = (open_new(&machine), machine.root());
    let image = volume(&machine, &pool);
    let (uid, by) = (&image.uid, &the_move());
    let staging = machine.staging("s");
    let error = pool.close(uid, by).unwrap_err();
    assert!(matches!(error, Error::NotClosing { .. }), "{error}");
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    must(pool.begin_closing(uid, by));
    let in_use = || {
        let error = pool.close(uid, by).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        assert_eq!(must(pool.fence(uid)), Fence::Closing { by: by.clone() });
    };
    in_use();
    // Only a loop device is left, which a process holds.
    let bound = machine.inventory().loops;
    let bound = bound
        .iter()
        .find(|bound| bound.backing_file.ends_with(uid.as_str()));
    let held = fs::File::open(format!("/dev/loop{}", bound.unwrap().number)).unwrap();
    must(root.unstage(&staging));
    in_use();
    drop(held);
    let reader = fs::File::open(image_path(&machine, uid)).unwrap();
    flock(&reader, FlockOperation::LockShared).unwrap();
    in_use();
    drop(reader);
    eventually("the end of its uses", || pool.close(uid, by).is_ok());
}

#[test]
fn an_idle_loop_device_of_a_raw_block_volume_is_detached_when_it_is_closed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = device(&machine, &pool);
    let staging = machine.staging("s");
    must(stage_device(&pool, &image, &staging));
    must(pool.begin_closing(&image.uid, &the_move()));
    let error = pool.close(&image.uid, &the_move()).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    // kubelet's directory is removed, as by `kubeadm reset`.
    run(
        "umount",
        &[staging.join(image.uid.as_str()).to_str().unwrap()],
    );
    fs::remove_dir_all(&staging).unwrap();
    must(pool.close(&image.uid, &the_move()));
    has_loops(&machine, 1);
}

#[test]
fn a_stage_that_has_opened_the_image_before_it_is_closed_does_not_attach_it() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = device(&machine, &pool);
    let staging = machine.staging("s");
    let path = image_path(&machine, &image.uid);
    must(pool.begin_closing(&image.uid, &the_move()));
    must(pool.close(&image.uid, &the_move()));
    must(pool.reopen(&image.uid, &the_move()));
    // A process that closes the image holds the lock.
    let closing = fs::File::open(&path).unwrap();
    flock(&closing, FlockOperation::LockExclusive).unwrap();
    let opened = || {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        let links = open.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        links.filter(|link| *link == path).count()
    };
    thread::scope(|scope| {
        let staged = scope.spawn(|| stage_device(&pool, &image, &staging));
        // It opens the image for a moment before, too.
        let mut seen = 0;
        eventually("the stage to wait for the lock", || {
            seen = if opened() > 2 { seen + 1 } else { 0 };
            seen > 3 || staged.is_finished()
        });
        fs::rename(&path, closed_path(&machine, &image.uid)).unwrap();
        drop(closing);
        assert!(staged.join().unwrap().is_err());
    });
    has_loops(&machine, 1);
    assert_eq!(fs::read_dir(&staging).unwrap().count(), 0);
}

#[test]
fn only_volumes_are_closed_and_each_for_one_move_at_a_time() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume(&machine, &pool);
    let (uid, by, other) = (&image.uid, &the_move(), &another_move());
    let taken = snapshot_of(&image, "s");
    let taken = must(take_snapshot(&machine, &pool, taken, Consistency::Crash));
    let error = pool.begin_closing(&taken.uid, by).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    let missing = "uid-missing".parse().unwrap();
    for result in [
        pool.begin_closing(&missing, by),
        pool.close(&missing, by),
        pool.reopen(&missing, by),
        pool.fence(&missing).map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Missing { .. }), "{error}");
    }
    must(pool.begin_closing(uid, by));
    for _ in 0..2 {
        is_moving(pool.begin_closing(uid, other));
        is_moving(pool.close(uid, other));
        is_moving(pool.reopen(uid, other));
        must(pool.close(uid, by));
    }
    is_moving(pool.remove_closed(uid, other));
    assert_eq!(must(pool.fence(uid)), Fence::Closed { by: by.clone() });
}

#[test]
fn an_undone_move_opens_the_volume_with_its_data() {
    let machine = Machine::new();
    let (pool, root) = (open_new(&machine), machine.root());
    let image = volume(&machine, &pool);
    let (uid, by) = (&image.uid, &the_move());
    let staging = machine.staging("s");
    let volume = Volume::new(&image);
    must(pool.stage(&volume.stage(&staging)));
    must(pool.begin_closing(uid, by));
    must(pool.reopen(uid, by));
    must(pool.reopen(uid, by));
    assert_eq!(must(pool.fence(uid)), Fence::Open);
    let target = machine.path("kubelet/target");
    must(root.publish(&volume.publish(&staging, &target)));
    fs::write(target.join("file"), "kept").unwrap();
    must(root.unpublish(&target));
    unstage(&machine, uid, &staging);

    close(&pool, uid);
    let sent = must(pool.send(uid, 0));
    for result in [pool.reopen(uid, by), pool.remove_closed(uid, by)] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
    }
    drop(sent);
    must(pool.reopen(uid, by));
    assert_eq!(must(pool.images()), std::slice::from_ref(&image));
    assert_eq!(must(pool.closed()), []);
    // A call that comes too late finds no mark.
    let error = pool.close(uid, by).unwrap_err();
    assert!(matches!(error, Error::NotClosing { .. }), "{error}");
    must(pool.stage(&volume.stage(&staging)));
    assert_eq!(fs::read(staging.join("file")).unwrap(), b"kept");
    unstage(&machine, uid, &staging);
}

#[test]
fn a_closed_volume_that_returns_to_closing_is_closed_again_and_never_attached() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume(&machine, &pool);
    let (uid, by) = (&image.uid, &the_move());
    let staging = machine.staging("s");
    close(&pool, uid);
    is_moving(pool.return_to_closing(uid, &another_move()));
    let sent = must(pool.send(uid, 0));
    let error = pool.return_to_closing(uid, by).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    drop(sent);

    for _ in 0..2 {
        must(pool.return_to_closing(uid, by));
    }
    assert_eq!(must(pool.fence(uid)), Fence::Closing { by: by.clone() });
    assert_eq!(must(pool.images()), std::slice::from_ref(&image));
    is_not_attached(pool.stage(&Volume::new(&image).stage(&staging)));
    is_moving(pool.grow_image(uid, Bytes::mib(80)));
    must(pool.close(uid, by));
    assert_eq!(must(pool.fence(uid)), Fence::Closed { by: by.clone() });
    must(pool.reopen(uid, by));
    // Nothing is to be done for an open one.
    must(pool.return_to_closing(uid, by));
    assert_eq!(must(pool.fence(uid)), Fence::Open);
}

#[test]
fn only_the_closed_image_of_the_move_is_removed_and_its_space_is_free() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume(&machine, &pool);
    let (uid, by) = (&image.uid, &the_move());
    must(pool.remove_closed(uid, by));
    must(pool.begin_closing(uid, by));
    must(pool.remove_closed(uid, by));
    assert_eq!(must(pool.images()).len(), 1);
    must(pool.close(uid, by));
    let before = must(pool.statistics()).available;
    must(pool.remove_closed(uid, by));
    must(pool.remove_closed(uid, by));
    let after = must(pool.statistics()).available;
    assert!(after.0 >= before.0 + SIZE.0, "{before} and {after}");
    assert_eq!((must(pool.images()), must(pool.closed())), (vec![], vec![]));
}
