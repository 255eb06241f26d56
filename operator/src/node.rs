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

mod entries;
mod follow;
mod plan;
mod takeover;

use std::{cell::LazyCell, net::SocketAddr, ops::Deref, sync::Arc};

use cistern_client::writes::{delete_exactly, patch_guarded, remove_finalizer};
use cistern_crds::{StorageNode, StorageNodeSpec, StoragePool, names};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ObjectMeta, core::DeserializeGuard};
use serde_json::json;
use tokio::sync::Mutex;

use self::{
    plan::{finalizers, plan},
    takeover::Granted,
};
use crate::{
    Context,
    change::Change,
    contents::{Contents, Count},
    controller::{Controller, Next},
    creation, overcommit, pods,
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
                    node: name.clone(),
                    why: invalid.error.clone(),
                });
            }
        };
        let mut granted =
            storage_node.map_or_else(Granted::new, |it| takeover::granted(cluster, it));
        let following = match storage_node {
            Some(node) => follow::follow(context, node).await?,
            None => Granted::new(),
        };
        let mut granting_now = None;
        if let Some(storage_node) = storage_node.filter(|_| !granted.is_empty()) {
            granting_now = Some(self.granting.lock().await);
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
            let created = api.create(&creation::parameters(), &new(name, spec)).await;
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

#[cfg(test)]
mod tests;
