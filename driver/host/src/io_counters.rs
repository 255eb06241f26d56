//! Counters of the I/O of volumes, from the kernel's tables.

use std::io;

use crate::{
    id::Uid,
    loopdev,
    root::Root,
    system::{BoundLoop, IoCounters},
};

/// The I/O of a volume's loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeIo {
    /// Name of the image behind the device.
    pub image: Uid,
    /// Number of the loop device.
    pub loop_number: u32,
    /// Counters of the device since the kernel made it.
    pub counters: IoCounters,
}

impl Root {
    /// Reads the counters of the loop devices over images of this folder. Identifies the images by
    /// their paths, and opens no device and no file, so a disk that hangs does not block it. Fails
    /// if the kernel's tables cannot be read.
    pub fn volume_io(&self) -> io::Result<Vec<VolumeIo>> {
        let pools = self.pools_path();
        let mut all = Vec::new();
        for bound in self.system.bound_loops()? {
            let BoundLoop {
                number: loop_number,
                backing_file,
            } = bound;
            let image = loopdev::image_of(&backing_file);
            let Some(image) = image.filter(|_| backing_file.starts_with(&pools)) else {
                continue;
            };
            // A device may be removed meanwhile.
            if let Some(counters) = self.system.loop_counters(loop_number)? {
                all.push(VolumeIo {
                    image,
                    loop_number,
                    counters,
                });
            }
        }
        Ok(all)
    }
}
