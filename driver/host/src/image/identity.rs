//! Whose an image is and what lies in it, as it says itself.

use std::fmt;

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, FilesystemType, Provisioning};
use serde::{Deserialize, Serialize};

use crate::id::{Uid, Uuid};

/// Whose an image is, and what it was made as. Never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The object that made it.
    #[serde(flatten)]
    pub owner: Owner,
    /// UID of that object.
    pub uid: Uid,
    /// UUID of the pool's filesystem.
    pub pool_uuid: Uuid,
    /// Size when it was made.
    pub size: Bytes,
    /// What lies in it.
    #[serde(flatten)]
    pub content: Content,
    /// Whether it is allocated in full. Of a snapshot: whether the volume was.
    pub provisioning: Provisioning,
    /// The image that a volume's was made from, if it was made from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Uid>,
}

/// The object that made an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Owner {
    /// The PoolVolume of this name.
    Volume(String),
    /// A PoolSnapshot.
    Snapshot(Cut),
}

/// A volume at one moment. An image that holds one is never attached, never grown and never filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cut {
    /// Name of the PoolSnapshot.
    pub name: String,
    /// Name of the PoolVolume that it is of.
    pub volume: String,
    /// That volume's image.
    pub source: Uid,
    /// The moment: what was acknowledged before it is in the image. The same for all members of a
    /// group.
    pub time: DateTime<Utc>,
}

impl Owner {
    /// Name of the PoolVolume, if one made the image.
    pub fn volume(&self) -> Option<&str> {
        match self {
            Self::Volume(name) => Some(name),
            Self::Snapshot(_) => None,
        }
    }

    /// The snapshot, if the image holds one.
    pub fn snapshot(&self) -> Option<&Cut> {
        match self {
            Self::Volume(_) => None,
            Self::Snapshot(cut) => Some(cut),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(name) => write!(f, "volume {name}"),
            Self::Snapshot(cut) => write!(f, "snapshot {} of volume {}", cut.name, cut.volume),
        }
    }
}

/// What lies in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "accessType")]
pub enum Content {
    /// A filesystem that Cistern made.
    Filesystem {
        /// Which.
        filesystem: FilesystemType,
        /// Its UUID.
        uuid: Uuid,
    },
    /// Whatever the pod writes.
    Block,
}

impl Content {
    /// The filesystem, if there is one.
    pub fn filesystem(self) -> Option<FilesystemType> {
        match self {
            Self::Filesystem { filesystem, .. } => Some(filesystem),
            Self::Block => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
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
        }
    }

    #[track_caller]
    fn is_read_back(identity: &Identity) -> String {
        let text = serde_json::to_string(identity).unwrap();
        assert_eq!(&serde_json::from_str::<Identity>(&text).unwrap(), identity);
        text
    }

    #[test]
    fn an_identity_is_read_back_and_says_what_it_is() {
        let text = is_read_back(&identity());
        assert!(text.contains("\"accessType\":\"Filesystem\""), "{text}");
        assert!(text.contains("\"volume\":\"pvc-1\""), "{text}");
        is_read_back(&Identity {
            content: Content::Block,
            source: Some("u-0".parse().unwrap()),
            ..identity()
        });
        let cut = Cut {
            name: "snap-1".to_owned(),
            volume: "pvc-1".to_owned(),
            source: "u-1".parse().unwrap(),
            time: DateTime::from_timestamp(1_795_000_000, 123_456_789).unwrap(),
        };
        let text = is_read_back(&Identity {
            owner: Owner::Snapshot(cut),
            ..identity()
        });
        assert!(
            text.starts_with("{\"snapshot\":{\"name\":\"snap-1\""),
            "{text}"
        );
    }

    /// Images that were made before there were snapshots.
    #[test]
    fn r20_an_identity_of_an_earlier_version_is_read() {
        let text = r#"{"volume":"pvc-1","uid":"u-1",
            "poolUuid":"07070707-0707-0707-0707-070707070707","size":"1Gi",
            "accessType":"Filesystem","filesystem":"xfs",
            "uuid":"08080808-0808-0808-0808-080808080808","provisioning":"Thick"}"#;
        assert_eq!(serde_json::from_str::<Identity>(text).unwrap(), identity());
    }

    /// As the earlier version would have done it: it asks for a name that is not there.
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
