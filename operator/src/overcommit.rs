//! How much a pool may promise: what its spec says, unless it holds thick volumes.
//!
//! The bytes of a thick volume have to be there, so a pool that may promise more than it has holds
//! thin volumes only. The schema cannot see volumes; so a percentage over 100 comes into force when
//! the last thick volume, and the last snapshot of one, has left the pool.
//!
//! *Invariant:* this only keeps nodes from being told. The agent of a node, which alone allocates,
//! goes by what its own ledger holds.

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionStatus, ConditionType, Reason, StoragePool, StoragePoolStatus,
    condition::{self, Finding},
};
use kube::ResourceExt as _;

use crate::{contents::Count, events::Telling, world::World};

/// What a pool promises no more than, in hundredths, while it holds something thick.
const EXACT: u32 = 100;

/// How much a pool is to promise, and what keeps it from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit {
    asked: u32,
    thick: Count,
}

impl Overcommit {
    /// Of a pool. `thick` counts what it holds that is thick, or may be; called only where that
    /// matters.
    pub fn of(pool: &StoragePool, thick: impl FnOnce() -> Count) -> Self {
        let asked = pool.spec.overcommit_percent;
        let thick = if asked > EXACT {
            thick()
        } else {
            Count::default()
        };
        Self { asked, thick }
    }

    /// What the nodes are told, in hundredths of the usable space.
    pub fn in_force(self) -> u32 {
        if self.is_refused() { EXACT } else { self.asked }
    }

    /// Whether the pool takes no thick volumes.
    pub fn is_for_thin_alone(self) -> bool {
        self.in_force() > EXACT
    }

    fn is_refused(self) -> bool {
        !self.thick.is_zero()
    }

    /// `OvercommitApplied`.
    pub fn finding(self) -> Finding {
        let kind = ConditionType::OvercommitApplied;
        if self.is_refused() {
            Finding::new(kind, false, Reason::ThickVolumesPresent, self.refusal())
        } else {
            let message = format!("the pool may promise {} % of what it has", self.asked);
            Finding::new(kind, true, Reason::AsDesired, message)
        }
    }

    fn refusal(self) -> String {
        let Self { asked, thick } = self;
        format!(
            "overcommitPercent {asked} is refused and {EXACT} stays in force: the pool holds {thick} \
             with provisioning thick, whose space has to be there; it comes into force when they \
             are gone, or take it back"
        )
    }

    /// What is told of a pool with this status; none where it was told already.
    pub fn telling(self, before: &StoragePoolStatus, now: DateTime<Utc>) -> Option<Telling> {
        let told = condition::find(&before.conditions, ConditionType::OvercommitApplied);
        let was_refused = told.is_some_and(|told| told.status == ConditionStatus::False.as_str());
        (self.is_refused() && !was_refused).then(|| Telling {
            is_warning: true,
            reason: "OvercommitRefused",
            action: "Declaring",
            note: self.refusal(),
            key: now.to_rfc3339(),
        })
    }
}

/// The nodes that are told another percentage for a pool than is in force. None is told anything else
/// than its spec where that asks for no overcommitment.
pub fn outdated(world: &World, pool: &str) -> Vec<String> {
    let Some(guard) = world.pool(pool) else {
        return Vec::new();
    };
    let Ok(declared) = &guard.0 else {
        return Vec::new();
    };
    if declared.spec.overcommit_percent <= EXACT {
        return Vec::new();
    }
    let in_force = Overcommit::of(declared, || world.thick_in(pool)).in_force();
    let nodes = world.storage_nodes.state_filter(|guard| {
        let node = guard.0.as_ref().ok();
        let mut entries = node.into_iter().flat_map(|node| &node.spec.pools);
        entries.any(|entry| entry.name == pool && entry.overcommit_percent != in_force)
    });
    nodes.iter().map(|node| node.name_any()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{moment, pool};

    fn overcommit(percent: u32, thick: Count) -> Overcommit {
        let mut pool = pool("fast", &[]);
        pool.spec.overcommit_percent = percent;
        Overcommit::of(&pool, || thick)
    }

    #[test]
    fn a_percentage_over_100_is_refused_while_the_pool_holds_thick_volumes_or_their_snapshots() {
        for thick in [Count::VOLUME, Count::SNAPSHOT] {
            let refused = overcommit(200, thick);
            assert_eq!(refused.in_force(), 100);
            let finding = refused.finding();
            assert_eq!(
                (finding.status, finding.reason),
                (ConditionStatus::False, Reason::ThickVolumesPresent)
            );
            for part in ["200", "100 stays in force", &thick.to_string()] {
                assert!(finding.message.contains(part), "{}", finding.message);
            }
            // What asks for no more than there is can always be had.
            assert_eq!(overcommit(100, thick).in_force(), 100);
            assert_eq!(
                overcommit(100, thick).finding().status,
                ConditionStatus::True
            );
        }
        let thin_alone = overcommit(200, Count::default());
        assert_eq!(thin_alone.in_force(), 200);
        assert!(thin_alone.is_for_thin_alone());
        assert_eq!(thin_alone.finding().status, ConditionStatus::True);
    }

    #[test]
    fn a_refusal_is_told_when_it_comes_and_not_again_while_it_lasts() {
        let refused = overcommit(200, Count::VOLUME);
        let mut status = StoragePoolStatus::default();
        let telling = refused.telling(&status, moment()).unwrap();
        assert_eq!(telling.reason, "OvercommitRefused");
        condition::set(&mut status.conditions, &refused.finding(), None, moment());
        assert_eq!(refused.telling(&status, moment()), None);
        let allowed = overcommit(200, Count::default());
        assert_eq!(allowed.telling(&status, moment()), None);
        condition::set(&mut status.conditions, &allowed.finding(), None, moment());
        assert!(refused.telling(&status, moment()).is_some());
    }
}
