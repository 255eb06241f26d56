//! The interface to the machine: [`System`], in the terms of Linux.
//!
//! *Invariant:* this crate changes and inspects the machine only through these methods, and each
//! method is one effect or one read. There is no fake: the only implementation is [`Linux`], and
//! `FailAt` injects failures into its calls.

mod devices;
mod disk;
mod extent;
#[cfg(feature = "faults")]
mod fail_at;
mod files;
mod filesystems;
mod holder;
mod linux;
mod mountinfo;
mod sysfs;

use std::{fmt, io, os::fd::BorrowedFd};

pub use rustix::{fs::OFlags, mount::MountAttrFlags};

#[cfg(feature = "faults")]
pub use self::fail_at::{FailAt, Fault};
pub use self::{
    devices::{
        BoundLoop, DeviceNumber, Devices, IoCounters, LoopSettings, LoopStatus, MappedDevice,
        SECTOR_SIZE, StackedDevice,
    },
    disk::Disk,
    files::{Block, Extent, FileId, FileKind, Files, Placement, Space, Stat},
    filesystems::{Filesystems, Parameter, XfsGeometry},
    holder::{Holder, MappingName},
    linux::Linux,
    mountinfo::Mount,
};
pub(crate) use self::{
    devices::{MAPPING, MAPPING_UUID, node_number},
    holder::{LOGICAL_VOLUME, named},
    linux::is_damage,
};
use crate::command::{self, Command};

/// All operations on the machine.
pub trait System: Files + Devices + Filesystems + Send + Sync + fmt::Debug {
    /// Runs a tool to completion with a file as its standard input.
    fn run(
        &self,
        command: &Command,
        input: BorrowedFd<'_>,
    ) -> Result<command::Output, command::Error> {
        self.run_watched(command, input, &|_| false)
    }

    /// Like [`Self::run`], and passes each line of the tool's standard error to `watch` as it
    /// arrives. A line for which that returns true is not kept.
    fn run_watched(
        &self,
        command: &Command,
        input: BorrowedFd<'_>,
        watch: &dyn Fn(&str) -> bool,
    ) -> Result<command::Output, command::Error>;
}

/// Returns none when a file does not exist.
pub(crate) fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
