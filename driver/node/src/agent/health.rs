//! How the pools and volumes of this node are.
//!
//! ```text
//! rounds ─▶ what the host sees ─▶ judgement ─▶ course ─▶ Health ─▶ status, CSI, metrics
//! (a task for each pool)           (pure)       (pure)
//! ```
//!
//! *Invariant:* this is memory: whoever asks waits for no disk. What it says stands in the status of
//! the StorageNode and the PoolVolumes as well, and a restart of the agent resumes from there.

pub mod course;
mod examine;
pub mod judgement;
pub mod rounds;

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use chrono::{DateTime, Utc};
use cistern_crds::{
    PoolSeverity, PoolVolume, Reason, VolumeSeverity,
    health::{PoolProblem, Problem, VolumeProblem},
};

use kube::ResourceExt as _;

use self::course::{Course, Sight, Sighting};
use super::volume::status;

/// What is known to be wrong on this node. Only what was looked at is in it.
#[derive(Debug, Default)]
pub struct Health {
    pools: Courses<PoolSeverity>,
    volumes: Courses<VolumeSeverity>,
    probes: Mutex<BTreeMap<String, Probe>>,
}

/// What the last probe of a pool means to whoever would touch it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Probe {
    /// Its disk did not answer, so that nobody else should ask it.
    hangs: bool,
    bar: Option<Bar>,
}

/// Why a pool that is open must not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

impl Health {
    /// What is wrong with a volume; nothing also where nobody has looked yet.
    pub fn of_volume(&self, name: &str) -> Vec<VolumeProblem> {
        self.volumes.of(name).unwrap_or_default()
    }

    /// What is wrong with a pool; nothing also where nobody has looked yet.
    pub fn of_pool(&self, name: &str) -> Vec<PoolProblem> {
        self.pools.of(name).unwrap_or_default()
    }

    /// What is wrong with a pool; none where nobody has looked yet.
    pub fn known_of_pool(&self, name: &str) -> Option<Vec<PoolProblem>> {
        self.pools.of(name)
    }

    /// Whether a pool is told to have a problem.
    pub fn tells_of_pool(&self, name: &str, reason: Reason) -> bool {
        let pools = self.pools.lock();
        pools.get(name).is_some_and(|course| course.tells(reason))
    }

    /// What is wrong with a volume, if its status tells something else. What nobody has looked at is no
    /// news, nor is a volume whose data is being destroyed.
    pub fn news_of(&self, volume: &PoolVolume) -> Option<Vec<VolumeProblem>> {
        let problems = self.volumes.of(&volume.name_any())?;
        let status = volume.status.as_ref()?;
        let is_news = !status::tells(status, &problems);
        (is_news && !volume.spec.deletion_requested).then_some(problems)
    }

    /// Every volume that was looked at, by name, with what is wrong with it.
    pub fn volumes(&self) -> BTreeMap<String, Vec<VolumeProblem>> {
        self.volumes.all()
    }

    /// Every pool that was looked at, by name, with what is wrong with it.
    pub fn pools(&self) -> BTreeMap<String, Vec<PoolProblem>> {
        self.pools.all()
    }

    /// What stands against using a pool that is open, as far as this process has seen it. What keeps
    /// a pool from being opened is not among it: that is found out by opening it.
    pub fn bar_to(&self, pool: &str) -> Option<Bar> {
        self.probes().get(pool)?.bar.clone()
    }

    /// Whether the last probe of a pool had no answer.
    pub fn hangs(&self, pool: &str) -> bool {
        self.probes().get(pool).is_some_and(|probe| probe.hangs)
    }

    /// Takes note of what a probe of an open pool saw; says whether that is something else to those
    /// who would use the pool than before.
    pub fn probed(
        &self,
        pool: &str,
        told: &[PoolProblem],
        (seen, sight): (Vec<Sighting<PoolSeverity>>, Sight),
        now: DateTime<Utc>,
    ) -> bool {
        let mut reasons: Vec<Reason> = seen.iter().map(|sighting| sighting.reason).collect();
        let hangs = reasons.contains(&Reason::ProbeTimedOut);
        self.saw_pool(pool, told, (seen, sight), now);
        let before = self.probes().get(pool).cloned().unwrap_or_default();
        // What was told before this process began is no bar until it is seen again.
        reasons.extend(before.bar.as_ref().map(|bar| bar.reason));
        let bars = self.of_pool(pool).into_iter().filter_map(|problem| {
            let reason = Reason::parse(&problem.reason)?;
            let is_bar = is_of_probe(reason)
                && problem.severity == PoolSeverity::Unreachable
                && reasons.contains(&reason);
            is_bar.then_some(Bar {
                reason,
                message: problem.message,
            })
        });
        let probe = Probe {
            hangs,
            // What says how to recover goes first.
            bar: bars.max_by_key(|bar| bar.reason == Reason::FilesystemShutDown),
        };
        let is_news = probe != before;
        self.probes().insert(pool.to_owned(), probe);
        is_news
    }

    fn probes(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Probe>> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what a look saw of a pool. `told` is what its status tells, for the first look.
    pub fn saw_pool(
        &self,
        name: &str,
        told: &[PoolProblem],
        (seen, sight): (Vec<Sighting<PoolSeverity>>, Sight),
        now: DateTime<Utc>,
    ) {
        self.pools.look(name, told, (seen, sight), now);
    }

    /// Takes note of what a look saw of a volume, as [`Self::saw_pool`] does.
    pub fn saw_volume(
        &self,
        name: &str,
        told: &[VolumeProblem],
        (seen, sight): (Vec<Sighting<VolumeSeverity>>, Sight),
        now: DateTime<Utc>,
    ) {
        self.volumes.look(name, told, (seen, sight), now);
    }

    /// Forgets a volume that is gone.
    pub fn forget_volume(&self, name: &str) {
        self.volumes.forget(name);
    }

    /// Forgets the pools that the node is not to carry any more.
    pub fn retain_pools(&self, names: &[&str]) {
        let keep = |name: &String| names.contains(&name.as_str());
        self.pools.lock().retain(|name, _| keep(name));
        self.probes().retain(|name, _| keep(name));
    }
}

/// Whether a probe finds it out, and not the opening of the pool.
fn is_of_probe(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::ProbeTimedOut | Reason::ProbeFailed | Reason::FilesystemShutDown | Reason::ReadOnly
    )
}

/// The problems of all volumes, or of all pools, by name.
#[derive(Debug)]
struct Courses<Severity>(Mutex<BTreeMap<String, Course<Severity>>>);

impl<Severity> Default for Courses<Severity> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Severity: Copy + Ord> Courses<Severity> {
    /// Takes note of what a look saw of one. `told` is what its status tells, for the first look.
    fn look(
        &self,
        name: &str,
        told: &[Problem<Severity>],
        (seen, sight): (Vec<Sighting<Severity>>, Sight),
        now: DateTime<Utc>,
    ) {
        let mut all = self.lock();
        let course = all.entry(name.to_owned());
        let course = course.or_insert_with(|| Course::resume(told));
        course.look(seen, sight, now);
    }

    /// The problems of one; none where nobody has looked yet.
    fn of(&self, name: &str) -> Option<Vec<Problem<Severity>>> {
        self.lock().get(name).map(Course::problems)
    }

    fn all(&self) -> BTreeMap<String, Vec<Problem<Severity>>> {
        let all = self.lock();
        let each = all
            .iter()
            .map(|(name, course)| (name.clone(), course.problems()));
        each.collect()
    }

    fn forget(&self, name: &str) {
        self.lock().remove(name);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Course<Severity>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolSeverity::Unreachable;

    use super::{course::Certainty, *};
    use crate::testing::at;

    fn seen(reason: Reason) -> (Vec<Sighting<PoolSeverity>>, Sight) {
        let sighting = Sighting {
            severity: Unreachable,
            reason,
            message: reason.to_string(),
            certainty: Certainty::Certain,
        };
        (vec![sighting], Sight::Full)
    }

    fn well() -> (Vec<Sighting<PoolSeverity>>, Sight) {
        (Vec::new(), Sight::Full)
    }

    #[test]
    fn a_pool_that_fails_its_probe_is_barred_until_two_probes_are_well() {
        let health = Health::default();
        let failed = seen(Reason::ProbeFailed);
        assert!(health.probed("fast", &[], failed, at(0)));
        let bar = health.bar_to("fast").unwrap();
        assert_eq!(bar.reason, Reason::ProbeFailed);
        assert!(!health.probed("fast", &[], well(), at(10)));
        assert!(health.bar_to("fast").is_some());
        assert!(health.probed("fast", &[], well(), at(20)));
        assert_eq!(health.bar_to("fast"), None);
        assert_eq!(health.bar_to("slow"), None);
    }

    #[test]
    fn what_keeps_a_pool_from_being_opened_or_was_told_by_another_process_is_no_bar() {
        let health = Health::default();
        health.probed("fast", &[], seen(Reason::NotMounted), at(0));
        assert_eq!(health.bar_to("fast"), None);
        let told = PoolProblem {
            severity: Unreachable,
            reason: Reason::ProbeFailed.to_string(),
            message: "it failed".to_owned(),
            since: at(0),
        };
        let told = [told];
        health.probed("slow", &told, well(), at(10));
        assert_eq!(health.of_pool("slow"), told);
        assert_eq!(health.bar_to("slow"), None);
        health.probed("slow", &told, seen(Reason::ProbeFailed), at(20));
        assert!(health.bar_to("slow").is_some());
        assert_eq!(health.of_pool("slow")[0].since, at(0));
    }

    #[test]
    fn nobody_else_asks_a_disk_that_does_not_answer() {
        let health = Health::default();
        let hung = || (seen(Reason::ProbeTimedOut).0, Sight::Partial);
        assert!(health.probed("fast", &[], hung(), at(0)));
        assert!(health.hangs("fast") && !health.hangs("slow"));
        health.probed("fast", &[], well(), at(10));
        assert!(!health.hangs("fast"));
    }
}
