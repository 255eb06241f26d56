//! What is said of one pool. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionStatus, ConditionType, NodePoolStatus, PoolProblem, Provisioning, Reason,
    condition::{self, Finding},
    health,
};
use kube::ResourceExt;

use crate::agent::{
    desired::Holdings,
    ledger::Ledger,
    pools::{Found, PoolLook, Usable},
};

/// What is said of a pool, but for its condition; none of one that is gone.
pub(super) fn status(
    look: &PoolLook,
    before: Option<&NodePoolStatus>,
    ledger: &Ledger,
    closed: Option<&str>,
) -> Option<NodePoolStatus> {
    let mut status = before.cloned().unwrap_or_default();
    status.name.clone_from(&look.spec.name);
    status.uid.clone_from(&look.spec.uid);
    status.reserved = ledger.promised();
    status.volumes = ledger.volumes();
    status.snapshots = ledger.snapshots();
    status.reserved_for_snapshots = ledger.promised_to_snapshots();
    status.usable = ledger.usable();
    status.belongs_to = None;
    match &look.found {
        Found::Gone => return None,
        Found::Unusable { owner, .. } => status.belongs_to.clone_from(owner),
        Found::Usable(Usable {
            pool,
            statistics,
            file,
            ..
        }) => {
            status.filesystem_uuid = Some(pool.filesystem_uuid().to_string());
            status.empty = statistics.empty;
            status.size = file.as_ref().map_or(statistics.size, |file| file.size);
            let is_device = look.spec.source.device.is_some();
            status.device = is_device.then(|| pool.device().display().to_string());
            // What the schema does not take tells nothing.
            let identity = pool.device_identity().filter(|text| text.len() <= 1024);
            status.device_identity = identity.map(str::to_owned);
        }
    }
    let is_open = look.usable().is_some() && closed.is_none();
    let room = |provisioning| {
        if is_open {
            // What a snapshot holds is no multiple of it, and a volume's size is.
            ledger.room(provisioning).round_down_to_mib()
        } else {
            Bytes::ZERO
        }
    };
    status.thin_room = room(Provisioning::Thin);
    status.thick_room = room(Provisioning::Thick);
    Some(status)
}

/// A column of kubectl shows one value, however many pools there are.
pub(super) fn summary(pools: &[NodePoolStatus]) -> String {
    let each = pools.iter().map(|pool| {
        let room = if pool.is_ready() {
            pool.thin_room.to_string()
        } else {
            "not ready".to_owned()
        };
        format!("{}: {room}", pool.name)
    });
    each.collect::<Vec<_>>().join(", ")
}

/// What a pool says that is to leave the node, and what holds it there.
pub(super) fn leaving(holdings: &Holdings) -> String {
    let volumes = holdings.volumes().map(ResourceExt::name_any).collect();
    let snapshots = holdings.snapshots().map(ResourceExt::name_any).collect();
    let held = [named("volumes", volumes), named("snapshots", snapshots)];
    let held: Vec<String> = held.into_iter().flatten().collect();
    if held.is_empty() {
        return "the pool leaves this node as soon as it is empty".to_owned();
    }
    let held = held.join("; ");
    format!("the pool leaves this node when it is empty; it still holds {held}")
}

/// Some of the names; none where there are none.
fn named(kind: &str, mut names: Vec<String>) -> Option<String> {
    const NAMED: usize = 5;
    names.sort_unstable();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    names.truncate(NAMED);
    (!names.is_empty()).then(|| format!("{kind} {}{more}", names.join(", ")))
}

pub(super) fn with_ready(
    mut status: NodePoolStatus,
    look: &PoolLook,
    closed: Option<String>,
    generation: Option<i64>,
    now: DateTime<Utc>,
) -> NodePoolStatus {
    let ready = |holds: bool, reason, message: String| {
        Finding::new(ConditionType::Ready, holds, reason, message)
    };
    let finding = match &look.found {
        Found::Unusable {
            reason, message, ..
        } => ready(false, *reason, message.clone()),
        Found::Usable(_) | Found::Gone if look.spec.retiring => {
            ready(true, Reason::Retiring, closed.unwrap_or_default())
        }
        Found::Usable(_) | Found::Gone => {
            ready(true, Reason::AsDesired, closed.unwrap_or_default())
        }
    };
    condition::set(&mut status.conditions, &finding, generation, now);
    status
}

/// What is wrong with a pool; what was said before where nobody has looked yet.
pub(super) fn with_healthy(
    mut status: NodePoolStatus,
    problems: Option<Vec<PoolProblem>>,
    generation: Option<i64>,
    now: DateTime<Utc>,
) -> NodePoolStatus {
    let is_told = condition::find(&status.conditions, ConditionType::Healthy).is_some();
    let finding = match problems {
        Some(problems) => {
            status.problems = problems;
            health::healthy(&status.problems)
        }
        None if is_told => return status,
        None => Finding::new(
            ConditionType::Healthy,
            ConditionStatus::Unknown,
            Reason::Pending,
            "",
        ),
    };
    condition::set(&mut status.conditions, &finding, generation, now);
    status
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolSeverity;

    use super::*;

    #[test]
    fn a_pool_tells_what_is_wrong_with_it_as_soon_as_somebody_has_looked() {
        let healthy = |status: &NodePoolStatus| {
            let found = condition::find(&status.conditions, ConditionType::Healthy).unwrap();
            (found.status.clone(), found.reason.clone())
        };
        let told = |status, problems| with_healthy(status, problems, None, DateTime::default());
        let unknown = told(NodePoolStatus::default(), None);
        assert_eq!(healthy(&unknown), ("Unknown".into(), "Pending".into()));
        let problem = PoolProblem {
            severity: PoolSeverity::Unreachable,
            reason: Reason::ProbeFailed.to_string(),
            message: "it failed".to_owned(),
            since: DateTime::default(),
        };
        let sick = told(unknown, Some(vec![problem]));
        assert_eq!(healthy(&sick), ("False".into(), "ProbeFailed".into()));
        // Another process, which has not looked yet.
        assert_eq!(told(sick.clone(), None), sick);
        let well = told(sick, Some(Vec::new()));
        assert_eq!(healthy(&well), ("True".into(), "AsDesired".into()));
        assert!(well.problems.is_empty());
    }

    #[test]
    fn every_pool_of_a_node_is_seen_at_a_glance() {
        let pool = |name: &str, is_ready: bool| {
            let mut pool = NodePoolStatus {
                name: name.to_owned(),
                thin_room: Bytes::gib(2),
                ..NodePoolStatus::default()
            };
            let ready = Finding::new(ConditionType::Ready, is_ready, Reason::Pending, "");
            condition::set(&mut pool.conditions, &ready, None, DateTime::default());
            pool
        };
        let pools = [pool("fast", true), pool("slow", false)];
        assert_eq!(summary(&pools), "fast: 2Gi, slow: not ready");
        assert_eq!(summary(&[]), "");
    }

    #[test]
    fn a_pool_that_leaves_names_what_holds_it_and_stays_short() {
        assert!(leaving(&Holdings::default()).ends_with("as soon as it is empty"));
        let names = ["pvc-2", "pvc-1"].map(str::to_owned).to_vec();
        assert_eq!(named("volumes", names).unwrap(), "volumes pvc-1, pvc-2");
        let many = (0..1000)
            .map(|number| format!("snapshot-{number}"))
            .collect();
        let message = named("snapshots", many).unwrap();
        assert!(message.ends_with(" and 995 more"), "{message}");
        assert_eq!(named("snapshots", Vec::new()), None);
    }
}
