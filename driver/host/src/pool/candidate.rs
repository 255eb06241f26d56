//! What is found on the devices and files that may be a pool.

use std::{fmt, io, path::PathBuf};

use cistern_types::FilesystemType;

use super::{Error, blank::POOL_FILESYSTEM, failed};
use crate::{
    cause::Cause,
    id::{Uid, Uuid},
    superblock::Superblock,
};

/// Why a listed device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Its node does not exist.
    #[error("it does not exist")]
    Missing,
    /// Another process has opened it exclusively.
    #[error("something else holds it")]
    Busy,
    /// Its medium can be removed.
    #[error("it is removable")]
    Removable,
    /// It is read-only.
    #[error("it is read-only")]
    ReadOnly,
    /// Nothing in `/dev/disk/by-id` names it.
    #[error("it has no name in /dev/disk/by-id")]
    NoStableName,
    /// The kernel knows partitions of it.
    #[error("it has partitions")]
    Partitions,
    /// It is too small for the filesystem of a pool.
    #[error("it is smaller than {}, the minimum of a pool", POOL_FILESYSTEM.minimum_size())]
    TooSmall,
    /// It holds a known format.
    #[error("it holds {format}")]
    Holds {
        /// Name of the format that blkid reports.
        format: String,
    },
    /// It holds several known formats.
    #[error("it holds the signatures of several formats")]
    SeveralFormats,
    /// It holds another filesystem than the pool's.
    #[error("it holds {filesystem} ({label:?})")]
    Filesystem {
        /// Type of the filesystem.
        filesystem: FilesystemType,
        /// Label of the filesystem.
        label: String,
    },
    /// It is a former disk of the pool.
    #[error("it holds the filesystem {0}, which is in replacedDisks: remove the disk, or wipe it")]
    Replaced(Uuid),
    /// Its first or last MiB holds data of no known format.
    #[error("its {end} MiB is not zeros: if nothing on it is needed, overwrite that with zeros")]
    NotZeros {
        /// `first` or `last`.
        end: &'static str,
    },
    /// Other block devices are built on it.
    #[error("{} is made of it", .holders.join(", "))]
    Layer {
        /// Names of these devices.
        holders: Vec<String>,
    },
    /// It is a loop device over a file of Cistern.
    #[error("it is a loop device over {file}, which is a pool's")]
    OwnFile {
        /// Path of the file.
        file: PathBuf,
    },
    /// It could not be inspected.
    #[error(transparent)]
    Failed(Cause),
}

impl Unusable {
    /// It holds this filesystem.
    pub(super) fn filesystem(found: &Superblock) -> Self {
        Self::Filesystem {
            filesystem: found.kind,
            label: found.label.clone(),
        }
    }
}

impl From<Cause> for Unusable {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Io(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            cause if cause.is_busy() => Self::Busy,
            cause => Self::Failed(cause),
        }
    }
}

/// Why a device or file may be the pool.
#[derive(Debug)]
pub enum Candidate {
    /// It has the label of the pool.
    Label(String),
    /// It has the filesystem of the pool.
    Filesystem(Uuid),
    /// Its marker names the pool.
    Marker {
        /// Name of the StoragePool.
        name: String,
        /// UID of the StoragePool.
        uid: Uid,
    },
    /// It has the pool, but the declared source is of another type.
    OtherSource {
        /// Whether the pool is in a file.
        in_file: bool,
    },
    /// It has the pool, but in another directory than the declared one.
    OtherDirectory,
    /// It has the label of some pool, and another process holds it, so its marker is not read.
    Held(String),
    /// It could not be inspected.
    Unread(Box<Error>),
}

impl Candidate {
    /// A device whose content is unknown, because reading it failed.
    pub(crate) fn unread(cause: impl Into<Cause>) -> Self {
        Self::Unread(Box::new(failed("read it")(cause)))
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(label) => write!(f, "it holds xfs ({label:?})"),
            Self::Filesystem(uuid) => write!(f, "it holds the filesystem {uuid}"),
            Self::Marker { name, uid } => write!(f, "it is pool {name} ({uid})"),
            Self::OtherSource { in_file: true } => {
                f.write_str("it lies in a file, and the pool's source is device")
            }
            Self::OtherSource { in_file: false } => {
                f.write_str("it lies on a device, and the pool's source is image")
            }
            Self::OtherDirectory => {
                f.write_str("it is not in the directory that the pool's source names")
            }
            Self::Held(label) => write!(f, "it holds xfs ({label:?}), and something else holds it"),
            Self::Unread(error) => f.write_str(&describe(error)),
        }
    }
}

/// The message of an error with its cause.
pub(super) fn describe(error: &Error) -> String {
    match error {
        Error::Failed { operation, source } => format!("could not {operation}: {source}"),
        Error::BackingConflict { why, .. } => why.to_string(),
        other => other.to_string(),
    }
}
