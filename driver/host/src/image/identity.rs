//! The identity that an image records in its extended attribute: owner and content.

use std::{fmt, io, os::fd::BorrowedFd};

use chrono::{DateTime, Utc};
use cistern_types::{Bytes, Encryption, FilesystemType, Provisioning};
use serde::{Deserialize, Serialize};

use super::{IDENTITY, record::Record};
use crate::{
    encryption::EncryptionState,
    id::{Uid, Uuid},
    system::System,
};

/// Owner and original spec of an image. Only the provisioning changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Record", into = "Record")]
pub struct Identity {
    /// The object that made the image.
    pub owner: Owner,
    /// UID of that object.
    pub uid: Uid,
    /// UUID of the pool's filesystem.
    pub pool_uuid: Uuid,
    /// Size at creation.
    pub size: Bytes,
    /// Content of the image: what is behind the header of an encrypted one.
    pub content: Content,
    /// Whether the image is allocated in full. For a snapshot: whether its volume was.
    pub provisioning: Provisioning,
    /// The image that a volume was cloned from; none for an empty volume.
    pub source: Option<Uid>,
    /// What an encrypted image has; none for one that is not encrypted.
    pub encryption: Option<EncryptionState>,
}

impl Identity {
    /// Returns the size of the header in front of the content.
    pub fn header(&self) -> Bytes {
        Encryption::header_of(self.encrypted_with())
    }

    /// Returns how the content is encrypted; none if it is not.
    pub fn encrypted_with(&self) -> Option<Encryption> {
        self.encryption.map(|_| Encryption::Luks2)
    }

    /// Whether all blocks of the file are to be allocated. Another file takes the place of an encrypted image that is not
    /// complete, and is allocated then: both would need more than is reserved.
    pub fn is_allocated(&self) -> bool {
        let is_incomplete = self.encryption.is_some_and(EncryptionState::is_incomplete);
        self.provisioning == Provisioning::Thick && !is_incomplete
    }

    /// Writes the identity to a file that has none, and syncs it.
    pub(crate) fn write(&self, system: &dyn System, file: BorrowedFd<'_>) -> io::Result<()> {
        system.set_attribute(file, IDENTITY, &self.serialize()?)?;
        system.sync(file)
    }

    /// Replaces the identity of an image and syncs its file.
    pub(crate) fn replace(&self, system: &dyn System, file: BorrowedFd<'_>) -> io::Result<()> {
        system.replace_attribute(file, IDENTITY, &self.serialize()?)?;
        system.sync(file)
    }

    fn serialize(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(io::Error::other)
    }
}

/// The object that made an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Owner {
    /// The PoolVolume of this name.
    Volume(String),
    /// A PoolSnapshot.
    Snapshot(SnapshotRecord),
}

/// Source and time of a snapshot. The image of a snapshot is never attached, grown or reallocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRecord {
    /// Name of the PoolSnapshot.
    pub name: String,
    /// Name of the source PoolVolume.
    pub volume: String,
    /// UID of the source image.
    pub source: Uid,
    /// Time of the snapshot: the image has every write acknowledged before it. The same for all
    /// members of a group.
    pub time: DateTime<Utc>,
}

impl Owner {
    /// Returns the name of the PoolVolume, if one made the image.
    pub fn volume(&self) -> Option<&str> {
        match self {
            Self::Volume(name) => Some(name),
            Self::Snapshot(_) => None,
        }
    }

    /// Returns the record of the snapshot, if a PoolSnapshot made the image.
    pub fn snapshot(&self) -> Option<&SnapshotRecord> {
        match self {
            Self::Volume(_) => None,
            Self::Snapshot(record) => Some(record),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name) => write!(f, "volume {name}"),
            Self::Snapshot(record) => {
                write!(f, "snapshot {} of volume {}", record.name, record.volume)
            }
        }
    }
}

/// Content of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A filesystem that Cistern made.
    Filesystem {
        /// Type of the filesystem.
        filesystem: FilesystemType,
        /// UUID of the filesystem.
        uuid: Uuid,
    },
    /// Raw data that the pod writes.
    Block,
}

impl Content {
    /// Returns the filesystem type; none for block access.
    pub fn filesystem(self) -> Option<FilesystemType> {
        match self {
            Self::Filesystem { filesystem, .. } => Some(filesystem),
            Self::Block => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The identity of a thick volume with XFS.
    pub(crate) fn identity() -> Identity {
        Identity {
            owner: Owner::Volume("pvc-1".to_owned()),
            uid: "u-1".parse().unwrap(),
            pool_uuid: Uuid::from_bytes([7; 16]),
            size: Bytes::gib(1),
            content: Content::Filesystem {
                filesystem: FilesystemType::Xfs,
                uuid: Uuid::from_bytes([8; 16]),
            },
            provisioning: Provisioning::Thick,
            source: None,
            encryption: None,
        }
    }

    #[track_caller]
    fn is_read_back(identity: &Identity) -> String {
        let text = serde_json::to_string(identity).unwrap();
        assert_eq!(&serde_json::from_str::<Identity>(&text).unwrap(), identity);
        text
    }

    #[test]
    fn an_identity_survives_a_round_trip_and_names_its_content() {
        let text = is_read_back(&identity());
        assert!(text.contains("\"accessType\":\"Filesystem\""), "{text}");
        assert!(text.contains("\"volume\":\"pvc-1\""), "{text}");
        is_read_back(&Identity {
            content: Content::Block,
            source: Some("u-0".parse().unwrap()),
            ..identity()
        });
        let record = SnapshotRecord {
            name: "snap-1".to_owned(),
            volume: "pvc-1".to_owned(),
            source: "u-1".parse().unwrap(),
            time: DateTime::from_timestamp(1_795_000_000, 123_456_789).unwrap(),
        };
        let text = is_read_back(&Identity {
            owner: Owner::Snapshot(record),
            ..identity()
        });
        assert!(
            text.starts_with("{\"snapshot\":{\"name\":\"snap-1\""),
            "{text}"
        );
    }

    /// Images from versions before snapshots were supported.
    #[test]
    fn r20_an_identity_of_an_earlier_version_is_read() {
        let text = r#"{"volume":"pvc-1","uid":"u-1",
            "poolUuid":"07070707-0707-0707-0707-070707070707","size":"1Gi",
            "accessType":"Filesystem","filesystem":"xfs",
            "uuid":"08080808-0808-0808-0808-080808080808","provisioning":"Thick"}"#;
        assert_eq!(serde_json::from_str::<Identity>(text).unwrap(), identity());
    }

    /// An earlier version reads the field `volume`, which the identity of a snapshot lacks.
    #[test]
    fn a_snapshot_is_never_read_as_a_volume() {
        let text = r#"{"snapshot":{"name":"s","volume":"v","source":"u-1","time":"2026-11-21T00:00:00Z"},
            "uid":"u-2","poolUuid":"07070707-0707-0707-0707-070707070707","size":"1Gi",
            "accessType":"Block","provisioning":"Thin"}"#;
        let identity: Identity = serde_json::from_str(text).unwrap();
        assert_eq!(identity.owner.volume(), None);
        let object: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(object.get("volume"), None);
    }
}
