//! Tracks what successive observations of something find. Pure.
//!
//! ```text
//!            seen, certain                 not seen              not seen, often enough
//! (nothing) ─────────────▶ reported ────────────────▶ reported ────────────▶ (nothing)
//!     │ ▲                     ▲  ▲                       │
//!     │ │ not seen            │  └───────────────────────┘
//!     │ │       seen again    │            seen
//!     └─▶ suspected ──────────┘
//!   seen, may pass
//! ```
//!
//! *Invariant:* a finding is reported with the time at which it was first seen, for as long as it
//! lasts. Only an observation that could see its absence clears it.

use std::{collections::BTreeMap, fmt};

use chrono::{DateTime, Utc};

/// A finding that can be tracked.
pub trait Trackable: Clone {
    /// What identifies the finding.
    type Key: Clone + Ord + fmt::Debug;

    /// Consecutive observations without the finding before it is cleared.
    const CLEARED_AFTER: u8;

    /// Identifies the finding.
    fn key(&self) -> Self::Key;

    /// When the finding was first seen.
    fn since(&mut self) -> &mut DateTime<Utc>;
}

/// Whether an observation may be transient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// The finding exists.
    Certain,
    /// A healthy object may look like this for a moment. The finding must be seen twice in a row.
    MayPass,
}

/// How much an observation could see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// A finding that was not seen does not exist.
    Full,
    /// The observation was obstructed: a finding that was not seen may exist.
    Partial,
}

/// The findings of the observations so far, by their keys.
#[derive(Clone, Debug)]
pub struct Tracker<T: Trackable> {
    tracked: BTreeMap<T::Key, Tracked<T>>,
}

#[derive(Clone, Debug)]
struct Tracked<T> {
    finding: T,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The last observation saw it for the first time.
    Suspected,
    /// It is reported. Counts consecutive observations that did not see it.
    Reported { clean_observations: u8 },
}

/// What an observation changed.
#[derive(Debug)]
pub struct Changes<T> {
    /// Findings that are reported from now on.
    pub added: Vec<T>,
    /// Findings that are no longer reported.
    pub removed: Vec<T>,
    /// Whether a finding is suspected and the next observation must confirm it.
    pub is_open: bool,
}

impl<T> Changes<T> {
    /// Whether a finding is new, confirmed or gone.
    pub fn has_any(&self) -> bool {
        self.is_open || !self.added.is_empty() || !self.removed.is_empty()
    }
}

impl<T: Trackable> Default for Tracker<T> {
    fn default() -> Self {
        let tracked = BTreeMap::new();
        Self { tracked }
    }
}

impl<T: Trackable> Tracker<T> {
    /// Restores the findings of a status: one that outlasts a restart of the agent keeps its start
    /// time.
    pub fn resume(reported: &[T]) -> Self {
        let tracked = reported.iter().map(|finding| {
            let tracked = Tracked {
                finding: finding.clone(),
                state: State::REPORTED,
            };
            (finding.key(), tracked)
        });
        Self {
            tracked: tracked.collect(),
        }
    }

    /// Records an observation.
    pub fn observe(
        &mut self,
        seen: impl IntoIterator<Item = (T, Certainty)>,
        visibility: Visibility,
        now: DateTime<Utc>,
    ) -> Changes<T> {
        let mut before = std::mem::take(&mut self.tracked);
        let (mut added, mut is_open) = (Vec::new(), false);
        for (mut finding, certainty) in seen {
            let last = before.remove(&finding.key());
            let state = match (&last, certainty) {
                (None, Certainty::MayPass) => State::Suspected,
                (Some(_), _) | (None, Certainty::Certain) => State::REPORTED,
            };
            let was_reported = last.as_ref().is_some_and(Tracked::is_reported);
            *finding.since() = last.map_or(now, |mut last| *last.finding.since());
            let tracked = Tracked { finding, state };
            is_open |= !tracked.is_reported();
            if tracked.is_reported() && !was_reported {
                added.push(tracked.finding.clone());
            }
            self.tracked.insert(tracked.finding.key(), tracked);
        }
        let mut removed = Vec::new();
        for (key, mut tracked) in before {
            if visibility == Visibility::Partial || tracked.outlasts_clean_observation() {
                self.tracked.insert(key, tracked);
            } else if tracked.is_reported() {
                removed.push(tracked.finding);
            }
        }
        Changes {
            added,
            removed,
            is_open,
        }
    }

    /// All findings, suspected or reported, in the order of their keys.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.tracked.values().map(|tracked| &tracked.finding)
    }

    /// The reported findings, in the order of their keys.
    pub fn reported(&self) -> impl Iterator<Item = &T> {
        let reported = self.tracked.values().filter(|it| it.is_reported());
        reported.map(|tracked| &tracked.finding)
    }
}

impl State {
    /// Reported, and seen by the last observation.
    const REPORTED: Self = Self::Reported {
        clean_observations: 0,
    };
}

impl<T: Trackable> Tracked<T> {
    fn is_reported(&self) -> bool {
        matches!(self.state, State::Reported { .. })
    }

    /// Counts an observation without the finding. Returns whether the finding is kept.
    fn outlasts_clean_observation(&mut self) -> bool {
        match &mut self.state {
            State::Suspected => false,
            State::Reported { clean_observations } => {
                *clean_observations = clean_observations.saturating_add(1);
                *clean_observations < T::CLEARED_AFTER
            }
        }
    }
}
