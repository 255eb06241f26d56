//! Files and directories.

use std::{
    ffi::{OsStr, OsString},
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use super::{DeviceNumber, OFlags};

/// Device and inode of a file, which identify it independent of its name (stat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The filesystem's device number.
    pub device: DeviceNumber,
    /// The inode within the filesystem.
    pub inode: u64,
}

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    SymbolicLink,
    /// A block device.
    BlockDevice,
    /// Anything else.
    Other,
}

/// Result of stat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device and inode.
    pub id: FileId,
    /// Type of the file.
    pub kind: FileKind,
    /// Length in bytes, holes included.
    pub size: u64,
    /// Bytes that the file occupies: without holes, and with what it shares with other files.
    pub allocated: u64,
    /// Number of the device, if the file is a device node.
    pub node: DeviceNumber,
}

impl Stat {
    /// Returns the number of the block device; none when the file is not a block device node.
    pub fn device(&self) -> Option<DeviceNumber> {
        (self.kind == FileKind::BlockDevice).then_some(self.node)
    }
}

/// Result of statvfs(3), in bytes and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size of the filesystem in bytes.
    pub size: u64,
    /// Unused bytes, including those reserved for root.
    pub free: u64,
    /// Unused bytes available to all users.
    pub available: u64,
    /// Total number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
    /// Whether the filesystem, or the mount of the file, is read-only.
    pub read_only: bool,
}

/// An allocated part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Byte range in the file.
    pub logical: Range<u64>,
    /// Location on the disk.
    pub placement: Placement,
}

/// Location of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At this offset on the device of the filesystem. Another extent at the same location has the
    /// same bytes.
    At(u64),
    /// Allocated but never written: reads as zeros.
    Unwritten,
    /// Not reported by the filesystem, or the bytes there are not the plain bytes of the file.
    Unknown,
}

/// A buffer for direct I/O, aligned for every device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; Block::SIZE]);

impl Block {
    /// Size in bytes.
    pub const SIZE: usize = 4096;
}

/// Operations on files and directories.
///
/// Names given with a directory are single names or paths beneath it. No symbolic link is followed
/// (openat2(2)).
pub trait Files {
    /// Opens an absolute path in which no part is a symbolic link.
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd>;
    /// Opens an absolute path and follows symbolic links: for paths that an administrator
    /// configured.
    fn open_following(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd>;
    /// Opens a path beneath a directory. A new file is accessible only to its owner.
    fn open_beneath(
        &self,
        directory: BorrowedFd<'_>,
        path: &Path,
        flags: OFlags,
    ) -> io::Result<OwnedFd>;
    /// Makes a directory.
    fn make_directory(&self, directory: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<()>;
    /// Removes a directory, which must be empty.
    fn remove_directory(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
    /// Removes the name of a file.
    fn unlink(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()>;
    /// Renames a file; fails with `EEXIST` when the new name exists.
    fn rename(
        &self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        to: BorrowedFd<'_>,
        new_name: &OsStr,
    ) -> io::Result<()>;
    /// Renames a file over another one.
    fn replace(
        &self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        to: BorrowedFd<'_>,
        replaced: &OsStr,
    ) -> io::Result<()>;
    /// Lists the names in a directory, sorted.
    fn list(&self, directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>>;
    /// Returns the status of a file.
    fn stat(&self, file: BorrowedFd<'_>) -> io::Result<Stat>;
    /// Returns the size and free space of the filesystem of a file.
    fn space(&self, file: BorrowedFd<'_>) -> io::Result<Space>;
    /// Reads up to `length` bytes of a file; fewer only at its end.
    fn read(&self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    /// Writes bytes to a file at an offset.
    fn write(&self, file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Begins to read a part of a file into memory, and does not wait until it is there.
    fn read_ahead(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()>;
    /// Begins to write a part of a file from memory to the disk, and does not wait until it is there.
    /// Only [`Files::sync`] makes sure of that.
    fn write_back(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()>;
    /// Reads a block of a file that was opened with `O_DIRECT`; `UnexpectedEof` when the file ends
    /// within the block.
    fn read_block(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<Box<Block>>;
    /// Writes a block of a file that was opened with `O_DIRECT`.
    fn write_block(&self, file: BorrowedFd<'_>, offset: u64, block: &Block) -> io::Result<()>;
    /// Sets a file's size.
    fn truncate(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()>;
    /// Returns the first extents of a part of a file, in order and up to some hundreds, and the
    /// offset up to which they are complete. Syncs the file first. Extents may reach beyond the
    /// part.
    fn extents(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<(Vec<Extent>, u64)>;
    /// Allocates space for a part of a file. The file grows if it was smaller.
    fn allocate(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()>;
    /// Frees the space of a part of a file, which reads as zeros from then on.
    fn punch(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()>;
    /// Sets the unit in which XFS allocates space for an empty file, in bytes.
    fn set_extent_size(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()>;
    /// Counts the extents of a file in a pool, in constant time.
    fn extent_count(&self, file: BorrowedFd<'_>) -> io::Result<u64>;
    /// Clones the content of a file into an empty one, atomically between two writes to the source.
    /// Blocks the source's writers for a time that grows with its extents.
    fn reflink(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()>;
    /// Syncs a file, or the names in a directory, to the disk.
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()>;
    /// Locks an open file exclusively until it is closed; false when another holder has a lock.
    fn try_lock(&self, file: BorrowedFd<'_>) -> io::Result<bool>;
    /// Locks an open file with a shared lock until it is closed; false when another holder has an
    /// exclusive lock.
    fn try_lock_shared(&self, file: BorrowedFd<'_>) -> io::Result<bool>;
    /// Returns the value of an extended attribute; none when it does not exist.
    fn attribute(&self, file: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// Creates an extended attribute; fails when it exists.
    fn set_attribute(&self, file: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()>;
    /// Replaces an extended attribute. Fails when the file does not have it.
    fn replace_attribute(&self, file: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()>;
    /// Removes an extended attribute. Succeeds when the file does not have it.
    fn remove_attribute(&self, file: BorrowedFd<'_>, name: &str) -> io::Result<()>;
}
