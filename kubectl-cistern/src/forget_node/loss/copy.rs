//! Copies of lost volumes on other nodes, and what makes them the volumes. Pure.

use std::fmt;

use chrono::{DateTime, Utc};
use cistern_crds::{PoolReplica, PoolVolume, time};
use kube::ResourceExt as _;

use crate::{cluster::Cluster, moving::set};

/// A complete copy of a volume on another node.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    /// Name of the volume.
    pub(super) volume: String,
    /// The volume as messages name it.
    shown: String,
    /// Name of the node that has the copy.
    node: String,
    /// The time that its data has; `None` if it has all data of the volume.
    taken: Option<DateTime<Utc>>,
    /// Whether its move was undone. The copy then stays until the volume is ready, and is not promoted.
    is_undone: bool,
}

impl Copy {
    /// The copy that the VolumeMove of a volume has made. `None` if there is none, or if the removal of the volume or of
    /// the copy is requested.
    pub(super) fn of(cluster: &Cluster, volume: &PoolVolume) -> Option<Self> {
        let name = volume.name_any();
        let found = cluster.move_of(&name)?;
        let (plan, taken) = (found.plan()?, found.copied_as_of());
        // Once the volume is on that node, the copy is the volume.
        if volume.spec.deletion_requested || plan.to_node == volume.spec.node_name {
            return None;
        }
        let mut replicas = cluster.replicas.iter();
        let copy = replicas.find(|it| it.is_copy_for(&name, plan.epoch));
        if copy.is_some_and(|it| it.spec.deletion_requested) {
            return None;
        }
        // A volume that no pod uses is copied without passes.
        let is_complete = copy.is_some_and(PoolReplica::is_complete);
        (is_complete || taken.is_some()).then(|| Self {
            shown: set::shown(cluster, &name),
            node: plan.to_node,
            taken: taken.filter(|_| !is_complete),
            is_undone: volume.spec.epoch >= plan.epoch || volume.cancels(&found.move_uid()),
            volume: name,
        })
    }
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, node) = (&self.shown, &self.node);
        let Some(taken) = self.taken else {
            return write!(f, "{shown} with all of its data on node {node}");
        };
        let taken = taken.format(time::FORMAT);
        write!(f, "{shown} as of {taken} on node {node}")
    }
}

/// What to do with copies before the node, or the pool on it, is given up.
pub(super) fn before_release(copies: &[Copy], node: &str, pool: Option<&str>) -> String {
    let named = |is_it: fn(&Copy) -> bool| {
        let those = copies.iter().filter(|copy| is_it(copy));
        let names: Vec<&str> = those.map(|copy| &*copy.volume).collect();
        (!names.is_empty()).then(|| names.join(" "))
    };
    let standby = named(|copy| !copy.is_undone && copy.taken.is_some());
    let complete = named(|copy| !copy.is_undone && copy.taken.is_none());
    let undone = named(|copy| copy.is_undone);
    let steps = [
        standby.map(|names| format!("promote it first: kubectl cistern promote {names}")),
        complete.map(|names| match pool {
            // The operator moves a volume to a complete copy once its Node is gone.
            None => format!(
                "wait until the volume has moved to it: kubectl describe volumemove {names}"
            ),
            // The Node is there, and the volume may wait for those that move together with it.
            Some(_) => format!(
                "undo its move: kubectl cistern move {names} --undo; a closed volume then goes to its complete copy"
            ),
        }),
        undone.map(|names| {
            let lost = pool.map_or_else(
                || format!("node {node} or its disk"),
                |pool| format!("the disk of pool {pool} on node {node}"),
            );
            format!(
                "the move was undone ({names}): bring {lost} back; a copy that is given up stays until its claim is deleted"
            )
        }),
    ];
    let steps: Vec<String> = steps.into_iter().flatten().collect();
    steps.join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, complete_copy, object};

    /// Volume pvc-1 is on worker-1, and its move to worker-2 has made a complete copy.
    fn copied() -> Cluster {
        let mut cluster = cluster();
        let plan = json!({"fromNode": "worker-1", "toNode": "worker-2", "epoch": 1});
        cluster.moves = vec![object(json!({"metadata": {"name": "pvc-1", "uid": "m"},
            "spec": {"volumeName": "pvc-1"}, "status": {"plan": plan}}))];
        cluster.replicas = vec![complete_copy("pvc-1", 1)];
        cluster
    }

    /// The copy of pvc-1 has the data of a pass, and not all of it.
    fn passed() -> Cluster {
        let mut cluster = copied();
        let taken = "2026-01-01T00:00:00Z";
        let prepared = json!({"number": 1, "snapshotName": "s", "image": "i", "taken": taken, "received": taken});
        cluster.replicas[0].status = None;
        let status = cluster.moves[0].status.as_mut().unwrap();
        status.prepared = Some(object(prepared));
        cluster
    }

    fn copy_of(cluster: &Cluster) -> Option<Copy> {
        Copy::of(cluster, &cluster.volumes[0])
    }

    fn first(cluster: &Cluster, pool: Option<&str>) -> String {
        before_release(&[copy_of(cluster).unwrap()], "worker-1", pool)
    }

    #[test]
    fn a_volume_goes_to_its_complete_copy_once_its_node_is_gone() {
        assert_eq!(
            first(&copied(), None),
            "wait until the volume has moved to it: kubectl describe volumemove pvc-1"
        );
        assert_eq!(
            first(&passed(), None),
            "promote it first: kubectl cistern promote pvc-1"
        );
    }

    #[test]
    fn a_volume_in_a_dead_pool_goes_to_its_complete_copy_once_its_move_is_undone() {
        assert_eq!(
            first(&copied(), Some("fast")),
            "undo its move: kubectl cistern move pvc-1 --undo; a closed volume then goes to its complete copy"
        );
    }

    #[test]
    fn a_copy_whose_move_was_undone_waits_for_the_node_of_the_volume() {
        for (case, mut cluster) in [("closed", copied()), ("in use", passed())] {
            cluster.volumes[0].spec.epoch = 1;
            for (pool, lost) in [
                (None, "node worker-1 or its disk"),
                (Some("fast"), "the disk of pool fast on node worker-1"),
            ] {
                let says = format!(
                    "the move was undone (pvc-1): bring {lost} back; a copy that is given up stays until its claim \
                     is deleted"
                );
                assert_eq!(first(&cluster, pool), says, "{case}");
            }
        }
        // Its target was never declared.
        let mut cancelled = passed();
        cancelled.volumes[0].spec.cancelled_move_uid = Some("m".to_owned());
        let undone = first(&cancelled, None);
        assert!(undone.starts_with("the move was undone"), "{undone}");
        cancelled.volumes[0].spec.cancelled_move_uid = Some("earlier".to_owned());
        let promoted = first(&cancelled, None);
        assert!(promoted.starts_with("promote it first"), "{promoted}");
    }

    #[test]
    fn a_copy_of_a_volume_whose_deletion_is_requested_does_not_count() {
        for mut cluster in [copied(), passed()] {
            assert!(copy_of(&cluster).is_some());
            cluster.volumes[0].spec.deletion_requested = true;
            assert!(copy_of(&cluster).is_none());
        }
    }

    #[test]
    fn a_copy_that_is_to_be_removed_does_not_count() {
        for mut cluster in [copied(), passed()] {
            cluster.replicas[0].spec.deletion_requested = true;
            assert!(copy_of(&cluster).is_none());
        }
    }

    #[test]
    fn every_copy_has_its_step() {
        let complete = copy_of(&copied()).unwrap();
        let standby = copy_of(&passed()).unwrap();
        let mut second = standby.clone();
        "pvc-2".clone_into(&mut second.volume);
        let text = before_release(&[complete, standby, second], "worker-1", None);
        let says = "promote it first: kubectl cistern promote pvc-1 pvc-2; wait until the volume has moved to it: kubectl \
            describe volumemove pvc-1";
        assert_eq!(text, says);
    }
}
