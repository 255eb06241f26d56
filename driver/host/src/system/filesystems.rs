//! Mounts, and operations on mounted filesystems.

use std::{
    ffi::OsStr,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use super::{DeviceNumber, Mount, MountAttrFlags};
use crate::id::Uuid;

/// Geometry of a mounted XFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XfsGeometry {
    /// UUID of the filesystem.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_size: u32,
    /// Number of blocks of the filesystem.
    pub blocks: u64,
    /// Maximum share of the space for inodes, in percent.
    pub inode_percent: u32,
    /// Whether files can share extents.
    pub reflink: bool,
}

/// A mount parameter of a filesystem: a key with an optional value.
pub type Parameter<'a> = (&'a str, Option<&'a str>);

/// Operations on mounts and mounted filesystems.
pub trait Filesystems {
    /// Lists all mounts in the mount namespace of this thread.
    fn mounts(&self) -> io::Result<Vec<Mount>>;
    /// Returns the ID of the mount through which a file was opened. Does not access its filesystem.
    fn mount_id(&self, file: BorrowedFd<'_>) -> io::Result<u64>;
    /// Mounts a filesystem on a device without attaching the mount to a path.
    fn mount_filesystem(
        &self,
        filesystem: &str,
        device: &Path,
        parameters: &[Parameter<'_>],
        attributes: MountAttrFlags,
    ) -> io::Result<OwnedFd>;
    /// Clones the mount of a file without attaching the clone to a path.
    fn clone_mount(&self, file: BorrowedFd<'_>) -> io::Result<OwnedFd>;
    /// Sets the attributes of a mount to exactly these.
    fn set_mount_attributes(
        &self,
        mount: BorrowedFd<'_>,
        attributes: MountAttrFlags,
    ) -> io::Result<()>;
    /// Attaches a mount to a directory or file.
    fn attach_mount(&self, mount: BorrowedFd<'_>, onto: BorrowedFd<'_>) -> io::Result<()>;
    /// Unmounts the topmost mount at a name.
    fn unmount(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
    /// Syncs the filesystem of a file.
    fn sync_filesystem(&self, inside: BorrowedFd<'_>) -> io::Result<()>;
    /// Freezes the filesystem of a file: syncs it and blocks writers until it is thawed.
    /// `ResourceBusy` when it is frozen already.
    fn freeze(&self, inside: BorrowedFd<'_>) -> io::Result<()>;
    /// Thaws the filesystem of a file; false when it was not frozen.
    fn thaw(&self, inside: BorrowedFd<'_>) -> io::Result<bool>;
    /// Returns the geometry of the XFS of a file; none for another filesystem.
    fn xfs_geometry(&self, inside: BorrowedFd<'_>) -> io::Result<Option<XfsGeometry>>;
    /// Counts the parts of the XFS of a file that the kernel has found to be damaged: in its first
    /// allocation groups and in global metadata; none for another filesystem.
    fn xfs_damage(&self, inside: BorrowedFd<'_>) -> io::Result<Option<u64>>;
    /// Counts the errors that the kernel found in the mounted ext4 on a device, since it was
    /// made or checked; none when it is not mounted.
    fn ext4_errors(&self, device: DeviceNumber) -> io::Result<Option<u64>>;
    /// Counts the errors of the mounted btrfs of this UUID, since it was made or the counters were
    /// reset; none when it is not mounted, or the kernel does not report them (before 5.14).
    fn btrfs_errors(&self, uuid: Uuid) -> io::Result<Option<u64>>;
    /// Frees the blocks that the XFS of a file has preallocated, beyond the end of files and for
    /// copy-on-write.
    fn free_preallocations(&self, inside: BorrowedFd<'_>) -> io::Result<()>;
    /// Grows the XFS of a file.
    fn grow_xfs(&self, inside: BorrowedFd<'_>, blocks: u64, inode_percent: u32) -> io::Result<()>;
    /// Grows the mounted ext4 of a file. `PermissionDenied` without `CAP_SYS_RESOURCE`.
    fn grow_ext4(&self, inside: BorrowedFd<'_>, blocks: u64) -> io::Result<()>;
    /// Grows the btrfs of a file to the size of its device.
    fn grow_btrfs(&self, inside: BorrowedFd<'_>) -> io::Result<()>;
}
