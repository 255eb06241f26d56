//! Problems of volumes and pools. The status, both health APIs of CSI, the events and the metrics
//! report the same problems.
//!
//! *Invariant:* (severity, reason) identifies a problem, and a list holds each pair once. A problem
//! stays in the list as long as it lasts, also beside a worse one (CLH-05, CLH-06).

use chrono::{DateTime, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds,
    condition::ConditionUpdate,
    reason::{ConditionType, Reason},
};

/// Severity of a volume's problem, in ascending order, with the names of CSI 1.13.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum VolumeSeverity {
    /// The volume works, but not as well as it should.
    Degraded,
    /// The volume cannot be used.
    Inaccessible,
    /// Data is lost, or will be when the last pod stops using the volume.
    DataLoss,
}

/// Severity of a pool's problem on a node, in ascending order, with the names of CSI 1.13.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum PoolSeverity {
    /// The pool works, but not as well as it should, or not for long.
    Degraded,
    /// The pool cannot be read or written.
    Unreachable,
}

/// A problem of a volume or a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem<Severity> {
    /// Severity of the problem.
    pub severity: Severity,
    /// Machine-readable reason in CamelCase; see docs/conditions.md.
    #[schemars(length(max = bounds::NAME))]
    pub reason: String,
    /// Human-readable description of the problem and what to do.
    #[schemars(length(max = bounds::PROBLEM))]
    pub message: String,
    /// When the problem was first observed.
    pub since: DateTime<Utc>,
}

impl<Severity: Copy + Ord> Problem<Severity> {
    /// The worst of the problems: the first of those with the highest severity. None if there is no problem.
    pub fn worst(problems: &[Self]) -> Option<&Self> {
        problems.iter().rev().max_by_key(|problem| problem.severity)
    }
}

/// A problem of a volume.
pub type VolumeProblem = Problem<VolumeSeverity>;
/// A problem of a pool on a node.
pub type PoolProblem = Problem<PoolSeverity>;

/// The condition `Healthy` for these problems. Its reason is that of the worst one.
pub fn healthy<Severity: Copy + Ord>(problems: &[Problem<Severity>]) -> ConditionUpdate {
    match Problem::worst(problems) {
        None => ConditionUpdate::reconciled(ConditionType::Healthy),
        Some(problem) => ConditionUpdate::new(
            ConditionType::Healthy,
            false,
            // A newer version wrote an unknown reason; the message describes it.
            Reason::parse(&problem.reason).unwrap_or(Reason::OtherProblem),
            match problems.len() {
                1 => problem.message.clone(),
                count => format!("{} (and {} more)", problem.message, count - 1),
            },
        ),
    }
}

/// Schema of a list of problems: a map list keyed by severity and reason.
pub(crate) fn problems_schema<Severity: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": bounds::PROBLEMS,
        "items": Problem::<Severity>::json_schema(generator),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["severity", "reason"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(severity: VolumeSeverity, reason: Reason) -> VolumeProblem {
        Problem {
            severity,
            reason: reason.to_string(),
            message: format!("it is {reason}"),
            since: DateTime::default(),
        }
    }

    #[test]
    fn the_worst_problem_is_the_one_that_the_condition_names() {
        assert_eq!(
            healthy::<VolumeSeverity>(&[]).status,
            crate::condition::ConditionStatus::True
        );
        let problems = [
            problem(VolumeSeverity::Degraded, Reason::FilesystemErrors),
            problem(VolumeSeverity::DataLoss, Reason::ImageMissing),
            problem(VolumeSeverity::Inaccessible, Reason::PoolNotReady),
        ];
        let finding = healthy(&problems);
        assert_eq!(finding.reason, Reason::ImageMissing);
        assert_eq!(finding.message, "it is ImageMissing (and 2 more)");
        assert_eq!(Problem::worst(&problems), Some(&problems[1]));
        let equal = [Reason::PoolNotReady, Reason::FilesystemErrors]
            .map(|reason| problem(VolumeSeverity::Degraded, reason));
        assert_eq!(Problem::worst(&equal), Some(&equal[0]));
    }

    #[test]
    fn an_unknown_reason_of_a_newer_version_becomes_other_problem() {
        let mut strange = problem(VolumeSeverity::Degraded, Reason::Pending);
        strange.reason = "UnknownReason".to_owned();
        assert_eq!(healthy(&[strange]).reason, Reason::OtherProblem);
    }
}
