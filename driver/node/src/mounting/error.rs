//! Why a volume was not mounted or not unmounted.

use std::{path::PathBuf, time::Duration};

use cistern_crds::{AccessMode, Explanation, Reason};
use cistern_host::{image, mounting as host, options, statistics};

use crate::{agent::pools::Unavailable, blocking, usage::Unusable};

/// Why a volume was not mounted or not unmounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another operation on the volume is running.
    #[error("another operation on volume {volume} is running")]
    Busy {
        /// The volume id.
        volume: String,
    },
    /// The work continues because it takes long or the disk does not answer.
    #[error(
        "the work on volume {volume} has not ended after {after:?} and continues; if the disk of its pool does not \
         answer, the conditions of the PoolVolume say so"
    )]
    Unfinished {
        /// The volume id.
        volume: String,
        /// How long the call waited.
        after: Duration,
    },
    /// The check of its filesystem waits or runs.
    #[error("volume {volume} cannot be staged yet: {why}")]
    Checking {
        /// The volume id.
        volume: String,
        /// Progress of the check.
        why: String,
    },
    /// It is a raw block volume whose filesystem is not adopted yet.
    #[error("the filesystem in volume {volume} is not adopted yet")]
    NotAdopted {
        /// The volume id.
        volume: String,
    },
    /// The check of its filesystem failed.
    #[error("the filesystem of volume {volume} could not be checked: {why}")]
    NotChecked {
        /// The volume id.
        volume: String,
        /// Error of the check.
        why: String,
    },
    /// There is no such volume on this node.
    #[error("there is no volume {volume} on this node")]
    NotFound {
        /// The requested id.
        volume: String,
    },
    /// The agent has not reconciled its pools yet.
    #[error("the node plugin has just started and has not reconciled its pools yet")]
    Starting,
    /// The watch does not show the volume, and the API server cannot be read.
    #[error("cannot read PoolVolume {volume}")]
    Api {
        /// The volume id.
        volume: String,
        /// The error of the API server or of the connection, or a timeout.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The state of the volume or of its pool does not permit the operation, or the volume does not
    /// support the requested usage.
    #[error("volume {volume} cannot be used like this: {why}")]
    Refused {
        /// The volume id.
        volume: String,
        /// Why the volume cannot be used.
        why: Refusal,
    },
    /// The `volume_context` is that of another volume (NSV-17, NPV-20).
    #[error("volume_context contradicts volume {volume}: {why}")]
    Contradicted {
        /// The volume id.
        volume: String,
        /// What differs.
        why: Unusable,
    },
    /// The volume is at the path already, with other parameters.
    #[error("volume {volume} is at {path} already, but {why}")]
    Different {
        /// The volume id.
        volume: String,
        /// The staging or target path.
        path: PathBuf,
        /// What differs.
        why: Unusable,
    },
    /// A mount option is not allowed.
    #[error(transparent)]
    Options(#[from] options::Unsupported),
    /// The work on the host failed.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// The statistics of a volume cannot be read.
    #[error(transparent)]
    Statistics(#[from] statistics::Error),
    /// The work on the host panicked.
    #[error("the work on volume {volume} broke off")]
    Broken {
        /// The volume id.
        volume: String,
        /// Error of the panic.
        #[source]
        source: blocking::Broken,
    },
}

/// Why a volume cannot be used now, or not as requested. The messages follow the name of the volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The volume does not support the requested usage, or cannot be used at all.
    #[error(transparent)]
    Usage(#[from] Unusable),
    /// Its pool cannot be used.
    #[error(transparent)]
    Pool(#[from] Unavailable),
    /// It belongs to another node.
    #[error("it is on node {0}")]
    OtherNode(String),
    /// Another pod uses it, and its access mode allows one at a time.
    #[error("it is published at {}, and one pod uses it at a time in access mode {mode:?}", .path.display())]
    Published {
        /// The target path of the other pod.
        path: PathBuf,
        /// The requested access mode.
        mode: AccessMode,
    },
    /// An administrator must repair its filesystem, or it has none that can be adopted.
    #[error("{0}")]
    Unfit(Explanation),
}

impl Error {
    /// Whether a volume was not staged because its filesystem has to be checked or adopted first.
    pub(super) fn needs_check(&self) -> bool {
        matches!(
            self,
            Self::NotAdopted { .. }
                | Self::Host(host::Error::Image(image::Error::CheckNeeded { .. }))
        )
    }

    /// The reason why an administrator must act before a filesystem is staged; None for any other error.
    pub(super) fn unfit(&self) -> Option<Reason> {
        match self {
            Self::Host(host::Error::Image(image::Error::Damaged { .. })) => {
                Some(Reason::FilesystemDamaged)
            }
            Self::Host(host::Error::Image(image::Error::TooLargeToCheck { .. })) => {
                Some(Reason::TooLargeToCheck)
            }
            Self::Host(host::Error::Image(image::Error::NotAdoptable { .. })) => {
                Some(Reason::FilesystemConflict)
            }
            _ => None,
        }
    }
}
