//! The block devices of volumes: which device belongs to which image, as the kernel's tables say.
//!
//! *Invariant:* who finds a volume by its device, or the device of a volume, asks here. That it is a loop device matters only
//! to who attaches it (`attached.rs`, `loopdev.rs`) and to who looks at the file behind it, such as the fence, the inventory and
//! the pools. No device and no file is opened, so a disk that hangs blocks none of these calls.

use std::{io, path::PathBuf};

use crate::{
    attached,
    id::Uid,
    loopdev,
    system::{DeviceNumber, System},
};

/// The device of an image that is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeDevice {
    /// Its number, which identifies the volume, also in the tables of [`System`].
    pub(crate) number: DeviceNumber,
    /// Name of the image.
    pub(crate) image: Uid,
    /// Path of the image in the mount namespace that attached it.
    pub(crate) path: PathBuf,
    /// Whether the image was removed.
    pub(crate) is_deleted: bool,
}

impl VolumeDevice {
    /// Returns the number of the device that a pod uses.
    pub(crate) fn topmost(&self, system: &dyn System) -> io::Result<DeviceNumber> {
        attached::topmost(system, self.number)
    }
}

/// Lists the devices of all images, also of those that another root of this machine has.
pub(crate) fn list(system: &dyn System) -> io::Result<Vec<VolumeDevice>> {
    let bound = system.bound_loops()?.into_iter();
    let of_images = bound.filter_map(|bound| {
        Some(VolumeDevice {
            number: DeviceNumber::of_loop(bound.number),
            image: loopdev::image_of(&bound.backing_file)?,
            is_deleted: loopdev::is_deleted(&bound),
            path: bound.backing_file,
        })
    });
    Ok(of_images.collect())
}

/// Lists the devices of the same kind that others use, for files that are no images.
pub(crate) fn foreign(system: &dyn System) -> io::Result<Vec<DeviceNumber>> {
    let mut bound = system.bound_loops()?;
    bound.retain(|bound| loopdev::image_of(&bound.backing_file).is_none());
    let numbers = bound.into_iter().map(|bound| bound.number);
    Ok(numbers.map(DeviceNumber::of_loop).collect())
}

/// Lists the devices of one image.
pub(crate) fn of(system: &dyn System, image: &Uid) -> io::Result<Vec<VolumeDevice>> {
    let mut devices = list(system)?;
    devices.retain(|device| device.image == *image);
    Ok(devices)
}

/// Whether a device is that of an image.
pub(crate) fn belongs_to(
    system: &dyn System,
    device: DeviceNumber,
    image: &Uid,
) -> io::Result<bool> {
    match device.as_loop() {
        Some(number) => loopdev::has_image(system, number, image),
        None => Ok(false),
    }
}

/// Whether a device can be that of an image, judged by its number.
pub(crate) fn is_possible(device: DeviceNumber) -> bool {
    device.as_loop().is_some()
}
