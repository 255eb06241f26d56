//! The status of one pool. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionStatus, ConditionType, NodePoolStatus, PoolProblem, Provisioning, Reason,
    bounds,
    condition::{self, ConditionUpdate},
    health,
};
use cistern_host::{Pool, PoolStatistics, logical::VolumeGroup};

use crate::agent::{
    admission::{Closed, Ledger},
    pools::{PoolAvailability, PoolState, Usable},
};

/// The least change of the free space that is worth a write, in percent of the empty filesystem:
/// every write to a thin volume changes it.
const FREE_MOVED: u32 = 1;

/// The status of a pool without its conditions; None for a pool that is gone.
pub(super) fn status(
    pool_state: &PoolState,
    before: Option<&NodePoolStatus>,
    ledger: &Ledger,
    closed: Option<&Closed>,
) -> Option<NodePoolStatus> {
    let mut status = before.cloned().unwrap_or_default();
    status.name.clone_from(&pool_state.spec.name);
    status.uid.clone_from(&pool_state.spec.uid);
    status.reserved = ledger.reserved();
    status.volumes = ledger.volumes();
    status.snapshots = ledger.snapshots();
    status.reserved_for_snapshots = ledger.reserved_for_snapshots();
    status.usable = ledger.usable();
    status.belongs_to = None;
    match &pool_state.found {
        PoolAvailability::Gone => return None,
        PoolAvailability::Unusable { owner, .. } => status.belongs_to.clone_from(owner),
        PoolAvailability::Usable(Usable {
            pool,
            statistics,
            file,
            ..
        }) => {
            status.filesystem_uuid = Some(pool.pool_uuid().to_string());
            status.takeovers = pool.takeovers();
            note_use(&mut status, statistics);
            status.empty = statistics.empty;
            let unit = pool.group().map(VolumeGroup::unit);
            status.size_unit = unit.filter(|unit| *unit > Bytes::mib(1));
            status.size = file.as_ref().map_or(statistics.size, |file| file.size);
            let is_device = pool_state.spec.source.device.is_some();
            let images = pool.images();
            // The schema rejects longer texts.
            let device = images.filter(|_| is_device);
            let device = device.map(|pool| pool.device().display().to_string());
            status.device = device.map(|path| bounds::truncate(path, bounds::DEVICE));
            let identity = images.and_then(Pool::device_identity);
            let identity = identity.filter(|text| text.len() <= bounds::DEVICE_IDENTITY);
            status.device_identity = identity.map(str::to_owned);
        }
    }
    let is_open = pool_state.usable().is_some() && closed.is_none();
    let room = |provisioning| {
        if is_open {
            // Volume sizes are multiples of 1 MiB, reservations of snapshots are not.
            ledger.room(provisioning).round_down_to_mib()
        } else {
            Bytes::ZERO
        }
    };
    status.thin_room = room(Provisioning::Thin);
    status.thick_room = room(Provisioning::Thick);
    Some(status)
}

/// Records the used and free space, if the free space has changed by [`FREE_MOVED`] percent since
/// the last record, or the empty size of the pool has changed. An idle filesystem takes and frees
/// some blocks, too.
fn note_use(status: &mut NodePoolStatus, statistics: &PoolStatistics) {
    let PoolStatistics {
        empty, available, ..
    } = *statistics;
    let moved = Bytes(status.free.0.abs_diff(available.0));
    if status.empty != empty || moved >= empty.percent(FREE_MOVED) {
        let used = empty.saturating_sub(available);
        status.used = used.round_up_to_mib().unwrap_or(used);
        status.free = available.round_down_to_mib();
    }
}

/// All pools in one text, for a column of kubectl.
pub(super) fn summary(pools: &[NodePoolStatus]) -> String {
    let each = pools.iter().map(|pool| {
        let room = if pool.is_ready() {
            pool.largest_volume_of_any().to_string()
        } else {
            "not ready".to_owned()
        };
        format!("{}: {room}", pool.name)
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Sets the `Ready` condition.
pub(super) fn with_ready(
    mut status: NodePoolStatus,
    pool_state: &PoolState,
    closed: Option<&Closed>,
    generation: Option<i64>,
    now: DateTime<Utc>,
) -> NodePoolStatus {
    let ready = |holds: bool, reason, message: String| {
        ConditionUpdate::new(ConditionType::Ready, holds, reason, message)
    };
    let message = closed.map(Closed::to_string).unwrap_or_default();
    let finding = match &pool_state.found {
        PoolAvailability::Unusable { why, .. } => ready(false, why.reason, why.message.clone()),
        PoolAvailability::Usable(_) | PoolAvailability::Gone if pool_state.spec.retiring => {
            ready(true, Reason::Retiring, message)
        }
        PoolAvailability::Usable(_) | PoolAvailability::Gone if pool_state.spec.cordoned => {
            ready(true, Reason::Cordoned, message)
        }
        PoolAvailability::Usable(_) | PoolAvailability::Gone => {
            ready(true, Reason::Reconciled, message)
        }
    };
    condition::set(&mut status.conditions, &finding, generation, now);
    status
}

/// Sets the problems and the `Healthy` condition. Keeps the last ones until the pool was observed.
pub(super) fn with_healthy(
    mut status: NodePoolStatus,
    problems: Option<Vec<PoolProblem>>,
    generation: Option<i64>,
    now: DateTime<Utc>,
) -> NodePoolStatus {
    let is_reported = condition::find(&status.conditions, ConditionType::Healthy).is_some();
    let finding = match problems {
        Some(problems) => {
            status.problems = problems;
            health::healthy(&status.problems)
        }
        None if is_reported => return status,
        None => ConditionUpdate::new(
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
    fn a_pool_reports_its_problems_after_the_first_observation() {
        let healthy = |status: &NodePoolStatus| {
            let found = condition::find(&status.conditions, ConditionType::Healthy).unwrap();
            (found.status.clone(), found.reason.clone())
        };
        let reported = |status, problems| with_healthy(status, problems, None, DateTime::default());
        let unknown = reported(NodePoolStatus::default(), None);
        assert_eq!(healthy(&unknown), ("Unknown".into(), "Pending".into()));
        let problem = PoolProblem {
            severity: PoolSeverity::Unreachable,
            reason: Reason::ProbeFailed.to_string(),
            message: "it failed".to_owned(),
            since: DateTime::default(),
        };
        let sick = reported(unknown, Some(vec![problem]));
        assert_eq!(healthy(&sick), ("False".into(), "ProbeFailed".into()));
        // A restarted agent that has not observed the pool yet.
        assert_eq!(reported(sick.clone(), None), sick);
        let well = reported(sick, Some(Vec::new()));
        assert_eq!(healthy(&well), ("True".into(), "Reconciled".into()));
        assert!(well.problems.is_empty());
    }

    #[test]
    fn r05_what_is_in_use_is_reported_again_only_when_it_has_changed_by_one_percent() {
        let mut status = NodePoolStatus::default();
        let mut seen = |empty: u64, available: u64| {
            let statistics = PoolStatistics {
                size: Bytes::gib(11),
                empty: Bytes::mib(empty),
                available: Bytes(available),
            };
            note_use(&mut status, &statistics);
            status.empty = statistics.empty;
            (status.used, status.free)
        };
        let (mib, one) = (1 << 20, Bytes::mib(1));
        assert_eq!(seen(1000, 1000 * mib), (Bytes::ZERO, Bytes::mib(1000)));
        assert_eq!(seen(1000, 991 * mib), (Bytes::ZERO, Bytes::mib(1000)));
        assert_eq!(seen(1000, 989 * mib + 1), (Bytes::mib(11), Bytes::mib(989)));
        assert_eq!(seen(1000, 998 * mib), (Bytes::mib(11), Bytes::mib(989)));
        assert_eq!(seen(1000, 999 * mib), (one, Bytes::mib(999)));
        // The pool has grown by less than that.
        assert_eq!(seen(1001, 1000 * mib), (one, Bytes::mib(1000)));
    }

    #[test]
    fn the_summary_lists_every_pool_of_a_node() {
        let pool = |name: &str, is_ready: bool| {
            let mut pool = NodePoolStatus {
                name: name.to_owned(),
                thin_room: Bytes::gib(2),
                usable: Bytes::gib(4),
                ..NodePoolStatus::default()
            };
            let ready = ConditionUpdate::new(ConditionType::Ready, is_ready, Reason::Pending, "");
            condition::set(&mut pool.conditions, &ready, None, DateTime::default());
            pool
        };
        let pools = [pool("fast", true), pool("slow", false)];
        assert_eq!(summary(&pools), "fast: 2Gi, slow: not ready");
        assert_eq!(summary(&[]), "");
    }
}
