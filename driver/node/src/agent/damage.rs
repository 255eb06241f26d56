//! Filesystems that the Node service could not mount because they are damaged, or too large to be
//! checked.
//!
//! The agent is the only writer of a PoolVolume's status, so the observation of the Node service is
//! kept here until a reconcile writes it there. From then on the status holds it, also for the next
//! process.

use std::collections::HashMap;

use cistern_crds::{ConditionType, PoolVolume, Reason, condition};
use kube::ResourceExt as _;
use parking_lot::Mutex;

/// Reasons why a filesystem is not mounted until an administrator repairs it.
pub const REASONS: [Reason; 2] = [Reason::FilesystemDamaged, Reason::TooLargeToCheck];

/// The last observation by name of the volume, only of volumes that were damaged once.
#[derive(Debug, Default)]
pub struct Damage(Mutex<HashMap<String, Seen>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// The filesystem was not mounted: reason and message.
    Damaged(Reason, String),
    /// The filesystem was mounted after a repair.
    Repaired,
}

impl Damage {
    /// Records a filesystem that was not mounted, for one of [`REASONS`].
    pub fn damaged(&self, volume: &str, reason: Reason, why: String) {
        let seen = Seen::Damaged(reason, why);
        self.0.lock().insert(volume.to_owned(), seen);
    }

    /// Records a mounted filesystem. Returns false if it is not known to have been damaged.
    pub fn mounted(&self, name: &str, volume: Option<&PoolVolume>) -> bool {
        let mut all = self.0.lock();
        let was_damaged = all.contains_key(name) || volume.is_some_and(|v| reported(v).is_some());
        if was_damaged {
            all.insert(name.to_owned(), Seen::Repaired);
        }
        was_damaged
    }

    /// The reason and the message why a volume's filesystem was not mounted, if it was not.
    pub fn of(&self, volume: &PoolVolume) -> Option<(Reason, String)> {
        match self.0.lock().get(&volume.name_any()) {
            Some(Seen::Damaged(reason, why)) => Some((*reason, why.clone())),
            Some(Seen::Repaired) => None,
            None => reported(volume),
        }
    }

    /// Forgets a volume that is gone.
    pub fn forget(&self, volume: &str) {
        self.0.lock().remove(volume);
    }
}

/// The reason and the message in the status of a volume whose filesystem was not mounted.
fn reported(volume: &PoolVolume) -> Option<(Reason, String)> {
    let status = volume.status.as_ref()?;
    let ready = condition::find(&status.conditions, ConditionType::Ready)?;
    let reason = Reason::parse(&ready.reason).filter(|reason| REASONS.contains(reason))?;
    Some((reason, ready.message.clone()))
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

    #[test]
    fn damage_is_known_until_the_volume_is_mounted_also_to_the_next_process() {
        let (well, broken) = (ready_volume(), damaged_volume());
        let name = well.name_any();
        let damage = Damage::default();
        assert!(!damage.mounted(&name, Some(&well)));
        let why = (Reason::TooLargeToCheck, "large".to_owned());
        damage.damaged(&name, why.0, why.1.clone());
        assert_eq!(damage.of(&well), Some(why));

        let next = Damage::default();
        let why = (Reason::FilesystemDamaged, "broken".to_owned());
        assert_eq!(next.of(&broken), Some(why));
        assert!(next.mounted(&name, Some(&broken)));
        // The status still reports the damage.
        assert_eq!(next.of(&broken), None);
        assert_eq!(next.of(&well), None);
    }
}
