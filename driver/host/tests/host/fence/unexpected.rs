//! What no move has made: a mark without a move, and images that an administrator has put there.

use std::fs;

use cistern_host::image::Error;

use super::{
    close, closed_path, device,
    fixture::{names_the_mark, spoil_mark},
    is_moving, the_move, volume,
};
use crate::{
    harness::{Machine, Volume, has_loops, image_path, must, open_new, run, unstage},
    scenario::Volumes as _,
};

#[test]
fn a_volume_comes_out_of_the_trash_only_while_none_of_its_name_is_closed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume(&machine, &pool);
    close(&pool, &image.uid);
    let trash = closed_path(&machine, &image.uid).with_file_name("../trash");
    fs::create_dir_all(&trash).unwrap();
    let discarded = trash.join(format!("{}.1795000000", image.uid));
    fs::copy(closed_path(&machine, &image.uid), &discarded).unwrap();
    is_moving(pool.take_back(&image.uid));
    // A mark that names no move is none that may be passed.
    spoil_mark(&closed_path(&machine, &image.uid));
    assert_eq!(must(pool.closed())[0].by, None);
    for result in [
        pool.reopen(&image.uid, &the_move()),
        pool.remove_closed(&image.uid, &the_move()),
        pool.send(&image.uid, 0).map(drop),
        pool.fence(&image.uid).map(drop),
    ] {
        names_the_mark(&result.unwrap_err());
    }
}

#[test]
fn a_volume_whose_mark_names_no_move_is_neither_staged_nor_published_nor_removed() {
    let machine = Machine::new();
    let (pool, root) = (open_new(&machine), machine.root());
    let image = volume(&machine, &pool);
    let volume = Volume::new(&image);
    let (staging, other) = (machine.staging("s"), machine.staging("other"));
    must(pool.stage(&volume.stage(&staging)));
    must(pool.begin_closing(&image.uid, &the_move()));
    spoil_mark(&image_path(&machine, &image.uid));
    names_the_mark(&pool.stage(&volume.stage(&other)).map(drop).unwrap_err());
    let target = machine.path("kubelet/target");
    names_the_mark(
        &root
            .publish(&volume.publish(&staging, &target))
            .unwrap_err(),
    );
    unstage(&machine, &image.uid, &staging);
    names_the_mark(&pool.close(&image.uid, &the_move()).unwrap_err());
    names_the_mark(&pool.reopen(&image.uid, &the_move()).unwrap_err());
    names_the_mark(&pool.remove_image(&image.uid).unwrap_err());
    assert_eq!(must(pool.images()).len(), 1);
}

#[test]
fn a_closed_volume_that_an_administrator_uses_is_neither_sent_nor_opened_nor_removed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = device(&machine, &pool);
    let (uid, by) = (&image.uid, &the_move());
    close(&pool, uid);
    let path = closed_path(&machine, uid);
    let number = run("losetup", &["--show", "-f", path.to_str().unwrap()]);
    let held = fs::File::open(number.trim()).unwrap();
    // fsck lists it.
    has_loops(&machine, 2);
    for result in [
        pool.send(uid, 0).map(drop),
        pool.reopen(uid, by),
        pool.remove_closed(uid, by),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
    }
    drop(held);
    has_loops(&machine, 1);
    must(pool.reopen(uid, by));
}

#[test]
fn an_image_beside_a_closed_one_of_its_name_is_left_to_an_administrator() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = device(&machine, &pool);
    let (uid, by) = (&image.uid, &the_move());
    close(&pool, uid);
    fs::copy(closed_path(&machine, uid), image_path(&machine, uid)).unwrap();
    for result in [
        pool.fence(uid).map(drop),
        pool.begin_closing(uid, by),
        pool.close(uid, by),
        pool.reopen(uid, by),
        pool.remove_closed(uid, by),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    }
    assert_eq!(
        (must(pool.images()).len(), must(pool.closed()).len()),
        (1, 1)
    );
}
