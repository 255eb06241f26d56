//! Making filesystems.
//!
//! *Invariant:* the tool gets an open file as its standard input and no name, so what it formats is
//! exactly what the caller made or proved blank. Nothing else in Cistern can format.

use std::{os::fd::BorrowedFd, time::Duration};

use cistern_crds::{FilesystemType, MkfsOptions};

use crate::{
    cause::Cause,
    command::{self, Command, STDIN},
    id::Uuid,
    system::System,
};

/// Longer than mkfs takes on the slowest disk: it writes some MiB.
const DEADLINE: Duration = Duration::from_mins(5);

/// Makes the filesystem of a volume in a new image.
pub(crate) fn volume(
    system: &dyn System,
    image: BorrowedFd<'_>,
    kind: FilesystemType,
    uuid: Uuid,
    options: &MkfsOptions,
) -> Result<(), Cause> {
    run(system, image, &volume_command(kind, uuid, options))
}

/// Makes the filesystem of a pool in a new image.
pub(crate) fn pool_image(
    system: &dyn System,
    image: BorrowedFd<'_>,
    uuid: Uuid,
    label: &str,
) -> Result<(), Cause> {
    // The loop device that carries it has sectors of 4096 bytes.
    let command = pool_command(uuid, label).option("-s", "size=4096");
    run(system, image, &command)
}

/// Makes the filesystem of a pool on a device.
///
/// mkfs.xfs looks once more for anything known and refuses, unless `unfinished` says that what is
/// there is an XFS of ours whose making was cut short.
pub(crate) fn pool_device(
    system: &dyn System,
    device: BorrowedFd<'_>,
    uuid: Uuid,
    label: &str,
    unfinished: bool,
) -> Result<(), Cause> {
    let command = pool_command(uuid, label);
    let command = if unfinished {
        command.arg("-f")
    } else {
        command
    };
    run(system, device, &command)
}

fn volume_command(kind: FilesystemType, uuid: Uuid, options: &MkfsOptions) -> Command {
    let command = match kind {
        // -F: a file is no block device, which mkfs.ext4 would ask about. -m 0: no share is kept
        // back for root, whom no pod is. -e: as of XFS and btrfs, nothing is written to one that
        // was found damaged.
        FilesystemType::Ext4 => Command::new("mkfs.ext4", DEADLINE)
            .arg("-q")
            .arg("-F")
            .option("-b", "4096")
            .option("-m", "0")
            .option("-e", "remount-ro")
            .option("-U", uuid.to_string()),
        FilesystemType::Xfs => Command::new("mkfs.xfs", DEADLINE)
            .arg("-q")
            .option("-s", "size=4096")
            .option("-m", format!("uuid={uuid}")),
        // -K: there is nothing to discard in a new file.
        FilesystemType::Btrfs => Command::new("mkfs.btrfs", DEADLINE)
            .arg("-q")
            .arg("-K")
            .option("-s", "4096")
            .option("-U", uuid.to_string()),
    };
    let all = options.arguments().into_iter();
    all.fold(command, |command, (flag, value)| {
        command.option(flag, value)
    })
    .operand(STDIN)
}

fn pool_command(uuid: Uuid, label: &str) -> Command {
    // -K: nothing is discarded. An image is allocated in full on purpose, and a device was blank.
    Command::new("mkfs.xfs", DEADLINE)
        .arg("-q")
        .arg("-K")
        .option("-m", format!("reflink=1,uuid={uuid}"))
        .option("-L", label)
        .operand(STDIN)
}

fn run(system: &dyn System, file: BorrowedFd<'_>, command: &Command) -> Result<(), Cause> {
    let output = system.run(command, file)?;
    if output.exit == Some(0) {
        return Ok(());
    }
    let error: command::Error = command.failed(&output);
    Err(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_and_blocks_are_4096_bytes_and_the_file_stands_behind_the_options() {
        let uuid = Uuid::from_bytes([1; 16]);
        for (kind, options, expected) in [
            (
                FilesystemType::Ext4,
                "-I 512",
                "mkfs.ext4 -q -F -b 4096 -m 0 -e remount-ro -U 01010101-0101-0101-0101-010101010101 \
                 -I 512 /proc/self/fd/0",
            ),
            (
                FilesystemType::Xfs,
                "-i size=1024 -i maxpct=5",
                "mkfs.xfs -q -s size=4096 -m uuid=01010101-0101-0101-0101-010101010101 \
                 -i size=1024,maxpct=5 /proc/self/fd/0",
            ),
            (
                FilesystemType::Btrfs,
                "",
                "mkfs.btrfs -q -K -s 4096 -U 01010101-0101-0101-0101-010101010101 /proc/self/fd/0",
            ),
        ] {
            let options = MkfsOptions::parse(kind, options).unwrap();
            assert_eq!(volume_command(kind, uuid, &options).to_string(), expected);
        }
    }
}
