//! Pools: an XFS on a file or a device, mounted beneath [`Root`], in which the images lie.
//!
//! *Invariants:* a pool is made only where nothing is; what is there and is not this pool is never
//! written; and every access goes through the open directory of the mounted filesystem, so that a
//! bare mount point can never be written by mistake.

mod blank;
mod broken;
mod device;
pub(crate) mod file;
mod home;
mod host;
mod known;
mod layers;
pub(crate) mod marker;
mod open;
mod owner;
mod remove;
mod resize;

use std::{
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use cistern_crds::Bytes;

pub(crate) use self::broken::has_shut_down;
use self::marker::Marker;
pub use self::{
    broken::Broken,
    owner::{Claim, Owner},
    resize::{PoolFile, Shortage},
};
use crate::{
    cause::Cause,
    id::{Uid, Uuid},
    place::Place,
    root::Root,
    system::{DeviceNumber, FileId, System, XfsGeometry},
};

/// Folder of the images in a pool.
pub(crate) const IMAGES: &str = "images";
/// Folder of the images that are being made.
pub(crate) const TEMPORARY: &str = "tmp";
/// The file of a pool's own that is written to see whether its disk works: see `health/probe.rs`.
pub(crate) const PROBE: &str = ".cistern-probe";

/// A pool as it is to be on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDeclaration {
    /// UID of the StoragePool.
    pub uid: Uid,
    /// Its name. A pool that says so of itself and has another UID was this one before a cluster was
    /// restored, unless that UID is one of `others`.
    pub name: String,
    /// UIDs of the other pools that the host is to carry.
    pub others: Vec<Uid>,
    /// The node that this host is.
    pub node: Owner,
    /// The pool of another node that this one may take over: exactly what that says of itself.
    pub take_over: Option<Claim>,
    /// Where its space comes from.
    pub source: Source,
}

/// Where a pool's space comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file beneath [`Root`] of this size.
    Image {
        /// Its size, rounded down to a MiB.
        size: Bytes,
    },
    /// The first of these devices that is the pool's own, or else the first that is blank.
    Device {
        /// Absolute paths; symbolic links are followed.
        paths: Vec<PathBuf>,
        /// [`Pool::device_identity`] when the pool was last used. A device of this identity is looked
        /// at, too, whatever its path.
        identity: Option<String>,
    },
}

/// What was known of a pool before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// Nothing: it may be made where nothing is.
    New,
    /// It was made once, and is never made again.
    Known {
        /// UUID of its filesystem.
        filesystem_uuid: Uuid,
    },
    /// As [`Self::Known`], but nobody remembers its UUID: what says itself that it is the pool is
    /// taken, and it is never made again.
    Made,
}

/// Why a pool cannot be used. Each maps to one reason of the pool's condition.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file or device of a pool that was made once is not there.
    #[error("{what} is not there: the pool was made once and is not made again; bring it back")]
    BackingMissing {
        /// File or devices.
        what: String,
    },
    /// The file or device holds something else than this pool.
    #[error("{path} is not this pool: {why}; it is left as it is")]
    BackingForeign {
        /// File, device or mount point.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// The pool belongs to another node, which may be using it.
    #[error(
        "the pool on {path} belongs to node {}, as its marker says, and is not used here: two machines that write to one disk destroy it", .claim.owner
    )]
    OtherNode {
        /// File, device or mount point.
        path: PathBuf,
        /// What the pool says of itself.
        claim: Box<Claim>,
    },
    /// Something calls itself this pool, and it is not certain that it is.
    #[error(
        "it is not certain which is pool {name}, so none is taken and none is made: {}; move away what is not", list(.found)
    )]
    Ambiguous {
        /// Name of the pool.
        name: String,
        /// Each with what is known of it.
        found: Vec<(PathBuf, String)>,
    },
    /// No listed device is blank or the pool's own.
    #[error("no listed device can be used: {}", list(.devices))]
    NoUsableDevice {
        /// Each with what speaks against it.
        devices: Vec<(PathBuf, String)>,
    },
    /// The pool is not mounted, or something else is where it should be.
    #[error("{path} is not the mounted pool: {why}")]
    NotMounted {
        /// The mount point.
        path: PathBuf,
        /// What is there.
        why: String,
    },
    /// Nothing can be written to the pool.
    #[error(
        "the filesystem at {path} is read-only: the kernel log says why, and it stays so until it is mounted anew"
    )]
    ReadOnly {
        /// The mount point.
        path: PathBuf,
    },
    /// The filesystem has given up after an error.
    #[error(
        "the filesystem at {path} has shut itself down after an error: the kernel log says which, and it stays so until it is mounted anew"
    )]
    ShutDown {
        /// The mount point.
        path: PathBuf,
    },
    /// The filesystem has to be mounted anew, and cannot be while something uses it.
    #[error(
        "the filesystem at {path} {state} and is mounted anew once nothing uses it: {}", users(.images)
    )]
    InUse {
        /// The mount point.
        path: PathBuf,
        /// What has become of it.
        state: Broken,
        /// Names of the images that are attached.
        images: Vec<Uid>,
    },
    /// The pool's file would fill the filesystem that it lies on.
    #[error(
        "{path} needs {needed} more, and its filesystem lacks {lacking} for that{}: free space there or make the pool smaller",
        keeping(*kept_percent)
    )]
    HostFilesystemFull {
        /// The file.
        path: PathBuf,
        /// What the file still needs.
        needed: Bytes,
        /// How much of that the filesystem does not have, rounded up to a GiB.
        lacking: Bytes,
        /// Hundredths of the filesystem that stay free, or kubelet evicts pods.
        kept_percent: u32,
    },
    /// The filesystem that the pool's file is to lie on cannot hold it to what the pool promises.
    #[error(
        "{path} cannot be made: it would lie on {filesystem}, which {why}; put that folder on ext4, XFS or btrfs"
    )]
    HostFilesystemUnfit {
        /// The file.
        path: PathBuf,
        /// Of which kind its filesystem is.
        filesystem: String,
        /// What that cannot do.
        why: String,
    },
    /// A pool that is to be removed holds images, or files that are not Cistern's.
    #[error(
        "{count} images or other files remain in {path}: delete their volumes first, and move away what is not Cistern's"
    )]
    ImagesRemain {
        /// The mount point.
        path: PathBuf,
        /// How many.
        count: usize,
    },
    /// A step failed.
    #[error("could not {operation}")]
    Failed {
        /// What was tried.
        operation: String,
        /// Why it failed.
        #[source]
        source: Cause,
    },
}

pub(crate) fn failed<E: Into<Cause>>(operation: impl Into<String>) -> impl FnOnce(E) -> Error {
    let operation = operation.into();
    |source| Error::Failed {
        operation,
        source: source.into(),
    }
}

fn keeping(percent: u32) -> String {
    match percent {
        0 => String::new(),
        percent => format!(", as {percent} % of it stay free"),
    }
}

fn users(images: &[Uid]) -> String {
    if images.is_empty() {
        return "something that is no volume still has it open".to_owned();
    }
    let names: Vec<&str> = images.iter().map(Uid::as_str).collect();
    format!(
        "end the pods whose volumes are the images {}",
        names.join(", ")
    )
}

fn list(devices: &[(PathBuf, String)]) -> String {
    let line = |(path, why): &(PathBuf, String)| format!("{}: {why}", path.display());
    devices.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Numbers of a pool's filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStatistics {
    /// What the filesystem covers.
    pub size: Bytes,
    /// What was free when it was empty, at its present size: what can be promised to volumes
    /// before anything is kept back.
    pub empty: Bytes,
    /// What is free now (`f_bavail`).
    pub available: Bytes,
}

/// A pool that is mounted, and whose identity was verified.
#[derive(Debug)]
pub struct Pool {
    pub(crate) system: Arc<dyn System>,
    pub(crate) images: OwnedFd,
    pub(crate) temporary: OwnedFd,
    root: Root,
    declaration: PoolDeclaration,
    /// UID of the StoragePool that made it: the name of its file and mount point.
    home: Uid,
    filesystem_uuid: Uuid,
    device: PathBuf,
    device_identity: Option<String>,
    /// The disk that carries it all, and how many requests that had failed when the pool was opened.
    disk: DeviceNumber,
    errors_before: u64,
    file: Option<FileId>,
    directory: OwnedFd,
    mount_id: u64,
    marker: Marker,
}

impl Pool {
    /// UID of the StoragePool.
    pub fn uid(&self) -> &Uid {
        &self.declaration.uid
    }

    /// UUID of the pool's filesystem.
    pub fn filesystem_uuid(&self) -> Uuid {
        self.filesystem_uuid
    }

    /// The device that carries the filesystem: a loop device where the source is an image.
    pub fn device(&self) -> &std::path::Path {
        &self.device
    }

    /// What tells the device from every other, whatever its path: the world-wide name or serial
    /// number of the disk. None of a pool in a file, or where the disk has neither.
    pub fn device_identity(&self) -> Option<&str> {
        self.device_identity.as_deref()
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.root.mount_point(&self.home)
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The root of its filesystem, open.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// How many requests its disk has failed since it was opened.
    pub(crate) fn device_errors(&self) -> io::Result<u64> {
        let now = self.system.device_errors(self.disk)?.unwrap_or(0);
        Ok(now.saturating_sub(self.errors_before))
    }

    /// Verifies that this is still the pool: its file is there, its filesystem is mounted in its
    /// place, can be written, and says so itself.
    pub fn check(&self) -> Result<(), Error> {
        let path = self.path();
        let io = |source: io::Error| failed(format!("look at {}", path.display()))(source);
        if let Some(file) = self.file {
            drop(file::check(&self.root, &self.home, file)?);
        }
        let place = Place::open(&*self.system, &path).map_err(io)?;
        let not_mounted = |why: &str| Error::NotMounted {
            path: path.clone(),
            why: why.to_owned(),
        };
        match place.mounted().map_err(io)? {
            Some(mount) if mount.id == self.mount_id => {}
            Some(_) => return Err(not_mounted("something else is mounted there")),
            None => return Err(not_mounted("nothing is mounted there")),
        }
        if has_shut_down(&*self.system, self.directory()) {
            return Err(Error::ShutDown { path });
        }
        if self.space().map_err(io)?.read_only {
            return Err(Error::ReadOnly { path });
        }
        let found = marker::read(&*self.system, self.directory.as_fd(), &path)?;
        if found.as_ref() != Some(&self.marker) {
            return Err(Error::BackingForeign {
                path,
                why: "its marker is not the one that was read before".to_owned(),
            });
        }
        Ok(())
    }

    /// Numbers of the pool's filesystem, now.
    pub fn statistics(&self) -> Result<PoolStatistics, Error> {
        let space = self.space().map_err(failed(format!(
            "ask the space of pool {}",
            self.declaration.name
        )))?;
        Ok(PoolStatistics {
            size: Bytes(space.size),
            empty: self.marker.empty_at(Bytes(space.size)),
            available: Bytes(space.available),
        })
    }

    /// Opens a folder in it.
    pub(crate) fn open_folder(&self, name: &str) -> io::Result<OwnedFd> {
        open::open_folder(&*self.system, self.directory(), self.mount_id, name)
    }

    fn geometry(&self) -> io::Result<XfsGeometry> {
        let geometry = self.system.xfs_geometry(self.directory())?;
        geometry.ok_or_else(|| io::Error::other("it is not an XFS"))
    }

    fn space(&self) -> io::Result<crate::system::Space> {
        self.system.space(self.directory.as_fd())
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.declaration.name)
    }
}
