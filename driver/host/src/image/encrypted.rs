//! Encrypted images: what `encryption.rs` does to a device, for the image behind it.

mod complete;
mod own;

use cistern_types::FilesystemType;

use super::Content;
use crate::{encryption::EncryptionState, id::Uuid};

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
