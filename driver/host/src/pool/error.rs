//! Why a pool cannot be used.

use std::{fmt, path::PathBuf};

use cistern_types::Bytes;

use super::{
    Broken, Candidate, Conflict, DirectoryFault, ForeignMarker, GroupError, HostFault, NotMounted,
    Unusable, known::join,
};
use crate::{cause::Cause, id::Uid};

/// Why a pool cannot be used. Each maps to one reason of the pool's condition.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file or device of a pool that was created before is missing.
    #[error("{what} is missing: the pool was created before and is not created again; restore it")]
    BackingMissing {
        /// Path of the file, or paths of the devices.
        what: String,
    },
    /// The file or device holds something other than this pool.
    #[error("{path} is not this pool: {why}; it is not changed")]
    BackingConflict {
        /// File, device or mount point.
        path: PathBuf,
        /// How it differs from the pool.
        why: Conflict,
    },
    /// The pool is a volume group that cannot be used.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The pool belongs to another node, which may be using it.
    #[error(
        "the pool on {path} belongs to node {}, as its marker says, and is not used here: two machines that write to \
         one disk destroy it",
        .foreign.owner
    )]
    OtherNode {
        /// File, device or mount point.
        path: PathBuf,
        /// The content of the pool's marker.
        foreign: Box<ForeignMarker>,
    },
    /// Several candidates claim to be this pool, or one cannot be verified.
    #[error(
        "more than one may be pool {name}, or one cannot be verified, so none is used and none is created: {}; move \
         away those that are not the pool",
        list(.found)
    )]
    Ambiguous {
        /// Name of the pool.
        name: String,
        /// Each candidate and what is known about it.
        found: Vec<(PathBuf, Candidate)>,
    },
    /// No listed device or selected disk is blank or holds the pool.
    #[error("no device can be used: {}", list_or(.devices, "the node has no disk that matches"))]
    NoUsableDevice {
        /// Each device and why it cannot be used.
        devices: Vec<(PathBuf, Unusable)>,
    },
    /// Fewer disks are blank than the stripes of the pool need.
    #[error(
        "the volumes are striped over {stripes} devices, and only {} of those listed {} blank: {}{}",
        .blank.len(), if .blank.len() == 1 { "is" } else { "are" }, join(.blank), others(.devices)
    )]
    TooFewDevices {
        /// The blank devices.
        blank: Vec<PathBuf>,
        /// How many are needed.
        stripes: u32,
        /// Each other device and why it cannot be used.
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
        "the filesystem at {path} has shut itself down after an error: the kernel log says which, and it stays so \
         until it is mounted again"
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
        "{path} needs {needed} more, and its filesystem lacks {lacking} for that{}: free space there or make the pool \
         smaller",
        keeping(*kept_percent)
    )]
    HostFilesystemFull {
        /// Path of the pool's file.
        path: PathBuf,
        /// Bytes of the file that are not allocated yet.
        needed: Bytes,
        /// Bytes that must become free on the filesystem of the host, rounded up to a GiB.
        lacking: Bytes,
        /// Percentage of the filesystem that stays free, so that kubelet evicts no pods.
        kept_percent: u32,
    },
    /// The filesystem of the host cannot reserve space for the pool's file, or has no direct I/O.
    #[error(
        "{path} cannot be created: its filesystem is {filesystem}, which {why}; put that folder on ext4, XFS or btrfs"
    )]
    HostFilesystemUnfit {
        /// Path of the pool's file.
        path: PathBuf,
        /// Type of the filesystem.
        filesystem: String,
        /// The missing feature.
        why: HostFault,
    },
    /// The node does not allow pools in the directory that the StoragePool names.
    #[error(
        "node {node} does not allow pools in {} ({}): add that directory, or one above it, to POOL_DIRECTORIES of the \
         node plugin and mount it there, as node.poolDirectories of the chart does; or declare a pool in another \
         directory",
        .directory.display(), allowing(.allowed)
    )]
    DirectoryNotAllowed {
        /// The directory of the StoragePool.
        directory: PathBuf,
        /// Name of the node.
        node: String,
        /// The directories that the node allows.
        allowed: Vec<PathBuf>,
    },
    /// The directory that the StoragePool names cannot hold the file of a pool.
    #[error("the pool's file cannot be in {}: {why}", .directory.display())]
    DirectoryUnusable {
        /// The directory of the StoragePool.
        directory: PathBuf,
        /// Why it cannot be used.
        why: DirectoryFault,
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

fn allowing(directories: &[PathBuf]) -> String {
    if directories.is_empty() {
        return "it allows no directory".to_owned();
    }
    format!("it allows {}", join(directories))
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

/// The rest of a list.
fn others(devices: &[(PathBuf, Unusable)]) -> String {
    if devices.is_empty() {
        return String::new();
    }
    format!("; {}", list(devices))
}

/// The list, or the text if it is empty, as it can be for disks that are selected.
fn list_or(devices: &[(PathBuf, impl fmt::Display)], nothing: &str) -> String {
    if devices.is_empty() {
        return nothing.to_owned();
    }
    list(devices)
}

/// Devices for a message, each with what is known of it.
pub(crate) fn list(devices: &[(PathBuf, impl fmt::Display)]) -> String {
    let line = |(path, why): &(PathBuf, _)| format!("{}: {why}", path.display());
    devices.iter().map(line).collect::<Vec<_>>().join("; ")
}
