use cistern_crds::{
    Bytes, ConditionStatus, ConditionType, PoolVolumeStatus,
    condition::{self, ConditionUpdate},
    health::{PoolProblem, Problem},
};

use super::*;
use crate::{
    objects::{listing::Listed as _, nodes},
    testing::{at, ready_volume},
};

fn problem<Severity>(severity: Severity, reason: Reason) -> Problem<Severity> {
    Problem {
        severity,
        reason: reason.to_string(),
        message: format!("it is {reason}"),
        since: at(100),
    }
}

fn volume(problems: Vec<VolumeProblem>) -> ListedVolume {
    let mut volume = ready_volume();
    let status = volume.status.take().unwrap();
    volume.status = Some(PoolVolumeStatus { problems, ..status });
    ListedVolume::of(&volume).unwrap()
}

fn node(problems: Vec<PoolProblem>) -> StorageNode {
    let mut node = nodes::tests::node("node-1", Bytes::gib(1), Bytes::gib(1));
    node.status.as_mut().unwrap().pools[0].problems = problems;
    node
}

fn silent(reason: Reason) -> StorageNode {
    let mut node = node(Vec::new());
    let status = ConditionStatus::Unknown;
    let finding = ConditionUpdate::new(ConditionType::Healthy, status, reason, "no agent answers");
    let conditions = &mut node.status.as_mut().unwrap().conditions;
    condition::set(conditions, &finding, None, at(100));
    node
}

fn keys(problems: &[VolumeProblem]) -> Vec<(VolumeSeverity, &str)> {
    let keys = problems
        .iter()
        .map(|problem| (problem.severity, problem.reason.as_str()));
    keys.collect()
}

#[test]
fn vco_02_a_volume_without_a_problem_on_a_node_that_reports_is_well() {
    let well = problems(&volume(Vec::new()), Some(&node(Vec::new())));
    assert_eq!(well, []);
}

#[test]
fn clh_05_clh_06_a_new_problem_stands_beside_an_older_one_and_none_is_there_twice() {
    use VolumeSeverity::{Degraded, Inaccessible};
    let counted = problem(Degraded, Reason::FilesystemErrors);
    let unreachable = node(vec![problem(
        PoolSeverity::Unreachable,
        Reason::ProbeTimedOut,
    )]);
    let both = problems(&volume(vec![counted.clone()]), Some(&unreachable));
    let expected = [
        (Degraded, "FilesystemErrors"),
        (Inaccessible, "PoolNotReady"),
    ];
    assert_eq!(keys(&both), expected);
    assert_eq!(both[1].message, "volume pvc-1: it is ProbeTimedOut");
    // The agent has reported it already.
    let said = problem(Inaccessible, Reason::PoolNotReady);
    let once = problems(&volume(vec![said.clone(), counted]), Some(&unreachable));
    assert_eq!(once.len(), 2);
    assert_eq!(once[0], said);
}

#[test]
fn a_degraded_pool_is_reported_for_the_pool_alone() {
    let full = node(vec![problem(PoolSeverity::Degraded, Reason::NearlyFull)]);
    assert_eq!(problems(&volume(Vec::new()), Some(&full)), []);
}

#[test]
fn vco_02_a_volume_is_not_healthy_while_its_node_does_not_report() {
    use VolumeSeverity::{Degraded, Inaccessible};
    let reported = |node: Option<&StorageNode>| {
        let found = problems(&volume(Vec::new()), node);
        found
            .first()
            .map(|p| (p.severity, Reason::parse(&p.reason).unwrap()))
    };
    let of = |reason| reported(Some(&silent(reason)));
    let expected = |severity, reason| Some((severity, reason));
    let agent = Reason::AgentNotReady;
    assert_eq!(of(agent), expected(Degraded, agent));
    let missing = Reason::NodeMissing;
    assert_eq!(of(missing), expected(Inaccessible, missing));
    assert_eq!(
        of(Reason::NodeGone),
        expected(Inaccessible, Reason::NodeGone)
    );
    assert_eq!(reported(None), expected(Inaccessible, missing));
    // The operator has not checked yet.
    assert_eq!(of(Reason::Pending), None);
}
