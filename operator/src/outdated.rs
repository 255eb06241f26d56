//! Records since when published capacity has been out of date, for the capacity controller and the
//! metrics.

use std::{collections::HashMap, time::Duration};

use cistern_crds::names;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::kinds::kubernetes;

/// Identifies one capacity object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Name of the StorageClass.
    pub class: String,
    /// The node's value of the topology key.
    pub segment: String,
}

impl Slot {
    /// The slot of a published object.
    pub(crate) fn of(object: &CSIStorageCapacity) -> Option<Self> {
        Some(Self {
            class: object.storage_class_name.clone(),
            segment: kubernetes::segment(object)?.to_owned(),
        })
    }

    /// Name of the object.
    pub(crate) fn object_name(&self) -> String {
        // Neither name contains a slash.
        let hash = names::short_hash(&format!("{}/{}", self.class, self.segment));
        format!("csisc-{hash}")
    }
}

/// Since when the published numbers have been out of date.
#[derive(Debug, Default)]
pub struct Outdated(Mutex<HashMap<Slot, Instant>>);

impl Outdated {
    /// Age of the slot that has been out of date for longest.
    pub fn longest(&self) -> Duration {
        let slots = self.0.lock();
        let longest = slots.values().map(Instant::elapsed).max();
        longest.unwrap_or_default()
    }

    /// Forgets all outdated slots.
    pub(crate) fn forget(&self) {
        let mut slots = self.0.lock();
        slots.clear();
    }

    /// Marks the slot as out of date and returns for how long it has been.
    pub(crate) fn age(&self, slot: &Slot) -> Duration {
        let mut slots = self.0.lock();
        slots
            .entry(slot.clone())
            .or_insert_with(Instant::now)
            .elapsed()
    }

    /// Marks the slot as up to date and returns for how long it was not.
    pub(crate) fn settle(&self, slot: &Slot) -> Option<Duration> {
        let mut slots = self.0.lock();
        slots.remove(slot).map(|since| since.elapsed())
    }
}
