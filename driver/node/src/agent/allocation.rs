//! Thick volumes whose blocks could not all be allocated again, and why.
//!
//! This is in memory. Staging and each reconcile of a volume try again and record the result here.
//! The health of the volume reports it.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Errors because of which volumes lack blocks, by name of the volume.
#[derive(Debug, Default)]
pub struct Unallocated(Mutex<HashMap<String, String>>);

impl Unallocated {
    /// Records why a volume lacks blocks.
    pub fn lacks(&self, volume: &str, why: String) {
        self.0.lock().insert(volume.to_owned(), why);
    }

    /// Records that a volume has all of its blocks, or that it is gone.
    pub fn forget(&self, volume: &str) {
        self.0.lock().remove(volume);
    }

    /// The error because of which a volume lacks blocks, if it does.
    pub fn of(&self, volume: &str) -> Option<String> {
        self.0.lock().get(volume).cloned()
    }
}
