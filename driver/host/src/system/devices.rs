//! Block devices, loop devices among them.

use std::{collections::BTreeSet, fmt, io, os::fd::BorrowedFd, path::PathBuf};

use super::FileId;

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

/// Block devices of the machine.
pub trait Devices {
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
    /// Names of the block devices that are made of a block device: an array, a mapping, a cache.
    fn holders(&self, device: DeviceNumber) -> io::Result<Vec<String>>;
    /// What tells a block device from every other, whatever its name and number: the world-wide name
    /// or serial number of its disk, and which partition of that it is. None where its driver knows
    /// neither, as of a loop device. Does not open it.
    fn device_identity(&self, device: DeviceNumber) -> io::Result<Option<String>>;
    /// Whether the kernel knows partitions of a block device.
    fn has_partitions(&self, device: DeviceNumber) -> io::Result<bool>;
    /// The loop devices that are bound.
    fn bound_loops(&self) -> io::Result<Vec<BoundLoop>>;
    /// Name of the file that a loop device is bound to, if it is to any.
    fn backing_file(&self, number: u32) -> io::Result<Option<PathBuf>>;
    /// Number of a loop device that is free and none of `except`, made if there was none.
    fn free_loop(&self, except: &BTreeSet<u32>) -> io::Result<u32>;
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
}
