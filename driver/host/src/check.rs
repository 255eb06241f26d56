//! Checking an ext4 before it is mounted.
//!
//! The kernel mounts an ext4 that was found damaged, and would go on writing to it. (XFS and btrfs
//! refuse by themselves. All three replay their logs when they are mounted.)
//!
//! *Invariant:* only what e2fsck holds for safe is done to the data; what needs the judgement of a
//! person is left to one, and the filesystem is not mounted.

use std::{os::fd::BorrowedFd, time::Duration};

use crate::{
    cause::Cause,
    command::{Command, STDIN},
    system::System,
};

/// A check reads every inode of a filesystem that may have terabytes.
const DEADLINE: Duration = Duration::from_hours(6);

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What the filesystem says is needed: all of it when it was found damaged, or else its journal.
    AsNeeded,
    /// All of it.
    Full,
}

/// Why a filesystem is not fit to be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It has damage that e2fsck does not mend by itself.
    #[error("{report}")]
    Damaged {
        /// What e2fsck says.
        report: String,
    },
    /// It could not be checked.
    #[error(transparent)]
    Failed(#[from] Cause),
}

/// Checks the ext4 in a file or device that nobody uses, and mends what can be mended safely.
pub(crate) fn ext4(system: &dyn System, file: BorrowedFd<'_>, extent: Extent) -> Result<(), Error> {
    let command = command(extent);
    let output = system.run(&command, file).map_err(Cause::from)?;
    let report = output
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let report = report.replace(&format!("{STDIN}: "), "");
    match output.exit {
        Some(0) => Ok(()),
        // 1: something was mended; 2: and it was the root filesystem, which it is not.
        Some(1 | 2) => {
            tracing::warn!(report, "a filesystem was mended before it is mounted");
            system.sync(file).map_err(Cause::from)?;
            Ok(())
        }
        Some(4) => Err(Error::Damaged { report }),
        _ => Err(Cause::from(command.failed(&output)).into()),
    }
}

fn command(extent: Extent) -> Command {
    let command = Command::new("e2fsck", DEADLINE).arg("-p");
    match extent {
        Extent::AsNeeded => command,
        Extent::Full => command.arg("-f"),
    }
    .operand(STDIN)
}
