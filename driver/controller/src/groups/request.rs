//! Group requests in Cistern's own types.
//!
//! *Invariant:* every [`NewGroup`] is validated: it has a volume, not too many, and none twice.

use std::collections::BTreeSet;

use cistern_crds::{
    Consistency, PoolSnapshot, PoolSnapshotGroup, PoolSnapshotGroupSpec, PoolVolume, names,
    snapshot_group::GroupMember,
};
use kube::ResourceExt as _;

use super::Error;
use crate::{objects::ensure::Request, snapshots::NewSnapshot, volumes::Requirement};

/// A requested group, which may exist already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewGroup {
    /// Name of the group in the CSI request.
    pub name: String,
    /// The ids of its volumes, in any order (CGS-15).
    pub volumes: BTreeSet<String>,
    /// The consistency: crash or filesystem.
    pub consistency: Consistency,
}

impl NewGroup {
    /// The group snapshot id, and the name of the `PoolSnapshotGroup`.
    pub fn id(&self) -> String {
        names::snapshot_group_name(&self.name)
    }

    /// The custom resource for this group on the nodes that have its volumes. Its finalizer is set
    /// from the beginning: the group exists as long as one of its snapshots.
    pub fn on(&self, nodes: &BTreeSet<&str>) -> PoolSnapshotGroup {
        let id = self.id();
        let member = |volume: &String| GroupMember {
            volume: volume.clone(),
            snapshot: names::group_member_name(&id, volume),
        };
        let spec = PoolSnapshotGroupSpec {
            requested_name: self.name.clone(),
            node_name: nodes.first().map_or_else(String::new, ToString::to_string),
            consistency: self.consistency,
            members: self.volumes.iter().map(member).collect(),
            deletion_requested: false,
            across_nodes: nodes.len() > 1,
            attempt: 0,
            taken_at: None,
            epoch: 0,
        };
        let mut object = PoolSnapshotGroup::new(&id, spec);
        object.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        object
    }
}

impl Request for NewGroup {
    type Object = PoolSnapshotGroup;

    /// Compares the name, the volumes and the consistency (CGS-06).
    fn difference(&self, existing: &PoolSnapshotGroup) -> Option<String> {
        let spec = &existing.spec;
        let volumes = || spec.members.iter().map(|member| &member.volume);
        if spec.requested_name != self.name {
            Some("it was made under another name".to_owned())
        } else if !volumes().eq(&self.volumes) {
            let volumes: Vec<&str> = volumes().map(String::as_str).collect();
            Some(format!("it is of {}", volumes.join(", ")))
        } else if spec.consistency != self.consistency {
            Some(format!("its consistency is {:?}", spec.consistency))
        } else {
            None
        }
    }
}

/// The custom resource for the snapshot of one member volume whose image is known.
pub(super) fn member(group: &PoolSnapshotGroup, volume: &PoolVolume, image: &str) -> PoolSnapshot {
    let (name, volume_name) = (group.name_any(), volume.name_any());
    let alone = NewSnapshot {
        name: group.spec.requested_name.clone(),
        source_volume: volume_name.clone(),
        consistency: group.spec.consistency,
        keep_base: false,
        requirement: Requirement::default(),
    };
    let mut snapshot = alone.of(volume, image);
    snapshot.metadata.name = Some(names::group_member_name(&name, &volume_name));
    snapshot.spec.group_name = Some(name);
    snapshot.spec.across_nodes = group.spec.across_nodes;
    snapshot
}

/// A query for a group, with the snapshots that the caller expects in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupQuery {
    /// The group snapshot id.
    pub id: String,
    /// The ids of the snapshots.
    pub snapshots: BTreeSet<String>,
}

impl GroupQuery {
    /// Fails if the snapshots are not those of the group (DGS-08, GGS-07).
    ///
    /// The spec of the group decides, so snapshots that an interrupted deletion has removed count
    /// as well.
    pub(super) fn check(&self, group: &PoolSnapshotGroup) -> Result<(), Error> {
        let members = group.spec.members.iter().map(|member| &member.snapshot);
        let members: BTreeSet<&String> = members.collect();
        let foreign = self.snapshots.iter().find(|id| !members.contains(id));
        let missing = members.iter().find(|id| !self.snapshots.contains(**id));
        let why = match (foreign, missing) {
            (Some(foreign), _) => format!("{foreign} does not belong to it"),
            (None, Some(_)) if self.snapshots.is_empty() => "none are given".to_owned(),
            (None, Some(missing)) => format!("{missing} is missing"),
            (None, None) => return Ok(()),
        };
        let group = self.id.clone();
        Err(Error::OtherMembers { group, why })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A request for a group of these volumes.
    pub(crate) fn wanted(name: &str, volumes: &[&str]) -> NewGroup {
        NewGroup {
            name: name.to_owned(),
            volumes: volumes.iter().map(|id| (*id).to_owned()).collect(),
            consistency: Consistency::Crash,
        }
    }

    #[test]
    fn cgs_05_cgs_15_a_group_is_what_its_own_request_asks_for_in_any_order() {
        let existing = wanted("Daily", &["b", "a"]).on(&["n1"].into());
        assert_eq!(wanted("Daily", &["a", "b"]).difference(&existing), None);
        let members = &existing.spec.members;
        assert!(members.is_sorted_by(|one, next| one.volume < next.volume));
        assert!(names::is_id(existing.metadata.name.as_deref().unwrap()));
    }

    type Change = fn(&mut NewGroup);

    #[test]
    fn cs_11_each_volume_has_a_snapshot_of_the_groups_own() {
        let group = wanted("daily", &["pvc-1"]).on(&["node-1"].into());
        let snapshot = member(&group, &crate::testing::ready_volume(), "uid-1");
        assert_eq!(
            snapshot.metadata.name.as_deref(),
            Some(group.spec.members[0].snapshot.as_str())
        );
        assert_eq!(snapshot.spec.group_name.as_deref(), Some("daily"));
        assert_eq!(snapshot.spec.node_name, group.spec.node_name);
        assert!(snapshot.metadata.finalizers.is_some());
    }

    #[test]
    fn cgs_06_whatever_differs_is_named() {
        let wanted = wanted("daily", &["a", "b"]);
        let existing = wanted.on(&["n1"].into());
        let changes: [(&str, Change); 4] = [
            ("another name", |w| w.name = "Daily".to_owned()),
            ("of a, b", |w| w.volumes = ["a".to_owned()].into()),
            ("of a, b", |w| {
                w.volumes.insert("c".to_owned());
            }),
            ("Crash", |w| w.consistency = Consistency::Filesystem),
        ];
        for (named, change) in changes {
            let mut other = wanted.clone();
            change(&mut other);
            let difference = other.difference(&existing).unwrap();
            assert!(difference.contains(named), "{difference}");
        }
    }

    #[test]
    fn dgs_08_ggs_07_only_the_members_all_of_them_and_in_any_order_are_the_members() {
        let group = wanted("daily", &["a", "b"]).on(&["n1"].into());
        let members: Vec<String> = group
            .spec
            .members
            .iter()
            .map(|m| m.snapshot.clone())
            .collect();
        let check = |snapshots: &[&str]| {
            let query = GroupQuery {
                id: "daily".to_owned(),
                snapshots: snapshots.iter().map(|id| (*id).to_owned()).collect(),
            };
            query.check(&group)
        };
        let [a, b] = [members[0].as_str(), members[1].as_str()];
        check(&[b, a]).unwrap();
        for (snapshots, named) in [
            (&[][..], "none"),
            (&[a][..], b),
            (&[a, b, "snap-x"][..], "snap-x"),
            (&["snap-x"][..], "snap-x"),
        ] {
            let error = check(snapshots).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
