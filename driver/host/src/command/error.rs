//! Why a tool failed.

use std::{io, time::Duration};

/// Why a tool failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started or waited for.
    #[error("{command} could not be run: is the package that provides it installed")]
    Start {
        /// Program and arguments.
        command: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// It exited with a code other than zero.
    #[error("{command} failed with {exit}: {stderr}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Exit code or signal.
        exit: String,
        /// Its standard error.
        stderr: String,
    },
    /// It was killed because it took too long.
    #[error("{command} was killed because it took longer than {deadline:?}")]
    Deadline {
        /// Program and arguments.
        command: String,
        /// Deadline of the tool.
        deadline: Duration,
    },
    /// It takes long, and is left to end by itself. Or an earlier tool of its name does, and it was not started.
    #[error("{command} still runs after {deadline:?}, and is not interrupted")]
    StillRuns {
        /// Program and arguments of the tool that runs.
        command: String,
        /// How long it was waited for.
        deadline: Duration,
    },
}
