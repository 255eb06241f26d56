//! What device-mapper has made, and which devices are built on which.

use std::{fs, io, path::Path};

use rustix::io::Errno;

use super::{names, text};
use crate::system::{
    DeviceNumber, Holder, MappedDevice, MappingName,
    devices::{MAPPING, MAPPING_UUID},
};

/// Lists the block devices built on a block device.
pub(in crate::system) fn holders(device: DeviceNumber) -> io::Result<Vec<Holder>> {
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

/// Returns the mapping of Cistern over a block device.
pub(in crate::system) fn mapping_over(device: DeviceNumber) -> io::Result<Option<DeviceNumber>> {
    for holder in names(&format!("/sys/dev/block/{device}/holders"))? {
        if is_mapping(&format!("/sys/block/{holder}"))? {
            let device = text(&format!("/sys/block/{holder}/dev"))?;
            return Ok(device.and_then(|device| DeviceNumber::parse(&device)));
        }
    }
    Ok(None)
}

/// Returns the device under a mapping of Cistern, and any other device itself.
pub(in crate::system) fn beneath(device: DeviceNumber) -> io::Result<DeviceNumber> {
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
pub(in crate::system) fn mapping_of(device: DeviceNumber) -> io::Result<Option<MappingName>> {
    mapping_name(&format!("/sys/dev/block/{device}"))
}

/// Lists the devices of device-mapper, without those that are being removed.
pub(in crate::system) fn mapped_devices() -> io::Result<Vec<MappedDevice>> {
    let mut devices = Vec::new();
    for name in names("/sys/block")? {
        if name.starts_with("dm-") {
            devices.extend(mapped_device(&format!("/sys/block/{name}"))?);
        }
    }
    Ok(devices)
}

/// Reads a device of device-mapper from its folder; none if it is being removed.
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

/// What device-mapper calls a device; none if it is no mapping, or one that is being removed.
pub(super) fn mapping_name(folder: &str) -> io::Result<Option<MappingName>> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
