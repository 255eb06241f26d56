//! Encryption at rest: LUKS2 between the loop device of an image and its filesystem.
//!
//! ```text
//! image ── loop device ── mapping `cistern-<image>` ── filesystem, or the device of a raw block volume
//! 16 MiB header           (dm-crypt)
//! ```
//!
//! The key arrives when a volume is staged for the first time, so an image is made without a header and without a
//! filesystem. Its identity says that it is [`EncryptionState::Unformatted`]; only then `image/encrypted/complete.rs`
//! formats, and what it formats is a new file that replaces the image by one rename. cryptsetup(8) owns the format.
//!
//! *Invariants:* a key is in no argument, environment, file or message. Nothing in a file with a header is formatted
//! again. A mapping without a mount goes away with the last process that has it open, except that of a raw block
//! volume, which has no mount.

pub(crate) mod header;
mod key;
pub(crate) mod luks;
mod mapping;
mod unlock;

use std::{io, path::Path};

use cistern_types::{Bytes, Encryption};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use serde::{Deserialize, Serialize};

use crate::{command, id::Uuid};

pub(crate) use self::mapping::{Lifetime, Mapping, MappingOptions};
pub use self::{
    header::HeaderConflict,
    key::{InvalidKey, Key, Keys},
    unlock::Unlock,
};

/// Exists if the kernel has device-mapper.
pub(crate) const DEVICE_MAPPER: &str = "/sys/class/misc/device-mapper";

/// Size of the header at the start of an encrypted image, in which LUKS2 keeps its metadata and keyslots.
pub const HEADER: Bytes = Encryption::HEADER;

/// What a node lacks for encrypted volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// cryptsetup is not installed.
    #[error("cryptsetup is missing")]
    Tool,
    /// The kernel shows no device-mapper.
    #[error("the kernel has no device-mapper: load its modules (modprobe dm_crypt)")]
    DeviceMapper,
}

/// Checks whether this node can have encrypted volumes. Fails with what it lacks. Looks at files only.
pub fn availability() -> Result<(), Unavailable> {
    if !command::is_installed(luks::PROGRAM) {
        return Err(Unavailable::Tool);
    }
    if !Path::new(DEVICE_MAPPER).exists() {
        return Err(Unavailable::DeviceMapper);
    }
    Ok(())
}

/// Keeps this process, and the tools that it starts, from leaving core dumps, which would have the keys in them. Fails if
/// the kernel refuses.
pub fn forbid_core_dumps() -> io::Result<()> {
    // A file of one byte is never written. For a program that takes core dumps (`|` in kernel.core_pattern), the kernel
    // ignores each limit but 1, at which it gets none.
    let least = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    setrlimit(Resource::Core, least)?;
    // A tool inherits the limit alone.
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// What an encrypted image has. Its identity names the filesystem and the UUID that it has once it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EncryptionState {
    /// No header: its volume was never staged.
    Unformatted,
    /// The header and the filesystem of the image that it was cloned from.
    Cloned {
        /// UUID that the filesystem has until then. The kernel does not mount two filesystems of one UUID.
        uuid: Uuid,
    },
    /// A header, and the filesystem of a volume that has one.
    Complete,
}

impl EncryptionState {
    /// Whether the image is completed when its volume is staged.
    pub fn is_incomplete(self) -> bool {
        self != Self::Complete
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn neither_a_file_nor_a_program_gets_a_core_dump() {
        forbid_core_dumps().unwrap();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(1), Some(1)));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
