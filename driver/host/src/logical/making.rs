//! [`Making`]: which logical volumes this process is making, so that they are not taken for what an interrupted call left.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// The logical volumes that are being made, as LVM names them.
static ALL: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A logical volume is being made while this value lives.
#[derive(Debug)]
pub(super) struct Making(String);

impl Making {
    /// Begins to make a logical volume. One caller makes a volume at a time.
    pub(super) fn begin(path: String) -> Self {
        ALL.lock().insert(path.clone());
        Self(path)
    }

    /// Whether a logical volume is being made.
    pub(super) fn includes(path: &str) -> bool {
        ALL.lock().contains(path)
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        ALL.lock().remove(&self.0);
    }
}
