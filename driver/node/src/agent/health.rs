//! Health of the pools of this node. [`super::observations`] has the health of the volumes.
//!
//! ```text
//! rounds ─▶ what the host sees ─▶ judgement ─▶ tracker ─▶ Health, Observations ─▶ status, CSI, metrics
//! (a task for each pool)           (pure)       (pure)
//! ```
//!
//! *Invariant:* the state is in memory, so that no reader waits for a disk. It is also in the
//! status of the StorageNode and the PoolVolumes, from which a restarted agent resumes.

mod examine;
mod limits;
pub mod pool_judgement;
pub mod rounds;
pub mod volume_judgement;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use cistern_crds::{Explanation, PoolSeverity, Reason, health::PoolProblem};
use parking_lot::Mutex;

use super::problems::{ProblemTracker, Seen};

/// The known problems of the pools of this node. It holds only observed pools.
#[derive(Debug, Default)]
pub struct Health(Mutex<BTreeMap<String, PoolHealth>>);

#[derive(Debug, Default)]
struct PoolHealth {
    problems: ProblemTracker<PoolSeverity>,
    probe: Probe,
}

/// The result of the last probe of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Probe {
    /// Its disk did not answer, so that no other operation may use it.
    hangs: bool,
    /// Why the open pool must not be used.
    blocker: Option<Explanation>,
}

impl Health {
    /// Problems of a pool; None before the first observation.
    pub fn known_of(&self, pool: &str) -> Option<Vec<PoolProblem>> {
        self.0.lock().get(pool).map(|pool| pool.problems.problems())
    }

    /// Problems of every observed pool, by name.
    pub fn all(&self) -> BTreeMap<String, Vec<PoolProblem>> {
        let pools = self.0.lock();
        let each = pools
            .iter()
            .map(|(name, pool)| (name.clone(), pool.problems.problems()));
        each.collect()
    }

    /// Whether a problem of a pool is reported.
    pub fn reports(&self, pool: &str, reason: Reason) -> bool {
        let pools = self.0.lock();
        pools
            .get(pool)
            .is_some_and(|pool| pool.problems.reports(reason))
    }

    /// What blocks the use of an open pool, as observed by this process. Problems that prevent
    /// opening are excluded: opening the pool detects them.
    pub fn blocker_of(&self, pool: &str) -> Option<Explanation> {
        self.0.lock().get(pool)?.probe.blocker.clone()
    }

    /// Whether the last probe of a pool timed out.
    pub fn hangs(&self, pool: &str) -> bool {
        let pools = self.0.lock();
        pools.get(pool).is_some_and(|pool| pool.probe.hangs)
    }

    /// Records an observation of a pool. `reported` is its status, for the first one.
    pub fn observed(
        &self,
        pool: &str,
        reported: &[PoolProblem],
        seen: Seen<PoolSeverity>,
        now: DateTime<Utc>,
    ) {
        self.update(pool, reported, |pool| pool.problems.saw(seen, now));
    }

    /// Records a probe of an open pool. Returns whether its usability changed.
    pub fn probed(
        &self,
        pool: &str,
        reported: &[PoolProblem],
        seen: Seen<PoolSeverity>,
        now: DateTime<Utc>,
    ) -> bool {
        self.update(pool, reported, |pool| pool.probed(seen, now))
    }

    /// Forgets the pools that are no longer in the node's spec.
    pub fn retain(&self, names: &[&str]) {
        self.0
            .lock()
            .retain(|name, _| names.contains(&name.as_str()));
    }

    /// Forgets a pool that is removed. A pool that takes its place is another.
    pub fn forget(&self, pool: &str) {
        self.0.lock().remove(pool);
    }

    fn update<T>(
        &self,
        pool: &str,
        reported: &[PoolProblem],
        change: impl FnOnce(&mut PoolHealth) -> T,
    ) -> T {
        let mut pools = self.0.lock();
        let health = pools.entry(pool.to_owned());
        change(health.or_insert_with(|| PoolHealth {
            problems: ProblemTracker::resume(reported),
            probe: Probe::default(),
        }))
    }
}

impl PoolHealth {
    fn probed(&mut self, seen: Seen<PoolSeverity>, now: DateTime<Utc>) -> bool {
        let mut reasons: Vec<Reason> = seen.0.iter().map(|it| it.reason).collect();
        let hangs = reasons.contains(&Reason::ProbeTimedOut);
        self.problems.saw(seen, now);
        // A problem that was reported before this process started blocks nothing until it is seen
        // again.
        reasons.extend(self.probe.blocker.as_ref().map(|blocker| blocker.reason));
        let blockers = self.problems.problems().into_iter().filter_map(|problem| {
            let reason = Reason::parse(&problem.reason)?;
            let is_blocker = is_of_probe(reason)
                && problem.severity == PoolSeverity::Unreachable
                && reasons.contains(&reason);
            is_blocker.then(|| Explanation::new(reason, problem.message))
        });
        let probe = Probe {
            hangs,
            // A message that says how to recover takes precedence.
            blocker: blockers.max_by_key(|blocker| blocker.reason == Reason::FilesystemShutDown),
        };
        let has_changed = probe != self.probe;
        self.probe = probe;
        has_changed
    }
}

/// Whether a probe detects the problem, not the opening of the pool.
fn is_of_probe(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::ProbeTimedOut | Reason::ProbeFailed | Reason::FilesystemShutDown | Reason::ReadOnly
    )
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolSeverity::Unreachable;

    use super::*;
    use crate::{
        agent::{
            problems::Observation,
            tracker::{Certainty, Visibility},
        },
        testing::at,
    };

    fn seen(reason: Reason) -> Seen<PoolSeverity> {
        let observation = Observation {
            severity: Unreachable,
            reason,
            message: reason.to_string(),
            certainty: Certainty::Certain,
        };
        (vec![observation], Visibility::Full)
    }

    fn well() -> Seen<PoolSeverity> {
        (Vec::new(), Visibility::Full)
    }

    #[test]
    fn a_pool_that_fails_its_probe_is_blocked_until_two_probes_succeed() {
        let health = Health::default();
        let failed = seen(Reason::ProbeFailed);
        assert!(health.probed("fast", &[], failed, at(0)));
        let blocker = health.blocker_of("fast").unwrap();
        assert_eq!(blocker.reason, Reason::ProbeFailed);
        assert!(!health.probed("fast", &[], well(), at(10)));
        assert!(health.blocker_of("fast").is_some());
        assert!(health.probed("fast", &[], well(), at(20)));
        assert_eq!(health.blocker_of("fast"), None);
        assert_eq!(health.blocker_of("slow"), None);
    }

    #[test]
    fn opening_problems_and_those_of_an_earlier_process_block_nothing() {
        let health = Health::default();
        health.probed("fast", &[], seen(Reason::NotMounted), at(0));
        assert_eq!(health.blocker_of("fast"), None);
        let reported = PoolProblem {
            severity: Unreachable,
            reason: Reason::ProbeFailed.to_string(),
            message: "it failed".to_owned(),
            since: at(0),
        };
        let reported = [reported];
        health.probed("slow", &reported, well(), at(10));
        assert_eq!(health.known_of("slow").unwrap(), reported);
        assert_eq!(health.blocker_of("slow"), None);
        health.probed("slow", &reported, seen(Reason::ProbeFailed), at(20));
        assert!(health.blocker_of("slow").is_some());
        assert_eq!(health.known_of("slow").unwrap()[0].since, at(0));
    }

    #[test]
    fn a_disk_that_does_not_answer_is_not_used() {
        let health = Health::default();
        let hung = || (seen(Reason::ProbeTimedOut).0, Visibility::Partial);
        assert!(health.probed("fast", &[], hung(), at(0)));
        assert!(health.hangs("fast") && !health.hangs("slow"));
        health.probed("fast", &[], well(), at(10));
        assert!(!health.hangs("fast"));
    }
}
