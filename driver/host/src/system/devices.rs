//! Block devices, including loop devices.

use std::{
    collections::BTreeSet,
    fmt, io,
    ops::Range,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use super::{Disk, FileId, Holder, MappingName};

/// How the name of every mapping of Cistern begins, and that of every logical volume of Cistern in its group. The name of
/// the image follows.
pub(crate) const MAPPING: &str = "cistern-";
/// How the UUID of every mapping of an encrypted device begins (cryptsetup). A logical volume of a group `cistern` has
/// the name of a mapping of Cistern, and another UUID.
pub(crate) const MAPPING_UUID: &str = "CRYPT-LUKS2-";

/// Logical sector size in bytes of each loop device, and of the mapping of each encrypted volume. It is never derived
/// from a pool, where it can change, nor from the file, whose alignment for direct I/O grows from 512 to 4096 with its
/// first reflink.
pub const SECTOR_SIZE: u32 = 4096;

/// Major and minor number of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// Number of the driver: 7 for loop devices.
    pub major: u32,
    /// Number of the device within its driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Returns the device number of a loop device.
    pub const fn of_loop(minor: u32) -> Self {
        Self { major: 7, minor }
    }

    /// Reads `MAJOR:MINOR`, as the kernel and this type write it. None if the text is something else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }

    /// Returns the name of the node that Cistern makes for the device, which is unique to its
    /// number.
    pub(crate) fn node_name(self) -> String {
        format!("{}-{}", self.major, self.minor)
    }

    /// Returns the name that the kernel gives a loop device, and the numbers of any other device.
    pub fn name(self) -> String {
        match self.as_loop() {
            Some(number) => format!("loop{number}"),
            None => self.to_string(),
        }
    }

    /// Returns the number of the loop device; none for any other device.
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
    /// Path of the file in the mount namespace that bound it; ends in ` (deleted)` when it was
    /// removed.
    pub backing_file: PathBuf,
}

/// Status of a bound loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopStatus {
    /// The backing file.
    pub file: FileId,
    /// Whether the device is read-only.
    pub read_only: bool,
}

/// Counters of the I/O of a block device since the kernel made it. A loop device keeps them when it is
/// bound to another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Completed reads.
    pub reads: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Completed writes, without discards.
    pub writes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

/// A device of device-mapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// What device-mapper calls it.
    pub mapping: MappingName,
    /// Whether its I/O waits until it is resumed.
    pub is_suspended: bool,
}

/// A block device, and what it is built on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackedDevice {
    /// The kernel's own name for it.
    pub name: String,
    /// Its number.
    pub number: DeviceNumber,
    /// Path of its node.
    pub path: PathBuf,
    /// What device-mapper calls it; none for a device of another driver.
    pub mapping: Option<MappingName>,
    /// The file behind a loop device; none for any other device.
    pub backing_file: Option<PathBuf>,
    /// The devices that it is built on, and the disk of a partition.
    pub beneath: Vec<DeviceNumber>,
}

/// Queue settings of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopSettings {
    /// Whether I/O of the file bypasses the page cache.
    pub direct_io: bool,
    /// Bytes of a logical sector.
    pub sector_size: u32,
}

impl fmt::Display for LoopSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direct_io = if self.direct_io { "on" } else { "off" };
        let sector_size = self.sector_size;
        write!(f, "direct I/O {direct_io}, sectors of {sector_size} bytes")
    }
}

/// Operations on block devices.
pub trait Devices {
    /// Reads the limits of the I/O of a cgroup from its file `io.max`.
    fn io_limits(&self, file: &Path) -> io::Result<String>;
    /// Sets the limits of one device in the file `io.max` of a cgroup.
    fn write_io_limits(&self, file: &Path, line: &str) -> io::Result<()>;
    /// Lists names and numbers of all block devices.
    fn block_devices(&self) -> io::Result<Vec<(String, DeviceNumber)>>;
    /// Returns the path of a node of a block device; creates a node if `/dev` has none.
    fn device_path(&self, name: &str, device: DeviceNumber) -> io::Result<PathBuf>;
    /// Lists the block devices with what each is built on, and creates the nodes that `/dev` lacks. Opens none.
    fn stacked_devices(&self) -> io::Result<Vec<StackedDevice>>;
    /// Returns the size of a block device in bytes.
    fn device_size(&self, device: BorrowedFd<'_>) -> io::Result<u64>;
    /// Writes zeros to a range of a block device, or lets its disk do so. What is not written yet is not on the disk
    /// before a sync.
    fn zero(&self, device: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()>;
    /// Lists the devices of device-mapper, without those that are being removed. Opens none.
    fn mapped_devices(&self) -> io::Result<Vec<MappedDevice>>;
    /// Makes a block device read-only, or writable again, for all its users. A loop device keeps
    /// the flag when it is bound to another file.
    fn set_read_only(&self, device: BorrowedFd<'_>, read_only: bool) -> io::Result<()>;
    /// Whether a block device is read-only. Does not open it.
    fn is_read_only(&self, device: DeviceNumber) -> io::Result<bool>;
    /// Counts the failed requests of a block device, or of the disk of a partition, since the
    /// kernel detected it; none when its driver does not count them. (SCSI and ATA do.)
    fn device_errors(&self, device: DeviceNumber) -> io::Result<Option<u64>>;
    /// Returns the bytes of a logical sector of a block device, or of the disk of a partition; none when it does not exist.
    /// Does not open it.
    fn sector_size(&self, device: DeviceNumber) -> io::Result<Option<u32>>;
    /// Lists the block devices built on a block device: an array, a mapping, a cache.
    fn holders(&self, device: DeviceNumber) -> io::Result<Vec<Holder>>;
    /// Returns the stable identity of a block device, independent of its name and number: the
    /// world-wide name or serial number of its disk, and its partition number. None when its driver
    /// reports neither, as for a loop device. Does not open it.
    fn device_identity(&self, device: DeviceNumber) -> io::Result<Option<String>>;
    /// Lists the disks of the machine. Opens none.
    fn disks(&self) -> io::Result<Vec<Disk>>;
    /// Whether a block device has partitions known to the kernel.
    fn has_partitions(&self, device: DeviceNumber) -> io::Result<bool>;
    /// Lists the bound loop devices.
    fn bound_loops(&self) -> io::Result<Vec<BoundLoop>>;
    /// Returns the device under a mapping of Cistern, and any other device itself. Opens none.
    fn beneath(&self, device: DeviceNumber) -> io::Result<DeviceNumber>;
    /// Returns the mapping of Cistern over a block device; none when there is none.
    fn mapping_over(&self, device: DeviceNumber) -> io::Result<Option<DeviceNumber>>;
    /// Returns what device-mapper calls a block device; none if it is no device of device-mapper, or is being removed. Does
    /// not open it.
    fn mapping_of(&self, device: DeviceNumber) -> io::Result<Option<MappingName>>;
    /// Returns the path of the file behind a loop device; none when it is not bound.
    fn backing_file(&self, number: u32) -> io::Result<Option<PathBuf>>;
    /// Returns the number of a free loop device that is not in `except`; adds one if needed.
    fn free_loop(&self, except: &BTreeSet<u32>) -> io::Result<u32>;
    /// Binds a loop device to a file: 4096-byte sectors, direct I/O, autoclear. `EBUSY` when
    /// another process bound it first.
    fn bind_loop(&self, device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()>;
    /// Returns the status of a loop device; none when it is not bound. Fails when its file lies on
    /// a filesystem that has shut down.
    fn loop_status(&self, device: BorrowedFd<'_>) -> io::Result<Option<LoopStatus>>;
    /// Whether a bound loop device stays bound when its last user closes it (autoclear is off).
    /// Accesses neither the device nor its file.
    fn is_kept(&self, number: u32) -> io::Result<bool>;
    /// Returns the counters of a block device; none when it does not exist. Does not open it.
    fn io_counters(&self, device: DeviceNumber) -> io::Result<Option<IoCounters>>;
    /// Returns the queue settings of a loop device.
    fn loop_settings(&self, number: u32) -> io::Result<LoopSettings>;
    /// Keeps a loop device bound when its last user closes it: turns autoclear off.
    fn keep_loop(&self, device: BorrowedFd<'_>) -> io::Result<()>;
    /// Detaches a loop device from its file when its last user closes it.
    fn detach_loop(&self, device: BorrowedFd<'_>) -> io::Result<()>;
    /// Updates the size of a loop device to that of its file.
    fn resize_loop(&self, device: BorrowedFd<'_>) -> io::Result<()>;
}

/// Parses the name of a device node: of a loop device in `/dev`, or of any device in Cistern's own
/// directory.
pub(crate) fn node_number(name: &str) -> Option<DeviceNumber> {
    if let Some(number) = name.strip_prefix("loop") {
        return number.parse().ok().map(DeviceNumber::of_loop);
    }
    let (major, minor) = name.split_once('-')?;
    Some(DeviceNumber {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}
