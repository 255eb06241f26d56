//! Proves that a device holds no data, before a filesystem is created on it.
//!
//! *Invariant:* a device is blank only if no other process holds it, it can be written, the kernel knows
//! no partition of it, blkid finds nothing, and its first and last MiB, which contain the signature of
//! every format known to Linux, are zeros. A check that fails is an error and never means "blank".

use std::{io, os::fd::BorrowedFd, time::Duration};

use cistern_types::FilesystemType;

use super::Unusable;
use crate::{
    cause::Cause,
    check::LIMITS,
    command::{Command, STDIN},
    system::{DeviceNumber, System},
};

/// The filesystem that is created on a blank device.
pub(super) const POOL_FILESYSTEM: FilesystemType = FilesystemType::Xfs;
const MIB: u64 = 1 << 20;
const CHUNK: usize = 1 << 20;
/// Time limit for blkid, which reads a few blocks.
const DEADLINE: Duration = Duration::from_mins(1);
/// Exit code of blkid for "nothing found".
const NOTHING_FOUND: i32 = 2;
/// Exit code of blkid for several signatures.
const SEVERAL_FOUND: i32 = 8;

/// The reason why a device is not blank; None if it is blank. The device is open exclusively.
pub(super) fn objection(
    system: &dyn System,
    device: BorrowedFd<'_>,
    number: DeviceNumber,
) -> Result<Option<Unusable>, Cause> {
    if system.has_partitions(number)? {
        return Ok(Some(Unusable::Partitions));
    }
    if system.is_read_only(number)? {
        return Ok(Some(Unusable::ReadOnly));
    }
    let size = system.device_size(device)?;
    if size < POOL_FILESYSTEM.minimum_size().0 {
        return Ok(Some(Unusable::TooSmall));
    }
    if let Some(found) = signature(system, device, &[])? {
        return Ok(Some(found));
    }
    for (offset, end) in [(0, "first"), (size - MIB, "last")] {
        let bytes = system.read(device, offset, CHUNK)?;
        if bytes.len() != CHUNK {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(Some(Unusable::NotZeros { end }));
        }
    }
    Ok(None)
}

/// What blkid finds on the device; None only if it reports that there is nothing. `usages` limits the
/// signatures that it searches for.
pub(super) fn signature(
    system: &dyn System,
    device: BorrowedFd<'_>,
    usages: &[&str],
) -> Result<Option<Unusable>, Cause> {
    let command = probe(usages);
    let output = system.run(&command, device)?;
    let says_nothing = output.stdout.trim().is_empty() && output.stderr.trim().is_empty();
    match output.exit {
        Some(NOTHING_FOUND) if says_nothing => Ok(None),
        Some(0) => {
            let value = |key: &str| {
                let line = |line: &str| line.strip_prefix(key).map(str::to_owned);
                output.stdout.lines().find_map(line)
            };
            let found = value("TYPE=").or_else(|| value("PTTYPE="));
            let format = found.unwrap_or_else(|| output.stdout.trim().replace('\n', " "));
            Ok(Some(Unusable::Holds { format }))
        }
        Some(SEVERAL_FOUND) => Ok(Some(Unusable::SeveralFormats)),
        _ => Err(command.failed(&output).into()),
    }
}

/// Anybody may have written what is on the device.
fn probe(usages: &[&str]) -> Command {
    let command = Command::new("blkid", DEADLINE)
        .arg("-p")
        .option("-o", "export");
    let command = match usages {
        [] => command,
        usages => command.option("-u", usages.join(",")),
    };
    command.operand(STDIN).limited(LIMITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_that_reads_a_device_has_limits() {
        let all: &[&str] = &[];
        for usages in [all, &["raid"]] {
            let command = probe(usages);
            assert_eq!(command.clone().limited(LIMITS), command);
        }
    }
}
