//! A new UUID for a filesystem that is a copy of another: the kernel mounts no two XFS of one UUID,
//! and takes two btrfs of one UUID for the same.
//!
//! *Invariant:* only a file that has no name among the images yet is written to.

mod btrfs;

use std::{os::fd::BorrowedFd, time::Duration};

pub(crate) use self::btrfs::btrfs;
use crate::{
    cause::Cause,
    command::{Command, STDIN},
    id::Uuid,
    system::System,
};

/// It writes one superblock for each allocation group.
const DEADLINE: Duration = Duration::from_mins(5);

/// Gives an XFS whose log is clean another UUID.
pub(crate) fn xfs(system: &dyn System, file: BorrowedFd<'_>, uuid: Uuid) -> Result<(), Cause> {
    // What xfs_admin(8), a shell script, does for -U. It says nothing by its exit code: the caller
    // reads the UUID back.
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
