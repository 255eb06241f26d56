//! Chooses the node and the pool for a new volume. Pure: from a request and the nodes as last seen in the
//! watch.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cistern_crds::{
    Bytes, Explanation, NodePoolStatus, PoolNames, Reason, StorageNode, enumeration::first_clauses,
    names,
};
use kube::ResourceExt as _;

use super::request::{NewVolume, Requirement};
use crate::objects::follow::Refusal;

/// Maximum number of pools on nodes that an error names, unless the class has more pools: an error always
/// says why each pool of at least one node cannot take the volume.
const NAMED: usize = 4;

/// A node and a pool for the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Name of the StorageNode.
    pub node: String,
    /// Name of the StoragePool.
    pub pool: String,
    /// Why it is not the node that the request prefers most; None if it is, or if the request
    /// prefers none.
    pub passed_over: Option<String>,
}

/// Why no node can take the volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No node can take it now. A deletion, a larger pool, a returning node or another pool can
    /// change that.
    #[error("no node can take a volume of {size} from {pools}: {why}")]
    NoRoom {
        /// The StoragePools of the class.
        pools: PoolNames,
        /// Size of the requested volume in bytes.
        size: Bytes,
        /// The reason of each node and pool.
        why: String,
    },
    /// Each pool that could take it is a volume group, which never holds such a volume.
    #[error("{why}")]
    NotInVolumeGroup {
        /// What a volume group holds, and what to do.
        why: String,
    },
    /// Each pool that could take it rounds its size up to more than the limit (CV-09).
    #[error(
        "{pools} cannot have a volume of {size} within the limit of {limit}: the smallest is {rounded}"
    )]
    OverLimit {
        /// The StoragePools of the class.
        pools: PoolNames,
        /// Size of the requested volume in bytes.
        size: Bytes,
        /// The requested limit in bytes.
        limit: Bytes,
        /// The smallest size that a pool makes of the requested one.
        rounded: Bytes,
    },
    /// No node could hold it, even with an empty pool (CV-10, GC-06).
    #[error("{size} is more than any node can hold in {pools}: the largest volume is {largest}")]
    TooLarge {
        /// The StoragePools of the class.
        pools: PoolNames,
        /// Size of the requested volume in bytes.
        size: Bytes,
        /// The largest volume that a pool on a node could hold.
        largest: Bytes,
    },
}

/// Chooses the first node in the order of the request that has room and has not refused, and on it the
/// pool with the most room. Fails if there is none.
///
/// The order of the nodes is that of `preferred` and then of `requisite`; without any, the node with the
/// most room comes first (TOP-06, TOP-21, TOP-23, TOP-24). Topology values without a node that carries a
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
        .filter(|&first| *first != names::topology_value(&chosen.node))
        .map(|first| {
            let is_first = |c: &&Candidate<'_>| names::topology_value(&c.node) == *first;
            let on_first: Vec<&Candidate<'_>> = candidates.iter().filter(is_first).collect();
            match on_first[..] {
                [] => format!("{first} does not carry {}", wanted.pools),
                _ => format!("{first} {}", why_not(wanted, &on_first, refusals)),
            }
        });
    Ok(Choice {
        node: chosen.node.clone(),
        pool: chosen.pool.to_owned(),
        passed_over,
    })
}

/// Whether the scheduler chooses a node for a claim again after it was refused a copy there: the published capacity
/// shows room.
///
/// That is the capacity of all pools of the class for an empty volume of the requested size. A copy may need more: a certain
/// pool, a pool that has copies, or the size of its source.
pub(super) fn has_published_room(
    wanted: &NewVolume,
    value: &str,
    nodes: &[Arc<StorageNode>],
    refusals: &[Refusal],
) -> bool {
    let mut claimed = wanted.clone();
    claimed.source = None;
    // Without a size, any room counts.
    claimed.size.chosen = wanted.size.required.max(Bytes(1));
    claimed.requirement = Requirement {
        requisite: Some(vec![value.to_owned()]),
        preferred: Vec::new(),
    };
    choose(&claimed, nodes, refusals).is_ok()
}

/// A pool on a node that the request allows, and its state there.
struct Candidate<'a> {
    node: String,
    pool: &'a str,
    status: Result<&'a NodePoolStatus, Explanation>,
}

fn in_order<'a>(wanted: &'a NewVolume, nodes: &'a [Arc<StorageNode>]) -> Vec<Candidate<'a>> {
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
    let is_allowed = |node: &&Arc<StorageNode>| {
        let value = names::topology_value(&node.name_any());
        allowed
            .as_ref()
            .is_none_or(|allowed| allowed.contains(&value))
    };
    let needs = wanted.needs();
    let on_node = |node: &'a Arc<StorageNode>| {
        wanted.pools.iter().map(move |pool| Candidate {
            node: node.name_any(),
            pool,
            status: node.takes(pool, needs),
        })
    };
    let mut candidates: Vec<Candidate<'_>> =
        nodes.iter().filter(is_allowed).flat_map(on_node).collect();
    // The sort is stable: of pools with equal room, the first of the class comes first.
    candidates.sort_by_cached_key(|candidate| {
        let value = names::topology_value(&candidate.node);
        let position = position.get(&value).copied();
        let room = candidate.status.as_ref().map_or(Bytes::ZERO, |pool| {
            pool.room(wanted.attributes.provisioning)
        });
        (
            position.unwrap_or(usize::MAX),
            Reverse(room),
            candidate.node.clone(),
        )
    });
    candidates
}

/// Why the pool on the node cannot take the volume; None if it can. Names the pool if the class has
/// several.
fn misfit(wanted: &NewVolume, candidate: &Candidate<'_>, refusals: &[Refusal]) -> Option<String> {
    let here = if wanted.pools.are_several() {
        format!(" in pool {}", candidate.pool)
    } else {
        String::new()
    };
    if let Some(refusal) = refused(candidate, refusals) {
        return Some(format!("refused{here}: {}", refusal.why));
    }
    match &candidate.status {
        Err(why) => Some(why.to_string()),
        Ok(pool) => {
            let largest = pool.largest_volume(wanted.attributes.provisioning);
            let largest = largest.saturating_sub(wanted.header());
            let size = size_in(wanted, pool);
            if let Some(limit) = over_limit(wanted, pool) {
                return Some(format!(
                    "would round the volume up to {size}{here}, above the limit {limit}"
                ));
            }
            (largest < size).then(|| format!("has room for {largest}{here}"))
        }
    }
}

/// The size that the volume gets in a pool.
fn size_in(wanted: &NewVolume, pool: &NodePoolStatus) -> Bytes {
    pool.size_of_volume(wanted.size.chosen, wanted.header())
}

/// The limit of the request, if the volume would be larger in a pool.
fn over_limit(wanted: &NewVolume, pool: &NodePoolStatus) -> Option<Bytes> {
    let size = size_in(wanted, pool);
    wanted.size.limit.filter(|limit| size > *limit)
}

/// The refusal of the agent for this pool.
fn refused<'a>(candidate: &Candidate<'_>, refusals: &'a [Refusal]) -> Option<&'a Refusal> {
    refusals
        .iter()
        .find(|refusal| refusal.node == candidate.node && refusal.pool == candidate.pool)
}

/// Whether the node carries the pool, and keeps it.
fn carries(candidate: &Candidate<'_>) -> bool {
    !matches!(
        &candidate.status,
        Err(Explanation {
            reason: Reason::PoolUnknown | Reason::Retiring,
            ..
        })
    )
}

/// Why no pool of a node can take the volume. What applies to the node and so to all its pools is said
/// once.
fn why_not(wanted: &NewVolume, on_node: &[&Candidate<'_>], refusals: &[Refusal]) -> String {
    let each = on_node.iter();
    let mut each: Vec<String> = each.filter_map(|it| misfit(wanted, it, refusals)).collect();
    each.dedup();
    each.join(", ")
}

/// Why a pool never takes the volume, however much room it has; None if it may.
fn never(candidate: &Candidate<'_>, refusals: &[Refusal]) -> Option<String> {
    let why = refused(candidate, refusals).map(|refusal| &refusal.why);
    let why = why.or_else(|| candidate.status.as_ref().err())?;
    (why.reason == Reason::NotInVolumeGroup).then(|| why.message.clone())
}

/// The error if no node fits. The volume is too large only if every pool of every node reports so: a
/// node that is silent or not ready may be able to hold more.
fn verdict(wanted: &NewVolume, candidates: &[Candidate<'_>], refusals: &[Refusal]) -> Error {
    let pools = wanted.pools.clone();
    let size = wanted.size.chosen;
    let carriers: Vec<&Candidate<'_>> = candidates
        .iter()
        .filter(|candidate| carries(candidate))
        .collect();
    let able: Vec<&Candidate<'_>> = carriers
        .iter()
        .copied()
        .filter(|it| never(it, refusals).is_none())
        .collect();
    if able.is_empty()
        && let Some(why) = carriers.iter().find_map(|it| never(it, refusals))
    {
        return Error::NotInVolumeGroup { why };
    }
    // The largest volume that an empty pool could hold.
    let largest = |pool: &NodePoolStatus| pool.usable.saturating_sub(wanted.header());
    let too_large = |candidate: &&Candidate<'_>| match refused(candidate, refusals) {
        Some(refusal) => refusal.why.reason == Reason::TooLarge,
        None => candidate
            .status
            .as_ref()
            .is_ok_and(|pool| largest(pool) < size),
    };
    if !able.is_empty() && able.iter().all(too_large) {
        let reported = able.iter().filter_map(|it| it.status.as_ref().ok());
        let largest = reported.map(|pool| largest(pool)).max().unwrap_or_default();
        return Error::TooLarge {
            pools,
            size,
            largest: largest.round_down_to_mib(),
        };
    }
    let reported: Result<Vec<_>, _> = able.iter().map(|it| it.status.as_ref()).collect();
    if let Ok(reported) = reported
        && let Some(limit) = reported.iter().find_map(|pool| over_limit(wanted, pool))
        && reported
            .iter()
            .all(|pool| over_limit(wanted, pool).is_some())
    {
        let rounded = reported.iter().map(|pool| size_in(wanted, pool)).min();
        return Error::OverLimit {
            pools,
            size,
            limit,
            rounded: rounded.unwrap_or(size),
        };
    }
    let why = if carriers.is_empty() {
        format!("no node that may be used carries {pools}")
    } else {
        of_each_node(wanted, &carriers, refusals)
    };
    Error::NoRoom { pools, size, why }
}

/// The reasons of the first nodes, and how many more there are.
fn of_each_node(wanted: &NewVolume, carriers: &[&Candidate<'_>], refusals: &[Refusal]) -> String {
    let mut nodes: Vec<(&str, Vec<&Candidate<'_>>)> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for &candidate in carriers {
        let next = nodes.len();
        let at = *index.entry(&candidate.node).or_insert(next);
        match nodes.get_mut(at) {
            Some((_, pools)) => pools.push(candidate),
            None => nodes.push((&candidate.node, vec![candidate])),
        }
    }
    let named = (NAMED / wanted.pools.count()).max(1);
    let reason = |(node, pools): &(&str, Vec<&Candidate<'_>>)| {
        format!("{node} {}", why_not(wanted, pools, refusals))
    };
    first_clauses(nodes.iter().map(reason), named)
}

#[cfg(test)]
mod tests;
