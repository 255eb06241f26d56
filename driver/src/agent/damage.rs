//! Filesystems that the Node service could not mount because they are damaged.
//!
//! The agent is the only writer of a PoolVolume's status, so what the Node service saw is kept here
//! until a pass says it there. From then on the status remembers it, also for the next process.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use cistern_crds::{ConditionType, PoolVolume, Reason, condition};
use kube::ResourceExt as _;

/// What was seen last, by name of the volume. Only those are in it that were damaged once.
#[derive(Debug, Default)]
pub struct Damage(Mutex<HashMap<String, Seen>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// It was not mounted: why.
    Damaged(String),
    /// It was mounted, after somebody has mended it.
    Mended,
}

impl Damage {
    /// Takes note of a filesystem that was not mounted.
    pub fn damaged(&self, volume: &str, why: String) {
        self.lock().insert(volume.to_owned(), Seen::Damaged(why));
    }

    /// Takes note of a filesystem that was mounted; false where it is not known to have been
    /// damaged.
    pub fn mounted(&self, name: &str, volume: Option<&PoolVolume>) -> bool {
        let mut all = self.lock();
        let was_damaged = all.contains_key(name) || volume.is_some_and(|v| told(v).is_some());
        if was_damaged {
            all.insert(name.to_owned(), Seen::Mended);
        }
        was_damaged
    }

    /// The damage of a volume's filesystem, if there is any.
    pub fn of(&self, volume: &PoolVolume) -> Option<String> {
        match self.lock().get(&volume.name_any()) {
            Some(Seen::Damaged(why)) => Some(why.clone()),
            Some(Seen::Mended) => None,
            None => told(volume),
        }
    }

    /// Forgets a volume that is gone.
    pub fn forget(&self, volume: &str) {
        self.lock().remove(volume);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The damage that a volume's status tells of.
fn told(volume: &PoolVolume) -> Option<String> {
    let status = volume.status.as_ref()?;
    let ready = condition::find(&status.conditions, ConditionType::Ready)?;
    (ready.reason == Reason::FilesystemDamaged.as_str()).then(|| ready.message.clone())
}

#[cfg(test)]
mod tests {
    use cistern_crds::condition::Finding;

    use super::*;
    use crate::testing::{at, ready_volume};

    fn damaged_volume() -> PoolVolume {
        let mut volume = ready_volume();
        let reason = Reason::FilesystemDamaged;
        let finding = Finding::new(ConditionType::Ready, false, reason, "broken");
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
        damage.damaged(&name, "broken".to_owned());
        assert_eq!(damage.of(&well).as_deref(), Some("broken"));

        let next = Damage::default();
        assert_eq!(next.of(&broken).as_deref(), Some("broken"));
        assert!(next.mounted(&name, Some(&broken)));
        // Until the status says so too.
        assert_eq!(next.of(&broken), None);
        assert_eq!(next.of(&well), None);
    }
}
