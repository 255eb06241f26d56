//! [`Engine`]: how the data of the volumes of a pool lies on its disks.
//!
//! ```text
//! mounting, grow, health ── Engine ─┬─ images.rs:  image files in a Pool, by loop devices
//!                                   └─ logical.rs: logical volumes in a VolumeGroup
//! ```
//!
//! *Invariant:* what every volume has (stage, publish, expansion, statistics, limits, health) is written once, over
//! this trait, and knows a volume by its [`Image`] and its base device. What only images have (snapshots, copies,
//! moves, the trash) is reached by [`Engine::images`], and is refused elsewhere. An engine knows no filesystem of a
//! volume but the one that it makes, no mount and no secret.

mod images;
mod logical;

use std::{
    fmt, io,
    os::fd::{BorrowedFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

use cistern_types::{Bytes, Provisioning};

use crate::{
    base_device::BaseDevice,
    check::Checking,
    encryption::Unlock,
    id::{Uid, Uuid},
    image::{Error, Image, ImageRequest},
    logical::{Growth, VolumeGroup},
    pool::{self, Pool, PoolStatistics},
    progress::{self, Stoppable},
    root::Root,
    system::System,
};

/// How long a stage allocates what a thick volume lacks. Kubelet waits for it.
const STAGE_LIMIT: Duration = Duration::from_secs(10);

/// How the data of the volumes of a pool lies on its disks. Every call may block on them.
pub trait Engine: fmt::Debug + fmt::Display + Send + Sync {
    /// Returns the folder of Cistern on this host.
    fn root(&self) -> &Root;

    /// Returns the path that stands for the pool: of its mount point, or of its volume group.
    fn path(&self) -> PathBuf;

    /// Returns the UUID of the pool, which the identity of each of its volumes names.
    fn pool_uuid(&self) -> Uuid;

    /// Returns the unit of allocation: the size of each volume is a multiple of it.
    fn unit(&self) -> Bytes;

    /// Returns how often a node has taken over the pool from another one.
    fn takeovers(&self) -> u32;

    /// Verifies that this is still the pool, and that it can be written to. Fails with the first difference.
    fn check(&self) -> Result<(), pool::Error>;

    /// Reads the sizes of the pool. Fails if they cannot be read.
    fn statistics(&self) -> Result<PoolStatistics, pool::Error>;

    /// Lists the volumes of the pool. Fails if it cannot be read.
    fn volumes(&self) -> Result<Vec<Image>, Error>;

    /// Returns one volume; none when it does not exist. Fails if it cannot be read.
    fn volume(&self, uid: &Uid) -> Result<Option<Image>, Error>;

    /// Returns each of these volumes, or why it cannot be read, without changing or waiting for any.
    fn find(&self, uids: &[Uid]) -> Vec<io::Result<Option<Image>>>;

    /// Creates a volume, whole or not at all. Returns an existing one that matches the request. Reports the progress if
    /// it takes long. Fails if an existing volume does not match, if the pool cannot hold what is requested, if the progress
    /// stops it, and with [`Error::NoSpace`] if the pool is full.
    fn create(
        &self,
        request: &ImageRequest,
        checking: Checking<'_>,
        progress: Stoppable<'_>,
    ) -> Result<Image, Error>;

    /// Does the part of a growth to at least this size that can take hours. It does not change the volume, which can be used
    /// meanwhile. Fails as [`Self::create`] does.
    fn prepare_growth(
        &self,
        uid: &Uid,
        size: Bytes,
        progress: Stoppable<'_>,
    ) -> Result<Growth, Error>;

    /// Grows a volume, whose growth to this size was prepared, without its devices and its filesystem. Does not change one
    /// that is large enough. Fails as [`Self::create`] does.
    fn finish_growth(&self, uid: &Uid, size: Bytes, growth: Growth) -> Result<Image, Error>;

    /// Makes a volume thin or thick, and does not allocate its blocks. Fails if the pool cannot do that.
    fn provision(&self, uid: &Uid, provisioning: Provisioning) -> Result<(), Error>;

    /// Allocates what a thick volume lacks, for example after a trim, until the progress stops it. Returns whether it lacks
    /// nothing then. The volume can be used meanwhile. Fails if the pool is full.
    fn reallocate(&self, uid: &Uid, progress: Stoppable<'_>) -> Result<bool, Error>;

    /// Fails if something uses a volume. Succeeds when it does not exist.
    fn check_unused(&self, uid: &Uid) -> Result<(), Error>;

    /// Removes a volume. Succeeds when it does not exist; fails while something uses it.
    fn remove(&self, uid: &Uid) -> Result<(), Error>;

    /// Removes what interrupted calls have left, and returns how many. Keeps a volume that is being made now.
    fn sweep(&self) -> Result<usize, Error>;

    /// Opens the data of a volume for reading and writing, with the header of an encrypted one. Fails if it is missing.
    fn open(&self, uid: &Uid) -> Result<(OwnedFd, Image), Error>;

    /// Gives an encrypted volume that was never staged its header and its filesystem. Does nothing for a complete one. Fails
    /// if it does not belong to this PoolVolume, or if it is in use.
    fn complete(&self, uid: &Uid, volume: &str, unlock: Unlock<'_>) -> Result<(), Error>;

    /// Returns the base device over the open data of a volume; none if it has none yet.
    fn base(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<Option<BaseDevice>, Error>;

    /// Makes the base device over the open data of a volume, which has none, or opens it.
    fn attach(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<BaseDevice, Error>;

    /// Keeps others from attaching a volume while the result lives, which is its open data, too. Fails if it is closing
    /// for a move.
    fn lock_to_attach(&self, data: BorrowedFd<'_>, uid: &Uid) -> Result<OwnedFd, Error>;

    /// Fails if a volume is closing for a move.
    fn refuse_closing(&self, uid: &Uid) -> Result<(), Error>;

    /// Returns the pool of image files; none if the volumes are no images.
    fn images(&self) -> Option<&Pool>;

    /// Returns the volume group; none if the volumes are images.
    fn group(&self) -> Option<&VolumeGroup>;
}

impl dyn Engine + '_ {
    /// Returns the pool of image files, for an operation that only images support. Fails with [`Error::Unsupported`] for
    /// another pool, and names the operation.
    pub fn images_for(&self, what: &'static str) -> Result<&Pool, Error> {
        self.images().ok_or_else(|| Error::Unsupported {
            what,
            pool: self.to_string(),
        })
    }

    /// Allocates what a thick volume lacks before it is staged. Returns whether it lacks nothing then: if that takes
    /// long, the rest is left to the next [`Engine::reallocate`].
    pub(crate) fn reallocate_for_stage(&self, uid: &Uid) -> Result<bool, Error> {
        let end = Instant::now() + STAGE_LIMIT;
        self.reallocate(uid, &|_| progress::until(end))
    }

    pub(crate) fn system(&self) -> &dyn System {
        &*self.root().system
    }
}
