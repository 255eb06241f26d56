//! Thick volumes whose blocks could not all be allocated again, and why.
//!
//! This is memory. Whoever stages a volume, and each pass over it, tries again and says here what
//! came of that; the health of the volume tells it to people.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Why a volume lacks blocks, by its name.
#[derive(Debug, Default)]
pub struct Unallocated(Mutex<HashMap<String, String>>);

impl Unallocated {
    /// Takes note of why a volume lacks blocks.
    pub fn lacks(&self, volume: &str, why: String) {
        self.lock().insert(volume.to_owned(), why);
    }

    /// Takes note that a volume has all of its blocks, or that it is gone.
    pub fn forget(&self, volume: &str) {
        self.lock().remove(volume);
    }

    /// Why a volume lacks blocks, if it does.
    pub fn of(&self, volume: &str) -> Option<String> {
        self.lock().get(volume).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
