//! Gives a cloned filesystem a new UUID: the kernel does not mount two XFS with one UUID, and
//! treats two btrfs with one UUID as the same.
//!
//! *Invariant:* only a file that is not yet among the images is written to.

mod btrfs;

use std::{os::fd::BorrowedFd, time::Duration};

pub(crate) use self::btrfs::btrfs;
use crate::{
    cause::Cause,
    command::{Command, STDIN},
    id::Uuid,
    system::System,
};

/// xfs_db writes one superblock per allocation group.
const DEADLINE: Duration = Duration::from_mins(5);

/// Changes the UUID of an XFS with a clean log.
pub(crate) fn xfs(system: &dyn System, file: BorrowedFd<'_>, uuid: Uuid) -> Result<(), Cause> {
    // As xfs_admin(8), a shell script, does for -U. Its exit code is not reliable: the caller reads
    // the UUID back.
    let command = Command::new("xfs_db", DEADLINE)
        .arg("-x")
        .option("-c", format!("uuid {uuid}"))
        .operand(STDIN);
    let output = system.run(&command, file)?;
    if output.exit != Some(0) {
        return Err(command.failed(&output).into());
    }
    Ok(system.sync(file)?)
}
