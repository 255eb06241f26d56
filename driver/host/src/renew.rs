//! Gives a cloned filesystem a new UUID: the kernel does not mount two XFS with one UUID, and
//! treats two btrfs with one UUID as the same.
//!
//! *Invariant:* only a file that is not yet among the images is written to.

mod btrfs;

use std::{os::fd::BorrowedFd, time::Duration};

pub(crate) use self::btrfs::btrfs;
use crate::{
    cause::Cause,
    check::LIMITS,
    command::{Command, STDIN},
    id::Uuid,
    system::System,
};

/// xfs_db writes one superblock per allocation group.
const DEADLINE: Duration = Duration::from_mins(5);

/// Changes the UUID of an XFS with a clean log.
pub(crate) fn xfs(system: &dyn System, file: BorrowedFd<'_>, uuid: Uuid) -> Result<(), Cause> {
    let command = new_uuid(uuid);
    let output = system.run(&command, file)?;
    if output.exit != Some(0) {
        return Err(command.failed(&output).into());
    }
    Ok(system.sync(file)?)
}

/// As xfs_admin(8), a shell script, does for -U. Its exit code is not reliable: the caller reads the UUID back. A
/// tenant may have written all of the filesystem, as a raw block volume.
fn new_uuid(uuid: Uuid) -> Command {
    Command::new("xfs_db", DEADLINE)
        .arg("-x")
        .option("-c", format!("uuid {uuid}"))
        .operand(STDIN)
        .limited(LIMITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_that_reads_the_xfs_of_a_tenant_has_limits() {
        let command = new_uuid(Uuid::from_bytes([7; 16]));
        assert_eq!(command.clone().limited(LIMITS), command);
    }
}
