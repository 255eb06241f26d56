//! What is wrong with a volume or a pool, in one vocabulary: the status, both dialects of CSI, the
//! events and the metrics all tell of the same problems.
//!
//! *Invariant:* a problem is told by its (severity, reason), of which a list holds each once, and it
//! stays in the list for as long as it lasts, also when a worse one has come (CLH-05, CLH-06).

use chrono::{DateTime, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds,
    condition::{ConditionType, Finding, Reason},
    parameters::{FilesystemType, Provisioning},
    size::Bytes,
    volume::{AccessType, SourceKind},
};

/// How bad a problem of a volume is, the least first. The words of CSI 1.13.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum VolumeSeverity {
    /// It works, but not as well as it should.
    Degraded,
    /// It cannot be used.
    Inaccessible,
    /// Data is gone for good, or will be when its last user ends.
    DataLoss,
}

/// How bad a problem of a pool on a node is, the least first. The words of CSI 1.13.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum PoolSeverity {
    /// It works, but not as well as it should, or not for long.
    Degraded,
    /// It cannot be read or written.
    Unreachable,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem<Severity> {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, for programs: the name of a [`Reason`].
    #[schemars(length(max = bounds::NAME))]
    pub reason: String,
    /// What it is and what to do, for people: a sentence.
    #[schemars(length(max = bounds::PROBLEM))]
    pub message: String,
    /// When it was seen first.
    pub since: DateTime<Utc>,
}

/// One thing that is wrong with a volume.
pub type VolumeProblem = Problem<VolumeSeverity>;
/// One thing that is wrong with a pool on a node.
pub type PoolProblem = Problem<PoolSeverity>;

/// `Healthy` of something with these problems: its reason is that of the worst, and the first of
/// those.
pub fn healthy<Severity: Copy + Ord>(problems: &[Problem<Severity>]) -> Finding {
    let worst = problems
        .iter()
        .rev()
        .max_by_key(|problem| problem.severity)
        .map(|problem| (Reason::parse(&problem.reason), problem));
    match worst {
        None => Finding::new(ConditionType::Healthy, true, Reason::AsDesired, ""),
        Some((reason, problem)) => Finding::new(
            ConditionType::Healthy,
            false,
            // Written by a newer version; the message tells.
            reason.unwrap_or(Reason::OtherProblem),
            match problems.len() {
                1 => problem.message.clone(),
                count => format!("{} (and {} more)", problem.message, count - 1),
            },
        ),
    }
}

/// An image in a pool that no custom resource claims. It is kept, and takes its room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// Name of the image in the pool.
    #[schemars(length(max = 64))]
    pub image: String,
    /// The room that it takes.
    pub size: Bytes,
    /// What it says itself of what it is; none where that cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<OrphanIdentity>,
    /// When nobody was first seen to claim it.
    pub since: DateTime<Utc>,
    /// The node that the custom resource of the image is on, where there is one and it names another
    /// node: the image belongs there, and is never reclaimed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub belongs_to: Option<String>,
    /// When it was moved to the trash of the pool, from where it goes for good after as long again;
    /// none while it is where it was. See `reclaimOrphansAfterHours` of the StoragePool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trashed_since: Option<DateTime<Utc>>,
}

/// What an image without a custom resource says of itself: enough to make one that adopts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanIdentity {
    /// Of which kind it is.
    pub kind: SourceKind,
    /// Name of the PoolVolume or PoolSnapshot that made it.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Of a snapshot: the volume that it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub source_volume: Option<String>,
    /// Name of the image that it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub source_image: Option<String>,
    /// Of a snapshot: its moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<DateTime<Utc>>,
    /// Its size: that of the volume.
    pub volume_size: Bytes,
    /// A filesystem, or the bare block device.
    pub access_type: AccessType,
    /// The filesystem in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemType>,
    /// Whether its space was reserved in full.
    pub provisioning: Provisioning,
}

/// Something on a node that does not belong together, as `cistern-driver fsck` tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// What kind of thing it is, for programs.
    #[schemars(length(max = bounds::NAME))]
    pub kind: String,
    /// Which one.
    #[schemars(length(max = bounds::MESSAGE))]
    pub object: String,
    /// What is known of it and what may be done, for people.
    #[schemars(length(max = bounds::MESSAGE))]
    pub message: String,
    /// When it was seen first.
    pub since: DateTime<Utc>,
}

/// Orphans of a pool, and findings of a node, that a status tells of at most.
pub const LISTED: usize = 64;

/// A list of problems: a map keyed by severity and reason.
pub(crate) fn problems_schema<Severity: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": bounds::PROBLEMS,
        "items": Problem::<Severity>::json_schema(generator),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["severity", "reason"],
    })
}

/// A list of orphans: a map keyed by the image.
pub(crate) fn orphans_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": LISTED,
        "items": Orphan::json_schema(generator),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["image"],
    })
}

/// A list of findings, written whole by one writer.
pub(crate) fn drift_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": LISTED,
        "items": Drift::json_schema(generator),
        "x-kubernetes-list-type": "atomic",
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
    }

    #[test]
    fn a_problem_of_a_newer_version_is_one_all_the_same() {
        let mut strange = problem(VolumeSeverity::Degraded, Reason::Pending);
        strange.reason = "NobodyKnows".to_owned();
        assert_eq!(healthy(&[strange]).reason, Reason::OtherProblem);
    }
}
