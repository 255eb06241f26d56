//! Makes filesystems.
//!
//! *Invariant:* the tool gets an open file as its standard input and no path, so it formats exactly
//! the file or device that the caller made or verified to be blank. Nothing else in Cistern can
//! format.

use std::{os::fd::BorrowedFd, time::Duration};

use cistern_types::{FilesystemType, MkfsOptions};

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
    let command = volume_command(kind, uuid, options.arguments());
    run(system, image, &command)
}

/// Makes the filesystem of a volume on a new device: a logical volume that reads zero, or a mapping. What a mapping
/// shows of an empty file are random bytes, which can be like a signature.
pub(crate) fn mapping(
    system: &dyn System,
    device: BorrowedFd<'_>,
    kind: FilesystemType,
    uuid: Uuid,
    options: &MkfsOptions,
) -> Result<(), Cause> {
    run(system, device, &device_command(kind, uuid, options))
}

/// Makes the filesystem of a pool in a new image.
pub(crate) fn pool_image(
    system: &dyn System,
    image: BorrowedFd<'_>,
    uuid: Uuid,
    label: &str,
) -> Result<(), Cause> {
    // Its loop device has sectors of 4096 bytes.
    let command = pool_command(uuid, label).option("-s", "size=4096");
    run(system, image, &command)
}

/// Makes the filesystem of a pool on a device.
///
/// mkfs.xfs checks again for known signatures and refuses to overwrite them, unless `unfinished`
/// says that the device has an XFS of Cistern whose mkfs was interrupted.
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

/// The command for a new device. It has nothing to discard, and to discard all of a large one can take a disk minutes.
fn device_command(kind: FilesystemType, uuid: Uuid, options: &MkfsOptions) -> Command {
    let mut arguments = options.arguments();
    match kind {
        FilesystemType::Ext4 => {
            // mkfs.ext4 uses the last -E alone. It accepts any content.
            match arguments.iter_mut().find(|(flag, _)| *flag == "-E") {
                Some((_, values)) => values.push_str(",nodiscard"),
                None => arguments.push(("-E", "nodiscard".to_owned())),
            }
            volume_command(kind, uuid, arguments)
        }
        FilesystemType::Xfs => volume_command(kind, uuid, arguments).arg("-K").arg("-f"),
        FilesystemType::Btrfs => volume_command(kind, uuid, arguments).arg("-f"),
    }
}

fn volume_command(
    kind: FilesystemType,
    uuid: Uuid,
    arguments: Vec<(&'static str, String)>,
) -> Command {
    let command = match kind {
        // -F: accept a file, which mkfs.ext4 would question. -m 0: reserve no blocks for root,
        // which pods do not use. -e: stop writing when damage is found, as XFS and btrfs do.
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
        // -K: a new file has nothing to discard.
        FilesystemType::Btrfs => Command::new("mkfs.btrfs", DEADLINE)
            .arg("-q")
            .arg("-K")
            .option("-s", "4096")
            .option("-U", uuid.to_string()),
    };
    let all = arguments.into_iter();
    all.fold(command, |command, (flag, value)| {
        command.option(flag, value)
    })
    .operand(STDIN)
}

fn pool_command(uuid: Uuid, label: &str) -> Command {
    // -K: do not discard. An image is allocated in full on purpose, and a device was blank.
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
    fn sectors_and_blocks_are_4096_bytes_and_the_file_follows_the_options() {
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
            let command = volume_command(kind, uuid, options.arguments());
            assert_eq!(command.to_string(), expected);
        }
    }

    #[test]
    fn a_new_device_is_not_discarded_whatever_the_options_are() {
        for (kind, options, expected) in [
            (FilesystemType::Ext4, "", "-E nodiscard"),
            (
                FilesystemType::Ext4,
                "-I 512 -E stride=4,stripe_width=16 -O large_dir",
                "-I 512 -E stride=4,stripe_width=16,nodiscard -O large_dir",
            ),
            (FilesystemType::Xfs, "-i size=1024", "-i size=1024 -K -f"),
            (FilesystemType::Btrfs, "-n 16k", "-n 16k -f"),
        ] {
            let options = MkfsOptions::parse(kind, options).unwrap();
            let command = device_command(kind, Uuid::from_bytes([1; 16]), &options).to_string();
            let expected = format!(" {expected} {STDIN}");
            assert!(command.ends_with(&expected), "{command}");
            assert!(kind != FilesystemType::Btrfs || command.contains(" -K "));
        }
    }
}
