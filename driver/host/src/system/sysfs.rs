//! Block devices as `/proc`, `/sys` and `/dev` tell of them.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, major, makedev, minor, mknodat},
    io::Errno,
};

use super::{BoundLoop, DeviceNumber, LoopSettings};
use crate::id::Uuid;

/// Attributes that tell a disk from every other: of NVMe, of SCSI and ATA, of a mapping, of an array,
/// of virtio, and of memory cards.
const IDENTITIES: [&str; 6] = [
    "wwid",
    "device/wwid",
    "dm/uuid",
    "md/uuid",
    "serial",
    "device/cid",
];

/// Names and numbers of all block devices.
pub(super) fn block_devices() -> io::Result<Vec<(String, DeviceNumber)>> {
    // Two lines of heading, then: major, minor, blocks, name.
    let text = fs::read_to_string("/proc/partitions")?;
    let read = |line: &str| {
        let mut fields = line.split_whitespace();
        let major = fields.next()?.parse().ok()?;
        let minor = fields.next()?.parse().ok()?;
        let name = fields.nth(1)?.to_owned();
        Some((name, DeviceNumber { major, minor }))
    };
    Ok(text.lines().filter_map(read).collect())
}

/// A path at which a block device can be opened: in `/dev`, or else made in a folder of our own.
pub(super) fn device_path(nodes: &Path, name: &str, device: DeviceNumber) -> io::Result<PathBuf> {
    let is_it = |path: &Path| {
        let node = rustix::fs::lstat(path).ok();
        node.is_some_and(|node| {
            FileType::from_raw_mode(node.st_mode) == FileType::BlockDevice
                && device_number(node.st_rdev) == device
        })
    };
    let public = Path::new("/dev").join(name);
    if is_it(&public) {
        return Ok(public);
    }
    fs::create_dir_all(nodes)?;
    let private = nodes.join(device.node_name());
    let number = makedev(device.major, device.minor);
    match mknodat(
        CWD,
        &private,
        FileType::BlockDevice,
        Mode::RUSR | Mode::WUSR,
        number,
    ) {
        Ok(()) | Err(Errno::EXIST) if is_it(&private) => Ok(private),
        Ok(()) | Err(Errno::EXIST) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) => Err(error.into()),
    }
}

/// Names of the block devices that are made of a block device.
pub(super) fn holders(device: DeviceNumber) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(format!("/sys/dev/block/{device}/holders"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

/// What tells a block device from every other.
pub(super) fn device_identity(device: DeviceNumber) -> Option<String> {
    identity(&format!("/sys/dev/block/{device}"))
}

/// What the attributes in a device's folder tell. The first that is there counts, so that it is the
/// same each time. One that cannot be read tells nothing: a SCSI disk without a name answers so.
fn identity(folder: &str) -> Option<String> {
    let read = |path: String| text(&path).ok().flatten();
    // The folder of a partition lies in that of its disk.
    let (disk, part) = match read(format!("{folder}/partition")) {
        Some(number) => (format!("{folder}/.."), format!("-part{number}")),
        None => (folder.to_owned(), String::new()),
    };
    IDENTITIES.into_iter().find_map(|attribute| {
        let value = read(format!("{disk}/{attribute}"))?;
        Some(format!("{attribute}:{value}{part}"))
    })
}

/// Whether the kernel knows partitions of a block device.
pub(super) fn has_partitions(device: DeviceNumber) -> io::Result<bool> {
    for entry in fs::read_dir(format!("/sys/dev/block/{device}"))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.path().join("partition").try_exists()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a block device takes no writes.
pub(super) fn is_read_only(device: DeviceNumber) -> io::Result<bool> {
    let found = number(&format!("/sys/dev/block/{device}/ro"))?;
    Ok(found.ok_or(io::ErrorKind::NotFound)? != 0)
}

/// Requests that a block device, or the disk that it is a part of, has failed.
pub(super) fn device_errors(device: DeviceNumber) -> io::Result<Option<u64>> {
    // What is a directory within the disk's is a partition.
    for disk in ["", "/.."] {
        let path = format!("/sys/dev/block/{device}{disk}/device/ioerr_cnt");
        if let Some(count) = number(&path)? {
            return Ok(Some(count));
        }
    }
    Ok(None)
}

/// Errors that the mounted ext4 on a loop device has found in itself.
pub(super) fn ext4_errors(loop_number: u32) -> io::Result<Option<u64>> {
    number(&format!("/sys/fs/ext4/loop{loop_number}/errors_count"))
}

/// Errors of all kinds that the mounted btrfs of this UUID has had on its devices.
pub(super) fn btrfs_errors(uuid: Uuid) -> io::Result<Option<u64>> {
    let devices = match fs::read_dir(format!("/sys/fs/btrfs/{uuid}/devinfo")) {
        Ok(devices) => devices,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut all = None;
    for device in devices {
        match fs::read_to_string(device?.path().join("error_stats")) {
            // Lines of a name and a number.
            Ok(text) => {
                let numbers = text.lines().filter_map(|line| line.split_once(' '));
                let numbers = numbers.filter_map(|(_, number)| number.parse::<u64>().ok());
                all = Some(numbers.fold(all.unwrap_or(0), u64::saturating_add));
            }
            // It is being unmounted, or the kernel does not tell.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// What stands in a file of one line; none when there is no such file, or nothing in it.
fn text(path: &str) -> io::Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            Ok((!text.is_empty()).then(|| text.to_owned()))
        }
        Err(error) if is_no_attribute(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A number, decimal or with `0x`, that stands alone in a file; none when there is no such file.
fn number(path: &str) -> io::Result<Option<u64>> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map(Some).map_err(io::Error::other)
}

/// Whether something in `/sys` is not there, or no longer.
fn is_no_attribute(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(
            Errno::from_io_error(error),
            Some(Errno::NODEV | Errno::NOTDIR)
        )
}

/// The loop devices that are bound, by number.
pub(super) fn bound_loops() -> io::Result<Vec<BoundLoop>> {
    let mut bound = Vec::new();
    for number in loops()? {
        if let Some(backing_file) = backing_file(number)? {
            bound.push(BoundLoop {
                number,
                backing_file,
            });
        }
    }
    Ok(bound)
}

/// The loop devices that are not bound.
pub(super) fn unbound_loops() -> io::Result<BTreeSet<u32>> {
    let mut unbound = BTreeSet::new();
    for number in loops()? {
        if backing_file(number)?.is_none() {
            unbound.insert(number);
        }
    }
    Ok(unbound)
}

/// All loop devices that the kernel has, bound or not.
fn loops() -> io::Result<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    Ok(numbers)
}

/// Name of the file behind a loop device, if it is bound.
pub(super) fn backing_file(number: u32) -> io::Result<Option<PathBuf>> {
    match fs::read(format!("/sys/block/loop{number}/loop/backing_file")) {
        Ok(mut text) => {
            text.truncate(text.trim_ascii_end().len());
            Ok(Some(OsString::from_vec(text).into()))
        }
        // Not bound, or no longer.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a loop device keeps its file when its last user closes it.
pub(super) fn is_kept(loop_number: u32) -> io::Result<bool> {
    Ok(number(&format!("/sys/block/loop{loop_number}/loop/autoclear"))? == Some(0))
}

/// What a loop device's queue is like.
pub(super) fn loop_settings(number: u32) -> io::Result<LoopSettings> {
    let read = |attribute: &str| {
        let text = fs::read_to_string(format!("/sys/block/loop{number}/{attribute}"))?;
        text.trim().parse::<u32>().map_err(io::Error::other)
    };
    Ok(LoopSettings {
        direct_io: read("loop/dio")? == 1,
        sector_size: read("queue/logical_block_size")?,
    })
}

/// A device number as stat(2) has it.
pub(super) fn device_number(device: u64) -> DeviceNumber {
    DeviceNumber {
        major: major(device),
        minor: minor(device),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_as_the_driver_writes_it_and_is_none_where_there_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ioerr_cnt");
        let path = file.to_str().unwrap();
        assert_eq!(number(path).unwrap(), None);
        for (text, expected) in [("0x1f\n", 31), ("12\n", 12), ("0", 0)] {
            fs::write(&file, text).unwrap();
            assert_eq!(number(path).unwrap(), Some(expected), "{text:?}");
        }
        fs::write(&file, "many").unwrap();
        assert!(number(path).is_err());
        // What is asked for beneath a device that has none.
        assert_eq!(number(&format!("{path}/device/ioerr_cnt")).unwrap(), None);
    }

    #[test]
    fn a_disk_is_known_by_its_world_wide_name_or_else_its_serial_number_and_a_partition_by_its_own()
    {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sda");
        let partition = disk.join("sda2");
        fs::create_dir_all(disk.join("device")).unwrap();
        fs::create_dir_all(&partition).unwrap();
        fs::write(partition.join("partition"), "2\n").unwrap();
        let told = |path: &Path| identity(path.to_str().unwrap());
        assert_eq!((told(&disk), told(&partition)), (None, None));
        fs::write(disk.join("serial"), " \n").unwrap();
        assert_eq!(told(&disk), None);
        fs::write(disk.join("serial"), "S1\n").unwrap();
        assert_eq!(told(&disk).unwrap(), "serial:S1");
        fs::write(disk.join("device/wwid"), "naa.5000c5\n").unwrap();
        assert_eq!(told(&disk).unwrap(), "device/wwid:naa.5000c5");
        assert_eq!(told(&partition).unwrap(), "device/wwid:naa.5000c5-part2");
    }
}
