//! The seam to the machine: [`System`], in Linux's own nouns.
//!
//! *Invariant:* all that this crate does to the machine, and all that it learns from it, goes
//! through one method here, and each method is one effect or one look. There is no fake: the one
//! implementation is [`Linux`], and `FailAt` makes its calls fail.

mod devices;
mod extent;
#[cfg(feature = "faults")]
mod fail_at;
mod files;
mod filesystems;
mod linux;
mod sysfs;

use std::{fmt, os::fd::BorrowedFd};

pub use rustix::{fs::OFlags, mount::MountAttrFlags};

#[cfg(feature = "faults")]
pub use self::fail_at::{FailAt, Fault};
pub(crate) use self::linux::is_damage;
pub use self::{
    devices::{BoundLoop, DeviceNumber, Devices, LoopSettings, LoopStatus},
    files::{Block, Extent, FileId, FileKind, Files, Placement, Space, Stat},
    filesystems::{Filesystems, Parameter, XfsGeometry},
    linux::Linux,
};
use crate::command::{self, Command};

/// The machine.
pub trait System: Files + Devices + Filesystems + Send + Sync + fmt::Debug {
    /// Runs a tool to its end with a file as its standard input.
    fn run(
        &self,
        command: &Command,
        input: BorrowedFd<'_>,
    ) -> Result<command::Output, command::Error> {
        self.run_watched(command, input, &|_| false)
    }

    /// As [`Self::run`], and shows each line of the tool's standard error to `watch` as it comes. A
    /// line for which that returns true is not kept.
    fn run_watched(
        &self,
        command: &Command,
        input: BorrowedFd<'_>,
        watch: &dyn Fn(&str) -> bool,
    ) -> Result<command::Output, command::Error>;
}
