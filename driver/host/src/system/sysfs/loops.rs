//! Loop devices: the files behind them, and their settings.

use std::{
    collections::BTreeSet, ffi::OsString, fs, io, os::unix::ffi::OsStringExt as _, path::PathBuf,
};

use rustix::io::Errno;

use super::number;
use crate::system::{BoundLoop, LoopSettings};

/// Lists the bound loop devices, by number.
pub(in crate::system) fn bound_loops() -> io::Result<Vec<BoundLoop>> {
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
pub(in crate::system) fn unbound_loops() -> io::Result<BTreeSet<u32>> {
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

/// Returns the path of the file behind a loop device; none when it is not bound.
pub(in crate::system) fn backing_file(number: u32) -> io::Result<Option<PathBuf>> {
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
pub(in crate::system) fn is_kept(loop_number: u32) -> io::Result<bool> {
    Ok(number(&format!("/sys/block/loop{loop_number}/loop/autoclear"))? == Some(0))
}

/// Returns the queue settings of a loop device.
pub(in crate::system) fn loop_settings(number: u32) -> io::Result<LoopSettings> {
    let read = |attribute: &str| {
        let text = fs::read_to_string(format!("/sys/block/loop{number}/{attribute}"))?;
        text.trim().parse::<u32>().map_err(io::Error::other)
    };
    Ok(LoopSettings {
        direct_io: read("loop/dio")? == 1,
        sector_size: read("queue/logical_block_size")?,
    })
}
