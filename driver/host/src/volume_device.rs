//! The block devices of volumes: which device belongs to which volume, as the kernel's tables say. A loop device is that of
//! an image by the path of its file, and a logical volume by its name and its UUID: a copy of a group has devices of the
//! same names (`known_volumes.rs`).
//!
//! *Invariant:* who finds a volume by its device, or the device of a volume, asks here. What kind of device it is
//! matters only to who attaches it (`base_device.rs`, `loopdev.rs`, `logical/`) and to who looks at the file behind it,
//! such as the fence, the inventory and the pools. No device and no file is opened, so a disk that hangs blocks none of
//! these calls.

use std::{io, path::PathBuf};

use crate::{
    attached,
    id::Uid,
    known_volumes, loopdev,
    system::{DeviceNumber, MAPPING, MappingName, System},
};

/// The device of a volume that is attached: of an image, or an active logical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeDevice {
    /// Its number, which identifies the volume, also in the tables of [`System`].
    pub(crate) number: DeviceNumber,
    /// Name of the image, or of the logical volume without its prefix.
    pub(crate) image: Uid,
    /// Path of the image in the mount namespace that attached it; none for a logical volume.
    pub(crate) path: Option<PathBuf>,
    /// Whether the image was removed. A logical volume in use is not removed.
    pub(crate) is_deleted: bool,
}

impl VolumeDevice {
    /// Returns the number of the device that a pod uses.
    pub(crate) fn topmost(&self, system: &dyn System) -> io::Result<DeviceNumber> {
        attached::topmost(system, self.number)
    }
}

/// Lists the devices of all volumes, also of those that another root of this machine has.
pub(crate) fn list(system: &dyn System) -> io::Result<Vec<VolumeDevice>> {
    let bound = system.bound_loops()?.into_iter();
    let of_images = bound.filter_map(|bound| {
        Some(VolumeDevice {
            number: DeviceNumber::of_loop(bound.number),
            image: loopdev::image_of(&bound.backing_file)?,
            is_deleted: loopdev::is_deleted(&bound),
            path: Some(bound.backing_file),
        })
    });
    let mapped = system.mapped_devices()?.into_iter();
    let logical = mapped.filter_map(|device| {
        Some(VolumeDevice {
            number: device.number,
            image: logical_volume(&device.mapping)?,
            is_deleted: false,
            path: None,
        })
    });
    Ok(of_images.chain(logical).collect())
}

/// Returns the volume that a mapping is as a logical volume; none for a logical volume of others with the same name.
fn logical_volume(mapping: &MappingName) -> Option<Uid> {
    let name = mapping.logical_volume()?;
    let volume: Uid = name.strip_prefix(MAPPING)?.parse().ok()?;
    let device = mapping.uuid.as_deref()?;
    known_volumes::is_device_of(device, &volume).then_some(volume)
}

/// Lists the loop devices that others use, for files that are no images.
pub(crate) fn foreign(system: &dyn System) -> io::Result<Vec<DeviceNumber>> {
    let mut bound = system.bound_loops()?;
    bound.retain(|bound| loopdev::image_of(&bound.backing_file).is_none());
    let numbers = bound.into_iter().map(|bound| bound.number);
    Ok(numbers.map(DeviceNumber::of_loop).collect())
}

/// Lists the devices of one volume.
pub(crate) fn of(system: &dyn System, image: &Uid) -> io::Result<Vec<VolumeDevice>> {
    let mut devices = list(system)?;
    devices.retain(|device| device.image == *image);
    Ok(devices)
}

/// Whether a device is that of a volume.
pub(crate) fn belongs_to(
    system: &dyn System,
    device: DeviceNumber,
    image: &Uid,
) -> io::Result<bool> {
    if let Some(number) = device.as_loop() {
        return loopdev::has_image(system, number, image);
    }
    let mapping = system.mapping_of(device)?;
    Ok(mapping.and_then(|it| logical_volume(&it)).as_ref() == Some(image))
}

/// Whether a device is of a kind that volumes have.
pub(crate) fn is_possible(system: &dyn System, device: DeviceNumber) -> io::Result<bool> {
    Ok(device.as_loop().is_some() || system.mapping_of(device)?.is_some())
}

/// Returns the path of a device that [`is_possible`], as the kernel names it.
pub(crate) fn path_of(device: DeviceNumber) -> String {
    match device.as_loop() {
        Some(number) => format!("/dev/loop{number}"),
        None => format!("/dev/dm-{}", device.minor),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_logical_volume_of_the_same_name_in_a_copy_of_a_group_is_no_volume() {
        let [group, copy, own] = ["g", "c", "o"].map(|it| it.repeat(32));
        let mapping = |name: &str, group: &str| MappingName {
            name: name.to_owned(),
            uuid: Some(format!("LVM-{group}{own}")),
        };
        let volume: Uid = "copied".parse().unwrap();
        let devices = BTreeMap::from([(format!("LVM-{group}{own}"), volume.clone())]);
        known_volumes::note(&group, 1, devices);
        let device = mapping("vg-cistern--copied", &group);
        assert_eq!(logical_volume(&device), Some(volume));
        assert_eq!(logical_volume(&mapping("vg2-cistern--copied", &copy)), None);
        // A logical volume that is not Cistern's.
        assert_eq!(logical_volume(&mapping("vg-data", &group)), None);
    }
}
