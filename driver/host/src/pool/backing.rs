//! The block device under a pool, open by its number.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{Error, Expectation, failed};
use crate::{
    cause::Cause,
    id::Uid,
    loopdev::Loop,
    patience::until,
    superblock::{self, Superblock},
    system::{DeviceNumber, FileId, FileKind, Mount, OFlags, System},
};

/// The block device under a pool: a loop device over its file, or a device of its own.
#[derive(Debug)]
pub(super) struct Backing {
    pub(super) number: DeviceNumber,
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// The file behind it; None for a device of its own.
    pub(super) file: Option<FileId>,
    /// Stable identity of the device.
    pub(super) identity: Option<String>,
    /// Keeps a loop device bound until it is mounted.
    pub(super) _bound: Option<Loop>,
}

/// The device under a mount.
pub(super) fn of_mount(system: &dyn System, mount: &Mount) -> Result<Backing, Error> {
    let number = mount.device;
    let open = || -> io::Result<Backing> {
        let path = node(system, number)?;
        let (device, _) = open_device(system, &path, OFlags::RDONLY)?;
        backing(system, device.as_fd(), number, path)
    };
    open().map_err(failed(format!("open the mounted device {number}")))
}

/// Reads the superblock on a device, even if it is mounted.
pub(super) fn superblock(
    system: &dyn System,
    number: DeviceNumber,
) -> io::Result<Option<Superblock>> {
    let (device, _) = open_device(system, &node(system, number)?, OFlags::RDONLY)?;
    superblock::read(system, device.as_fd())
}

/// Whether the mounted device holds the pool, by its superblock.
pub(super) fn is_pool(
    system: &dyn System,
    number: DeviceNumber,
    uid: &Uid,
    expectation: Expectation,
) -> Result<bool, Error> {
    let found = self::superblock(system, number)
        .map_err(failed(format!("read the mounted device {number}")))?;
    Ok(found.is_some_and(|found| match expectation {
        Expectation::Known { filesystem_uuid } => found.uuid == filesystem_uuid,
        Expectation::Made | Expectation::New => found.label == uid.label(),
    }))
}

/// Opens a device exclusively, to mount it.
pub(super) fn exclusive(system: &dyn System, number: DeviceNumber) -> Result<Backing, Error> {
    let open = || -> Result<Backing, Cause> {
        let path = node(system, number)?;
        let (device, _) = open_device(system, &path, OFlags::RDONLY | OFlags::EXCL)?;
        Ok(backing(system, device.as_fd(), number, path)?)
    };
    unless_busy(open).map_err(failed(format!("open device {number}")))
}

fn backing(
    system: &dyn System,
    device: BorrowedFd<'_>,
    number: DeviceNumber,
    path: PathBuf,
) -> io::Result<Backing> {
    Ok(Backing {
        number,
        path,
        size: system.device_size(device)?,
        file: None,
        identity: system.device_identity(number)?,
        _bound: None,
    })
}

/// The path of a device by the kernel's own name for it.
pub(crate) fn node(system: &dyn System, number: DeviceNumber) -> io::Result<PathBuf> {
    let mut all = system.block_devices()?.into_iter();
    let (name, _) = all
        .find(|(_, found)| *found == number)
        .ok_or(io::ErrorKind::NotFound)?;
    system.device_path(&name, number)
}

/// Opens the block device of a path, and returns its number. Fails for any other file.
pub(super) fn open_device(
    system: &dyn System,
    path: &Path,
    flags: OFlags,
) -> io::Result<(OwnedFd, DeviceNumber)> {
    let device = system.open_following(path, flags | OFlags::NONBLOCK)?;
    let stat = system.stat(device.as_fd())?;
    if stat.kind != FileKind::BlockDevice {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a block device",
        ));
    }
    Ok((device, stat.node))
}

/// Whether opening failed because no device is there, or no medium in it. After any other error a device
/// may hold a pool.
pub(super) fn has_no_content(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM)
    ) || error.kind() == io::ErrorKind::InvalidInput
}

/// Whether a device has the identity of the one that held the pool last.
pub(super) fn has_identity(
    system: &dyn System,
    number: DeviceNumber,
    identity: Option<&str>,
) -> Result<bool, Error> {
    let found = system.device_identity(number);
    let found = found.map_err(failed(format!("identify device {number}")))?;
    Ok(identity.is_some() && found.as_deref() == identity)
}

/// Repeats an attempt while another process holds the device.
pub(super) fn unless_busy<T>(attempt: impl FnMut() -> Result<T, Cause>) -> Result<T, Cause> {
    until(attempt, |result| {
        !result.as_ref().is_err_and(Cause::is_busy)
    })
}
