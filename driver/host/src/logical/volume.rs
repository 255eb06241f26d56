//! Finding the volumes of a group, and the device of each.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use cistern_types::Bytes;

use super::{
    PREFIX, State, VolumeGroup,
    report::{VolumeRow, number},
    tags,
};
use crate::{
    cause::Cause,
    id::Uid,
    image::{Error, Identity, Image, ImageUse, failed},
    system::{DeviceNumber, LOGICAL_VOLUME, MappedDevice, OFlags, System},
};

/// A logical volume of Cistern, whole or not.
#[derive(Clone, Debug)]
pub(super) struct LogicalVolume {
    /// UID of the object that made it.
    pub(super) uid: Uid,
    pub(super) state: State,
    /// Its identity, which cannot be read if somebody has changed its tags.
    pub(super) identity: Option<Identity>,
    pub(super) size: Bytes,
    pub(super) is_open: bool,
    /// LVM's own UUID.
    uuid: String,
}

impl LogicalVolume {
    /// Reads a row of a report; none for a logical volume that is not Cistern's.
    fn of(row: &VolumeRow) -> io::Result<Option<Self>> {
        let uid = row
            .name
            .strip_prefix(PREFIX)
            .and_then(|uid| uid.parse().ok());
        let (Some(uid), Some(state)) = (uid, tags::state(&row.tags)) else {
            return Ok(None);
        };
        Ok(Some(Self {
            uid,
            state,
            identity: tags::identity(&row.tags),
            size: Bytes(number(&row.size)?),
            is_open: row.open == "open",
            uuid: row.uuid.clone(),
        }))
    }

    pub(super) fn into_image(self) -> Image {
        Image {
            uid: self.uid,
            identity: self.identity,
            size: self.size,
            allocated: self.size,
        }
    }
}

/// The device of a logical volume, which is open.
#[derive(Debug)]
pub struct Device {
    number: DeviceNumber,
    file: OwnedFd,
}

impl Device {
    /// Returns its number.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl VolumeGroup {
    /// Lists the volumes of the pool. Fails if LVM cannot report them.
    pub fn volumes(&self) -> Result<Vec<Image>, super::Error> {
        let mut all = self.logical_volumes()?;
        all.retain(|volume| volume.state == State::Made);
        Ok(all.into_iter().map(LogicalVolume::into_image).collect())
    }

    /// Returns one volume; none when it does not exist. Fails if LVM cannot report it.
    pub fn volume(&self, uid: &Uid) -> Result<Option<Image>, Error> {
        Ok(self.made(uid)?.map(LogicalVolume::into_image))
    }

    /// Lists the logical volumes of Cistern in the group, also those that are not whole.
    pub(super) fn logical_volumes(&self) -> Result<Vec<LogicalVolume>, super::Error> {
        let list = || -> Result<Vec<LogicalVolume>, Cause> {
            let rows: Vec<VolumeRow> = self.lvm.report(&*self.system, &self.name)?;
            let volumes = rows.iter().map(LogicalVolume::of);
            let volumes: io::Result<Vec<_>> = volumes.collect();
            Ok(volumes?.into_iter().flatten().collect())
        };
        list().map_err(self.failed("list the volumes"))
    }

    /// Finds one logical volume; none when it does not exist.
    pub(super) fn find(&self, uid: &Uid) -> Result<Option<LogicalVolume>, Error> {
        let all = self.logical_volumes()?;
        Ok(all.into_iter().find(|volume| volume.uid == *uid))
    }

    /// Finds one volume that is whole.
    pub(super) fn made(&self, uid: &Uid) -> Result<Option<LogicalVolume>, Error> {
        Ok(self.find(uid)?.filter(|volume| volume.state == State::Made))
    }

    /// Opens the device of a volume, and activates it first if need be.
    pub(super) fn open_device(
        &self,
        volume: &LogicalVolume,
        flags: OFlags,
    ) -> Result<Device, Cause> {
        let system = &*self.system;
        let found = if let Some(found) = device_of(system, volume)? {
            found
        } else {
            let activate = self.lvm.command("lvchange").option("--activate", "y");
            let activate = activate.operand(self.path_of(&volume.uid));
            self.lvm.run(system, &activate)?;
            let found = device_of(system, volume)?;
            found.ok_or_else(|| io::Error::other("the logical volume has no device"))?
        };
        let path = system.device_path(&found.number.node_name(), found.number)?;
        let file = system.open(&path, flags)?;
        Ok(Device {
            number: found.number,
            file,
        })
    }

    /// Returns how LVM names a volume: `group/volume`.
    pub(super) fn path_of(&self, uid: &Uid) -> String {
        format!("{}/{PREFIX}{uid}", self.name)
    }

    /// Returns the error for a volume that is in use.
    pub(super) fn in_use(&self, volume: &LogicalVolume) -> Error {
        let device = device_of(&*self.system, volume).ok().flatten();
        let by = match device {
            Some(device) => ImageUse::Mapped {
                device: device.number,
            },
            None => ImageUse::Locked,
        };
        let uid = volume.uid.clone();
        Error::InUse { uid, by }
    }

    /// [`Error::Missing`] of a volume.
    pub(super) fn missing(&self, uid: &Uid) -> Error {
        let (uid, pool) = (uid.clone(), self.to_string());
        Error::Missing { uid, pool }
    }

    /// Opens the device of a volume for reading and writing, and activates it first if need be; none when it does not
    /// exist. Fails if LVM cannot activate it.
    pub fn device(&self, uid: &Uid) -> Result<Option<Device>, Error> {
        match self.made(uid)? {
            Some(volume) => self
                .open_device(&volume, OFlags::RDWR)
                .map(Some)
                .map_err(failed("open the device", uid)),
            None => Ok(None),
        }
    }
}

/// The device of a logical volume, if it is active.
fn device_of(system: &dyn System, volume: &LogicalVolume) -> io::Result<Option<MappedDevice>> {
    let uuid: String = volume.uuid.chars().filter(|c| *c != '-').collect();
    let is_it = |device: &MappedDevice| {
        let found = device
            .uuid
            .as_deref()
            .and_then(|it| it.strip_prefix(LOGICAL_VOLUME));
        found.is_some_and(|found| found.ends_with(&uuid))
    };
    Ok(system.mapped_devices()?.into_iter().find(is_it))
}
