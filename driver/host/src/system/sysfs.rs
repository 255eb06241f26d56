//! Reads block devices from `/proc`, `/sys` and `/dev`.

pub(super) mod stack;

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

use super::{
    BoundLoop, DeviceNumber, Holder, IoCounters, LoopSettings, MappedDevice, MappingName,
    devices::{MAPPING, MAPPING_UUID},
};
use crate::id::Uuid;

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

/// Lists names and numbers of all block devices.
pub(super) fn block_devices() -> io::Result<Vec<(String, DeviceNumber)>> {
    // Two header lines, then: major, minor, blocks, name.
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

/// Returns the path of a node of a block device: in `/dev`, or else created in Cistern's own
/// directory.
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

/// Lists the block devices built on a block device.
pub(super) fn holders(device: DeviceNumber) -> io::Result<Vec<Holder>> {
    holders_in(
        &format!("/sys/dev/block/{device}/holders"),
        Path::new("/sys/block"),
    )
}

/// Lists the holders in a folder of `/sys`, whose devices have folders of their names in another one.
fn holders_in(folder: &str, devices: &Path) -> io::Result<Vec<Holder>> {
    let mut holders = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let mapping = mapping_name(&devices.join(&name).display().to_string())?;
        holders.push(Holder { name, mapping });
    }
    holders.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(holders)
}

/// What device-mapper calls a device; none if it is no mapping, or one that is being removed.
fn mapping_name(folder: &str) -> io::Result<Option<MappingName>> {
    let read = |attribute: &str| match text(&format!("{folder}/dm/{attribute}")) {
        Err(error) if is_being_removed(&error) => Ok(None),
        result => result,
    };
    let Some(name) = read("name")? else {
        return Ok(None);
    };
    let uuid = read("uuid")?;
    Ok(Some(MappingName { name, uuid }))
}

/// Returns the stable identity of a block device.
pub(super) fn device_identity(device: DeviceNumber) -> Option<String> {
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
pub(super) fn has_partitions(device: DeviceNumber) -> io::Result<bool> {
    for entry in fs::read_dir(format!("/sys/dev/block/{device}"))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.path().join("partition").try_exists()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a block device is read-only.
pub(super) fn is_read_only(device: DeviceNumber) -> io::Result<bool> {
    let found = number(&format!("/sys/dev/block/{device}/ro"))?;
    Ok(found.ok_or(io::ErrorKind::NotFound)? != 0)
}

/// Counts the failed requests of a block device, or of the disk of a partition.
pub(super) fn device_errors(device: DeviceNumber) -> io::Result<Option<u64>> {
    number_of_disk(device, "device/ioerr_cnt")
}

/// Returns the bytes of a logical sector of a block device, or of the disk of a partition.
pub(super) fn sector_size(device: DeviceNumber) -> io::Result<Option<u32>> {
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

/// Counts the errors that the kernel found in the mounted ext4 on a device.
pub(super) fn ext4_errors(device: DeviceNumber) -> io::Result<Option<u64>> {
    // The kernel names the directory as the device: loop1, dm-0.
    let link = match fs::read_link(format!("/sys/dev/block/{device}")) {
        Ok(link) => link,
        Err(error) if is_no_attribute(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = link.file_name().unwrap_or_default().to_string_lossy();
    number(&format!("/sys/fs/ext4/{name}/errors_count"))
}

/// Counts the errors of all kinds on the devices of the mounted btrfs of this UUID.
pub(super) fn btrfs_errors(uuid: Uuid) -> io::Result<Option<u64>> {
    let devices = match fs::read_dir(format!("/sys/fs/btrfs/{uuid}/devinfo")) {
        Ok(devices) => devices,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut all = None;
    for device in devices {
        match fs::read_to_string(device?.path().join("error_stats")) {
            // Each line has a name and a number.
            Ok(text) => {
                let numbers = text.lines().filter_map(|line| line.split_once(' '));
                let numbers = numbers.filter_map(|(_, number)| number.parse::<u64>().ok());
                all = Some(numbers.fold(all.unwrap_or(0), u64::saturating_add));
            }
            // It is being unmounted, or the kernel does not report errors.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Reads a file of one line; none when it does not exist or is empty.
pub(super) fn text(path: &str) -> io::Result<Option<String>> {
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

/// Reads a file with one number, decimal or with `0x`; none when it does not exist.
pub(super) fn number(path: &str) -> io::Result<Option<u64>> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map(Some).map_err(io::Error::other)
}

/// Whether an attribute in `/sys` does not exist, or no longer does.
fn is_no_attribute(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(
            Errno::from_io_error(error),
            Some(Errno::NODEV | Errno::NOTDIR)
        )
}

/// Lists the bound loop devices, by number.
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

/// Lists the loop devices that are not bound.
pub(super) fn unbound_loops() -> io::Result<BTreeSet<u32>> {
    let mut unbound = BTreeSet::new();
    for number in loops()? {
        if backing_file(number)?.is_none() {
            unbound.insert(number);
        }
    }
    Ok(unbound)
}

/// Lists all loop devices of the kernel, bound or not.
fn loops() -> io::Result<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    Ok(numbers)
}

/// Returns the mapping of Cistern over a block device.
pub(super) fn mapping_over(device: DeviceNumber) -> io::Result<Option<DeviceNumber>> {
    for holder in names(&format!("/sys/dev/block/{device}/holders"))? {
        if is_mapping(&format!("/sys/block/{holder}"))? {
            let device = text(&format!("/sys/block/{holder}/dev"))?;
            return Ok(device.and_then(|device| DeviceNumber::parse(&device)));
        }
    }
    Ok(None)
}

/// Returns the device under a mapping of Cistern, and any other device itself.
pub(super) fn beneath(device: DeviceNumber) -> io::Result<DeviceNumber> {
    let folder = format!("/sys/dev/block/{device}");
    if !is_mapping(&folder)? {
        return Ok(device);
    }
    // A mapping of an encrypted volume has one device.
    let Some(under) = names(&format!("{folder}/slaves"))?.into_iter().next() else {
        return Ok(device);
    };
    let number = text(&format!("/sys/block/{under}/dev"))?;
    let number = number.and_then(|number| DeviceNumber::parse(&number));
    Ok(number.unwrap_or(device))
}

/// Returns what device-mapper calls a block device; none if it is no device of device-mapper.
pub(super) fn mapping_of(device: DeviceNumber) -> io::Result<Option<MappingName>> {
    mapping_name(&format!("/sys/dev/block/{device}"))
}

/// Lists the devices of device-mapper, without those that are being removed.
pub(super) fn mapped_devices() -> io::Result<Vec<MappedDevice>> {
    let mut devices = Vec::new();
    for name in names("/sys/block")? {
        if name.starts_with("dm-") {
            devices.extend(mapped_device(&format!("/sys/block/{name}"))?);
        }
    }
    Ok(devices)
}

fn mapped_device(folder: &str) -> io::Result<Option<MappedDevice>> {
    let Some(mapping) = mapping_name(folder)? else {
        return Ok(None);
    };
    let number = text(&format!("{folder}/dev"))?;
    let number = number.and_then(|number| DeviceNumber::parse(&number));
    let is_suspended = match text(&format!("{folder}/dm/suspended")) {
        Err(error) if is_being_removed(&error) => None,
        result => result?,
    };
    let is_suspended = is_suspended.as_deref() == Some("1");
    Ok(number.map(|number| MappedDevice {
        number,
        mapping,
        is_suspended,
    }))
}

/// Whether a device is a mapping of Cistern, which is not being removed.
fn is_mapping(folder: &str) -> io::Result<bool> {
    Ok(
        mapping_name(folder)?.is_some_and(|MappingName { name, uuid }| {
            name.starts_with(MAPPING) && uuid.is_some_and(|uuid| uuid.starts_with(MAPPING_UUID))
        }),
    )
}

/// Whether an attribute of a mapping cannot be read because device-mapper removes the mapping: first its name
/// (`dm_copy_name_and_uuid` in the kernel), then the device.
fn is_being_removed(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::IO | Errno::INVAL))
}

/// The names in a folder of `/sys`; none when it does not exist.
fn names(folder: &str) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if is_no_attribute(&error) => return Ok(Vec::new()),
        entries => entries?,
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// Returns the path of the file behind a loop device; none when it is not bound.
pub(super) fn backing_file(number: u32) -> io::Result<Option<PathBuf>> {
    match fs::read(format!("/sys/block/loop{number}/loop/backing_file")) {
        Ok(mut text) => {
            text.truncate(text.trim_ascii_end().len());
            Ok(Some(OsString::from_vec(text).into()))
        }
        // Not bound, or no longer bound.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a bound loop device stays bound when its last user closes it (autoclear is off).
pub(super) fn is_kept(loop_number: u32) -> io::Result<bool> {
    Ok(number(&format!("/sys/block/loop{loop_number}/loop/autoclear"))? == Some(0))
}

/// Bytes of the sectors in the kernel's counters, independent of the sector size of the device.
const COUNTED_SECTOR: u64 = 512;

/// Returns the counters of a block device; none when it does not exist.
pub(super) fn io_counters(device: DeviceNumber) -> io::Result<Option<IoCounters>> {
    let Some(text) = text(&format!("/sys/dev/block/{device}/stat"))? else {
        return Ok(None);
    };
    let counters = counters(&text).ok_or_else(|| io::Error::other("the counters are not numbers"));
    counters.map(Some)
}

/// Parses `stat` of a block device: for reads and for writes the completed, the merged, the sectors, and
/// the milliseconds.
fn counters(text: &str) -> Option<IoCounters> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = |skipped| numbers.nth(skipped)?.ok();
    let (reads, read) = (next(0)?, next(1)?);
    let (writes, written) = (next(1)?, next(1)?);
    Some(IoCounters {
        reads,
        read_bytes: read.checked_mul(COUNTED_SECTOR)?,
        writes,
        written_bytes: written.checked_mul(COUNTED_SECTOR)?,
    })
}

/// Returns the queue settings of a loop device.
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

/// Converts a device number of stat(2).
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
        // A path beneath a device without the attribute.
        assert_eq!(number(&format!("{path}/device/ioerr_cnt")).unwrap(), None);
    }

    #[test]
    fn an_attribute_that_device_mapper_cannot_read_any_more_is_of_a_mapping_that_is_being_removed()
    {
        for (errno, expected) in [
            (Errno::IO, true),
            (Errno::INVAL, true),
            (Errno::ACCESS, false),
        ] {
            assert_eq!(is_being_removed(&errno.into()), expected, "{errno}");
        }
    }

    #[test]
    fn the_holders_of_a_device_have_the_names_that_device_mapper_gives_them() {
        let folder = tempfile::tempdir().unwrap();
        let (holders, devices) = (folder.path().join("holders"), folder.path().join("block"));
        let found = || holders_in(holders.to_str().unwrap(), &devices);
        assert!(found().is_err(), "it is no device");
        fs::create_dir(&holders).unwrap();
        assert_eq!(found().unwrap(), []);
        for name in ["md0", "dm-1", "dm-0", "dm-9"] {
            fs::create_dir(holders.join(name)).unwrap();
        }
        for (device, name, uuid) in [("dm-0", "vg-data", "LVM-1"), ("dm-1", "by-hand", "")] {
            fs::create_dir_all(devices.join(device).join("dm")).unwrap();
            fs::write(devices.join(device).join("dm/name"), format!("{name}\n")).unwrap();
            fs::write(devices.join(device).join("dm/uuid"), format!("{uuid}\n")).unwrap();
        }
        let names: Vec<String> = found().unwrap().iter().map(Holder::to_string).collect();
        let expected = [
            "the logical volume vg-data (dm-0)",
            "the mapping by-hand (dm-1)",
            // It has been removed meanwhile.
            "the device dm-9",
            "the array md0",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn the_counters_of_a_device_are_those_of_its_reads_and_writes() {
        let text = "  12   3   80   9   20   1   160   7   0   5   16   0   0   0   0";
        let expected = IoCounters {
            reads: 12,
            read_bytes: 80 * 512,
            writes: 20,
            written_bytes: 160 * 512,
        };
        assert_eq!(counters(text), Some(expected));
        assert_eq!(counters("1 2 3"), None);
        assert_eq!(counters("1 2 3 4 5 6 many 8"), None);
    }

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
