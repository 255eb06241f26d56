//! [`Root`]: the folder of Cistern on a host, and what is done there by path.
//!
//! ```text
//! <root>/pools/<pool uid>.img        an image pool's file, allocated in full; it keeps its name when
//!                                    its StoragePool comes back with another UID (pool/home.rs)
//! <root>/pools/<pool uid>.img.new    one that is being made
//! <root>/pools/<pool uid>/           where the pool's XFS is mounted
//!        .cistern-pool               whose it is
//!        images/<volume uid>         one volume
//!        tmp/<volume uid>            one that is being made
//!        trash/<volume uid>.<time>   one that nobody claimed, and when it was moved there
//! <root>/dev/                        device nodes that /dev lacks
//! ```

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    id::Uid,
    snapshot::Freezes,
    statistics::Asked,
    system::{OFlags, System},
};

/// Hundredths of the filesystem of a host that image pools leave free unless they are told
/// otherwise: where less is free, kubelet evicts pods (its default for `imagefs.available`).
pub const KEPT_PERCENT: u32 = 15;

/// The folder of Cistern on a host.
#[derive(Clone, Debug)]
pub struct Root {
    pub(crate) system: Arc<dyn System>,
    directory: PathBuf,
    /// Hundredths of the filesystem that holds the folder which image pools leave free.
    pub(crate) kept_percent: u32,
    /// Paths whose filesystem has not answered yet.
    pub(crate) asked: Arc<Asked>,
    /// Filesystems that are frozen for a snapshot.
    pub(crate) freezes: Arc<Freezes>,
}

impl Root {
    /// The folder, an absolute path without symbolic links.
    pub fn new(directory: impl Into<PathBuf>, system: Arc<dyn System>) -> Self {
        Self {
            system,
            directory: directory.into(),
            kept_percent: KEPT_PERCENT,
            asked: Arc::default(),
            freezes: Arc::default(),
        }
    }

    /// Has image pools leave another share of the filesystem free than [`KEPT_PERCENT`].
    #[must_use]
    pub fn keeping(mut self, percent: u32) -> Self {
        self.kept_percent = percent;
        self
    }

    /// Where the pools are.
    pub(crate) fn pools_path(&self) -> PathBuf {
        self.directory.join("pools")
    }

    /// Where the pool that was made for this UID is mounted.
    pub fn mount_point(&self, pool: &Uid) -> PathBuf {
        self.pools_path().join(pool.as_str())
    }

    /// Opens the folder of the pools, and makes it if need be.
    pub(crate) fn open_pools(&self) -> io::Result<OwnedFd> {
        match self.open_directory(&self.pools_path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        let directory = self.open_directory(&self.directory)?;
        match self
            .system
            .make_directory(directory.as_fd(), "pools".as_ref(), 0o700)
        {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => self.system.sync(directory.as_fd())?,
        }
        self.open_directory(&self.pools_path())
    }

    fn open_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        self.system.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }
}
