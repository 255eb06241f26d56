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
    logical::{Growth, VolumeGroup},
    loopdev,
    pool::{self, Pool, PoolStatistics},
    progress::Stoppable,
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
        progress: Stoppable<'_>,
    ) -> Result<Image, Error> {
        // It takes long for a thick clone with very many holes only, whose progress is not reported.
        self.create_image(request, checking, &|_| progress(0))
    }

    /// The new part of a file reads zero.
    fn prepare_growth(&self, _: &Uid, _: Bytes, _: Stoppable<'_>) -> Result<Growth, Error> {
        Ok(Growth::default())
    }

    fn finish_growth(&self, uid: &Uid, size: Bytes, _: Growth) -> Result<Image, Error> {
        self.grow_image(uid, size)
    }

    fn provision(&self, uid: &Uid, provisioning: Provisioning) -> Result<(), Error> {
        self.provision(uid, provisioning)
    }

    fn reallocate(&self, uid: &Uid, progress: Stoppable<'_>) -> Result<bool, Error> {
        self.reallocate(uid, progress)
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
