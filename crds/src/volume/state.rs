//! What the spec and the status of a volume say together.
//!
//! *Invariant:* pure. Only a status of the epoch of the spec says that the volume is ready, or closed for a move.

use cistern_types::{Bytes, Encryption, FilesystemType};

use super::{
    access::AccessType,
    content_source::ContentSource,
    spec::PoolVolume,
    status::{FilesystemStatus, PoolVolumeStatus},
};
use crate::{
    attributes::VolumeAttributes,
    condition::{self, Condition, ConditionStatus},
    explanation::Explanation,
    location::FenceState,
    reason::{ConditionType, Reason},
};

impl PoolVolume {
    /// Returns the bytes that the image has in front of the volume's data.
    pub fn header(&self) -> Bytes {
        Encryption::header_of(self.spec.encryption)
    }

    /// The status of the epoch of the spec. That of another epoch describes another image, and counts as none.
    pub fn current_status(&self) -> Option<&PoolVolumeStatus> {
        let status = self.status.as_ref();
        status.filter(|status| status.epoch == self.spec.epoch)
    }

    /// Whether the volume has its image, and its node reports it as ready.
    pub fn is_ready(&self) -> bool {
        self.current_status().is_some_and(|status| {
            status.image.is_some() && condition::holds(&status.conditions, ConditionType::Ready)
        })
    }

    /// Whether this move was given up before the volume named its new node.
    pub fn cancels(&self, move_uid: &str) -> bool {
        self.spec.cancelled_move_uid.as_deref() == Some(move_uid)
    }

    /// How far the volume's node has closed it for a move; None if it has not begun.
    pub fn fence_for(&self, move_uid: &str) -> Option<FenceState> {
        let fence = self.current_status()?.fence.as_ref()?;
        (fence.move_uid == move_uid).then_some(fence.state)
    }

    /// How pods get the volume now. A raw block volume is a filesystem once its filesystem was adopted.
    pub fn access_type(&self) -> AccessType {
        match self.made_filesystem() {
            Some(_) => AccessType::Filesystem,
            None => self.spec.access_type,
        }
    }

    /// The type of the filesystem that the volume has, or gets; None for raw block volumes.
    pub fn filesystem_type(&self) -> Option<FilesystemType> {
        let made = self.made_filesystem().map(|filesystem| filesystem.kind);
        self.spec.filesystem.or(made)
    }

    fn made_filesystem(&self) -> Option<&FilesystemStatus> {
        self.status.as_ref()?.filesystem.as_ref()
    }

    /// The source on another node whose data the volume waits for, and the name of the snapshot that is copied: the
    /// bytes of the volume are reserved, and its image is not made. A volume of a later epoch waits for none: its image was
    /// made before it moved, also if its status is lost.
    pub fn awaited_copy(&self) -> Option<(&ContentSource, &str)> {
        let source = self.spec.content_source.as_ref()?;
        let snapshot = source.copied_snapshot()?;
        let status = self.status.as_ref()?;
        let is_unmade = self.spec.epoch == 0 && status.reserved.is_some() && status.size.is_none();
        let awaits = is_unmade && !self.spec.deletion_requested;
        awaits.then_some((source, snapshot))
    }

    /// The condition that refuses the expansion that the spec requests now, if there is one.
    /// Nothing is reserved for that expansion, and the controller lowers the size again.
    pub fn refused_growth(&self) -> Option<&Condition> {
        let status = self.status.as_ref()?;
        let expanded = condition::find(&status.conditions, ConditionType::Expanded)?;
        let refuses = expanded.status == ConditionStatus::False.as_str()
            && Reason::parse(&expanded.reason).is_some_and(Reason::refuses_growth)
            && expanded.observed_generation == self.metadata.generation
            && status.reserved.is_some_and(|held| held < self.spec.size);
        refuses.then_some(expanded)
    }

    /// The attributes that the agent has admitted, and before the admission those that the spec
    /// requests.
    pub fn admitted_attributes(&self) -> VolumeAttributes {
        let status = self.status.as_ref();
        let admitted = status.and_then(|status| status.attributes);
        admitted.unwrap_or(self.spec.attributes)
    }

    /// Why the agent refuses the attributes that the spec requests now, if it does. The
    /// admitted attributes stay in force, and the controller restores them in the spec.
    pub fn refused_modification(&self) -> Option<Explanation> {
        let status = self.status.as_ref()?;
        let applied = condition::find(&status.conditions, ConditionType::AttributesApplied)?;
        let reason =
            Reason::parse(&applied.reason).filter(|reason| reason.refuses_modification())?;
        let refuses = applied.status == ConditionStatus::False.as_str()
            && applied.observed_generation == self.metadata.generation
            && self.admitted_attributes() != self.spec.attributes;
        refuses.then(|| Explanation::new(reason, &*applied.message))
    }

    /// Whether admitted attributes are not in force yet.
    pub fn is_being_modified(&self) -> bool {
        let Some(status) = self.status.as_ref() else {
            return false;
        };
        status.attributes == Some(self.spec.attributes)
            && !condition::holds(&status.conditions, ConditionType::AttributesApplied)
    }

    /// The condition that reports a check of the filesystem that waits or runs.
    pub fn checking(&self) -> Option<&Condition> {
        condition::holding(&self.status.as_ref()?.conditions, ConditionType::Checking)
    }

    /// The condition that reports that the volume becomes thick and its space is being allocated.
    pub fn allocating(&self) -> Option<&Condition> {
        let conditions = &self.status.as_ref()?.conditions;
        let applied = condition::failing(conditions, ConditionType::AttributesApplied)?;
        (Reason::parse(&applied.reason) == Some(Reason::Allocating)).then_some(applied)
    }

    /// Whether the attributes that the spec requests are in force.
    pub fn has_requested_attributes(&self) -> bool {
        let Some(status) = self.status.as_ref() else {
            return false;
        };
        status.attributes == Some(self.spec.attributes)
            && condition::holds(&status.conditions, ConditionType::AttributesApplied)
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::{
        Consistency, location::FenceStatus, snapshot::PoolSnapshotSpec, testing::wanted_volume,
        volume::SourceKind,
    };

    #[test]
    fn a_raw_block_volume_with_an_adopted_filesystem_is_a_filesystem_also_to_its_snapshots() {
        let mut volume = wanted_volume();
        (volume.spec.access_type, volume.spec.filesystem) = (AccessType::Block, None);
        let is = |volume: &PoolVolume| {
            let snapshot = PoolSnapshotSpec::of(volume, "uid-1", "snapshot", Consistency::Crash);
            let of_volume = (volume.access_type(), volume.filesystem_type());
            assert_eq!((snapshot.access_type, snapshot.filesystem), of_volume);
            of_volume
        };
        assert_eq!(is(&volume), (AccessType::Block, None));
        volume.status = Some(PoolVolumeStatus {
            filesystem: Some(FilesystemStatus {
                kind: FilesystemType::Xfs,
                uuid: "22222222-2222-4222-8222-222222222222".to_owned(),
                format_time: DateTime::UNIX_EPOCH,
            }),
            ..PoolVolumeStatus::default()
        });
        let adopted = (AccessType::Filesystem, Some(FilesystemType::Xfs));
        assert_eq!(is(&volume), adopted);
    }

    #[test]
    fn a_status_of_another_epoch_and_a_fence_of_another_move_count_as_none() {
        let mut volume = wanted_volume();
        assert_eq!(volume.current_status(), None);
        volume.status = Some(PoolVolumeStatus {
            fence: Some(FenceStatus {
                state: FenceState::Closed,
                move_uid: "move-1".to_owned(),
            }),
            ..PoolVolumeStatus::default()
        });
        assert_eq!(volume.current_status(), volume.status.as_ref());
        assert_eq!(volume.fence_for("move-1"), Some(FenceState::Closed));
        assert_eq!(volume.fence_for("move-2"), None);
        volume.spec.epoch = 1;
        assert_eq!(volume.current_status(), None);
        assert_eq!(volume.fence_for("move-1"), None);
    }

    #[test]
    fn a_volume_of_a_later_epoch_waits_for_no_copy_of_its_source() {
        let mut volume = wanted_volume();
        volume.spec.content_source = Some(ContentSource {
            kind: SourceKind::Snapshot,
            name: "snap-1".to_owned(),
            image: "uid-1".to_owned(),
            node_name: Some("node-2".to_owned()),
            snapshot_name: None,
        });
        // It was created again after a move, and its bytes are reserved.
        volume.status = Some(PoolVolumeStatus {
            reserved: Some(Bytes::gib(1)),
            ..PoolVolumeStatus::default()
        });
        let awaited = volume.awaited_copy().map(|(_, snapshot)| snapshot);
        assert_eq!(awaited, Some("snap-1"));
        volume.spec.epoch = 1;
        assert_eq!(volume.awaited_copy(), None);
        volume.status.as_mut().unwrap().epoch = 1;
        assert_eq!(volume.awaited_copy(), None);
    }
}
