//! [`Attached`]: a volume with its devices.

use std::{io, os::fd::BorrowedFd, path::Path};

use crate::{
    base_device::BaseDevice,
    cause::Cause,
    encryption::Mapping,
    id::Uid,
    loopdev,
    patience::until,
    system::{DeviceNumber, FileId, FileKind, Holder, System, if_there, named},
};

/// The devices of a volume: its base device, and the mapping over it if the volume is encrypted. Pods use the topmost.
/// The number of the base device identifies the volume, also in the tables of [`System`].
#[derive(Debug)]
pub(crate) struct Attached {
    base: BaseDevice,
    mapping: Option<Mapping>,
}

impl Attached {
    /// A volume without a mapping.
    pub(crate) fn plain(base: BaseDevice) -> Self {
        Self {
            base,
            mapping: None,
        }
    }

    /// A volume with a mapping over its base device.
    pub(crate) fn mapped(base: BaseDevice, mapping: Mapping) -> Self {
        Self {
            base,
            mapping: Some(mapping),
        }
    }

    /// Finds the devices of a file that is an image; none when no loop device is bound to it.
    pub(crate) fn find(
        system: &dyn System,
        file: FileId,
        image: &Uid,
    ) -> Result<Option<Self>, Cause> {
        match loopdev::find(system, file, image.as_ref())? {
            Some(bound) => Ok(Some(Self::over(system, BaseDevice::Loop(bound), image)?)),
            None => Ok(None),
        }
    }

    /// Opens the devices of a volume by the number that identifies it; none when that device does not exist.
    pub(crate) fn open(
        system: &dyn System,
        number: DeviceNumber,
        image: &Uid,
    ) -> io::Result<Option<Self>> {
        match BaseDevice::open(system, number)? {
            Some(base) => Self::over(system, base, image).map(Some),
            None => Ok(None),
        }
    }

    /// Finds the mapping over the base device of a volume.
    pub(crate) fn over(system: &dyn System, base: BaseDevice, image: &Uid) -> io::Result<Self> {
        let mapping = Mapping::find(system, &base, image)?;
        Ok(Self { base, mapping })
    }

    /// Returns the base device and the mapping.
    pub(crate) fn into_parts(self) -> (BaseDevice, Option<Mapping>) {
        (self.base, self.mapping)
    }

    /// Returns the number that identifies the volume: that of the base device.
    pub(crate) fn number(&self) -> DeviceNumber {
        self.base.number()
    }

    /// Whether there is a mapping.
    pub(crate) fn is_mapped(&self) -> bool {
        self.mapping.is_some()
    }

    /// Returns the path of the node of the topmost device.
    pub(crate) fn path(&self) -> &Path {
        self.mapping
            .as_ref()
            .map_or_else(|| self.base.path(), Mapping::path)
    }

    /// Returns the topmost device, open for reading.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.mapping
            .as_ref()
            .map_or_else(|| self.base.as_fd(), Mapping::as_fd)
    }

    /// Returns the base device.
    pub(crate) fn base(&self) -> &BaseDevice {
        &self.base
    }

    /// Returns the mapping; none without one.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        self.mapping.as_ref()
    }

    /// Keeps the devices when their last user closes them. A mapping is kept already, and keeps the base device.
    pub(crate) fn keep(&self, system: &dyn System) -> io::Result<()> {
        match self.mapping {
            Some(_) => Ok(()),
            None => self.base.keep(system),
        }
    }

    /// Whether the devices stay when their last user closes them.
    pub(crate) fn is_kept(&self, system: &dyn System) -> io::Result<bool> {
        Ok(self.is_mapped() || self.base.is_kept(system)?)
    }

    /// Removes the mapping, and detaches the base device, when their last user closes them.
    pub(crate) fn detach(self, system: &dyn System) -> Result<(), Cause> {
        if let Some(mapping) = &self.mapping {
            mapping.close_when_unused(system, &self.base)?;
        }
        Ok(self.base.detach(system)?)
    }
}

/// Returns the size of a file or a block device in bytes.
pub(crate) fn size_of(system: &dyn System, file: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = system.stat(file)?;
    if stat.kind == FileKind::BlockDevice {
        return system.device_size(file);
    }
    Ok(stat.size)
}

/// Returns the number of the device that a pod uses of a volume that this number identifies: its mapping, or the device
/// itself.
pub(crate) fn topmost(system: &dyn System, number: DeviceNumber) -> io::Result<DeviceNumber> {
    Ok(system.mapping_over(number)?.unwrap_or(number))
}

/// Lists the devices that are built on the one that a pod uses of a volume that this number identifies. Something
/// on the node has made them of what is written in the volume, and holds the device.
pub(crate) fn holders(system: &dyn System, number: DeviceNumber) -> io::Result<Vec<Holder>> {
    let holders = system.holders(topmost(system, number)?);
    // None if the mapping has been removed meanwhile.
    Ok(if_there(holders)?.unwrap_or_default())
}

/// As [`holders`], after a moment in which those that are being removed may go away.
pub(crate) fn lasting_holders(
    system: &dyn System,
    number: DeviceNumber,
) -> io::Result<Vec<Holder>> {
    until(
        || holders(system, number),
        |found| !matches!(found, Ok(holders) if !holders.is_empty()),
    )
}

/// Waits until nothing is attached to a file, whose devices go away with their last user. Fails with `ResourceBusy` if
/// something stays, and says what holds it if that is a device.
pub(crate) fn wait_until_detached(
    system: &dyn System,
    file: BorrowedFd<'_>,
    uid: &Uid,
) -> Result<(), Cause> {
    let id = system.stat(file)?.id;
    let found = until(
        || Attached::find(system, id, uid),
        |found| !matches!(found, Ok(Some(_))),
    );
    match found? {
        None => Ok(()),
        Some(attached) => Err(busy(&holders(system, attached.number())?).into()),
    }
}

/// Waits until no mapping of Cistern is over a base device, which goes away with its last user. Fails with `ResourceBusy` if
/// it stays.
pub(crate) fn wait_until_unmapped(system: &dyn System, number: DeviceNumber) -> io::Result<()> {
    let found = until(
        || system.mapping_over(number),
        |found| !matches!(found, Ok(Some(_))),
    );
    match found? {
        None => Ok(()),
        Some(_) => Err(busy(&holders(system, number)?)),
    }
}

/// The error of devices that stay attached because of their holders, or of a user that is unknown.
fn busy(holders: &[Holder]) -> io::Error {
    let kind = io::ErrorKind::ResourceBusy;
    if holders.is_empty() {
        return kind.into();
    }
    io::Error::new(kind, format!("{} on the node holds it", named(holders)))
}
