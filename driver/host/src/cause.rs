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
    /// A loop device cannot be attached, or has wrong properties.
    #[error(transparent)]
    Loop(#[from] loopdev::Error),
}

impl Cause {
    /// Whether the cause is a full filesystem.
    pub(crate) fn is_no_space(&self) -> bool {
        self.is(io::ErrorKind::StorageFull, "No space left on device")
    }

    /// Whether the cause is a device that another process holds.
    pub(crate) fn is_busy(&self) -> bool {
        self.is(io::ErrorKind::ResourceBusy, "Device or resource busy")
    }

    /// Whether the kernel returned this error to this process or to a tool. Tools have no exit code for
    /// it and repeat the kernel's text.
    fn is(&self, kind: io::ErrorKind, text: &str) -> bool {
        match self {
            Self::Io(error) => error.kind() == kind,
            Self::Command(command::Error::Failed { stderr, .. }) => stderr.contains(text),
            Self::Command(_) | Self::Loop(_) => false,
        }
    }
}
