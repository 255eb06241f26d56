//! Which VolumeMoves are to be created, and why volumes cannot move. Pure.

use std::collections::BTreeSet;

use cistern_crds::{
    Cutover, HasImage as _, PoolVolume, VolumeMove, VolumeMoveSpec, volume_move::MAXIMUM_TOGETHER,
};
use kube::ResourceExt as _;

use super::follow::Followed;
use super::promotion::was_promoted;
use crate::cluster::Cluster;

/// What is done for volumes that move together.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Planned {
    /// VolumeMoves to create.
    pub(crate) create: Vec<VolumeMoveSpec>,
    /// Volumes that move already, in the same way.
    pub(crate) existing: Vec<String>,
    /// VolumeMoves that exist and are to be cut over at another time.
    pub(crate) change: Vec<(VolumeMove, Cutover)>,
    /// Volumes that are on the node already.
    pub(crate) there: Vec<String>,
}

impl Planned {
    /// The volumes whose moves are waited for.
    pub(crate) fn followed(&self, cluster: &Cluster) -> Vec<Followed> {
        let created = self.create.iter().map(|it| &it.volume_name);
        let all = created.chain(&self.existing);
        all.map(|name| Followed::of(name, cluster)).collect()
    }

    /// The same with the moves that are created, and those that exist, cut over at another time. None: as they are, but a
    /// standby copy is cut over.
    pub(crate) fn with_cutover(mut self, cluster: &Cluster, cutover: Option<Cutover>) -> Self {
        for spec in &mut self.create {
            spec.cutover = cutover.unwrap_or_default();
        }
        let existing = self.existing.iter().filter_map(|it| cluster.move_of(it));
        let changed = existing.filter_map(|it| {
            let wanted = match it.spec.cutover {
                Cutover::Never => of_standby(cutover),
                as_it_is => cutover.unwrap_or(as_it_is),
            };
            (wanted != it.spec.cutover).then(|| (it.clone(), wanted))
        });
        self.change = changed.collect();
        self
    }
}

/// When a standby copy is cut over that is to move its volume. It is worth nothing if its volume is not copied until
/// the pods have ended.
fn of_standby(cutover: Option<Cutover>) -> Cutover {
    match cutover {
        None | Some(Cutover::WhenUnused | Cutover::Never) => Cutover::Manual,
        Some(cutover) => cutover,
    }
}

/// Decides what is done for volumes that move together. Fails with the reasons for which they cannot move.
pub(crate) fn plan(
    cluster: &Cluster,
    together: &BTreeSet<String>,
    to_node: Option<&str>,
) -> Result<Planned, Vec<String>> {
    let mut refused = Vec::new();
    if together.len() > MAXIMUM_TOGETHER as usize + 1 {
        let count = together.len();
        refused.push(format!(
            "{count} volumes would have to move together, and at most {} can",
            MAXIMUM_TOGETHER + 1
        ));
    }
    let moves: Vec<&VolumeMove> = existing(cluster, together).collect();
    // All go where the first ones go.
    let decided = match moves.iter().find_map(|it| destination(it)) {
        None if moves.is_empty() => to_node.map(str::to_owned),
        declared => declared,
    };
    let mut planned = Planned::default();
    for name in together {
        let Some(volume) = cluster.volume(name) else {
            refused.push(format!("there is no PoolVolume {name}"));
            continue;
        };
        if cluster.move_of(name).is_some() {
            planned.existing.push(name.clone());
        } else if decided.as_ref() == Some(&volume.spec.node_name) {
            planned.there.push(name.clone());
        } else {
            refused.extend(obstacle(cluster, volume, decided.as_deref()));
            planned.create.push(VolumeMoveSpec {
                volume_name: name.clone(),
                to_node: decided.clone(),
                together_with: together.iter().filter(|it| *it != name).cloned().collect(),
                ..VolumeMoveSpec::default()
            });
        }
    }
    if refused.is_empty() {
        Ok(planned)
    } else {
        Err(refused)
    }
}

/// Why the VolumeMoves that exist are not those that are wanted.
pub(crate) fn conflicts(
    cluster: &Cluster,
    together: &BTreeSet<String>,
    to_node: Option<&str>,
) -> Vec<String> {
    let found = existing(cluster, together);
    found.filter_map(|it| conflict(it, to_node)).collect()
}

/// The VolumeMoves that these volumes have.
pub(crate) fn existing<'a>(
    cluster: &'a Cluster,
    together: &BTreeSet<String>,
) -> impl Iterator<Item = &'a VolumeMove> {
    let moves = cluster.moves.iter();
    moves.filter(|it| together.contains(&it.name_any()))
}

/// The node that a volume moves to, once it is known.
pub(crate) fn destination(it: &VolumeMove) -> Option<String> {
    let planned = || it.plan().map(|plan| plan.to_node);
    it.spec.to_node.clone().or_else(planned)
}

fn conflict(found: &VolumeMove, to_node: Option<&str>) -> Option<String> {
    let name = found.name_any();
    if found.spec.takeover.is_some() {
        return Some(format!(
            "volume {name} follows its disk to another node at the moment"
        ));
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Some(format!(
            "a move of volume {name} is being undone: wait until it has ended"
        ));
    }
    if found.is_promoted() {
        return Some(was_promoted(found));
    }
    let (its, wanted) = (destination(found), to_node?);
    if its.as_deref() == Some(wanted) {
        return None;
    }
    let its = its.unwrap_or_else(|| "a node that Cistern chooses".to_owned());
    Some(format!(
        "volume {name} moves to {its} already: wait until it has moved, or use --undo"
    ))
}

/// Why a volume cannot begin to move to the node.
fn obstacle(cluster: &Cluster, volume: &PoolVolume, to_node: Option<&str>) -> Option<String> {
    let (name, pool) = (volume.name_any(), volume.pool_name());
    if volume.spec.deletion_requested {
        return Some(format!("the deletion of volume {name} is requested"));
    }
    let own = cluster.node(&volume.spec.node_name);
    if let Some(Err(why)) = own.map(|node| node.copies(pool)) {
        return Some(format!("volume {name} cannot move: {why}"));
    }
    let to_node = to_node?;
    let Some(node) = cluster.node(to_node) else {
        return Some(format!(
            "there is no StorageNode {to_node}: see `kubectl get storagenodes`"
        ));
    };
    let carries = node.spec.pools.iter().any(|entry| entry.name == pool);
    (!carries)
        .then(|| format!("node {to_node} does not carry pool {pool}, which volume {name} is in"))
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        Bytes,
        testing::{image_source, node_pool},
    };
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, object};

    fn both() -> BTreeSet<String> {
        ["pvc-1", "pvc-2"].map(str::to_owned).into()
    }

    fn with_pool() -> Cluster {
        let mut cluster = cluster();
        let source = image_source(Bytes::gib(1));
        cluster.nodes[1].spec.pools = vec![node_pool("fast", "u", source)];
        cluster
    }

    fn declared(name: &str, spec: &serde_json::Value) -> VolumeMove {
        object(json!({"metadata": {"name": name, "uid": "m"}, "spec": spec}))
    }

    #[test]
    fn each_volume_gets_a_move_that_names_the_others() {
        let planned = plan(&with_pool(), &both(), Some("worker-2")).unwrap();
        assert_eq!(planned.create.len(), 2);
        assert_eq!(planned.create[0].together_with, ["pvc-2"]);
        assert_eq!(planned.create[1].together_with, ["pvc-1"]);
        assert_eq!(planned.create[1].to_node.as_deref(), Some("worker-2"));
    }

    #[test]
    fn moves_that_exist_are_continued_and_the_missing_ones_go_to_the_same_node() {
        let mut cluster = with_pool();
        let spec = json!({"volumeName": "pvc-1", "toNode": "worker-2", "togetherWith": ["pvc-2"]});
        cluster.moves = vec![declared("pvc-1", &spec)];
        let planned = plan(&cluster, &both(), None).unwrap();
        assert_eq!(planned.existing, ["pvc-1"]);
        assert_eq!(planned.create[0].to_node.as_deref(), Some("worker-2"));
        let other = conflicts(&cluster, &both(), Some("worker-1"));
        assert!(other[0].contains("moves to worker-2 already"), "{other:?}");
        assert!(conflicts(&cluster, &both(), Some("worker-2")).is_empty());
        // A drain lets the group go where it goes.
        let planned = plan(&cluster, &both(), Some("worker-1")).unwrap();
        assert_eq!(planned.create[0].to_node.as_deref(), Some("worker-2"));
    }

    #[test]
    fn moves_that_exist_are_cut_over_at_another_time_only_if_that_is_asked_for() {
        let mut cluster = with_pool();
        let spec = json!({"volumeName": "pvc-1", "toNode": "worker-2", "togetherWith": ["pvc-2"]});
        cluster.moves = vec![declared("pvc-1", &spec)];
        let planned = |cutover| {
            let planned = plan(&cluster, &both(), None).unwrap();
            planned.with_cutover(&cluster, cutover)
        };
        assert_eq!(planned(None).change, []);
        assert_eq!(planned(Some(Cutover::WhenUnused)).change, []);
        let automatic = planned(Some(Cutover::Automatic));
        assert_eq!(automatic.change.len(), 1);
        assert_eq!(automatic.change[0].1, Cutover::Automatic);
        assert_eq!(automatic.create[0].cutover, Cutover::Automatic);
    }

    #[test]
    fn what_cannot_move_is_refused_before_anything_is_created() {
        let refused = |to: &str| plan(&cluster(), &both(), Some(to)).unwrap_err().join(";");
        assert!(refused("worker-9").contains("no StorageNode worker-9"));
        assert!(refused("worker-2").contains("does not carry pool fast"));
        let mut cluster = with_pool();
        cluster.volumes[0].spec.deletion_requested = true;
        let why = plan(&cluster, &both(), None).unwrap_err();
        assert!(why[0].contains("deletion of volume pvc-1"), "{why:?}");
        let mut cluster = with_pool();
        let mut entry = cluster.nodes[1].spec.pools[0].clone();
        for group in [
            json!({"volumeGroup": {"name": "vg-data"}}),
            json!({"device": {"paths": ["/dev/a"], "engine": "LogicalVolume"}}),
        ] {
            entry.source = object(group);
            cluster.nodes[0].spec.pools = vec![entry.clone()];
            let why = plan(&cluster, &both(), None).unwrap_err();
            assert!(why[0].contains("pool fast is a volume group"), "{why:?}");
        }
        let there = plan(&with_pool(), &both(), Some("worker-1")).unwrap();
        assert_eq!((there.there.len(), there.create.len()), (2, 0));
    }
}
