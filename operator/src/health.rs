//! Writes events about health: on the claim of an unhealthy volume and the pods that use it, and on
//! the StoragePool and the StorageNode of a pool. One event when an issue begins, with the remedy,
//! and one when all issues have ended.
//!
//! This process records the published issues, and the API server rejects duplicates by the names of
//! the events ([`crate::events`]). The API server keeps events for an hour. After a start, an older
//! issue is not published, because an earlier operator published it and the event has expired.
//! Conditions show lasting issues. A recovery while no operator runs is not published.
//!
//! *Invariant:* only changes are published.

mod issues;
pub mod summary;

use chrono::{DateTime, Utc};
use cistern_crds::{NodePoolStatus, PoolVolume, StorageNode, time};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{Api, Resource as _, ResourceExt as _, api::ListParams, core::DeserializeGuard};

use self::issues::{HealthIssue, IssueKind, PublishedIssues};
use crate::{
    Context,
    change::Change,
    claims,
    cluster_state::ClusterState,
    controller::{Controller, Next},
    events::{self, publish_once},
    pods::uses,
};

/// Why an event was not published.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused an event.
    #[error(transparent)]
    Event(#[from] events::Error),
    /// The pods that use a volume cannot be listed.
    #[error("cannot list the pods on node {node} in namespace {namespace}")]
    Pods {
        /// The node of the volume.
        node: String,
        /// The namespace of its claim.
        namespace: String,
        /// The error of the API server or of the connection.
        #[source]
        source: kube::Error,
    },
}

/// Object whose health is reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A volume, by the name of its PoolVolume.
    Volume(String),
    /// A pool on a node.
    Pool {
        /// Name of the Node.
        node: String,
        /// The StoragePool.
        pool: String,
    },
    /// The agent of a node.
    Agent(String),
}

/// Current state of a subject.
#[derive(Debug)]
struct Seen {
    /// Name of the subject in messages.
    name: String,
    /// The node of the subject.
    node: String,
    /// Object of the event; None if it is not known.
    regarding: Option<ObjectReference>,
    issues: Vec<HealthIssue>,
}

/// Writes events about health.
#[derive(Debug)]
pub struct HealthController {
    published: PublishedIssues,
}

impl HealthController {
    /// Creates the controller. It does not publish issues whose events have expired at this time,
    /// because an earlier operator published them.
    pub fn new(began: DateTime<Utc>) -> Self {
        let published = PublishedIssues::new(began);
        Self { published }
    }
}

impl Controller for HealthController {
    type Key = Subject;
    type Error = Error;
    const NAME: &'static str = "health";

    fn keys(&self, context: &Context, change: &Change) -> Vec<Subject> {
        let cluster = &context.cluster;
        match change {
            Change::Volume { name, .. } => vec![Subject::Volume(name.clone())],
            Change::StorageNode(node) => {
                let mut subjects = self.published.subjects();
                subjects.retain(|subject| subject.is_of_node(node));
                if let Some(guard) = cluster.storage_node(node) {
                    subjects.extend(of_node(&guard));
                }
                subjects
            }
            Change::Everything => {
                let volumes = cluster.volumes.keys(|volume| volume.report.is_some());
                let volumes = volumes.into_iter().map(Subject::Volume);
                let nodes = cluster.storage_nodes.all();
                let nodes = nodes.iter().flat_map(|node| of_node(node));
                self.published
                    .subjects()
                    .into_iter()
                    .chain(volumes)
                    .chain(nodes)
                    .collect()
            }
            Change::Pool(_)
            | Change::PoolStatus(_)
            | Change::Snapshot { .. }
            | Change::Node(_)
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

    async fn reconcile(&self, context: &Context, subject: &Subject) -> Result<Next, Error> {
        let Some(seen) = observe(&context.cluster, subject) else {
            self.published.forget(subject);
            return Ok(Next::OnChange);
        };
        // The cache does not keep the claim of a recovered volume.
        let Some(regarding) = seen.regarding.or_else(|| self.published.regarding(subject)) else {
            return Ok(Next::OnChange);
        };
        let due = self.published.due_events(subject, &seen.name, &seen.issues);
        if !due.is_empty() {
            let recipients = recipients(context, subject, &seen.node, &regarding).await?;
            for recipient in &recipients {
                for content in &due {
                    publish_once(context, recipient, content).await?;
                }
            }
        }
        self.published.mark(subject, &seen.issues, regarding);
        Ok(Next::OnChange)
    }
}

/// Every object that gets the event.
async fn recipients(
    context: &Context,
    subject: &Subject,
    node: &str,
    regarding: &ObjectReference,
) -> Result<Vec<ObjectReference>, Error> {
    let mut recipients = vec![regarding.clone()];
    match subject {
        Subject::Volume(_) => {
            let namespace = regarding.namespace.clone().unwrap_or_default();
            let pods = Api::<Pod>::namespaced(context.client.clone(), &namespace);
            // A node has few pods, and the API server reads them from memory.
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
            recipients.extend(users.map(|pod| pod.object_ref(&())));
        }
        Subject::Pool { pool, .. } => {
            let pool = context.cluster.pool(pool);
            recipients.extend(pool.map(|pool| pool.object_ref(&())));
        }
        Subject::Agent(_) => {}
    }
    Ok(recipients)
}

/// Current state of the subject; `None` if it is gone or unreadable.
fn observe(cluster: &ClusterState, subject: &Subject) -> Option<Seen> {
    match subject {
        Subject::Volume(name) => {
            let volume = cluster.volumes.get(name)?;
            let node = volume.location.as_ref()?.node.to_string();
            let report = volume.report.as_deref();
            let status = report.and_then(|volume| volume.status.as_ref());
            let problems = status.into_iter().flat_map(|status| &status.problems);
            let issues = problems.map(HealthIssue::from);
            Some(Seen {
                name: format!("volume {name} on node {node}"),
                node,
                regarding: report.and_then(claims::of_volume),
                issues: issues.chain(report.into_iter().flat_map(work)).collect(),
            })
        }
        Subject::Pool { node, pool } => {
            let guard = cluster.storage_node(node)?;
            let storage_node = guard.0.as_ref().ok()?;
            let status = pools(storage_node).find(|status| status.name == *pool)?;
            Some(Seen {
                name: format!("pool {pool} on node {node}"),
                node: node.clone(),
                regarding: Some(storage_node.object_ref(&())),
                issues: status.problems.iter().map(HealthIssue::from).collect(),
            })
        }
        Subject::Agent(node) => {
            let guard = cluster.storage_node(node)?;
            let storage_node = guard.0.as_ref().ok()?;
            Some(Seen {
                name: format!("node {node}"),
                node: node.clone(),
                regarding: Some(storage_node.object_ref(&())),
                issues: silence(storage_node).into_iter().collect(),
            })
        }
    }
}

/// The issues of a volume on which work goes on that takes long.
fn work(volume: &PoolVolume) -> impl Iterator<Item = HealthIssue> {
    let allocating = volume.allocating();
    let allocating = allocating.map(|it| (IssueKind::VolumeAllocating, it));
    let checking = volume.checking();
    let checking = checking.map(|it| (IssueKind::VolumeChecking, it));
    let reported = allocating.into_iter().chain(checking);
    reported.map(|(kind, condition)| HealthIssue {
        kind,
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: time::from_kubernetes(&condition.last_transition_time),
    })
}

/// The issue of a node with pools whose agent is silent, from the conditions of its StorageNode. Nothing
/// depends on the agent of another node.
fn silence(node: &StorageNode) -> Option<HealthIssue> {
    let status = node.status.as_ref().filter(|_| node.has_pools())?;
    let (_, healthy) = status.unknown_state()?;
    let kind = IssueKind::AgentSilent;
    Some(HealthIssue {
        kind,
        // One reason for a pod that is not ready and for a missing pod: the difference does not
        // matter to the reader.
        reason: kind.event_reason().to_string(),
        message: healthy.message.clone(),
        since: time::from_kubernetes(&healthy.last_transition_time),
    })
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
    use cistern_crds::{
        ConditionStatus, ConditionType, Reason,
        condition::{self, ConditionUpdate},
    };

    use super::*;
    use crate::testing::{moment, storage_node};

    #[test]
    fn a_silent_agent_is_an_issue_only_of_a_node_with_pools() {
        let unknown = ConditionUpdate::new(
            ConditionType::Healthy,
            ConditionStatus::Unknown,
            Reason::AgentMissing,
            "no pod of the node plugin is on w1",
        );
        let is_issue = |mut node: StorageNode| {
            let status = node.status.as_mut().unwrap();
            condition::set(&mut status.conditions, &unknown, None, moment());
            silence(&node).is_some()
        };
        assert!(is_issue(storage_node("w1").carrying("fast").build()));
        assert!(!is_issue(storage_node("w1").build()));
    }
}
