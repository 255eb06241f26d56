//! Pools: an XFS on a file or a device, mounted beneath [`Root`], that contains the images.
//!
//! *Invariants:* a pool is created only where no data exists; data that is not this pool is never
//! written; and every access goes through the open directory of the mounted filesystem, so that a
//! bare mount point is never written by mistake.

mod adoption;
mod backing;
mod blank;
mod broken;
mod candidate;
mod conflict;
mod device;
mod disks;
mod error;
mod extent_cost;
pub(crate) mod file;
mod filesystem;
mod folder;
mod group;
mod home;
mod host;
mod inspection;
mod known;
mod layers;
mod lock;
pub(crate) mod marker;
mod open;
mod owner;
mod preallocations;
mod record;
mod remove;
mod replaced;
mod resize;

use std::{
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use cistern_types::Bytes;

pub(crate) use self::{
    backing::node,
    broken::has_shut_down,
    disks::{number_of, objection_to_path},
    error::{failed, list},
    inspection::is_certain,
    known::join,
    layers::is_own_file,
    lock::lock,
    record::PoolRecord,
};
pub use self::{
    broken::Broken,
    candidate::{Candidate, Unusable},
    conflict::{Conflict, DirectoryFault, HostFault, NotMounted},
    error::Error,
    group::{GroupError, GroupUnavailable, Unfit},
    owner::{ForeignMarker, Owner},
    record::PoolClaim,
    replaced::ReplacedDisk,
    resize::{PoolFile, Shortage},
};
use self::{extent_cost::ExtentCost, folder::Folder, marker::Marker};
use crate::{
    id::{Uid, Uuid},
    mount_target::MountTarget,
    root::Root,
    system::{DeviceNumber, FileId, System, XfsGeometry, if_there},
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
    /// Former disks of the pool. It is neither adopted nor created on one of them.
    pub replaced: Vec<ReplacedDisk>,
    /// The source of its space.
    pub source: Source,
}

impl PoolDeclaration {
    /// Which pool it is, without the source of its space.
    pub fn claim(&self) -> PoolClaim {
        PoolClaim {
            uid: self.uid.clone(),
            name: self.name.clone(),
            others: self.others.clone(),
            node: self.node.clone(),
            take_over: self.take_over.clone(),
        }
    }
}

/// The source of a pool's space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file of this size.
    Image {
        /// Its size, rounded down to a MiB.
        size: Bytes,
        /// The directory of the host with the file, an absolute path; None beneath [`Root`].
        directory: Option<PathBuf>,
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
    pub(crate) extent_cost: ExtentCost,
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

    /// How often a node has taken over the pool from another one.
    pub fn takeovers(&self) -> u32 {
        self.marker.record.takeovers
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

    /// Mount point of the pool.
    pub fn path(&self) -> PathBuf {
        self.root.mount_point(&self.home)
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The directory with its file, if it has one.
    fn folder(&self) -> Result<Folder, Error> {
        self.root.folder_of(&self.declaration)
    }

    /// The open root directory of its filesystem.
    pub(crate) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Number of requests that its disk has failed since the pool was opened.
    pub(crate) fn device_errors(&self) -> io::Result<u64> {
        let now = self.system.device_errors(self.disk)?.unwrap_or(0);
        Ok(now.saturating_sub(self.errors_before))
    }

    /// Verifies that this is still the pool: its file exists, its filesystem is mounted in its
    /// place and writable, and its marker names the pool. Fails with the first difference.
    pub fn check(&self) -> Result<(), Error> {
        let path = self.path();
        let io = |source: io::Error| failed(format!("inspect {}", path.display()))(source);
        if let Some(file) = self.file {
            drop(file::check(&self.root, &self.folder()?, &self.home, file)?);
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

    /// Reads the sizes of the pool's filesystem. Fails if the filesystem does not report them.
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

    /// Number of the device under the pool's filesystem.
    pub fn device_number(&self) -> DeviceNumber {
        self.disk
    }

    /// Opens a folder in the pool.
    pub(crate) fn open_folder(&self, name: &str) -> io::Result<OwnedFd> {
        filesystem::open_folder(&*self.system, self.directory(), self.mount_id, name)
    }

    /// Opens a folder that only some pools have; none when it does not exist.
    pub(crate) fn open_optional_folder(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        if_there(self.open_folder(name))
    }

    /// Opens a folder that only some pools have, and makes it first if it does not exist.
    pub(crate) fn make_folder(&self, name: &str) -> io::Result<OwnedFd> {
        if let Some(folder) = self.open_optional_folder(name)? {
            return Ok(folder);
        }
        let directory = self.directory();
        self.system
            .make_directory(directory, name.as_ref(), 0o700)?;
        self.system.sync(directory)?;
        self.open_folder(name)
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
