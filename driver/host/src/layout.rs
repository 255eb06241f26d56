//! Names of the folders in a pool, of the copies in it, and of its own file.

use std::ffi::OsStr;

use crate::id::Uid;

/// Folder of the images in a pool.
pub(crate) const IMAGES: &str = "images";
/// Folder of the images that are being made.
pub(crate) const TEMPORARY: &str = "tmp";
/// Directory of the copies that other nodes send. The first copy creates it.
pub(crate) const INCOMING: &str = "incoming";
/// Directory of the images that are closed for a move to another node. The first one creates it.
pub(crate) const CLOSED: &str = "closed";
/// Directory of the trash in a pool. The first image that is discarded creates it.
pub(crate) const TRASH: &str = "trash";

/// What follows the name of the volume in the name of its point.
const POINT: &str = ".point";

/// The name of the point of a volume. No UID has a dot.
pub(crate) fn point_of(volume: &Uid) -> String {
    format!("{volume}{POINT}")
}

/// Parses a name in the folder of copies into the image that is made of the file, and whether the file is a point.
pub(crate) fn parse_copy(name: &str) -> Option<(Uid, bool)> {
    let volume = name.strip_suffix(POINT);
    Some((volume.unwrap_or(name).parse().ok()?, volume.is_some()))
}

/// Parses the name of a pool's file into the UID that it is made of; None if it is that of another file.
pub(crate) fn pool_of_file(name: &OsStr) -> Option<Uid> {
    name.to_str()?.strip_suffix(".img")?.parse().ok()
}
