//! Giving a volume to a pod: stage, publish, and back.
//!
//! ```text
//! image ── loop device ── filesystem at the staging path ── bind mount at the target path
//!          (stage)        (stage)                            (publish)
//! ```
//!
//! Raw block volumes go their way in [`block`].
//!
//! *Invariants:* every step asks the kernel whether it is done, so that a repeated call finds the
//! first one's work, whatever has become of the pool since; whatever fails leaves nothing behind;
//! the way back needs neither pool nor image; a path is never followed through a symbolic link; and
//! only what holds no data is removed.

pub(crate) mod block;
mod publish;
mod stage;

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use cistern_crds::{Bytes, FilesystemType, Provisioning};

pub use self::block::{BlockPublishRequest, BlockStageRequest};
use crate::{
    cause::Cause,
    check::Checking,
    grow,
    id::{Uid, Uuid},
    image::{self, Image},
    loopdev,
    mountinfo::Mount,
    options::{self, MountOptions},
    place::Place,
    pool::Pool,
    root::Root,
    system::{BoundLoop, DeviceNumber, System},
};

/// A volume with a filesystem that is to be staged.
#[derive(Clone, Debug)]
pub struct StageRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// Name of the PoolVolume.
    pub volume: &'a str,
    /// The filesystem in it.
    pub filesystem: FilesystemType,
    /// The filesystem's UUID.
    pub filesystem_uuid: Uuid,
    /// Size of the volume: the image may be larger, if its growth was cut short, but not smaller.
    pub size: Bytes,
    /// Whether it is allocated in full.
    pub provisioning: Provisioning,
    /// Mount options.
    pub options: &'a MountOptions,
    /// Whether nothing may be written, whatever the options say.
    pub read_only: bool,
    /// Whether its filesystem may be checked in full, and grown before it is mounted, in this call.
    pub checking: Checking<'a>,
    /// An existing directory.
    pub staging: &'a Path,
}

/// A volume that was staged.
#[derive(Debug, Default)]
pub struct Staged {
    /// Why a thick volume may lack blocks, where that is so: it works as a thin one does.
    pub not_refilled: Option<image::Error>,
    /// Why its filesystem does not have all of its image, where that is so. It works at the size
    /// that it has.
    pub not_grown: Option<grow::Error>,
}

/// A staged volume that is to be published.
#[derive(Clone, Debug)]
pub struct PublishRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// The filesystem in it.
    pub filesystem: FilesystemType,
    /// Whether it is allocated in full.
    pub provisioning: Provisioning,
    /// Mount options.
    pub options: &'a MountOptions,
    /// Whether nothing may be written through this mount, whatever the options say.
    pub read_only: bool,
    /// Where it is staged.
    pub staging: &'a Path,
    /// Where it is to appear: made here. Its parent directory exists.
    pub target: &'a Path,
}

/// Why a volume could not be given to a pod, or taken back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image or its pool cannot be used.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The directory that the caller has to make is not there.
    #[error("{path} is not there")]
    PathMissing {
        /// The staging path, or the parent of the target path.
        path: PathBuf,
    },
    /// The volume is not staged at the path that was named.
    #[error("the volume is not staged at {path}: {why}")]
    NotStaged {
        /// The staging path.
        path: PathBuf,
        /// What is there.
        why: String,
    },
    /// Something else, or the same in another way, is mounted at the path.
    #[error("{path} is mounted already, but {why}")]
    Conflict {
        /// The staging or target path.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// A raw block volume that a pod still has is not unstaged.
    #[error("the volume is still published at {path}")]
    StillPublished {
        /// The target path, or one of kubelet's for the same pod.
        path: PathBuf,
    },
    /// A raw block volume is read-only for all who have it or for none.
    #[error(
        "a block device is read-only for all pods of a node or for none, and it is otherwise at {path}"
    )]
    Writability {
        /// Another target path.
        path: PathBuf,
    },
    /// Somebody uses what is mounted at the path.
    #[error("{path} cannot be unmounted: it is in use")]
    Busy {
        /// The staging or target path.
        path: PathBuf,
    },
    /// What stands at the path was not made by us and is not removed.
    #[error("{path} cannot be removed")]
    NotRemoved {
        /// The target path.
        path: PathBuf,
        /// Why: it is not empty, or neither a directory nor a file.
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
    /// Where the whole of a volume is mounted, or its device's node is, as far as this process sees:
    /// at or below its staging path, and at its target paths.
    pub fn mount_points_of(&self, image: &Uid) -> Result<Vec<PathBuf>, Error> {
        let system = &*self.system;
        let look = || -> io::Result<Vec<PathBuf>> {
            let is_it =
                |bound: &BoundLoop| loopdev::image_of(&bound.backing_file).as_ref() == Some(image);
            let mut paths = Vec::new();
            for bound in system.bound_loops()?.into_iter().filter(is_it) {
                let device = DeviceNumber::of_loop(bound.number);
                let mounts = system.mounts()?.into_iter();
                // Parts of it are what kubelet makes of a published volume (subPath).
                let whole =
                    mounts.filter(|mount| mount.device == device && mount.root == Path::new("/"));
                let nodes = block::nodes_of(system, bound.number)?.into_iter();
                paths.extend(whole.chain(nodes).map(|mount| mount.mount_point));
            }
            Ok(paths)
        };
        look().map_err(|source| Error::Failed {
            operation: format!("look where image {image} is mounted"),
            source: source.into(),
        })
    }

    /// Takes every mount off a target path and removes the directory or file at it. A path that is
    /// not there is no error.
    pub fn unpublish(&self, target: &Path) -> Result<(), Error> {
        let Some(place) = self.clear(target)? else {
            return Ok(());
        };
        place.remove().map_err(|source| Error::NotRemoved {
            path: target.to_owned(),
            source,
        })
    }

    /// Takes every mount and every node of a device off a staging path. Its directory stays: the
    /// caller made it. What was mounted is written out, and the loop device lets go of its file
    /// unless another mount namespace holds it.
    pub fn unstage(&self, staging: &Path) -> Result<(), Error> {
        let Some(place) = self.clear(staging)? else {
            return Ok(());
        };
        if place.is_directory().map_err(failed("look at", staging))? {
            block::unstage(&*self.system, staging)?;
        }
        Ok(())
    }

    /// Takes every mount off a path; none when not even its parent is there.
    fn clear(&self, path: &Path) -> Result<Option<Place<'_>>, Error> {
        let place = match Place::open(&*self.system, path) {
            Ok(place) => place,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("look at", path)(error)),
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

impl Pool {
    /// An image, if it is the volume's.
    fn own_image(&self, uid: &Uid, volume: &str) -> Result<(OwnedFd, Image), Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let image = self.image(uid)?.ok_or_else(|| self.missing(uid))?;
        let is_ours = image.identity.as_ref().is_some_and(|found| {
            found.owner.volume() == Some(volume) && found.pool_uuid == self.filesystem_uuid()
        });
        if is_ours {
            return Ok((file, image));
        }
        Err(image::Error::IdentityConflict {
            uid: uid.clone(),
            why: format!("it is not volume {volume} of pool {self}"),
        }
        .into())
    }
}

/// The place at a path whose directory exists.
fn open<'a>(system: &'a dyn System, path: &Path) -> Result<Place<'a>, Error> {
    let place = open_parent(system, path)?;
    match place.look().map_err(failed("look at", path))? {
        Some(_) => Ok(place),
        None => Err(Error::PathMissing {
            path: path.to_owned(),
        }),
    }
}

/// The place at a path whose parent exists.
fn open_parent<'a>(system: &'a dyn System, path: &Path) -> Result<Place<'a>, Error> {
    Place::open(system, path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            let path = path.parent().unwrap_or(path).to_owned();
            return Error::PathMissing { path };
        }
        failed("look at", path)(error)
    })
}

fn conflict(mount: &Mount, difference: Option<&str>) -> Result<(), Error> {
    difference.map_or(Ok(()), |why| {
        Err(Error::Conflict {
            path: mount.mount_point.clone(),
            why: why.to_owned(),
        })
    })
}

fn is_volume(mount: &Mount, device: DeviceNumber) -> Option<&'static str> {
    (mount.device != device || mount.root != Path::new("/")).then_some("it is not this volume")
}

/// The loop device that the whole of a volume is mounted from; none when the mount is of something
/// else.
fn device_of(system: &dyn System, mount: &Mount, image: &Uid) -> io::Result<Option<DeviceNumber>> {
    match mount.device.as_loop() {
        Some(number) if loopdev::has_image(system, number, image)? => {
            Ok(is_volume(mount, mount.device)
                .is_none()
                .then_some(mount.device))
        }
        Some(_) | None => Ok(None),
    }
}

fn difference(
    mount: &Mount,
    filesystem: FilesystemType,
    provisioning: Provisioning,
    options: &MountOptions,
) -> Option<&'static str> {
    if mount.filesystem != filesystem.as_str() {
        return Some("with another filesystem");
    }
    let is_same = options.match_filesystem(filesystem, provisioning, mount);
    (!is_same).then_some("with other filesystem options")
}

fn has_attributes(mount: &Mount, options: &MountOptions, read_only: bool) -> Option<&'static str> {
    let is_same = options::attributes_of(mount) == options.attributes(read_only);
    (!is_same).then_some("with other mount options, or not as writable as asked for")
}
