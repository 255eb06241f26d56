//! Snapshot requests in Cistern's own types.

use cistern_crds::{
    Consistency, IncrementalBase, PoolSnapshot, PoolSnapshotSpec, PoolVolume, names,
};

use crate::{
    objects::{ensure::Request, listing::PageQuery},
    volumes::Requirement,
};

/// A requested snapshot, which may exist already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Name of the snapshot in the CSI request.
    pub name: String,
    /// The id of the volume.
    pub source_volume: String,
    /// The consistency: crash or filesystem.
    pub consistency: Consistency,
    /// Whether it is kept as a base of incremental backups when it is deleted.
    pub keep_base: bool,
    /// The nodes on which the snapshot must be usable.
    pub requirement: Requirement,
}

impl NewSnapshot {
    /// The snapshot id, and the name of the PoolSnapshot.
    pub fn id(&self) -> String {
        names::snapshot_name(&self.name)
    }

    /// The custom resource for this snapshot of a volume whose image is known.
    pub fn of(&self, volume: &PoolVolume, image: &str) -> PoolSnapshot {
        let spec = PoolSnapshotSpec {
            incremental_base: self.keep_base.then_some(IncrementalBase::WhenDeleted),
            ..PoolSnapshotSpec::of(volume, image, &self.name, self.consistency)
        };
        PoolSnapshot::desired(&self.id(), spec)
    }
}

impl Request for NewSnapshot {
    type Object = PoolSnapshot;

    /// Compares all but the parameters: a class may be replaced between two attempts, and the name
    /// identifies the snapshot that was taken (CS-04, CS-05).
    fn difference(&self, existing: &PoolSnapshot) -> Option<String> {
        let spec = &existing.spec;
        if spec.is_kept_as_base() {
            Some("it was deleted, and is kept as a base of backups".to_owned())
        } else if spec.requested_name != self.name {
            Some("it was made under another name".to_owned())
        } else if spec.source_volume != self.source_volume {
            Some(format!("it is of volume {}", spec.source_volume))
        } else if !self.requirement.allows(&spec.node_name) {
            Some(format!("it is on node {}", spec.node_name))
        } else {
            None
        }
    }
}

/// The filter of a list of snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotQuery {
    /// Only the one of this id.
    pub snapshot: Option<String>,
    /// Only those of the volume of this id.
    pub source_volume: Option<String>,
    /// The requested page of these.
    pub page: PageQuery,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::ready_volume;

    fn wanted() -> NewSnapshot {
        NewSnapshot {
            name: "snapshot-1".to_owned(),
            source_volume: "pvc-1".to_owned(),
            consistency: Consistency::Crash,
            keep_base: false,
            requirement: Requirement::default(),
        }
    }

    type Change = fn(&mut NewSnapshot);

    #[test]
    fn cs_04_cs_05_a_snapshot_is_what_its_own_request_asks_for_and_whatever_differs_is_named() {
        let wanted = wanted();
        let existing = wanted.of(&ready_volume(), "uid-1");
        assert_eq!(wanted.difference(&existing), None);
        let again = NewSnapshot {
            consistency: Consistency::Filesystem,
            ..wanted.clone()
        };
        assert_eq!(again.difference(&existing), None);

        let changes: [(&str, Change); 3] = [
            ("another name", |w| w.name = "other".to_owned()),
            ("volume pvc-1", |w| w.source_volume = "pvc-2".to_owned()),
            ("node node-1", |w| {
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
    fn a_snapshot_is_where_its_volume_is_and_of_its_kind() {
        let volume = ready_volume();
        let spec = wanted().of(&volume, "uid-1").spec;
        assert_eq!(
            (&spec.node_name, &spec.pool_name, spec.filesystem),
            (
                &volume.spec.node_name,
                &volume.spec.pool_name,
                volume.spec.filesystem
            )
        );
        assert_eq!(
            (spec.source_volume.as_str(), spec.source_image.as_str()),
            ("pvc-1", "uid-1")
        );
    }
}
