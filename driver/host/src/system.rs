//! The seam to the machine: [`System`], in Linux's own nouns.
//!
//! *Invariant:* all that this crate does to the machine, and all that it learns from it, goes
//! through one method here, and each method is one effect or one look. There is no fake: the one
//! implementation is [`Linux`], and `FailAt` makes its calls fail.

mod extent;
#[cfg(feature = "faults")]
mod fail_at;
mod linux;
mod sysfs;

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

pub use rustix::{fs::OFlags, mount::MountAttrFlags};

#[cfg(feature = "faults")]
pub use self::fail_at::{FailAt, Fault};
pub use self::linux::Linux;
pub(crate) use self::linux::is_damage;
use crate::{
    command::{self, Command},
    id::Uuid,
    mountinfo::Mount,
};

/// Number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Its driver: 7 for loop devices.
    pub major: u32,
    /// Which of the driver's devices.
    pub minor: u32,
}

impl DeviceNumber {
    /// Number of a loop device.
    pub const fn of_loop(minor: u32) -> Self {
        Self { major: 7, minor }
    }

    /// The name of a node that we make for the device: it never stands for another.
    pub(crate) fn node_name(self) -> String {
        format!("{}-{}", self.major, self.minor)
    }

    /// The number of the loop device, if it is one.
    pub fn as_loop(self) -> Option<u32> {
        (self.major == 7).then_some(self.minor)
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

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

/// A loop device that is bound to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundLoop {
    /// Number of the loop device.
    pub number: u32,
    /// Name of the file, seen from where it was bound; ends in ` (deleted)` when it was removed.
    pub backing_file: PathBuf,
}

/// How a loop device is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopStatus {
    /// The file behind it.
    pub file: FileId,
    /// Whether it can only be read.
    pub read_only: bool,
}

/// What a loop device's queue is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopSettings {
    /// Whether the file is read and written past the page cache.
    pub direct_io: bool,
    /// Bytes of a logical sector.
    pub sector_size: u32,
}

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

/// What is read and written past the page cache: aligned as every device takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; Block::SIZE]);

impl Block {
    /// Its bytes.
    pub const SIZE: usize = 4096;
}

/// A parameter of a filesystem to be mounted: a key alone, or a key and its value.
pub type Parameter<'a> = (&'a str, Option<&'a str>);

/// The machine.
///
/// Names that are given with a directory are single names or paths beneath it, and no symbolic link
/// is followed (openat2(2)).
pub trait System: Send + Sync + fmt::Debug {
    // Files and directories.

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

    // Block devices.

    /// Names and numbers of all block devices.
    fn block_devices(&self) -> io::Result<Vec<(String, DeviceNumber)>>;
    /// A path at which a block device can be opened, made if `/dev` has none.
    fn device_path(&self, name: &str, device: DeviceNumber) -> io::Result<PathBuf>;
    /// Bytes of a block device.
    fn device_size(&self, device: BorrowedFd<'_>) -> io::Result<u64>;
    /// Makes a block device read-only, or writable again, for all who have it. A loop device stays
    /// so when it is bound to another file.
    fn set_read_only(&self, device: BorrowedFd<'_>, read_only: bool) -> io::Result<()>;
    /// Whether a block device takes no writes. Does not open it.
    fn is_read_only(&self, device: DeviceNumber) -> io::Result<bool>;
    /// How many requests a block device, or the disk that it is a part of, has failed since the
    /// kernel knows it; none where its driver does not count them. (SCSI and ATA do.)
    fn device_errors(&self, device: DeviceNumber) -> io::Result<Option<u64>>;
    /// Whether the kernel knows partitions of a block device.
    fn has_partitions(&self, device: DeviceNumber) -> io::Result<bool>;
    /// The loop devices that are bound.
    fn bound_loops(&self) -> io::Result<Vec<BoundLoop>>;
    /// Name of the file that a loop device is bound to, if it is to any.
    fn backing_file(&self, number: u32) -> io::Result<Option<PathBuf>>;
    /// Number of a loop device that is free, made if there was none.
    fn free_loop(&self) -> io::Result<u32>;
    /// Binds a loop device to a file: 4096-byte sectors, direct I/O, autoclear. `EBUSY` when
    /// somebody else was faster.
    fn bind_loop(&self, device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()>;
    /// What a loop device is bound to, if to anything. Fails where that lies on a filesystem that has
    /// shut itself down.
    fn loop_status(&self, device: BorrowedFd<'_>) -> io::Result<Option<LoopStatus>>;
    /// Whether a loop device keeps its file when its last user closes it; not where it is bound to
    /// none. Touches neither.
    fn is_kept(&self, number: u32) -> io::Result<bool>;
    /// What a loop device's queue is like.
    fn loop_settings(&self, number: u32) -> io::Result<LoopSettings>;
    /// Has a bound loop device keep its file when its last user closes it.
    fn keep_loop(&self, device: BorrowedFd<'_>) -> io::Result<()>;
    /// Has a loop device let go of its file when its last user closes it.
    fn let_go_of_loop(&self, device: BorrowedFd<'_>) -> io::Result<()>;
    /// Makes a loop device as large as its file has become.
    fn resize_loop(&self, device: BorrowedFd<'_>) -> io::Result<()>;

    // Filesystems and mounts.

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

    /// Runs a tool to its end with a file as its standard input.
    fn run(
        &self,
        command: &Command,
        input: BorrowedFd<'_>,
    ) -> Result<command::Output, command::Error>;
}
