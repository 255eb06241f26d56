//! Names of the folders in a pool.

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
