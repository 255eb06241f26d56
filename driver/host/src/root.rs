//! [`Root`]: the folder of Cistern on a host, and its layout.
//!
//! ```text
//! <root>/pools/<pool uid>.img        an image pool's file, allocated in full; it keeps its name when
//!                                    its StoragePool is recreated with another UID (pool/home.rs);
//!                                    in the directory that the StoragePool names, if it names one
//!                                    (pool/folder.rs)
//! <root>/pools/<pool uid>.img.new    a file that is being created
//! <root>/pools/<pool uid>/           where the pool's XFS is mounted
//!        .cistern-pool               the marker: the pool and its node
//!        images/<volume uid>         one volume
//!        tmp/<volume uid>            an image that is being created
//!        incoming/<volume uid>       the copy that another node sends: of a snapshot, for a new volume,
//!                                    or of a volume that moves here
//!        closed/<volume uid>         a volume that moves to another node, and is not used here any more
//!        trash/<volume uid>.<time>   an unclaimed image, and when it was moved there
//! <root>/dev/                        device nodes that /dev lacks
//! ```

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    freezes::Freezes,
    id::Uid,
    pending_paths::PendingPaths,
    system::{OFlags, System},
};

/// Default percentage of the host's filesystem that image pools leave free. With less free space,
/// kubelet evicts pods (its default for `imagefs.available`).
pub const KEPT_PERCENT: u32 = 15;

/// The folder of Cistern on a host.
#[derive(Clone, Debug)]
pub struct Root {
    pub(crate) system: Arc<dyn System>,
    directory: PathBuf,
    /// Percentage of a filesystem of the host that image pools leave free.
    pub(crate) kept_percent: u32,
    /// Directories in which, and below which, a StoragePool may put the file of an image pool.
    pub(crate) allowed: Arc<[PathBuf]>,
    /// Paths that are being queried, and have not answered yet.
    pub(crate) pending_paths: Arc<PendingPaths>,
    /// Filesystems that are frozen for a snapshot.
    pub(crate) freezes: Arc<Freezes>,
}

impl Root {
    /// Returns the root of a folder, given by an absolute path without symbolic links.
    pub fn new(directory: impl Into<PathBuf>, system: Arc<dyn System>) -> Self {
        Self {
            system,
            directory: directory.into(),
            kept_percent: KEPT_PERCENT,
            allowed: Arc::default(),
            pending_paths: Arc::default(),
            freezes: Arc::default(),
        }
    }

    /// Sets the percentage of the filesystem that image pools leave free; default [`KEPT_PERCENT`].
    #[must_use]
    pub fn keeping(mut self, percent: u32) -> Self {
        self.kept_percent = percent;
        self
    }

    /// Allows image pools to have their files in these directories, and in those below them; default
    /// none. Each is an absolute path without symbolic links.
    #[must_use]
    pub fn allowing(mut self, directories: impl IntoIterator<Item = PathBuf>) -> Self {
        self.allowed = directories.into_iter().collect();
        self
    }

    /// The folder of the pools.
    pub(crate) fn pools_path(&self) -> PathBuf {
        self.directory.join("pools")
    }

    /// Mount point of the pool that was created under this UID.
    pub fn mount_point(&self, pool: &Uid) -> PathBuf {
        self.pools_path().join(pool.as_str())
    }

    /// Opens the folder of the pools, and creates it if it does not exist.
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

    pub(crate) fn open_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        self.system.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }
}

impl Root {
    /// Prevents further freezes, and waits until all frozen filesystems are thawed, at most `limit`
    /// from the first call on. Returns how many are still frozen. Blocks.
    ///
    /// Call this before the process exits. Snapshots that need a freeze fail from then on, and the
    /// next process takes them.
    pub fn end_freezes(&self, limit: Duration) -> usize {
        self.freezes.end(limit)
    }
}
