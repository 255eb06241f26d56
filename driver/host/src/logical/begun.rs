//! Disks that a call has begun to make physical volumes of a new group, and was interrupted.
//!
//! ```text
//! byte 512   label with the UUID of the physical volume
//! byte 4096  header: where the text of the group is, nothing at first
//! byte 4608  texts of the group, one behind the other
//! ```
//!
//! LVM itself goes on with no such disk: it takes a label that is marked as used for one of a group that it does not find.
//!
//! *Invariant:* what is cleared was never in a group: no text of a group is there, or no header has said where it is.

use std::{io, ops::Range, os::fd::AsFd as _, path::Path};

use crate::system::{OFlags, System};

/// Where an empty disk and one that has been begun differ. The first text is in it.
const BEGINNING: usize = 1 << 20;
/// The order in which that is cleared: the label is last, so that the disk is known again in between.
const PARTS: [Range<u64>; 3] = [8192..BEGINNING as u64, 4096..8192, 0..4096];
const LABEL: Range<usize> = 512..1024;
const LABEL_MAGIC: &[u8] = b"LABELONE";
/// Where the UUID is in a label.
const UUID: usize = 32;
const HEADER: Range<usize> = 4096..4608;
const HEADER_MAGIC: &[u8] = b" LVM2 x[5A%r0N*>";
/// Where the magic bytes are in a header, and where it says where the text is. A second location behind that is of a text
/// that is not in force yet.
const MAGIC: usize = 4;
const LOCATION: Range<usize> = HEADER.start + 40..HEADER.start + 64;

/// Whether a disk was begun, and was never in a group. The UUIDs of the pool's physical volumes begin with `prefix`.
pub(super) fn is_begun(system: &dyn System, disk: &Path, prefix: &str) -> io::Result<bool> {
    let opened = system.open(disk, OFlags::RDONLY)?;
    let last = system.device_size(opened.as_fd())?;
    let last = last.saturating_sub(BEGINNING as u64);
    let end = system.read(opened.as_fd(), last, BEGINNING)?;
    let first = system.read(opened.as_fd(), 0, BEGINNING)?;
    Ok(first.len() == BEGINNING && is_zero(&end, 0..BEGINNING) && was_never_used(&first, prefix))
}

/// Makes a disk that was begun blank again.
pub(super) fn clear(system: &dyn System, disk: &Path) -> io::Result<()> {
    let opened = system.open(disk, OFlags::RDWR | OFlags::EXCL)?;
    for part in &PARTS {
        system.zero(opened.as_fd(), part)?;
        system.sync(opened.as_fd())?;
    }
    Ok(())
}

/// Whether a disk that begins so has a label of the pool, or none, and was never in a group.
fn was_never_used(first: &[u8], prefix: &str) -> bool {
    let has = |at: usize, bytes: &[u8]| first.get(at..).is_some_and(|it| it.starts_with(bytes));
    let is_own = has(LABEL.start, LABEL_MAGIC) && has(LABEL.start + UUID, prefix.as_bytes());
    let has_header = has(HEADER.start + MAGIC, HEADER_MAGIC);
    let has_no_text = is_zero(first, HEADER.end..first.len());
    let has_no_location = has_header && is_zero(first, LOCATION);
    let is_whole = is_zero(first, 0..LABEL.start) && is_zero(first, LABEL.end..HEADER.start);
    let has_no_label = is_zero(first, LABEL);
    is_whole
        && (is_own && (has_no_text || has_no_location) || has_no_label && has_header && has_no_text)
}

fn is_zero(bytes: &[u8], range: Range<usize>) -> bool {
    let part = bytes.get(range);
    part.is_some_and(|part| part.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "0123456789abcistern";

    /// The beginning of a disk with these bytes at these places.
    fn disk(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        for (at, part) in parts {
            bytes[*at..*at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    #[test]
    fn a_disk_was_begun_if_its_label_is_the_pools_and_it_has_no_text_or_no_header_names_it() {
        let label = [LABEL_MAGIC, &[1; 24], PREFIX.as_bytes()].concat();
        let other = [LABEL_MAGIC, &[1; 24], b"another"].concat();
        let label = (LABEL.start, label.as_slice());
        let other = (LABEL.start, other.as_slice());
        let header = (HEADER.start + MAGIC, HEADER_MAGIC);
        let location = (LOCATION.start, &[0, 2][..]);
        let next_location = (LOCATION.end, &[0, 2][..]);
        let text = (HEADER.end, &b"cistern-"[..]);
        for (parts, expected) in [
            (&[label][..], true),
            (&[label, header], true),
            (&[label, header, text], true),
            (&[label, header, location], true),
            (&[label, header, next_location, text], true),
            (&[header], true),
            // It is in a group, or it is not known to be the pool's.
            (&[label, header, location, text], false),
            (&[label, text], false),
            (&[header, text], false),
            (&[header, location, text], false),
            (&[other, header], false),
            (&[text], false),
            (&[], false),
            (&[label, header, (0, b"x")], false),
            (&[label, header, (2048, b"x")], false),
        ] {
            assert_eq!(was_never_used(&disk(parts), PREFIX), expected, "{parts:?}");
        }
    }
}
