//! What on this node does not belong together, as `cistern-driver fsck` tells it.
//!
//! ```text
//! pass ─▶ what fsck finds ─▶ what two passes in a row have found ─▶ StorageNode.status, metrics
//!                                           └─▶ reclaim, where the pool has opted in
//! ```
//!
//! *Invariants:* a pass only looks, and nobody waits for one; what is under way is not told, because
//! a finding counts when two passes in a row have it; nothing is said while the view of the API is not
//! complete; and since when it is so survives a restart, in the status.

mod course;
mod elsewhere;
mod pass;
mod reclaim;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use cistern_crds::{
    StorageNodeStatus,
    health::{Drift as Told, LISTED, Orphan},
};
use tokio::time::sleep;

use self::{
    course::{Course, News},
    reclaim::Reclaims,
};
use super::Agent;

/// A pass that has found something new is followed by the next after this part of the interval.
const CONFIRMED_AFTER: u32 = 10;

/// What the passes have found.
#[derive(Debug, Default)]
pub struct Drift {
    state: Mutex<Option<State>>,
    /// Held by a look at the host: what hangs is not looked at twice.
    looking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct State {
    findings: Course<Told>,
    /// By UID of the pool.
    orphans: BTreeMap<String, Course<Orphan>>,
}

/// What one pass has found.
#[derive(Debug, Default)]
struct Found {
    findings: Vec<Told>,
    /// By UID of the pool; pools that could not be looked into are not in it.
    orphans: BTreeMap<String, Vec<Orphan>>,
}

impl Drift {
    /// What does not belong together, by kind and object, as much of it as a status holds. None
    /// before the first pass: then it is what was said before.
    pub fn findings(&self) -> Option<Vec<Told>> {
        let state = self.lock();
        let findings = &state.as_ref()?.findings;
        Some(findings.certain().take(LISTED).cloned().collect())
    }

    /// The images of a pool that nobody claims, the oldest orphans first: a status lists the first
    /// [`LISTED`]. None where no pass has looked into the pool.
    pub fn orphans(&self, pool_uid: &str) -> Option<Vec<Orphan>> {
        let state = self.lock();
        let orphans = state.as_ref()?.orphans.get(pool_uid)?;
        let mut orphans: Vec<Orphan> = orphans.certain().cloned().collect();
        orphans.sort_by(|a, b| (a.since, &a.image).cmp(&(b.since, &b.image)));
        Some(orphans)
    }

    /// Since when images of a pool are orphans, by name, as far as that is known. `told` is what the
    /// status says, for the first pass.
    fn since(&self, told: &StorageNodeStatus, pool_uid: &str) -> BTreeMap<String, DateTime<Utc>> {
        let mut guard = self.lock();
        let state = guard.get_or_insert_with(|| State::of(told));
        let orphans = state.orphans.get(pool_uid).into_iter();
        let orphans = orphans.flat_map(Course::all);
        orphans.map(|it| (it.image.clone(), it.since)).collect()
    }

    /// Takes note of a pass. `told` is what the status says, for the first one.
    fn note(&self, told: &StorageNodeStatus, found: Found, now: DateTime<Utc>) -> Changes {
        let mut guard = self.lock();
        let state = guard.get_or_insert_with(|| State::of(told));
        let findings = state.findings.note(found.findings, now);
        let mut orphans = BTreeMap::new();
        for (pool, found) in found.orphans {
            let course = state.orphans.entry(pool.clone()).or_default();
            orphans.insert(pool, course.note(found, now));
        }
        Changes { findings, orphans }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a pass has changed.
#[derive(Debug)]
struct Changes {
    findings: News<Told>,
    orphans: BTreeMap<String, News<Orphan>>,
}

impl Changes {
    /// Whether something was found for the first time, and the next pass tells whether it is so.
    fn is_open(&self) -> bool {
        self.findings.is_open || self.orphans.values().any(|news| news.is_open)
    }

    /// Whether anything is otherwise than at the last pass.
    fn is_news(&self) -> bool {
        let has_gone = self.orphans.values().any(|news| !news.gone.is_empty());
        self.is_open() || has_gone || !self.findings.gone.is_empty()
    }

    fn log(&self) {
        for finding in &self.findings.come {
            let Told {
                kind,
                object,
                message,
                ..
            } = finding;
            tracing::warn!(kind, object, message, "something does not belong together");
        }
        for Told { kind, object, .. } in &self.findings.gone {
            tracing::info!(kind, object, "it belongs together again, or is gone");
        }
        for (pool, news) in &self.orphans {
            for orphan in &news.come {
                let owner = orphan.identity.as_ref().map(|identity| &identity.name);
                let (image, size) = (&orphan.image, orphan.size);
                tracing::warn!(pool_uid = pool, image, ?owner, %size, "nobody claims an image");
            }
            for Orphan { image, .. } in &news.gone {
                tracing::info!(
                    pool_uid = pool,
                    image,
                    "the image is claimed again, or gone"
                );
            }
        }
    }
}

impl State {
    /// As an agent left it that ran before this one.
    fn of(told: &StorageNodeStatus) -> Self {
        let pools = told.pools.iter();
        Self {
            findings: Course::told(&told.drift),
            orphans: pools
                .map(|pool| (pool.uid.clone(), Course::told(&pool.orphans)))
                .collect(),
        }
    }
}

/// Looks again and again, until dropped.
pub async fn run(agent: &Arc<Agent>, interval: Duration) {
    agent.looked().await;
    let mut reclaims = Reclaims::default();
    loop {
        let is_open = Box::pin(pass::pass(agent)).await;
        reclaims.begin(agent);
        let wait = if is_open {
            interval / CONFIRMED_AFTER
        } else {
            interval
        };
        sleep(wait).await;
    }
}
