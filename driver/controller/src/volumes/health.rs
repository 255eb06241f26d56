//! The problems of a volume in the controller: those that its node reports, and those of its pool
//! there and of the node itself.
//!
//! *Invariant:* pure; and no two problems of a volume have the same severity and reason (CLH-05). A
//! degraded pool is reported for the pool, and not for each of its volumes, which work.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Reason, StorageNode,
    health::{PoolSeverity, VolumeProblem, VolumeSeverity},
    time,
};

use super::ListedVolume;

/// A volume and its problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExaminedVolume {
    /// The volume, as the watch shows it.
    pub volume: ListedVolume,
    /// Its problems; empty if none is known.
    pub problems: Vec<VolumeProblem>,
}

impl ExaminedVolume {
    /// Adds the problems of the volume, of its pool and of its node. `node` is None if the
    /// StorageNode is gone.
    pub fn on(volume: ListedVolume, node: Option<&StorageNode>) -> Self {
        let problems = problems(&volume, node);
        Self { volume, problems }
    }
}

/// The problems of a volume on this node.
pub(super) fn problems(volume: &ListedVolume, node: Option<&StorageNode>) -> Vec<VolumeProblem> {
    let mut problems = volume.problems.to_vec();
    for other in [of_pool(volume, node), of_node(volume, node)] {
        let known = |other: &VolumeProblem| {
            let key = |problem: &VolumeProblem| (problem.severity, problem.reason.clone());
            problems.iter().any(|problem| key(problem) == key(other))
        };
        problems.extend(other.filter(|other| !known(other)));
    }
    problems
}

/// A problem that makes every volume of the pool inaccessible.
fn of_pool(volume: &ListedVolume, node: Option<&StorageNode>) -> Option<VolumeProblem> {
    let pool = node?.status_of(&volume.pool)?;
    let unreachable = |severity| match severity {
        PoolSeverity::Unreachable => true,
        PoolSeverity::Degraded => false,
    };
    let mut problems = pool.problems.iter();
    let problem = problems.find(|problem| unreachable(problem.severity))?;
    Some(VolumeProblem {
        severity: VolumeSeverity::Inaccessible,
        reason: Reason::PoolNotReady.to_string(),
        message: format!("volume {}: {}", volume.id, problem.message),
        since: problem.since,
    })
}

/// The problem of a node whose agent does not report. The operator sets the condition after the time that
/// a restart takes.
fn of_node(volume: &ListedVolume, node: Option<&StorageNode>) -> Option<VolumeProblem> {
    let problem = |severity, reason: Reason, message, since| VolumeProblem {
        severity,
        reason: reason.to_string(),
        message,
        since,
    };
    let Some(node) = node else {
        let message = format!("StorageNode {}, which holds it, is not there", volume.node);
        // The time is unknown.
        let since = DateTime::<Utc>::UNIX_EPOCH;
        return Some(problem(
            VolumeSeverity::Inaccessible,
            Reason::NodeMissing,
            message,
            since,
        ));
    };
    let (reason, healthy) = node.status.as_ref()?.unknown_state()?;
    let severity = match reason {
        // No pod can use its data.
        Reason::NodeGone | Reason::NodeMissing => VolumeSeverity::Inaccessible,
        // Running pods continue; the health is unknown, and no new pod starts.
        _ => VolumeSeverity::Degraded,
    };
    let message = format!("node {}: {}", volume.node, healthy.message);
    let since = time::from_kubernetes(&healthy.last_transition_time);
    Some(problem(severity, reason, message, since))
}

#[cfg(test)]
mod tests;
