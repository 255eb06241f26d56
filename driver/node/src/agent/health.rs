//! Health of the pools and volumes of this node.
//!
//! ```text
//! rounds ─▶ what the host sees ─▶ judgement ─▶ tracker ─▶ Health ─▶ status, CSI, metrics
//! (a task for each pool)           (pure)       (pure)
//! ```
//!
//! *Invariant:* the state is in memory, so that no reader waits for a disk. It is also in the
//! status of the StorageNode and the PoolVolumes, from which a restarted agent resumes.

mod examine;
pub mod judgement;
pub mod rounds;
pub mod tracker;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use cistern_crds::{
    Explanation, PoolSeverity, PoolVolume, Reason, VolumeSeverity,
    health::{PoolProblem, Problem, VolumeProblem},
};
use kube::ResourceExt as _;
use parking_lot::Mutex;

use self::tracker::{Observation, ProblemTracker, Visibility};
use super::volume::status;

/// The known problems of this node. It holds only observed objects.
#[derive(Debug, Default)]
pub struct Health {
    pools: ProblemTrackers<PoolSeverity>,
    volumes: ProblemTrackers<VolumeSeverity>,
    probes: Mutex<BTreeMap<String, Probe>>,
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
    /// Problems of a volume; empty also before the first observation.
    pub fn of_volume(&self, name: &str) -> Vec<VolumeProblem> {
        self.volumes.of(name).unwrap_or_default()
    }

    /// Problems of a pool; empty also before the first observation.
    pub fn of_pool(&self, name: &str) -> Vec<PoolProblem> {
        self.pools.of(name).unwrap_or_default()
    }

    /// Problems of a pool; None before the first observation.
    pub fn known_of_pool(&self, name: &str) -> Option<Vec<PoolProblem>> {
        self.pools.of(name)
    }

    /// Whether a problem of a pool is reported.
    pub fn reports_of_pool(&self, name: &str, reason: Reason) -> bool {
        let pools = self.pools.0.lock();
        pools
            .get(name)
            .is_some_and(|tracker| tracker.reports(reason))
    }

    /// Problems of a volume, if its status reports others. None for a volume that was not observed
    /// or whose data is being destroyed.
    pub fn unreported_problems(&self, volume: &PoolVolume) -> Option<Vec<VolumeProblem>> {
        let problems = self.volumes.of(&volume.name_any())?;
        let status = volume.status.as_ref()?;
        let has_changed = !status::reports(status, &problems);
        (has_changed && !volume.spec.deletion_requested).then_some(problems)
    }

    /// Problems of every observed volume, by name.
    pub fn volumes(&self) -> BTreeMap<String, Vec<VolumeProblem>> {
        self.volumes.all()
    }

    /// Problems of every observed pool, by name.
    pub fn pools(&self) -> BTreeMap<String, Vec<PoolProblem>> {
        self.pools.all()
    }

    /// What blocks the use of an open pool, as observed by this process. Problems that prevent
    /// opening are excluded: opening the pool detects them.
    pub fn blocker_of(&self, pool: &str) -> Option<Explanation> {
        self.probes.lock().get(pool)?.blocker.clone()
    }

    /// Whether the last probe of a pool timed out.
    pub fn hangs(&self, pool: &str) -> bool {
        self.probes
            .lock()
            .get(pool)
            .is_some_and(|probe| probe.hangs)
    }

    /// Records a probe of an open pool. Returns whether its usability changed.
    pub fn probed(
        &self,
        pool: &str,
        reported: &[PoolProblem],
        (seen, visibility): (Vec<Observation<PoolSeverity>>, Visibility),
        now: DateTime<Utc>,
    ) -> bool {
        let mut reasons: Vec<Reason> = seen.iter().map(|observation| observation.reason).collect();
        let hangs = reasons.contains(&Reason::ProbeTimedOut);
        self.observed_pool(pool, reported, (seen, visibility), now);
        let before = self.probes.lock().get(pool).cloned().unwrap_or_default();
        // A problem that was reported before this process started blocks nothing until it is seen
        // again.
        reasons.extend(before.blocker.as_ref().map(|blocker| blocker.reason));
        let blockers = self.of_pool(pool).into_iter().filter_map(|problem| {
            let reason = Reason::parse(&problem.reason)?;
            let is_blocker = is_of_probe(reason)
                && problem.severity == PoolSeverity::Unreachable
                && reasons.contains(&reason);
            is_blocker.then_some(Explanation {
                reason,
                message: problem.message,
            })
        });
        let probe = Probe {
            hangs,
            // A message that says how to recover takes precedence.
            blocker: blockers.max_by_key(|blocker| blocker.reason == Reason::FilesystemShutDown),
        };
        let has_changed = probe != before;
        self.probes.lock().insert(pool.to_owned(), probe);
        has_changed
    }

    /// Records an observation of a pool. `reported` is its status, for the first one.
    pub fn observed_pool(
        &self,
        name: &str,
        reported: &[PoolProblem],
        (seen, visibility): (Vec<Observation<PoolSeverity>>, Visibility),
        now: DateTime<Utc>,
    ) {
        self.pools.observe(name, reported, (seen, visibility), now);
    }

    /// Records an observation of a volume, as [`Self::observed_pool`] does.
    pub fn observed_volume(
        &self,
        name: &str,
        reported: &[VolumeProblem],
        (seen, visibility): (Vec<Observation<VolumeSeverity>>, Visibility),
        now: DateTime<Utc>,
    ) {
        self.volumes
            .observe(name, reported, (seen, visibility), now);
    }

    /// Forgets a volume that is gone.
    pub fn forget_volume(&self, name: &str) {
        self.volumes.forget(name);
    }

    /// Forgets the pools that are no longer in the node's spec.
    pub fn retain_pools(&self, names: &[&str]) {
        let keep = |name: &String| names.contains(&name.as_str());
        self.pools.0.lock().retain(|name, _| keep(name));
        self.probes.lock().retain(|name, _| keep(name));
    }
}

/// Whether a probe detects the problem, not the opening of the pool.
fn is_of_probe(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::ProbeTimedOut | Reason::ProbeFailed | Reason::FilesystemShutDown | Reason::ReadOnly
    )
}

/// The problems of all volumes, or of all pools, by name.
#[derive(Debug)]
struct ProblemTrackers<Severity>(Mutex<BTreeMap<String, ProblemTracker<Severity>>>);

impl<Severity> Default for ProblemTrackers<Severity> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Severity: Copy + Ord> ProblemTrackers<Severity> {
    /// Records an observation of one object. `reported` is its status, for the first one.
    fn observe(
        &self,
        name: &str,
        reported: &[Problem<Severity>],
        (seen, visibility): (Vec<Observation<Severity>>, Visibility),
        now: DateTime<Utc>,
    ) {
        let mut all = self.0.lock();
        let tracker = all.entry(name.to_owned());
        let tracker = tracker.or_insert_with(|| ProblemTracker::resume(reported));
        tracker.observe(seen, visibility, now);
    }

    /// The problems of one object; None before the first observation.
    fn of(&self, name: &str) -> Option<Vec<Problem<Severity>>> {
        self.0.lock().get(name).map(ProblemTracker::problems)
    }

    fn all(&self) -> BTreeMap<String, Vec<Problem<Severity>>> {
        let all = self.0.lock();
        let each = all
            .iter()
            .map(|(name, tracker)| (name.clone(), tracker.problems()));
        each.collect()
    }

    fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolSeverity::Unreachable;

    use super::{tracker::Certainty, *};
    use crate::testing::at;

    fn seen(reason: Reason) -> (Vec<Observation<PoolSeverity>>, Visibility) {
        let observation = Observation {
            severity: Unreachable,
            reason,
            message: reason.to_string(),
            certainty: Certainty::Certain,
        };
        (vec![observation], Visibility::Full)
    }

    fn well() -> (Vec<Observation<PoolSeverity>>, Visibility) {
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
        assert_eq!(health.of_pool("slow"), reported);
        assert_eq!(health.blocker_of("slow"), None);
        health.probed("slow", &reported, seen(Reason::ProbeFailed), at(20));
        assert!(health.blocker_of("slow").is_some());
        assert_eq!(health.of_pool("slow")[0].since, at(0));
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
