//! The source of a new volume.
//!
//! *Invariant:* a copy has the same kind of data as its source, unless it is a raw block volume made from the snapshot of
//! a filesystem, and is at least as large. It is created on the node and
//! in the pool of its source, or, if that node cannot take it, a snapshot is copied to another node. A later object
//! with the source's name is not the source.

use std::sync::Arc;

use cistern_crds::{
    AccessType, Bytes, ConditionType, ContentSource, Encryption, FilesystemType, HasImage,
    PoolNames, PoolSnapshot, PoolVolume, Reason, SourceKind, StorageNode, condition, names,
};
use kube::ResourceExt as _;

use super::{ListedVolume, NewVolume, Requirement, Volumes, placement};
use crate::objects::{
    self, ManagedObject, advice::advice, follow::Refusal, listed_snapshot::ListedSnapshot,
    listing::Listed as _, named, nodes::Nodes, not_found,
};

/// A snapshot or a volume, as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReference {
    /// Whether the source is a snapshot or a volume.
    pub kind: SourceKind,
    /// The snapshot id or volume id.
    pub id: Box<str>,
}

impl SourceReference {
    /// Names the source in messages.
    pub fn named(&self) -> String {
        match self.kind {
            SourceKind::Snapshot => named::<PoolSnapshot>(&self.id),
            SourceKind::Volume => named::<PoolVolume>(&self.id),
        }
    }
}

impl From<&ContentSource> for SourceReference {
    fn from(source: &ContentSource) -> Self {
        Self {
            kind: source.kind,
            id: source.name.as_str().into(),
        }
    }
}

/// Why an existing source cannot be copied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The source is not ready yet (VCS-13).
    #[error("{origin} is not ready to be copied: {why}")]
    NotReady {
        /// Kind and id of the source.
        origin: String,
        /// What it waits for.
        why: String,
    },
    /// The requested volume is incompatible with the source (VCS-04).
    #[error("a volume made from {origin} cannot be what is asked for: {why}")]
    Unlike {
        /// Kind and id of the source.
        origin: String,
        /// The difference, and the compatible value.
        why: String,
    },
    /// The source is larger than the requested limit (VCS-07).
    #[error("{origin} has {size}, and the volume may have at most {limit}")]
    TooLarge {
        /// Kind and id of the source.
        origin: String,
        /// Size of the source in bytes.
        size: Bytes,
        /// Largest size that the request allows, in bytes.
        limit: Bytes,
    },
    /// The node cannot take a copy now, and to choose another one would not help. No object remains.
    #[error("a volume of {size} cannot be made from {origin} on node {node}: {why}")]
    NoRoom {
        /// Kind and id of the source.
        origin: String,
        /// Name of the node that holds the source, or that the scheduler has chosen.
        node: String,
        /// Size of the requested copy in bytes.
        size: Bytes,
        /// Why the node cannot take it.
        why: String,
    },
    /// The node refuses the copy. No object remains.
    #[error("node {node} cannot copy {origin}: {message}: {advice}")]
    Refused {
        /// Kind and id of the source.
        origin: String,
        /// Name of the node that holds the source.
        node: String,
        /// The message of the agent.
        message: String,
        /// What a user can do about it.
        advice: String,
    },
}

/// Current state of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    reference: SourceReference,
    image: String,
    node: String,
    pool: String,
    size: Bytes,
    access_type: AccessType,
    filesystem: Option<FilesystemType>,
    encryption: Option<Encryption>,
    /// The snapshot of a volume that is copied to another node; None for a copy on the same node.
    snapshot: Option<String>,
}

impl Source {
    /// The content source in the spec of a copy on a node.
    pub(super) fn content(&self, node: &str) -> ContentSource {
        ContentSource {
            kind: self.reference.kind,
            name: self.reference.id.to_string(),
            image: self.image.clone(),
            node_name: (node != self.node).then(|| self.node.clone()),
            snapshot_name: self.snapshot.clone(),
        }
    }

    /// Fails if the pool of the source has no snapshots and clones.
    pub(super) fn is_copied(&self, nodes: &Nodes) -> Result<(), Error> {
        let copies = nodes.copies(&self.node, &self.pool);
        copies.map_err(|why| Error::Refused {
            origin: self.reference.named(),
            node: self.node.clone(),
            advice: advice(why.reason, &self.pool),
            message: why.message,
        })
    }

    /// Whether a copy on a node needs a snapshot first: it takes long, and a volume changes meanwhile.
    pub(super) fn needs_snapshot(&self, node: &str) -> bool {
        self.reference.kind == SourceKind::Volume && node != self.node
    }

    /// The volume as a snapshot of it has it.
    fn as_of(&self, snapshot: &str, found: Self) -> Self {
        Self {
            reference: self.reference.clone(),
            snapshot: Some(snapshot.to_owned()),
            ..found
        }
    }

    /// Completes the request for a copy: at least as large as the source, with its filesystem.
    ///
    /// mkfs options apply to empty volumes only. Fails if the request is incompatible with the
    /// source, or if its limit is too small.
    pub(super) fn complete(&self, wanted: &NewVolume) -> Result<NewVolume, super::Error> {
        if let Some(why) = self.difference(wanted) {
            let origin = self.reference.named();
            return Err(Error::Unlike { origin, why }.into());
        }
        let chosen = wanted.size.chosen.max(self.size);
        if let Some(limit) = wanted.size.limit.filter(|&limit| chosen > limit) {
            let (origin, size) = (self.reference.named(), self.size);
            return Err(Error::TooLarge {
                origin,
                size,
                limit,
            }
            .into());
        }
        let mut completed = wanted.clone();
        completed.size.chosen = chosen;
        completed.filesystem = match wanted.access_type {
            AccessType::Filesystem => self.filesystem,
            AccessType::Block => None,
        };
        Ok(completed)
    }

    /// Restricts a completed request to the node and the pool of the source, regardless of other preferences.
    /// Fails if the request does not allow that node.
    pub(super) fn beside(&self, completed: &NewVolume) -> Result<NewVolume, Error> {
        if !completed.requirement.allows(&self.node) {
            let why = "accessibility_requirements leave it out".to_owned();
            return Err(self.no_room(completed.size.chosen, why));
        }
        Ok(NewVolume {
            pools: PoolNames::only(&self.pool),
            requirement: Requirement {
                requisite: Some(vec![names::topology_value(&self.node)]),
                preferred: Vec::new(),
            },
            ..completed.clone()
        })
    }

    /// Restricts a completed request to the other nodes to which the data can be copied. None if it cannot be copied:
    /// an agent of an older version has published no key.
    pub(super) fn elsewhere(
        &self,
        completed: &NewVolume,
        nodes: &[Arc<StorageNode>],
    ) -> Option<NewVolume> {
        let has_key = |node: &&Arc<StorageNode>| {
            let status = node.status.as_ref();
            status.is_some_and(|status| status.transfer_key.is_some())
        };
        let can_copy = || nodes.iter().filter(has_key).map(|node| node.name_any());
        if !can_copy().any(|it| it == self.node) {
            return None;
        }
        let others = can_copy().filter(|node| *node != self.node);
        let allowed = others.filter(|node| completed.requirement.allows(node));
        let requisite: Vec<String> = allowed.map(|node| names::topology_value(&node)).collect();
        let mut elsewhere = completed.clone();
        let preferred = &mut elsewhere.requirement.preferred;
        preferred.retain(|value| requisite.contains(value));
        elsewhere.requirement.requisite = Some(requisite);
        Some(elsewhere)
    }

    /// The source as the request names it.
    pub(super) fn reference(&self) -> &SourceReference {
        &self.reference
    }

    /// Name of the image that is copied.
    pub(super) fn image(&self) -> &str {
        &self.image
    }

    /// Name of the node that holds the source.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// Minimum size of a copy in bytes.
    pub(super) fn size(&self) -> Bytes {
        self.size
    }

    /// The error for a copy that has no room at its source, and can be nowhere else. It must not make the
    /// scheduler choose again.
    pub(super) fn no_room(&self, size: Bytes, why: String) -> Error {
        Error::NoRoom {
            origin: self.reference.named(),
            node: self.node.clone(),
            size,
            why,
        }
    }

    /// Maps an error of the placement of a copy.
    pub(super) fn misplaced(&self, error: super::Error) -> super::Error {
        match error {
            super::Error::Placement(placement::Error::NoRoom { size, why, .. }) => {
                self.no_room(size, why).into()
            }
            error => error,
        }
    }

    fn difference(&self, wanted: &NewVolume) -> Option<String> {
        if !wanted.pools.contains(&self.pool) {
            return Some(format!(
                "it is in StoragePool {}, and its class asks for {}: use a class of {}",
                self.pool, wanted.pools, self.pool
            ));
        }
        match (self.encryption, wanted.encryption) {
            (Some(encryption), None) => {
                return Some(format!(
                    "it is encrypted: use a class with encryption: {encryption}, whose Secret has the key of the source"
                ));
            }
            (None, Some(_)) => {
                return Some("it is not encrypted: use a class without encryption".to_owned());
            }
            (Some(Encryption::Luks2), Some(Encryption::Luks2)) | (None, None) => {}
        }
        match (self.access_type, wanted.access_type, self.reference.kind) {
            (AccessType::Filesystem, AccessType::Block, SourceKind::Volume) => {
                let why = "it has a filesystem, and a block device is asked for: take a snapshot, which can be \
                           restored to one";
                return Some(why.to_owned());
            }
            (AccessType::Block, AccessType::Filesystem, _) => {
                return Some("it is a block device, and a filesystem is asked for".to_owned());
            }
            // A backup program reads the filesystem in a snapshot block by block.
            (AccessType::Filesystem, AccessType::Block, SourceKind::Snapshot)
            | (AccessType::Filesystem, AccessType::Filesystem, _)
            | (AccessType::Block, AccessType::Block, _) => {}
        }
        match (self.filesystem, wanted.filesystem) {
            (Some(has), Some(asked)) if has != asked => Some(format!(
                "it has {has}, and {asked} is asked for: use a class whose csi.storage.k8s.io/fstype is {has}"
            )),
            (Some(_) | None, Some(_) | None) => None,
        }
    }
}

impl Volumes {
    /// Reads the source from the API server (VCS-03, VCS-13). Fails if the source does not exist or
    /// is under deletion, if it is not ready to be copied, or if a request to the API server fails.
    pub(super) async fn source(&self, reference: &SourceReference) -> Result<Source, super::Error> {
        match reference.kind {
            SourceKind::Snapshot => {
                let found = self.snapshots.find(&reference.id).await?;
                let requested = found.filter(|it| !it.spec.is_hidden());
                Ok(of_snapshot(reference, &existing(reference, requested)?)?)
            }
            SourceKind::Volume => {
                let found = self.objects.find(&reference.id).await?;
                Ok(of_volume(reference, &existing(reference, found)?)?)
            }
        }
    }

    /// Reads the volume that a source is. Fails if it is gone, also if another volume has its name now.
    pub(super) async fn source_volume(&self, source: &Source) -> Result<PoolVolume, super::Error> {
        let reference = &source.reference;
        let found = self.objects.find(&reference.id).await?;
        let is_it = |volume: &PoolVolume| {
            let image = volume.image();
            image.is_some_and(|image| image.uid == source.image)
        };
        Ok(existing(reference, found.filter(is_it))?)
    }

    /// The volume as a snapshot of it has it. Fails if the snapshot is not ready, or is gone.
    pub(super) async fn pinned(
        &self,
        source: &Source,
        snapshot: &str,
    ) -> Result<Source, super::Error> {
        let found = self.snapshots.find(snapshot).await?;
        let stays = found.filter(|it| !it.spec.deletion_requested);
        let Some(found) = stays else {
            let (origin, why) = (source.reference.named(), "its snapshot is gone".to_owned());
            return Err(Error::NotReady { origin, why }.into());
        };
        Ok(source.as_of(snapshot, of_snapshot(&source.reference, &found)?))
    }
}

fn existing<K: ManagedObject + HasImage>(
    reference: &SourceReference,
    found: Option<K>,
) -> Result<K, objects::Error> {
    let stays = found.filter(|object| !object.deletion_requested());
    stays.ok_or_else(|| not_found::<K>(&reference.id))
}

fn of_snapshot(reference: &SourceReference, snapshot: &PoolSnapshot) -> Result<Source, Error> {
    let spec = &snapshot.spec;
    let cut = ListedSnapshot::of(snapshot).filter(|snapshot| snapshot.ready);
    let Some((cut, image)) = cut.zip(snapshot.image()) else {
        return Err(not_ready(reference, snapshot));
    };
    Ok(Source {
        reference: reference.clone(),
        image: image.uid.clone(),
        node: spec.node_name.clone(),
        pool: spec.pool_name.clone(),
        size: cut.size,
        access_type: spec.access_type,
        filesystem: spec.filesystem,
        encryption: spec.encryption,
        snapshot: None,
    })
}

fn of_volume(reference: &SourceReference, volume: &PoolVolume) -> Result<Source, Error> {
    let spec = &volume.spec;
    let Some((made, image)) = ListedVolume::of(volume).zip(volume.image()) else {
        return Err(not_ready(reference, volume));
    };
    Ok(Source {
        reference: reference.clone(),
        image: image.uid.clone(),
        node: spec.node_name.clone(),
        pool: spec.pool_name.clone(),
        size: made.size,
        access_type: volume.access_type(),
        filesystem: volume.filesystem_type(),
        encryption: spec.encryption,
        snapshot: None,
    })
}

fn not_ready<K: HasImage>(reference: &SourceReference, object: &K) -> Error {
    let ready = condition::find(object.conditions(), ConditionType::Ready);
    let node = object.node_name();
    let why = match ready {
        Some(ready) => format!("node {node} reports {}: {}", ready.reason, ready.message),
        None => format!("node {node} has not reported on it yet"),
    };
    let origin = reference.named();
    Error::NotReady { origin, why }
}

/// Why a node's refusal of a copy is final; None if the refusal is handled like that of any volume.
pub(super) fn refused(reference: &SourceReference, refusal: &Refusal) -> Option<super::Error> {
    let origin = reference.named();
    match refusal.why.reason {
        Reason::SourceMissing => Some(objects::Error::NotFound { object: origin }.into()),
        Reason::TooManyExtents | Reason::TooLargeToCheck | Reason::NotInVolumeGroup => Some(
            Error::Refused {
                origin,
                node: refusal.node.clone(),
                message: refusal.why.message.clone(),
                advice: advice(refusal.why.reason, &refusal.pool),
            }
            .into(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
