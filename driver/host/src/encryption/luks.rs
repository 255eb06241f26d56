//! The commands of cryptsetup(8).
//!
//! *Invariant:* the key is the tool's standard input. cryptsetup locks no header itself: the lock of the image's file
//! and the loop device of Cistern keep others away, and `/run` may be read-only.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
    time::Duration,
};

use super::{HEADER, Key};
use crate::{
    cause::Cause,
    command::{Command, Output},
    system::{SECTOR_SIZE, System},
};

/// The tool.
pub(super) const PROGRAM: &str = "cryptsetup";
/// Longer than cryptsetup takes on the slowest disk: it writes 16 MiB.
const DEADLINE: Duration = Duration::from_mins(2);
/// Exit code of cryptsetup when no keyslot opens with the key.
const NO_PERMISSION: i32 = 2;
/// Exit code of cryptsetup when there is no mapping of the name.
const NOT_ACTIVE: i32 = 4;
/// Exit code of cryptsetup when the device is in use, or the name of a mapping taken.
const BUSY: i32 = 5;
/// Bytes of the sectors in which cryptsetup counts the offset of the data.
const SECTOR: u64 = 512;

/// Writes a header for this key to a device.
pub(crate) fn format(system: &dyn System, device: &Path, key: &Key) -> Result<(), Cause> {
    // A random key of 32 bytes needs no costly derivation, whose memory would count against the node plugin's limit.
    let command = cryptsetup("luksFormat")
        .arg("--batch-mode")
        .option("--type", "luks2")
        .option("--cipher", "aes-xts-plain64")
        .option("--key-size", "512")
        .option("--hash", "sha256")
        .option("--pbkdf", "pbkdf2")
        .option("--pbkdf-force-iterations", "1000")
        .option("--sector-size", SECTOR_SIZE.to_string())
        .option("--offset", (HEADER.0 / SECTOR).to_string())
        .operand(device);
    if with_key(system, &command, key)? {
        return Ok(());
    }
    Err(io::Error::other("cryptsetup refuses a key for a new header").into())
}

/// Maps the data of a device under a name; false if the key is not one of the device. Fails with `ResourceBusy` if the
/// name is taken.
pub(super) fn open(
    system: &dyn System,
    device: &Path,
    name: &str,
    key: &Key,
    discard: bool,
) -> Result<bool, Cause> {
    let command = cryptsetup("open").option("--type", "luks2");
    let command = if discard {
        command.arg("--allow-discards")
    } else {
        command
    };
    with_key(system, &command.operand(device).operand(name), key)
}

/// Adds a key to a device that another one opens; false if that is not one of the device.
pub(super) fn add_key(
    system: &dyn System,
    device: &Path,
    existing: &Key,
    added: &Key,
) -> Result<bool, Cause> {
    // Both are read from standard input, one after the other.
    let command = cryptsetup("luksAddKey")
        .option("--keyfile-size", existing.length().to_string())
        .option("--pbkdf", "pbkdf2")
        .option("--pbkdf-force-iterations", "1000")
        .operand(device)
        .operand("-");
    let input = Key::pipe_of(&[existing, added])?;
    let output = system.run(&command, input.as_fd())?;
    granted(&command, &output)
}

/// Removes a key from a device, unless it is not one of the device.
pub(super) fn remove_key(system: &dyn System, device: &Path, key: &Key) -> Result<(), Cause> {
    let command = cryptsetup("luksRemoveKey")
        .arg("--batch-mode")
        .operand(device);
    with_key(system, &command, key).map(drop)
}

/// Grows a mapping to the size of its device; false if the key is not one of the device.
pub(super) fn resize(system: &dyn System, name: &str, key: &Key) -> Result<bool, Cause> {
    with_key(system, &cryptsetup("resize").operand(name), key)
}

/// Removes a mapping when its last user closes it.
pub(super) fn close_when_unused(
    system: &dyn System,
    name: &str,
    input: BorrowedFd<'_>,
) -> Result<(), Cause> {
    let command = cryptsetup_without_key("close").arg("--deferred");
    let command = command.operand(name);
    let output = system.run(&command, input)?;
    granted(&command, &output).map(drop)
}

/// Removes a mapping, unless it has gone away with its last user; fails with `ResourceBusy` while it is in use.
pub(super) fn close(system: &dyn System, name: &str, input: BorrowedFd<'_>) -> Result<(), Cause> {
    let command = cryptsetup_without_key("close").operand(name);
    let output = system.run(&command, input)?;
    removed(&command, &output)
}

fn removed(command: &Command, output: &Output) -> Result<(), Cause> {
    match output.exit {
        Some(NOT_ACTIVE) => Ok(()),
        _ => granted(command, output).map(drop),
    }
}

/// A command that reads a key from its standard input.
fn cryptsetup(action: &'static str) -> Command {
    cryptsetup_without_key(action).option("--key-file", "-")
}

fn cryptsetup_without_key(action: &'static str) -> Command {
    Command::new(PROGRAM, DEADLINE)
        .arg(action)
        .arg("--disable-locks")
}

/// Runs a command with a key; false if the key is not one of the device.
fn with_key(system: &dyn System, command: &Command, key: &Key) -> Result<bool, Cause> {
    let input = Key::pipe_of(&[key])?;
    let output = system.run(command, input.as_fd())?;
    granted(command, &output)
}

fn granted(command: &Command, output: &Output) -> Result<bool, Cause> {
    match output.exit {
        Some(0) => Ok(true),
        Some(NO_PERMISSION) => Ok(false),
        Some(BUSY) => Err(io::Error::from(io::ErrorKind::ResourceBusy).into()),
        _ => Err(command.failed(output).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_that_has_gone_away_is_removed_and_one_in_use_is_busy() {
        let command = cryptsetup_without_key("close").operand("cistern-a");
        let ended = |exit| Output {
            exit: Some(exit),
            signal: None,
            stdout: String::new(),
            stderr: String::new(),
        };
        assert!(removed(&command, &ended(0)).is_ok());
        assert!(removed(&command, &ended(NOT_ACTIVE)).is_ok());
        assert!(removed(&command, &ended(BUSY)).is_err_and(|it| it.is_busy()));
        assert!(removed(&command, &ended(1)).is_err());
    }
}
