//! The issues of nodes, and of pools on nodes. Pure.

use cistern_crds::{ConditionType, NodePoolStatus, PoolSeverity, Reason, StorageNode, condition};
use kube::ResourceExt as _;

use super::{Issue, Severity, not_true};
use crate::output::{counted, human};

/// Returns the issues of a node and of the pools on it.
pub(super) fn of_node(node: &StorageNode) -> Vec<Issue> {
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

fn of_pool_severity(severity: PoolSeverity) -> Severity {
    match severity {
        PoolSeverity::Degraded => Severity::Warning,
        PoolSeverity::Unreachable => Severity::Error,
    }
}
