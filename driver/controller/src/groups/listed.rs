//! The listed fields of a group.

use chrono::{DateTime, Utc};
use cistern_crds::{ConditionType, PoolSnapshot, PoolSnapshotGroup, condition};
use kube::ResourceExt as _;

use crate::{objects::listing::Listed as _, snapshots::ListedSnapshot};

/// A group that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedGroup {
    /// The group snapshot id: the name of the PoolSnapshotGroup.
    pub id: String,
    /// The common time of its snapshots.
    pub creation_time: DateTime<Utc>,
    /// Whether all of its snapshots exist and can be used now (CGS-10, CGS-17).
    pub is_ready: bool,
    /// Its snapshots, in the order of their volumes' names.
    pub snapshots: Vec<ListedSnapshot>,
}

impl ListedGroup {
    /// Reads the listed fields. None for a group that was not taken yet, or that has no snapshots
    /// left.
    pub fn of(group: &PoolSnapshotGroup, snapshots: &[PoolSnapshot]) -> Option<Self> {
        let status = group.status.clone().unwrap_or_default();
        let snapshots: Vec<_> = snapshots.iter().filter_map(ListedSnapshot::of).collect();
        let taken = status.creation_time.or(group.spec.taken_at);
        let creation_time = taken.filter(|_| !snapshots.is_empty())?;
        let is_whole = snapshots.len() == group.spec.members.len();
        Some(Self {
            id: group.name_any(),
            creation_time,
            is_ready: condition::holds(&status.conditions, ConditionType::Ready)
                && is_whole
                && snapshots.iter().all(|snapshot| snapshot.ready),
            snapshots,
        })
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        Bytes, PoolSnapshotGroupStatus, PoolSnapshotStatus, Reason, condition::ConditionUpdate,
    };

    use super::*;
    use crate::{
        groups::request::{member, tests::wanted},
        testing::{at, ready_volume},
    };

    fn ready(holds: bool) -> Vec<cistern_crds::Condition> {
        let mut conditions = Vec::new();
        let finding = ConditionUpdate::new(ConditionType::Ready, holds, Reason::Reconciled, "");
        condition::set(&mut conditions, &finding, None, at(0));
        conditions
    }

    fn group(is_ready: bool, creation_time: Option<DateTime<Utc>>) -> PoolSnapshotGroup {
        let mut group = wanted("daily", &["a", "b"]).on(&["n1"].into());
        group.status = Some(PoolSnapshotGroupStatus {
            creation_time,
            conditions: ready(is_ready),
            ..PoolSnapshotGroupStatus::default()
        });
        group
    }

    fn snapshot(group: &PoolSnapshotGroup, is_ready: bool) -> PoolSnapshot {
        let mut snapshot = member(group, &ready_volume(), "uid-1");
        snapshot.status = Some(PoolSnapshotStatus {
            reserved: Some(Bytes::mib(1)),
            size: Some(Bytes::gib(1)),
            creation_time: Some(at(5)),
            conditions: ready(is_ready),
            ..PoolSnapshotStatus::default()
        });
        snapshot
    }

    #[test]
    fn cgs_10_cgs_17_a_group_is_ready_when_it_says_so_and_each_of_its_snapshots_does() {
        let listed = |is_ready, members: &[bool]| {
            let group = group(is_ready, Some(at(5)));
            let snapshots = members.iter().map(|ready| snapshot(&group, *ready));
            let snapshots: Vec<_> = snapshots.collect();
            let listed = ListedGroup::of(&group, &snapshots).unwrap();
            assert_eq!((listed.id.as_str(), listed.creation_time), ("daily", at(5)));
            listed.is_ready
        };
        assert!(listed(true, &[true, true]));
        assert!(!listed(false, &[true, true]));
        assert!(!listed(true, &[true, false]));
        assert!(!listed(true, &[true]), "one is gone");
    }

    #[test]
    fn ggs_04_a_group_is_there_from_when_it_was_taken_until_its_last_snapshot_is_gone() {
        let untaken = group(false, None);
        let snapshots = [snapshot(&untaken, true)];
        assert_eq!(ListedGroup::of(&untaken, &snapshots), None);
        let taken = group(true, Some(at(5)));
        assert_eq!(ListedGroup::of(&taken, &[]), None);
    }
}
