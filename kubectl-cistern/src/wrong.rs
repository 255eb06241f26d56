//! What is wrong in a cluster, in the order of how bad it is. Pure.
//!
//! *Invariant:* what follows from something else that is told is not told again: a pool is not ready
//! because a node of it is not, and its volumes are not because of the pool.

mod moved;

use chrono::{DateTime, Duration, Utc};
use cistern_crds::{
    Condition, ConditionStatus, ConditionType, NodePoolStatus, PoolSeverity, PoolVolume, Reason,
    StorageNode, Stored, VolumeSeverity, condition, names::SELECTED_NODE_ANNOTATION, time,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::{
    cluster::Cluster,
    output::{counted, human},
};

/// How long something that was just asked for may take.
const PATIENCE: Duration = Duration::seconds(60);
/// Objects with the same trouble that are told one by one.
const FEW: usize = 3;

/// How bad something is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// It does not work.
    Error,
    /// It works, but somebody should have a look.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wrong {
    /// How bad it is.
    pub severity: Severity,
    /// Kind of the object.
    pub kind: &'static str,
    /// Its name; of a claim with its namespace before it.
    pub name: String,
    /// The node that it is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The pool that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// What it is, for programs.
    pub reason: String,
    /// What it is and what to do, for people.
    pub message: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// Objects that this is told of: the one that is named, and others with the same trouble.
    pub count: usize,
}

impl Wrong {
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

/// All that is wrong.
pub fn all(cluster: &Cluster, now: DateTime<Utc>) -> Vec<Wrong> {
    let mut all: Vec<Wrong> = cluster.nodes.iter().flat_map(of_node).collect();
    let told_of: Vec<String> = all.iter().filter_map(|wrong| wrong.pool.clone()).collect();
    for pool in &cluster.pools {
        let name = pool.name_any();
        let conditions = pool
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        if !told_of.contains(&name) {
            all.extend(
                failing(conditions, &[ConditionType::Ready, ConditionType::Healthy]).map(
                    |condition| {
                        let wrong = Wrong::by(condition, Severity::Error, "StoragePool", &name);
                        Wrong {
                            pool: Some(name.clone()),
                            ..wrong
                        }
                    },
                ),
            );
        }
        all.extend(
            held(conditions).map(|held| Wrong::by(held, Severity::Warning, "StoragePool", &name)),
        );
    }
    let volumes = cluster
        .volumes
        .iter()
        .flat_map(|volume| of_volume(volume, now));
    let snapshots = cluster
        .snapshots
        .iter()
        .flat_map(|it| of_stored(it, "PoolSnapshot", now));
    let bound_elsewhere = cluster
        .volumes
        .iter()
        .filter_map(|volume| moved::of_volume(volume, cluster));
    let stored = volumes.chain(snapshots).chain(bound_elsewhere);
    let claims = cluster.claims.iter();
    all.extend(gathered(&stored.collect::<Vec<_>>()));
    all.extend(claims.filter_map(|claim| of_claim(claim, cluster, now)));
    all.sort_by(|a, b| (a.severity, b.since.is_some()).cmp(&(b.severity, a.since.is_some())));
    all
}

/// Conditions of these types that do not hold, as far as somebody has said so.
fn failing<'a>(
    conditions: &'a [Condition],
    kinds: &'a [ConditionType],
) -> impl Iterator<Item = &'a Condition> {
    let found = kinds
        .iter()
        .filter_map(|kind| condition::find(conditions, *kind));
    let mut told: Vec<&str> = Vec::new();
    found.filter(move |condition| {
        // Not ready and not healthy for the same reason is one thing.
        let is_news = !told.contains(&condition.reason.as_str());
        told.push(&condition.reason);
        condition.status != ConditionStatus::True.as_str() && is_news
    })
}

/// That something holds an object that is to go.
fn held(conditions: &[Condition]) -> Option<&Condition> {
    condition::holding(conditions, ConditionType::DeletionHeld)
}

fn of_node(node: &StorageNode) -> Vec<Wrong> {
    let name = node.name_any();
    let status = node.status.clone().unwrap_or_default();
    let own = [
        ConditionType::AgentReporting,
        ConditionType::TopologyRegistered,
    ];
    let by = |condition| Wrong {
        node: Some(name.clone()),
        ..Wrong::by(condition, Severity::Error, "StorageNode", &name)
    };
    let ready = condition::find(&status.conditions, ConditionType::Ready);
    if let Some(gone) = ready.filter(|ready| ready.reason == Reason::NodeGone.as_str()) {
        // All else is old or follows from it.
        return vec![by(gone)];
    }
    let mut all: Vec<Wrong> = failing(&status.conditions, &own).map(by).collect();
    all.extend(
        status
            .pools
            .iter()
            .flat_map(|pool| of_pool_on_node(&name, pool)),
    );
    if all.is_empty() {
        let summary = [ConditionType::Ready, ConditionType::Healthy];
        all.extend(failing(&status.conditions, &summary).map(by));
    }
    all.extend(status.drift.iter().map(|drift| Wrong {
        node: Some(name.clone()),
        message: drift.message.clone(),
        since: Some(drift.since),
        ..Wrong::new(Severity::Warning, "Drift", &drift.object, &drift.kind)
    }));
    all
}

fn of_pool_on_node(node: &str, pool: &NodePoolStatus) -> Vec<Wrong> {
    let mut all: Vec<Wrong> = pool
        .problems
        .iter()
        .map(|problem| Wrong {
            message: problem.message.clone(),
            since: Some(problem.since),
            ..Wrong::new(
                of_pool_severity(problem.severity),
                "Pool",
                &pool.name,
                &problem.reason,
            )
        })
        .collect();
    let ready = failing(&pool.conditions, &[ConditionType::Ready])
        .find(|ready| all.iter().all(|wrong| wrong.reason != ready.reason))
        .filter(|ready| ready.reason != Reason::Retiring.as_str());
    all.extend(ready.map(|ready| Wrong::by(ready, Severity::Error, "Pool", &pool.name)));
    if !pool.orphans.is_empty() {
        let size = human(pool.orphans.iter().map(|orphan| orphan.size).sum());
        let images = counted(pool.orphans.len(), "image");
        all.push(Wrong {
            message: format!(
                "{images} of {size} that nobody claims: see `kubectl cistern orphans`"
            ),
            since: pool.orphans.iter().map(|orphan| orphan.since).min(),
            ..Wrong::new(Severity::Warning, "Pool", &pool.name, "Orphans")
        });
    }
    all.into_iter()
        .map(|wrong| wrong.at(node, &pool.name))
        .collect()
}

fn of_volume(volume: &PoolVolume, now: DateTime<Utc>) -> Vec<Wrong> {
    let problems = volume.status.iter().flat_map(|status| &status.problems);
    let mut all: Vec<Wrong> = problems
        .map(|problem| {
            let severity = match problem.severity {
                VolumeSeverity::Degraded => Severity::Warning,
                VolumeSeverity::Inaccessible | VolumeSeverity::DataLoss => Severity::Error,
            };
            let wrong = Wrong::new(severity, "PoolVolume", volume.name_any(), &problem.reason);
            Wrong {
                message: problem.message.clone(),
                since: Some(problem.since),
                ..wrong.at(volume.node_name(), volume.pool_name())
            }
        })
        .collect();
    for wrong in of_stored(volume, "PoolVolume", now) {
        if all.iter().all(|told| told.reason != wrong.reason) {
            all.push(wrong);
        }
    }
    all
}

fn of_pool_severity(severity: PoolSeverity) -> Severity {
    match severity {
        PoolSeverity::Degraded => Severity::Warning,
        PoolSeverity::Unreachable => Severity::Error,
    }
}

/// What the conditions of a volume or snapshot say.
fn of_stored<K: Stored>(object: &K, kind: &'static str, now: DateTime<Utc>) -> Vec<Wrong> {
    let name = object.name_any();
    let created = object
        .meta()
        .creation_timestamp
        .as_ref()
        .map(time::from_kubernetes);
    let is_new = created.is_some_and(|created| now - created < PATIENCE);
    let mut all = Vec::new();
    if !object.deletion_requested() && !is_new {
        let ready = failing(object.conditions(), &[ConditionType::Ready]);
        all.extend(ready.map(|ready| Wrong::by(ready, Severity::Error, kind, &name)));
    }
    if let Some(held) = held(object.conditions()) {
        all.push(Wrong::by(held, Severity::Warning, kind, &name));
    }
    let at = |wrong: Wrong| wrong.at(object.node_name(), object.pool_name());
    all.into_iter().map(at).collect()
}

/// Many objects of one pool on one node with the same trouble are told as one.
fn gathered(all: &[Wrong]) -> Vec<Wrong> {
    let same = |a: &Wrong, b: &Wrong| {
        (a.kind, &a.node, &a.pool, &a.reason, a.severity)
            == (b.kind, &b.node, &b.pool, &b.reason, b.severity)
    };
    let mut gathered: Vec<Wrong> = Vec::new();
    for wrong in all {
        let count = all.iter().filter(|other| same(wrong, other)).count();
        if count <= FEW {
            gathered.push(wrong.clone());
        } else if !gathered.iter().any(|told| same(told, wrong)) {
            gathered.push(Wrong {
                count,
                ..wrong.clone()
            });
        }
    }
    gathered
}

/// A claim that waits for a volume, and not for a pod.
fn of_claim(claim: &PersistentVolumeClaim, cluster: &Cluster, now: DateTime<Utc>) -> Option<Wrong> {
    let phase = claim.status.as_ref()?.phase.as_deref()?;
    let created = claim
        .creation_timestamp()
        .as_ref()
        .map(time::from_kubernetes);
    let (namespace, name) = (claim.namespace()?, claim.name_any());
    let reference = cistern_crds::volume::ClaimReference { namespace, name };
    let is_wanted = claim.annotations().contains_key(SELECTED_NODE_ANNOTATION)
        || cluster.pods_with(&reference).next().is_some()
        || binds_at_once(claim, cluster);
    let waits = created.is_none_or(|created| now - created >= PATIENCE);
    if phase != "Pending" || !is_wanted || !waits {
        return None;
    }
    let about = |event: &&k8s_openapi::api::core::v1::Event| {
        let object = &event.involved_object;
        object.namespace.as_deref() == Some(&reference.namespace)
            && object.name.as_deref() == Some(&reference.name)
    };
    let event = cluster.events.iter().filter(about).max_by_key(|event| {
        let at = event.last_timestamp.as_ref().map(|time| time.0);
        at.or_else(|| event.event_time.as_ref().map(|time| time.0))
    });
    let hint = format!(
        "it waits: see `kubectl describe pvc -n {} {}`",
        reference.namespace, reference.name
    );
    let name = format!("{}/{}", reference.namespace, reference.name);
    let reason = event.and_then(|event| event.reason.clone());
    let reason = reason.unwrap_or_else(|| Reason::Pending.to_string());
    Some(Wrong {
        message: event
            .and_then(|event| event.message.clone())
            .unwrap_or(hint),
        since: created,
        ..Wrong::new(Severity::Warning, "Claim", name, reason)
    })
}

fn binds_at_once(claim: &PersistentVolumeClaim, cluster: &Cluster) -> bool {
    let class = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_deref());
    let mut classes = cluster.classes.iter();
    let class = classes.find(|it| Some(it.name_any().as_str()) == class);
    class.is_some_and(|class| class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, cluster, condition, object};

    fn told(cluster: &Cluster) -> Vec<(Severity, &'static str, String, String)> {
        let all = all(cluster, at(600)).into_iter();
        all.map(|wrong| (wrong.severity, wrong.kind, wrong.name, wrong.reason))
            .collect()
    }

    #[test]
    fn each_trouble_is_told_once_and_the_worst_first() {
        let word = |(severity, kind, name, reason): (Severity, &'static str, &str, &str)| {
            (severity, kind, name.to_owned(), reason.to_owned())
        };
        let expected = [
            (Severity::Error, "Pool", "fast", "ProbeTimedOut"),
            (Severity::Error, "PoolVolume", "pvc-2", "ImageMissing"),
            (Severity::Warning, "Pool", "fast", "Orphans"),
            (Severity::Warning, "Claim", "shop/more", "NoSpace"),
        ];
        assert_eq!(told(&cluster()), expected.map(word));
    }

    #[test]
    fn many_volumes_with_one_trouble_are_told_as_one() {
        let mut cluster = cluster();
        let broken = cluster.volumes[1].clone();
        cluster.volumes = (0..40)
            .map(|number| {
                let mut volume = broken.clone();
                volume.metadata.name = Some(format!("pvc-{number}"));
                volume
            })
            .collect();
        let all = all(&cluster, at(600));
        let volumes: Vec<usize> = all
            .iter()
            .filter(|wrong| wrong.kind == "PoolVolume")
            .map(|wrong| wrong.count)
            .collect();
        assert_eq!(volumes, [40]);
    }

    #[test]
    fn of_a_node_that_is_gone_only_that_is_told_and_what_to_do() {
        let advice = "Node n is gone: kubectl cistern forget-node n";
        let mut cluster = Cluster::default();
        cluster.nodes.push(object(serde_json::json!({
            "metadata": {"name": "n"}, "spec": {"topology": {}},
            "status": {"conditions": [
                condition("Ready", "False", "NodeGone", advice),
                condition("TopologyRegistered", "False", "NodeMissing", "there is no Node n"),
                condition("AgentReporting", "False", "AgentMissing", "no pod runs on n"),
            ], "pools": [{"name": "fast", "uid": "u", "conditions": [
                condition("Ready", "False", "ProbeTimedOut", "it was hung when it was last seen"),
            ]}]},
        })));
        let all = all(&cluster, at(600));
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(
            (all[0].reason.as_str(), all[0].message.as_str()),
            ("NodeGone", advice)
        );
    }

    #[test]
    fn an_agent_that_is_silent_is_told_of() {
        let mut cluster = Cluster::default();
        cluster.nodes.push(object(serde_json::json!({
            "metadata": {"name": "n"}, "spec": {"topology": {}},
            "status": {"conditions": [
                condition("Ready", "False", "AgentNotReady", "the pod x is not ready"),
                condition("AgentReporting", "False", "AgentNotReady", "the pod x is not ready"),
            ]},
        })));
        let expected = (
            Severity::Error,
            "StorageNode",
            "n".to_owned(),
            "AgentNotReady".to_owned(),
        );
        assert_eq!(told(&cluster), [expected]);
    }

    #[test]
    fn a_claim_that_waits_for_its_pod_is_as_it_should_be() {
        let mut cluster = cluster();
        cluster.pods.clear();
        assert!(told(&cluster).iter().all(|(_, kind, ..)| *kind != "Claim"));
        // With a class that binds at once nobody has to come.
        cluster.classes[0].volume_binding_mode = Some("Immediate".to_owned());
        assert!(told(&cluster).iter().any(|(_, kind, ..)| *kind == "Claim"));
    }

    #[test]
    fn a_volume_that_was_just_asked_for_may_take_a_moment() {
        let mut cluster = cluster();
        cluster.volumes[1].status.as_mut().unwrap().problems.clear();
        let of_volumes = |now| {
            let all = all(&cluster, now).into_iter();
            all.filter(|wrong| wrong.kind == "PoolVolume").count()
        };
        assert_eq!(of_volumes(at(30)), 0);
        assert_eq!(of_volumes(at(90)), 1);
    }
}
