//! A pool as the StorageNode declares it, and its owner, in terms of the host.

use std::{io, path::PathBuf};

use cistern_crds::{
    NodePool, NodePoolStatus, PoolOwner,
    pool::{
        DeviceEngine, DeviceSource, ImageSource, PoolSource, is_directory, is_volume_group_name,
    },
};
use cistern_host::{
    PoolDeclaration, Root, Source, Uid,
    logical::GroupSource,
    pool::{ForeignMarker, Owner, PoolClaim, ReplacedDisk},
    system::Disk,
};

/// A desired pool, with the other pools of the node.
#[derive(Clone, Debug)]
pub struct DesiredPool {
    /// Spec of the pool.
    pub spec: NodePool,
    /// UIDs of the other pools of the node.
    pub others: Vec<Uid>,
    /// Paths that the other pools list.
    pub listed_elsewhere: Vec<PathBuf>,
    /// Last known identity of the pool's device, from the status.
    pub device_identity: Option<String>,
    /// The node that carries the pool.
    pub node: Owner,
}

impl DesiredPool {
    /// The desired pools of a node, with their last status.
    pub fn all(node: &Owner, specs: &[NodePool], known: &[NodePoolStatus]) -> Vec<Self> {
        let desired = |spec: &NodePool| {
            let others = || specs.iter().filter(|other| other.uid != spec.uid);
            let listed = others().filter_map(|other| other.source.device.as_ref());
            let listed = listed.flat_map(|device| &device.paths);
            let known = known.iter().find(|status| status.uid == spec.uid);
            Self {
                spec: spec.clone(),
                others: others()
                    .filter_map(|other| other.uid.parse().ok())
                    .collect(),
                listed_elsewhere: listed.map(PathBuf::from).collect(),
                node: node.clone(),
                device_identity: known.and_then(|status| status.device_identity.clone()),
            }
        };
        specs.iter().map(desired).collect()
    }
}

/// A pool cannot be declared to the host.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undeclared {
    /// The spec of the pool cannot be used, because of the reason.
    #[error("the pool's spec is invalid: {0}")]
    InvalidSpec(&'static str),
    /// The disks that match its selector are not known.
    #[error("the disks of the node cannot be listed")]
    Disks(#[source] io::Error),
}

/// The owner that a pool records, as reported in the StorageNode.
pub(super) fn reported(foreign: &ForeignMarker) -> PoolOwner {
    PoolOwner {
        node: foreign.owner.node.clone(),
        machine_id: foreign.owner.machine.clone(),
        pool_uid: foreign.pool.to_string(),
        filesystem_uuid: foreign.filesystem.to_string(),
    }
}

/// The pool that the node may take over; None if the annotation names no valid pool.
fn granted(owner: &PoolOwner) -> Option<ForeignMarker> {
    Some(ForeignMarker {
        owner: Owner {
            node: owner.node.clone(),
            machine: owner.machine_id.clone(),
        },
        pool: owner.pool_uid.parse().ok()?,
        filesystem: owner.filesystem_uuid.parse().ok()?,
    })
}

/// A pool as the host opens it.
#[derive(Debug)]
pub(super) enum Declared {
    /// A filesystem of image files.
    Images(PoolDeclaration),
    /// A volume group of LVM.
    Group {
        /// Which group it is.
        source: GroupSource,
        /// The pool that the group is to be.
        claim: PoolClaim,
    },
}

/// The pool as the host opens it. Fails if the spec is invalid, or if the disks cannot be listed from which it
/// selects.
pub(super) fn declaration(root: &Root, desired: &DesiredPool) -> Result<Declared, Undeclared> {
    let DesiredPool {
        spec,
        others,
        listed_elsewhere,
        device_identity,
        node,
    } = desired;
    let uid: Uid = spec
        .uid
        .parse()
        .map_err(|_| Undeclared::InvalidSpec("its uid is not a UID of Kubernetes"))?;
    let PoolSource {
        image,
        device,
        volume_group,
    } = &spec.source;
    let source = match (image, device, volume_group) {
        (Some(image), None, None) => Source::Image {
            size: image.size,
            directory: directory(image)?,
        },
        (None, Some(device), None) if device.engine == DeviceEngine::LogicalVolume => {
            let source = GroupSource::Disks {
                paths: candidates(root, device, listed_elsewhere)?,
                stripes: device.stripes.unwrap_or(1).max(1),
            };
            let claim = claim(desired, uid);
            return Ok(Declared::Group { source, claim });
        }
        (None, Some(device), None) => Source::Device {
            paths: candidates(root, device, listed_elsewhere)?,
            identity: device_identity.clone(),
        },
        (None, None, Some(group)) => {
            // Checked again, because a schema can be replaced.
            if !is_volume_group_name(&group.name) {
                return Err(Undeclared::InvalidSpec(
                    "source.volumeGroup.name is no name that LVM allows",
                ));
            }
            let source = GroupSource::Named(group.name.clone());
            let claim = claim(desired, uid);
            return Ok(Declared::Group { source, claim });
        }
        _ => {
            return Err(Undeclared::InvalidSpec(
                "a source is exactly one of image, device and volumeGroup",
            ));
        }
    };
    Ok(Declared::Images(PoolDeclaration {
        uid,
        name: spec.name.clone(),
        others: others.clone(),
        node: node.clone(),
        take_over: spec.take_over.as_ref().and_then(granted),
        replaced: replaced(spec),
        source,
    }))
}

/// The pool that a volume group is to be.
fn claim(desired: &DesiredPool, uid: Uid) -> PoolClaim {
    PoolClaim {
        uid,
        name: desired.spec.name.clone(),
        others: desired.others.clone(),
        node: desired.node.clone(),
        take_over: desired.spec.take_over.as_ref().and_then(granted),
    }
}

/// The directory of an image. Checked again, because a schema can be replaced.
fn directory(image: &ImageSource) -> Result<Option<PathBuf>, Undeclared> {
    match &image.directory {
        Some(text) if !is_directory(text) => Err(Undeclared::InvalidSpec(
            "source.image.directory is not an absolute path without '.', '..', control characters and ':'",
        )),
        directory => Ok(directory.as_ref().map(PathBuf::from)),
    }
}

/// The former disks of a pool. One without a valid UUID is no pool's.
pub fn replaced(spec: &NodePool) -> Vec<ReplacedDisk> {
    let listed = spec.replaced_disks.iter();
    let valid = listed.filter_map(|disk| {
        Some(ReplacedDisk {
            filesystem_uuid: disk.filesystem_uuid.parse().ok()?,
            identity: disk.device_identity.clone(),
        })
    });
    valid.collect()
}

/// The devices that may be the pool's: those that it lists or selects.
fn candidates(
    root: &Root,
    device: &DeviceSource,
    listed_elsewhere: &[PathBuf],
) -> Result<Vec<PathBuf>, Undeclared> {
    let Some(selector) = &device.selector else {
        return Ok(device.paths.iter().map(PathBuf::from).collect());
    };
    let matches = |disk: &Disk| selector.matches(disk.size, disk.model.as_deref(), disk.rotational);
    let paths = root.matching_disks(matches, listed_elsewhere);
    paths.map_err(Undeclared::Disks)
}
