//! [`Cause`]: why one step of an operation failed, beneath every error of this crate.

use std::io;

use crate::{command, loopdev};

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A tool did not start, failed, or exceeded its deadline.
    #[error(transparent)]
    Command(#[from] command::Error),
    /// A loop device cannot be attached, or has wrong properties.
    #[error(transparent)]
    Loop(#[from] loopdev::Error),
}

impl Cause {
    /// Whether the kernel reported a full filesystem to this process. A tool reports only its own failure.
    pub(crate) fn is_no_space(&self) -> bool {
        self.is(io::ErrorKind::StorageFull)
    }

    /// Whether the kernel reported to this process that another process holds a device.
    pub(crate) fn is_busy(&self) -> bool {
        self.is(io::ErrorKind::ResourceBusy)
    }

    /// Whether a tool ran and failed.
    pub(crate) fn is_failed_tool(&self) -> bool {
        matches!(self, Self::Command(command::Error::Failed { .. }))
    }

    /// Whether a tool takes too long, and is left to itself.
    pub(crate) fn still_runs(&self) -> bool {
        matches!(self, Self::Command(command::Error::StillRuns { .. }))
    }

    /// Whether a tool ran, failed, and said this.
    pub(crate) fn says(&self, text: &str) -> bool {
        matches!(self, Self::Command(command::Error::Failed { stderr, .. }) if stderr.contains(text))
    }

    fn is(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Self::Io(error) if error.kind() == kind)
    }
}
