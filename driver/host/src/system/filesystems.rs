//! Mounts, and what is asked of a mounted filesystem as a whole.

use std::{
    ffi::OsStr,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use super::MountAttrFlags;
use crate::{id::Uuid, mountinfo::Mount};

/// Shape of a mounted XFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XfsGeometry {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks that it covers.
    pub blocks: u64,
    /// Share of the space that inodes may take, in hundredths.
    pub inode_percent: u32,
    /// Whether files can share extents.
    pub reflink: bool,
}

/// A parameter of a filesystem to be mounted: a key alone, or a key and its value.
pub type Parameter<'a> = (&'a str, Option<&'a str>);

/// Mounts and mounted filesystems of the machine.
pub trait Filesystems {
    /// Every mount that this thread sees.
    fn mounts(&self) -> io::Result<Vec<Mount>>;
    /// Number of the mount through which a file was opened. Does not touch its filesystem.
    fn mount_id(&self, file: BorrowedFd<'_>) -> io::Result<u64>;
    /// Opens a filesystem on a device as a mount that is not attached anywhere yet.
    fn mount_filesystem(
        &self,
        filesystem: &str,
        device: &Path,
        parameters: &[Parameter<'_>],
        attributes: MountAttrFlags,
    ) -> io::Result<OwnedFd>;
    /// A second mount of the mount that a file was opened through, not attached anywhere yet.
    fn clone_mount(&self, file: BorrowedFd<'_>) -> io::Result<OwnedFd>;
    /// Gives a mount exactly these attributes.
    fn set_mount_attributes(
        &self,
        mount: BorrowedFd<'_>,
        attributes: MountAttrFlags,
    ) -> io::Result<()>;
    /// Attaches a mount on a directory or file.
    fn attach_mount(&self, mount: BorrowedFd<'_>, onto: BorrowedFd<'_>) -> io::Result<()>;
    /// Takes the topmost mount off a name.
    fn unmount(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
    /// Writes out all that the filesystem of a file has only in memory.
    fn sync_filesystem(&self, inside: BorrowedFd<'_>) -> io::Result<()>;
    /// Writes out the filesystem of a file and has everybody who writes to it wait until it is
    /// thawed. `ResourceBusy` when it is frozen already.
    fn freeze(&self, inside: BorrowedFd<'_>) -> io::Result<()>;
    /// Lets the filesystem of a file be written to again; false when it was not frozen.
    fn thaw(&self, inside: BorrowedFd<'_>) -> io::Result<bool>;
    /// Shape of the XFS that holds a file; none when it is another filesystem.
    fn xfs_geometry(&self, inside: BorrowedFd<'_>) -> io::Result<Option<XfsGeometry>>;
    /// How many parts of the XFS that holds a file the kernel has found to be damaged, of its first
    /// allocation groups and of what concerns all; none when it is another filesystem.
    fn xfs_damage(&self, inside: BorrowedFd<'_>) -> io::Result<Option<u64>>;
    /// How many errors the mounted ext4 on a loop device has found in itself, since it was made or
    /// checked; none when there is no such.
    fn ext4_errors(&self, number: u32) -> io::Result<Option<u64>>;
    /// How many errors the mounted btrfs of this UUID has had, since it was made or they were set to
    /// zero; none when there is no such, or the kernel does not tell (before 5.14).
    fn btrfs_errors(&self, uuid: Uuid) -> io::Result<Option<u64>>;
    /// Grows the XFS that holds a file.
    fn grow_xfs(&self, inside: BorrowedFd<'_>, blocks: u64, inode_percent: u32) -> io::Result<()>;
    /// Grows the mounted ext4 that holds a file. `PermissionDenied` without `CAP_SYS_RESOURCE`.
    fn grow_ext4(&self, inside: BorrowedFd<'_>, blocks: u64) -> io::Result<()>;
    /// Grows the btrfs that holds a file to the whole of its device.
    fn grow_btrfs(&self, inside: BorrowedFd<'_>) -> io::Result<()>;
}
