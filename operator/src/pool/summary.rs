//! A StoragePool's status, computed from its part of every node.
//!
//! *Invariant:* pure; without a change, the computed status is equal to the current one.

mod conditions;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use cistern_crds::{Bytes, Explanation, NodePoolStatus, StoragePool, StoragePoolStatus, condition};
use kube::{Resource as _, ResourceExt as _, core::DeserializeGuard};

use super::declaration::{InvalidDeclaration, declared};
use crate::{contents::Contents, health::summary::PoolHealth, overcommit::Overcommit};

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
        conditions::readiness(declaration, shares, kept),
        conditions::health(shares),
        conditions::deletion(declaration, shares, kept),
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

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
