//! A StoragePool's status, computed from its part of every node.
//!
//! *Invariant:* pure; without a change, the computed status is equal to the current one.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionType, Explanation, NodePoolStatus, Reason, StoragePool, StoragePoolStatus,
    condition::{self, ConditionUpdate},
    enumeration::first_clauses,
    names,
};
use kube::{Resource as _, ResourceExt as _, core::DeserializeGuard};

use super::declaration::{InvalidDeclaration, declared};
use crate::{
    contents::Contents,
    health::{self, summary::PoolHealth},
    overcommit::Overcommit,
};

/// Nodes that a message names before it counts the rest.
const NAMED: usize = 4;

/// What the user declared, as far as the status depends on it.
#[derive(Clone, Debug)]
pub(super) struct Declaration {
    name: String,
    generation: Option<i64>,
    deleted: bool,
    invalid: Option<InvalidDeclaration>,
    /// Whether its source is a file on each node.
    is_image: bool,
    /// None if the spec cannot be read.
    overcommit: Option<Overcommit>,
}

/// The pool's part of one node.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) node: String,
    pub(super) state: PoolNodeState,
    /// State of the pool on the node.
    pub(super) health: PoolHealth,
    /// The report of the agent; None if it has not reported the pool.
    pub(super) status: Option<NodePoolStatus>,
}

/// State of the pool on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PoolNodeState {
    /// The node is to carry the pool, which can be used there.
    Ready {
        /// Whether it takes no new volumes.
        cordoned: bool,
    },
    /// The node is to carry the pool and cannot.
    NotReady(Explanation),
    /// The node should not carry the pool and still does.
    Leaving { node_is_gone: bool },
}

impl Share {
    /// Whether the Node is gone.
    fn is_gone(&self) -> bool {
        self.state == PoolNodeState::Leaving { node_is_gone: true }
    }
}

impl Declaration {
    pub(super) fn of(pool: &DeserializeGuard<StoragePool>, overcommit: Option<Overcommit>) -> Self {
        Self {
            name: pool.name_any(),
            generation: pool.meta().generation,
            deleted: pool.meta().deletion_timestamp.is_some(),
            invalid: declared(pool).err(),
            is_image: pool
                .0
                .as_ref()
                .is_ok_and(|it| it.spec.source.image.is_some()),
            overcommit,
        }
    }
}

/// Computes the desired status.
pub(super) fn summarize(
    declaration: &Declaration,
    current: &StoragePoolStatus,
    shares: &[Arc<Share>],
    kept: &Contents,
    now: DateTime<Utc>,
) -> StoragePoolStatus {
    let ready = shares
        .iter()
        .filter(|share| matches!(share.state, PoolNodeState::Ready { .. }));
    let leaving = shares
        .iter()
        .filter(|share| matches!(share.state, PoolNodeState::Leaving { .. }));
    // The last report of a Node that is gone does not count as available room.
    let present = || shares.iter().filter(|share| !share.is_gone());
    let reported = || present().filter_map(|share| share.status.as_ref());
    let nodes = count(shares.len() - leaving.count());
    let nodes_ready = count(ready.clone().count());
    let largest = |share: &Share| Some(share.status.as_ref()?.largest_volume_of_any());
    let mut conditions = current.conditions.clone();
    let overcommit = declaration.overcommit.map(Overcommit::finding);
    let findings = [
        readiness(declaration, shares, kept),
        health(shares),
        deletion(declaration, shares, kept),
    ];
    for finding in findings.into_iter().chain(overcommit) {
        condition::set(&mut conditions, &finding, declaration.generation, now);
    }
    StoragePoolStatus {
        observed_generation: declaration.generation,
        nodes,
        nodes_ready,
        nodes_summary: format!("{nodes_ready}/{nodes}"),
        usable: reported().map(|status| status.usable).sum(),
        reserved: legible(reported().map(|status| status.reserved).sum()),
        used: reported().map(|status| status.used).sum(),
        free: reported().map(|status| status.free).sum(),
        largest_volume: ready
            .filter_map(|share| largest(share))
            .max()
            .unwrap_or(Bytes::ZERO),
        // Includes Nodes that are gone, because a node may come back with its file.
        largest_file: shares
            .iter()
            .filter_map(|share| share.status.as_ref())
            .filter(|_| declaration.is_image)
            .map(|status| status.size)
            .max()
            .unwrap_or(Bytes::ZERO),
        volumes: reported().map(|status| status.volumes).sum(),
        snapshots: reported().map(|status| status.snapshots).sum(),
        reserved_for_snapshots: reported().map(|status| status.reserved_for_snapshots).sum(),
        conditions,
    }
}

/// Rounds a sum up to 1 MiB for display, because snapshots reserve any number of bytes.
fn legible(sum: Bytes) -> Bytes {
    sum.round_up_to_mib().unwrap_or(sum)
}

/// `Ready`: the pool can be used on every node that the selector matches.
fn readiness(declaration: &Declaration, shares: &[Arc<Share>], kept: &Contents) -> ConditionUpdate {
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
fn health(shares: &[Arc<Share>]) -> ConditionUpdate {
    let parts = shares
        .iter()
        .map(|share| (share.node.clone(), share.health.clone()));
    health::summary::of_nodes(&parts.collect::<Vec<_>>())
}

/// `DeletionHeld`: the pool is being deleted, and the message says what blocks it.
fn deletion(declaration: &Declaration, shares: &[Arc<Share>], kept: &Contents) -> ConditionUpdate {
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

fn enumerate(items: &[String]) -> String {
    first_clauses(items.iter(), NAMED)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: PoolNodeState = PoolNodeState::Ready { cordoned: false };
    use crate::{
        contents::Count,
        testing::{moment, storage_node},
    };

    fn declaration() -> Declaration {
        Declaration {
            name: "fast".to_owned(),
            generation: Some(3),
            deleted: false,
            invalid: None,
            is_image: true,
            overcommit: None,
        }
    }

    fn share(node: &str, state: PoolNodeState, room: Option<Bytes>) -> Arc<Share> {
        let status = room.and_then(|room| {
            let node = storage_node(node).with_room("fast", room).build();
            node.status.unwrap().pools.pop()
        });
        Arc::new(Share {
            node: node.to_owned(),
            state,
            health: PoolHealth::Healthy,
            status,
        })
    }

    fn refusal(message: &str) -> PoolNodeState {
        PoolNodeState::NotReady(Explanation {
            reason: Reason::AgentNotReady,
            message: message.to_owned(),
        })
    }

    fn kept(counts: &[(&str, usize, usize)]) -> Contents {
        let mut contents = Contents::default();
        for (node, volumes, snapshots) in counts {
            let (volumes, snapshots) = (*volumes, *snapshots);
            contents.add(Some(node), Count { volumes, snapshots });
        }
        contents
    }

    fn status(
        declaration: &Declaration,
        shares: &[Arc<Share>],
        kept: &Contents,
    ) -> StoragePoolStatus {
        summarize(
            declaration,
            &StoragePoolStatus::default(),
            shares,
            kept,
            moment(),
        )
    }

    fn condition_of(status: &StoragePoolStatus, kind: ConditionType) -> (String, String, String) {
        let condition = condition::find(&status.conditions, kind).unwrap().clone();
        (condition.status, condition.reason, condition.message)
    }

    #[test]
    fn the_sum_of_the_nodes_is_the_pool() {
        let shares = [
            share("w1", READY, Some(Bytes::gib(4))),
            share("w2", READY, Some(Bytes::gib(7))),
            share("w3", refusal("pod x on w3 is not ready"), None),
        ];
        let status = status(&declaration(), &shares, &kept(&[]));
        assert_eq!(status.observed_generation, Some(3));
        assert_eq!((status.nodes, status.nodes_ready), (3, 2));
        assert_eq!(status.nodes_summary, "2/3");
        assert_eq!(
            (status.usable, status.reserved),
            (Bytes::gib(20), Bytes::gib(9))
        );
        assert_eq!((status.used, status.free), (Bytes::gib(2), Bytes::gib(18)));
        assert_eq!(status.largest_volume, Bytes::gib(7));
        let (holds, reason, message) = condition_of(&status, ConditionType::Ready);
        assert_eq!(
            (holds.as_str(), reason.as_str()),
            ("False", "NodesNotReady")
        );
        assert_eq!(
            message,
            "1 of 3 nodes are not ready: w3: pod x on w3 is not ready"
        );
    }

    #[test]
    fn the_largest_volume_of_a_volume_group_is_a_thick_one() {
        let mut one = Share::clone(&share("w1", READY, Some(Bytes::gib(4))));
        let reported = one.status.as_mut().unwrap();
        (reported.thin_room, reported.thick_room) = (Bytes::ZERO, Bytes::gib(3));
        let status = status(&declaration(), &[Arc::new(one)], &kept(&[]));
        assert_eq!(status.largest_volume, Bytes::gib(3));
    }

    #[test]
    fn r05_the_same_cluster_state_gives_an_equal_status_at_any_time() {
        let shares = [share("w1", READY, Some(Bytes::gib(4)))];
        let first = status(&declaration(), &shares, &kept(&[]));
        let later = moment() + chrono::Duration::hours(1);
        let second = summarize(&declaration(), &first, &shares, &kept(&[]), later);
        assert_eq!(first, second);
    }

    #[test]
    fn a_node_that_leaves_is_named_with_what_it_holds() {
        let shares = [
            share("w1", READY, Some(Bytes::gib(4))),
            share(
                "w2",
                PoolNodeState::Leaving {
                    node_is_gone: false,
                },
                Some(Bytes::gib(4)),
            ),
        ];
        let status = status(&declaration(), &shares, &kept(&[("w2", 2, 1)]));
        let (holds, reason, message) = condition_of(&status, ConditionType::Ready);
        assert_eq!((holds.as_str(), reason.as_str()), ("True", "Retiring"));
        assert!(
            message.contains("w2 (holds 2 volumes and 1 snapshot)"),
            "{message}"
        );
        assert_eq!((status.nodes, status.nodes_ready), (1, 1));
    }

    #[test]
    fn a_node_that_is_gone_is_no_room_and_the_pool_says_what_to_do() {
        let gone = PoolNodeState::Leaving { node_is_gone: true };
        let shares = [
            share("w1", READY, Some(Bytes::gib(4))),
            share("w2", gone, Some(Bytes::gib(4))),
        ];
        let left = kept(&[("w2", 2, 1)]);
        let found = status(&declaration(), &shares, &left);
        assert_eq!(
            (found.usable, found.reserved),
            (Bytes::gib(10), Bytes::gib(6))
        );
        let (holds, reason, message) = condition_of(&found, ConditionType::Ready);
        assert_eq!((holds.as_str(), reason.as_str()), ("True", "NodeGone"));
        let advice = "kubectl cistern forget-node w2";
        assert!(
            message.contains("2 volumes and 1 snapshot") && message.contains(advice),
            "{message}"
        );
        let deleted = Declaration {
            deleted: true,
            ..declaration()
        };
        let held = status(&deleted, &shares, &left);
        let (_, reason, message) = condition_of(&held, ConditionType::DeletionHeld);
        assert_eq!(reason, "VolumesRemain");
        assert!(message.contains(advice), "{message}");
    }

    #[test]
    fn a_pool_that_is_cordoned_on_a_node_is_ready_and_says_so() {
        let cordoned = PoolNodeState::Ready { cordoned: true };
        let shares = [
            share("w1", READY, Some(Bytes::gib(4))),
            share("w2", cordoned, Some(Bytes::ZERO)),
        ];
        let status = status(&declaration(), &shares, &kept(&[]));
        let (holds, reason, message) = condition_of(&status, ConditionType::Ready);
        assert_eq!((holds.as_str(), reason.as_str()), ("True", "Reconciled"));
        assert_eq!(message, "2 of 2 nodes are ready; cordoned: w2");
        assert_eq!(status.nodes_summary, "2/2");
    }

    #[test]
    fn a_selector_without_nodes_and_an_invalid_spec_have_different_reasons() {
        let no_nodes = status(&declaration(), &[], &kept(&[]));
        assert_eq!(condition_of(&no_nodes, ConditionType::Ready).1, "NoNodes");
        let invalid = Declaration {
            invalid: Some(InvalidDeclaration::ValuesMissing(
                "disk".into(),
                "In".into(),
            )),
            ..declaration()
        };
        let (_, reason, message) =
            condition_of(&status(&invalid, &[], &kept(&[])), ConditionType::Ready);
        assert_eq!(reason, "InvalidSpec");
        assert!(message.contains("disk In needs values"), "{message}");
    }

    #[test]
    fn a_deletion_that_is_held_says_how_much_is_kept_where_and_what_to_do() {
        let deleted = Declaration {
            deleted: true,
            ..declaration()
        };
        let shares = [share(
            "w1",
            PoolNodeState::Leaving {
                node_is_gone: false,
            },
            Some(Bytes::gib(4)),
        )];
        let held = status(
            &deleted,
            &shares,
            &kept(&[("w1", 2, 0), ("w2", 1, 4), ("w3", 0, 1)]),
        );
        let (holds, reason, message) = condition_of(&held, ConditionType::DeletionHeld);
        assert_eq!((holds.as_str(), reason.as_str()), ("True", "VolumesRemain"));
        for part in [
            "3 volumes and 5 snapshots in the pool",
            "2 volumes on w1; 1 volume and 4 snapshots on w2; 1 snapshot on w3",
            "delete their claims and VolumeSnapshots",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let draining = status(&deleted, &shares, &kept(&[]));
        let (_, reason, message) = condition_of(&draining, ConditionType::DeletionHeld);
        assert_eq!(reason, "Retiring");
        assert!(message.contains("w1 (empty, being removed)"), "{message}");
        let nodes_many: Vec<String> = (0..9).map(|n| n.to_string()).collect();
        assert_eq!(enumerate(&nodes_many), "0; 1; 2; 3; and 5 more");
    }
}
