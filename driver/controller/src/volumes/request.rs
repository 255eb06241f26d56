//! Requests for new volumes in Cistern's own types.
//!
//! *Invariant:* every [`NewVolume`] is validated; nothing here carries secrets or mount flags.

use cistern_crds::{
    AccessMode, AccessType, Bytes, ContentSource, Encryption, ExtentSize, FilesystemType,
    HasImage as _, MkfsOptions, PoolNames, PoolVolume, PoolVolumeSpec, VolumeAttributes,
    availability::Needs, names, parameters::RestorePlacement, volume::ClaimReference,
};

use super::SourceReference;
use crate::objects::ensure::Request;

/// A requested volume, which may exist already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// Name of the volume in the CSI request.
    pub name: String,
    /// The allowed sizes, and the chosen one.
    pub size: SizeRange,
    /// A filesystem, or the bare block device.
    pub access_type: AccessType,
    /// The filesystem. None for raw block volumes, and for a copy that takes its source's filesystem.
    pub filesystem: Option<FilesystemType>,
    /// mkfs options; empty for a copy.
    pub mkfs_options: MkfsOptions,
    /// The extent size hint of the image; None for the default of the kernel.
    pub extent_size: Option<ExtentSize>,
    /// Whether the filesystem that a program writes to the raw block volume may be adopted.
    pub adopt_filesystem: bool,
    /// How the volume is encrypted; None if it is not.
    pub encryption: Option<Encryption>,
    /// Whether discards inside the encrypted volume free space of the pool.
    pub encryption_discards: bool,
    /// Access modes, sorted and without duplicates.
    pub access_modes: Vec<AccessMode>,
    /// The StoragePools that it may come from.
    pub pools: PoolNames,
    /// The attributes that can change later.
    pub attributes: VolumeAttributes,
    /// The source to copy; None for an empty volume.
    pub source: Option<SourceReference>,
    /// On which node a snapshot is restored.
    pub placement: RestorePlacement,
    /// The PersistentVolumeClaim, if the provisioner passes it.
    pub claim: Option<ClaimReference>,
    /// The nodes on which it may be.
    pub requirement: Requirement,
}

/// A range of sizes, and the one in it that a new volume gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    /// Smallest size in bytes.
    pub required: Bytes,
    /// Largest size in bytes; None for no limit.
    pub limit: Option<Bytes>,
    /// Chosen size: a multiple of 1 MiB in the range.
    pub chosen: Bytes,
}

impl SizeRange {
    /// Whether a volume of this size serves the request.
    pub fn contains(&self, size: Bytes) -> bool {
        size >= self.required && self.limit.is_none_or(|limit| size <= limit)
    }
}

/// The nodes on which a volume may be, by the value of the topology key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirement {
    /// The volume must be on one of these; None allows every node.
    pub requisite: Option<Vec<String>>,
    /// Preferred nodes, in order.
    pub preferred: Vec<String>,
}

impl Requirement {
    /// Whether a volume on the node serves the request.
    pub fn allows(&self, node: &str) -> bool {
        let value = names::topology_value(node);
        self.requisite
            .as_ref()
            .is_none_or(|requisite| requisite.contains(&value))
    }
}

impl NewVolume {
    /// The volume id, and the name of the PoolVolume.
    pub fn id(&self) -> String {
        names::volume_name(&self.name)
    }

    /// The custom resource for this volume in a pool of a node.
    pub fn in_pool(
        &self,
        pool: &str,
        node: &str,
        content_source: Option<ContentSource>,
    ) -> PoolVolume {
        PoolVolume::desired(
            &self.id(),
            PoolVolumeSpec {
                requested_name: self.name.clone(),
                node_name: node.to_owned(),
                pool_name: pool.to_owned(),
                size: self.size.chosen,
                access_type: self.access_type,
                filesystem: self.filesystem,
                mkfs_options: self.mkfs_options(),
                extent_size: self.extent_size,
                adopt_filesystem: self.adopt_filesystem,
                encryption: self.encryption,
                encryption_discards: self.encryption_discards,
                access_modes: self.access_modes.clone(),
                attributes: self.attributes,
                content_source,
                claim: self.claim.clone(),
                deletion_requested: false,
                epoch: 0,
                takeovers: 0,
                target: None,
                cancelled_move_uid: None,
                promoted_move_uid: None,
            },
        )
    }

    /// What it needs of its pool and its node, apart from room.
    pub(super) fn needs(&self) -> Needs {
        Needs {
            provisioning: self.attributes.provisioning,
            encryption: self.encryption,
            is_copy: self.source.is_some(),
        }
    }

    /// Size of the header that the image has in addition.
    pub(super) fn header(&self) -> Bytes {
        Encryption::header_of(self.encryption)
    }

    /// The mkfs options as text for the custom resource; None if there are none.
    fn mkfs_options(&self) -> Option<String> {
        (!self.mkfs_options.is_empty()).then(|| self.mkfs_options.to_string())
    }

    /// Why the volume is incompatible with the request, regardless of its node.
    fn unlike(&self, existing: &PoolVolume) -> Option<String> {
        let spec = &existing.spec;
        // The spec may request a growth that is not done, and a pool may round up.
        let size = existing.size().unwrap_or(spec.size);
        let made_from = spec.content_source.as_ref().map(SourceReference::from);
        let inherits = self.source.is_some() && self.filesystem.is_none();
        if spec.requested_name != self.name {
            Some("it was made under another name".to_owned())
        } else if made_from != self.source {
            let source = made_from.map(|source| format!("it was made from {}", source.named()));
            Some(source.unwrap_or_else(|| "it was made empty".to_owned()))
        } else if !self.pools.contains(&spec.pool_name) {
            Some(format!(
                "it is in pool {}, not in {}",
                spec.pool_name, self.pools
            ))
        } else if spec.attributes != self.attributes {
            Some(format!("its attributes are {}", spec.attributes))
        } else if spec.access_type != self.access_type
            || spec.filesystem != self.filesystem && !inherits
        {
            let kind = spec
                .filesystem
                .map_or("a block device", FilesystemType::as_str);
            Some(format!("it is {kind}"))
        } else if spec.mkfs_options != self.mkfs_options() {
            Some("its filesystem was made with other options".to_owned())
        } else if spec.extent_size != self.extent_size {
            let size = spec
                .extent_size
                .map(|size| format!("its extent size is {size}"));
            Some(size.unwrap_or_else(|| "it has no extent size".to_owned()))
        } else if spec.adopt_filesystem != self.adopt_filesystem {
            Some(format!("its adoptFilesystem is {}", spec.adopt_filesystem))
        } else if spec.encryption != self.encryption
            || spec.encryption_discards != self.encryption_discards
        {
            let encryption = spec
                .encryption
                .map(|it| format!("it is encrypted with {it}"));
            let discards = format!("and encryptionDiscards is {}", spec.encryption_discards);
            let encrypted = encryption.map(|encryption| format!("{encryption}, {discards}"));
            Some(encrypted.unwrap_or_else(|| "it is not encrypted".to_owned()))
        } else if !self.access_modes.iter().all(|mode| spec.serves(*mode)) {
            Some(format!("its access modes are {:?}", spec.access_modes))
        } else if !self.size.contains(size) {
            Some(format!("its size is {size}"))
        } else {
            None
        }
    }
}

impl Request for NewVolume {
    type Object = PoolVolume;

    /// Compares all but the claim, which is informative (CV-07, CV-23, TOP-19).
    fn difference(&self, existing: &PoolVolume) -> Option<String> {
        let node = &existing.spec.node_name;
        let elsewhere = || format!("it is on node {node}");
        let unlike = self.unlike(existing);
        unlike.or_else(|| (!self.requirement.allows(node)).then(elsewhere))
    }

    /// True if the volume is on a node that the request no longer allows, and matches it otherwise.
    fn is_left_behind(&self, existing: &PoolVolume) -> bool {
        existing.reserved().is_none()
            && !self.requirement.allows(&existing.spec.node_name)
            && self.unlike(existing).is_none()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use cistern_crds::{Provisioning, SourceKind};

    use super::*;

    /// A request for 1 GiB of ext4, thin, from pool `fast`, anywhere.
    pub(crate) fn wanted(name: &str) -> NewVolume {
        NewVolume {
            name: name.to_owned(),
            size: SizeRange {
                required: Bytes::gib(1),
                limit: None,
                chosen: Bytes::gib(1),
            },
            access_type: AccessType::Filesystem,
            filesystem: Some(FilesystemType::Ext4),
            mkfs_options: MkfsOptions::default(),
            extent_size: None,
            adopt_filesystem: false,
            encryption: None,
            encryption_discards: false,
            access_modes: vec![AccessMode::SingleNodeWriter],
            pools: PoolNames::only("fast"),
            attributes: VolumeAttributes::default(),
            source: None,
            placement: RestorePlacement::default(),
            claim: None,
            requirement: Requirement::default(),
        }
    }

    #[test]
    fn cv_06_a_volume_is_what_its_own_request_asks_for() {
        let wanted = wanted("pvc-1");
        assert_eq!(wanted.difference(&wanted.in_pool("fast", "n1", None)), None);
    }

    #[test]
    fn cv_06_a_volume_in_any_pool_of_its_class_is_what_the_request_asks_for() {
        let mut wanted = wanted("pvc-1");
        wanted.pools = "nvme-0,nvme-1".parse().unwrap();
        for pool in ["nvme-0", "nvme-1"] {
            assert_eq!(wanted.difference(&wanted.in_pool(pool, "n1", None)), None);
        }
        let difference = wanted.difference(&wanted.in_pool("nvme-2", "n1", None));
        let expected = "it is in pool nvme-2, not in any of the pools nvme-0, nvme-1";
        assert_eq!(difference.as_deref(), Some(expected));
    }

    type Change = fn(&mut NewVolume);

    #[test]
    fn cv_07_top_19_whatever_differs_is_named() {
        let wanted = wanted("pvc-1");
        let existing = wanted.in_pool("fast", "n1", None);
        let changes: [(&str, Change); 11] = [
            ("another name", |w| w.name = "other".to_owned()),
            ("pool fast", |w| w.pools = "slow,slower".parse().unwrap()),
            ("thin", |w| w.attributes.provisioning = Provisioning::Thick),
            ("ext4", |w| w.filesystem = Some(FilesystemType::Xfs)),
            ("ext4", |w| {
                w.access_type = AccessType::Block;
                w.filesystem = None;
            }),
            ("other options", |w| {
                w.mkfs_options = MkfsOptions::parse(FilesystemType::Ext4, "-I 512").unwrap();
            }),
            ("no extent size", |w| w.extent_size = Some(ExtentSize::Mib1)),
            ("adoptFilesystem is false", |w| w.adopt_filesystem = true),
            ("it is not encrypted", |w| {
                w.encryption = Some(Encryption::Luks2);
            }),
            ("1Gi", |w| w.size.required = Bytes::gib(2)),
            ("node n1", |w| {
                w.requirement.requisite = Some(vec!["n2".to_owned()]);
            }),
        ];
        for (named, change) in changes {
            let mut other = wanted.clone();
            change(&mut other);
            let difference = other.difference(&existing).unwrap();
            assert!(difference.contains(named), "{difference}");
        }
    }

    #[test]
    fn only_what_no_agent_has_admitted_at_an_excluded_node_is_left_behind() {
        let mut wanted = wanted("pvc-1");
        let mut existing = wanted.in_pool("fast", "n1", None);
        assert!(!wanted.is_left_behind(&existing));
        wanted.requirement.requisite = Some(vec!["n2".to_owned()]);
        assert!(wanted.is_left_behind(&existing));
        let mut larger = wanted.clone();
        larger.size.required = Bytes::gib(2);
        assert!(!larger.is_left_behind(&existing), "it is another volume");
        existing.status.get_or_insert_default().reserved = Some(Bytes::gib(1));
        assert!(!wanted.is_left_behind(&existing));
    }

    #[test]
    fn cv_07_a_copy_is_not_an_empty_volume_nor_a_copy_of_something_else() {
        let empty = wanted("pvc-1");
        let source = |kind, id: &str| SourceReference {
            kind,
            id: id.into(),
        };
        let mut copy = empty.clone();
        copy.source = Some(source(SourceKind::Snapshot, "s-1"));
        let content = ContentSource {
            kind: SourceKind::Snapshot,
            name: "s-1".to_owned(),
            image: "uid-1".to_owned(),
            node_name: None,
            snapshot_name: None,
        };
        let existing = copy.in_pool("fast", "n1", Some(content));
        assert_eq!(copy.difference(&existing), None);
        copy.filesystem = None;
        assert_eq!(copy.difference(&existing), None, "the source's filesystem");
        let difference = empty.difference(&existing).unwrap();
        assert_eq!(difference, "it was made from snapshot s-1");
        for other in [
            source(SourceKind::Snapshot, "s-2"),
            source(SourceKind::Volume, "s-1"),
        ] {
            copy.source = Some(other);
            assert!(copy.difference(&existing).is_some());
        }
        let existing = empty.in_pool("fast", "n1", None);
        assert_eq!(copy.difference(&existing).unwrap(), "it was made empty");
    }

    #[test]
    fn cv_07_what_was_made_to_be_read_is_not_what_is_to_be_written() {
        let mut wanted = wanted("pvc-1");
        let mut existing = wanted.in_pool("fast", "n1", None);
        existing.spec.access_modes = vec![AccessMode::SingleNodeReaderOnly];
        let difference = wanted.difference(&existing).unwrap();
        assert!(difference.contains("SingleNodeReaderOnly"), "{difference}");
        wanted.access_modes = vec![AccessMode::SingleNodeReaderOnly];
        assert_eq!(wanted.difference(&existing), None);
    }

    #[test]
    fn cv_06_a_claim_whose_mode_has_another_name_since_an_upgrade_finds_its_volume() {
        let mut wanted = wanted("pvc-1");
        let existing = wanted.in_pool("fast", "n1", None);
        wanted.access_modes = vec![AccessMode::SingleNodeMultiWriter];
        assert_eq!(wanted.difference(&existing), None);
    }

    #[test]
    fn cv_23_an_existing_size_within_the_range_is_compatible() {
        let mut wanted = wanted("pvc-1");
        let existing = wanted.in_pool("fast", "n1", None);
        wanted.size = SizeRange {
            required: Bytes::mib(512),
            limit: Some(Bytes::gib(2)),
            chosen: Bytes::mib(512),
        };
        assert_eq!(wanted.difference(&existing), None);
        wanted.size.limit = Some(Bytes::mib(1023));
        assert!(wanted.difference(&existing).is_some());
    }

    #[test]
    fn cv_07_cv_23_the_size_that_a_volume_has_counts_and_not_the_one_in_its_spec() {
        let sized = |spec: Bytes, made: Bytes| {
            let mut existing = wanted("pvc-1").in_pool("fast", "n1", None);
            existing.spec.size = spec;
            existing.status.get_or_insert_default().size = Some(made);
            existing
        };
        let range = |required, limit| {
            let mut wanted = wanted("pvc-1");
            wanted.size = SizeRange {
                required,
                limit,
                chosen: required,
            };
            wanted
        };
        let growing = sized(Bytes::gib(2), Bytes::gib(1));
        let difference = range(Bytes::gib(2), None).difference(&growing).unwrap();
        assert!(difference.contains("1Gi"), "{difference}");
        assert_eq!(range(Bytes::gib(1), None).difference(&growing), None);

        let rounded = sized(Bytes::mib(1025), Bytes::mib(1028));
        let required = Bytes::mib(1025);
        let too_small = range(required, Some(Bytes::mib(1027)));
        assert!(too_small.difference(&rounded).is_some());
        let fits = range(required, Some(Bytes::mib(1028)));
        assert_eq!(fits.difference(&rounded), None);
    }
}
