//! Parses the parameters of a StorageClass, for both driver and operator.

use std::collections::BTreeMap;

use cistern_types::{
    Bytes, Encryption, ExtentSize, FilesystemType, MkfsOptions, extent_size::UnknownExtentSize,
    filesystem::UnknownFilesystem, mkfs_options, shorten,
};

use crate::{
    attributes::{
        self, AttributeChanges, PROVISIONING, READ_BYTES, READ_IOPS, VolumeAttributes, WRITE_BYTES,
        WRITE_IOPS,
    },
    names::RESERVED_PREFIX,
    pool_names::{InvalidPoolNames, PoolNames},
};

/// Parameter that names the StoragePool, or several that are separated by commas. Required.
pub const POOL: &str = "pool";
/// Parameter with options for the mkfs tool, in the syntax of the tool.
pub const MKFS_OPTIONS: &str = "mkfsOptions";
/// Parameter with the unit in which the pool allocates space.
pub const EXTENT_SIZE: &str = "extentSize";
/// Parameter that says on which node a snapshot is restored: `source` or `chosen`.
pub const PLACEMENT: &str = "placement";
/// Parameter that permits a raw block volume to be mounted with the filesystem that a program has written to it:
/// `true` or `false`.
pub const ADOPT_FILESYSTEM: &str = "adoptFilesystem";
/// Parameter that says how volumes are encrypted on the disk: `luks2`.
pub const ENCRYPTION: &str = "encryption";
/// Parameter that says whether space that is freed inside an encrypted volume is freed in the pool: `true` or `false`.
pub const ENCRYPTION_DISCARDS: &str = "encryptionDiscards";
/// Parameter of Kubernetes for the filesystem. The provisioner converts it to `fs_type`.
pub const FSTYPE: &str = "csi.storage.k8s.io/fstype";

/// The parameters of a StorageClass of Cistern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The StoragePools. A volume comes from one of them.
    pub pools: PoolNames,
    /// The attributes of the volumes. A VolumeAttributesClass overrides them (CV-18).
    pub attributes: VolumeAttributes,
    /// The filesystem, if the class names one.
    pub filesystem: Option<FilesystemType>,
    mkfs_options: String,
    /// The extent size hint, if the class has one.
    pub extent_size: Option<ExtentSize>,
    /// On which node a snapshot is restored and a volume is cloned.
    pub placement: RestorePlacement,
    /// Whether the filesystem in a raw block volume may be adopted.
    pub adopt_filesystem: bool,
    /// How the volumes are encrypted; None if they are not.
    pub encryption: Option<Encryption>,
    /// Whether discards inside an encrypted volume free space of the pool.
    pub encryption_discards: bool,
}

/// On which node a snapshot is restored and a volume is cloned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestorePlacement {
    /// On the node of the source, where nothing is copied, unless that node cannot take the volume.
    #[default]
    Source,
    /// On the node that the scheduler has chosen. The data is copied if that is another one.
    Chosen,
}

/// Why parameters are invalid. Each message names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParametersError {
    /// `pool` is missing or empty.
    #[error("parameter \"{POOL}\" is missing: name the StoragePool that the volumes come from")]
    PoolMissing,
    /// The names of the pools are invalid.
    #[error("parameter \"{POOL}\": {0}")]
    Pools(#[from] InvalidPoolNames),
    /// The attributes are invalid.
    #[error(transparent)]
    Attributes(#[from] attributes::Error),
    /// The filesystem is not supported.
    #[error(transparent)]
    Filesystem(#[from] UnknownFilesystem),
    /// The mkfs options are not supported for the filesystem.
    #[error("parameter \"{MKFS_OPTIONS}\": {0}")]
    MkfsOptions(mkfs_options::Error),
    /// The extent size is not supported.
    #[error("parameter \"{EXTENT_SIZE}\": {0}")]
    ExtentSize(#[from] UnknownExtentSize),
    /// The placement is unknown; the value is shortened.
    #[error("parameter \"{PLACEMENT}\": {0:?} is not \"source\" or \"chosen\"")]
    Placement(String),
    /// The value is not a boolean; it is shortened.
    #[error("parameter \"{key}\": {value:?} is not \"true\" or \"false\"")]
    Boolean {
        /// Name of the parameter.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// The encryption is unknown; the value is shortened.
    #[error("parameter \"{ENCRYPTION}\": {0:?} is not \"luks2\"")]
    Encryption(String),
    /// Discards are allowed for volumes that are not encrypted, which always have them.
    #[error(
        "parameter \"{ENCRYPTION_DISCARDS}\" is for encrypted volumes: add \"{ENCRYPTION}\" or remove it"
    )]
    DiscardsWithoutEncryption,
    /// A filesystem cannot be found behind the header of an encrypted volume.
    #[error(
        "parameter \"{ADOPT_FILESYSTEM}\" cannot be used with \"{ENCRYPTION}\": use a class for each"
    )]
    AdoptionWithEncryption,
    /// The key, shortened, is no parameter of a StorageClass (CV-22).
    #[error(
        "parameter {0:?} is unknown: Cistern knows \"{POOL}\", \"{MKFS_OPTIONS}\", \"{EXTENT_SIZE}\", \
        \"{PLACEMENT}\", \"{ADOPT_FILESYSTEM}\", \"{ENCRYPTION}\", \"{ENCRYPTION_DISCARDS}\", \"{FSTYPE}\", \
        \"{PROVISIONING}\", \"{READ_IOPS}\", \"{WRITE_IOPS}\", \"{READ_BYTES}\" and \"{WRITE_BYTES}\""
    )]
    Unknown(String),
}

impl Parameters {
    /// Parses the parameters of a class or of a request.
    ///
    /// Ignores keys of Kubernetes, which start with `csi.storage.k8s.io/`, except the filesystem (CV-22).
    pub fn parse<'a>(
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, ParametersError> {
        let mut rest: BTreeMap<&str, &str> = parameters
            .into_iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let pools = rest.remove(POOL).unwrap_or_default();
        let filesystem = match rest.remove(FSTYPE) {
            None | Some("") => None,
            Some(value) => Some(value.parse()?),
        };
        let mkfs_options = rest.remove(MKFS_OPTIONS).unwrap_or_default().to_owned();
        let extent_size = match rest.remove(EXTENT_SIZE) {
            None | Some("") => None,
            Some(value) => Some(value.parse()?),
        };
        let placement = match rest.remove(PLACEMENT) {
            None | Some("" | "source") => RestorePlacement::Source,
            Some("chosen") => RestorePlacement::Chosen,
            Some(other) => return Err(ParametersError::Placement(shorten(other))),
        };
        let adopt_filesystem = boolean(&mut rest, ADOPT_FILESYSTEM)?;
        let encryption = match rest.remove(ENCRYPTION) {
            None | Some("") => None,
            Some(value) => {
                let unknown = |()| ParametersError::Encryption(shorten(value));
                Some(value.parse().map_err(unknown)?)
            }
        };
        let encryption_discards = boolean(&mut rest, ENCRYPTION_DISCARDS)?;
        if encryption_discards && encryption.is_none() {
            return Err(ParametersError::DiscardsWithoutEncryption);
        }
        if adopt_filesystem && encryption.is_some() {
            return Err(ParametersError::AdoptionWithEncryption);
        }
        let mut attributes = AttributeChanges::default();
        for (key, value) in rest {
            if !key.starts_with(RESERVED_PREFIX) && !attributes.take(key, value)? {
                return Err(ParametersError::Unknown(shorten(key)));
            }
        }
        if pools.is_empty() {
            return Err(ParametersError::PoolMissing);
        }
        Ok(Self {
            pools: pools.parse()?,
            attributes: attributes.apply(VolumeAttributes::default()),
            filesystem,
            mkfs_options,
            extent_size,
            placement,
            adopt_filesystem,
            encryption,
            encryption_discards,
        })
    }

    /// Parses the parameters of a StorageClass, whose filesystem is final.
    pub fn of_class<'a>(
        parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, ParametersError> {
        let read = Self::parse(parameters)?;
        read.mkfs_options(read.filesystem.unwrap_or_default())?;
        Ok(read)
    }

    /// Size of the header that the image of each volume has in addition to the size of the volume.
    pub fn header(&self) -> Bytes {
        Encryption::header_of(self.encryption)
    }

    /// Parses the mkfs options for a filesystem. This is a separate step, because a CSI request names the
    /// filesystem in another field.
    pub fn mkfs_options(&self, filesystem: FilesystemType) -> Result<MkfsOptions, ParametersError> {
        MkfsOptions::parse(filesystem, &self.mkfs_options).map_err(ParametersError::MkfsOptions)
    }
}

/// Takes a parameter that is `true` or `false`; false if it is absent or empty.
fn boolean(
    parameters: &mut BTreeMap<&str, &str>,
    key: &'static str,
) -> Result<bool, ParametersError> {
    match parameters.remove(key) {
        None | Some("" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => {
            let value = shorten(other);
            Err(ParametersError::Boolean { key, value })
        }
    }
}

#[cfg(test)]
mod tests {
    use cistern_types::Provisioning;

    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Parameters, ParametersError> {
        let map: BTreeMap<String, String> = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Parameters::parse(&map)
    }

    #[test]
    fn a_class_says_on_which_node_a_snapshot_is_restored() {
        let placement = |value| Ok(parse(&[("pool", "fast"), ("placement", value)])?.placement);
        assert_eq!(placement(""), Ok(RestorePlacement::Source));
        assert_eq!(placement("source"), Ok(RestorePlacement::Source));
        assert_eq!(placement("chosen"), Ok(RestorePlacement::Chosen));
        let unknown: Result<_, ParametersError> = placement("Chosen");
        let expected = "parameter \"placement\": \"Chosen\" is not \"source\" or \"chosen\"";
        assert_eq!(unknown.unwrap_err().to_string(), expected);
        assert_eq!(
            parse(&[("pool", "fast")]).unwrap().placement,
            RestorePlacement::Source
        );
    }

    #[test]
    fn no_class_adopts_filesystems_unless_it_says_so() {
        let adopts =
            |value| Ok(parse(&[("pool", "p"), ("adoptFilesystem", value)])?.adopt_filesystem);
        assert!(!parse(&[("pool", "p")]).unwrap().adopt_filesystem);
        for (value, expected) in [("", false), ("false", false), ("true", true)] {
            assert_eq!(adopts(value), Ok(expected), "{value}");
        }
        let unknown: Result<_, ParametersError> = adopts("yes");
        let expected = "parameter \"adoptFilesystem\": \"yes\" is not \"true\" or \"false\"";
        assert_eq!(unknown.unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_full_class_is_read() {
        let read = parse(&[("pool", "fast"), ("provisioning", "thick"), (FSTYPE, "xfs")]).unwrap();
        assert_eq!(read.pools, PoolNames::only("fast"));
        assert_eq!(read.attributes.provisioning, Provisioning::Thick);
        assert_eq!(read.filesystem, Some(FilesystemType::Xfs));
    }

    #[test]
    fn a_class_may_name_several_pools() {
        let read = parse(&[("pool", "nvme-0,nvme-1")]).unwrap();
        assert!(read.pools.contains("nvme-0") && read.pools.contains("nvme-1"));
        assert!(!read.pools.contains("nvme-0,nvme-1"));
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
    fn the_encryption_of_a_class_is_read_and_what_does_not_go_with_it_is_refused() {
        let plain = parse(&[("pool", "p")]).unwrap();
        assert_eq!((plain.encryption, plain.header()), (None, Bytes::ZERO));
        let read = parse(&[
            ("pool", "p"),
            ("encryption", "luks2"),
            ("encryptionDiscards", "true"),
        ])
        .unwrap();
        assert_eq!(read.encryption, Some(Encryption::Luks2));
        assert!(read.encryption_discards);
        assert_eq!(read.header(), Bytes::mib(16));
        for (pairs, expected) in [
            (vec![("encryption", "yes")], "\"yes\" is not \"luks2\""),
            (
                vec![("encryptionDiscards", "true")],
                "is for encrypted volumes",
            ),
            (
                vec![("encryption", "luks2"), ("adoptFilesystem", "true")],
                "cannot be used with \"encryption\"",
            ),
        ] {
            let all: Vec<_> = pairs.into_iter().chain([("pool", "p")]).collect();
            let error = parse(&all).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_extent_size_of_a_class_is_read() {
        let read = |value| parse(&[("pool", "p"), (EXTENT_SIZE, value)]);
        assert_eq!(read("").unwrap().extent_size, None);
        assert_eq!(read("1Mi").unwrap().extent_size, Some(ExtentSize::Mib1));
        let error = read("1M").unwrap_err().to_string();
        assert!(
            error.starts_with("parameter \"extentSize\": \"1M\""),
            "{error}"
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
        let error = parse(&[("pool", "p,p")]).unwrap_err().to_string();
        assert_eq!(
            error,
            "parameter \"pool\": StoragePool p is named twice: name each pool once"
        );
        assert!(parse(&[("pool", "p"), ("provisioning", "Thin")]).is_err());
        assert!(parse(&[("pool", "p"), (FSTYPE, "ntfs")]).is_err());
    }
}
