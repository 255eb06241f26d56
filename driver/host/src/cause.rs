//! [`Cause`]: why one step of an operation failed, beneath every error of this crate.

use std::io;

use crate::{command, loopdev};

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The kernel refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A tool failed.
    #[error(transparent)]
    Command(#[from] command::Error),
    /// No loop device, or none as it must be.
    #[error(transparent)]
    Loop(#[from] loopdev::Error),
}

impl Cause {
    /// Whether a filesystem was full.
    pub(crate) fn is_no_space(&self) -> bool {
        match self {
            Self::Io(error) => error.kind() == io::ErrorKind::StorageFull,
            // The tools know no code for it.
            Self::Command(command::Error::Failed { stderr, .. }) => {
                stderr.contains("No space left on device")
            }
            Self::Command(_) | Self::Loop(_) => false,
        }
    }
}
