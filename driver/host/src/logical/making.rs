//! [`Making`]: which logical volumes this process is making or removing, so that one that is being made is not taken for what an
//! interrupted call left.

use std::{collections::BTreeMap, io};

use parking_lot::{Condvar, Mutex};

/// The logical volumes that are being made or swept, as LVM names them, and whether that shall stop.
static ALL: Mutex<BTreeMap<String, bool>> = Mutex::new(BTreeMap::new());
/// One of them has ended.
static ENDED: Condvar = Condvar::new();

/// A logical volume is being made, or swept, while this value lives.
#[derive(Debug)]
pub(super) struct Making(String);

impl Making {
    /// Begins to make a logical volume. Waits while it is swept.
    pub(super) fn begin(path: String) -> Self {
        let mut all = ALL.lock();
        while all.contains_key(&path) {
            ENDED.wait(&mut all);
        }
        all.insert(path.clone(), false);
        Self(path)
    }

    /// Stops the making of a logical volume at its next occasion. Does nothing if it is not being made.
    pub(super) fn stop(path: &str) {
        if let Some(is_stopped) = ALL.lock().get_mut(path) {
            *is_stopped = true;
        }
    }

    /// Fails if the making shall stop.
    pub(super) fn go_on(&self) -> io::Result<()> {
        if ALL.lock().get(&self.0) == Some(&true) {
            return Err(io::Error::other("the volume is no longer wanted"));
        }
        Ok(())
    }

    /// Begins to sweep a logical volume; none while it is being made.
    pub(super) fn unless_made(path: String) -> Option<Self> {
        let mut all = ALL.lock();
        if all.contains_key(&path) {
            return None;
        }
        all.insert(path.clone(), false);
        Some(Self(path))
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
    fn the_making_of_one_volume_stops_and_the_next_attempt_goes_on() {
        let path = || "group/stopped".to_owned();
        Making::stop(&path());
        let making = Making::begin(path());
        making.go_on().unwrap();
        Making::stop("group/another");
        making.go_on().unwrap();
        Making::stop(&path());
        making.go_on().unwrap_err();
        drop(making);
        Making::begin(path()).go_on().unwrap();
    }
}
