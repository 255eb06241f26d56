//! Volumes that move, and what an error says of them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use cistern_host::{BlockStageRequest, Image, ImageRequest, Pool, Uid, image::Error, mounting};
use cistern_types::{Bytes, FilesystemType, Provisioning};

use crate::{
    harness::{Machine, chain, image_pool, must, request, uid},
    scenario::Volumes as _,
};

pub(super) const SIZE: Bytes = Bytes::mib(64);

pub(crate) fn the_move() -> Uid {
    uid("a1b2c3d4-0000-4000-8000-000000000001")
}

pub(crate) fn another_move() -> Uid {
    uid("a1b2c3d4-0000-4000-8000-000000000002")
}

/// A thick volume with ext4.
pub(super) fn volume(machine: &Machine, pool: &Pool) -> Image {
    must(pool.new_image(&ImageRequest {
        uid: machine.uid("a"),
        ..request("a", SIZE, FilesystemType::Ext4, Provisioning::Thick)
    }))
}

/// A raw block volume.
pub(super) fn device(machine: &Machine, pool: &Pool) -> Image {
    must(pool.new_image(&ImageRequest {
        uid: machine.uid("b"),
        filesystem: None,
        ..request("b", SIZE, FilesystemType::Ext4, Provisioning::Thin)
    }))
}

pub(super) fn stage_device(
    pool: &Pool,
    image: &Image,
    staging: &Path,
) -> Result<(), mounting::Error> {
    let identity = image.identity.as_ref().unwrap();
    let staged = pool.stage_block(&BlockStageRequest {
        unlock: None,
        image: &image.uid,
        volume: identity.owner.volume().unwrap(),
        size: SIZE,
        staging,
    });
    staged.map(drop)
}

pub(crate) fn close(pool: &Pool, image: &Uid) {
    must(pool.begin_closing(image, &the_move()));
    must(pool.close(image, &the_move()));
}

pub(super) fn closed_path(machine: &Machine, image: &Uid) -> PathBuf {
    let pool = machine.mount_point(&image_pool(Bytes::ZERO));
    pool.join("closed").join(image.as_str())
}

/// The error is the typed one, and names the move.
#[track_caller]
pub(crate) fn is_moving<T>(result: Result<T, Error>) {
    match result.map(drop).unwrap_err() {
        error @ Error::Moving { .. } => {
            let text = error.to_string();
            assert!(text.contains(the_move().as_str()), "{text}");
        }
        error => panic!("{}", chain(&error)),
    }
}

/// Writes a mark that names no move.
pub(super) fn spoil_mark(image: &Path) {
    let file = fs::File::options().write(true).open(image).unwrap();
    let flags = rustix::fs::XattrFlags::REPLACE;
    rustix::fs::fsetxattr(&file, "trusted.cistern.fence", b"no/uid", flags).unwrap();
}

#[track_caller]
pub(super) fn names_the_mark(error: &dyn std::error::Error) {
    let text = chain(error);
    assert!(text.contains("trusted.cistern.fence"), "{text}");
}

#[track_caller]
pub(super) fn is_not_attached<T>(result: Result<T, mounting::Error>) {
    match result.map(drop).unwrap_err() {
        mounting::Error::Image(error) => is_moving::<()>(Err(error)),
        error => panic!("{}", chain(&error)),
    }
}
