//! Problems of pools and volumes. Each is displayed as one clause.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_types::{Bytes, FilesystemType};

use crate::{
    cause::Cause,
    command,
    id::{Uid, Uuid},
    image::Owner,
    pool::{self, GroupError},
};

/// A problem of a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolTrouble {
    /// Its disk does not answer.
    #[error("its disk has not answered for {} s", .after.as_secs_f32())]
    Hung {
        /// The deadline that has passed.
        after: Duration,
    },
    /// Its file or device is missing.
    #[error("{what} is missing")]
    BackingMissing {
        /// Path of the file, or paths of the devices.
        what: String,
    },
    /// Its file, or the mounted filesystem, is no longer the pool's.
    #[error("{path} is not this pool: {why}")]
    BackingConflict {
        /// File or mount point.
        path: PathBuf,
        /// How it differs from the pool.
        why: pool::Conflict,
    },
    /// It is not mounted, or something else is mounted in its place.
    #[error("{path} is not the mounted pool: {why}")]
    NotMounted {
        /// The mount point.
        path: PathBuf,
        /// What was found there.
        why: pool::NotMounted,
    },
    /// Its XFS has shut down after an error: it can be neither read nor written until it is mounted
    /// again, which [`Root::open_pool`](crate::Root::open_pool) does as soon as nothing uses it.
    #[error("its filesystem has shut itself down after an error")]
    ShutDown,
    /// It is mounted read-only.
    #[error("its filesystem is read-only")]
    ReadOnly,
    /// An access to its probe file or a query of its filesystem failed.
    #[error("could not {operation}: {error}")]
    Failed {
        /// What was tried.
        operation: String,
        /// Why it failed.
        error: String,
    },
    /// The block that was written and synced is not the one that is read: its disk loses data.
    #[error("what was written to {path} and synced is not what is read there")]
    NotReadBack {
        /// The probe file.
        path: PathBuf,
    },
    /// Parts of its file are not allocated on the disk: other files can take the space, and writes to
    /// the pool then fail. [`Pool::resize_file`](crate::Pool::resize_file) allocates them again.
    #[error("{missing} of its file are not allocated")]
    NotAllocated {
        /// Size of these parts, rounded up to a MiB.
        missing: Bytes,
    },
    /// The kernel has found damaged parts of its XFS.
    #[error("the kernel has found {count} parts of its filesystem to be damaged")]
    FilesystemErrors {
        /// Number of damaged parts.
        count: u64,
    },
    /// Its disk has failed requests since the pool was opened.
    #[error("its disk has failed {count} requests")]
    DeviceErrors {
        /// Number of failed requests. It never decreases while the pool is open.
        count: u64,
    },
}

impl PoolTrouble {
    pub(super) fn failed(operation: impl Into<String>, error: &io::Error) -> Self {
        Self::Failed {
            operation: operation.into(),
            error: error.to_string(),
        }
    }
}

impl From<pool::Error> for PoolTrouble {
    fn from(error: pool::Error) -> Self {
        use pool::Error;
        match error {
            Error::BackingMissing { what } => Self::BackingMissing { what },
            Error::BackingConflict { path, why } => Self::BackingConflict { path, why },
            Error::NotMounted { path, why } => Self::NotMounted { path, why },
            Error::ShutDown { .. } => Self::ShutDown,
            Error::ReadOnly { .. } => Self::ReadOnly,
            // LVM waits for the disks.
            Error::Group(GroupError::Failed {
                source: Cause::Command(command::Error::StillRuns { deadline, .. }),
                ..
            }) => Self::Hung { after: deadline },
            Error::Failed { operation, source } => Self::Failed {
                operation,
                error: source.to_string(),
            },
            // These do not occur with an open pool.
            Error::NoUsableDevice { .. }
            | Error::TooFewDevices { .. }
            | Error::OtherNode { .. }
            | Error::Ambiguous { .. }
            | Error::HostFilesystemFull { .. }
            | Error::HostFilesystemUnfit { .. }
            | Error::DirectoryNotAllowed { .. }
            | Error::DirectoryUnusable { .. }
            | Error::ImagesRemain { .. }
            | Error::InUse { .. }
            | Error::Group(_) => Self::Failed {
                operation: "verify the pool".to_owned(),
                error: error.to_string(),
            },
        }
    }
}

/// Why an image is not a volume's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageConflict {
    /// It has no identity, or one that cannot be parsed.
    #[error("it has no valid identity")]
    NoIdentity,
    /// Another object made it.
    #[error("it is that of {0}")]
    Owner(Box<Owner>),
    /// It was made in the pool with a filesystem of this UUID.
    #[error("it was made in the pool {0}")]
    Pool(Uuid),
    /// It holds another filesystem than the volume's.
    #[error("it holds the {filesystem} {uuid}")]
    Filesystem {
        /// Type of the filesystem in the image.
        filesystem: FilesystemType,
        /// UUID of the filesystem in the image.
        uuid: Uuid,
    },
    /// It holds raw data.
    #[error("it holds raw data")]
    Block,
}

/// A problem of a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeTrouble {
    /// Its image is not in the pool, and no device holds it.
    #[error("image {image} is not in its pool")]
    ImageMissing {
        /// Name of the image.
        image: Uid,
    },
    /// Its image was removed while it is attached: its data is lost when the last user of the device
    /// ends, and can be copied from the device until then.
    #[error("its image was removed, and only {device} still holds it")]
    ImageDeleted {
        /// Path of the loop device.
        device: String,
    },
    /// The image with its name belongs to another volume, or has other content.
    #[error("image {image} is not its own: {why}")]
    IdentityConflict {
        /// Name of the image.
        image: Uid,
        /// How the image differs.
        why: ImageConflict,
    },
    /// Its image is smaller than the volume: the data behind its end is lost.
    #[error("image {image} has {found} bytes and not {expected}")]
    ImageTooSmall {
        /// Name of the image.
        image: Uid,
        /// Size of the image in bytes.
        found: Bytes,
        /// Size of the volume in bytes.
        expected: Bytes,
    },
    /// A pod has the node of a loop device that is no longer bound to the image.
    #[error("{device}, whose node is at {path}, is not bound to its image")]
    DeviceMissing {
        /// Path of the loop device.
        device: String,
        /// Path where the node of the device is mounted.
        path: PathBuf,
    },
    /// Its loop device is read-only, but its filesystem is mounted writable.
    #[error("{device} is read-only, but {path} is mounted writable")]
    DeviceReadOnly {
        /// Path of the loop device.
        device: String,
        /// Mount point of the filesystem.
        path: PathBuf,
    },
    /// It is in use, and not mounted where it is staged.
    #[error("it is in use and not mounted {}", place(.path.as_deref()))]
    MountMissing {
        /// Its staging path; None if that is unknown and it is not mounted, or only at target paths.
        path: Option<PathBuf>,
    },
    /// Its filesystem became read-only under a writable mount.
    #[error("its filesystem became read-only at {path}")]
    MountReadOnly {
        /// Mount point of the filesystem.
        path: PathBuf,
    },
    /// Its filesystem has counted errors, of its own or of its device.
    #[error("its filesystem has counted {count} errors")]
    FilesystemErrors {
        /// Number of errors since the filesystem was created or repaired.
        count: u64,
    },
    /// Its filesystem has shut down after an error, until it is mounted again.
    #[error("its filesystem has shut itself down after an error")]
    FilesystemShutDown,
    /// Its image or its filesystem does not answer.
    #[error("{path} has not answered for {} s", .after.as_secs_f32())]
    Hung {
        /// Mount point of the pool or of the volume.
        path: PathBuf,
        /// The deadline that has passed.
        after: Duration,
    },
    /// A part of it could not be inspected.
    #[error("could not {operation}: {error}")]
    Failed {
        /// What was tried.
        operation: String,
        /// Why it failed.
        error: String,
    },
}

fn place(path: Option<&Path>) -> String {
    path.map_or_else(
        || "where it is staged".to_owned(),
        |path| format!("at {}", path.display()),
    )
}

impl VolumeTrouble {
    pub(super) fn failed(operation: impl Into<String>, error: &io::Error) -> Self {
        Self::Failed {
            operation: operation.into(),
            error: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_group_for_whose_disks_lvm_waits_has_hung() {
        let after = Duration::from_secs(50);
        let source = command::Error::StillRuns {
            command: "lvm vgs".to_owned(),
            deadline: after,
        };
        let error = GroupError::Failed {
            operation: "read the state",
            group: "vg".to_owned(),
            source: source.into(),
        };
        let trouble = PoolTrouble::from(pool::Error::from(error));
        assert_eq!(trouble, PoolTrouble::Hung { after });
    }
}
