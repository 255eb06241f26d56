//! Finding the volumes of a group, and the device of each.

use std::io;

use cistern_types::Bytes;

use super::{
    State, VolumeGroup,
    command::Lvm,
    report::{VolumeRow, number},
    tags,
};
use crate::{
    attached::Attached,
    base_device::LogicalDevice,
    cause::Cause,
    device_nodes,
    id::Uid,
    image::{Error, Identity, Image, ImageUse, failed},
    known_volumes,
    system::{DeviceNumber, LOGICAL_VOLUME, MAPPING, MappedDevice, OFlags, SECTOR_SIZE, System},
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
    /// Snapshots and caches of it, which LVM removes with it.
    dependents: Vec<String>,
    /// The UUID that its device has: those of its group and of itself. A copy of a group keeps the latter.
    uuid: String,
}

impl LogicalVolume {
    /// Lists the logical volumes of Cistern in a group.
    pub(super) fn list(lvm: &Lvm, group: &str) -> Result<Vec<Self>, Cause> {
        let rows: Vec<VolumeRow> = lvm.report(group)?;
        Ok(Self::all_of(&rows)?)
    }

    /// Reads the rows of a report.
    pub(super) fn all_of(rows: &[VolumeRow]) -> io::Result<Vec<Self>> {
        let volumes: io::Result<Vec<_>> = rows.iter().map(Self::of).collect();
        let mut volumes: Vec<Self> = volumes?.into_iter().flatten().collect();
        for row in rows.iter().filter(|row| !row.origin.is_empty()) {
            let origin = volumes.iter_mut().find(|it| it.name() == row.origin);
            if let Some(origin) = origin {
                origin.dependents.push(row.name.clone());
            }
        }
        Ok(volumes)
    }

    /// As [`Self::all_of`], for all rows of the group of a pool. From then on its volumes are known by their devices.
    fn known_of(rows: &[VolumeRow]) -> io::Result<Vec<Self>> {
        let volumes = Self::all_of(rows)?;
        if let Some(row) = rows.first() {
            let devices = volumes.iter().map(|it| (it.uuid.clone(), it.uid.clone()));
            let (group, change) = (letters(&row.group_uuid), number(&row.change)?);
            known_volumes::note(&group, change, devices.collect());
        }
        Ok(volumes)
    }

    /// Returns its name in the group.
    pub(super) fn name(&self) -> String {
        format!("{MAPPING}{}", self.uid)
    }

    /// Reads a row of a report; none for a logical volume that is not Cistern's.
    fn of(row: &VolumeRow) -> io::Result<Option<Self>> {
        let uid = row
            .name
            .strip_prefix(MAPPING)
            .and_then(|uid| uid.parse().ok());
        let (Some(uid), Some(state)) = (uid, tags::state(&row.tags)) else {
            return Ok(None);
        };
        let cache = row.cache.trim_matches(['[', ']']);
        let (group, own) = (letters(&row.group_uuid), letters(&row.uuid));
        Ok(Some(Self {
            uid,
            state,
            identity: tags::identity(&row.tags),
            size: Bytes(number(&row.size)?),
            is_open: row.open == "open",
            dependents: (!cache.is_empty())
                .then(|| cache.to_owned())
                .into_iter()
                .collect(),
            uuid: format!("{LOGICAL_VOLUME}{group}{own}"),
        }))
    }

    /// Fails while LVM has a snapshot or a cache of the volume, which is not Cistern's to remove.
    pub(super) fn refuse_dependents(&self) -> Result<(), Error> {
        if self.dependents.is_empty() {
            return Ok(());
        }
        let of = self.dependents.clone();
        let (uid, by) = (self.uid.clone(), ImageUse::Origin { of });
        Err(Error::InUse { uid, by })
    }

    /// Returns the number of its device among these; none if it is not active.
    pub(super) fn device_among(&self, mapped: &[MappedDevice]) -> Option<DeviceNumber> {
        let found = mapped.iter().find(|device| is_of(device, self));
        found.map(|device| device.number)
    }

    /// Returns the size of the header in front of the volume's data.
    pub(super) fn header(&self) -> Bytes {
        let identity = self.identity.as_ref();
        identity.map_or(Bytes::ZERO, Identity::header)
    }

    /// Describes it as the volume of a pool whose disks have logical sectors of this many bytes.
    pub(super) fn into_image(self, sector_size: u32) -> Image {
        let identity = self.identity.as_ref();
        let is_encrypted = identity.is_some_and(|it| it.encryption.is_some());
        Image {
            size: self.size.saturating_sub(self.header()),
            uid: self.uid,
            identity: self.identity,
            allocated: self.size,
            sector_size: if is_encrypted {
                SECTOR_SIZE
            } else {
                sector_size
            },
        }
    }
}

impl VolumeGroup {
    /// Lists the volumes of the pool. Fails if LVM cannot report them.
    pub fn volumes(&self) -> Result<Vec<Image>, super::Error> {
        let mut all = self.logical_volumes()?;
        all.retain(|volume| volume.state != State::Making);
        let images = all.into_iter().map(|it| it.into_image(self.sector_size));
        Ok(images.collect())
    }

    /// Returns one volume; none when it does not exist. Fails if LVM cannot report it.
    pub fn volume(&self, uid: &Uid) -> Result<Option<Image>, Error> {
        let made = self.made(uid)?;
        Ok(made.map(|volume| volume.into_image(self.sector_size)))
    }

    /// Lists the logical volumes of Cistern in the group, also those that are not whole.
    pub(super) fn logical_volumes(&self) -> Result<Vec<LogicalVolume>, super::Error> {
        let listed = self.by_own(|lvm| {
            let rows: Vec<VolumeRow> = lvm.report(&self.name)?;
            Ok(LogicalVolume::known_of(&rows)?)
        });
        listed.map_err(self.failed("list the volumes"))
    }

    /// Finds one logical volume; none when it does not exist.
    pub(super) fn find(&self, uid: &Uid) -> Result<Option<LogicalVolume>, Error> {
        let all = self.logical_volumes()?;
        Ok(all.into_iter().find(|volume| volume.uid == *uid))
    }

    /// Finds one volume that is whole.
    pub(super) fn made(&self, uid: &Uid) -> Result<Option<LogicalVolume>, Error> {
        let found = self.find(uid)?;
        Ok(found.filter(|volume| volume.state != State::Making))
    }

    /// Opens the device of a volume, and activates it first if need be.
    pub(super) fn open_device(
        &self,
        volume: &LogicalVolume,
        flags: OFlags,
    ) -> Result<LogicalDevice, Cause> {
        let system = &*self.system;
        let found = if let Some(found) = device_of(system, volume)? {
            found
        } else {
            let activate = self.lvm.command("lvchange").option("--activate", "y");
            let activate = activate.operand(self.path_of(&volume.uid));
            self.by_own(|lvm| lvm.run(&activate))?;
            let found = device_of(system, volume)?;
            found.ok_or_else(|| io::Error::other("the logical volume has no device"))?
        };
        let opened = LogicalDevice::open(system, found.number, flags)?;
        // The number can belong to another device by the time it is opened. After that it cannot.
        let Some(found) = device_of(system, volume)?.filter(|it| it.number == opened.number())
        else {
            return Err(io::Error::other("the logical volume has another device by now").into());
        };
        if found.is_suspended || system.device_size(opened.as_fd())? < volume.size.0 {
            self.refresh(&volume.uid)?;
        }
        Ok(opened)
    }

    /// Resumes the devices of volumes that an interrupted command has left suspended.
    pub(super) fn resume(&self, volumes: &[LogicalVolume]) -> Result<(), Error> {
        let system = &*self.system;
        let mapped = system.mapped_devices();
        let mut mapped = mapped.map_err(|error| self.failed("list the devices")(error.into()))?;
        mapped.retain(|device| device.is_suspended);
        for volume in volumes {
            if mapped.iter().any(|device| is_of(device, volume)) {
                let uid = &volume.uid;
                tracing::warn!(pool = %self, image = %uid, "the device of the volume is suspended, and is resumed");
                self.refresh(uid)
                    .map_err(failed("resume the device", uid))?;
            }
        }
        Ok(())
    }

    /// Makes the device of a volume what LVM's metadata says, which an interrupted command may not have done. Waits for a
    /// command that is under way.
    fn refresh(&self, uid: &Uid) -> Result<(), Cause> {
        let refresh = self.lvm.command("lvchange").arg("--refresh");
        let refresh = refresh.operand(self.path_of(uid));
        self.by_own(|lvm| lvm.run(&refresh)).map(drop)
    }

    /// Returns how LVM names a volume: `group/volume`.
    pub(super) fn path_of(&self, uid: &Uid) -> String {
        format!("{}/{MAPPING}{uid}", self.name)
    }

    /// Changes the tags of a volume in one step.
    pub(super) fn retag(
        &self,
        volume: &LogicalVolume,
        add: &[String],
        remove: &[String],
    ) -> Result<(), Cause> {
        let mut command = self.lvm.command("lvchange");
        for tag in remove.iter().filter(|tag| !add.contains(tag)) {
            command = command.option("--deltag", tag.as_str());
        }
        for tag in add {
            command = command.option("--addtag", tag.as_str());
        }
        self.change(&command.operand(self.path_of(&volume.uid)))
    }

    /// Fails if a volume is in use: its device is open or mounted, or is staged or published as a raw block volume, which
    /// does not open it. Removes a mapping that an interrupted call has left.
    pub(super) fn refuse_in_use(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let uid = &volume.uid;
        let find = |volume: &LogicalVolume| self.use_of(volume);
        if find(volume)
            .map_err(failed("find what uses the device", uid))?
            .is_none()
        {
            return Ok(());
        }
        self.detach_idle(volume)
            .map_err(failed("detach the idle device", uid))?;
        let Some(volume) = self.find(uid)? else {
            return Ok(());
        };
        match find(&volume).map_err(failed("find what uses the device", uid))? {
            None => Ok(()),
            Some(by) => {
                let uid = uid.clone();
                Err(Error::InUse { uid, by })
            }
        }
    }

    /// What uses a volume; none if nothing does.
    fn use_of(&self, volume: &LogicalVolume) -> io::Result<Option<ImageUse>> {
        let system = &*self.system;
        let Some(device) = device_of(system, volume)? else {
            return Ok(None);
        };
        let device = device.number;
        let is_used = volume.is_open || !device_nodes::nodes_of(system, device)?.is_empty();
        Ok(is_used.then_some(ImageUse::Mapped { device }))
    }

    /// Removes the mapping of a volume that is not at any path. One that is mounted, or that a pod has open, stays
    /// until then.
    fn detach_idle(&self, volume: &LogicalVolume) -> Result<(), Cause> {
        let system = &*self.system;
        let Some(device) = device_of(system, volume)? else {
            return Ok(());
        };
        let attached = Attached::open(system, device.number, &volume.uid)?;
        match attached {
            Some(attached)
                if attached.is_mapped()
                    && device_nodes::nodes_of(system, device.number)?.is_empty() =>
            {
                attached.detach(system)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// [`Error::Missing`] of a volume.
    pub(super) fn missing(&self, uid: &Uid) -> Error {
        let (uid, pool) = (uid.clone(), self.to_string());
        Error::Missing { uid, pool }
    }

    /// Opens the device of a volume for reading and writing, or for reading if it is mounted and the kernel allows no more.
    /// Activates it first if need be. Fails if the volume does not exist, or if LVM cannot activate it.
    pub fn open_volume(&self, uid: &Uid) -> Result<(LogicalDevice, Image), Error> {
        let volume = self.made(uid)?.ok_or_else(|| self.missing(uid))?;
        let device = match self.open_device(&volume, OFlags::RDWR) {
            // A kernel without CONFIG_BLK_DEV_WRITE_MOUNTED does not open a mounted device for writing.
            Err(cause) if cause.is_busy() => self.open_device(&volume, OFlags::RDONLY),
            result => result,
        };
        let device = device.map_err(failed("open the device", uid))?;
        Ok((device, volume.into_image(self.sector_size)))
    }
}

/// The letters of a UUID as LVM writes it, which the UUID of a device has without hyphens.
fn letters(uuid: &str) -> String {
    uuid.replace('-', "")
}

/// The device of a logical volume, if it is active.
fn device_of(system: &dyn System, volume: &LogicalVolume) -> io::Result<Option<MappedDevice>> {
    let all = system.mapped_devices()?;
    Ok(all.into_iter().find(|device| is_of(device, volume)))
}

/// Whether a device is that of a logical volume, and not that of its copy in another group.
fn is_of(device: &MappedDevice, volume: &LogicalVolume) -> bool {
    device.mapping.uuid.as_deref() == Some(volume.uuid.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        encryption::EncryptionState,
        image::identity::tests::identity,
        system::{DeviceNumber, MappingName},
    };

    fn row(name: &str, origin: &str, cache: &str) -> VolumeRow {
        VolumeRow {
            name: name.to_owned(),
            uuid: "own---1".to_owned(),
            group_uuid: "gro-up1".to_owned(),
            size: "4194304".to_owned(),
            tags: State::Made.tag(),
            open: String::new(),
            origin: origin.to_owned(),
            cache: cache.to_owned(),
            change: "1".to_owned(),
        }
    }

    #[test]
    fn the_device_of_a_volume_has_the_uuids_of_its_group_and_of_itself() {
        let volumes = LogicalVolume::all_of(&[row("cistern-a", "", "")]).unwrap();
        let device = |uuid: Option<&str>| MappedDevice {
            number: DeviceNumber::default(),
            mapping: MappingName {
                name: "copy-cistern--a".to_owned(),
                uuid: uuid.map(str::to_owned),
            },
            is_suspended: false,
        };
        for (uuid, expected) in [
            (Some("LVM-group1own1"), true),
            // A copy of the group, a part of the volume, and devices of others.
            (Some("LVM-group2own1"), false),
            (Some("LVM-group1own1-real"), false),
            (Some("LVM-own1"), false),
            (Some("CRYPT-LUKS2-group1own1"), false),
            (None, false),
        ] {
            assert_eq!(is_of(&device(uuid), &volumes[0]), expected, "{uuid:?}");
        }
    }

    #[test]
    fn the_volumes_of_a_pool_are_known_by_their_devices_and_what_has_no_tags_is_none() {
        let untagged = VolumeRow {
            uuid: "own-2".to_owned(),
            tags: String::new(),
            ..row("cistern-b", "", "")
        };
        let rows = [row("cistern-a", "", ""), untagged];
        let volumes = LogicalVolume::known_of(&rows).unwrap();
        assert_eq!(volumes.len(), 1);
        let is_known = |device: &str, volume: &str| {
            known_volumes::is_device_of(device, &volume.parse().unwrap())
        };
        assert!(is_known("LVM-group1own1", "a"));
        assert!(!is_known("LVM-group1own2", "b"));
    }

    #[test]
    fn an_encrypted_volume_has_the_sectors_of_its_mapping_and_any_other_those_of_the_disks() {
        for (encryption, expected) in [(None, 512), (Some(EncryptionState::Complete), 4096)] {
            let identity = Identity {
                encryption,
                ..identity()
            };
            let row = VolumeRow {
                tags: tags::of_volume(&identity).unwrap().join(","),
                ..row("cistern-a", "", "")
            };
            let volume = LogicalVolume::all_of(&[row]).unwrap().remove(0);
            assert_eq!(volume.identity, Some(identity));
            assert_eq!(volume.into_image(512).sector_size, expected);
        }
    }

    #[test]
    fn a_volume_is_not_removed_while_something_is_made_of_it() {
        let rows = [
            row("cistern-a", "", ""),
            row("by-hand", "cistern-a", ""),
            row("data", "", ""),
            row("of-data", "data", ""),
            row("cistern-b", "[cistern-b_corig]", "[fast_cvol]"),
            row("cistern-c", "", ""),
        ];
        let volumes = LogicalVolume::all_of(&rows).unwrap();
        let why = volumes.iter().map(|it| {
            let refused = it.refuse_dependents().err();
            refused.map(|error| error.to_string())
        });
        let why: Vec<_> = why.collect();
        let refused = |uid: &str, name: &str| {
            Some(format!(
                "image {uid} is still the origin of {name}, a snapshot or a cache that was made with LVM: remove that \
                 on the node first"
            ))
        };
        let expected = [refused("a", "by-hand"), refused("b", "fast_cvol"), None];
        assert_eq!(why, expected);
    }
}
