//! What block devices are built on.

use std::{io, path::Path};

use super::{block_devices, device_path, loops::backing_file, mappings::mapping_name, names, text};
use crate::system::{DeviceNumber, StackedDevice};

/// Lists the block devices with what each is built on.
pub(in crate::system) fn stacked_devices(nodes: &Path) -> io::Result<Vec<StackedDevice>> {
    let mut devices = Vec::new();
    for (name, number) in block_devices()? {
        let folder = format!("/sys/dev/block/{number}");
        let mut beneath = Vec::new();
        for slave in names(&format!("{folder}/slaves"))? {
            beneath.extend(number_in(&format!("{folder}/slaves/{slave}"))?);
        }
        if text(&format!("{folder}/partition"))?.is_some() {
            beneath.extend(number_in(&format!("{folder}/.."))?);
        }
        let file = number.as_loop().map(backing_file).transpose()?;
        devices.push(StackedDevice {
            path: device_path(nodes, &name, number)?,
            mapping: mapping_name(&folder)?,
            backing_file: file.flatten(),
            name,
            number,
            beneath,
        });
    }
    Ok(devices)
}

/// The number of the device of a folder; none if it is gone.
fn number_in(folder: &str) -> io::Result<Option<DeviceNumber>> {
    let number = text(&format!("{folder}/dev"))?;
    Ok(number.and_then(|number| DeviceNumber::parse(&number)))
}
