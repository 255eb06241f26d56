//! Takes snapshots: one alone, or those of a group; all of them at one moment, or none.
//!
//! *Invariant:* no snapshot is taken before every snapshot has its reservation, and none becomes
//! ready before every reservation covers the allocated bytes. When one is refused, all are, and
//! nothing of them remains.

mod attempt;
mod disk;
pub mod part;
mod reserve;

use chrono::{DateTime, Utc};
use cistern_crds::{Explanation, PoolSnapshot, Reason};

pub use self::attempt::{Origin, TakeResult};
use self::{
    attempt::TakeError,
    attempt::lost,
    disk::take_or_find,
    reserve::{admit, reserve_growth},
};
use super::status::SnapshotOutcome;
use crate::{
    agent::{
        Agent,
        plan::{ObjectPhase, phase, refusal},
        reconcile::Reconciliation,
        work::Error,
    },
    image::ImageObject as _,
};

/// Takes the snapshots that are not taken yet, and writes the outcome of each. Fails if a status
/// cannot be written, or if the work on the disk panics.
pub async fn take(
    agent: &Agent,
    mut snapshots: Vec<PoolSnapshot>,
    origin: Origin,
) -> Result<TakeResult, Error> {
    let taken = match attempt(agent, &mut snapshots, origin).await {
        Ok(moment) => return Ok(TakeResult::Ready(moment)),
        Err(TakeError::Error(error)) => return Err(error),
        Err(TakeError::Ended(taken)) => taken,
    };
    let outcome = match taken.clone() {
        TakeResult::Refused(why) => SnapshotOutcome::Refused(why),
        TakeResult::NotYet(why) => SnapshotOutcome::NotReady(why),
        TakeResult::Ready(_) | TakeResult::Busy | TakeResult::Overtaken => return Ok(taken),
    };
    // A snapshot that became ready keeps its status, regardless of the result of the others.
    for snapshot in snapshots.iter().filter(|it| !it.is_announced()) {
        let reconciliation = Reconciliation::of(agent, snapshot);
        tracing::info!(
            snapshot = reconciliation.name,
            ?outcome,
            "the snapshot is not taken"
        );
        if reconciliation.write(&outcome).await?.is_none() {
            return Ok(TakeResult::Overtaken);
        }
    }
    agent.report.request();
    Ok(taken)
}

async fn attempt(
    agent: &Agent,
    snapshots: &mut [PoolSnapshot],
    origin: Origin,
) -> Result<DateTime<Utc>, TakeError> {
    admit_all(agent, snapshots, origin).await?;
    let images = take_or_find(agent, snapshots, origin).await?;
    reserve_growth(agent, snapshots, &images, origin).await?;
    let mut moment = (agent.node.now)();
    for (snapshot, image) in snapshots.iter().zip(images) {
        moment = image.owner.snapshot().map_or(moment, |record| record.time);
        if snapshot.spec.taken_at.is_some_and(|taken| taken != moment) {
            return Err(lost(snapshot));
        }
        let reconciliation = Reconciliation::of(agent, snapshot);
        tracing::info!(snapshot = reconciliation.name, %moment, held = %image.allocated, "the snapshot is taken");
        if reconciliation
            .write_reservation(&SnapshotOutcome::Ready(image))
            .await?
            .is_none()
        {
            return Err(TakeResult::Overtaken.into());
        }
    }
    Ok(moment)
}

/// Reserves the bytes of all snapshots that have no reservation yet.
async fn admit_all(
    agent: &Agent,
    snapshots: &mut [PoolSnapshot],
    origin: Origin,
) -> Result<(), TakeError> {
    if let Some(refused) = snapshots.iter().find_map(refusal) {
        let reason = Reason::parse(&refused.reason).unwrap_or(Reason::SnapshotFailed);
        let why = Explanation::new(reason, &refused.message);
        return Err(TakeResult::Refused(why).into());
    }
    for snapshot in &mut *snapshots {
        match phase(snapshot) {
            ObjectPhase::Admit => *snapshot = admit(agent, snapshot, origin).await?,
            ObjectPhase::Admitted => {}
            ObjectPhase::Rest | ObjectPhase::Reclaim => {
                return Err(TakeResult::Overtaken.into());
            }
        }
    }
    Ok(())
}
