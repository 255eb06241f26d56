//! StorageClass parameters as a type, parsed by driver and operator with the same code.

use std::{collections::BTreeMap, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{names::RESERVED_PREFIX, size::Bytes};

/// Parameter that names the StoragePool. Required.
pub const POOL: &str = "pool";
/// Parameter that says whether space is reserved in full: `thin` (default) or `thick`.
pub const PROVISIONING: &str = "provisioning";
/// Kubernetes' own parameter for the filesystem. The provisioner turns it into `fs_type`.
pub const FSTYPE: &str = "csi.storage.k8s.io/fstype";

/// Whether a volume's space is allocated when it is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Provisioning {
    /// Allocated as it is written; freed by discard.
    #[default]
    Thin,
    /// Reserved in full in the ledger and allocated on disk.
    Thick,
}

impl FromStr for Provisioning {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "thin" => Ok(Self::Thin),
            "thick" => Ok(Self::Thick),
            _ => Err(()),
        }
    }
}

/// A filesystem that a volume can carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FilesystemType {
    /// The default.
    #[default]
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs, on this one device.
    Btrfs,
}

impl FilesystemType {
    /// All of them, for messages and tests.
    pub const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// The kernel's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The smallest size at which mkfs makes a filesystem that mounts.
    pub const fn minimum_size(self) -> Bytes {
        match self {
            // Room for the journal and the inode tables; less makes a toy.
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
    type Err = ParametersError;

    fn from_str(text: &str) -> Result<Self, ParametersError> {
        Self::ALL
            .into_iter()
            .find(|filesystem| filesystem.as_str() == text)
            .ok_or_else(|| ParametersError::Filesystem {
                value: shorten(text),
            })
    }
}

/// The parameters of a StorageClass of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Name of the StoragePool.
    pub pool: String,
    /// Thin or thick.
    pub provisioning: Provisioning,
    /// The filesystem, where the class names one.
    pub filesystem: Option<FilesystemType>,
}

/// What is wrong with the parameters. Each message says how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParametersError {
    /// `pool` is missing or empty.
    #[error("parameter \"pool\" is missing: name the StoragePool that the volumes come from")]
    PoolMissing,
    /// A value that is none of those allowed.
    #[error("parameter \"provisioning\" is {value:?}: write \"thin\" or \"thick\"")]
    Provisioning {
        /// What was written.
        value: String,
    },
    /// A filesystem that Cistern does not make.
    #[error("filesystem {value:?} is not supported: use ext4, xfs or btrfs")]
    Filesystem {
        /// What was written.
        value: String,
    },
    /// A key that means nothing here (CV-22).
    #[error(
        "parameter {key:?} is unknown: Cistern knows \"pool\", \"provisioning\" and \"{FSTYPE}\""
    )]
    Unknown {
        /// The key.
        key: String,
    },
}

impl Parameters {
    /// Reads the parameters of a class, or of a request that carries them.
    ///
    /// Keys that start with `csi.storage.k8s.io/` are the orchestrator's: all but the filesystem
    /// are passed over (CV-22).
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, ParametersError> {
        let mut rest: BTreeMap<&str, &str> = parameters
            .into_iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let pool = rest.remove(POOL).unwrap_or_default().to_owned();
        let provisioning = match rest.remove(PROVISIONING) {
            None => Provisioning::default(),
            Some(value) => value.parse().map_err(|()| ParametersError::Provisioning {
                value: shorten(value),
            })?,
        };
        let filesystem = match rest.remove(FSTYPE) {
            None | Some("") => None,
            Some(value) => Some(value.parse()?),
        };
        if let Some(key) = rest
            .into_keys()
            .find(|key| !key.starts_with(RESERVED_PREFIX))
        {
            return Err(ParametersError::Unknown { key: shorten(key) });
        }
        if pool.is_empty() {
            return Err(ParametersError::PoolMissing);
        }
        Ok(Self {
            pool,
            provisioning,
            filesystem,
        })
    }
}

/// User text in a message is kept short: messages end in conditions and events.
fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Parameters, ParametersError> {
        let map: BTreeMap<String, String> = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Parameters::parse(&map)
    }

    #[test]
    fn a_full_class_is_read() {
        let read = parse(&[("pool", "fast"), ("provisioning", "thick"), (FSTYPE, "xfs")]).unwrap();
        assert_eq!(read.pool, "fast");
        assert_eq!(read.provisioning, Provisioning::Thick);
        assert_eq!(read.filesystem, Some(FilesystemType::Xfs));
    }

    #[test]
    fn cv_22_unknown_keys_are_named_and_the_orchestrators_are_ignored() {
        assert!(parse(&[("pool", "p"), ("csi.storage.k8s.io/pvc/name", "x")]).is_ok());
        let error = parse(&[("pool", "p"), ("bogus", "x")]).unwrap_err();
        assert!(error.to_string().contains("\"bogus\""), "{error}");
    }

    #[test]
    fn cv_17_illegal_values_are_refused() {
        assert_eq!(parse(&[]), Err(ParametersError::PoolMissing));
        assert_eq!(parse(&[("pool", "")]), Err(ParametersError::PoolMissing));
        assert!(parse(&[("pool", "p"), ("provisioning", "Thin")]).is_err());
        assert!(parse(&[("pool", "p"), (FSTYPE, "ntfs")]).is_err());
    }
}
