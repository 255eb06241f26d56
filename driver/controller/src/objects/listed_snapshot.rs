//! The listed fields of a snapshot.

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, ConditionType, PoolSnapshot, condition};
use kube::ResourceExt as _;

use crate::objects::listing::Listed;

/// A snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSnapshot {
    /// The snapshot id: the name of the PoolSnapshot.
    pub id: Box<str>,
    /// The id of its source volume.
    pub source_volume: Box<str>,
    /// The node that holds it.
    pub node: Box<str>,
    /// The id of its group snapshot; None for a single snapshot.
    pub group: Option<Box<str>>,
    /// Size of the volume when the snapshot was taken.
    pub size: Bytes,
    /// The time of the snapshot.
    pub creation_time: DateTime<Utc>,
    /// Whether it can be the source of a new volume now.
    pub ready: bool,
    /// Whether users cannot see it.
    pub is_hidden: bool,
}

impl Listed for ListedSnapshot {
    type Object = PoolSnapshot;

    fn of(snapshot: &PoolSnapshot) -> Option<Self> {
        let (spec, status) = (&snapshot.spec, snapshot.status.as_ref()?);
        // What is kept as a base is deleted for users.
        let gone = spec.is_kept_as_base() || spec.deletion_requested && status.reserved.is_none();
        Some(Self {
            id: snapshot.name_any().into(),
            source_volume: spec.source_volume.as_str().into(),
            node: spec.node_name.as_str().into(),
            group: spec.group_name.as_deref().map(Into::into),
            size: status.size.filter(|_| !gone)?,
            creation_time: status.creation_time?,
            ready: condition::holds(&status.conditions, ConditionType::Ready),
            is_hidden: spec.is_hidden(),
        })
    }

    fn id(&self) -> &str {
        &self.id
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{IncrementalBase, PoolSnapshotStatus, Reason, condition::ConditionUpdate};

    use super::*;
    use crate::testing::{at, ready_snapshot, wanted_snapshot};

    // Shows: GS-05, LS-07.
    #[test]
    fn ls_03_a_snapshot_is_listed_from_when_it_is_taken_until_its_data_is_gone() {
        type Change = fn(&mut PoolSnapshot, &mut PoolSnapshotStatus);
        let life: [(&str, Change, Option<bool>); 8] = [
            ("asked for", |_, s| *s = PoolSnapshotStatus::default(), None),
            ("admitted", |_, s| s.size = None, None),
            ("of no moment", |_, s| s.creation_time = None, None),
            ("ready", |_, _| {}, Some(true)),
            // LS-07, GS-05
            ("cut", |_, s| s.conditions.clear(), Some(false)),
            (
                "to be deleted",
                |v, _| v.spec.deletion_requested = true,
                Some(true),
            ),
            (
                "a base",
                |v, _| v.spec.incremental_base = Some(IncrementalBase::Kept),
                None,
            ),
            (
                "reclaimed",
                |v, s| {
                    v.spec.deletion_requested = true;
                    s.reserved = None;
                },
                None,
            ),
        ];
        for (stage, change, ready) in life {
            let mut snapshot = ready_snapshot();
            let mut status = snapshot.status.take().unwrap();
            let is_ready =
                ConditionUpdate::new(ConditionType::Ready, true, Reason::Reconciled, "cut");
            condition::set(&mut status.conditions, &is_ready, None, at(300));
            change(&mut snapshot, &mut status);
            snapshot.status = Some(status);
            let listed = ListedSnapshot::of(&snapshot);
            assert_eq!(listed.map(|listed| listed.ready), ready, "{stage}");
        }
        assert_eq!(ListedSnapshot::of(&wanted_snapshot()), None);
    }
}
