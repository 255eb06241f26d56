//! Grows the devices and the filesystem of a volume that has become larger.
//!
//! ```text
//! image, logical volume ── loop device, mapping ── filesystem
//! (Engine::grow)           (expand)                (expand: mounted; stage: before or after it is mounted)
//! ```
//!
//! *Invariants:* the size is read from the filesystem itself, so that the next call continues an
//! interrupted growth. A filesystem that cannot grow keeps working at its old size. No image is
//! bound to a loop device while a tool of an earlier call still works on it.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
};

use cistern_types::{Bytes, FilesystemType};
use rustix::io::Errno;

use crate::{
    attached::{Attached, size_of},
    cause::Cause,
    check::{self, Checking},
    encryption::Keys,
    engine::Engine,
    id::Uid,
    image::{self, Image},
    mount_target::MountTarget,
    resize::{ext4, grow_xfs, is_full},
    stage_request::StageRequest,
    superblock,
    system::{OFlags, System},
};

/// A request to expand a volume in use to the size of its image.
#[derive(Clone, Debug)]
pub struct ExpandRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// The filesystem in it; none for block access.
    pub filesystem: Option<FilesystemType>,
    /// Staging or target path of the volume.
    pub path: &'a Path,
    /// Smallest size of the volume that the caller accepts: `required_bytes` of the request, 0 if it has none.
    pub required: Bytes,
    /// Largest acceptable size; none for no limit.
    pub limit: Option<Bytes>,
    /// The keys of an encrypted volume; none if the request has none.
    pub keys: Option<&'a Keys>,
}

/// Why a volume in use could not be expanded to the size of its image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image or its pool cannot be used.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The volume is not staged or published at the path.
    #[error("volume {image} is not at {path}")]
    NotThere {
        /// Name of the image.
        image: Uid,
        /// Staging or target path in the request.
        path: PathBuf,
    },
    /// The size of the image is outside the requested range.
    #[error("image {image} has {size}, which is not in the requested range")]
    OutOfRange {
        /// Name of the image.
        image: Uid,
        /// Size of the image.
        size: Bytes,
    },
    /// The mount is read-only.
    #[error("{path} is read-only: the filesystem grows when the volume is staged for writing")]
    ReadOnly {
        /// Path of the mount.
        path: PathBuf,
    },
    /// The kernel does not let this process grow the filesystem while it is mounted.
    #[error(
        "a mounted {filesystem} cannot grow on this node, where the driver lacks CAP_SYS_RESOURCE: it keeps its old \
         size and grows when the volume is staged again, after its last pod here has ended"
    )]
    OnlyUnmounted {
        /// Type of the filesystem.
        filesystem: FilesystemType,
    },
    /// The tools that grow an unmounted filesystem need more memory or processor time than they may
    /// use.
    #[error(
        "the filesystem of image {image} is too large to grow here while it is not mounted ({report}): it keeps its \
         old size, and grows where the kernel lets a mounted one grow"
    )]
    TooLarge {
        /// Name of the image.
        image: Uid,
        /// Output of the tool.
        report: String,
    },
    /// The image is encrypted, and its mapping grows only with a key.
    #[error(
        "image {image} is encrypted, and the request has no key: the volume keeps its old size, and grows when it is \
         staged again, or when the StorageClass names its Secret in csi.storage.k8s.io/node-expand-secret-name and \
         -namespace"
    )]
    KeyNeeded {
        /// Name of the image.
        image: Uid,
    },
    /// A step failed.
    #[error("could not {operation} of image {image}")]
    Failed {
        /// What was tried.
        operation: &'static str,
        /// Name of the image.
        image: Uid,
        /// Why it failed.
        #[source]
        source: Cause,
    },
}

fn failed<E: Into<Cause>>(
    operation: &'static str,
    image: &Uid,
) -> impl FnOnce(E) -> Error + use<E> {
    let image = image.clone();
    move |source| Error::Failed {
        operation,
        image,
        source: source.into(),
    }
}

impl Error {
    /// Whether the filesystem stays smaller than its image.
    pub fn leaves_it_smaller(&self) -> bool {
        match self {
            Self::ReadOnly { .. }
            | Self::OnlyUnmounted { .. }
            | Self::TooLarge { .. }
            | Self::KeyNeeded { .. }
            | Self::Image(image::Error::WrongKey { .. })
            | Self::Failed { .. } => true,
            Self::Image(_) | Self::NotThere { .. } | Self::OutOfRange { .. } => false,
        }
    }
}

impl dyn Engine + '_ {
    /// Expands a volume in use to the size of its image: the loop device, and the filesystem on it.
    /// Returns the new size. A repeated call changes nothing (NEV-08, NEV-15). Fails if the image
    /// or its pool cannot be used, if the volume is not at the path, if the size of the image is
    /// outside the requested range, or if the device or the filesystem does not grow.
    pub fn expand(&self, request: &ExpandRequest<'_>) -> Result<Bytes, Error> {
        self.check().map_err(image::Error::from)?;
        let (system, uid) = (self.system(), request.image);
        let (data, Image { size, .. }) = self.open(uid)?;
        let base = self.base(data.as_fd(), uid)?;
        let base = base.ok_or_else(|| not_there(request))?;
        let attached =
            Attached::over(system, base, uid).map_err(failed("find the mapping", uid))?;
        let place = self.place_of(request, &attached)?;
        if size < request.required || request.limit.is_some_and(|limit| size > limit) {
            let image = uid.clone();
            return Err(Error::OutOfRange { image, size });
        }
        self.fit(&attached, uid, request.keys)?;
        if let Some(filesystem) = request.filesystem {
            grow_mounted(system, &place, attached.as_fd(), uid, filesystem, size)?;
        }
        Ok(size)
    }

    /// Grows the devices of an image to its size, and returns the size of the volume.
    pub(crate) fn fit(
        &self,
        attached: &Attached,
        uid: &Uid,
        keys: Option<&Keys>,
    ) -> Result<Bytes, Error> {
        let system = self.system();
        let (_, image) = self.open(uid)?;
        attached
            .base()
            .fit(system, image.file_size().0)
            .map_err(failed("resize the loop device", uid))?;
        let Some(mapping) = attached.mapping() else {
            return Ok(image.size);
        };
        let mapped = system.device_size(mapping.as_fd());
        if mapped.map_err(failed("read the size of the mapping", uid))? < image.size.0 {
            let keys = keys.ok_or_else(|| Error::KeyNeeded { image: uid.clone() })?;
            let is_open = mapping.resize(system, keys);
            if !is_open.map_err(failed("resize the mapping", uid))? {
                return Err(image::Error::WrongKey { uid: uid.clone() }.into());
            }
        }
        Ok(image.size)
    }

    /// Returns the place of the request, if the volume is mounted there.
    fn place_of(
        &self,
        request: &ExpandRequest<'_>,
        attached: &Attached,
    ) -> Result<MountTarget<'_>, Error> {
        let failed = |source: io::Error| {
            if is_nowhere(&source) {
                not_there(request)
            } else {
                failed("inspect the path", request.image)(source)
            }
        };
        let place = MountTarget::open(self.system(), request.path).map_err(failed)?;
        let is_there = match request.filesystem {
            Some(_) => place
                .mounted()
                .map_err(failed)?
                .is_some_and(|mount| mount.is_whole(attached.number())),
            None => self.is_device(request, &place, attached).map_err(failed)?,
        };
        if is_there {
            Ok(place)
        } else {
            Err(not_there(request))
        }
    }

    /// Whether the device node is at the place (a target path), or in the directory there (a
    /// staging path).
    fn is_device(
        &self,
        request: &ExpandRequest<'_>,
        place: &MountTarget<'_>,
        attached: &Attached,
    ) -> io::Result<bool> {
        let system = self.system();
        let device = if place.is_directory()? {
            MountTarget::open(system, &request.path.join(request.image.as_str()))?.device()?
        } else {
            place.device()?
        };
        Ok(device == Some(attached.number()))
    }

    /// Prepares the filesystem of a volume that nothing uses: checks it on request, and grows an ext4, which always works
    /// unmounted. The data is locked, or is the device over locked data. The outer error means that the volume must not
    /// be attached now; the inner one that the filesystem did not grow.
    pub(crate) fn prepare_unused(
        &self,
        data: BorrowedFd<'_>,
        request: &StageRequest<'_>,
    ) -> Result<Result<(), Error>, image::Error> {
        let (system, uid) = (self.system(), request.image);
        let found =
            superblock::read(system, data).map_err(image::failed("read the filesystem", uid))?;
        if let Some(found) = found.filter(|found| found.wants_check) {
            let progress = match request.checking {
                Checking::Now(progress) => progress,
                Checking::Later | Checking::Without if found.wants_full_check => {
                    return Err(image::Error::CheckNeeded { uid: uid.clone() });
                }
                Checking::Later | Checking::Without => &|_| {},
            };
            let checked = check::ext4(system, data, check::Extent::AsNeeded, progress);
            checked.map_err(|error| match error {
                check::Error::Damaged { report } => damaged(uid, request.filesystem, report),
                check::Error::TooLarge { report } => image::Error::TooLargeToCheck {
                    uid: uid.clone(),
                    report,
                },
                check::Error::Failed(source) => image::failed("check the filesystem", uid)(source),
            })?;
        }
        match request.filesystem {
            FilesystemType::Ext4 if !request.read_only => self.grow_unused(data, request),
            // XFS and btrfs grow only while they are mounted.
            FilesystemType::Ext4 | FilesystemType::Xfs | FilesystemType::Btrfs => Ok(Ok(())),
        }
    }

    /// Grows the ext4 of a volume that nothing uses.
    fn grow_unused(
        &self,
        data: BorrowedFd<'_>,
        request: &StageRequest<'_>,
    ) -> Result<Result<(), Error>, image::Error> {
        let (system, uid) = (self.system(), request.image);
        let is_full =
            size_of(system, data).and_then(|size| ext4::is_full(system, data, Bytes(size)));
        let progress = match (is_full, request.checking) {
            (Err(error), _) => return Ok(Err(failed("grow the filesystem", uid)(error))),
            (Ok(true), _) | (Ok(false), Checking::Without) => return Ok(Ok(())),
            (Ok(false), Checking::Later) => {
                return Err(image::Error::CheckNeeded { uid: uid.clone() });
            }
            (Ok(false), Checking::Now(progress)) => progress,
        };
        match ext4::grow_unmounted(system, data, progress) {
            Ok(()) => Ok(Ok(())),
            Err(check::Error::Damaged { report }) => Err(damaged(uid, request.filesystem, report)),
            Err(check::Error::TooLarge { report }) => {
                let image = uid.clone();
                Ok(Err(Error::TooLarge { image, report }))
            }
            Err(check::Error::Failed(source)) => {
                Ok(Err(failed("grow the filesystem", uid)(source)))
            }
        }
    }
}

fn damaged(uid: &Uid, filesystem: FilesystemType, report: String) -> image::Error {
    image::Error::Damaged {
        uid: uid.clone(),
        filesystem,
        report,
    }
}

/// Whether a kernel error means that the path does not exist.
fn is_nowhere(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG)
    )
}

fn not_there(request: &ExpandRequest<'_>) -> Error {
    Error::NotThere {
        image: request.image.clone(),
        path: request.path.to_owned(),
    }
}

/// Grows the filesystem on a device, open for reading, that is mounted at a place to the size of the device.
pub(crate) fn grow_mounted(
    system: &dyn System,
    place: &MountTarget<'_>,
    device: BorrowedFd<'_>,
    uid: &Uid,
    filesystem: FilesystemType,
    size: Bytes,
) -> Result<(), Error> {
    let not_there = || Error::NotThere {
        image: uid.clone(),
        path: place.path().to_owned(),
    };
    let unreadable = |source: io::Error| failed("inspect the filesystem", uid)(source);
    let mount = place.mounted().map_err(unreadable)?.ok_or_else(not_there)?;
    let inside = system
        .open(place.path(), OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(unreadable)?;
    if system.mount_id(inside.as_fd()).map_err(unreadable)? != mount.id {
        return Err(not_there());
    }
    if is_full(system, inside.as_fd(), device, filesystem, size).map_err(unreadable)? {
        return Ok(());
    }
    let is_read_only = |options: &[String]| options.iter().any(|option| option == "ro");
    if is_read_only(&mount.mount_options) || is_read_only(&mount.filesystem_options) {
        let path = place.path().to_owned();
        return Err(Error::ReadOnly { path });
    }
    let grown = match filesystem {
        FilesystemType::Ext4 => system.grow_ext4(inside.as_fd(), ext4::blocks(size)),
        FilesystemType::Xfs => grow_xfs(system, inside.as_fd(), size),
        FilesystemType::Btrfs => system.grow_btrfs(inside.as_fd()),
    };
    match grown {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::OnlyUnmounted { filesystem })
        }
        result => result.map_err(failed("grow the filesystem", uid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_whose_key_is_missing_or_wrong_stays_smaller_and_one_at_another_path_is_not_known() {
        let image = || "uid-1".parse::<Uid>().unwrap();
        let key_needed = Error::KeyNeeded { image: image() };
        assert!(key_needed.leaves_it_smaller());
        let wrong_key = Error::from(image::Error::WrongKey { uid: image() });
        assert!(wrong_key.leaves_it_smaller());
        let missing = Error::from(image::Error::Missing {
            uid: image(),
            pool: "fast".into(),
        });
        assert!(!missing.leaves_it_smaller());
        let path = "/path".into();
        let image = image();
        assert!(!Error::NotThere { image, path }.leaves_it_smaller());
    }
}
