//! Encrypted images: what `encryption.rs` does to a device, for the image behind it.

mod complete;
mod own;

use std::os::fd::BorrowedFd;

use cistern_types::{Bytes, FilesystemType, MkfsOptions};

use super::{Content, make::verify_made};
use crate::{cause::Cause, encryption::EncryptionState, id::Uuid, mkfs, system::System};

/// Returns what a clone has of an encrypted image with this content.
pub(super) fn of_clone(state: EncryptionState, content: Content) -> (Content, EncryptionState) {
    let Content::Filesystem { filesystem, uuid } = content else {
        let is_blank = state == EncryptionState::Unformatted;
        let state = if is_blank {
            state
        } else {
            EncryptionState::Complete
        };
        return (content, state);
    };
    let state = match (state, filesystem) {
        // The kernel accepts two ext4 of one UUID.
        (EncryptionState::Complete, FilesystemType::Ext4) => return (content, state),
        (EncryptionState::Complete, FilesystemType::Xfs | FilesystemType::Btrfs) => {
            EncryptionState::Cloned { uuid }
        }
        (EncryptionState::Unformatted | EncryptionState::Cloned { .. }, _) => state,
    };
    let uuid = Uuid::new_v4();
    (Content::Filesystem { filesystem, uuid }, state)
}

/// Makes the filesystem of a volume on a new mapping; none for a raw block volume.
pub(crate) fn make_filesystem(
    system: &dyn System,
    mapping: BorrowedFd<'_>,
    content: Content,
    options: &MkfsOptions,
) -> Result<(), Cause> {
    let Content::Filesystem { filesystem, uuid } = content else {
        return Ok(());
    };
    mkfs::mapping(system, mapping, filesystem, uuid, options)?;
    let size = system.device_size(mapping)?;
    verify_made(system, mapping, (filesystem, uuid), Bytes(size))
}
