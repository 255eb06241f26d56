//! The troubles, each a fact: what is seen to be wrong, in one clause.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_crds::Bytes;

use crate::{id::Uid, pool};

/// Something that is wrong with a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolTrouble {
    /// Nothing is known but that its disk does not answer.
    #[error("its disk has not answered for {} s", .after.as_secs_f32())]
    Hung {
        /// How long it had.
        after: Duration,
    },
    /// Its file or device is not there.
    #[error("{what} is not there")]
    BackingMissing {
        /// File or devices.
        what: String,
    },
    /// Its file, or what is mounted, is not the pool's any more.
    #[error("{path} is not this pool: {why}")]
    BackingForeign {
        /// File or mount point.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// It is not mounted, or something else is in its place.
    #[error("{path} is not the mounted pool: {why}")]
    NotMounted {
        /// The mount point.
        path: PathBuf,
        /// What is there.
        why: String,
    },
    /// Its XFS has shut itself down after an error: nothing in it can be read or written until it is
    /// mounted anew, which [`Root::open_pool`](crate::Root::open_pool) does once nothing uses it.
    #[error("its filesystem has shut itself down after an error")]
    ShutDown,
    /// It is mounted read-only.
    #[error("its filesystem is read-only")]
    ReadOnly,
    /// Writing, syncing or reading its probe file failed, or asking its filesystem.
    #[error("could not {operation}: {error}")]
    Failed {
        /// What was tried.
        operation: String,
        /// Why it failed.
        error: String,
    },
    /// What was written to it and synced is not what is read: its disk loses data.
    #[error("what was written to {path} and synced is not what is read there")]
    NotReadBack {
        /// The probe file.
        path: PathBuf,
    },
    /// Parts of its file have no space on the disk: others can take it, and then writes to the pool
    /// fail. [`Pool::resize_file`](crate::Pool::resize_file) allocates them again.
    #[error("{missing} of its file are not allocated")]
    NotAllocated {
        /// How much of it, rounded up to a MiB.
        missing: Bytes,
    },
    /// The kernel has found parts of its XFS to be damaged.
    #[error("the kernel has found {count} parts of its filesystem to be damaged")]
    FilesystemErrors {
        /// How many.
        count: u64,
    },
    /// The disk that it lies on has failed requests since the pool was opened.
    #[error("its disk has failed {count} requests")]
    DeviceErrors {
        /// How many. It never becomes less while the pool is open.
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
            Error::BackingForeign { path, why } => Self::BackingForeign { path, why },
            Error::NotMounted { path, why } => Self::NotMounted { path, why },
            Error::ShutDown { .. } => Self::ShutDown,
            Error::ReadOnly { .. } => Self::ReadOnly,
            Error::Failed { operation, source } => Self::Failed {
                operation,
                error: source.to_string(),
            },
            // Not of a pool that is open.
            Error::NoUsableDevice { .. }
            | Error::OtherNode { .. }
            | Error::Ambiguous { .. }
            | Error::HostFilesystemFull { .. }
            | Error::HostFilesystemUnfit { .. }
            | Error::ImagesRemain { .. }
            | Error::InUse { .. } => Self::Failed {
                operation: "verify the pool".to_owned(),
                error: error.to_string(),
            },
        }
    }
}

/// Something that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeTrouble {
    /// Its image is not in the pool, and nothing holds it.
    #[error("image {image} is not in its pool")]
    ImageMissing {
        /// Name of the image.
        image: Uid,
    },
    /// Its image was removed while it is attached: what is in it goes when the device's last user
    /// ends, and until then it can be copied from the device.
    #[error("its image was removed beneath {device}, which alone still holds it")]
    ImageDeleted {
        /// The loop device.
        device: String,
    },
    /// The image of its name is another volume's, or holds something else.
    #[error("image {image} is not its own: {why}")]
    IdentityConflict {
        /// Name of the image.
        image: Uid,
        /// What was found.
        why: String,
    },
    /// Its image is smaller than the volume: what lay behind its end is gone.
    #[error("image {image} has {found} bytes and not {expected}")]
    ImageTooSmall {
        /// Name of the image.
        image: Uid,
        /// What it has.
        found: Bytes,
        /// What the volume has.
        expected: Bytes,
    },
    /// A pod has the node of a loop device that is not bound to the image any more.
    #[error("{device}, whose node is at {path}, is not bound to its image")]
    DeviceMissing {
        /// The loop device.
        device: String,
        /// Where its node is.
        path: PathBuf,
    },
    /// Its loop device takes no writes, though it is mounted to be written.
    #[error("{device} is read-only, and {path} is to be written")]
    DeviceReadOnly {
        /// The loop device.
        device: String,
        /// Where it is mounted.
        path: PathBuf,
    },
    /// It is in use, and not mounted where it is staged.
    #[error("it is in use and not mounted {}", place(.path.as_deref()))]
    MountMissing {
        /// Where it is to be; none where that is not known, and it is mounted nowhere, or at targets
        /// alone.
        path: Option<PathBuf>,
    },
    /// Its filesystem became read-only beneath a mount that is to be written.
    #[error("its filesystem became read-only at {path}")]
    MountReadOnly {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// Its filesystem has counted errors, of its own or of its device.
    #[error("its filesystem has counted {count} errors")]
    FilesystemErrors {
        /// How many since it was made, or mended.
        count: u64,
    },
    /// Its filesystem has shut itself down after an error, until it is mounted anew.
    #[error("its filesystem has shut itself down after an error")]
    FilesystemShutDown,
    /// Its image or its filesystem does not answer.
    #[error("{path} has not answered for {} s", .after.as_secs_f32())]
    Hung {
        /// The pool or the mount.
        path: PathBuf,
        /// How long it had.
        after: Duration,
    },
    /// A part of it could not be looked at.
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
