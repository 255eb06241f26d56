//! The labels and the health that the metrics of pools and volumes share.

use std::fmt;

use cistern_client::metrics::Gauges;
use cistern_crds::{PoolSeverity, PoolVolume, VolumeSeverity, health::Problem};

/// Severities as values of a label: healthy first, then by rising severity.
pub(super) trait States: Copy + Ord + 'static {
    const STATES: &'static [(&'static str, Option<Self>)];

    /// The value of the label.
    fn label(self) -> &'static str {
        let mut states = Self::STATES.iter();
        states
            .find(|(_, severity)| *severity == Some(self))
            .map_or("unknown", |(label, _)| label)
    }
}

impl States for PoolSeverity {
    const STATES: &'static [(&'static str, Option<Self>)] = &[
        ("healthy", None),
        ("degraded", Some(Self::Degraded)),
        ("unreachable", Some(Self::Unreachable)),
    ];
}

impl States for VolumeSeverity {
    const STATES: &'static [(&'static str, Option<Self>)] = &[
        ("healthy", None),
        ("degraded", Some(Self::Degraded)),
        ("inaccessible", Some(Self::Inaccessible)),
        ("data_loss", Some(Self::DataLoss)),
    ];
}

/// The labels of a pool or volume, and its problems.
pub(super) type WithProblems<'a, S> = (Vec<(&'a str, &'a str)>, &'a [Problem<S>]);

/// Writes the state of health and the problems of each pool or volume, after its labels.
pub(super) fn write_health<S: States>(
    gauges: &mut Gauges<'_>,
    noun: &str,
    all: &[WithProblems<'_, S>],
) -> fmt::Result {
    let states = all.iter().flat_map(|(labels, problems)| {
        let states = state_set(problems);
        states.map(move |(state, holds)| ([&labels[..], &[("state", state)]].concat(), holds))
    });
    gauges.write(
        &format!("cistern_{noun}_health"),
        &format!("The health of a {noun}: 1 for its current state, 0 for the others."),
        states,
    )?;
    let problems = all.iter().flat_map(|(labels, problems)| {
        problems.iter().map(move |problem| {
            let severity = ("severity", problem.severity.label());
            let reason = ("reason", problem.reason.as_str());
            ([&labels[..], &[severity, reason]].concat(), 1_u64)
        })
    });
    gauges.write(
        &format!("cistern_{noun}_problem"),
        &format!("1 for each current problem of a {noun}."),
        problems,
    )
}

/// A state set: 1 for the state of the most severe problem, 0 for all others.
fn state_set<S: States>(problems: &[Problem<S>]) -> impl Iterator<Item = (&'static str, u64)> {
    let worst = problems.iter().map(|problem| problem.severity).max();
    let states = S::STATES.iter();
    states.map(move |(label, severity)| (*label, u64::from(*severity == worst)))
}

/// The labels of a volume.
pub(super) fn of_volume(volume: &PoolVolume) -> [(&'static str, &str); 2] {
    [
        ("volume", name(volume)),
        ("pool", volume.spec.pool_name.as_str()),
    ]
}

/// Name of a volume.
pub(super) fn name(volume: &PoolVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use cistern_crds::health::VolumeSeverity;

    use super::*;

    #[test]
    fn exactly_one_state_holds_and_it_is_that_of_the_worst_problem() {
        let problem = |severity| Problem {
            severity,
            reason: "ImageMissing".to_owned(),
            message: String::new(),
            since: DateTime::default(),
        };
        let holding = |problems: &[_]| -> Vec<&str> {
            let states = state_set::<VolumeSeverity>(problems);
            states
                .filter(|(_, holds)| *holds == 1)
                .map(|it| it.0)
                .collect()
        };
        assert_eq!(holding(&[]), ["healthy"]);
        let degraded = problem(VolumeSeverity::Degraded);
        assert_eq!(holding(std::slice::from_ref(&degraded)), ["degraded"]);
        let lost = problem(VolumeSeverity::DataLoss);
        assert_eq!(holding(&[lost, degraded]), ["data_loss"]);
        assert_eq!(VolumeSeverity::Inaccessible.label(), "inaccessible");
    }
}
