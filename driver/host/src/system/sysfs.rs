//! Reads block devices from `/proc`, `/sys` and `/dev`.

mod counters;
mod disks;
mod loops;
mod mappings;
pub(super) mod stack;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, major, makedev, minor, mknodat},
    io::Errno,
};

pub(super) use self::{
    counters::{btrfs_errors, ext4_errors, io_counters},
    disks::{device_errors, device_identity, has_partitions, is_read_only, sector_size},
    loops::{backing_file, bound_loops, is_kept, loop_settings, unbound_loops},
    mappings::{beneath, holders, mapped_devices, mapping_of, mapping_over},
};
use super::DeviceNumber;

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

/// Converts a device number of stat(2).
pub(super) fn device_number(device: u64) -> DeviceNumber {
    DeviceNumber {
        major: major(device),
        minor: minor(device),
    }
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
}
