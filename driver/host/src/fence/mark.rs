//! The mark of an image that is closing or closed: the UID of the move, in an extended attribute.

use std::{io, os::fd::BorrowedFd};

use crate::{id::Uid, system::System};

/// The extended attribute. Only root can read or change it.
const FENCE: &str = "trusted.cistern.fence";

/// Reads the UID of the move; none without a mark. Fails if the mark is not a UID.
pub(super) fn read(system: &dyn System, file: BorrowedFd<'_>) -> io::Result<Option<Uid>> {
    let Some(value) = system.attribute(file, FENCE)? else {
        return Ok(None);
    };
    let text = String::from_utf8(value).map_err(invalid)?;
    text.parse().map(Some).map_err(invalid)
}

/// Marks a file without a mark. The caller syncs it.
pub(super) fn set(system: &dyn System, file: BorrowedFd<'_>, by: &Uid) -> io::Result<()> {
    system.set_attribute(file, FENCE, by.as_str().as_bytes())
}

/// Removes the mark. The caller syncs the file.
pub(super) fn clear(system: &dyn System, file: BorrowedFd<'_>) -> io::Result<()> {
    system.remove_attribute(file, FENCE)
}

/// Why a closed image without a mark is not used.
pub(super) fn missing() -> io::Error {
    invalid("it does not exist")
}

fn invalid(why: impl std::fmt::Display) -> io::Error {
    let text = format!(
        "the extended attribute {FENCE} must be the UID of the VolumeMove that the volume is closed for: {why}"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}
