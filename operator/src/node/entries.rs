//! The pools in the spec of a StorageNode. Pure.

use std::collections::BTreeMap;

use cistern_crds::{NodePool, NodePoolStatus, StoragePool, bounds, names};
use kube::{
    Resource as _, ResourceExt as _,
    core::{DeserializeGuard, SelectorExt as _},
};

use super::View;
use crate::{overcommit::Overcommit, pool::declaration::declared};

/// The pools that the node is to carry, by name.
pub(super) fn carried(view: &View<'_>) -> Vec<NodePool> {
    let current = view.storage_node.map(|node| node.spec.pools.as_slice());
    let current: BTreeMap<&str, &NodePool> = current
        .unwrap_or_default()
        .iter()
        .map(|entry| (entry.name.as_str(), entry))
        .collect();
    let (mut carried, mut additional) = (BTreeMap::new(), Vec::new());
    for guard in view.pools {
        let name = guard.name_any();
        let before = current.get(name.as_str()).copied();
        match entry_for(view, guard, before) {
            Some(entry) if before.is_none() => additional.push((name, entry)),
            Some(entry) => _ = carried.insert(name, entry),
            None => {}
        }
    }
    for (name, entry) in current {
        // Its StoragePool is gone, though the finalizer should have held it.
        let declared = view.pools.iter().any(|pool| pool.name_any() == name);
        if !declared && (is_held(view, name, &entry.uid) || !is_answered(view, entry)) {
            carried.insert(name.to_owned(), retire(view, entry.clone()));
        }
    }
    let room = bounds::POOLS.saturating_sub(carried.len());
    if additional.len() > room {
        // After a restore of the cluster, a pool with volumes or snapshots has no entry either.
        additional.sort_by_key(|(name, _)| view.kept.at(name).is_zero());
        additional.truncate(room);
    }
    carried.extend(additional);
    carried.into_values().collect()
}

/// The entry of one declared pool on the node, given the existing entry with its name.
fn entry_for(
    view: &View<'_>,
    guard: &DeserializeGuard<StoragePool>,
    current: Option<&NodePool>,
) -> Option<NodePool> {
    // An invalid StoragePool changes nothing.
    let Ok((pool, selector)) = declared(guard) else {
        return current.cloned();
    };
    let uid = pool.uid().unwrap_or_default();
    if let Some(earlier) = current.filter(|entry| entry.uid != uid) {
        // An earlier pool of the same name keeps its entry until the agent has removed it. A pool
        // with volumes or snapshots cannot be an earlier one: it is this pool, from before the
        // cluster was restored, and the agent adopts it.
        let is_this = !view.kept.at(&pool.name_any()).is_zero();
        if !is_this && (reports(view, &earlier.uid) || !is_answered(view, earlier)) {
            return Some(retire(view, earlier.clone()));
        }
    }
    let current = current.filter(|entry| entry.uid == uid);
    let fresh = || NodePool {
        name: pool.name_any(),
        uid: uid.clone(),
        source: pool.spec.source.clone(),
        overcommit_percent: Overcommit::of(pool, || (view.thick_in)(&pool.name_any())).in_force(),
        reserved_percent: pool.spec.reserved_percent,
        limits: pool.spec.limits.clone(),
        reclaim_orphans_after_hours: pool.spec.reclaim_orphans_after_hours,
        cordoned: pool
            .spec
            .cordoned_nodes
            .iter()
            .any(|node| node == view.name),
        replaced_disks: pool.spec.replaced_on(view.name),
        retiring: false,
        take_over: view.granted.get(&uid).cloned(),
    };
    let no_labels = BTreeMap::new();
    let matches = view
        .node
        .is_some_and(|node| selector.matches(node.metadata.labels.as_ref().unwrap_or(&no_labels)));
    // A pool is assigned to nodes only once the operator's finalizer protects it from deletion.
    let kept = pool
        .finalizers()
        .iter()
        .any(|name| name == names::FINALIZER);
    if matches && kept && pool.meta().deletion_timestamp.is_none() {
        let entry = fresh();
        // The pool comes back once the agent no longer reports the filesystem of the former disk.
        return Some(match reported_filesystem(view, &uid) {
            Some(filesystem) if pool.spec.is_replaced(filesystem) => retire(view, entry),
            Some(_) | None => entry,
        });
    }
    let unanswered = current.is_some_and(|entry| !is_answered(view, entry));
    (unanswered || is_held(view, &pool.name_any(), &uid))
        .then(|| retire(view, current.cloned().unwrap_or_else(fresh)))
}

/// The entry of a pool that the node should not carry. It does not become retiring if the Node is
/// gone, because no agent could act on it.
fn retire(view: &View<'_>, entry: NodePool) -> NodePool {
    NodePool {
        retiring: entry.retiring || view.node.is_some(),
        take_over: None,
        ..entry
    }
}

/// Whether the agent has observed the retirement, or no agent could be creating the pool.
fn is_answered(view: &View<'_>, entry: &NodePool) -> bool {
    if view.node.is_none() || !view.agent {
        return true;
    }
    let answer = view.storage_node.and_then(|node| {
        let observed = node.status.as_ref()?.observed_generation?;
        Some(Some(observed) == node.metadata.generation)
    });
    entry.retiring && answer == Some(true)
}

/// Whether the node still holds a part of the pool. If the Node is gone, only volumes and snapshots
/// count, because no agent could remove an empty pool.
fn is_held(view: &View<'_>, name: &str, uid: &str) -> bool {
    (view.node.is_some() && reports(view, uid)) || view.kept.may_be_at(name)
}

/// Whether the agent reports a pool of this UID.
fn reports(view: &View<'_>, uid: &str) -> bool {
    reported(view, uid).is_some()
}

/// The filesystem that the agent reports of a pool.
fn reported_filesystem<'a>(view: &View<'a>, uid: &str) -> Option<&'a str> {
    reported(view, uid)?.filesystem_uuid.as_deref()
}

fn reported<'a>(view: &View<'a>, uid: &str) -> Option<&'a NodePoolStatus> {
    let status = view.storage_node.and_then(|node| node.status.as_ref())?;
    status.pools.iter().find(|pool| pool.uid == uid)
}
