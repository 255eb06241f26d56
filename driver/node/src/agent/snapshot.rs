//! Snapshots: from the spec of a PoolSnapshot to an image of its own, and its removal; alone, or
//! with the others of a group.
//!
//! ```text
//! reserve what was written to the source ─▶ take ─▶ reserve what was allocated ─▶ status
//! ```
//!
//! *Invariant:* a snapshot that became ready is never taken again, even if its image is missing
//! later. A refused snapshot has nothing on the disk and nothing in the ledger.

pub mod group;
mod identity;
pub mod status;
pub mod take;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{Explanation, PoolSnapshot, PoolSnapshotStatus};
use kube::runtime::controller::Action;

use self::{
    identity::{formatted, inspect},
    status::{Own, SnapshotOutcome},
    take::{Origin, TakeResult},
};
use super::{
    Agent,
    plan::{ObjectPhase, phase},
    reconcile::{LOCKED, ReconciledImage, Reconciliation},
    work::{Error, Reconcile, Work},
};
use crate::{blocking::on_host, image::ImageObject as _};

impl Reconcile for PoolSnapshot {
    fn pool(&self) -> Option<&str> {
        Some(&self.spec.pool_name)
    }

    fn work(agent: &Agent) -> &Work<Self> {
        &agent.work.snapshots
    }

    async fn reconcile(agent: &Agent, snapshot: &Self) -> Result<Action, Error> {
        let (reconciliation, phase) = (Reconciliation::of(agent, snapshot), phase(snapshot));
        let pool = &snapshot.spec.pool_name;
        tracing::debug!(snapshot = reconciliation.name, pool, ?phase, "reconciling");
        if let Some(group) = &snapshot.spec.group_name
            && !snapshot.spec.across_nodes
        {
            // The group waits for its snapshots.
            agent.work.groups.enqueue(group);
        }
        match phase {
            ObjectPhase::Rest if snapshot.spec.deletion_requested => Ok(Action::await_change()),
            ObjectPhase::Rest => reconciliation.end(SnapshotOutcome::Rested).await,
            ObjectPhase::Reclaim => reconciliation.reclaim().await,
            ObjectPhase::Admitted if snapshot.is_announced() => reconciliation.keep().await,
            ObjectPhase::Admit | ObjectPhase::Admitted
                if snapshot.spec.group_name.is_some() && snapshot.spec.taken_at.is_none() =>
            {
                Ok(Action::await_change())
            }
            ObjectPhase::Admit | ObjectPhase::Admitted => {
                let origin = match snapshot.spec.taken_at {
                    // Its group across nodes was taken.
                    Some(_) => Origin::Existing,
                    None => Origin::New(snapshot.spec.consistency),
                };
                let taken = take::take(agent, vec![snapshot.clone()], origin).await?;
                Ok(match taken {
                    TakeResult::Ready(_) | TakeResult::Refused(_) | TakeResult::Overtaken => {
                        Action::await_change()
                    }
                    TakeResult::Busy => Action::requeue(LOCKED),
                    TakeResult::NotYet(why) => {
                        reconciliation.retry_later(&SnapshotOutcome::NotReady(why))
                    }
                })
            }
        }
    }
}

impl ReconciledImage for PoolSnapshot {
    type Own = Own;

    fn status_after(&self, outcome: &SnapshotOutcome, now: DateTime<Utc>) -> PoolSnapshotStatus {
        status::after(self, outcome, now)
    }
}

impl Reconciliation<'_, PoolSnapshot> {
    /// Checks that a ready snapshot is unchanged.
    async fn keep(&self) -> Result<Action, Error> {
        let pool = match self.pool() {
            Ok((_, usable)) => Arc::clone(&usable.pool),
            Err(why) => return self.end(SnapshotOutcome::NotReady(why)).await,
        };
        let (snapshot, formatted) = (self.object.clone(), formatted(self.agent, self.object));
        let permit = self.permit().await;
        let work = on_host(permit, move || inspect(&*pool, &snapshot, formatted));
        let outcome = match work.await.map_err(|source| self.broken(source))? {
            Ok(image) => SnapshotOutcome::Ready(image),
            Err(error) => {
                self.agent.pools.suspect(&error);
                let (reason, message) = (error.reason(), Chain(&error).to_string());
                SnapshotOutcome::NotReady(Explanation::new(reason, message))
            }
        };
        self.end(outcome).await
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, Reason};

    use super::*;
    use crate::testing::{admitted_snapshot, at, image_of_snapshot};

    #[test]
    fn r05_a_second_reconcile_of_the_same_state_changes_nothing() {
        let ready = SnapshotOutcome::Ready(image_of_snapshot());
        let snapshot = admitted_snapshot().after(&ready, at(0));
        let status = snapshot.status.clone().unwrap();
        assert_eq!(status.creation_time, Some(at(300)));
        assert_eq!(status.reserved, Some(Bytes::mib(64)));
        assert_eq!(snapshot.after(&ready, at(60)).status, snapshot.status);
        assert_eq!(
            snapshot.after(&SnapshotOutcome::Rested, at(120)).status,
            snapshot.status
        );
        let kinds: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, ["Ready", "Admitted", "Reclaimed", "DeletionHeld"]);
    }

    #[test]
    fn a_refusal_after_the_snapshot_leaves_nothing_reserved() {
        let refused = SnapshotOutcome::Refused(Explanation {
            reason: Reason::NoSpace,
            message: "full".into(),
        });
        let snapshot = admitted_snapshot().after(&refused, at(0));
        assert_eq!(snapshot.status.as_ref().unwrap().reserved, None);
        assert_eq!(phase(&snapshot), ObjectPhase::Rest);
    }
}
