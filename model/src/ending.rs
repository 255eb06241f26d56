//! Whether an end can be reached: the volume moved, stayed, is deleted as requested, or the move says why it cannot go on.
//!
//! An end counts only if the parties reach it by themselves, without another request, and once nothing breaks any more.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::{
    protocol::Protocol,
    state::{Kubelet, Node, Purpose, State, Volume},
};

/// Whether the parties can reach an end from a state. It remembers the answer for all states on the way.
pub(crate) fn is_possible(protocol: &Protocol, state: &State) -> bool {
    let mut known = protocol.known.lock();
    if let Some(is_possible) = known.get(&hash(state)) {
        return *is_possible;
    }
    let mut visited = std::collections::HashSet::new();
    // Depth first: the states from the first one to the current one, each with the steps that were not tried.
    let mut path = vec![(hash(state), successors(protocol, state))];
    if is_end(state) {
        known.insert(hash(state), true);
        return true;
    }
    while let Some((_, untried)) = path.last_mut() {
        let Some(next) = untried.pop() else {
            path.pop();
            continue;
        };
        let key = hash(&next);
        if known.get(&key) == Some(&true) || is_end(&next) {
            known.insert(key, true);
            known.extend(path.into_iter().map(|(key, _)| (key, true)));
            return true;
        }
        if !known.contains_key(&key) && visited.insert(key) {
            path.push((key, successors(protocol, &next)));
        }
    }
    known.insert(hash(state), false);
    known.extend(visited.into_iter().map(|key| (key, false)));
    false
}

fn hash(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

fn successors(protocol: &Protocol, state: &State) -> Vec<State> {
    let mut steps = Vec::new();
    protocol.own_steps(state, &mut steps);
    let next = steps
        .into_iter()
        .filter_map(|step| protocol.after(state, step));
    next.collect()
}

/// Whether nothing is left to do.
pub(crate) fn is_end(state: &State) -> bool {
    let is_busy = Node::ALL
        .into_iter()
        .any(|node| state.operators.of(node).is_some());
    let is_moving = state.movement.is_some_and(|movement| !movement.blocked);
    let is_reached = |node: &Node| state.disk(*node).is_some();
    let mut nodes = Node::ALL.into_iter().filter(is_reached);
    let has_replicas = nodes.any(|node| {
        let mut replicas = state.replicas.of(node).iter();
        replicas.any(|(_, replica)| replica.purpose != Purpose::Standby)
    });
    if is_busy || is_moving {
        return false;
    }
    match state.volume {
        None => !has_replicas && state.persistent_volume.is_none() && images(state) == 0,
        // Its disk is lost: there is nothing that anybody could do.
        Some(volume) if state.disk(volume.node).is_none() => true,
        Some(volume) => {
            let is_settled = is_served(state, &volume) || is_kept(state, &volume);
            !has_replicas && images(state) == 1 && is_settled
        }
    }
}

/// Whether the volume is ready and its claim and its pod have it.
fn is_served(state: &State, volume: &Volume) -> bool {
    let is_its = |node: Node| node == volume.node;
    let is_bound = state
        .claim
        .is_some_and(|claim| !claim.lost && !claim.terminating);
    let machine = state.machines.of(volume.node);
    let runs = machine.kubelet == Kubelet::Started && machine.staged == Some(volume.epoch);
    let is_running = state
        .pod
        .is_some_and(|pod| pod.node.is_some_and(is_its) && pod.running);
    is_found(state, volume, false) && is_bound && (!state.workload || runs && is_running)
}

/// Whether the volume is ready and the administrator decides about it: its claim was deleted while the PersistentVolume was
/// replaced.
pub(crate) fn is_kept(state: &State, volume: &Volume) -> bool {
    is_found(state, volume, true) && state.claim.is_none()
}

/// Whether the volume is ready, and its PersistentVolume names its node and has this policy.
fn is_found(state: &State, volume: &Volume, retain: bool) -> bool {
    let follows = state.persistent_volume.is_some_and(|found| {
        found.node == volume.node && !found.terminating && found.retain == retain
    });
    volume.is_ready() && volume.target.is_none() && !volume.deletion && follows
}

/// The images of the volume that can be reached, without a standby copy.
fn images(state: &State) -> usize {
    let is_standby = |node, epoch| {
        let replica = state.replicas.of(node).at(epoch);
        replica.is_some_and(|replica| replica.purpose == Purpose::Standby)
    };
    let nodes = Node::ALL.into_iter();
    let all = nodes.filter_map(|node| Some((node, state.disk(node)?)));
    all.map(|(node, disk)| {
        let images = disk.images.iter();
        images
            .filter(|(epoch, _)| !is_standby(node, *epoch))
            .count()
    })
    .sum()
}
