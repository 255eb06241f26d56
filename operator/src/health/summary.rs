//! The condition `Healthy` of a StorageNode and of a StoragePool, summed up from the agents'
//! reports of each pool on each node.
//!
//! *Invariant:* pure. Unhealthy takes precedence over unknown, and unknown over healthy; nothing on a
//! node whose agent is silent is healthy.

use chrono::{DateTime, Duration, Utc};
use cistern_crds::{
    Condition, ConditionStatus, ConditionType, NodePoolStatus, Reason, StorageNode,
    StorageNodeStatus,
    condition::{self, ConditionUpdate},
    enumeration::first_clauses,
    health::{PoolSeverity, Problem},
    time,
};
use kube::ResourceExt as _;

use crate::registration::Registration;

/// How long an agent may be silent before the health is unknown. A new pod of the node plugin
/// starts within seconds, and the pools work meanwhile.
const GRACE: Duration = Duration::minutes(1);
/// Nodes or pools that a message names before it counts the rest.
const NAMED: usize = 4;

/// Health of a pool on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolHealth {
    /// Nothing is known to be wrong with it.
    Healthy,
    /// The health is unknown.
    Unknown(Reason, String),
    /// There are problems. The severity, reason and message are those of the worst one.
    Unhealthy(PoolSeverity, Reason, String),
}

/// `Healthy` of a StorageNode, and how long to wait before it is computed again, if time alone
/// changes it. `conditions` must contain the current `AgentReporting`.
pub fn of_node(
    node: &StorageNode,
    conditions: &[Condition],
    registration: &Registration,
    now: DateTime<Utc>,
) -> (ConditionUpdate, Option<Duration>) {
    let name = node.name_any();
    let unknown = |reason, message| {
        let status = ConditionStatus::Unknown;
        ConditionUpdate::new(ConditionType::Healthy, status, reason, message)
    };
    if registration.topology.reason == Reason::NodeMissing {
        let message = format!(
            "Node {name} is gone, and the state of its pools is unknown; if it does not come back: \
             kubectl cistern forget-node {name}"
        );
        return (unknown(Reason::NodeGone, message), None);
    }
    let agent = &registration.agent;
    let mut wait = None;
    if agent.status != ConditionStatus::True {
        let reporting = condition::find(conditions, ConditionType::AgentReporting);
        let since = reporting.map_or(now, |c| time::from_kubernetes(&c.last_transition_time));
        let rest = GRACE - (now - since);
        if rest <= Duration::zero() {
            let message = format!(
                "no agent has reported its pools since {}: {}; volumes in use go on, and nothing is deleted; \
                 look at the node and at the node plugin's pod there",
                since.format("%F %T UTC"),
                agent.message,
            );
            return (unknown(agent.reason, message), None);
        }
        wait = Some(rest);
    }
    let pools = node.spec.pools.iter().map(|pool| {
        let status = node.status_of(&pool.name);
        (format!("pool {}", pool.name), of_pool(status))
    });
    let well = |pools| match pools {
        0 => "the node carries no pool".to_owned(),
        1 => "nothing is known to be wrong with its pool".to_owned(),
        count => format!("nothing is known to be wrong with its {count} pools"),
    };
    (sum_up(&pools.collect::<Vec<_>>(), well), wait)
}

/// `Healthy` of a StoragePool, from its health on each of its nodes.
pub fn of_nodes(nodes: &[(String, PoolHealth)]) -> ConditionUpdate {
    sum_up(nodes, |nodes| match nodes {
        0 => "no node carries the pool".to_owned(),
        1 => "nothing is known to be wrong on its node".to_owned(),
        count => format!("nothing is known to be wrong on its {count} nodes"),
    })
}

/// Health of a pool on a node, from the report of the agent. Unknown if the agent is silent.
pub fn of_pool_on(node: &StorageNode, status: Option<&NodePoolStatus>) -> PoolHealth {
    let reported = node.status.as_ref();
    match reported.and_then(StorageNodeStatus::unknown_state) {
        Some((reason, healthy)) => PoolHealth::Unknown(reason, healthy.message.clone()),
        None => of_pool(status),
    }
}

fn of_pool(status: Option<&NodePoolStatus>) -> PoolHealth {
    let pending = |message: &str| PoolHealth::Unknown(Reason::Pending, message.to_owned());
    let Some(status) = status else {
        return pending("its agent has not reported it yet");
    };
    match Problem::worst(&status.problems) {
        Some(worst) => PoolHealth::Unhealthy(
            worst.severity,
            // A newer version wrote an unknown reason; the message explains it.
            Reason::parse(&worst.reason).unwrap_or(Reason::OtherProblem),
            worst.message.clone(),
        ),
        None if condition::find(&status.conditions, ConditionType::Healthy).is_none() => {
            pending("its agent has not probed it yet")
        }
        None => PoolHealth::Healthy,
    }
}

/// `Healthy` of an object with these named parts. `well` returns the message for a number of parts
/// that are all healthy.
fn sum_up(parts: &[(String, PoolHealth)], well: impl Fn(usize) -> String) -> ConditionUpdate {
    let finding = |status: ConditionStatus, reason, message: String| {
        ConditionUpdate::new(ConditionType::Healthy, status, reason, message)
    };
    let (mut unhealthy, mut unknown) = (Vec::new(), Vec::new());
    for (part, health) in parts {
        match health {
            PoolHealth::Healthy => {}
            PoolHealth::Unknown(reason, message) => unknown.push((*reason, part, message)),
            PoolHealth::Unhealthy(severity, reason, message) => {
                unhealthy.push((*severity, *reason, part, message));
            }
        }
    }
    // The worst first; parts of the same severity keep their order.
    unhealthy.sort_by_key(|(severity, ..)| std::cmp::Reverse(*severity));
    let unhealthy = unhealthy.into_iter();
    let unhealthy: Vec<_> = unhealthy
        .map(|(_, reason, part, message)| (reason, part, message))
        .collect();
    match (unhealthy.first(), unknown.first()) {
        (Some((reason, ..)), _) => finding(ConditionStatus::False, *reason, enumerate(&unhealthy)),
        (None, Some((reason, ..))) => {
            finding(ConditionStatus::Unknown, *reason, enumerate(&unknown))
        }
        (None, None) => {
            let message = well(parts.len());
            finding(ConditionStatus::True, Reason::Reconciled, message)
        }
    }
}

fn enumerate(parts: &[(Reason, &String, &String)]) -> String {
    let clauses = parts.iter().map(|(_, part, message)| {
        // Most messages name their object.
        if message.contains(part.as_str()) {
            (*message).clone()
        } else {
            format!("{part}: {message}")
        }
    });
    first_clauses(clauses, NAMED)
}

#[cfg(test)]
mod tests {
    use cistern_crds::Bytes;

    use super::*;
    use crate::testing::{moment, registered, storage_node};

    fn problem(severity: PoolSeverity, reason: Reason) -> Problem<PoolSeverity> {
        Problem {
            severity,
            reason: reason.to_string(),
            message: format!("it is {reason}"),
            since: moment(),
        }
    }

    /// A node with these pools, each with its problems.
    fn node(pools: &[(&str, &[Problem<PoolSeverity>])]) -> StorageNode {
        let mut node = storage_node("w1");
        for (pool, _) in pools {
            node = node.carrying(pool).with_room(pool, Bytes::gib(1));
        }
        let mut node = node.build();
        let status = node.status.as_mut().unwrap();
        for (status, (_, problems)) in status.pools.iter_mut().zip(pools) {
            status.problems = problems.to_vec();
            let healthy = cistern_crds::health::healthy(problems);
            condition::set(&mut status.conditions, &healthy, None, moment());
        }
        node
    }

    fn silent() -> Registration {
        let mut registration = registered("w1");
        registration.agent = ConditionUpdate::new(
            ConditionType::AgentReporting,
            false,
            Reason::AgentNotReady,
            "pod agent-w1 on w1 is not ready",
        );
        registration
    }

    fn parts_of(finding: &ConditionUpdate) -> (ConditionStatus, Reason, &str) {
        (finding.status, finding.reason, finding.message.as_str())
    }

    #[test]
    fn the_worst_problem_of_any_pool_is_the_one_that_the_node_has() {
        use PoolSeverity::{Degraded, Unreachable};
        let full = [problem(Degraded, Reason::NearlyFull)];
        let hung = [
            problem(Degraded, Reason::DeviceErrors),
            problem(Unreachable, Reason::ProbeTimedOut),
        ];
        let of = |node: &StorageNode| of_node(node, &[], &registered("w1"), moment()).0;
        let well = of(&node(&[("fast", &[])]));
        assert_eq!(well.status, ConditionStatus::True);
        let unhealthy = of(&node(&[("fast", &full), ("slow", &hung)]));
        let expected = "pool slow: it is ProbeTimedOut; pool fast: it is NearlyFull";
        assert_eq!(
            parts_of(&unhealthy),
            (ConditionStatus::False, Reason::ProbeTimedOut, expected)
        );
    }

    #[test]
    fn a_pool_that_was_not_probed_is_not_healthy() {
        let unreported = storage_node("w1").carrying("fast").build();
        let unlooked = storage_node("w1")
            .carrying("fast")
            .with_room("fast", Bytes::gib(1))
            .build();
        for node in [unreported, unlooked] {
            let (finding, _) = of_node(&node, &[], &registered("w1"), moment());
            assert_eq!(finding.status, ConditionStatus::Unknown);
            assert_eq!(finding.reason, Reason::Pending);
        }
    }

    #[test]
    fn a_silent_agent_is_reported_after_a_minute_and_not_at_a_restart() {
        let node = node(&[("fast", &[])]);
        let mut conditions = Vec::new();
        condition::set(&mut conditions, &silent().agent, None, moment());
        let after = |seconds| {
            let now = moment() + Duration::seconds(seconds);
            of_node(&node, &conditions, &silent(), now)
        };
        let (finding, wait) = after(20);
        assert_eq!(finding.status, ConditionStatus::True);
        assert_eq!(wait, Some(Duration::seconds(40)));
        let (finding, wait) = after(60);
        assert_eq!(
            (finding.status, finding.reason, wait),
            (ConditionStatus::Unknown, Reason::AgentNotReady, None)
        );
        for part in ["since 2027-01-15 08:00:00 UTC", "pod agent-w1"] {
            assert!(finding.message.contains(part), "{}", finding.message);
        }
    }

    #[test]
    fn a_pool_is_unknown_where_its_node_is_silent_or_gone_and_unwell_where_it_is_known_to_be() {
        let hung = [problem(PoolSeverity::Unreachable, Reason::ProbeTimedOut)];
        let mut heard = node(&[("fast", &hung)]);
        let status = |node: &StorageNode| node.status.clone().unwrap_or_default();
        let health = |node: &StorageNode| of_pool_on(node, status(node).pools.first());
        let unhealthy = health(&heard);
        assert!(matches!(unhealthy, PoolHealth::Unhealthy(..)));
        let unknown = ConditionUpdate::new(
            ConditionType::Healthy,
            ConditionStatus::Unknown,
            Reason::NodeMissing,
            "Node w2 is gone",
        );
        let StorageNodeStatus { conditions, .. } = heard.status.as_mut().unwrap();
        condition::set(conditions, &unknown, None, moment());
        let gone = health(&heard);
        assert_eq!(
            gone,
            PoolHealth::Unknown(Reason::NodeMissing, "Node w2 is gone".to_owned())
        );
        let parts = |all: &[(&str, &PoolHealth)]| {
            let owned = all
                .iter()
                .map(|(node, w)| ((*node).to_owned(), (*w).clone()));
            of_nodes(&owned.collect::<Vec<_>>())
        };
        let both = parts(&[
            ("w1", &unhealthy),
            ("w2", &gone),
            ("w3", &PoolHealth::Healthy),
        ]);
        assert_eq!(
            parts_of(&both),
            (
                ConditionStatus::False,
                Reason::ProbeTimedOut,
                "w1: it is ProbeTimedOut"
            )
        );
        let one = parts(&[("w2", &gone), ("w3", &PoolHealth::Healthy)]);
        assert_eq!(
            parts_of(&one),
            (
                ConditionStatus::Unknown,
                Reason::NodeMissing,
                "Node w2 is gone"
            )
        );
    }
}
