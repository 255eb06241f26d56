//! [`FilesystemType`]: the supported filesystems of volumes.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{shorten, size::Bytes};

/// The filesystem type is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filesystem {value:?} is not supported: use ext4, xfs or btrfs")]
pub struct UnknownFilesystem {
    value: String,
}

/// Filesystem type of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FilesystemType {
    /// ext4, the default.
    #[default]
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

impl FilesystemType {
    /// All filesystem types, for messages and tests.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The name that the kernel uses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The smallest size of a volume with this filesystem.
    pub const fn minimum_size(self) -> Bytes {
        match self {
            // Leaves room for data besides the journal and the inode tables.
            Self::Ext4 => Bytes::mib(16),
            // mkfs.xfs refuses less than 300 MiB since xfsprogs 5.19.
            Self::Xfs => Bytes::mib(300),
            // mkfs.btrfs refuses less than 109 MiB.
            Self::Btrfs => Bytes::mib(128),
        }
    }
}

impl fmt::Display for FilesystemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for FilesystemType {
    type Err = UnknownFilesystem;

    fn from_str(text: &str) -> Result<Self, UnknownFilesystem> {
        Self::ALL
            .into_iter()
            .find(|filesystem| filesystem.as_str() == text)
            .ok_or_else(|| UnknownFilesystem {
                value: shorten(text),
            })
    }
}
