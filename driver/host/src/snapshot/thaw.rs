//! Thaws filesystems that a killed process left frozen.

use std::os::fd::AsFd as _;

use super::{Error, attachment::open_mounted};
use crate::{
    id::Uid,
    image::failed,
    root::Root,
    volume_device::{self, VolumeDevice},
};

impl Root {
    /// Thaws the filesystem of every image that has a mount visible to this process, and returns
    /// the images that were frozen. Call this when a process starts, before anything is unmounted:
    /// a filesystem that is frozen and no longer mounted cannot be thawed. If one fails, thaws the
    /// others and then returns the first error.
    pub fn thaw_all(&self) -> Result<Vec<Uid>, Error> {
        let all = volume_device::list(&*self.system)
            .map_err(crate::pool::failed("list the devices of volumes"))
            .map_err(crate::image::Error::from)?;
        let mut thawed = Vec::new();
        let mut result = Ok(());
        for device in all {
            match self.thaw(&device) {
                Ok(true) => thawed.push(device.image),
                Ok(false) => {}
                // Continues with the others.
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| thawed)
    }

    fn thaw(&self, device: &VolumeDevice) -> Result<bool, Error> {
        let (system, image) = (&*self.system, &device.image);
        let failed = || failed("thaw the filesystem", image);
        let Some(inside) = open_mounted(system, device.number).map_err(failed())? else {
            return Ok(false);
        };
        let was_frozen = system.thaw(inside.as_fd()).map_err(failed())?;
        if was_frozen {
            tracing::warn!(%image, "thawed a filesystem that an earlier process left frozen");
        }
        Ok(was_frozen)
    }
}
