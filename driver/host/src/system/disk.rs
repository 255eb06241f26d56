//! The disks of the machine, by sysfs and the names in `/dev/disk/by-id`. No disk is opened.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use cistern_types::Bytes;

use super::{
    DeviceNumber,
    sysfs::{device_number, number, text},
};

/// Where udev names each disk by what identifies it.
const BY_ID: &str = "/dev/disk/by-id";
/// Names of world-wide identity, the best first. All others are made of model and serial number.
const WORLD_WIDE: [&str; 3] = ["wwn-", "nvme-eui.", "nvme-uuid."];
/// Names of what software has made of disks: mappings, arrays, and volumes of LVM. A multipath device
/// has the name of its disk, too.
const MADE: [&str; 3] = ["dm-", "md-", "lvm-"];
/// Bytes of the sectors in which sysfs states a size.
const SECTOR: u64 = 512;

/// A disk of the machine: a device of its hardware, or another block device that has a name in
/// `/dev/disk/by-id` as a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Name that the kernel gave it.
    pub name: String,
    /// Number of the device.
    pub number: DeviceNumber,
    /// Its best path in `/dev/disk/by-id`; none when it has no name there.
    pub path: Option<PathBuf>,
    /// Model, as the disk states it.
    pub model: Option<String>,
    /// Serial number, as the disk states it.
    pub serial: Option<String>,
    /// Size in bytes.
    pub size: Bytes,
    /// Whether the kernel takes it for a disk that rotates.
    pub rotational: bool,
    /// Whether its medium can be removed.
    pub removable: bool,
}

/// Lists the disks of the machine, by name.
pub(super) fn disks() -> io::Result<Vec<Disk>> {
    let mut paths = stable_paths(Path::new(BY_ID))?;
    let mut disks = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let folder = format!("/sys/block/{name}");
        // A hidden path to an NVMe disk has none, and a disk that has just gone.
        let Some(number) =
            text(&format!("{folder}/dev"))?.and_then(|text| DeviceNumber::parse(&text))
        else {
            continue;
        };
        let path = paths.remove(&number);
        let is_hardware = fs::exists(format!("{folder}/device"))?;
        if is_hardware || path.is_some() {
            disks.push(disk(name, number, path, &folder)?);
        }
    }
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(disks)
}

fn disk(
    name: String,
    device: DeviceNumber,
    path: Option<PathBuf>,
    folder: &str,
) -> io::Result<Disk> {
    let flag = |attribute: &str| -> io::Result<bool> {
        Ok(number(&format!("{folder}/{attribute}"))?.is_some_and(|value| value != 0))
    };
    // A text that cannot be read is missing, as on a disk that does not state it.
    let read = |attributes: [&str; 2]| {
        let mut values = attributes.into_iter();
        values.find_map(|attribute| text(&format!("{folder}/{attribute}")).ok().flatten())
    };
    let sectors = number(&format!("{folder}/size"))?.unwrap_or(0);
    Ok(Disk {
        name,
        number: device,
        path,
        model: read(["device/model", "device/name"]),
        serial: read(["serial", "device/serial"])
            .or_else(|| page_of_serial(&format!("{folder}/device/vpd_pg80"))),
        size: Bytes(sectors.saturating_mul(SECTOR)),
        rotational: flag("queue/rotational")?,
        removable: flag("removable")?,
    })
}

/// The serial number of a SCSI or ATA disk: a page of the standard, with a head of four bytes.
fn page_of_serial(path: &str) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(bytes.get(4..)?);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// The best path of each device that has a name as a disk.
fn stable_paths(folder: &Path) -> io::Result<BTreeMap<DeviceNumber, PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut best = BTreeMap::<DeviceNumber, String>::new();
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if MADE.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        // A link may lead to a disk that has just gone.
        let Ok(device) = fs::metadata(entry.path()) else {
            continue;
        };
        if device.file_type().is_block_device() {
            let number = device_number(device.rdev());
            let is_better = |known: &String| rank(&name) < rank(known);
            if best.get(&number).is_none_or(is_better) {
                best.insert(number, name);
            }
        }
    }
    let path = |(number, name)| (number, folder.join(name));
    Ok(best.into_iter().map(path).collect())
}

/// Order of the names of one disk: the best is first. Of several of a kind the shortest has no suffix.
fn rank(name: &str) -> (usize, usize, &str) {
    let mut kinds = WORLD_WIDE.iter();
    let kind = kinds.position(|prefix| name.starts_with(prefix));
    (kind.unwrap_or(WORLD_WIDE.len()), name.len(), name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_world_wide_name_of_a_disk_is_better_than_its_serial_number() {
        let mut names = [
            "nvme-SAMSUNG_MZVL2_S676_1",
            "nvme-SAMSUNG_MZVL2_S676",
            "ata-ST4000_ZDH",
            "wwn-0x5000c500a1b2c3d4",
            "nvme-eui.0025385b21404321",
        ];
        names.sort_by_key(|name| rank(name));
        assert_eq!(
            names,
            [
                "wwn-0x5000c500a1b2c3d4",
                "nvme-eui.0025385b21404321",
                "ata-ST4000_ZDH",
                "nvme-SAMSUNG_MZVL2_S676",
                "nvme-SAMSUNG_MZVL2_S676_1",
            ]
        );
    }

    #[test]
    fn names_that_lead_to_no_block_device_name_no_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert_eq!(stable_paths(&path.join("absent")).unwrap().len(), 0);
        symlink("/dev/null", path.join("wwn-1")).unwrap();
        symlink("/dev/nothing-is-here", path.join("wwn-2")).unwrap();
        assert_eq!(stable_paths(path).unwrap().len(), 0);
    }

    #[test]
    fn the_serial_number_of_a_scsi_disk_follows_the_head_of_its_page() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vpd_pg80");
        let path = file.to_str().unwrap();
        assert_eq!(page_of_serial(path), None);
        for (page, expected) in [
            (&b"\0\x80\0\x08  ZDH1234"[..], Some("ZDH1234")),
            (b"\0\x80\0\0", None),
            (b"\0", None),
        ] {
            fs::write(&file, page).unwrap();
            assert_eq!(page_of_serial(path).as_deref(), expected);
        }
    }
}
