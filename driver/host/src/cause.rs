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
        self.is(io::ErrorKind::StorageFull, "No space left on device")
    }

    /// Whether somebody else holds a device.
    pub(crate) fn is_busy(&self) -> bool {
        self.is(io::ErrorKind::ResourceBusy, "Device or resource busy")
    }

    /// Whether the kernel said so, to us or to a tool: these have no code for it and repeat it.
    fn is(&self, kind: io::ErrorKind, text: &str) -> bool {
        match self {
            Self::Io(error) => error.kind() == kind,
            Self::Command(command::Error::Failed { stderr, .. }) => stderr.contains(text),
            Self::Command(_) | Self::Loop(_) => false,
        }
    }
}
