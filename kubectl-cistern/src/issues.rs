//! Collects the issues of a cluster, sorted by severity. Pure.
//!
//! *Invariant:* consequences of a reported issue are not reported again: a pool that is not ready because of
//! a node, or volumes that are not ready because of the pool.

mod moved;

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use chrono::{DateTime, Duration, Utc};
use cistern_crds::{
    Condition, ConditionStatus, ConditionType, HasImage, NodePoolStatus, PoolSeverity, PoolVolume,
    Reason, StorageNode, VolumeSeverity, condition, names::SELECTED_NODE_ANNOTATION, time,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;

use crate::{
    cluster::Cluster,
    output::{counted, human},
    unreadable::Unreadable,
};

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
    let mut all: Vec<Issue> = cluster.nodes.iter().flat_map(of_node).collect();
    let pools_with_issues: Vec<String> =
        all.iter().filter_map(|issue| issue.pool.clone()).collect();
    for pool in &cluster.pools {
        let name = pool.name_any();
        let conditions = pool
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        if !pools_with_issues.contains(&name) {
            all.extend(
                not_true(conditions, &[ConditionType::Ready, ConditionType::Healthy]).map(
                    |condition| {
                        let issue = Issue::by(condition, Severity::Error, "StoragePool", &name);
                        Issue {
                            pool: Some(name.clone()),
                            ..issue
                        }
                    },
                ),
            );
        }
        all.extend(
            held(conditions).map(|held| Issue::by(held, Severity::Warning, "StoragePool", &name)),
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
        .filter_map(|volume| moved::of_volume(volume, cluster, now));
    let moves = cluster.moves.iter();
    let moves = moves.filter_map(|object| moved::of_move(object, cluster, now));
    let unreadable = cluster.unreadable.iter().map(of_unreadable);
    let stored = volumes.chain(snapshots).chain(bound_elsewhere);
    let stored = stored.chain(moves).chain(unreadable);
    let claims = cluster.claims.iter();
    all.extend(gathered(&stored.collect::<Vec<_>>()));
    all.extend(claims.filter_map(|claim| of_claim(claim, cluster, now)));
    all.sort_by(|a, b| (a.severity, b.since.is_some()).cmp(&(b.severity, a.since.is_some())));
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

fn of_node(node: &StorageNode) -> Vec<Issue> {
    let name = node.name_any();
    let status = node.status.clone().unwrap_or_default();
    let own = [
        ConditionType::AgentReporting,
        ConditionType::TopologyRegistered,
    ];
    let by = |condition| Issue {
        node: Some(name.clone()),
        ..Issue::by(condition, Severity::Error, "StorageNode", &name)
    };
    let ready = condition::find(&status.conditions, ConditionType::Ready);
    if let Some(gone) = ready.filter(|ready| ready.reason == Reason::NodeGone.as_str()) {
        // Other conditions are outdated or consequences of it.
        return vec![by(gone)];
    }
    let mut all: Vec<Issue> = not_true(&status.conditions, &own).map(by).collect();
    all.extend(
        status
            .pools
            .iter()
            .flat_map(|pool| of_pool_on_node(&name, pool)),
    );
    if all.is_empty() {
        let summary = [ConditionType::Ready, ConditionType::Healthy];
        all.extend(not_true(&status.conditions, &summary).map(by));
    }
    if !node.has_pools() {
        // Nothing depends on its agent.
        all.clear();
    }
    all.extend(status.drift.iter().map(|drift| Issue {
        node: Some(name.clone()),
        message: drift.message.clone(),
        since: Some(drift.since),
        ..Issue::new(Severity::Warning, "Drift", &drift.object, &drift.kind)
    }));
    all
}

fn of_pool_on_node(node: &str, pool: &NodePoolStatus) -> Vec<Issue> {
    let mut all: Vec<Issue> = pool
        .problems
        .iter()
        .map(|problem| Issue {
            message: problem.message.clone(),
            since: Some(problem.since),
            ..Issue::new(
                of_pool_severity(problem.severity),
                "Pool",
                &pool.name,
                &problem.reason,
            )
        })
        .collect();
    let ready = not_true(&pool.conditions, &[ConditionType::Ready])
        .find(|ready| all.iter().all(|issue| issue.reason != ready.reason))
        .filter(|ready| ready.reason != Reason::Retiring.as_str());
    all.extend(ready.map(|ready| Issue::by(ready, Severity::Error, "Pool", &pool.name)));
    if pool.orphan_count() > 0 {
        let size = human(pool.orphans.iter().map(|orphan| orphan.size).sum());
        let images = counted(pool.orphan_count(), "image");
        let least = if pool.unlisted_orphans > 0 {
            "at least "
        } else {
            ""
        };
        all.push(Issue {
            message: format!("{images} of {least}{size} unclaimed: see `kubectl cistern orphans`"),
            since: pool.orphans.iter().map(|orphan| orphan.since).min(),
            ..Issue::new(Severity::Warning, "Pool", &pool.name, "Orphans")
        });
    }
    all.into_iter()
        .map(|issue| issue.at(node, &pool.name))
        .collect()
}

fn of_volume(volume: &PoolVolume, now: DateTime<Utc>) -> Vec<Issue> {
    let problems = volume.status.iter().flat_map(|status| &status.problems);
    let mut all: Vec<Issue> = problems
        .map(|problem| {
            let severity = match problem.severity {
                VolumeSeverity::Degraded => Severity::Warning,
                VolumeSeverity::Inaccessible | VolumeSeverity::DataLoss => Severity::Error,
            };
            let issue = Issue::new(severity, "PoolVolume", volume.name_any(), &problem.reason);
            Issue {
                message: problem.message.clone(),
                since: Some(problem.since),
                ..issue.at(volume.node_name(), volume.pool_name())
            }
        })
        .collect();
    for issue in of_stored(volume, "PoolVolume", now) {
        if all.iter().all(|known| known.reason != issue.reason) {
            all.push(issue);
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

/// Returns the issues in the conditions of a volume or snapshot.
fn of_stored<K: HasImage>(object: &K, kind: &'static str, now: DateTime<Utc>) -> Vec<Issue> {
    let name = object.name_any();
    let mut all = Vec::new();
    if !object.deletion_requested() && !is_new(object, now) {
        let ready = not_true(object.conditions(), &[ConditionType::Ready]);
        all.extend(ready.map(|ready| Issue::by(ready, of_not_ready(ready), kind, &name)));
    }
    if let Some(held) = held(object.conditions()) {
        all.push(Issue::by(held, Severity::Warning, kind, &name));
    }
    let at = |issue: Issue| issue.at(object.node_name(), object.pool_name());
    all.into_iter().map(at).collect()
}

/// A copy from another node takes its time, and ends by itself. So does writing zeros.
fn of_not_ready(ready: &Condition) -> Severity {
    if [Reason::Copying, Reason::Zeroing]
        .map(Reason::as_str)
        .contains(&&*ready.reason)
    {
        Severity::Warning
    } else {
        Severity::Error
    }
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

/// Returns an issue if a claim is pending for longer than [`GRACE_PERIOD`] and does not wait for
/// its first consumer: a node is selected, a pod uses the claim, or its class binds immediately.
fn of_claim(claim: &PersistentVolumeClaim, cluster: &Cluster, now: DateTime<Utc>) -> Option<Issue> {
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
    let waits = created.is_none_or(|created| now - created >= GRACE_PERIOD);
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
        "it is pending: see `kubectl describe pvc -n {} {}`",
        reference.namespace, reference.name
    );
    let name = format!("{}/{}", reference.namespace, reference.name);
    let reason = event.and_then(|event| event.reason.clone());
    let reason = reason.unwrap_or_else(|| Reason::Pending.to_string());
    Some(Issue {
        message: event
            .and_then(|event| event.message.clone())
            .unwrap_or(hint),
        since: created,
        ..Issue::new(Severity::Warning, "Claim", name, reason)
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
    use cistern_crds::{
        Bytes,
        testing::{image_source, node_pool},
    };

    use super::*;
    use crate::testing::{at, cluster, condition, object};

    fn summaries(cluster: &Cluster) -> Vec<(Severity, &'static str, String, String)> {
        let all = all(cluster, at(600)).into_iter();
        all.map(|issue| (issue.severity, issue.kind, issue.name, issue.reason))
            .collect()
    }

    #[test]
    fn each_issue_is_reported_once_and_the_most_severe_first() {
        let word = |(severity, kind, name, reason): (Severity, &'static str, &str, &str)| {
            (severity, kind, name.to_owned(), reason.to_owned())
        };
        let expected = [
            (Severity::Error, "Pool", "fast", "ProbeTimedOut"),
            (Severity::Error, "PoolVolume", "pvc-2", "ImageMissing"),
            (Severity::Warning, "Pool", "fast", "Orphans"),
            (Severity::Warning, "Claim", "shop/more", "NoSpace"),
        ];
        assert_eq!(summaries(&cluster()), expected.map(word));
    }

    #[test]
    fn many_volumes_with_the_same_issue_are_combined() {
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
            .filter(|issue| issue.kind == "PoolVolume")
            .map(|issue| issue.count)
            .collect();
        assert_eq!(volumes, [40]);
    }

    #[test]
    fn an_object_that_cannot_be_read_is_an_issue_beside_those_of_the_others() {
        let mut cluster = cluster();
        let before = all(&cluster, at(600)).len();
        let pools = [crate::unreadable::tests::huge("huge")];
        assert_eq!(cluster.unreadable.sort_out(pools), []);
        let all = all(&cluster, at(600));
        assert_eq!(all.len(), before + 1);
        let mut issues = all.iter().filter(|issue| issue.reason == "Unreadable");
        let issue = issues.next().unwrap();
        assert_eq!((issue.kind, issue.name.as_str()), ("StoragePool", "huge"));
        assert!(issue.message.contains("20Ei"), "{}", issue.message);
    }

    #[test]
    fn a_node_that_is_gone_has_one_issue_with_advice() {
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
    fn an_agent_that_does_not_report_is_an_issue_of_a_node_with_pools() {
        let mut cluster = Cluster::default();
        let pool = node_pool("fast", "u", image_source(Bytes::gib(1)));
        for (name, pools) in [("n", vec![pool]), ("bare", Vec::new())] {
            cluster.nodes.push(object(serde_json::json!({
                "metadata": {"name": name}, "spec": {"topology": {}, "pools": pools},
                "status": {"conditions": [
                    condition("Ready", "False", "AgentNotReady", "the pod x is not ready"),
                    condition("AgentReporting", "False", "AgentNotReady", "the pod x is not ready"),
                ]},
            })));
        }
        let expected = (
            Severity::Error,
            "StorageNode",
            "n".to_owned(),
            "AgentNotReady".to_owned(),
        );
        assert_eq!(summaries(&cluster), [expected]);
    }

    #[test]
    fn a_claim_that_waits_for_its_first_consumer_is_no_issue() {
        let mut cluster = cluster();
        cluster.pods.clear();
        assert!(
            summaries(&cluster)
                .iter()
                .all(|(_, kind, ..)| *kind != "Claim")
        );
        // A class with immediate binding needs no consumer.
        cluster.classes[0].volume_binding_mode = Some("Immediate".to_owned());
        assert!(
            summaries(&cluster)
                .iter()
                .any(|(_, kind, ..)| *kind == "Claim")
        );
    }

    #[test]
    fn a_copy_from_another_node_is_a_warning_until_it_cannot_go_on() {
        let mut cluster = cluster();
        let status = cluster.volumes[1].status.as_mut().unwrap();
        status.problems.clear();
        let severity = |reason: &str| {
            let mut cluster = cluster.clone();
            let status = cluster.volumes[1].status.as_mut().unwrap();
            status.conditions = vec![object(condition("Ready", "False", reason, "it is copied"))];
            let issues = summaries(&cluster).into_iter();
            let of_volume = |(_, kind, ..): &(_, &str, _, _)| *kind == "PoolVolume";
            issues
                .filter(of_volume)
                .map(|(severity, ..)| severity)
                .collect::<Vec<_>>()
        };
        assert_eq!(severity("Copying"), [Severity::Warning]);
        assert_eq!(severity("Zeroing"), [Severity::Warning]);
        assert_eq!(severity("SourceUnreachable"), [Severity::Error]);
    }

    #[test]
    fn a_new_volume_may_be_pending_for_the_grace_period() {
        let mut cluster = cluster();
        cluster.volumes[1].status.as_mut().unwrap().problems.clear();
        let of_volumes = |now| {
            let all = all(&cluster, now).into_iter();
            all.filter(|issue| issue.kind == "PoolVolume").count()
        };
        assert_eq!(of_volumes(at(30)), 0);
        assert_eq!(of_volumes(at(90)), 1);
    }
}
