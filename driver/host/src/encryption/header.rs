//! The header of an encrypted image: whether it has one.

use std::{io, os::fd::BorrowedFd};

use crate::system::System;

/// `struct luks2_hdr_disk`: magic and version, big-endian.
const MAGIC: [u8; 8] = [b'L', b'U', b'K', b'S', 0xba, 0xbe, 0, 2];

/// How the file of an encrypted image differs from what was made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderConflict {
    /// The image is not encrypted, and the request has a key.
    #[error("it is not encrypted, as the request has it")]
    NotEncrypted,
    /// There is no header of LUKS2.
    #[error(
        "it has no LUKS2 header: was it overwritten? A copy of the image or a snapshot has one"
    )]
    Missing,
    /// The image was never formatted, and has data.
    #[error("it was never formatted, and has data, which is not overwritten")]
    NotBlank,
}

/// Whether a file begins with a header of LUKS2.
pub(crate) fn exists(system: &dyn System, file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(system.read(file, 0, MAGIC.len())? == MAGIC)
}
