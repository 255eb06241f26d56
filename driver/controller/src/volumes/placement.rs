//! Chooses the node for a new volume. Pure: from a request and the nodes as last seen in the watch.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cistern_crds::{Bytes, Explanation, NodePoolStatus, Reason, StorageNode, names};
use kube::ResourceExt as _;

use super::request::NewVolume;
use crate::objects::follow::Refusal;

/// Maximum number of nodes that an error names.
const NAMED: usize = 4;

/// A node for the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Name of the StorageNode.
    pub node: String,
    /// Why it is not the node that the request prefers most; None if it is, or if the request
    /// prefers none.
    pub passed_over: Option<String>,
}

/// Why no node can take the volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No node can take it now. A deletion, a larger pool, a returning node or another pool can
    /// change that.
    #[error("no node can take a volume of {size} from pool {pool}: {why}")]
    NoRoom {
        /// Name of the StoragePool.
        pool: String,
        /// Size of the requested volume in bytes.
        size: Bytes,
        /// The reason of each node.
        why: String,
    },
    /// No node could hold it, even with an empty pool (CV-10, GC-06).
    #[error(
        "{size} is more than pool {pool} can hold on any node: the largest volume is {largest}"
    )]
    TooLarge {
        /// Name of the StoragePool.
        pool: String,
        /// Size of the requested volume in bytes.
        size: Bytes,
        /// The largest volume that a node could hold.
        largest: Bytes,
    },
}

/// Chooses the first node in the order of the request that has room and has not refused. Fails if
/// there is none.
///
/// The order is that of `preferred` and then of `requisite`; without any, the node with the most
/// room comes first (TOP-06, TOP-21, TOP-23, TOP-24). Topology values without a node that carries the
/// pool are skipped: the caller lists them from Node labels, which may be older than the pool.
pub(super) fn choose(
    wanted: &NewVolume,
    nodes: &[Arc<StorageNode>],
    refusals: &[Refusal],
) -> Result<Choice, Error> {
    let candidates = in_order(wanted, nodes);
    let fits = |candidate: &Candidate<'_>| misfit(wanted, candidate, refusals).is_none();
    let Some(chosen) = candidates.iter().find(|candidate| fits(candidate)) else {
        return Err(verdict(wanted, &candidates, refusals));
    };
    let first = wanted.requirement.preferred.first();
    let passed_over = first
        .filter(|&first| *first != names::topology_value(&chosen.name))
        .map(|first| {
            let found = candidates
                .iter()
                .find(|c| names::topology_value(&c.name) == *first);
            let why = found.and_then(|candidate| misfit(wanted, candidate, refusals));
            format!(
                "{first} {}",
                why.unwrap_or_else(|| format!("does not carry pool {}", wanted.pool))
            )
        });
    Ok(Choice {
        node: chosen.name.clone(),
        passed_over,
    })
}

/// A node that the request allows, and the state of the pool there.
struct Candidate<'a> {
    name: String,
    pool: Result<&'a NodePoolStatus, Explanation>,
}

fn in_order<'a>(wanted: &NewVolume, nodes: &'a [Arc<StorageNode>]) -> Vec<Candidate<'a>> {
    let requirement = &wanted.requirement;
    let requisite = requirement.requisite.as_ref();
    let allowed: Option<HashSet<&String>> = requisite.map(|values| values.iter().collect());
    let mut position: HashMap<&String, usize> = HashMap::new();
    let order = requirement
        .preferred
        .iter()
        .chain(requisite.into_iter().flatten());
    for (index, value) in order.enumerate() {
        position.entry(value).or_insert(index);
    }
    let is_allowed = |candidate: &Candidate<'_>| {
        let value = names::topology_value(&candidate.name);
        allowed
            .as_ref()
            .is_none_or(|allowed| allowed.contains(&value))
    };
    let mut candidates: Vec<Candidate<'_>> = nodes
        .iter()
        .map(|node| Candidate {
            name: node.name_any(),
            pool: node.pool_for_new_volumes(&wanted.pool),
        })
        .filter(is_allowed)
        .collect();
    candidates.sort_by_cached_key(|candidate| {
        let value = names::topology_value(&candidate.name);
        let position = position.get(&value).copied();
        let room = candidate.pool.as_ref().map_or(Bytes::ZERO, |pool| {
            pool.room(wanted.attributes.provisioning)
        });
        (
            position.unwrap_or(usize::MAX),
            std::cmp::Reverse(room),
            candidate.name.clone(),
        )
    });
    candidates
}

/// Why the node cannot take the volume; None if it can.
fn misfit(wanted: &NewVolume, candidate: &Candidate<'_>, refusals: &[Refusal]) -> Option<String> {
    if let Some(refusal) = refusals
        .iter()
        .find(|refusal| refusal.node == candidate.name)
    {
        return Some(format!("refused: {}", refusal.why));
    }
    match &candidate.pool {
        Err(why) => Some(why.to_string()),
        Ok(pool) => {
            let largest = pool.largest_volume(wanted.attributes.provisioning);
            (largest < wanted.size.chosen).then(|| format!("has room for {largest}"))
        }
    }
}

/// Whether the node carries the pool, and keeps it.
fn carries(candidate: &Candidate<'_>) -> bool {
    !matches!(
        &candidate.pool,
        Err(Explanation {
            reason: Reason::PoolUnknown | Reason::Retiring,
            ..
        })
    )
}

/// The error if no node fits. The volume is too large only if every node that carries the pool
/// reports so: a node that is silent or not ready may be able to hold more.
fn verdict(wanted: &NewVolume, candidates: &[Candidate<'_>], refusals: &[Refusal]) -> Error {
    let pool = wanted.pool.clone();
    let size = wanted.size.chosen;
    let carriers: Vec<&Candidate<'_>> = candidates
        .iter()
        .filter(|candidate| carries(candidate))
        .collect();
    let too_large =
        |candidate: &&Candidate<'_>| match refusals.iter().find(|r| r.node == candidate.name) {
            Some(refusal) => refusal.why.reason == Reason::TooLarge,
            None => candidate.pool.as_ref().is_ok_and(|pool| pool.usable < size),
        };
    if !carriers.is_empty() && carriers.iter().all(too_large) {
        let usable =
            |candidate: &&Candidate<'_>| candidate.pool.as_ref().ok().map(|pool| pool.usable);
        let largest = carriers.iter().filter_map(usable).max().unwrap_or_default();
        return Error::TooLarge {
            pool,
            size,
            largest: largest.round_down_to_mib(),
        };
    }
    let why = if carriers.is_empty() {
        "no node that may be used carries the pool".to_owned()
    } else {
        let each = carriers.iter().take(NAMED).filter_map(|candidate| {
            Some(format!(
                "{} {}",
                candidate.name,
                misfit(wanted, candidate, refusals)?
            ))
        });
        let mut each: Vec<String> = each.collect();
        if carriers.len() > NAMED {
            each.push(format!("and {} more", carriers.len() - NAMED));
        }
        each.join("; ")
    };
    Error::NoRoom { pool, size, why }
}

#[cfg(test)]
mod tests;
