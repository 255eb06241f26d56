//! [`BaseDevice`]: the lowest block device of a volume, on which its data lies.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use crate::{
    loopdev::{self, Loop},
    system::{DeviceNumber, OFlags, System},
};

/// The lowest block device of a volume. Its number identifies the volume, also in the tables of [`System`].
#[derive(Debug)]
pub enum BaseDevice {
    /// A loop device over an image.
    Loop(Loop),
    /// A logical volume.
    Logical(LogicalDevice),
}

/// The device of a logical volume that is active, open.
#[derive(Debug)]
pub struct LogicalDevice {
    number: DeviceNumber,
    path: PathBuf,
    file: OwnedFd,
}

impl LogicalDevice {
    /// Opens a device. Its node is one of Cistern's own, whose name is the number of the device.
    pub(crate) fn open(
        system: &dyn System,
        number: DeviceNumber,
        flags: OFlags,
    ) -> io::Result<Self> {
        let path = system.device_path(&number.node_name(), number)?;
        let file = system.open(&path, flags)?;
        Ok(Self { number, path, file })
    }

    /// Returns its number.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Returns the device, open as requested.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the open device alone.
    pub(crate) fn into_file(self) -> OwnedFd {
        self.file
    }

    /// Whether a mount, a mapping or a tool has the device for itself, in this or another mount namespace.
    pub(crate) fn is_claimed(&self, system: &dyn System) -> io::Result<bool> {
        match system.open(&self.path, OFlags::RDONLY | OFlags::EXCL) {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl BaseDevice {
    /// Opens the device of this number for reading; none when it does not exist.
    pub(crate) fn open(system: &dyn System, number: DeviceNumber) -> io::Result<Option<Self>> {
        if let Some(number) = number.as_loop() {
            return Ok(loopdev::open_bound(system, number)?.map(Self::Loop));
        }
        match LogicalDevice::open(system, number, OFlags::RDONLY) {
            Ok(device) => Ok(Some(Self::Logical(device))),
            Err(error) if loopdev::is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Verifies the settings of the device of an earlier call.
    pub(crate) fn verified(self, system: &dyn System) -> Result<Self, loopdev::Error> {
        match self {
            Self::Loop(bound) => loopdev::verify(system, bound).map(Self::Loop),
            Self::Logical(_) => Ok(self),
        }
    }

    /// Whether something uses the data: a tool must not change it then. A loop device is there only while it is used.
    pub(crate) fn is_in_use(&self, system: &dyn System) -> io::Result<bool> {
        match self {
            Self::Loop(_) => Ok(true),
            Self::Logical(device) => device.is_claimed(system),
        }
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> DeviceNumber {
        match self {
            Self::Loop(bound) => bound.device(),
            Self::Logical(device) => device.number,
        }
    }

    /// Returns the path of its node.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Loop(bound) => &bound.path,
            Self::Logical(device) => &device.path,
        }
    }

    /// Returns the device, open for reading.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Loop(bound) => bound.as_fd(),
            Self::Logical(device) => device.as_fd(),
        }
    }

    /// Keeps the device when its last user closes it. A logical volume always stays.
    pub(crate) fn keep(&self, system: &dyn System) -> io::Result<()> {
        match self {
            Self::Loop(bound) => bound.keep(system),
            Self::Logical(_) => Ok(()),
        }
    }

    /// Whether the device stays when its last user closes it, until it is detached.
    pub(crate) fn is_kept(&self, system: &dyn System) -> io::Result<bool> {
        match self {
            Self::Loop(bound) => system.is_kept(bound.number),
            Self::Logical(_) => Ok(false),
        }
    }

    /// Detaches the device when its last user closes it. A logical volume stays.
    pub(crate) fn detach(self, system: &dyn System) -> io::Result<()> {
        match self {
            Self::Loop(bound) => bound.detach(system),
            Self::Logical(_) => Ok(()),
        }
    }

    /// Grows the device to the size of its image. A logical volume has its size already.
    pub(crate) fn fit(&self, system: &dyn System, size: u64) -> io::Result<()> {
        match self {
            Self::Loop(bound) => bound.fit(system, size),
            Self::Logical(_) => Ok(()),
        }
    }
}
