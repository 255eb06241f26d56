//! Thaws filesystems that a killed process left frozen.

use std::os::fd::AsFd as _;

use super::{Error, attachment::open_mounted};
use crate::{
    id::Uid,
    image::failed,
    loopdev,
    root::Root,
    system::{BoundLoop, DeviceNumber},
};

impl Root {
    /// Thaws the filesystem of every image that has a mount visible to this process, and returns
    /// the images that were frozen. Call this when a process starts, before anything is unmounted:
    /// a filesystem that is frozen and no longer mounted cannot be thawed. If one fails, thaws the
    /// others and then returns the first error.
    pub fn thaw_all(&self) -> Result<Vec<Uid>, Error> {
        let all = self
            .system
            .bound_loops()
            .map_err(crate::pool::failed("list the loop devices"))
            .map_err(crate::image::Error::from)?;
        let mut thawed = Vec::new();
        let mut result = Ok(());
        for bound in all {
            let Some(image) = loopdev::image_of(&bound.backing_file) else {
                continue;
            };
            match self.thaw(&bound, &image) {
                Ok(true) => thawed.push(image),
                Ok(false) => {}
                // Continues with the others.
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| thawed)
    }

    fn thaw(&self, bound: &BoundLoop, image: &Uid) -> Result<bool, Error> {
        let system = &*self.system;
        let failed = || failed("thaw the filesystem", image);
        let device = DeviceNumber::of_loop(bound.number);
        let Some(inside) = open_mounted(system, device).map_err(failed())? else {
            return Ok(false);
        };
        let was_frozen = system.thaw(inside.as_fd()).map_err(failed())?;
        if was_frozen {
            tracing::warn!(%image, "thawed a filesystem that an earlier process left frozen");
        }
        Ok(was_frozen)
    }
}
