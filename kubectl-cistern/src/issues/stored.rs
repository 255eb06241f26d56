//! The issues of volumes and snapshots. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{Condition, ConditionType, HasImage, PoolVolume, Reason, VolumeSeverity};
use kube::ResourceExt as _;

use super::{Issue, Severity, held, is_new, not_true};

/// Returns the issues of a volume.
pub(super) fn of_volume(volume: &PoolVolume, now: DateTime<Utc>) -> Vec<Issue> {
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

/// Returns the issues in the conditions of a volume or snapshot.
pub(super) fn of_stored<K: HasImage>(
    object: &K,
    kind: &'static str,
    now: DateTime<Utc>,
) -> Vec<Issue> {
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
