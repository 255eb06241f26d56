//! The groups of volumes that leave a node, and which of them begin to move now. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::{Cutover, Reason, VolumeMove};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::ResourceExt;

use crate::{
    cluster::Cluster,
    moving::{
        follow::waits,
        set::{self, Link, Volumes},
    },
};

/// Adds which volumes pods use together now. It stays known when a pod has ended: the next one needs them on one node, too.
pub(super) fn remember(used: &mut Vec<Link>, cluster: &Cluster) {
    for link in set::of_pods(cluster, &set::by_claim(cluster)) {
        if link.len() > 1 && !used.contains(&link) {
            used.push(link);
        }
    }
}

/// The volumes on the node whose deletion is not requested, grouped by the pods and the replicas of StatefulSets that
/// use them together. `used` are those that pods have used together before.
pub(super) fn groups(
    cluster: &Cluster,
    sets: &[StatefulSet],
    used: &[Link],
    node: &str,
) -> Vec<BTreeSet<String>> {
    let volumes = set::by_claim(cluster);
    let mut links = set::links(cluster, &volumes);
    links.extend(of_replicas(&volumes, sets));
    links.extend(used.iter().cloned());
    let here = cluster.volumes.iter();
    let here = here.filter(|it| it.spec.node_name == node && !it.spec.deletion_requested);
    set::groups(here.map(ResourceExt::name_any).collect(), &links)
}

/// The volumes of each replica of a StatefulSet, which may have no pod now. The claims of the replica with the ordinal
/// N are called `TEMPLATE-SET-N`.
fn of_replicas(volumes: &Volumes, sets: &[StatefulSet]) -> Vec<Link> {
    let mut links = BTreeMap::<(String, String, u32), Link>::new();
    for stateful in sets {
        let namespace = stateful.namespace().unwrap_or_default();
        let templates = stateful.spec.volume_claim_templates.iter();
        for template in templates.flatten() {
            let prefix = format!("{}-{}-", template.name_any(), stateful.name_any());
            for (claim, volume) in volumes.iter().filter(|(it, _)| it.namespace == namespace) {
                let ordinal = claim.name.strip_prefix(&prefix);
                if let Some(ordinal) = ordinal.and_then(|it| it.parse::<u32>().ok()) {
                    let replica = (namespace.clone(), stateful.name_any(), ordinal);
                    links.entry(replica).or_default().insert(volume.clone());
                }
            }
        }
    }
    links.into_values().collect()
}

/// The pods to which the volumes of a group may be attached, as `NAMESPACE/NAME`.
pub(super) fn users(cluster: &Cluster, group: &BTreeSet<String>) -> BTreeSet<String> {
    let volumes = group.iter().filter_map(|name| cluster.volume(name));
    let claims = volumes.filter_map(|volume| cluster.claim(volume));
    let mut users = BTreeSet::new();
    for claim in claims {
        let is_bound = |pod: &&Pod| pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        let bound = cluster.pods_with(&claim).filter(is_bound);
        users.extend(bound.map(|pod| format!("{}/{}", claim.namespace, pod.name_any())));
    }
    users
}

/// Whether a group whose volumes have VolumeMoves is copied, or may be soon. One that waits for its pods or for a user, or
/// for which the operator finds no node, is not.
fn takes_place(cluster: &Cluster, group: &BTreeSet<String>) -> bool {
    let volumes = group.iter().filter_map(|name| cluster.volume(name));
    let mut targets = volumes.map(|volume| &volume.spec.target);
    if targets.any(Option::is_some) {
        return true;
    }
    let moves = group.iter().filter_map(|name| cluster.move_of(name));
    let moves: Vec<&VolumeMove> = moves.collect();
    let is_planned = moves.iter().any(|it| it.plan().is_some());
    let is_refused = moves.iter().any(|it| waits(it).is_some());
    if moves.iter().any(|it| is_copied_while_used(it)) {
        return is_planned || !is_refused;
    }
    users(cluster, group).is_empty() && (is_planned || !is_refused)
}

/// Whether a VolumeMove keeps a standby copy, so that its volume does not move yet.
pub(super) fn is_standby(it: &VolumeMove) -> bool {
    it.spec.cutover == Cutover::Never
}

/// The volumes that move. One with a standby copy begins to move later, and no earlier than the removal of the copy
/// has ended.
pub(super) fn begun(cluster: &Cluster) -> BTreeSet<String> {
    let moves = cluster.moves.iter();
    let moves = moves.filter(|it| !is_standby(it) || it.metadata.deletion_timestamp.is_some());
    moves.map(ResourceExt::name_any).collect()
}

/// Whether a volume is copied although pods use it.
fn is_copied_while_used(it: &VolumeMove) -> bool {
    let reason = waits(it).and_then(|it| Reason::parse(&it.reason));
    it.spec.cutover != Cutover::WhenUnused
        && !matches!(reason, Some(Reason::ReadyToCutOver | Reason::PodsRemain))
}

/// The groups that begin to move now. `begun` are the volumes that move. At most `at_once` groups are
/// copied at a time. So those that pods use are not begun unless they are copied meanwhile: all of their pods may end
/// together. A group that lacks a VolumeMove, but has others, gets it in any case.
pub(super) fn to_begin<'a>(
    cluster: &Cluster,
    groups: &'a [BTreeSet<String>],
    begun: &BTreeSet<String>,
    (at_once, cutover): (usize, Cutover),
) -> Vec<&'a BTreeSet<String>> {
    let (open, new): (Vec<_>, Vec<_>) = groups.iter().partition(|it| !it.is_disjoint(begun));
    let taken = open.iter().filter(|it| takes_place(cluster, it)).count();
    let is_undone = |name: &String| {
        cluster
            .move_of(name)
            .is_some_and(|it| it.metadata.deletion_timestamp.is_some())
    };
    let incomplete = open
        .into_iter()
        .filter(|group| !group.is_subset(begun) && !group.iter().any(is_undone));
    let is_begun =
        |it: &&BTreeSet<String>| cutover != Cutover::WhenUnused || users(cluster, it).is_empty();
    let unused = new.into_iter().filter(is_begun);
    incomplete
        .chain(unused.take(at_once.saturating_sub(taken)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cluster::by_claim,
        testing::{cluster, condition, object, pod},
    };

    fn group(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn moving(name: &str, reason: &str, is_planned: bool) -> VolumeMove {
        let plan = json!({"fromNode": "worker-1", "toNode": "worker-2", "epoch": 1});
        let plan = if is_planned { plan } else { json!(null) };
        object(
            json!({"metadata": {"name": name, "uid": "m"}, "spec": {"volumeName": name},
            "status": {"plan": plan, "conditions": [condition("Ready", "False", reason, "")]}}),
        )
    }

    /// The volumes of two claims that no pod uses.
    fn two_volumes() -> Cluster {
        let mut cluster = cluster();
        cluster.pods.clear();
        let other: k8s_openapi::api::core::v1::PersistentVolume = object(json!({
            "metadata": {"name": "pv-pvc-2"},
            "spec": {"csi": {"driver": "csi.cistern.storage", "volumeHandle": "pvc-2"}}}));
        cluster.persistent_volumes.insert("pvc-2".to_owned(), other);
        for (claim, name) in cluster.claims.iter_mut().zip(["data", "logs"]) {
            claim.metadata.name = Some(format!("{name}-db-0"));
        }
        for (claim, volume) in cluster.claims.iter_mut().zip(["pv-pvc-1", "pv-pvc-2"]) {
            claim.spec.as_mut().unwrap().volume_name = Some(volume.to_owned());
        }
        cluster
    }

    #[test]
    fn volumes_of_one_replica_move_together_without_its_pod() {
        let cluster = two_volumes();
        assert_eq!(groups(&cluster, &[], &[], "worker-1").len(), 2);
        let template = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
        let set: StatefulSet = object(json!({"metadata": {"name": "db", "namespace": "shop"},
            "spec": {"selector": {}, "serviceName": "", "template": {},
                "volumeClaimTemplates": [template("data"), template("logs")]}}));
        assert_eq!(
            groups(&cluster, std::slice::from_ref(&set), &[], "worker-1"),
            [group(&["pvc-1", "pvc-2"])]
        );
        assert!(groups(&cluster, &[set], &[], "worker-2").is_empty());
    }

    #[test]
    fn volumes_that_a_pod_used_together_move_together_once_it_has_ended() {
        let mut cluster = two_volumes();
        let mut both = pod("user", "data-db-0", "Running");
        let other = pod("user", "logs-db-0", "Running").spec.unwrap().volumes;
        let volumes = &mut both.spec.as_mut().unwrap().volumes;
        volumes.as_mut().unwrap().extend(other.unwrap());
        cluster.pods = by_claim(vec![both]);
        let together = [group(&["pvc-1", "pvc-2"])];
        assert_eq!(groups(&cluster, &[], &[], "worker-1"), together);
        let mut used = Vec::new();
        remember(&mut used, &cluster);
        cluster.pods.clear();
        assert_eq!(groups(&cluster, &[], &[], "worker-1").len(), 2);
        assert_eq!(groups(&cluster, &[], &used, "worker-1"), together);
        remember(&mut used, &cluster);
        assert_eq!(used, together);
        // A move that names volumes together can be undone.
        let spec = json!({"volumeName": "pvc-1", "togetherWith": ["pvc-2"]});
        cluster.moves = vec![object(json!({"metadata": {"name": "pvc-1"}, "spec": spec}))];
        let mut used = Vec::new();
        remember(&mut used, &cluster);
        assert!(used.is_empty(), "{used:?}");
    }

    #[test]
    fn only_so_many_groups_are_begun_and_none_that_pods_use() {
        let mut cluster = ten_volumes();
        let groups = [group(&["a"]), group(&["b", "c"]), group(&["d"])];
        let names = |cluster: &Cluster, begun: &[&str], at_once| -> Vec<String> {
            let when = (at_once, Cutover::WhenUnused);
            let begun = to_begin(cluster, &groups, &group(begun), when);
            begun.into_iter().flatten().cloned().collect()
        };
        assert_eq!(names(&cluster, &[], 2), ["a", "b", "c"]);
        // A VolumeMove that was just created takes a place, before the watch has it and after.
        assert_eq!(names(&cluster, &["a"], 2), ["b", "c"]);
        cluster.moves = vec![moving("a", "Copying", true)];
        assert_eq!(names(&cluster, &["a"], 2), ["b", "c"]);
        assert!(names(&cluster, &["a"], 1).is_empty());
        // No node has room for it.
        cluster.moves = vec![moving("a", "NoSpace", false)];
        assert_eq!(names(&cluster, &["a"], 1), ["b", "c"]);
        // A group that lacks a VolumeMove gets it, unless the other one is being undone.
        cluster.moves = vec![moving("b", "Copying", true)];
        assert_eq!(names(&cluster, &["b"], 1), ["b", "c"]);
        cluster.moves[0].metadata.deletion_timestamp = Some(object(json!("1970-01-01T00:00:00Z")));
        assert!(names(&cluster, &["b"], 1).is_empty());
        cluster.moves.clear();
        use_by_pod(&mut cluster, "c", Some("worker-1"));
        assert_eq!(names(&cluster, &[], 9), ["a", "d"]);
        // It waits for its pods, and takes no place.
        cluster.moves = vec![
            moving("b", "PodsRemain", true),
            moving("c", "PodsRemain", true),
        ];
        assert_eq!(names(&cluster, &["b", "c"], 1), ["a"]);
        // A pod that is not bound to a node does not have the volume.
        use_by_pod(&mut cluster, "c", None);
        assert_eq!(names(&cluster, &[], 9), ["a", "b", "c", "d"]);
    }

    #[test]
    fn volumes_with_standby_copies_begin_to_move_within_the_limit_too() {
        let mut cluster = ten_volumes();
        let groups = [group(&["a"]), group(&["b"])];
        let standby = |name: &str| {
            let mut its_move = moving(name, "Standby", true);
            its_move.spec.cutover = Cutover::Never;
            its_move
        };
        cluster.moves = vec![standby("a"), standby("b")];
        let next = |cluster: &Cluster| -> Vec<String> {
            let when = (1, Cutover::WhenUnused);
            let next = to_begin(cluster, &groups, &begun(cluster), when);
            next.into_iter().flatten().cloned().collect()
        };
        assert_eq!(next(&cluster), ["a"]);
        cluster.moves[0].spec.cutover = Cutover::Manual;
        assert!(next(&cluster).is_empty(), "a takes the only place");
        cluster.moves.remove(0);
        use_by_pod(&mut cluster, "a", Some("worker-1"));
        assert_eq!(next(&cluster), ["b"]);
        // Its standby copy is being removed.
        cluster.moves[0].metadata.deletion_timestamp = Some(object(json!("1970-01-01T00:00:00Z")));
        assert!(next(&cluster).is_empty());
    }

    #[test]
    fn groups_that_are_copied_while_pods_use_them_take_a_place_until_a_user_has_to_act() {
        let mut cluster = ten_volumes();
        let groups = [group(&["a"]), group(&["b"])];
        cluster.pods = by_claim(["a", "b"].map(|it| user(it, Some("worker-1"))).into());
        let begun = |cluster: &Cluster, begun: &[&str], cutover| {
            to_begin(cluster, &groups, &group(begun), (1, cutover)).len()
        };
        assert_eq!(begun(&cluster, &[], Cutover::WhenUnused), 0);
        assert_eq!(begun(&cluster, &[], Cutover::Manual), 1);
        for (reason, next) in [
            ("Copying", 0),
            ("EvictionBlocked", 0),
            ("ReadyToCutOver", 1),
        ] {
            let mut its_move = moving("a", reason, true);
            its_move.spec.cutover = Cutover::Manual;
            cluster.moves = vec![its_move];
            assert_eq!(begun(&cluster, &["a"], Cutover::Manual), next, "{reason}");
        }
    }

    /// The volumes `a` to `j` of claims with the same names.
    fn ten_volumes() -> Cluster {
        let mut cluster = cluster();
        let model = cluster.volumes[0].clone();
        cluster.volumes = ('a'..='j')
            .map(|name| {
                let mut volume = model.clone();
                volume.metadata.name = Some(name.to_string());
                volume.spec.claim.as_mut().unwrap().name = name.to_string();
                volume
            })
            .collect();
        cluster
    }

    fn use_by_pod(cluster: &mut Cluster, claim: &str, node: Option<&str>) {
        cluster.pods = by_claim(vec![user(claim, node)]);
    }

    fn user(claim: &str, node: Option<&str>) -> Pod {
        let mut user = pod("user", claim, "Running");
        user.spec.as_mut().unwrap().node_name = node.map(str::to_owned);
        user
    }
}
