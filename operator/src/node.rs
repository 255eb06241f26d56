//! Assigns pools to nodes: writes each StorageNode's spec, and creates and deletes the object.
//!
//! ```text
//!                    no longer matches, the pool is being deleted, or its disk is replaced
//!  selector matches ─▶ carried ────────────────────────────────────────────────▶ retiring
//!                      ▲                                                           │
//!                      └── matches again, or the agent's status lacks that disk ──┤
//!       the agent's answer to "retiring" lacks it, and nothing kept: dropped ◀─────┘
//! ```
//!
//! Each Node with an agent has a StorageNode, so that the agent can report the disks. Its first pool adds
//! the finalizer.
//!
//! *Invariant:* an entry is dropped only when neither the agent's status nor a PoolVolume or
//! PoolSnapshot refers to it, and the agent has observed that it is retiring: until then, the agent
//! may be creating the pool. The API server rejects the write that drops it if the agent has
//! written meanwhile. A pool whose spec cannot be read changes nothing. A StorageNode is never
//! removed while its Node exists. A pool that would exceed the maximum number of a node waits until another
//! has left it. Once the Node is gone, only PoolVolumes and PoolSnapshots keep
//! it: its marker identifies an empty pool that comes back.

mod follow;
mod takeover;

use std::{cell::LazyCell, collections::BTreeMap, net::SocketAddr, ops::Deref, sync::Arc};

use cistern_client::writes::{delete_exactly, patch_guarded, remove_finalizer};
use cistern_crds::{
    NodePool, NodePoolStatus, StorageNode, StorageNodeSpec, StoragePool, bounds, names,
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ObjectMeta, PostParams},
    core::{DeserializeGuard, SelectorExt as _},
};
use serde_json::json;
use tokio::sync::Mutex;

use self::takeover::Granted;
use crate::{
    Context,
    change::Change,
    contents::{Contents, Count},
    controller::{Controller, Next},
    overcommit::{self, Overcommit},
    pods,
    pool::declaration::declared,
};

/// Why a StorageNode's spec is not up to date.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a write.
    #[error("cannot {verb} StorageNode {node}")]
    Write {
        /// The attempted action, as a verb.
        verb: &'static str,
        /// Name of the StorageNode.
        node: String,
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
    /// The StorageNodes cannot be listed.
    #[error("cannot list the StorageNodes")]
    List {
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
    /// The objects in a pool that the node has taken over do not follow.
    #[error(transparent)]
    Follow(#[from] follow::Error),
    /// The object cannot be decoded as a StorageNode.
    #[error("StorageNode {node} cannot be read ({why}): correct it by hand")]
    Unreadable {
        /// Name of the StorageNode.
        node: String,
        /// The message of the decoder.
        why: String,
    },
}

/// Action that reconciles one node.
#[derive(Clone, Debug, PartialEq)]
enum StorageNodeAction {
    /// Nothing changes.
    Keep,
    /// There is no StorageNode yet, and the node has an agent or is to carry a pool.
    Create(StorageNodeSpec),
    /// The spec or the finalizer is to change.
    Write(StorageNodeSpec),
    /// The Node is gone and nothing is left.
    Delete,
    /// The object is being deleted and nothing is left.
    Release,
}

/// Inputs of the decision about one node.
struct View<'a> {
    name: &'a str,
    node: Option<&'a Node>,
    storage_node: Option<&'a StorageNode>,
    pools: &'a [Arc<DeserializeGuard<StoragePool>>],
    /// Whether an agent runs that may be creating the pools of the spec.
    agent: bool,
    /// Where the agent sends snapshots from; None while it has no address.
    endpoint: Option<SocketAddr>,
    /// Volumes and snapshots on the node by pool, counted only when read.
    kept: &'a dyn Deref<Target = Contents>,
    /// The pools that the node may take over.
    granted: &'a Granted,
    /// Counts the objects of a pool on all nodes that are or may be thick.
    thick_in: &'a dyn Fn(&str) -> Count,
}

/// Keeps the specs of the StorageNodes up to date.
#[derive(Debug, Default)]
pub struct NodeController {
    /// Held while a takeover is granted, so that no two nodes are granted the same pool.
    granting: Mutex<()>,
}

impl Controller for NodeController {
    type Key = String;
    type Error = Error;
    const NAME: &'static str = "node";

    fn keys(&self, context: &Context, change: &Change) -> Vec<String> {
        let cluster = &context.cluster;
        match change {
            Change::Everything | Change::Pool(_) => cluster.node_names(),
            Change::StorageNode(name) | Change::Node(name) => {
                let mut names = takeover::waiting(cluster);
                names.push(name.clone());
                names
            }
            Change::Volume { pool, node, .. } | Change::Snapshot { pool, node, .. } => {
                let mut names = overcommit::outdated(cluster, pool);
                names.push(node.clone());
                names
            }
            Change::PoolStatus(_)
            | Change::Replica(_)
            | Change::Move(_)
            | Change::Transfer(_)
            | Change::Class(_)
            | Change::AttributesClass(_)
            | Change::Claim { .. }
            | Change::Owner
            | Change::Capacity { .. } => Vec::new(),
        }
    }

    async fn reconcile(&self, context: &Context, name: &String) -> Result<Next, Error> {
        reconcile(context, &self.granting, name).await
    }
}

/// `granting` is held while a takeover is granted, so that no two nodes are granted the same pool.
async fn reconcile(context: &Context, granting: &Mutex<()>, name: &str) -> Result<Next, Error> {
    let _lock = context.storage_node_locks.lock(name).await;
    let cluster = &context.cluster;
    let copy = || cluster.storage_node(name);
    let Ok(guard) = cluster.own_writes.read_or_created(None, name, copy) else {
        return Ok(Next::OnChange);
    };
    let storage_node = match guard.as_deref().map(|guard| &guard.0) {
        None => None,
        Some(Ok(node)) => Some(node),
        Some(Err(invalid)) => {
            return Err(Error::Unreadable {
                node: name.to_owned(),
                why: invalid.error.clone(),
            });
        }
    };
    let mut granted = storage_node.map_or_else(Granted::new, |it| takeover::granted(cluster, it));
    let following = match storage_node {
        Some(node) => follow::follow(context, node).await?,
        None => Granted::new(),
    };
    let mut granting_now = None;
    if let Some(storage_node) = storage_node.filter(|_| !granted.is_empty()) {
        granting_now = Some(granting.lock().await);
        granted = takeover::without_contested(context, storage_node, granted)
            .await
            .map_err(|source| Error::List { source })?;
    }
    let next = if following.is_empty() {
        Next::OnChange
    } else {
        Next::After(follow::AGAIN)
    };
    granted.extend(following);
    let agents = cluster.agents_on(name);
    let action = plan(&View {
        name,
        granted: &granted,
        node: cluster.node(name).as_deref(),
        storage_node,
        pools: &cluster.pools_by_name(),
        agent: !agents.is_empty(),
        endpoint: agents.iter().find_map(|agent| pods::endpoint(agent)),
        kept: &LazyCell::new(|| cluster.contents_on(name)),
        thick_in: &|pool| cluster.thick_in(pool),
    });
    execute(context, name, storage_node, action).await?;
    drop(granting_now);
    Ok(next)
}

async fn execute(
    context: &Context,
    name: &str,
    seen: Option<&StorageNode>,
    action: StorageNodeAction,
) -> Result<(), Error> {
    let cluster = &context.cluster;
    let api = Api::<StorageNode>::all(context.client.clone());
    let wrote = |written| {
        cluster
            .own_writes
            .wrote(&written, || cluster.storage_node(name));
    };
    let (verb, result) = match (action, seen) {
        (StorageNodeAction::Create(spec), _) => {
            let parameters = PostParams {
                field_manager: Some(names::OPERATOR_MANAGER.to_owned()),
                ..PostParams::default()
            };
            let created = api.create(&parameters, &new(name, spec)).await;
            let own_writes = &cluster.own_writes;
            let created = created.map(|it| own_writes.created(&it, || cluster.storage_node(name)));
            ("create", created)
        }
        (StorageNodeAction::Write(spec), Some(seen)) => {
            let finalizers = finalizers(Some(seen), &spec);
            let change = json!({"metadata": {"finalizers": finalizers}, "spec": spec});
            let written = patch_guarded(&api, seen, names::OPERATOR_MANAGER, change).await;
            ("update", written.map(wrote))
        }
        (StorageNodeAction::Delete, Some(seen)) => {
            // The finalizer is removed after the watch has delivered the deletion as a change.
            let left = delete_exactly(&api, seen).await;
            ("delete", left.map(|left| left.into_iter().for_each(wrote)))
        }
        (StorageNodeAction::Release, Some(seen)) => {
            let manager = names::OPERATOR_MANAGER;
            let released = remove_finalizer(&api, seen, manager, names::FINALIZER).await;
            ("release", released)
        }
        (
            StorageNodeAction::Keep
            | StorageNodeAction::Write(_)
            | StorageNodeAction::Delete
            | StorageNodeAction::Release,
            _,
        ) => return Ok(()),
    };
    match result {
        Ok(()) => {
            tracing::info!(node = name, "{verb}d the StorageNode");
            Ok(())
        }
        Err(source) => Err(Error::Write {
            verb,
            node: name.to_owned(),
            source,
        }),
    }
}

fn new(name: &str, spec: StorageNodeSpec) -> StorageNode {
    StorageNode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            finalizers: Some(finalizers(None, &spec)),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// The finalizers that a StorageNode is to have. One without pools needs none: nothing is lost with it.
fn finalizers(current: Option<&StorageNode>, spec: &StorageNodeSpec) -> Vec<String> {
    let present = current.map(kube::ResourceExt::finalizers);
    let mut finalizers = present.unwrap_or_default().to_vec();
    let is_held = finalizers.iter().any(|name| name == names::FINALIZER);
    // The API server refuses to add one to an object that is being deleted.
    if !is_held && !spec.pools.is_empty() && !current.is_some_and(is_deleted) {
        finalizers.push(names::FINALIZER.to_owned());
    }
    finalizers
}

/// Computes the action for one node.
fn plan(view: &View<'_>) -> StorageNodeAction {
    let spec = StorageNodeSpec {
        topology: [(
            names::TOPOLOGY_KEY.to_owned(),
            names::topology_value(view.name),
        )]
        .into(),
        machine_id: machine_id(view),
        transfer_endpoint: transfer_endpoint(view),
        pools: carried(view),
    };
    let Some(current) = view.storage_node else {
        let has_agent = view.node.is_some() && view.agent;
        return if has_agent || !spec.pools.is_empty() {
            StorageNodeAction::Create(spec)
        } else {
            StorageNodeAction::Keep
        };
    };
    let released = is_deleted(current) && is_given_up(view, current, &spec);
    if released {
        return StorageNodeAction::Release;
    }
    if view.node.is_none() && spec.pools.is_empty() && view.kept.is_empty() {
        return StorageNodeAction::Delete;
    }
    if current.spec == spec && current.finalizers() == finalizers(Some(current), &spec) {
        StorageNodeAction::Keep
    } else {
        StorageNodeAction::Write(spec)
    }
}

/// Whether the finalizer of a deleted StorageNode may be removed. If the Node is gone, the deletion
/// gives up its disks, but no volumes or snapshots.
fn is_given_up(view: &View<'_>, current: &StorageNode, desired: &StorageNodeSpec) -> bool {
    let empty = desired.pools.is_empty() && !current.has_pools();
    (empty || view.node.is_none()) && view.kept.is_empty()
}

/// The machine id that the Node reports, or the last one that it reported.
fn machine_id(view: &View<'_>) -> Option<String> {
    let info = view
        .node
        .and_then(|node| node.status.as_ref()?.node_info.as_ref());
    let reported = info.map(|info| info.machine_id.clone());
    // An id that the schema rejects identifies no machine.
    let reported = reported.filter(|id| !id.is_empty() && id.len() <= 64);
    reported.or_else(|| view.storage_node?.spec.machine_id.clone())
}

/// The address of the agent, or the last one that it had: a restart is no reason for two writes.
fn transfer_endpoint(view: &View<'_>) -> Option<String> {
    let present = view.endpoint.map(|endpoint| endpoint.to_string());
    present.or_else(|| view.storage_node?.spec.transfer_endpoint.clone())
}

/// The pools that the node is to carry, by name.
fn carried(view: &View<'_>) -> Vec<NodePool> {
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

fn is_deleted(node: &StorageNode) -> bool {
    node.metadata.deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests;
