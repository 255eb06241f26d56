//! What the comparisons found.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, Utc};
use cistern_crds::{
    StorageNodeStatus,
    drift::{Drift as DriftFinding, Orphan},
};
use parking_lot::Mutex;

use super::tracked::compared;
use crate::agent::tracker::{Changes, Tracker};

/// The findings of the comparisons.
#[derive(Debug, Default)]
pub struct Drift {
    state: Mutex<Option<State>>,
    /// Held while the host is read, so that a hanging read is not repeated.
    pub(super) inventory_lock: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct State {
    findings: Tracker<DriftFinding>,
    /// By UID of the pool.
    orphans: BTreeMap<String, Tracker<Orphan>>,
}

/// The findings of one comparison.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) findings: Vec<DriftFinding>,
    /// By UID of the pool, without the pools that could not be read.
    pub(super) orphans: BTreeMap<String, Vec<Orphan>>,
}

impl Drift {
    /// The drift by kind and object. None before the first comparison: then the previous status holds.
    pub fn findings(&self) -> Option<Vec<DriftFinding>> {
        let state = self.state.lock();
        let findings = &state.as_ref()?.findings;
        Some(findings.reported().cloned().collect())
    }

    /// The unclaimed images of a pool, the oldest orphans first. A status lists the first of them. None
    /// before a comparison has read the pool.
    pub fn orphans(&self, pool_uid: &str) -> Option<Vec<Orphan>> {
        let state = self.state.lock();
        let orphans = state.as_ref()?.orphans.get(pool_uid)?;
        let mut orphans: Vec<Orphan> = orphans.reported().cloned().collect();
        orphans.sort_by(|a, b| (a.since, &a.image).cmp(&(b.since, &b.image)));
        Some(orphans)
    }

    /// The start times of the orphans of a pool, by name of the image. `reported` is the status,
    /// for the first comparison.
    pub(super) fn since(
        &self,
        reported: &StorageNodeStatus,
        pool_uid: &str,
    ) -> BTreeMap<String, DateTime<Utc>> {
        let mut guard = self.state.lock();
        let state = guard.get_or_insert_with(|| State::of(reported));
        let orphans = state.orphans.get(pool_uid).into_iter();
        let orphans = orphans.flat_map(Tracker::all);
        orphans.map(|it| (it.image.clone(), it.since)).collect()
    }

    /// Records a comparison. `reported` is the status, for the first one.
    pub(super) fn note(
        &self,
        reported: &StorageNodeStatus,
        found: Comparison,
        now: DateTime<Utc>,
    ) -> ComparisonChanges {
        let mut guard = self.state.lock();
        let state = guard.get_or_insert_with(|| State::of(reported));
        let findings = compared(&mut state.findings, found.findings, now);
        let mut orphans = BTreeMap::new();
        for (pool, found) in found.orphans {
            let tracker = state.orphans.entry(pool.clone()).or_default();
            orphans.insert(pool, compared(tracker, found, now));
        }
        ComparisonChanges { findings, orphans }
    }
}

/// The changes of a comparison.
#[derive(Debug)]
pub(super) struct ComparisonChanges {
    pub(super) findings: Changes<DriftFinding>,
    pub(super) orphans: BTreeMap<String, Changes<Orphan>>,
}

impl ComparisonChanges {
    /// Whether anything changed since the last comparison: a finding is new, confirmed or gone.
    pub(super) fn has_changes(&self) -> bool {
        let mut orphans = self.orphans.values();
        self.findings.has_any() || orphans.any(Changes::has_any)
    }

    pub(super) fn log(&self) {
        for finding in &self.findings.added {
            let DriftFinding {
                kind,
                object,
                message,
                ..
            } = finding;
            tracing::warn!(kind, object, message, "found drift");
        }
        for DriftFinding { kind, object, .. } in &self.findings.removed {
            tracing::info!(kind, object, "drift is resolved");
        }
        for (pool, changes) in &self.orphans {
            for orphan in &changes.added {
                let owner = orphan.identity.as_ref().map(|identity| &identity.name);
                let (image, size) = (&orphan.image, orphan.size);
                tracing::warn!(pool_uid = pool, image, ?owner, %size, "found an orphaned image");
            }
            for Orphan { image, .. } in &changes.removed {
                tracing::info!(
                    pool_uid = pool,
                    image,
                    "an orphaned image is claimed again, or removed"
                );
            }
        }
    }
}

impl State {
    /// The state that an earlier agent left in the status.
    fn of(reported: &StorageNodeStatus) -> Self {
        let pools = reported.pools.iter();
        Self {
            findings: Tracker::resume(&reported.drift),
            orphans: pools
                .map(|pool| (pool.uid.clone(), Tracker::resume(&pool.orphans)))
                .collect(),
        }
    }
}
