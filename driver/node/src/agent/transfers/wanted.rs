//! What a node receives: the snapshot for a new volume, or a volume that moves here, and snapshots of it before that.
//! Pure.

use cistern_crds::{
    Bytes, ContentSource, ExtentSize, HasImage as _, ImageTransferSpec, PoolReplica, PoolVolume,
    SourceKind, TransferPurpose,
};
use cistern_host::{Engine, InvalidUid, SnapshotRecord, Uid, copy::Original};
use kube::ResourceExt as _;

use crate::{image::COPIES, image::name_of};

/// A copy that is received.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Name of the PoolVolume, which the ImageTransfer has, too.
    pub(super) volume: String,
    /// Name of the copy.
    pub(super) copy: Uid,
    /// Name of the image that is copied.
    pub(super) image: Uid,
    /// Name of the image that the permission names as base. Only differences from it are sent if this node has a
    /// complete copy of it.
    pub(super) base: Option<Uid>,
    /// Bytes that are reserved for it.
    pub(super) reserved: Bytes,
    /// The extent size hint of a volume that moves.
    pub(super) extent_size: Option<ExtentSize>,
    /// What is copied.
    pub(super) origin: Origin,
}

/// What is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A snapshot.
    Snapshot {
        /// Name of the PoolSnapshot.
        name: String,
        /// The source that the volume names.
        source: ContentSource,
    },
    /// A closed volume.
    Move {
        /// UID of the VolumeMove.
        uid: String,
    },
    /// A snapshot of a volume that is used while it moves.
    Pass {
        /// Name of the PoolSnapshot.
        snapshot: String,
        /// UID of the VolumeMove.
        uid: String,
    },
}

impl Wanted {
    /// The copy of a snapshot that a volume is made from. Fails if the custom resource has an invalid UID.
    pub fn of_snapshot(
        volume: &PoolVolume,
        source: &ContentSource,
        snapshot: &str,
    ) -> Result<Self, InvalidUid> {
        Ok(Self {
            volume: volume.name_any(),
            copy: name_of(volume)?,
            image: source.image.parse()?,
            base: None,
            reserved: volume
                .reserved()
                .unwrap_or_default()
                .saturating_add(volume.header()),
            extent_size: None,
            origin: Origin::Snapshot {
                name: snapshot.to_owned(),
                source: source.clone(),
            },
        })
    }

    /// The copy of a volume that moves here. Fails if the custom resource has an invalid UID.
    pub fn of_replica(replica: &PoolReplica) -> Result<Self, InvalidUid> {
        let spec = &replica.spec;
        let image: Uid = spec.image.parse()?;
        Ok(Self {
            volume: spec.volume_name.clone(),
            copy: image.clone(),
            image,
            base: None,
            reserved: spec.size,
            extent_size: spec.extent_size,
            origin: Origin::Move {
                uid: spec.move_uid.clone(),
            },
        })
    }

    /// The copy that a transfer permits, of those that a move needs. Fails if the transfer has an invalid UID.
    pub(super) fn permitted_by(&self, transfer: &ImageTransferSpec) -> Result<Self, InvalidUid> {
        let Origin::Move { uid } = &self.origin else {
            return Ok(self.clone());
        };
        let base = transfer.base_image.as_ref().map(|it| it.parse());
        let mut permitted = Self {
            image: transfer.image.parse()?,
            base: base.transpose()?,
            ..self.clone()
        };
        if let Some(snapshot) = &transfer.snapshot_name {
            permitted.origin = Origin::Pass {
                snapshot: snapshot.clone(),
                uid: uid.clone(),
            };
        }
        Ok(permitted)
    }

    /// UID of the move that the copy is for; none for the copy of a snapshot for a new volume. Fails if it is invalid.
    pub(super) fn moved_by(&self) -> Result<Option<Uid>, InvalidUid> {
        match &self.origin {
            Origin::Snapshot { .. } => Ok(None),
            Origin::Move { uid } | Origin::Pass { uid, .. } => uid.parse().map(Some),
        }
    }

    /// Whether nothing more has to be received. Fails if the pool cannot be read, if it has an image of a volume that
    /// moves here from before the move, or while the copy is received. Blocks.
    pub fn is_received(&self, pool: &dyn Engine) -> Result<bool, crate::image::Error> {
        let pool = pool.images_for(COPIES)?;
        Ok(match self.moved_by()? {
            None => pool.is_received(&self.copy, &self.image)?,
            Some(by) => pool.is_moved(&self.copy, &by)?,
        })
    }

    /// What is copied, for messages.
    pub(super) fn name(&self) -> String {
        match &self.origin {
            Origin::Snapshot { name, .. } => format!("snapshot {name}"),
            Origin::Move { .. } | Origin::Pass { .. } => format!("volume {}", self.volume),
        }
    }

    /// What is copied from a node, for the progress.
    pub(super) fn described(&self, node: &str) -> String {
        match &self.origin {
            Origin::Snapshot { source, .. } => match source.kind {
                SourceKind::Snapshot => format!("snapshot {} of node {node}", source.name),
                SourceKind::Volume => {
                    format!("a snapshot of volume {} of node {node}", source.name)
                }
            },
            Origin::Move { .. } => format!("the volume on node {node}"),
            Origin::Pass { .. } if self.base.is_some() => {
                format!("what has changed in the volume on node {node}")
            }
            Origin::Pass { .. } => format!("the volume on node {node}, which is in use,"),
        }
    }

    /// Whether a transfer permits this copy to a node.
    pub(super) fn is_permitted(&self, transfer: &ImageTransferSpec, node: &str) -> bool {
        let is_image = transfer.image == self.image.as_str();
        let is_it = match &self.origin {
            Origin::Snapshot { name, .. } => {
                transfer.purpose == TransferPurpose::Restore
                    && transfer.snapshot_name.as_deref() == Some(name)
                    && is_image
            }
            Origin::Move { uid } | Origin::Pass { uid, .. } => {
                transfer.purpose == TransferPurpose::Move
                    && transfer.move_uid.as_deref() == Some(uid)
                    && (is_image || transfer.snapshot_name.is_some())
            }
        };
        is_it && transfer.target_node == node
    }

    /// Whether an image that is offered is the one that is wanted.
    pub(super) fn is_offered(&self, original: &Original) -> bool {
        let owner = &original.identity.owner;
        let closed_for = original.closed_for.as_ref().map(Uid::as_str);
        let is_kind = match &self.origin {
            Origin::Snapshot { .. } => owner.snapshot().is_some() && closed_for.is_none(),
            Origin::Move { uid } => owner.volume() == Some(&self.volume) && closed_for == Some(uid),
            Origin::Pass { .. } => {
                let is_of_volume = |record: &SnapshotRecord| {
                    record.volume == self.volume && record.source == self.copy
                };
                owner.snapshot().is_some_and(is_of_volume) && closed_for.is_none()
            }
        };
        is_kind && original.identity.uid == self.image
    }
}
