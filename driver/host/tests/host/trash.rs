//! Images in the trash.

use std::fs;

use chrono::DateTime;
use cistern_host::{Image, Pool, image::Error, pool};
use cistern_types::{Bytes, FilesystemType, Provisioning};

use crate::{
    harness::{
        Machine, POOL_SIZE, Volume, eventually, image_path, image_pool, known, must, open_new,
        request,
    },
    scenario::Volumes as _,
};

fn volume(pool: &Pool) -> Image {
    let size = Bytes::mib(64);
    let request = request("a", size, FilesystemType::Ext4, Provisioning::Thick);
    must(pool.new_image(&request))
}

#[test]
fn an_image_is_discarded_restored_intact_and_removed_from_the_trash() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume(&pool);
    let now = DateTime::from_timestamp(1_795_000_000, 5).unwrap();
    must(pool.discard(&image.uid, now));
    must(pool.discard(&image.uid, now));
    let discarded = must(pool.discarded());
    assert_eq!(must(pool.images()), []);
    assert_eq!(discarded[0].image, image);
    assert_eq!(discarded[0].since.timestamp(), now.timestamp());
    assert_eq!(machine.inventory().pools[0].discarded, discarded);

    assert!(must(pool.take_back(&image.uid)));
    assert!(!must(pool.take_back(&image.uid)));
    assert_eq!(must(pool.images()), std::slice::from_ref(&image));
    // An image outside the trash is not removed.
    must(pool.remove_discarded(&image.uid));
    assert_eq!(must(pool.images()).len(), 1);

    must(pool.discard(&image.uid, now));
    let before = must(pool.statistics()).available;
    must(pool.remove_discarded(&image.uid));
    must(pool.remove_discarded(&image.uid));
    assert_eq!(
        (must(pool.images()).len(), must(pool.discarded()).len()),
        (0, 0)
    );
    eventually("the space", || {
        must(pool.statistics()).available.0 >= before.0 + image.size.0
    });
}

#[test]
fn r11_an_image_that_is_in_use_or_unidentified_is_never_discarded() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume(&pool);
    let staging = machine.staging("globalmount");
    must(pool.stage(&Volume::new(&image).stage(&staging)));
    let error = pool.discard(&image.uid, DateTime::UNIX_EPOCH).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    must(machine.root().unstage(&staging));

    let strange = "uid-strange".parse().unwrap();
    fs::write(image_path(&machine, &strange), "foreign").unwrap();
    let error = pool.discard(&strange, DateTime::UNIX_EPOCH).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    assert_eq!(must(pool.images()).len(), 2);
    fs::remove_file(image_path(&machine, &strange)).unwrap();
    must(pool.remove_image(&image.uid));
}

#[test]
fn a_pool_with_images_in_its_trash_is_not_removed() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let image = volume(&pool);
    must(pool.discard(&image.uid, DateTime::UNIX_EPOCH));
    let expectation = known(&pool);
    drop(pool);
    let remove = || {
        machine
            .root()
            .remove_pool(&image_pool(POOL_SIZE), expectation)
    };
    let error = remove().unwrap_err();
    assert!(
        matches!(error, pool::Error::ImagesRemain { count: 1, .. }),
        "{error}"
    );
    let pool = must(
        machine
            .root()
            .open_pool(&image_pool(POOL_SIZE), expectation),
    );
    must(pool.remove_discarded(&image.uid));
    drop(pool);
    must(remove());
}
