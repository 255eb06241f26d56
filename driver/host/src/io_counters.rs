//! Counters of the I/O of volumes, from the kernel's tables.

use std::io;

use crate::{
    id::Uid,
    root::Root,
    system::{DeviceNumber, IoCounters},
    volume_device,
};

/// The I/O of a volume's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeIo {
    /// Name of the image behind the device.
    pub image: Uid,
    /// Number of the device.
    pub device: DeviceNumber,
    /// Counters of the device since the kernel made it.
    pub counters: IoCounters,
}

impl Root {
    /// Reads the counters of the devices of the images of this folder, and of all logical volumes of Cistern. Identifies
    /// them by paths and names, and opens no device and no file, so a disk that hangs does not block it. Fails
    /// if the kernel's tables cannot be read.
    pub fn volume_io(&self) -> io::Result<Vec<VolumeIo>> {
        let pools = self.pools_path();
        let mut all = Vec::new();
        let mut devices = volume_device::list(&*self.system)?;
        devices.retain(|device| {
            let path = device.path.as_ref();
            path.is_none_or(|path| path.starts_with(&pools))
        });
        for device in devices {
            // It may be removed meanwhile.
            if let Some(counters) = self.system.io_counters(device.number)? {
                all.push(VolumeIo {
                    image: device.image,
                    device: device.number,
                    counters,
                });
            }
        }
        Ok(all)
    }
}
