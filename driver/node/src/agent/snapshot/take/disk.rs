//! Makes the images of snapshots at one moment, finds them, or removes all of them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{Consistency, ExtentLimits, HasImage, PoolSnapshot, Reason};
use cistern_host::{
    Engine,
    snapshot::{Barrier, Member, SnapshotRequest},
};
use kube::ResourceExt as _;
use tokio::time::timeout;

use super::attempt::{Origin, TakeError, TakeResult, broken, failed, not_yet};
use crate::{
    agent::{
        Agent,
        io_limits::{self, LimitedVolume},
        pools::{PoolState, Usable},
        reconcile::Reconciliation,
        snapshot::identity::{formatted, inspect},
    },
    blocking::on_host,
    image::{self, Image, ImageObject, SNAPSHOTS},
};

/// How long to wait for the lock of a volume, and for a permit.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// One snapshot to be taken or found.
struct PendingSnapshot {
    snapshot: PoolSnapshot,
    pool: Arc<dyn Engine>,
    extent_limits: ExtentLimits,
    formatted: DateTime<Utc>,
}

/// Takes all snapshots, or finds those that were taken before.
pub(super) async fn take_or_find(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
    origin: Origin,
) -> Result<Vec<Image>, TakeError> {
    let pending = pending(agent, snapshots)?;
    let guard = lock_all(agent, snapshots).await?;
    let (root, clock) = (agent.node.root.clone(), agent.node.now);
    let (io, limits) = (agent.io.clone(), limits_of_sources(agent, snapshots));
    let is_settled = origin == Origin::Existing || snapshots.iter().any(is_settled);
    let work = on_host(guard, move || {
        if let Origin::New(consistency) = origin
            && !is_settled
        {
            io.take_snapshots(&root, &limits, &members(&pending)?, consistency, clock)?;
        }
        let inspected = |it: &PendingSnapshot| inspect(&*it.pool, &it.snapshot, it.formatted);
        pending.iter().map(inspected).collect::<Result<Vec<_>, _>>()
    });
    match work.await.map_err(|source| broken(snapshots, source))? {
        Ok(images) => Ok(images),
        Err(error) if is_settled => {
            agent.pools.suspect(&error);
            Err(not_yet(error.reason(), Chain(&error).to_string()))
        }
        Err(error) => {
            let take_error = failed(agent, snapshots, &error);
            if let TakeError::Ended(TakeResult::Refused(_)) = take_error {
                // The new images may be the ones that are wrong.
                discard(agent, snapshots).await?;
            }
            Err(take_error)
        }
    }
}

/// Takes the part of a group that is on this node, in step with the others. Returns the locks with the images.
pub(super) async fn take_part<G: Send + 'static>(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
    consistency: Consistency,
    mut barrier: impl Barrier + Send + 'static,
    guard: G,
) -> Result<(G, Vec<Image>), TakeError> {
    let pending = pending(agent, snapshots)?;
    let (root, io) = (agent.node.root.clone(), agent.io.clone());
    let limits = limits_of_sources(agent, snapshots);
    let work = on_host((), move || {
        let taken = members(&pending).and_then(|members| {
            io.take_part(&root, &limits, &members, consistency, &mut barrier)?;
            let inspected = |it: &PendingSnapshot| inspect(&*it.pool, &it.snapshot, it.formatted);
            pending.iter().map(inspected).collect::<Result<Vec<_>, _>>()
        });
        // Also if nobody waits any more, the volumes are locked until the work is done.
        (guard, taken)
    });
    let (guard, taken) = work.await.map_err(|source| broken(snapshots, source))?;
    let images = taken.map_err(|error| failed(agent, snapshots, &error))?;
    Ok((guard, images))
}

/// The snapshots with what the work on the disk needs. Fails if the pool of one cannot be used.
fn pending(agent: &Agent, snapshots: &[PoolSnapshot]) -> Result<Vec<PendingSnapshot>, TakeError> {
    let pending = snapshots.iter().map(|snapshot| {
        let (pool_state, usable) = pool(agent, snapshot)?;
        Ok(PendingSnapshot {
            snapshot: snapshot.clone(),
            pool: usable.pool,
            extent_limits: pool_state.spec.limits.extents(),
            formatted: formatted(agent, snapshot),
        })
    });
    pending.collect()
}

/// The limits of the volumes that are snapshotted.
fn limits_of_sources(agent: &Agent, snapshots: &[PoolSnapshot]) -> Vec<LimitedVolume> {
    let names: BTreeSet<&str> = snapshots.iter().map(|it| &*it.spec.source_volume).collect();
    let limits = names
        .into_iter()
        .filter_map(|name| io_limits::known(name, &agent.desired, &agent.pools));
    limits.collect()
}

/// Whether the snapshot once had its image, so that it is never taken again.
pub(super) fn is_settled(snapshot: &PoolSnapshot) -> bool {
    snapshot.is_announced() || image::is_adopted(snapshot)
}

fn members(pending: &[PendingSnapshot]) -> Result<Vec<Member<'_>>, image::Error> {
    let members = pending.iter().map(|it| {
        let spec = &it.snapshot.spec;
        Ok(Member {
            pool: it.pool.images_for(SNAPSHOTS)?,
            request: SnapshotRequest {
                snapshot: it.snapshot.name_any(),
                uid: image::name_of(&it.snapshot)?,
                volume: spec.source_volume.clone(),
                source: spec.source_image.parse()?,
                extent_limits: it.extent_limits,
            },
        })
    });
    members.collect()
}

/// Removes images that were taken and never became ready.
pub(super) async fn discard(agent: &Agent, snapshots: &[PoolSnapshot]) -> Result<(), TakeError> {
    let guard = lock_all(agent, snapshots).await?;
    discard_locked(agent, snapshots, guard).await
}

/// Does the same with the locks that are held.
pub(super) async fn discard_locked(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
    guard: impl Send + 'static,
) -> Result<(), TakeError> {
    let mut taken = Vec::new();
    for snapshot in snapshots {
        taken.push((pool(agent, snapshot)?.1, snapshot.clone()));
    }
    let work = on_host(guard, move || {
        taken.iter().try_for_each(|(usable, snapshot)| {
            let uid = image::destroy(&*usable.pool, snapshot)?;
            usable.images.removed(uid.as_str());
            Ok::<_, image::Error>(())
        })
    });
    let done = work.await.map_err(|source| broken(snapshots, source))?;
    done.map_err(|error| not_yet(Reason::SnapshotFailed, Chain(&error).to_string()))
}

/// Takes the lock of each volume, so that no growth or staging runs at the same time, and a permit
/// for each pool.
pub(super) async fn lock_all(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
) -> Result<impl Send + use<>, TakeError> {
    // Locks are taken in one order. The holder of a permit may wait for one of them, so the wait for permits is limited.
    let volumes: BTreeSet<String> = snapshots.iter().map(ImageObject::volume).collect();
    let mut guards = Vec::new();
    for volume in volumes {
        let guard = agent.locks.lock_within(&volume, LOCK_PATIENCE).await;
        guards.push(guard.ok_or(TakeResult::Busy)?);
    }
    let pools: BTreeSet<&str> = snapshots.iter().map(HasImage::pool_name).collect();
    let mut permits = Vec::new();
    for pool in pools {
        let permit = timeout(LOCK_PATIENCE, agent.pools.permit(pool)).await;
        permits.push(permit.map_err(|_| TakeResult::Busy)?);
    }
    Ok((permits, guards))
}

/// The pool of a snapshot. The attempt is retried if it cannot be used.
pub(super) fn pool(
    agent: &Agent,
    snapshot: &PoolSnapshot,
) -> Result<(Arc<PoolState>, Usable), TakeError> {
    let found = Reconciliation::of(agent, snapshot).pool();
    found.map_err(|why| TakeResult::NotYet(why).into())
}
