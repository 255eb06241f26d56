//! Writes of the page cache.

use std::{
    io,
    ops::Range,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// Begins to write a part of a file to the disk. An error of the disk is left for the next fsync(2): only the flags
/// that wait would take it.
pub(crate) fn write_back(file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
    let offset = |offset: u64| i64::try_from(offset).map_err(io::Error::other);
    let length = part.end.saturating_sub(part.start);
    // SAFETY: the call takes no pointers.
    let result = unsafe {
        libc::sync_file_range(
            file.as_raw_fd(),
            offset(part.start)?,
            offset(length)?,
            libc::SYNC_FILE_RANGE_WRITE,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
