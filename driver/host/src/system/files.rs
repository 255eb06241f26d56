//! Files and directories.

use std::{
    ffi::{OsStr, OsString},
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use super::{DeviceNumber, OFlags};

/// A file's device and inode: which file it is, whatever its name (stat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The filesystem's device number.
    pub device: DeviceNumber,
    /// The inode within the filesystem.
    pub inode: u64,
}

/// Kind of a file.
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

/// What stat(2) says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Which file it is.
    pub id: FileId,
    /// Of which kind.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes allocated for it.
    pub allocated: u64,
    /// The device that it stands for, if it is one.
    pub node: DeviceNumber,
}

impl Stat {
    /// The block device that the file is the node of.
    pub fn device(&self) -> Option<DeviceNumber> {
        (self.kind == FileKind::BlockDevice).then_some(self.node)
    }
}

/// What statvfs(3) says of a filesystem, in bytes and in inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size of the filesystem.
    pub size: u64,
    /// Bytes not used, whoever may use them.
    pub free: u64,
    /// Bytes that are free for anybody to use.
    pub available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
    /// Whether it, or the mount through which it was asked, is read-only.
    pub read_only: bool,
}

/// A part of a file that has space on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Which part of the file.
    pub logical: Range<u64>,
    /// Where it lies.
    pub placement: Placement,
}

/// Where an extent lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// From this offset on of what the filesystem lies on. Whatever else lies there has the same
    /// bytes.
    At(u64),
    /// Somewhere, and nothing was written to it yet: it reads as zeros.
    Unwritten,
    /// The filesystem does not say, or the bytes there are not simply the file's.
    Unknown,
}

/// What is read and written past the page cache: aligned as every device takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; Block::SIZE]);

impl Block {
    /// Its bytes.
    pub const SIZE: usize = 4096;
}

/// Files and directories of the machine.
///
/// Names that are given with a directory are single names or paths beneath it, and no symbolic link
/// is followed (openat2(2)).
pub trait Files {
    /// Opens an absolute path in which no part is a symbolic link.
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd>;
    /// Opens an absolute path and follows symbolic links: for what an administrator named.
    fn open_following(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd>;
    /// Opens a path beneath a directory; what is made is open to its owner alone.
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
    /// Gives a file another name; fails with `EEXIST` where there is one already.
    fn rename(
        &self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        to: BorrowedFd<'_>,
        new_name: &OsStr,
    ) -> io::Result<()>;
    /// Gives a file the name of another one in its directory, in whose place it is from then on.
    fn replace(&self, directory: BorrowedFd<'_>, name: &OsStr, replaced: &OsStr) -> io::Result<()>;
    /// Names in a directory, sorted.
    fn list(&self, directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>>;
    /// What a file is.
    fn stat(&self, file: BorrowedFd<'_>) -> io::Result<Stat>;
    /// What the filesystem of a file has left.
    fn space(&self, file: BorrowedFd<'_>) -> io::Result<Space>;
    /// Up to so many bytes of a file; fewer only at its end.
    fn read(&self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    /// Writes bytes to a file from an offset on.
    fn write(&self, file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads a block of a file that was opened with `O_DIRECT`; `UnexpectedEof` where the file ends
    /// before it does.
    fn read_block(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<Box<Block>>;
    /// Writes a block of a file that was opened with `O_DIRECT`.
    fn write_block(&self, file: BorrowedFd<'_>, offset: u64, block: &Block) -> io::Result<()>;
    /// Sets a file's size.
    fn truncate(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()>;
    /// The first extents of a part of a file, in order, up to some hundreds, and up to where in the
    /// part they are all. What is in memory only is written before. They may reach beyond the part.
    fn extents(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<(Vec<Extent>, u64)>;
    /// Gives a part of a file space on the disk. The file grows if it was smaller.
    fn allocate(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()>;
    /// How many extents a file of a pool has. Takes no longer for many.
    fn extent_count(&self, file: BorrowedFd<'_>) -> io::Result<u64>;
    /// Has an empty file share all that another holds, at one moment between two writes to that.
    /// Holds up its writers for a time that grows with its extents.
    fn reflink(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()>;
    /// Makes a file, or the names in a directory, last.
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()>;
    /// Locks an open file until it is closed; false when somebody else has.
    fn try_lock(&self, file: BorrowedFd<'_>) -> io::Result<bool>;
    /// Locks an open file, as others may as well, until it is closed; false when somebody has it
    /// alone.
    fn try_lock_shared(&self, file: BorrowedFd<'_>) -> io::Result<bool>;
    /// The value of an extended attribute, if it is there.
    fn attribute(&self, file: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// Sets an extended attribute that is not there yet.
    fn set_attribute(&self, file: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()>;
}
