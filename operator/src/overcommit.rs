//! Overcommitment of a pool: the percentage of its spec, unless the pool holds thick volumes.
//!
//! The space of a thick volume is allocated in full, so an overcommitted pool holds
//! thin volumes only. The schema cannot see volumes; so a percentage over 100 comes into force when
//! the last thick volume, and the last snapshot of one, has left the pool. A volume counts once its agent has
//! admitted it as thick, and not when that is requested: an agent of an overcommitted pool refuses it.
//!
//! *Invariant:* this only limits the nodes' specs. Only the agent of a node allocates, and it uses
//! its own ledger.

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionStatus, ConditionType, EventReason, Reason, StoragePool, StoragePoolStatus,
    condition::{self, ConditionUpdate},
};
use kube::ResourceExt as _;

use crate::{cluster_state::ClusterState, contents::Count, events::EventContent};

/// Highest percentage while the pool holds thick volumes or snapshots.
const EXACT: u32 = 100;

/// Requested overcommitment of a pool, and the thick objects that prevent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit {
    asked: u32,
    thick: Count,
}

impl Overcommit {
    /// Computes the overcommitment of a pool. `thick` counts its objects that are or may be thick;
    /// it is called only for a percentage over 100.
    pub fn of(pool: &StoragePool, thick: impl FnOnce() -> Count) -> Self {
        let asked = pool.spec.overcommit_percent;
        let thick = if asked > EXACT {
            thick()
        } else {
            Count::default()
        };
        Self { asked, thick }
    }

    /// Percentage in force, of the usable space.
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

    /// Condition `OvercommitApplied`.
    pub fn finding(self) -> ConditionUpdate {
        let kind = ConditionType::OvercommitApplied;
        if self.is_refused() {
            ConditionUpdate::new(kind, false, Reason::ThickVolumesPresent, self.refusal())
        } else {
            let message = format!("the pool may reserve {} % of its usable space", self.asked);
            ConditionUpdate::new(kind, true, Reason::Reconciled, message)
        }
    }

    fn refusal(self) -> String {
        let Self { asked, thick } = self;
        format!(
            "overcommitPercent {asked} is refused and {EXACT} stays in force: the pool holds {thick} \
             with provisioning thick, whose space must be allocated; it takes effect when they \
             are gone; or set it to {EXACT}"
        )
    }

    /// The event about a refusal; `None` if the status already shows it.
    pub fn refusal_event(
        self,
        before: &StoragePoolStatus,
        now: DateTime<Utc>,
    ) -> Option<EventContent> {
        let applied = condition::find(&before.conditions, ConditionType::OvercommitApplied);
        let was_refused =
            applied.is_some_and(|applied| applied.status == ConditionStatus::False.as_str());
        (self.is_refused() && !was_refused).then(|| EventContent {
            is_warning: true,
            reason: EventReason::OvercommitRefused,
            action: "Declaring",
            note: self.refusal(),
            key: now.to_rfc3339(),
        })
    }
}

/// The nodes whose spec has another percentage for a pool than the one in force. Empty if the
/// pool's spec requests no overcommitment.
pub fn outdated(cluster: &ClusterState, pool: &str) -> Vec<String> {
    let Some(guard) = cluster.pool(pool) else {
        return Vec::new();
    };
    let Ok(declared) = &guard.0 else {
        return Vec::new();
    };
    if declared.spec.overcommit_percent <= EXACT {
        return Vec::new();
    }
    let in_force = Overcommit::of(declared, || cluster.thick_in(pool)).in_force();
    let nodes = cluster.storage_nodes.filter(|guard| {
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
            // 100 % is never refused.
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
    fn a_refusal_is_published_when_it_comes_and_not_again_while_it_lasts() {
        let refused = overcommit(200, Count::VOLUME);
        let mut status = StoragePoolStatus::default();
        let content = refused.refusal_event(&status, moment()).unwrap();
        assert_eq!(content.reason, EventReason::OvercommitRefused);
        condition::set(&mut status.conditions, &refused.finding(), None, moment());
        assert_eq!(refused.refusal_event(&status, moment()), None);
        let allowed = overcommit(200, Count::default());
        assert_eq!(allowed.refusal_event(&status, moment()), None);
        condition::set(&mut status.conditions, &allowed.finding(), None, moment());
        assert!(refused.refusal_event(&status, moment()).is_some());
    }
}
