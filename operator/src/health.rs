//! Health, told to people: on the claim of a volume that something is wrong with and on the pods that
//! use it, and on the StoragePool and the StorageNode of a pool. Once when it comes, with what to do,
//! and once when all of it has gone.
//!
//! What is told already is known to this process, and to the API server by the names of the events
//! ([`crate::events`]). It keeps them for an hour; so after a start nothing is told that is older than
//! that, because an earlier operator told it and the event is forgotten. What still lasts stands in the
//! conditions. The one thing that is lost is a recovery while no operator runs.
//!
//! *Invariant:* only changes are told, never what is as it was.

mod news;
pub mod summary;

use cistern_crds::{ConditionType, NodePoolStatus, PoolVolume, StorageNode, condition, time};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{
    Api, Resource as _, ResourceExt as _, api::ListParams, core::DeserializeGuard,
    runtime::reflector::ObjectRef,
};

use self::news::{Kind, Told, Trouble};
use crate::{
    Context, Stop, claims,
    controller::{self, Next},
    events::{self, tell_once},
    world::{Change, World},
};

/// Why nobody could be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused an event.
    #[error(transparent)]
    Event(#[from] events::Error),
    /// The API server did not say which pods use a volume.
    #[error("cannot list the pods on node {node} in namespace {namespace}")]
    Pods {
        /// The node of the volume.
        node: String,
        /// The namespace of its claim.
        namespace: String,
        /// The API server's answer.
        #[source]
        source: kube::Error,
    },
}

/// Whose health is told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Subject {
    /// A volume, by the name of its PoolVolume.
    Volume(String),
    /// A pool on a node.
    Pool { node: String, pool: String },
    /// The agent of a node.
    Agent(String),
}

/// A subject as it is now.
#[derive(Debug)]
struct Seen {
    /// What people call it.
    name: String,
    /// The node that it is on.
    node: String,
    /// The object that is told of; none where it is not known any more.
    regarding: Option<ObjectReference>,
    troubles: Vec<Trouble>,
}

/// Runs the controller until `stop`.
pub async fn run(context: &Context, stop: Stop) {
    let told = Told::new((context.now)());
    let subjects = |change: &Change| concerned(&context.world, &told, change);
    let reconcile = async |subject: &Subject| reconcile(context, &told, subject).await;
    let schedule = controller::Schedule::at_once("health");
    let Context { world, metrics, .. } = context;
    controller::run(schedule, world, metrics, stop, subjects, reconcile).await;
}

async fn reconcile(context: &Context, told: &Told, subject: &Subject) -> Result<Next, Error> {
    let Some(seen) = look(&context.world, subject) else {
        told.forget(subject);
        return Ok(Next::OnChange);
    };
    // Of a volume that is well again the claim is not kept.
    let Some(regarding) = seen.regarding.or_else(|| told.regarding(subject)) else {
        return Ok(Next::OnChange);
    };
    let news = told.news(subject, &seen.name, &seen.troubles);
    if !news.is_empty() {
        let listeners = listeners(context, subject, &seen.node, &regarding).await?;
        for listener in &listeners {
            for telling in &news {
                tell_once(context, listener, telling).await?;
            }
        }
    }
    told.mark(subject, &seen.troubles, regarding);
    Ok(Next::OnChange)
}

/// Every object that is told of it.
async fn listeners(
    context: &Context,
    subject: &Subject,
    node: &str,
    regarding: &ObjectReference,
) -> Result<Vec<ObjectReference>, Error> {
    let mut listeners = vec![regarding.clone()];
    match subject {
        Subject::Volume(_) => {
            let namespace = regarding.namespace.clone().unwrap_or_default();
            let pods = Api::<Pod>::namespaced(context.client.clone(), &namespace);
            // Few are on one node, and the API server has them in memory.
            let on_node = ListParams::default()
                .fields(&format!("spec.nodeName={node}"))
                .match_any();
            let pods = pods.list(&on_node).await.map_err(|source| Error::Pods {
                node: node.to_owned(),
                namespace,
                source,
            })?;
            let claim = regarding.name.as_deref().unwrap_or_default();
            let users = pods.items.iter().filter(|pod| uses(pod, claim));
            listeners.extend(users.map(|pod| pod.object_ref(&())));
        }
        Subject::Pool { pool, .. } => {
            let pool = context.world.pool(pool);
            listeners.extend(pool.map(|pool| pool.object_ref(&())));
        }
        Subject::Agent(_) => {}
    }
    Ok(listeners)
}

/// Whether a pod uses a claim and has not ended.
fn uses(pod: &Pod, claim: &str) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mut volumes = volumes.into_iter().flatten();
    let names_it = volumes.any(|volume| match &volume.persistent_volume_claim {
        Some(source) => source.claim_name == claim,
        // The claim of a generic ephemeral volume has this name.
        None => {
            volume.ephemeral.is_some() && claim == format!("{}-{}", pod.name_any(), volume.name)
        }
    });
    names_it && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// The subject as it is now; none where it is gone, or cannot be read.
fn look(world: &World, subject: &Subject) -> Option<Seen> {
    match subject {
        Subject::Volume(name) => {
            let guard = world.volumes.get(&ObjectRef::new(name))?;
            let volume = guard.0.as_ref().ok()?;
            let node = &volume.spec.node_name;
            let problems = volume.status.iter().flat_map(|status| &status.problems);
            let troubles = problems.map(Trouble::from).chain(check(volume));
            Some(Seen {
                name: format!("volume {name} on node {node}"),
                node: node.clone(),
                regarding: claims::of_volume(volume),
                troubles: troubles.collect(),
            })
        }
        Subject::Pool { node, pool } => {
            let guard = world.storage_node(node)?;
            let storage_node = guard.0.as_ref().ok()?;
            let status = pools(storage_node).find(|status| status.name == *pool)?;
            Some(Seen {
                name: format!("pool {pool} on node {node}"),
                node: node.clone(),
                regarding: Some(storage_node.object_ref(&())),
                troubles: status.problems.iter().map(Trouble::from).collect(),
            })
        }
        Subject::Agent(node) => {
            let guard = world.storage_node(node)?;
            let storage_node = guard.0.as_ref().ok()?;
            Some(Seen {
                name: format!("node {node}"),
                node: node.clone(),
                regarding: Some(storage_node.object_ref(&())),
                troubles: silence(storage_node).into_iter().collect(),
            })
        }
    }
}

/// The filesystem of a volume is being checked, or waits for that, so its pods wait.
fn check(volume: &PoolVolume) -> Option<Trouble> {
    let conditions = &volume.status.as_ref()?.conditions;
    let checking = condition::holding(conditions, ConditionType::Checking)?;
    Some(Trouble {
        kind: Kind::VolumeChecking,
        reason: checking.reason.clone(),
        message: checking.message.clone(),
        since: time::from_kubernetes(&checking.last_transition_time),
    })
}

/// The agent of a node is not heard of, by what the StorageNode says.
fn silence(node: &StorageNode) -> Option<Trouble> {
    let (_, healthy) = node.status.as_ref()?.silence()?;
    let kind = Kind::AgentSilent;
    Some(Trouble {
        kind,
        // Whether its pod is not ready or not there is all the same to whoever listens.
        reason: kind.came().to_owned(),
        message: healthy.message.clone(),
        since: time::from_kubernetes(&healthy.last_transition_time),
    })
}

/// The subjects that a change concerns.
fn concerned(world: &World, told: &Told, change: &Change) -> Vec<Subject> {
    match change {
        Change::Volume { name, .. } => vec![Subject::Volume(name.clone())],
        Change::StorageNode(node) => {
            let mut subjects = told.subjects();
            subjects.retain(|subject| subject.is_of_node(node));
            if let Some(guard) = world.storage_node(node) {
                subjects.extend(of_node(&guard));
            }
            subjects
        }
        Change::Everything => {
            let volumes = world.volumes.state_filter(is_unwell);
            let volumes = volumes
                .iter()
                .map(|volume| Subject::Volume(volume.name_any()));
            let nodes = world.storage_nodes.state();
            let nodes = nodes.iter().flat_map(|node| of_node(node));
            told.subjects()
                .into_iter()
                .chain(volumes)
                .chain(nodes)
                .collect()
        }
        Change::Pool(_)
        | Change::Snapshot { .. }
        | Change::Node(_)
        | Change::Class(_)
        | Change::Claim { .. }
        | Change::Capacity { .. } => Vec::new(),
    }
}

/// A node's agent and each of its pools.
fn of_node(guard: &DeserializeGuard<StorageNode>) -> Vec<Subject> {
    let Ok(storage_node) = &guard.0 else {
        return Vec::new();
    };
    let node = storage_node.name_any();
    let pools = pools(storage_node).map(|status| Subject::Pool {
        node: node.clone(),
        pool: status.name.clone(),
    });
    let mut subjects: Vec<Subject> = pools.collect();
    subjects.push(Subject::Agent(node));
    subjects
}

fn pools(node: &StorageNode) -> impl Iterator<Item = &NodePoolStatus> {
    node.status.iter().flat_map(|status| &status.pools)
}

fn is_unwell(guard: &DeserializeGuard<PoolVolume>) -> bool {
    let status = guard
        .0
        .as_ref()
        .ok()
        .and_then(|volume| volume.status.as_ref());
    status.is_some_and(|status| !status.problems.is_empty() || !status.conditions.is_empty())
}

impl Subject {
    fn is_of_node(&self, name: &str) -> bool {
        match self {
            Self::Volume(_) => false,
            Self::Pool { node, .. } | Self::Agent(node) => node == name,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_told_while_it_uses_the_claim_whichever_way_it_names_it() {
        let pod = |volumes: serde_json::Value, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "web-0"},
                "spec": {"containers": [], "volumes": volumes},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let named = json!([
            {"name": "tmp", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ]);
        assert!(uses(&pod(named.clone(), "Running"), "data"));
        assert!(!uses(&pod(named.clone(), "Running"), "other"));
        assert!(!uses(&pod(named, "Succeeded"), "data"));
        let ephemeral = json!([{"name": "scratch", "ephemeral": {}}]);
        assert!(uses(&pod(ephemeral, "Pending"), "web-0-scratch"));
    }
}
