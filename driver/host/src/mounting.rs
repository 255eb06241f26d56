//! Attaches a volume to a pod and detaches it: stage, publish, unpublish, unstage.
//!
//! ```text
//! image ── loop device ── filesystem at the staging path ── bind mount at the target path
//!          (stage)        (stage)                            (publish)
//! ```
//!
//! See [`block`] for raw block volumes.
//!
//! *Invariants:* every step asks the kernel whether it is done already, so that a repeated call
//! finds the work of the first one, even when the pool has failed since. A failed call leaves
//! nothing behind. Unpublish and unstage need neither pool nor image. Symbolic links are never
//! followed. Only empty files and directories are removed.

mod block;
mod difference;
mod encrypted;
mod publish;
mod stage;

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use cistern_types::FilesystemType;

pub use self::{
    block::{BlockPublishRequest, BlockStageRequest},
    difference::{Difference, NotStaged},
};
use crate::{
    base_device::BaseDevice,
    cause::Cause,
    device_nodes,
    encryption::Unlock,
    engine::Engine,
    grow,
    id::Uid,
    image::{self, Image},
    mount_target::MountTarget,
    options::MountOptions,
    root::Root,
    system::{DeviceNumber, Holder, Mount, System, named},
    volume_device::{self, VolumeDevice},
};

/// Result of staging a volume.
#[derive(Debug)]
pub struct Staged {
    /// Whether a thick volume has all of its blocks, and the error if its pool cannot allocate them.
    /// False if that takes longer than a stage may. It works like a thin one then.
    pub allocated: Result<bool, image::Error>,
    /// Why its filesystem is smaller than its image; it works at its current size. None when it
    /// covers the image.
    pub not_grown: Option<grow::Error>,
}

impl Staged {
    /// A volume that lacks nothing.
    fn whole() -> Self {
        Self {
            allocated: Ok(true),
            not_grown: None,
        }
    }
}

/// A request to publish a staged volume.
#[derive(Clone, Debug)]
pub struct PublishRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// The filesystem in it.
    pub filesystem: FilesystemType,
    /// Mount options.
    pub options: &'a MountOptions,
    /// Makes this mount read-only, regardless of the options.
    pub read_only: bool,
    /// Staging path of the volume.
    pub staging: &'a Path,
    /// Target path, which publish creates. Its parent directory exists.
    pub target: &'a Path,
}

/// Why a volume could not be staged, published, unpublished or unstaged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image or its pool cannot be used.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The directory that the caller has to create does not exist.
    #[error("{path} does not exist")]
    PathMissing {
        /// The staging path, or the parent of the target path.
        path: PathBuf,
    },
    /// The volume is not staged at the requested path.
    #[error("the volume is not staged at {path}: {why}")]
    NotStaged {
        /// The staging path.
        path: PathBuf,
        /// What is at the path instead.
        why: NotStaged,
    },
    /// Something else, or the same volume with other options, is mounted at the path.
    #[error("{path} is mounted already, but {difference}")]
    Conflict {
        /// The staging or target path.
        path: PathBuf,
        /// What differs.
        difference: Difference,
    },
    /// A raw block volume is still published, and is not unstaged.
    #[error("the volume is still published at {path}")]
    StillPublished {
        /// The target path, or a path of kubelet for the same pod.
        path: PathBuf,
    },
    /// Something on the node has made devices of the content of a raw block volume, and they hold its device. It is not
    /// unstaged.
    #[error(
        "the volume stays staged at {path}: its device is held by {}, which has to be deactivated on the node",
        named(.holders)
    )]
    Held {
        /// The staging path.
        path: PathBuf,
        /// The devices.
        holders: Vec<Holder>,
    },
    /// Another target path has the device in the other write mode: a raw block volume is read-only
    /// for all pods of a node or for none.
    #[error("a block device is read-only for all pods of a node or for none, and {path} differs")]
    Writability {
        /// A target path with the other write mode.
        path: PathBuf,
    },
    /// The mount at the path is in use.
    #[error("{path} cannot be unmounted: it is in use")]
    Busy {
        /// The staging or target path.
        path: PathBuf,
    },
    /// The file or directory at the path was not made by Cistern and is not removed.
    #[error("{path} cannot be removed")]
    NotRemoved {
        /// The target path.
        path: PathBuf,
        /// The cause: it is not empty, or neither a directory nor a file.
        #[source]
        source: io::Error,
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

fn failed<E: Into<Cause>>(operation: &str, path: &Path) -> impl FnOnce(E) -> Error + use<E> {
    let operation = format!("{operation} {}", path.display());
    |source| Error::Failed {
        operation,
        source: source.into(),
    }
}

impl Root {
    /// Lists the paths at which a whole volume is mounted, or the node of its device, as far as
    /// this process sees: at or below its staging path, and at its target paths. Fails if the
    /// kernel's tables cannot be read.
    pub fn mount_points_of(&self, image: &Uid) -> Result<Vec<PathBuf>, Error> {
        let system = &*self.system;
        let find = || -> io::Result<Vec<PathBuf>> {
            let mut paths = Vec::new();
            for device in volume_device::of(system, image)? {
                let mounts = system.mounts()?.into_iter();
                let whole = mounts.filter(|mount| mount.is_whole(device.number));
                let nodes = device_nodes::nodes_of(system, device.number)?.into_iter();
                paths.extend(whole.chain(nodes).map(|mount| mount.mount_point));
            }
            Ok(paths)
        };
        find().map_err(|source| Error::Failed {
            operation: format!("find the mounts of image {image}"),
            source: source.into(),
        })
    }

    /// Returns the image of the volume that is mounted at or below a staging path, or the node of its device, as far as this
    /// process sees; none if none is. Fails if the kernel's tables cannot be read.
    pub fn staged_image(&self, staging: &Path) -> Result<Option<Uid>, Error> {
        let system = &*self.system;
        let find = || -> io::Result<Option<Uid>> {
            let devices = volume_device::list(system)?;
            let mut mounts = system.mounts()?;
            mounts.retain(|mount| mount.mount_point.starts_with(staging));
            let is_wanted = |number| devices.iter().any(|device| device.number == number);
            let nodes = device_nodes::nodes_among(system, &mounts, is_wanted)?;
            let is_staged = |device: &VolumeDevice| {
                let number = device.number;
                mounts.iter().any(|mount| mount.is_whole(number))
                    || nodes.iter().any(|(node, _)| *node == number)
            };
            let staged = devices.into_iter().find(is_staged);
            Ok(staged.map(|device| device.image))
        };
        find().map_err(failed("inspect", staging))
    }

    /// Unmounts everything at a target path and removes the directory or file at it. Succeeds when
    /// the path does not exist. Fails if a mount is in use, or if what is at the path cannot be
    /// removed.
    pub fn unpublish(&self, target: &Path) -> Result<(), Error> {
        let Some(place) = self.clear(target)? else {
            return Ok(());
        };
        place.remove().map_err(|source| Error::NotRemoved {
            path: target.to_owned(),
            source,
        })
    }

    /// Unmounts everything at a staging path, device nodes included. Its directory stays: the
    /// caller made it. The unmount syncs the filesystem, and the loop device detaches from its file
    /// unless another mount namespace holds it. Fails if a mount is in use, or if a raw block
    /// volume is still published or held by a device that the node has made of its content.
    pub fn unstage(&self, staging: &Path) -> Result<(), Error> {
        let Some(place) = self.clear(staging)? else {
            return Ok(());
        };
        if place.is_directory().map_err(failed("inspect", staging))? {
            block::unstage(&*self.system, staging)?;
        }
        Ok(())
    }

    /// Unmounts everything at a path; none when its parent does not exist.
    fn clear(&self, path: &Path) -> Result<Option<MountTarget<'_>>, Error> {
        let place = match MountTarget::open(&*self.system, path) {
            Ok(place) => place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("inspect", path)(error)),
        };
        match place.clear() {
            Ok(()) => Ok(Some(place)),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(Error::Busy {
                path: path.to_owned(),
            }),
            Err(error) => Err(failed("unmount", path)(error)),
        }
    }
}

impl dyn Engine + '_ {
    /// Opens the data of a volume, if it belongs to the PoolVolume.
    fn own(&self, uid: &Uid, volume: &str) -> Result<(OwnedFd, Image), image::Error> {
        let (data, image) = self.open(uid)?;
        image.verify_owner(volume, self.pool_uuid(), self)?;
        Ok((data, image))
    }

    /// As `own`; none for an encrypted volume, which is not left open: an open device counts as in use.
    fn own_plain(&self, uid: &Uid, volume: &str) -> Result<Option<(OwnedFd, Image)>, image::Error> {
        let own = self.own(uid, volume)?;
        Ok(own.1.encryption().is_none().then_some(own))
    }

    /// Opens the data of an encrypted volume, if it belongs to the PoolVolume, and completes it.
    fn own_complete(
        &self,
        uid: &Uid,
        volume: &str,
        unlock: Unlock<'_>,
    ) -> Result<(OwnedFd, Image), image::Error> {
        self.complete(uid, volume, unlock)?;
        // Another file has its name now if it was not complete.
        self.own(uid, volume)
    }

    /// Verifies the base device of an earlier call.
    fn verified(&self, base: BaseDevice, uid: &Uid) -> Result<BaseDevice, image::Error> {
        let verified = base.verified(self.system());
        verified.map_err(image::failed("bind the file", uid))
    }
}

/// What opens an encrypted image. Fails with [`image::Error::KeyNeeded`] if a request has no key.
fn unlock_of<'a>(unlock: Option<Unlock<'a>>, uid: &Uid) -> Result<Unlock<'a>, image::Error> {
    unlock.ok_or_else(|| image::Error::KeyNeeded { uid: uid.clone() })
}

/// Opens a path. Fails with [`Error::PathMissing`] if it does not exist.
fn open<'a>(system: &'a dyn System, path: &Path) -> Result<MountTarget<'a>, Error> {
    let place = open_parent(system, path)?;
    match place.find().map_err(failed("inspect", path))? {
        Some(_) => Ok(place),
        None => Err(Error::PathMissing {
            path: path.to_owned(),
        }),
    }
}

/// Opens a path. Fails with [`Error::PathMissing`] if its parent does not exist.
fn open_parent<'a>(system: &'a dyn System, path: &Path) -> Result<MountTarget<'a>, Error> {
    MountTarget::open(system, path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            let path = path.parent().unwrap_or(path).to_owned();
            return Error::PathMissing { path };
        }
        failed("inspect", path)(error)
    })
}

/// Returns the device of a mount of a whole volume; none when something else is mounted.
fn device_of(system: &dyn System, mount: &Mount, image: &Uid) -> io::Result<Option<DeviceNumber>> {
    let is_it = volume_device::belongs_to(system, mount.device, image)?;
    Ok((is_it && mount.is_whole(mount.device)).then_some(mount.device))
}
