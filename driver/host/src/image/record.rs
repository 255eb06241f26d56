//! How the identity of an image is written in its extended attribute.
//!
//! *Invariant:* versions before encryption know the access types `Filesystem` and `Block` alone. To them the identity
//! of an encrypted image is damaged, so they neither attach nor overwrite it.

use cistern_types::{Bytes, FilesystemType, Provisioning};
use serde::{Deserialize, Serialize};

use super::{Content, Identity, Owner};
use crate::{
    encryption::EncryptionState,
    id::{Uid, Uuid},
};

/// The fields of an [`Identity`] as they are written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    #[serde(flatten)]
    owner: Owner,
    uid: Uid,
    pool_uuid: Uuid,
    size: Bytes,
    #[serde(flatten)]
    content: RecordedContent,
    provisioning: Provisioning,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Uid>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "accessType")]
enum RecordedContent {
    Filesystem {
        filesystem: FilesystemType,
        uuid: Uuid,
    },
    Block,
    EncryptedFilesystem {
        filesystem: FilesystemType,
        uuid: Uuid,
        state: EncryptionState,
    },
    EncryptedBlock {
        state: EncryptionState,
    },
}

impl From<Identity> for Record {
    fn from(identity: Identity) -> Self {
        let content = match (identity.content, identity.encryption) {
            (Content::Block, None) => RecordedContent::Block,
            (Content::Block, Some(state)) => RecordedContent::EncryptedBlock { state },
            (Content::Filesystem { filesystem, uuid }, None) => {
                RecordedContent::Filesystem { filesystem, uuid }
            }
            (Content::Filesystem { filesystem, uuid }, Some(state)) => {
                RecordedContent::EncryptedFilesystem {
                    filesystem,
                    uuid,
                    state,
                }
            }
        };
        Self {
            owner: identity.owner,
            uid: identity.uid,
            pool_uuid: identity.pool_uuid,
            size: identity.size,
            content,
            provisioning: identity.provisioning,
            source: identity.source,
        }
    }
}

impl From<Record> for Identity {
    fn from(record: Record) -> Self {
        let (content, encryption) = match record.content {
            RecordedContent::Block => (Content::Block, None),
            RecordedContent::EncryptedBlock { state } => (Content::Block, Some(state)),
            RecordedContent::Filesystem { filesystem, uuid } => {
                (Content::Filesystem { filesystem, uuid }, None)
            }
            RecordedContent::EncryptedFilesystem {
                filesystem,
                uuid,
                state,
            } => (Content::Filesystem { filesystem, uuid }, Some(state)),
        };
        Self {
            owner: record.owner,
            uid: record.uid,
            pool_uuid: record.pool_uuid,
            size: record.size,
            content,
            provisioning: record.provisioning,
            source: record.source,
            encryption,
        }
    }
}
