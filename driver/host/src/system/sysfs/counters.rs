//! What the kernel counts: requests of a device, and errors of the filesystem on it.

use std::{fs, io};

use super::{is_no_attribute, number, text};
use crate::{
    id::Uuid,
    system::{DeviceNumber, IoCounters},
};

/// Bytes of the sectors in the kernel's counters, independent of the sector size of the device.
const COUNTED_SECTOR: u64 = 512;

/// Returns the counters of a block device; none when it does not exist.
pub(in crate::system) fn io_counters(device: DeviceNumber) -> io::Result<Option<IoCounters>> {
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

/// Counts the errors that the kernel found in the mounted ext4 on a device.
pub(in crate::system) fn ext4_errors(device: DeviceNumber) -> io::Result<Option<u64>> {
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
pub(in crate::system) fn btrfs_errors(uuid: Uuid) -> io::Result<Option<u64>> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
