//! A pool as the StorageNode declares it, and its owner, in terms of the host.

use std::path::PathBuf;

use cistern_crds::{NodePool, NodePoolStatus, PoolOwner};
use cistern_host::{
    PoolDeclaration, Source, Uid,
    pool::{ForeignMarker, Owner},
};

/// A desired pool, with the other pools of the node.
#[derive(Clone, Debug)]
pub struct DesiredPool {
    /// Spec of the pool.
    pub spec: NodePool,
    /// UIDs of the other pools of the node.
    pub others: Vec<Uid>,
    /// Last known identity of the pool's device, from the status.
    pub device_identity: Option<String>,
    /// The node that carries the pool.
    pub node: Owner,
}

impl DesiredPool {
    /// The desired pools of a node, with their last status.
    pub fn all(node: &Owner, specs: &[NodePool], known: &[NodePoolStatus]) -> Vec<Self> {
        let desired = |spec: &NodePool| {
            let others = specs.iter().filter(|other| other.uid != spec.uid);
            let known = known.iter().find(|status| status.uid == spec.uid);
            Self {
                spec: spec.clone(),
                others: others.filter_map(|other| other.uid.parse().ok()).collect(),
                node: node.clone(),
                device_identity: known.and_then(|status| status.device_identity.clone()),
            }
        };
        specs.iter().map(desired).collect()
    }
}

/// The spec of a pool cannot be used, because of the reason.
#[derive(Debug, thiserror::Error)]
#[error("the pool's spec is invalid: {0}")]
pub(super) struct InvalidSpec(&'static str);

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

/// The pool as the host opens it. Fails if the spec is invalid.
pub(super) fn declaration(desired: &DesiredPool) -> Result<PoolDeclaration, InvalidSpec> {
    let DesiredPool {
        spec,
        others,
        device_identity,
        node,
    } = desired;
    let uid: Uid = spec
        .uid
        .parse()
        .map_err(|_| InvalidSpec("its uid is not a UID of Kubernetes"))?;
    let source = match (&spec.source.image, &spec.source.device) {
        (Some(image), None) => Source::Image { size: image.size },
        (None, Some(device)) => Source::Device {
            paths: device.paths.iter().map(PathBuf::from).collect(),
            identity: device_identity.clone(),
        },
        (Some(_), Some(_)) | (None, None) => {
            return Err(InvalidSpec("a source is exactly one of image and device"));
        }
    };
    Ok(PoolDeclaration {
        uid,
        name: spec.name.clone(),
        others: others.clone(),
        node: node.clone(),
        take_over: spec.take_over.as_ref().and_then(granted),
        source,
    })
}
