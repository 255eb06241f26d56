//! What is found at a staging or target path instead of the requested mount.

use cistern_types::FilesystemType;

use super::Error;
use crate::{
    options::{self, MountOptions},
    system::Mount,
};

/// How a mount differs from the requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// Another volume, or something else.
    #[error("it is not this volume")]
    OtherVolume,
    /// A filesystem, where a raw block volume is requested.
    #[error("with a filesystem")]
    Filesystem,
    /// Another type of filesystem.
    #[error("with another filesystem")]
    OtherFilesystem,
    /// Other options, which apply to all mounts of the filesystem.
    #[error("with other filesystem options")]
    FilesystemOptions,
    /// Other options of this mount.
    #[error("with other mount options, or not as writable as requested")]
    MountOptions,
    /// A device that is read-only instead of writable, or writable instead of read-only.
    #[error("not as writable as requested")]
    Writability,
}

/// Why a volume is not staged at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotStaged {
    /// Nothing is mounted there.
    #[error("nothing is mounted there")]
    Nothing,
    /// Something else is mounted there.
    #[error("something else is mounted there")]
    Other,
    /// The mount just made is in a mount namespace that the driver does not see.
    #[error("the mount is not visible to the driver")]
    Unseen,
    /// The device of a raw block volume is missing.
    #[error("its device does not exist")]
    NoDevice,
    /// The volume is mounted with other options.
    #[error(transparent)]
    Differs(#[from] Difference),
}

pub(super) fn conflict(mount: &Mount, difference: Option<Difference>) -> Result<(), Error> {
    difference.map_or(Ok(()), |difference| {
        Err(Error::Conflict {
            path: mount.mount_point.clone(),
            difference,
        })
    })
}

pub(super) fn of_filesystem(
    mount: &Mount,
    filesystem: FilesystemType,
    options: &MountOptions,
) -> Option<Difference> {
    if mount.filesystem != filesystem.as_str() {
        return Some(Difference::OtherFilesystem);
    }
    let is_same = options.match_filesystem(filesystem, mount);
    (!is_same).then_some(Difference::FilesystemOptions)
}

pub(super) fn of_mount(
    mount: &Mount,
    options: &MountOptions,
    read_only: bool,
) -> Option<Difference> {
    let is_same = options::attributes_of(mount) == options.attributes(read_only);
    (!is_same).then_some(Difference::MountOptions)
}
