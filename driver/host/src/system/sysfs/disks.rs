//! Attributes of disks and of their partitions.

use std::{fs, io};

use super::{number, text};
use crate::system::DeviceNumber;

/// Attributes that identify a disk: of NVMe, of SCSI and ATA, of a mapping, of an array, of virtio,
/// and of memory cards.
const IDENTITIES: [&str; 6] = [
    "wwid",
    "device/wwid",
    "dm/uuid",
    "md/uuid",
    "serial",
    "device/cid",
];

/// Returns the stable identity of a block device.
pub(in crate::system) fn device_identity(device: DeviceNumber) -> Option<String> {
    identity(&format!("/sys/dev/block/{device}"))
}

/// Reads the identity from the attributes in a device's directory. The first existing one counts,
/// so that the result is stable. One that cannot be read is skipped, as on a SCSI disk without a
/// name.
fn identity(folder: &str) -> Option<String> {
    let read = |path: String| text(&path).ok().flatten();
    // The directory of a partition is inside that of its disk.
    let (disk, part) = match read(format!("{folder}/partition")) {
        Some(number) => (format!("{folder}/.."), format!("-part{number}")),
        None => (folder.to_owned(), String::new()),
    };
    IDENTITIES.into_iter().find_map(|attribute| {
        let value = read(format!("{disk}/{attribute}"))?;
        Some(format!("{attribute}:{value}{part}"))
    })
}

/// Whether a block device has partitions known to the kernel.
pub(in crate::system) fn has_partitions(device: DeviceNumber) -> io::Result<bool> {
    for entry in fs::read_dir(format!("/sys/dev/block/{device}"))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.path().join("partition").try_exists()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a block device is read-only.
pub(in crate::system) fn is_read_only(device: DeviceNumber) -> io::Result<bool> {
    let found = number(&format!("/sys/dev/block/{device}/ro"))?;
    Ok(found.ok_or(io::ErrorKind::NotFound)? != 0)
}

/// Counts the failed requests of a block device, or of the disk of a partition.
pub(in crate::system) fn device_errors(device: DeviceNumber) -> io::Result<Option<u64>> {
    number_of_disk(device, "device/ioerr_cnt")
}

/// Returns the bytes of a logical sector of a block device, or of the disk of a partition.
pub(in crate::system) fn sector_size(device: DeviceNumber) -> io::Result<Option<u32>> {
    let size = number_of_disk(device, "queue/logical_block_size")?;
    size.map(u32::try_from)
        .transpose()
        .map_err(io::Error::other)
}

/// Reads an attribute of a block device, or of the disk of a partition, that is a number; none if it does not exist.
fn number_of_disk(device: DeviceNumber, attribute: &str) -> io::Result<Option<u64>> {
    // The directory of a partition is inside that of its disk, which has the attribute.
    for disk in ["", "/.."] {
        if let Some(found) = number(&format!("/sys/dev/block/{device}{disk}/{attribute}"))? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_disk_is_identified_by_its_world_wide_name_or_serial_number_and_a_partition_by_its_number()
    {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sda");
        let partition = disk.join("sda2");
        fs::create_dir_all(disk.join("device")).unwrap();
        fs::create_dir_all(&partition).unwrap();
        fs::write(partition.join("partition"), "2\n").unwrap();
        let found = |path: &Path| identity(path.to_str().unwrap());
        assert_eq!((found(&disk), found(&partition)), (None, None));
        fs::write(disk.join("serial"), " \n").unwrap();
        assert_eq!(found(&disk), None);
        fs::write(disk.join("serial"), "S1\n").unwrap();
        assert_eq!(found(&disk).unwrap(), "serial:S1");
        fs::write(disk.join("device/wwid"), "naa.5000c5\n").unwrap();
        assert_eq!(found(&disk).unwrap(), "device/wwid:naa.5000c5");
        assert_eq!(found(&partition).unwrap(), "device/wwid:naa.5000c5-part2");
    }
}
