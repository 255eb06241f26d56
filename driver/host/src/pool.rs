//! Pools: an XFS on a file or a device, mounted beneath [`Root`], that contains the images.
//!
//! *Invariants:* a pool is created only where no data exists; data that is not this pool is never
//! written; and every access goes through the open directory of the mounted filesystem, so that a
//! bare mount point is never written by mistake.

mod blank;
mod broken;
mod candidate;
mod conflict;
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

use cistern_types::Bytes;

pub(crate) use self::broken::has_shut_down;
use self::marker::Marker;
pub use self::{
    broken::Broken,
    candidate::{Candidate, Unusable},
    conflict::{Conflict, HostFault, NotMounted},
    owner::{ForeignMarker, Owner},
    resize::{PoolFile, Shortage},
};
use crate::{
    cause::Cause,
    id::{Uid, Uuid},
    mount_target::MountTarget,
    root::Root,
    system::{DeviceNumber, FileId, System, XfsGeometry},
};

/// The file in a pool that the health probe writes and reads back: see `health/probe.rs`.
pub(crate) const PROBE: &str = ".cistern-probe";

/// The desired state of a pool on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDeclaration {
    /// UID of the StoragePool.
    pub uid: Uid,
    /// Name of the StoragePool. A pool whose marker has this name and another UID was this pool before
    /// the cluster was restored, unless that UID is one of `others`.
    pub name: String,
    /// UIDs of the other pools of this host.
    pub others: Vec<Uid>,
    /// The node that runs on this host.
    pub node: Owner,
    /// The pool of another node that this node may take over, exactly as its marker states it.
    pub take_over: Option<ForeignMarker>,
    /// The source of its space.
    pub source: Source,
}

/// The source of a pool's space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file beneath [`Root`] of this size.
    Image {
        /// Its size, rounded down to a MiB.
        size: Bytes,
    },
    /// The listed device that holds the pool, or else the first blank one.
    Device {
        /// Absolute paths; symbolic links are followed.
        paths: Vec<PathBuf>,
        /// [`Pool::device_identity`] when the pool was last used. A device of this identity is a
        /// candidate, too, regardless of its path.
        identity: Option<String>,
    },
}

/// What is known about a pool before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The pool is new, and may be created where no data exists.
    New,
    /// The pool was created before, and is never created again.
    Known {
        /// UUID of its filesystem.
        filesystem_uuid: Uuid,
    },
    /// As [`Self::Known`], but its UUID is not recorded: the pool is found by its marker, and is never
    /// created again.
    Made,
}

/// Why a pool cannot be used. Each maps to one reason of the pool's condition.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file or device of a pool that was created before is missing.
    #[error("{what} is missing: the pool was created before and is not created again; restore it")]
    BackingMissing {
        /// File or devices.
        what: String,
    },
    /// The file or device holds something other than this pool.
    #[error("{path} is not this pool: {why}; it is not changed")]
    BackingConflict {
        /// File, device or mount point.
        path: PathBuf,
        /// What was found.
        why: Conflict,
    },
    /// The pool belongs to another node, which may be using it.
    #[error(
        "the pool on {path} belongs to node {}, as its marker says, and is not used here: two machines that write to one disk destroy it", .foreign.owner
    )]
    OtherNode {
        /// File, device or mount point.
        path: PathBuf,
        /// The content of the pool's marker.
        foreign: Box<ForeignMarker>,
    },
    /// Several candidates claim to be this pool, or one cannot be verified.
    #[error(
        "more than one may be pool {name}, or one cannot be verified, so none is used and none is created: {}; move away those that are not the pool", list(.found)
    )]
    Ambiguous {
        /// Name of the pool.
        name: String,
        /// Each candidate and what is known about it.
        found: Vec<(PathBuf, Candidate)>,
    },
    /// No listed device is blank or holds the pool.
    #[error("no listed device can be used: {}", list(.devices))]
    NoUsableDevice {
        /// Each device and why it cannot be used.
        devices: Vec<(PathBuf, Unusable)>,
    },
    /// The pool is not mounted, or something else is mounted in its place.
    #[error("{path} is not the mounted pool: {why}")]
    NotMounted {
        /// The mount point.
        path: PathBuf,
        /// What was found there.
        why: NotMounted,
    },
    /// The pool's filesystem is read-only.
    #[error(
        "the filesystem at {path} is read-only: the kernel log says why, and it stays so until it is mounted again"
    )]
    ReadOnly {
        /// The mount point.
        path: PathBuf,
    },
    /// The filesystem has shut down after an error.
    #[error(
        "the filesystem at {path} has shut itself down after an error: the kernel log says which, and it stays so until it is mounted again"
    )]
    ShutDown {
        /// The mount point.
        path: PathBuf,
    },
    /// The filesystem must be mounted again, which is not possible while it is in use.
    #[error(
        "the filesystem at {path} {state} and is mounted again once nothing uses it: {}", users(.images)
    )]
    InUse {
        /// The mount point.
        path: PathBuf,
        /// Why it must be mounted again.
        state: Broken,
        /// Names of the images that are attached.
        images: Vec<Uid>,
    },
    /// The pool's file would leave too little room on the filesystem of the host.
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
        /// Percentage of the filesystem that stays free, so that kubelet evicts no pods.
        kept_percent: u32,
    },
    /// The filesystem of the host cannot reserve space for the pool's file, or has no direct I/O.
    #[error(
        "{path} cannot be created: its filesystem is {filesystem}, which {why}; put that folder on ext4, XFS or btrfs"
    )]
    HostFilesystemUnfit {
        /// The file.
        path: PathBuf,
        /// Type of the filesystem.
        filesystem: String,
        /// The missing feature.
        why: HostFault,
    },
    /// The pool to remove still holds images, or files that are not Cistern's.
    #[error(
        "{count} images or other files remain in {path}: delete their volumes first, and move away what is not Cistern's"
    )]
    ImagesRemain {
        /// The mount point.
        path: PathBuf,
        /// Number of images and files.
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
        return "another process still has it open".to_owned();
    }
    let names: Vec<&str> = images.iter().map(Uid::as_str).collect();
    format!(
        "delete the pods whose volumes have the images {}",
        names.join(", ")
    )
}

fn list(devices: &[(PathBuf, impl fmt::Display)]) -> String {
    let line = |(path, why): &(PathBuf, _)| format!("{}: {why}", path.display());
    devices.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Sizes of a pool's filesystem, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStatistics {
    /// Size of the filesystem.
    pub size: Bytes,
    /// Free space of the empty filesystem at its present size: the most that can be reserved for
    /// volumes.
    pub empty: Bytes,
    /// Free space now (`f_bavail`).
    pub available: Bytes,
}

/// A mounted pool with a verified identity.
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
    /// The disk under the pool, and the number of its failed requests when the pool was opened.
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

    /// The device with the filesystem: a loop device if the source is an image.
    pub fn device(&self) -> &std::path::Path {
        &self.device
    }

    /// Stable identity of the device, independent of its path: the world-wide name or serial number of
    /// the disk. None for a pool in a file, or if the disk has neither.
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

    /// Number of requests that its disk has failed since the pool was opened.
    pub(crate) fn device_errors(&self) -> io::Result<u64> {
        let now = self.system.device_errors(self.disk)?.unwrap_or(0);
        Ok(now.saturating_sub(self.errors_before))
    }

    /// Verifies that this is still the pool: its file exists, its filesystem is mounted in its place
    /// and writable, and its marker names the pool.
    pub fn check(&self) -> Result<(), Error> {
        let path = self.path();
        let io = |source: io::Error| failed(format!("inspect {}", path.display()))(source);
        if let Some(file) = self.file {
            drop(file::check(&self.root, &self.home, file)?);
        }
        let place = MountTarget::open(&*self.system, &path).map_err(io)?;
        let not_mounted = |why| Error::NotMounted {
            path: path.clone(),
            why,
        };
        match place.mounted().map_err(io)? {
            Some(mount) if mount.id == self.mount_id => {}
            Some(_) => return Err(not_mounted(NotMounted::OtherMount)),
            None => return Err(not_mounted(NotMounted::Nothing)),
        }
        if has_shut_down(&*self.system, self.directory()) {
            return Err(Error::ShutDown { path });
        }
        if self.space().map_err(io)?.read_only {
            return Err(Error::ReadOnly { path });
        }
        let found = marker::read(&*self.system, self.directory.as_fd(), &path)?;
        if found.as_ref() != Some(&self.marker) {
            return Err(Error::BackingConflict {
                path,
                why: Conflict::MarkerChanged,
            });
        }
        Ok(())
    }

    /// Reads the sizes of the pool's filesystem.
    pub fn statistics(&self) -> Result<PoolStatistics, Error> {
        let space = self.space().map_err(failed(format!(
            "read the free space of pool {}",
            self.declaration.name
        )))?;
        Ok(PoolStatistics {
            size: Bytes(space.size),
            empty: self.marker.empty_at(Bytes(space.size)),
            available: Bytes(space.available),
        })
    }

    /// Opens a folder in the pool.
    pub(crate) fn open_folder(&self, name: &str) -> io::Result<OwnedFd> {
        open::open_folder(&*self.system, self.directory(), self.mount_id, name)
    }

    /// Free space of the pool's filesystem.
    pub(crate) fn available(&self) -> io::Result<Bytes> {
        Ok(Bytes(self.space()?.available))
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
