//! StorageClass parameters as a type, parsed by driver and operator with the same code.

use std::{collections::BTreeMap, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    mkfs_options::{self, MkfsOptions},
    names::RESERVED_PREFIX,
    size::Bytes,
};

/// Parameter that names the StoragePool. Required.
pub const POOL: &str = "pool";
/// Parameter that says whether space is reserved in full: `thin` (default) or `thick`.
pub const PROVISIONING: &str = "provisioning";
/// Parameter with options for the tool that makes the filesystem, written as the tool takes them.
pub const MKFS_OPTIONS: &str = "mkfsOptions";
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
    mkfs_options: String,
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
    /// Options that are not let through for the filesystem.
    #[error("parameter \"{MKFS_OPTIONS}\": {0}")]
    MkfsOptions(mkfs_options::Error),
    /// A key that means nothing here (CV-22).
    #[error(
        "parameter {key:?} is unknown: Cistern knows \"pool\", \"provisioning\", \"{MKFS_OPTIONS}\" and \"{FSTYPE}\""
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
        let mkfs_options = rest.remove(MKFS_OPTIONS).unwrap_or_default().to_owned();
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
            mkfs_options,
        })
    }

    /// Reads the parameters of a StorageClass, whose word on the filesystem is final.
    pub fn of_class<'a>(
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, ParametersError> {
        let read = Self::parse(parameters)?;
        read.mkfs_options(read.filesystem.unwrap_or_default())?;
        Ok(read)
    }

    /// The options with which the filesystem of a volume is made. Apart from the rest, as a request
    /// to the driver names the filesystem elsewhere.
    pub fn mkfs_options(&self, filesystem: FilesystemType) -> Result<MkfsOptions, ParametersError> {
        MkfsOptions::parse(filesystem, &self.mkfs_options).map_err(ParametersError::MkfsOptions)
    }
}

/// User text in a message is kept short: messages end in conditions and events.
pub(crate) fn shorten(text: &str) -> String {
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
    fn mkfs_options_are_those_of_the_filesystem_and_ext4_where_none_is_named() {
        let of_class = |pairs: &[(&str, &str)]| {
            let map: BTreeMap<String, String> = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect();
            let read = Parameters::of_class(&map)?;
            read.mkfs_options(read.filesystem.unwrap_or_default())
        };
        let ext4 = (MKFS_OPTIONS, "-I 512");
        assert_eq!(
            of_class(&[("pool", "p"), ext4]).unwrap().to_string(),
            "-I 512"
        );
        assert!(of_class(&[("pool", "p"), ext4, (FSTYPE, "ext4")]).is_ok());
        let error = of_class(&[("pool", "p"), ext4, (FSTYPE, "xfs")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "parameter \"mkfsOptions\": \"-I 512\" is not supported for xfs: use \
             -i size=512|1024|2048, -i maxpct=1..100, -m rmapbt=0|1, -n size=4k|8k|16k|32k|64k"
        );
        assert!(
            of_class(&[("pool", "p"), (MKFS_OPTIONS, "")])
                .unwrap()
                .is_empty()
        );
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
