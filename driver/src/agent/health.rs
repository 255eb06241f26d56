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

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use chrono::{DateTime, Utc};
use cistern_crds::{
    PoolSeverity, VolumeSeverity,
    health::{PoolProblem, Problem, VolumeProblem},
};

use self::course::{Course, Sight, Sighting};

/// What is known to be wrong on this node. Only what was looked at is in it.
#[derive(Debug, Default)]
pub struct Health {
    pools: Courses<PoolSeverity>,
    volumes: Courses<VolumeSeverity>,
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

    /// Every volume that was looked at, by name, with what is wrong with it.
    pub fn volumes(&self) -> BTreeMap<String, Vec<VolumeProblem>> {
        self.volumes.all()
    }

    /// Every pool that was looked at, by name, with what is wrong with it.
    pub fn pools(&self) -> BTreeMap<String, Vec<PoolProblem>> {
        self.pools.all()
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
        self.pools
            .lock()
            .retain(|name, _| names.contains(&name.as_str()));
    }
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
