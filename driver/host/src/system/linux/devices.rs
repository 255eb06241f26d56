//! Block devices, by sysfs and ioctls.

use std::{
    collections::BTreeSet,
    fs, io,
    ops::Range,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, io::Errno};

use super::{
    super::{
        BoundLoop, DeviceNumber, Devices, Disk, FileId, Files as _, Holder, IoCounters,
        LoopSettings, LoopStatus, MappedDevice, MappingName, SECTOR_SIZE, StackedDevice, disk,
        sysfs,
    },
    Linux,
};
use crate::ioctl;

impl Devices for Linux {
    fn io_limits(&self, file: &Path) -> io::Result<String> {
        fs::read_to_string(file)
    }

    fn write_io_limits(&self, file: &Path, line: &str) -> io::Result<()> {
        fs::write(file, line)
    }

    fn block_devices(&self) -> io::Result<Vec<(String, DeviceNumber)>> {
        sysfs::block_devices()
    }

    fn device_path(&self, name: &str, device: DeviceNumber) -> io::Result<PathBuf> {
        sysfs::device_path(&self.nodes, name, device)
    }

    fn device_size(&self, device: BorrowedFd<'_>) -> io::Result<u64> {
        ioctl::block_device_size(device)
    }

    fn zero(&self, device: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
        ioctl::block_device_zero(device, [range.start, range.end.saturating_sub(range.start)])
    }

    fn stacked_devices(&self) -> io::Result<Vec<StackedDevice>> {
        sysfs::stack::stacked_devices(&self.nodes)
    }

    fn mapped_devices(&self) -> io::Result<Vec<MappedDevice>> {
        sysfs::mapped_devices()
    }

    fn set_read_only(&self, device: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
        ioctl::block_device_set_read_only(device, read_only)
    }

    fn is_read_only(&self, device: DeviceNumber) -> io::Result<bool> {
        sysfs::is_read_only(device)
    }

    fn device_errors(&self, device: DeviceNumber) -> io::Result<Option<u64>> {
        sysfs::device_errors(device)
    }

    fn sector_size(&self, device: DeviceNumber) -> io::Result<Option<u32>> {
        sysfs::sector_size(device)
    }

    fn holders(&self, device: DeviceNumber) -> io::Result<Vec<Holder>> {
        sysfs::holders(device)
    }

    fn device_identity(&self, device: DeviceNumber) -> io::Result<Option<String>> {
        Ok(sysfs::device_identity(device))
    }

    fn disks(&self) -> io::Result<Vec<Disk>> {
        disk::disks()
    }

    fn has_partitions(&self, device: DeviceNumber) -> io::Result<bool> {
        sysfs::has_partitions(device)
    }

    fn bound_loops(&self) -> io::Result<Vec<BoundLoop>> {
        sysfs::bound_loops()
    }

    fn beneath(&self, device: DeviceNumber) -> io::Result<DeviceNumber> {
        match device.as_loop() {
            Some(_) => Ok(device),
            None => sysfs::beneath(device),
        }
    }

    fn mapping_over(&self, device: DeviceNumber) -> io::Result<Option<DeviceNumber>> {
        sysfs::mapping_over(device)
    }

    fn mapping_of(&self, device: DeviceNumber) -> io::Result<Option<MappingName>> {
        sysfs::mapping_of(device)
    }

    fn backing_file(&self, number: u32) -> io::Result<Option<PathBuf>> {
        sysfs::backing_file(number)
    }

    fn free_loop(&self, except: &BTreeSet<u32>) -> io::Result<u32> {
        let control = self.open_following(Path::new("/dev/loop-control"), OFlags::RDWR)?;
        // The kernel returns the same device until it is bound.
        let number = ioctl::loop_free(control.as_fd())?;
        if !except.contains(&number) {
            return Ok(number);
        }
        match sysfs::unbound_loops()?.difference(except).next() {
            Some(number) => Ok(*number),
            None => ioctl::loop_add(control.as_fd()),
        }
    }

    fn bind_loop(&self, device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
        let flags = ioctl::LO_FLAGS_DIRECT_IO | ioctl::LO_FLAGS_AUTOCLEAR;
        ioctl::loop_configure(device, file, SECTOR_SIZE, flags)
    }

    fn loop_status(&self, device: BorrowedFd<'_>) -> io::Result<Option<LoopStatus>> {
        match ioctl::loop_status(device) {
            Ok(info) => Ok(Some(LoopStatus {
                file: FileId {
                    device: sysfs::device_number(info.device),
                    inode: info.inode,
                },
                read_only: info.flags & ioctl::LO_FLAGS_READ_ONLY != 0,
            })),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_kept(&self, number: u32) -> io::Result<bool> {
        sysfs::is_kept(number)
    }

    fn io_counters(&self, device: DeviceNumber) -> io::Result<Option<IoCounters>> {
        sysfs::io_counters(device)
    }

    fn loop_settings(&self, number: u32) -> io::Result<LoopSettings> {
        sysfs::loop_settings(number)
    }

    fn keep_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        let mut info = ioctl::loop_status(device)?;
        info.flags &= !ioctl::LO_FLAGS_AUTOCLEAR;
        ioctl::loop_set_status(device, info)
    }

    fn detach_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        ioctl::loop_clear(device)
    }

    fn resize_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        ioctl::loop_set_capacity(device)
    }
}
