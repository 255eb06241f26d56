//! What the Node service, the reconciles and the health checks observe of volumes in use, until a status
//! reports it.
//!
//! The agent is the only writer of a PoolVolume's status, and a starting pod does not wait for a write.
//! Missing blocks of thick volumes are only in memory: staging and each reconcile try to allocate them
//! again.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionType, Explanation, PoolVolume, PoolVolumeStatus, Reason, VolumeProblem,
    VolumeSeverity, condition, health,
};
use kube::ResourceExt as _;
use parking_lot::Mutex;

use super::problems::{ProblemTracker, Seen};

/// Reasons for which a filesystem is not mounted: it is damaged, or too large to be checked.
const DAMAGE: [Reason; 2] = [Reason::FilesystemDamaged, Reason::TooLargeToCheck];

/// The latest observations by name of the volume.
#[derive(Debug, Default)]
pub struct Observations(Mutex<HashMap<String, Observed>>);

#[derive(Debug, Default)]
struct Observed {
    mount: Option<MountResult>,
    growth: Option<Growth>,
    /// Why blocks are missing.
    unallocated: Option<String>,
    /// The problems that the health checks saw; None before the first check.
    problems: Option<ProblemTracker<VolumeSeverity>>,
}

#[derive(Debug)]
enum MountResult {
    /// The filesystem was not mounted, for one of [`DAMAGE`].
    Damaged(Explanation),
    /// The filesystem was mounted after a repair.
    Repaired,
}

/// The result of growing a filesystem to the size of its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Growth {
    /// The filesystem fills its image.
    Complete,
    /// The filesystem is smaller than its image, because of the error.
    Incomplete(String),
}

impl Observations {
    /// Records a filesystem that was not mounted because it is damaged or too large to be checked.
    pub fn damaged(&self, volume: &str, why: Explanation) {
        self.update(volume, |seen| seen.mount = Some(MountResult::Damaged(why)));
    }

    /// Records a mounted filesystem. Returns whether the status must report it: it was damaged.
    pub fn mounted(&self, name: &str, volume: Option<&PoolVolume>) -> bool {
        let mut all = self.0.lock();
        let is_known = all.get(name).is_some_and(|seen| seen.mount.is_some());
        let was_damaged = is_known || volume.is_some_and(|v| reported_damage(v).is_some());
        if was_damaged {
            all.entry(name.to_owned()).or_default().mount = Some(MountResult::Repaired);
        }
        was_damaged
    }

    /// Why a volume's filesystem was not mounted; None if it was mounted. The status holds the
    /// reason from the first report on, so that the next process reads it there.
    pub fn damage_of(&self, volume: &PoolVolume) -> Option<Explanation> {
        let all = self.0.lock();
        let seen = all.get(&volume.name_any());
        match seen.and_then(|seen| seen.mount.as_ref()) {
            Some(MountResult::Damaged(why)) => Some(why.clone()),
            Some(MountResult::Repaired) => None,
            None => reported_damage(volume),
        }
    }

    /// Records the result of growing a filesystem. Returns whether the status must report it: the
    /// filesystem does not fill its image, or did not before.
    pub fn grew(&self, name: &str, growth: Growth, volume: Option<&PoolVolume>) -> bool {
        let must_report = growth != Growth::Complete
            || volume.is_some_and(reports_smaller)
            || self.growth_of(name).is_some();
        if must_report {
            self.update(name, |seen| seen.growth = Some(growth));
        }
        must_report
    }

    /// The unreported result of growing a volume's filesystem.
    pub fn growth_of(&self, volume: &str) -> Option<Growth> {
        self.0.lock().get(volume)?.growth.clone()
    }

    /// Forgets a reported result, unless there is a later one.
    pub fn growth_reported(&self, volume: &str, growth: &Growth) {
        self.update(volume, |seen| {
            seen.growth.take_if(|latest| latest == growth);
        });
    }

    /// Records why a thick volume lacks blocks; None if it has all of them.
    pub fn allocated(&self, volume: &str, missing: Option<String>) {
        self.update(volume, |seen| seen.unallocated = missing);
    }

    /// Why a thick volume lacks blocks; None if it has all of them.
    pub fn unallocated(&self, volume: &str) -> Option<String> {
        self.0.lock().get(volume)?.unallocated.clone()
    }

    /// Records an examination of a volume. `reported` is its status, for the first one.
    pub fn examined(
        &self,
        volume: &str,
        reported: &[VolumeProblem],
        seen: Seen<VolumeSeverity>,
        now: DateTime<Utc>,
    ) {
        self.update(volume, |it| {
            let problems = &mut it.problems;
            let tracker = problems.get_or_insert_with(|| ProblemTracker::resume(reported));
            tracker.saw(seen, now);
        });
    }

    /// Problems of a volume; None before the first examination.
    pub fn problems_of(&self, volume: &str) -> Option<Vec<VolumeProblem>> {
        let all = self.0.lock();
        let problems = all.get(volume)?.problems.as_ref()?;
        Some(problems.problems())
    }

    /// Problems of a volume, if its status reports others. None for a volume that was not examined
    /// or whose data is being destroyed.
    pub fn unreported_problems(&self, volume: &PoolVolume) -> Option<Vec<VolumeProblem>> {
        let problems = self.problems_of(&volume.name_any())?;
        let status = volume.status.as_ref()?;
        let has_changed = !reports(status, &problems);
        (has_changed && !volume.spec.deletion_requested).then_some(problems)
    }

    /// Problems of every examined volume, by name.
    pub fn problems(&self) -> BTreeMap<String, Vec<VolumeProblem>> {
        let all = self.0.lock();
        let each = all.iter().filter_map(|(name, seen)| {
            let problems = seen.problems.as_ref()?.problems();
            Some((name.clone(), problems))
        });
        each.collect()
    }

    /// Forgets a volume that is gone.
    pub fn forget(&self, volume: &str) {
        self.0.lock().remove(volume);
    }

    fn update(&self, volume: &str, change: impl FnOnce(&mut Observed)) {
        change(self.0.lock().entry(volume.to_owned()).or_default());
    }
}

/// Whether a status reports exactly these problems.
pub fn reports(status: &PoolVolumeStatus, problems: &[VolumeProblem]) -> bool {
    let finding = health::healthy(problems);
    let condition = condition::find(&status.conditions, ConditionType::Healthy);
    status.problems == problems
        && condition.is_some_and(|condition| condition.status == finding.status.as_str())
}

/// Whether a status reports a filesystem that is smaller than its image.
fn reports_smaller(volume: &PoolVolume) -> bool {
    let status = volume.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    condition::find(conditions, ConditionType::Expanded)
        .is_some_and(|expanded| expanded.reason == Reason::FilesystemSmaller.as_str())
}

fn reported_damage(volume: &PoolVolume) -> Option<Explanation> {
    let status = volume.status.as_ref()?;
    let ready = condition::find(&status.conditions, ConditionType::Ready)?;
    let reason = Reason::parse(&ready.reason).filter(|reason| DAMAGE.contains(reason))?;
    let message = ready.message.clone();
    Some(Explanation::new(reason, message))
}

#[cfg(test)]
mod tests {
    use cistern_crds::condition::ConditionUpdate;

    use super::*;
    use crate::testing::{at, ready_volume};

    fn damaged_volume() -> PoolVolume {
        let mut volume = ready_volume();
        let reason = Reason::FilesystemDamaged;
        let finding = ConditionUpdate::new(ConditionType::Ready, false, reason, "broken");
        let conditions = &mut volume.status.as_mut().unwrap().conditions;
        condition::set(conditions, &finding, None, at(0));
        volume
    }

    fn why(reason: Reason, message: &str) -> Explanation {
        let message = message.to_owned();
        Explanation::new(reason, message)
    }

    #[test]
    fn damage_is_known_until_the_volume_is_mounted_also_to_the_next_process() {
        let (well, broken) = (ready_volume(), damaged_volume());
        let name = well.name_any();
        let first = Observations::default();
        assert!(!first.mounted(&name, Some(&well)));
        let large = why(Reason::TooLargeToCheck, "large");
        first.damaged(&name, large.clone());
        assert_eq!(first.damage_of(&well), Some(large));

        let next = Observations::default();
        let damage = why(Reason::FilesystemDamaged, "broken");
        assert_eq!(next.damage_of(&broken), Some(damage));
        assert!(next.mounted(&name, Some(&broken)));
        // The status still reports the damage.
        assert_eq!(next.damage_of(&broken), None);
        assert_eq!(next.damage_of(&well), None);
    }

    #[test]
    fn a_growth_that_ends_during_a_write_is_kept() {
        let observations = Observations::default();
        let smaller = Growth::Incomplete("mounted".to_owned());
        assert!(!observations.grew("a", Growth::Complete, None));
        assert_eq!(observations.growth_of("a"), None);
        assert!(observations.grew("a", smaller.clone(), None));
        assert_eq!(observations.growth_of("a"), Some(smaller.clone()));
        assert!(observations.grew("a", Growth::Complete, None));
        observations.growth_reported("a", &smaller);
        assert_eq!(observations.growth_of("a"), Some(Growth::Complete));
        observations.growth_reported("a", &Growth::Complete);
        assert_eq!(observations.growth_of("a"), None);
    }
}
