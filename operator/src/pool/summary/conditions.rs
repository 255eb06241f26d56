//! The conditions of a StoragePool. Pure.

use std::sync::Arc;

use cistern_crds::{
    ConditionType, Reason, condition::ConditionUpdate, enumeration::first_clauses, names,
};

use super::{Declaration, PoolNodeState, Share};
use crate::{contents::Contents, health};

/// Nodes that a message names before it counts the rest.
const NAMED: usize = 4;

/// `Ready`: the pool can be used on every node that the selector matches.
pub(super) fn readiness(
    declaration: &Declaration,
    shares: &[Arc<Share>],
    kept: &Contents,
) -> ConditionUpdate {
    let finding = |holds: bool, reason, message: String| {
        ConditionUpdate::new(ConditionType::Ready, holds, reason, message)
    };
    if declaration.deleted {
        let message = "the pool is being deleted and takes no new volumes";
        return finding(false, Reason::Retiring, message.to_owned());
    }
    if let Some(why) = &declaration.invalid {
        let message =
            format!("{why}; what the nodes carry stays as it is until the spec is corrected");
        return finding(false, Reason::InvalidSpec, message);
    }
    let waiting: Vec<String> = shares
        .iter()
        .filter_map(|share| match &share.state {
            PoolNodeState::NotReady(refusal) => {
                Some(format!("{}: {}", share.node, refusal.message))
            }
            PoolNodeState::Ready { .. } | PoolNodeState::Leaving { .. } => None,
        })
        .collect();
    let leaving = leaving(shares, kept);
    let nodes = shares.len() - leaving.len();
    let cordoned = cordoned(shares);
    let tail = [("no longer selected", &leaving), ("cordoned", &cordoned)];
    let tail = tail.iter().filter(|(_, nodes)| !nodes.is_empty());
    let tail: Vec<String> = tail
        .map(|(what, nodes)| format!("; {what}: {}", enumerate(nodes)))
        .collect();
    let tail = tail.concat();
    if nodes == 0 {
        let message = format!("the selector matches no node{tail}");
        return finding(false, Reason::NoNodes, message);
    }
    if !waiting.is_empty() {
        let list = enumerate(&waiting);
        let message = format!(
            "{} of {nodes} nodes are not ready: {list}{tail}",
            waiting.len()
        );
        return finding(false, Reason::NodesNotReady, message);
    }
    let reason = if shares.iter().any(|share| share.is_gone()) {
        Reason::NodeGone
    } else if leaving.is_empty() {
        Reason::Reconciled
    } else {
        Reason::Retiring
    };
    finding(
        true,
        reason,
        format!("{nodes} of {nodes} nodes are ready{tail}"),
    )
}

/// The nodes on which the pool is ready, but takes no new volumes.
fn cordoned(shares: &[Arc<Share>]) -> Vec<String> {
    let state = PoolNodeState::Ready { cordoned: true };
    let cordoned = shares.iter().filter(|share| share.state == state);
    cordoned.map(|share| share.node.clone()).collect()
}

/// `Healthy`: nothing is known to be wrong with the pool on any node that has it.
pub(super) fn health(shares: &[Arc<Share>]) -> ConditionUpdate {
    let parts = shares
        .iter()
        .map(|share| (share.node.clone(), share.health.clone()));
    health::summary::of_nodes(&parts.collect::<Vec<_>>())
}

/// `DeletionHeld`: the pool is being deleted, and the message says what blocks it.
pub(super) fn deletion(
    declaration: &Declaration,
    shares: &[Arc<Share>],
    kept: &Contents,
) -> ConditionUpdate {
    let finding = |holds: bool, reason, message: String| {
        ConditionUpdate::new(ConditionType::DeletionHeld, holds, reason, message)
    };
    if !declaration.deleted {
        let message = "the pool is not being deleted";
        return finding(false, Reason::NotDeleting, message.to_owned());
    }
    if kept.is_empty() {
        let message = match leaving(shares, kept).as_slice() {
            [] => "nothing is left of the pool".to_owned(),
            leaving => format!("waiting for the nodes to remove it: {}", enumerate(leaving)),
        };
        return finding(true, Reason::Retiring, message);
    }
    let mut places: Vec<String> = kept
        .places
        .iter()
        .map(|(node, count)| format!("{count} on {node}"))
        .collect();
    if !kept.unreadable.is_zero() {
        places.push(format!("{} that cannot be read", kept.unreadable));
    }
    let gone = shares.iter().filter(|share| share.is_gone());
    let gone: Vec<String> = gone
        .map(|share| {
            let node = &share.node;
            format!(
                "; Node {node} is gone: `kubectl cistern forget-node {node}` abandons the data on it"
            )
        })
        .take(NAMED)
        .collect();
    let message = format!(
        "{} in the pool ({}): delete their claims and VolumeSnapshots first; \
         kubectl get poolvolumes,poolsnapshots -l {}={} lists them{}",
        kept.total(),
        enumerate(&places),
        names::POOL_LABEL,
        declaration.name,
        gone.concat(),
    );
    finding(true, Reason::VolumesRemain, message)
}

/// Each node that still has a part of the pool and should not, and what it holds.
fn leaving(shares: &[Arc<Share>], kept: &Contents) -> Vec<String> {
    let describe = |share: &Share| {
        let PoolNodeState::Leaving { node_is_gone } = share.state else {
            return None;
        };
        let node = &share.node;
        let count = kept.at(node);
        Some(match (count.is_zero(), node_is_gone) {
            (true, false) => format!("{node} (empty, being removed)"),
            (true, true) => format!("{node} (the Node is gone)"),
            (false, false) => format!("{node} (holds {count})"),
            (false, true) => format!(
                "{node} (the Node is gone with {count}; if it does not come back: kubectl cistern forget-node {node})"
            ),
        })
    };
    let shares = shares.iter();
    shares.filter_map(|share| describe(share)).collect()
}

pub(super) fn enumerate(items: &[String]) -> String {
    first_clauses(items.iter(), NAMED)
}
