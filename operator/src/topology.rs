//! Topology registration: whether a node can be used, as conditions on its StorageNode.
//!
//! Sources are CSINode and the Node's label, which kubelet writes when the driver registers, and
//! the readiness of the node plugin's pod. There are no heartbeats.
//!
//! *Invariant:* only the operator writes the conditions, and only the agent writes `status.pools`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use cistern_client::writes::apply_status;
use cistern_crds::{
    Condition, ConditionStatus, ConditionType, Explanation, Reason, StorageNode,
    availability::available_pool,
    condition::{self, ConditionUpdate},
    names,
};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::{
    Context,
    change::Change,
    contents::Contents,
    controller::{Controller, Next},
    health,
    registration::{self, Registration},
};

/// The conditions of a StorageNode that the operator owns.
const OWN: [ConditionType; 5] = [
    ConditionType::Ready,
    ConditionType::Healthy,
    ConditionType::TopologyRegistered,
    ConditionType::AgentReporting,
    ConditionType::DeletionHeld,
];

/// Why a StorageNode's conditions are not up to date.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused the write.
    #[error("cannot write the conditions of StorageNode {node}")]
    Write {
        /// Name of the StorageNode.
        node: String,
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
}

/// Keeps the conditions of the StorageNodes up to date.
#[derive(Debug)]
pub struct TopologyController;

impl Controller for TopologyController {
    type Key = String;
    type Error = Error;
    const NAME: &'static str = "topology";

    fn keys(&self, context: &Context, change: &Change) -> Vec<String> {
        match change {
            Change::Everything => context.cluster.storage_nodes.keys(|_| true),
            Change::StorageNode(name)
            | Change::Node(name)
            | Change::Volume { node: name, .. }
            | Change::Snapshot { node: name, .. } => vec![name.clone()],
            Change::Pool(_)
            | Change::PoolStatus(_)
            | Change::Class(_)
            | Change::Replica(_)
            | Change::Move(_)
            | Change::Transfer(_)
            | Change::AttributesClass(_)
            | Change::Claim { .. }
            | Change::Owner
            | Change::Capacity { .. } => Vec::new(),
        }
    }

    async fn reconcile(&self, context: &Context, name: &String) -> Result<Next, Error> {
        let _lock = context.storage_node_locks.lock(name).await;
        let own_writes = &context.cluster.own_writes;
        let Ok(Some(guard)) = own_writes.read(|| context.cluster.storage_node(name)) else {
            return Ok(Next::OnChange);
        };
        // The controller that owns its spec reports an object that cannot be read.
        let Ok(node) = &guard.0 else {
            return Ok(Next::OnChange);
        };
        let registration = registration::observe(&context.cluster, name);
        let kept = context.cluster.contents_on(name);
        let current = node.status.clone().unwrap_or_default().conditions;
        let (conditions, wait) = summarize(node, &registration, &kept, (context.now)());
        // Time alone makes the health of a node with a silent agent unknown.
        let next = wait.map_or(Next::OnChange, Next::After);
        if conditions == current {
            return Ok(next);
        }
        let api = Api::<StorageNode>::all(context.client.clone());
        let status = json!({"conditions": own(conditions)});
        match apply_status(&api, name, names::OPERATOR_MANAGER, &status).await {
            Ok(written) => {
                own_writes.wrote::<StorageNode, _>(&written, || context.cluster.storage_node(name));
                Ok(next)
            }
            Err(source) => Err(Error::Write {
                node: name.clone(),
                source,
            }),
        }
    }
}

/// The conditions that the operator writes. A condition that another manager has added is
/// not applied, so that manager keeps it.
fn own(mut conditions: Vec<Condition>) -> Vec<Condition> {
    conditions.retain(|condition| OWN.iter().any(|kind| kind.as_str() == condition.type_));
    conditions
}

/// Desired conditions of a StorageNode, and when to reconcile again if time alone changes them.
fn summarize(
    node: &StorageNode,
    registration: &Registration,
    kept: &Contents,
    now: DateTime<Utc>,
) -> (Vec<Condition>, Option<Duration>) {
    let mut conditions = node.status.clone().unwrap_or_default().conditions;
    let generation = node.metadata.generation;
    for finding in [
        ready(node, registration, kept),
        registration.topology.clone(),
        registration.agent.clone(),
        deletion(node, registration),
    ] {
        condition::set(&mut conditions, &finding, generation, now);
    }
    let (healthy, wait) = health::summary::of_node(node, &conditions, registration, now);
    condition::set(&mut conditions, &healthy, generation, now);
    (conditions, wait.and_then(|wait| wait.to_std().ok()))
}

/// `Ready`: registered, reporting, and every pool of the spec can be used.
fn ready(node: &StorageNode, registration: &Registration, kept: &Contents) -> ConditionUpdate {
    let finding = |holds: bool, reason, message: String| {
        ConditionUpdate::new(ConditionType::Ready, holds, reason, message)
    };
    if registration.topology.reason == Reason::NodeMissing {
        return finding(false, Reason::NodeGone, left_behind(node, kept));
    }
    let parts = registration.parts();
    for part in parts {
        if part.status != ConditionStatus::True {
            return finding(false, part.reason, part.message.clone());
        }
    }
    let refused: Vec<Explanation> = node
        .spec
        .pools
        .iter()
        .filter_map(|pool| available_pool(&pool.name, Some(node), &parts).err())
        .collect();
    match refused.first() {
        None => {
            let message = match node.spec.pools.len() {
                0 => "the node carries no pool".to_owned(),
                1 => "its pool is ready".to_owned(),
                count => format!("all {count} pools are ready"),
            };
            finding(true, Reason::Reconciled, message)
        }
        Some(first) => {
            let messages: Vec<&str> = refused.iter().map(|r| r.message.as_str()).collect();
            finding(false, first.reason, messages.join("; "))
        }
    }
}

/// `DeletionHeld`: the object is being deleted, and the message says what blocks it.
fn deletion(node: &StorageNode, registration: &Registration) -> ConditionUpdate {
    let finding = |holds: bool, reason, message: String| {
        ConditionUpdate::new(ConditionType::DeletionHeld, holds, reason, message)
    };
    if node.metadata.deletion_timestamp.is_none() {
        let message = "the object is not being deleted";
        return finding(false, Reason::NotDeleting, message.to_owned());
    }
    if registration.topology.reason == Reason::NodeMissing {
        let name = node.name_any();
        let message = format!(
            "volumes or snapshots are left on Node {name}, which is gone: kubectl cistern forget-node {name}"
        );
        return finding(true, Reason::VolumesRemain, message);
    }
    let pools: Vec<&str> = node
        .spec
        .pools
        .iter()
        .map(|pool| pool.name.as_str())
        .collect();
    let message = format!(
        "the node carries pools ({}): take it out of their node selectors, and delete the claims and VolumeSnapshots \
         that remain",
        pools.join(", ")
    );
    finding(true, Reason::VolumesRemain, message)
}

/// Message about the contents of a node that is gone, with the remedy.
fn left_behind(node: &StorageNode, kept: &Contents) -> String {
    let name = node.name_any();
    if kept.is_empty() {
        return format!(
            "Node {name} is gone and no volume or snapshot is left on it: this object is deleted automatically"
        );
    }
    let mut places: Vec<String> = kept
        .places
        .iter()
        .map(|(pool, count)| format!("{count} in pool {pool}"))
        .collect();
    if !kept.unreadable.is_zero() {
        places.push(format!("{} that cannot be read", kept.unreadable));
    }
    format!(
        "Node {name} is gone with data ({}), which is kept for its return; if it does not come back: \
         kubectl cistern forget-node {name}",
        places.join(", ")
    )
}

#[cfg(test)]
mod tests;
