//! Collects the issues of a cluster, sorted by severity. Pure.
//!
//! *Invariant:* consequences of a reported issue are not reported again: a pool that is not ready because of
//! a node, or volumes that are not ready because of the pool.

mod claims;
mod moved;
mod nodes;
mod stored;

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use chrono::{DateTime, Duration, Utc};
use cistern_crds::{Condition, ConditionStatus, ConditionType, StoragePool, condition, time};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;

use crate::{cluster::Cluster, unreadable::Unreadable};

/// Time after its creation during which a pending object is not an issue.
const GRACE_PERIOD: Duration = Duration::seconds(60);
/// Largest number of objects with the same issue that are reported individually.
const FEW: usize = 3;

/// Severity of an issue, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Severity {
    /// The object does not work.
    Error,
    /// The object works, but needs attention.
    Warning,
}

/// A problem of an object in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Issue {
    /// Severity of the issue.
    pub severity: Severity,
    /// Kind of the object: a Kubernetes kind, `Pool` for a pool on one node, `Claim`, or `Drift`.
    pub kind: &'static str,
    /// Name of the object; of a claim `NAMESPACE/NAME`.
    pub name: String,
    /// Node of the object; absent if the object is not on one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Pool of the object; absent if the object is not in one pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Reason in CamelCase, for programs.
    pub reason: String,
    /// Description and suggested action, for people.
    pub message: String,
    /// Time at which the issue began; absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// Number of objects with this issue, including the named one.
    pub count: usize,
}

impl Issue {
    fn new(
        severity: Severity,
        kind: &'static str,
        name: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            kind,
            name: name.into(),
            node: None,
            pool: None,
            reason: reason.into(),
            message: String::new(),
            since: None,
            count: 1,
        }
    }

    fn by(
        condition: &Condition,
        severity: Severity,
        kind: &'static str,
        name: impl Into<String>,
    ) -> Self {
        Self {
            message: condition.message.clone(),
            since: Some(time::from_kubernetes(&condition.last_transition_time)),
            ..Self::new(severity, kind, name, &condition.reason)
        }
    }

    fn at(self, node: &str, pool: &str) -> Self {
        Self {
            node: Some(node.to_owned()),
            pool: Some(pool.to_owned()),
            ..self
        }
    }
}

/// Returns all issues of a cluster, most severe first.
pub fn all(cluster: &Cluster, now: DateTime<Utc>) -> Vec<Issue> {
    let mut all: Vec<Issue> = cluster.nodes.iter().flat_map(nodes::of_node).collect();
    let pools_with_issues: Vec<String> =
        all.iter().filter_map(|issue| issue.pool.clone()).collect();
    for pool in &cluster.pools {
        let is_consequence = pools_with_issues.contains(&pool.name_any());
        all.extend(of_pool(pool, is_consequence));
    }
    let volumes = cluster
        .volumes
        .iter()
        .flat_map(|volume| stored::of_volume(volume, now));
    let snapshots = cluster
        .snapshots
        .iter()
        .flat_map(|it| stored::of_stored(it, "PoolSnapshot", now));
    let bound_elsewhere = cluster
        .volumes
        .iter()
        .filter_map(|volume| moved::of_volume(volume, cluster, now));
    let moves = cluster.moves.iter();
    let moves = moves.filter_map(|object| moved::of_move(object, cluster, now));
    let unreadable = cluster.unreadable.iter().map(of_unreadable);
    let stored = volumes.chain(snapshots).chain(bound_elsewhere);
    let stored = stored.chain(moves).chain(unreadable);
    let claims = cluster.claims.iter();
    all.extend(gathered(&stored.collect::<Vec<_>>()));
    all.extend(claims.filter_map(|claim| claims::of_claim(claim, cluster, now)));
    all.sort_by(|a, b| (a.severity, b.since.is_some()).cmp(&(b.severity, a.since.is_some())));
    all
}

/// Returns the issues in the conditions of a pool. That it does not work is none if it is the consequence of one on
/// a node.
fn of_pool(pool: &StoragePool, is_consequence: bool) -> Vec<Issue> {
    let name = pool.name_any();
    let conditions = pool
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    let mut all = Vec::new();
    if !is_consequence {
        let by = |condition| Issue {
            pool: Some(name.clone()),
            ..Issue::by(condition, Severity::Error, "StoragePool", &name)
        };
        all.extend(not_true(conditions, &[ConditionType::Ready, ConditionType::Healthy]).map(by));
    }
    let by = |held| Issue::by(held, Severity::Warning, "StoragePool", &name);
    all.extend(held(conditions).map(by));
    all
}

/// Whether an object may still be pending.
fn is_new<K: Resource>(object: &K, now: DateTime<Utc>) -> bool {
    let created = object.meta().creation_timestamp.as_ref();
    created.is_some_and(|created| now - time::from_kubernetes(created) < GRACE_PERIOD)
}

fn of_unreadable(object: &Unreadable) -> Issue {
    Issue {
        message: object.to_string(),
        ..Issue::new(Severity::Error, object.kind, &object.name, "Unreadable")
    }
}

/// Returns the conditions of these types that are present and not True.
fn not_true<'a>(
    conditions: &'a [Condition],
    kinds: &'a [ConditionType],
) -> impl Iterator<Item = &'a Condition> {
    let found = kinds
        .iter()
        .filter_map(|kind| condition::find(conditions, *kind));
    let mut known: Vec<&str> = Vec::new();
    found.filter(move |condition| {
        // Ready and Healthy with the same reason are one issue.
        let is_new_reason = !known.contains(&condition.reason.as_str());
        known.push(&condition.reason);
        condition.status != ConditionStatus::True.as_str() && is_new_reason
    })
}

/// Returns the condition DeletionHeld, if it holds.
fn held(conditions: &[Condition]) -> Option<&Condition> {
    condition::holding(conditions, ConditionType::DeletionHeld)
}

/// Combines the issues of more than [`FEW`] objects into one, if kind, node, pool, reason and
/// severity are equal.
fn gathered(all: &[Issue]) -> Vec<Issue> {
    fn group(it: &Issue) -> impl Eq + Hash {
        (it.kind, &it.node, &it.pool, &it.reason, it.severity)
    }
    let mut counts = HashMap::new();
    for issue in all {
        *counts.entry(group(issue)).or_insert(0_usize) += 1;
    }
    let mut seen = HashSet::new();
    let each = all.iter().filter_map(|issue| {
        let count = counts.get(&group(issue)).copied().unwrap_or(1);
        if count <= FEW {
            return Some(issue.clone());
        }
        seen.insert(group(issue)).then(|| Issue {
            count,
            ..issue.clone()
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests;
