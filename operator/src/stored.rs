//! The cached part of a PoolVolume or PoolSnapshot: its location, and its reportable problems.
//!
//! There are far more of them than of any other kind, and most of them have no problems.
//!
//! *Invariant:* an object that cannot be read has no location, so it counts everywhere.

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionStatus, ConditionType, ContentSource, FenceState, PoolSnapshot, PoolVolume,
    Provisioning, condition, time, unclaimed::Claimable, volume::PoolVolumeStatus,
};
use kube::{ResourceExt, core::DeserializeGuard};

use crate::{cache::Entry, identity};

/// The cached part of an object of a pool. `R` holds its reportable problems.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<R> {
    /// None for an object that cannot be read.
    pub location: Option<Location>,
    /// UID of the object; empty if the object cannot be read.
    pub uid: Box<str>,
    /// Creation time; None if the object cannot be read.
    pub created: Option<DateTime<Utc>>,
    /// The name of the CSI request; None if it is the name of the object.
    pub requested_name: Option<Box<str>>,
    /// None if there is nothing to report.
    pub report: Option<Box<R>>,
    /// The PoolSnapshot on another node that the volume is to be made from; None if it has been made, or needs
    /// no copy.
    pub awaits: Option<Box<AwaitedCopy>>,
    /// The node that the volume is declared to move to.
    pub moves: Option<Box<DeclaredMove>>,
    /// Whether the volume has moved, and its node does not report it as ready.
    pub is_awaited: bool,
    /// Whether the deletion of the volume is requested.
    pub is_leaving: bool,
    /// The move that a snapshot was taken for.
    pub of_move: Option<Box<PartOfMove>>,
    /// Whether the object needs no Kubernetes object that refers to it.
    pub is_hidden: bool,
}

/// A volume that moves to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredMove {
    /// The node that it moves to.
    pub node: Box<str>,
    /// UID of the VolumeMove.
    pub uid: Box<str>,
    /// How far its node has closed it for this move; None if it has not begun.
    pub fence: Option<FenceState>,
    /// Name of its image once it is closed, so that it can be copied.
    pub closed_image: Option<Box<str>>,
}

/// An object that a move needs. The move reads it when it changes, so only the version is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOfMove {
    /// The volume that moves.
    pub volume: Box<str>,
    version: Option<Box<str>>,
}

impl PartOfMove {
    /// Reduces an object to its cached part.
    pub fn of(object: &impl ResourceExt, volume: &str) -> Self {
        Self {
            volume: volume.into(),
            version: object.resource_version().map(Into::into),
        }
    }
}

impl Entry for PartOfMove {
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

impl DeclaredMove {
    fn of(volume: &PoolVolume) -> Option<Self> {
        let target = volume.spec.target.as_ref()?;
        let fence = volume.fence_for(&target.move_uid);
        let image = volume.current_status();
        let image = image
            .and_then(|status| status.image.as_ref())
            .filter(|_| fence == Some(FenceState::Closed))
            .map(|image| image.uid.as_str().into());
        Some(Self {
            node: target.node_name.as_str().into(),
            uid: target.move_uid.as_str().into(),
            fence,
            closed_image: image,
        })
    }
}

/// A snapshot on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedCopy {
    /// Name of the PoolSnapshot.
    pub snapshot: Box<str>,
    /// Name of its image.
    pub image: Box<str>,
}

impl AwaitedCopy {
    fn of((source, snapshot): (&ContentSource, &str)) -> Self {
        Self {
            snapshot: snapshot.into(),
            image: source.image.as_str().into(),
        }
    }
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The node that holds it.
    pub node: Box<str>,
    /// The StoragePool that holds it.
    pub pool: Box<str>,
    /// Whether its space is allocated in full. A volume is thick once its agent has admitted that.
    pub thick: bool,
}

/// The cached part of a PoolVolume.
pub type StoredVolume = Stored<PoolVolume>;
/// The cached part of a PoolSnapshot. Nothing is reported about snapshots.
pub type StoredSnapshot = Stored<()>;

impl<R> Default for Stored<R> {
    fn default() -> Self {
        Self {
            location: None,
            uid: Box::default(),
            created: None,
            requested_name: None,
            report: None,
            awaits: None,
            moves: None,
            is_awaited: false,
            is_leaving: false,
            of_move: None,
            is_hidden: false,
        }
    }
}

impl<R: PartialEq> Entry for Stored<R> {
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

impl StoredVolume {
    /// Reduces a volume to its cached part.
    pub fn of_volume(object: DeserializeGuard<PoolVolume>) -> Self {
        let Ok(volume) = object.0 else {
            return Self::default();
        };
        let admitted = volume.status.as_ref().and_then(|status| status.attributes);
        let provisioning = admitted.map_or(Provisioning::Thin, |it| it.provisioning);
        let stored = Self::of(&volume, provisioning);
        Self {
            awaits: volume.awaited_copy().map(AwaitedCopy::of).map(Box::new),
            moves: DeclaredMove::of(&volume).map(Box::new),
            is_awaited: is_awaited(&volume),
            is_leaving: volume.spec.deletion_requested,
            report: reportable(volume).map(Box::new),
            ..stored
        }
    }
}

impl StoredSnapshot {
    /// Reduces a snapshot to its cached part.
    pub fn of_snapshot(object: &DeserializeGuard<PoolSnapshot>) -> Self {
        let Ok(snapshot) = &object.0 else {
            return Self::default();
        };
        let part = || Box::new(PartOfMove::of(snapshot, &snapshot.spec.source_volume));
        Self {
            is_hidden: snapshot.spec.is_hidden(),
            of_move: snapshot.spec.is_of_move().then(part),
            ..Self::of(snapshot, snapshot.spec.provisioning)
        }
    }
}

impl<R> Stored<R> {
    fn of(object: &impl Claimable, provisioning: Provisioning) -> Self {
        let created = object.meta().creation_timestamp.as_ref();
        let requested = object.requested_name();
        Self {
            location: Some(Location {
                node: object.node_name().into(),
                pool: object.pool_name().into(),
                thick: provisioning == Provisioning::Thick,
            }),
            uid: object.uid().unwrap_or_default().into(),
            created: created.map(time::from_kubernetes),
            requested_name: (requested != object.name_any()).then(|| requested.into()),
            ..Self::default()
        }
    }
}

/// Whether a volume has moved, and its node does not report it as ready.
fn is_awaited(volume: &PoolVolume) -> bool {
    let is_ready =
        |status: &PoolVolumeStatus| condition::holds(&status.conditions, ConditionType::Ready);
    volume.spec.epoch > 0 && !volume.current_status().is_some_and(is_ready)
}

/// The reportable part of a volume: its problems, a check that is running, and the conditions of a
/// size, attributes or limits that are not applied. None if it has none of these.
fn reportable(mut volume: PoolVolume) -> Option<PoolVolume> {
    const REPORTED: [(ConditionType, ConditionStatus); 4] = [
        (ConditionType::Expanded, ConditionStatus::False),
        (ConditionType::AttributesApplied, ConditionStatus::False),
        (ConditionType::LimitsEnforced, ConditionStatus::False),
        (ConditionType::Checking, ConditionStatus::True),
    ];
    let mut status = volume.status.take()?;
    status.conditions.retain(|condition| {
        let mut reported = REPORTED.iter();
        reported
            .any(|(kind, is)| condition.type_ == kind.as_str() && condition.status == is.as_str())
    });
    if status.conditions.is_empty() && status.problems.is_empty() {
        return None;
    }
    volume.metadata = identity::metadata(&volume.metadata);
    volume.metadata.resource_version = None;
    volume.status = Some(PoolVolumeStatus {
        conditions: status.conditions,
        problems: status.problems,
        ..PoolVolumeStatus::default()
    });
    Some(volume)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, FenceStatus, MoveTarget, SourceKind, VolumeAttributes};
    use serde_json::{Value, json};

    use super::*;

    fn volume(conditions: &Value) -> DeserializeGuard<PoolVolume> {
        serde_json::from_value(json!({
            "metadata": {
                "name": "pvc-1", "uid": "u", "resourceVersion": "7", "labels": {"x": "y"},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "requestedName": "pvc-1", "nodeName": "w1", "poolName": "fast", "size": "1Gi",
                "accessType": "Block", "accessModes": ["SingleNodeWriter"],
                "attributes": {"provisioning": "Thick"},
            },
            "status": {
                "reserved": "1Gi", "attributes": {"provisioning": "Thick"}, "conditions": conditions,
            },
        }))
        .unwrap()
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!({
            "type": kind, "status": status, "reason": "Reconciled", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    #[test]
    fn only_the_location_of_a_volume_that_is_well_is_kept() {
        let well = json!([condition("Ready", "True"), condition("Expanded", "True")]);
        let stored = StoredVolume::of_volume(volume(&well));
        let location = stored.location.unwrap();
        assert_eq!((&*location.node, &*location.pool), ("w1", "fast"));
        assert!(location.thick);
        assert_eq!((&*stored.uid, stored.requested_name), ("u", None));
        assert_eq!(stored.report, None);
    }

    #[test]
    fn a_volume_is_thick_if_that_is_admitted_and_not_if_it_is_only_requested() {
        let is_thick = |requested: Provisioning, admitted: Option<Provisioning>| {
            let mut volume = volume(&json!([])).0.unwrap();
            volume.spec.attributes.provisioning = requested;
            let attributes = admitted.map(|provisioning| VolumeAttributes {
                provisioning,
                ..VolumeAttributes::default()
            });
            volume.status.as_mut().unwrap().attributes = attributes;
            let stored = StoredVolume::of_volume(DeserializeGuard(Ok(volume)));
            stored.location.unwrap().thick
        };
        assert!(!is_thick(Provisioning::Thick, Some(Provisioning::Thin)));
        assert!(is_thick(Provisioning::Thin, Some(Provisioning::Thick)));
        assert!(!is_thick(Provisioning::Thick, None), "a new volume");
    }

    #[test]
    fn the_copy_that_a_volume_waits_for_is_kept_until_the_volume_is_made() {
        let mut waiting = volume(&json!([])).0.unwrap();
        waiting.spec.content_source = Some(ContentSource {
            kind: SourceKind::Snapshot,
            name: "snap-1".to_owned(),
            image: "uid-1".to_owned(),
            node_name: Some("w2".to_owned()),
            snapshot_name: None,
        });
        let awaits = |volume: &PoolVolume| {
            StoredVolume::of_volume(DeserializeGuard(Ok(volume.clone()))).awaits
        };
        let awaited = awaits(&waiting).unwrap();
        assert_eq!((&*awaited.snapshot, &*awaited.image), ("snap-1", "uid-1"));
        let mut clone = waiting.clone();
        let source = clone.spec.content_source.as_mut().unwrap();
        source.kind = SourceKind::Volume;
        source.snapshot_name = Some("snap-2".to_owned());
        assert_eq!(&*awaits(&clone).unwrap().snapshot, "snap-2");
        let mut made = waiting.clone();
        made.status.as_mut().unwrap().size = Some(Bytes::gib(1));
        let mut refused = waiting.clone();
        refused.status.as_mut().unwrap().reserved = None;
        let mut leaving = waiting.clone();
        leaving.spec.deletion_requested = true;
        let mut moved = waiting.clone();
        moved.spec.epoch = 1;
        let mut local = waiting;
        local.spec.content_source.as_mut().unwrap().node_name = None;
        for other in [made, refused, leaving, moved, local] {
            assert_eq!(awaits(&other), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_to_be_reported_about_a_volume_is_kept() {
        let unwell = json!([condition("Ready", "True"), condition("Expanded", "False")]);
        let report = StoredVolume::of_volume(volume(&unwell)).report.unwrap();
        let conditions = report.status.unwrap().conditions;
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].type_, "Expanded");
        assert_eq!(report.metadata.resource_version, None);
    }

    #[test]
    fn a_write_that_no_controller_reads_changes_nothing() {
        let before = StoredVolume::of_volume(volume(&json!([condition("Ready", "False")])));
        let after = StoredVolume::of_volume(volume(&json!([condition("Ready", "True")])));
        assert!(before.is_same(&after));
        let expanded = json!([condition("Expanded", "False")]);
        assert!(!before.is_same(&StoredVolume::of_volume(volume(&expanded))));
    }

    #[test]
    fn a_write_that_a_move_waits_for_is_a_change() {
        let mut volume = volume(&json!([])).0.unwrap();
        let stored =
            |volume: &PoolVolume| StoredVolume::of_volume(DeserializeGuard(Ok(volume.clone())));
        volume.spec.target = Some(MoveTarget {
            node_name: "w2".to_owned(),
            move_uid: "move-1".to_owned(),
        });
        let declared = stored(&volume);
        volume.status.as_mut().unwrap().fence = Some(FenceStatus {
            state: FenceState::Closing,
            move_uid: "move-1".to_owned(),
        });
        let closing = stored(&volume);
        assert!(!closing.is_same(&declared));
        volume.spec.target = None;
        volume.spec.epoch = 1;
        let arrived = stored(&volume);
        assert!(arrived.is_awaited);
        let ready = serde_json::from_value(condition("Ready", "True")).unwrap();
        let status = volume.status.as_mut().unwrap();
        status.conditions.push(ready);
        assert!(stored(&volume).is_awaited, "that was on the former node");
        volume.status.as_mut().unwrap().epoch = 1;
        assert!(!stored(&volume).is_same(&arrived));
    }

    #[test]
    fn r22_an_unreadable_object_is_anywhere() {
        let broken: DeserializeGuard<PoolSnapshot> =
            serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {}})).unwrap();
        assert_eq!(StoredSnapshot::of_snapshot(&broken).location, None);
    }
}
