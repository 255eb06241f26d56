//! Topology registration: whether a node can be used, as conditions on its StorageNode.
//!
//! Where: CSINode and the Node's label (kubelet writes both when the driver registers) and the
//! readiness of the node plugin's pod. There are no heartbeats.
//!
//! *Invariant:* the conditions are the operator's, `status.pools` the agent's; neither writes the
//! other's part.

use std::time::Duration;

use chrono::{DateTime, Utc};
use cistern_client::writes::apply_status;
use cistern_crds::{
    Condition, ConditionStatus, ConditionType, Reason, StorageNode,
    condition::{self, Finding},
    names,
};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    storage::v1::CSINode,
};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::{
    Context, Stop,
    contents::Contents,
    controller::{self, Next},
    health,
    offer::{Refusal, offer},
    world::{Change, World},
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
        /// The API server's answer.
        #[source]
        source: kube::Error,
    },
}

/// Whether kubelet knows the driver on a node, and whether its agent is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// `TopologyRegistered`.
    pub topology: Finding,
    /// `AgentReporting`.
    pub agent: Finding,
}

/// Runs the controller until `stop`.
pub async fn run(context: &Context, stop: Stop) {
    let names = |change: &Change| match change {
        Change::Everything => {
            let nodes = context.world.storage_nodes.state();
            nodes.iter().map(|node| node.name_any()).collect()
        }
        Change::StorageNode(name)
        | Change::Node(name)
        | Change::Volume { node: name, .. }
        | Change::Snapshot { node: name, .. } => vec![name.clone()],
        Change::Pool(_) | Change::Class(_) | Change::Claim { .. } | Change::Capacity { .. } => {
            Vec::new()
        }
    };
    let reconcile = async |name: &String| reconcile(context, name).await;
    let schedule = controller::Schedule::at_once("topology");
    controller::run(
        schedule,
        &context.world,
        &context.metrics,
        stop,
        names,
        reconcile,
    )
    .await;
}

async fn reconcile(context: &Context, name: &str) -> Result<Next, Error> {
    let own_writes = &context.world.own_writes;
    let Ok(Some(guard)) = own_writes.read(|| context.world.storage_node(name)) else {
        return Ok(Next::OnChange);
    };
    // One that cannot be read is reported by the controller that owns its spec.
    let Ok(node) = &guard.0 else {
        return Ok(Next::OnChange);
    };
    let registration = observe(&context.world, name);
    let kept = context.world.kept_on(name);
    let current = node.status.clone().unwrap_or_default().conditions;
    let (conditions, wait) = summarize(node, &registration, &kept, (context.now)());
    // Time alone makes a silent agent one that nobody hears of.
    let next = wait.map_or(Next::OnChange, Next::After);
    if conditions == current {
        return Ok(next);
    }
    let api = Api::<StorageNode>::all(context.client.clone());
    let status = json!({"conditions": own(conditions)});
    match apply_status(&api, name, names::OPERATOR_MANAGER, &status).await {
        Ok(written) => {
            own_writes.wrote::<StorageNode, _>(&written, || context.world.storage_node(name));
            Ok(next)
        }
        Err(source) => Err(Error::Write {
            node: name.to_owned(),
            source,
        }),
    }
}

/// The conditions that the operator writes. Of a condition that somebody else has added nothing is
/// applied, so that it stays that manager's.
fn own(mut conditions: Vec<Condition>) -> Vec<Condition> {
    conditions.retain(|condition| OWN.iter().any(|kind| kind.as_str() == condition.type_));
    conditions
}

/// Looks at everything that tells of a node's registration.
pub fn observe(world: &World, name: &str) -> Registration {
    let node = world.node(name);
    Registration {
        topology: topology(name, node.as_deref(), world.csi_node(name).as_deref()),
        agent: agent(name, world.agents_on(name).iter().map(AsRef::as_ref)),
    }
}

/// `TopologyRegistered`: CSINode lists our driver with our key, and the label has our value.
fn topology(name: &str, node: Option<&Node>, csi_node: Option<&CSINode>) -> Finding {
    let finding = |holds: bool, reason, message: String| {
        Finding::new(ConditionType::TopologyRegistered, holds, reason, message)
    };
    let Some(node) = node else {
        let message = format!("there is no Node {name}");
        return finding(false, Reason::NodeMissing, message);
    };
    let registered = csi_node.is_some_and(|csi_node| {
        csi_node.spec.drivers.iter().any(|driver| {
            let keys = driver.topology_keys.as_deref().unwrap_or_default();
            driver.name == names::DRIVER && keys.iter().any(|key| key == names::TOPOLOGY_KEY)
        })
    });
    if !registered {
        let message = format!(
            "kubelet on {name} has not registered the driver {}: look at the node plugin's pod there",
            names::DRIVER
        );
        return finding(false, Reason::DriverNotRegistered, message);
    }
    let (key, value) = (names::TOPOLOGY_KEY, names::topology_value(name));
    match node.labels().get(key) {
        Some(label) if *label == value => {
            let message = format!("CSINode and the Node show {key}={value}");
            finding(true, Reason::AsDesired, message)
        }
        Some(label) => {
            let message = format!(
                "label {key} of Node {name} is {label} and not {value}: remove it and restart the node plugin's pod there"
            );
            finding(false, Reason::LabelMissing, message)
        }
        None => {
            let message = format!(
                "label {key} of Node {name} is missing: restart the node plugin's pod there"
            );
            finding(false, Reason::LabelMissing, message)
        }
    }
}

/// `AgentReporting`: the node plugin's pod is ready.
fn agent<'a>(name: &str, pods: impl Iterator<Item = &'a Pod>) -> Finding {
    let finding = |holds: bool, reason, message: String| {
        Finding::new(ConditionType::AgentReporting, holds, reason, message)
    };
    let mut waiting = None;
    for pod in pods {
        if is_ready(pod) {
            let message = format!("pod {} is ready", pod.name_any());
            return finding(true, Reason::AsDesired, message);
        }
        waiting = Some(pod.name_any());
    }
    if let Some(pod) = waiting {
        let message = format!("pod {pod} on {name} is not ready");
        return finding(false, Reason::AgentNotReady, message);
    }
    let message = format!(
        "no pod of the node plugin runs on {name}: look at the DaemonSet's selector and tolerations"
    );
    finding(false, Reason::AgentMissing, message)
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions
            .unwrap_or_default()
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// All conditions of a StorageNode as they should be, and when to look again if time alone changes them.
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
fn ready(node: &StorageNode, registration: &Registration, kept: &Contents) -> Finding {
    let finding = |holds: bool, reason, message: String| {
        Finding::new(ConditionType::Ready, holds, reason, message)
    };
    if registration.topology.reason == Reason::NodeMissing {
        return finding(false, Reason::NodeGone, left_behind(node, kept));
    }
    for part in [&registration.topology, &registration.agent] {
        if part.status != ConditionStatus::True {
            return finding(false, part.reason, part.message.clone());
        }
    }
    let refused: Vec<Refusal> = node
        .spec
        .pools
        .iter()
        .filter_map(|pool| offer(&pool.name, Some(node), registration).err())
        .collect();
    match refused.first() {
        None => {
            let message = match node.spec.pools.len() {
                0 => "the node carries no pool".to_owned(),
                1 => "its pool is ready".to_owned(),
                count => format!("all {count} pools are ready"),
            };
            finding(true, Reason::AsDesired, message)
        }
        Some(first) => {
            let messages: Vec<&str> = refused.iter().map(|r| r.message.as_str()).collect();
            finding(false, first.reason, messages.join("; "))
        }
    }
}

/// `DeletionHeld`: somebody deleted the object, and this is what keeps it.
fn deletion(node: &StorageNode, registration: &Registration) -> Finding {
    let finding = |holds: bool, reason, message: String| {
        Finding::new(ConditionType::DeletionHeld, holds, reason, message)
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
        "the node carries pools ({}): take it out of their node selectors, and delete the claims and VolumeSnapshots that remain",
        pools.join(", ")
    );
    finding(true, Reason::VolumesRemain, message)
}

/// What remains of a node that is gone, and what to do about it.
fn left_behind(node: &StorageNode, kept: &Contents) -> String {
    let name = node.name_any();
    if kept.is_empty() {
        return format!(
            "Node {name} is gone and no volume or snapshot is left on it: this object goes by itself"
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
