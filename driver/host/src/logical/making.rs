//! [`Making`]: which logical volumes this process is making or removing, so that one that is being made is not taken
//! for what an interrupted call left; and in which groups it takes extents that others must not get.

use std::collections::BTreeSet;

use parking_lot::{Condvar, Mutex};

/// The logical volumes that are being made or swept, and the groups whose extents are being taken, as LVM names them.
static ALL: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// One of them has ended.
static ENDED: Condvar = Condvar::new();

/// A logical volume is being made, or swept, while this value lives; or it alone takes extents of a group.
#[derive(Debug)]
pub(super) struct Making(String);

impl Making {
    /// Begins to make a logical volume, or to take extents of a group. Waits while another value has it.
    pub(super) fn begin(path: String) -> Self {
        let mut all = ALL.lock();
        while !all.insert(path.clone()) {
            ENDED.wait(&mut all);
        }
        Self(path)
    }

    /// Begins to sweep a logical volume; none while it is being made.
    pub(super) fn unless_made(path: String) -> Option<Self> {
        ALL.lock().insert(path.clone()).then(|| Self(path))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        ALL.lock().remove(&self.0);
        ENDED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_volume_is_either_made_or_swept() {
        let path = || "group/volume".to_owned();
        let making = Making::begin(path());
        assert!(Making::unless_made(path()).is_none());
        assert!(Making::unless_made("group/other".to_owned()).is_some());
        drop(making);
        let sweeping = Making::unless_made(path()).unwrap();
        let waiting = thread::spawn(move || drop(Making::begin(path())));
        drop(sweeping);
        waiting.join().unwrap();
        assert!(Making::unless_made("group/volume".to_owned()).is_some());
    }

    #[test]
    fn extents_of_one_group_are_taken_by_one_call_at_a_time_and_those_of_another_meanwhile() {
        let taking = Making::begin("busy".to_owned());
        drop(Making::begin("busy/volume".to_owned()));
        drop(Making::begin("idle".to_owned()));
        let waiting = thread::spawn(|| drop(Making::begin("busy".to_owned())));
        assert!(Making::unless_made("busy".to_owned()).is_none());
        drop(taking);
        waiting.join().unwrap();
    }
}
