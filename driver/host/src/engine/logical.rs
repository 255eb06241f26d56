//! The volumes of a [`VolumeGroup`]: logical volumes.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::PathBuf,
};

use cistern_types::{Bytes, Provisioning};

use super::Engine;
use crate::{
    base_device::BaseDevice,
    check::Checking,
    encryption::Unlock,
    id::{Uid, Uuid},
    image::{Error, Image, ImageRequest, failed},
    logical::{Growth, VolumeGroup},
    pool::{self, Pool, PoolStatistics},
    progress::Stoppable,
    root::Root,
};

impl Engine for VolumeGroup {
    fn root(&self) -> &Root {
        self.root()
    }

    fn path(&self) -> PathBuf {
        self.path()
    }

    fn pool_uuid(&self) -> Uuid {
        self.pool_uuid()
    }

    fn unit(&self) -> Bytes {
        self.unit()
    }

    fn takeovers(&self) -> u32 {
        self.takeovers()
    }

    fn check(&self) -> Result<(), pool::Error> {
        Ok(self.check()?)
    }

    fn statistics(&self) -> Result<PoolStatistics, pool::Error> {
        Ok(self.statistics()?)
    }

    fn volumes(&self) -> Result<Vec<Image>, Error> {
        Ok(self.volumes()?)
    }

    fn volume(&self, uid: &Uid) -> Result<Option<Image>, Error> {
        self.volume(uid)
    }

    fn find(&self, uids: &[Uid]) -> Vec<io::Result<Option<Image>>> {
        let all = self.volumes();
        let find = |uid: &Uid| match &all {
            Ok(all) => Ok(all.iter().find(|image| image.uid == *uid).cloned()),
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        uids.iter().map(find).collect()
    }

    fn create(
        &self,
        request: &ImageRequest,
        _: Checking<'_>,
        progress: Stoppable<'_>,
    ) -> Result<Image, Error> {
        self.create(request, progress)
    }

    fn prepare_growth(
        &self,
        uid: &Uid,
        size: Bytes,
        progress: Stoppable<'_>,
    ) -> Result<Growth, Error> {
        self.prepare_growth(uid, size, progress)
    }

    fn finish_growth(&self, uid: &Uid, size: Bytes, growth: Growth) -> Result<Image, Error> {
        self.finish_growth(uid, size, growth)
    }

    fn provision(&self, _: &Uid, provisioning: Provisioning) -> Result<(), Error> {
        match provisioning {
            Provisioning::Thick => Ok(()),
            Provisioning::Thin => Err(Error::Unsupported {
                what: "thin volumes",
                pool: self.to_string(),
            }),
        }
    }

    /// A logical volume has all of its blocks.
    fn reallocate(&self, _: &Uid, _: Stoppable<'_>) -> Result<bool, Error> {
        Ok(true)
    }

    fn check_unused(&self, uid: &Uid) -> Result<(), Error> {
        self.check_unused(uid)
    }

    fn remove(&self, uid: &Uid) -> Result<(), Error> {
        self.remove(uid)
    }

    fn sweep(&self) -> Result<usize, Error> {
        self.sweep()
    }

    fn open(&self, uid: &Uid) -> Result<(OwnedFd, Image), Error> {
        let (device, image) = self.open_volume(uid)?;
        Ok((device.into_file(), image))
    }

    fn complete(&self, uid: &Uid, volume: &str, unlock: Unlock<'_>) -> Result<(), Error> {
        self.complete_encrypted(uid, volume, unlock)
    }

    fn base(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<Option<BaseDevice>, Error> {
        self.attach(data, uid).map(Some)
    }

    fn attach(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<BaseDevice, Error> {
        let system = &*self.root().system;
        let open = || -> io::Result<Option<BaseDevice>> {
            let number = system.stat(data)?.device();
            number.map_or(Ok(None), |number| BaseDevice::open(system, number))
        };
        let device = open().map_err(failed("open the device", uid))?;
        device
            .ok_or_else(|| failed("open the device", uid)(io::Error::from(io::ErrorKind::NotFound)))
    }

    /// Nothing attaches a logical volume but the node plugin, which does one thing at a time to a volume.
    fn lock_to_attach(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<OwnedFd, Error> {
        data.try_clone_to_owned()
            .map_err(failed("open the device", uid))
    }

    /// A logical volume does not move.
    fn refuse_closing(&self, _: &Uid) -> Result<(), Error> {
        Ok(())
    }

    fn images(&self) -> Option<&Pool> {
        None
    }

    fn group(&self) -> Option<&VolumeGroup> {
        Some(self)
    }
}
