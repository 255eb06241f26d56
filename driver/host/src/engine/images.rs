//! The volumes of a [`Pool`]: image files.

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
    logical::VolumeGroup,
    loopdev,
    pool::{self, Pool, PoolStatistics},
    progress::Progress,
    root::Root,
};

impl Engine for Pool {
    fn root(&self) -> &Root {
        self.root()
    }

    fn path(&self) -> PathBuf {
        self.path()
    }

    fn pool_uuid(&self) -> Uuid {
        self.filesystem_uuid()
    }

    fn unit(&self) -> Bytes {
        Bytes::mib(1)
    }

    fn takeovers(&self) -> u32 {
        self.takeovers()
    }

    fn check(&self) -> Result<(), pool::Error> {
        self.check()
    }

    fn statistics(&self) -> Result<PoolStatistics, pool::Error> {
        self.statistics()
    }

    fn volumes(&self) -> Result<Vec<Image>, Error> {
        self.images()
    }

    fn volume(&self, uid: &Uid) -> Result<Option<Image>, Error> {
        self.image(uid)
    }

    fn find(&self, uids: &[Uid]) -> Vec<io::Result<Option<Image>>> {
        uids.iter().map(|uid| self.find_image(uid)).collect()
    }

    fn create(
        &self,
        request: &ImageRequest,
        checking: Checking<'_>,
        _: Progress<'_>,
    ) -> Result<Image, Error> {
        self.create_image_checking(request, checking)
    }

    /// No image takes long to make, but a copy, which ends by itself.
    fn interrupt(&self, _: &Uid) {}

    fn grow(&self, uid: &Uid, size: Bytes, _: Progress<'_>) -> Result<Image, Error> {
        self.grow_image(uid, size)
    }

    fn provision(
        &self,
        uid: &Uid,
        provisioning: Provisioning,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        self.provision(uid, provisioning, progress)
    }

    fn reallocate(&self, uid: &Uid) -> Result<(), Error> {
        self.reallocate(uid)
    }

    fn check_unused(&self, uid: &Uid) -> Result<(), Error> {
        self.check_unused(uid)
    }

    fn remove(&self, uid: &Uid) -> Result<(), Error> {
        self.remove_image(uid)
    }

    fn sweep(&self) -> Result<usize, Error> {
        self.sweep()
    }

    fn open(&self, uid: &Uid) -> Result<(OwnedFd, Image), Error> {
        self.described(uid)
    }

    fn complete(&self, uid: &Uid, volume: &str, unlock: Unlock<'_>) -> Result<(), Error> {
        self.complete_encrypted(uid, volume, unlock)
    }

    fn base(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<Option<BaseDevice>, Error> {
        let system = &*self.system;
        let id = system.stat(data).map_err(failed("stat the file", uid))?.id;
        let bound = loopdev::find(system, id, uid.as_ref());
        let bound = bound.map_err(failed("find the loop device", uid))?;
        Ok(bound.map(BaseDevice::Loop))
    }

    fn attach(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<BaseDevice, Error> {
        let bound = loopdev::bind(&*self.system, data);
        bound
            .map(BaseDevice::Loop)
            .map_err(failed("bind the file", uid))
    }

    fn lock_to_attach(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<OwnedFd, Error> {
        self.lock_to_attach(data, uid)
    }

    fn refuse_closing(&self, uid: &Uid) -> Result<(), Error> {
        self.refuse_closing(uid)
    }

    fn images(&self) -> Option<&Pool> {
        Some(self)
    }

    fn group(&self) -> Option<&VolumeGroup> {
        None
    }
}
