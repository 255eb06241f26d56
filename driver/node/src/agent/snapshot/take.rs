//! Takes snapshots: one alone, or those of a group; all of them at one moment, or none.
//!
//! *Invariant:* no snapshot is taken before every snapshot has its reservation, and none becomes
//! ready before every reservation covers the allocated bytes. When one is refused, all are, and
//! nothing of them remains.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{
    Bytes, Consistency, Explanation, ExtentLimits, HasImage, PoolSnapshot, Provisioning, Reason,
};
use cistern_host::{
    Pool, Uid,
    snapshot::{Member, SnapshotRequest},
};
use kube::ResourceExt;

use super::{formatted, inspect, status::SnapshotOutcome};
use crate::agent::{
    Agent,
    admission::SnapshotImage,
    io_limits::{self, LimitedVolume},
    plan::{ObjectPhase, phase, refusal},
    pools::{PoolState, Usable},
    reconcile::Reconciliation,
    work::Error,
};
use crate::{
    blocking::{Broken, on_host},
    image::{self, Image, ImageObject},
};

/// How long to wait for the lock of a volume.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// The result of an attempt to take snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeResult {
    /// All snapshots exist and show this moment.
    Ready(DateTime<Utc>),
    /// No snapshot is taken, and none will be.
    Refused(Explanation),
    /// No snapshot is taken so far; the attempt is retried.
    NotYet(Explanation),
    /// Another operation holds one of the volumes; the attempt is retried soon.
    Busy,
    /// One of the objects has changed, and that change triggers the next reconcile.
    Overtaken,
}

/// The reason why an attempt ended early.
#[derive(Debug)]
enum TakeError {
    Ended(TakeResult),
    Error(Error),
}

impl From<Error> for TakeError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The outcome of each snapshot of an attempt that is retried.
pub fn retried(why: Explanation) -> SnapshotOutcome {
    SnapshotOutcome::NotReady(why)
}

/// Whether snapshots are taken now, or were taken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The snapshots are taken now, unless their images exist already.
    New(Consistency),
    /// The snapshots were taken before. A snapshot whose image is missing is not taken again, because
    /// its data would be of another moment.
    Existing,
}

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
        TakeResult::NotYet(why) => retried(why),
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
    if let Some(refused) = snapshots.iter().find_map(refusal) {
        let reason = Reason::parse(&refused.reason).unwrap_or(Reason::SnapshotFailed);
        let message = refused.message.clone();
        return Err(TakeError::Ended(TakeResult::Refused(Explanation {
            reason,
            message,
        })));
    }
    for snapshot in &mut *snapshots {
        match phase(snapshot) {
            ObjectPhase::Admit => *snapshot = admit(agent, snapshot, origin).await?,
            ObjectPhase::Admitted => {}
            ObjectPhase::Rest | ObjectPhase::Reclaim => {
                return Err(TakeError::Ended(TakeResult::Overtaken));
            }
        }
    }
    let images = take_or_find(agent, snapshots, origin).await?;
    reserve_growth(agent, snapshots, &images).await?;
    let mut moment = (agent.node.now)();
    for (snapshot, image) in snapshots.iter().zip(images) {
        moment = image.owner.snapshot().map_or(moment, |record| record.time);
        let reconciliation = Reconciliation::of(agent, snapshot);
        tracing::info!(snapshot = reconciliation.name, %moment, held = %image.allocated, "the snapshot is taken");
        if reconciliation
            .write_reservation(&SnapshotOutcome::Ready(image))
            .await?
            .is_none()
        {
            return Err(TakeError::Ended(TakeResult::Overtaken));
        }
    }
    Ok(moment)
}

/// Reserves for a snapshot the bytes written to its source, or the bytes of its image if that exists
/// already.
async fn admit(
    agent: &Agent,
    snapshot: &PoolSnapshot,
    origin: Origin,
) -> Result<PoolSnapshot, TakeError> {
    let reconciliation = Reconciliation::of(agent, snapshot);
    let found = reconciliation.pool();
    let (pool_state, usable) = found.map_err(|why| refused(snapshot, &why))?;
    let adopted = reconciliation.find_own_image(&usable).await?;
    let adopted = adopted.map_err(|error| {
        let message = Chain(&error).to_string();
        refused(snapshot, &Explanation::new(error.reason(), message))
    })?;
    let (size, image) = match adopted {
        Some(image) => {
            let (size, image_is) = (image.allocated, SnapshotImage::Adopted);
            let admitted = agent
                .admission
                .snapshot(snapshot, &pool_state, size, image_is);
            admitted.map_err(|why| refused(snapshot, &why))?;
            (size, Some(image.image))
        }
        None if origin == Origin::Existing => return Err(lost(snapshot)),
        None => (
            reserve_new(&reconciliation, &pool_state, &usable).await?,
            None,
        ),
    };
    let admitted = reconciliation
        .write_reservation(&SnapshotOutcome::Admitted { size, image })
        .await?;
    admitted.ok_or(TakeError::Ended(TakeResult::Overtaken))
}

/// Reserves an estimate of the bytes that a new snapshot will hold.
///
/// For a thin volume these are at most the allocated bytes. Counting the written bytes reads each
/// extent and takes a tenth of the time of cloning them, so they are counted only if the allocated
/// bytes do not fit.
async fn reserve_new(
    reconciliation: &Reconciliation<'_, PoolSnapshot>,
    pool_state: &PoolState,
    usable: &Usable,
) -> Result<Bytes, TakeError> {
    let (snapshot, admission) = (reconciliation.object, &reconciliation.agent.admission);
    // Before anything is read from the disk.
    if let Some(closed) = admission.closed(pool_state) {
        let why = Explanation::new(Reason::PoolNotReady, closed.to_string());
        return Err(refused(snapshot, &why));
    }
    if snapshot.spec.provisioning == Provisioning::Thin {
        let allocated = |pool: &Pool, source: &Uid| {
            let image = pool.image(source)?;
            Ok(image.map(|image| image.allocated))
        };
        let allocated = of_source(reconciliation, usable, allocated).await?;
        if let Some(allocated) = allocated.filter(|allocated| {
            let admitted =
                admission.snapshot(snapshot, pool_state, *allocated, SnapshotImage::Expected);
            admitted.is_ok()
        }) {
            return Ok(allocated);
        }
    }
    let written = of_source(reconciliation, usable, Pool::written).await?;
    let admitted = admission.snapshot(snapshot, pool_state, written, SnapshotImage::Expected);
    admitted.map_err(|why| refused(snapshot, &why))?;
    Ok(written)
}

/// Reads from the source image of a snapshot.
async fn of_source<T: Send + 'static>(
    reconciliation: &Reconciliation<'_, PoolSnapshot>,
    usable: &Usable,
    ask: impl FnOnce(&Pool, &Uid) -> Result<T, cistern_host::image::Error> + Send + 'static,
) -> Result<T, TakeError> {
    let (agent, snapshot) = (reconciliation.agent, reconciliation.object);
    let (pool, source) = (Arc::clone(&usable.pool), snapshot.spec.source_image.clone());
    let permit = reconciliation.permit().await;
    let work = on_host(permit, move || {
        let source: Uid = source.parse()?;
        Ok::<_, image::Error>(ask(&pool, &source)?)
    });
    let answer = work.await.map_err(|source| reconciliation.broken(source))?;
    answer.map_err(|error| failed(agent, std::slice::from_ref(snapshot), &error))
}

/// One snapshot to be taken or found.
struct PendingSnapshot {
    snapshot: PoolSnapshot,
    pool: Arc<Pool>,
    extent_limits: ExtentLimits,
    formatted: DateTime<Utc>,
}

/// Takes all snapshots, or finds those that were taken before.
async fn take_or_find(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
    origin: Origin,
) -> Result<Vec<Image>, TakeError> {
    let mut pending = Vec::new();
    for snapshot in snapshots {
        let (pool_state, usable) = pool(agent, snapshot)?;
        pending.push(PendingSnapshot {
            snapshot: snapshot.clone(),
            pool: usable.pool,
            extent_limits: pool_state.spec.limits.extents(),
            formatted: formatted(agent, snapshot),
        });
    }
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
        let inspected = |it: &PendingSnapshot| inspect(&it.pool, &it.snapshot, it.formatted);
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

/// The limits of the volumes that are snapshotted.
fn limits_of_sources(agent: &Agent, snapshots: &[PoolSnapshot]) -> Vec<LimitedVolume> {
    let names: BTreeSet<&str> = snapshots.iter().map(|it| &*it.spec.source_volume).collect();
    let limits = names
        .into_iter()
        .filter_map(|name| io_limits::known(agent, name));
    limits.collect()
}

/// Whether the snapshot once had its image, so that it is never taken again.
fn is_settled(snapshot: &PoolSnapshot) -> bool {
    snapshot.is_announced() || image::is_adopted(snapshot)
}

fn members(pending: &[PendingSnapshot]) -> Result<Vec<Member<'_>>, image::Error> {
    let members = pending.iter().map(|it| {
        let spec = &it.snapshot.spec;
        Ok(Member {
            pool: &it.pool,
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

/// Reserves the bytes that were allocated beyond the estimates, because pods went on writing. If they
/// do not fit, all snapshots are removed.
async fn reserve_growth(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
    images: &[Image],
) -> Result<(), TakeError> {
    for (snapshot, image) in snapshots.iter().zip(images) {
        if is_settled(snapshot) || Some(image.allocated) <= snapshot.reserved() {
            continue;
        }
        let (pool_state, _) = pool(agent, snapshot)?;
        let admission = &agent.admission;
        if let Err(why) =
            admission.snapshot(snapshot, &pool_state, image.allocated, SnapshotImage::Taken)
        {
            discard(agent, snapshots).await?;
            return Err(refused(snapshot, &why));
        }
    }
    Ok(())
}

/// Removes images that were taken and never became ready.
async fn discard(agent: &Agent, snapshots: &[PoolSnapshot]) -> Result<(), TakeError> {
    let mut taken = Vec::new();
    for snapshot in snapshots {
        taken.push((pool(agent, snapshot)?.1, snapshot.clone()));
    }
    let guard = lock_all(agent, snapshots).await?;
    let work = on_host(guard, move || {
        taken.iter().try_for_each(|(usable, snapshot)| {
            let uid = image::destroy(&usable.pool, snapshot)?;
            usable.images.removed(uid.as_str());
            Ok::<_, image::Error>(())
        })
    });
    let done = work.await.map_err(|source| broken(snapshots, source))?;
    done.map_err(|error| not_yet(Reason::SnapshotFailed, Chain(&error).to_string()))
}

/// Takes the lock of each volume, so that no growth or staging runs at the same time, and a permit
/// for each pool.
async fn lock_all(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
) -> Result<impl Send + use<>, TakeError> {
    // Locks are taken in one order, and a holder of a permit waits for no lock.
    let volumes: BTreeSet<String> = snapshots.iter().map(ImageObject::volume).collect();
    let mut guards = Vec::new();
    for volume in volumes {
        let guard = agent.locks.lock_within(&volume, LOCK_PATIENCE).await;
        guards.push(guard.ok_or(TakeError::Ended(TakeResult::Busy))?);
    }
    let pools: BTreeSet<&str> = snapshots.iter().map(HasImage::pool_name).collect();
    let mut permits = Vec::new();
    for pool in pools {
        permits.push(agent.pools.permit(pool).await);
    }
    Ok((permits, guards))
}

fn pool(agent: &Agent, snapshot: &PoolSnapshot) -> Result<(Arc<PoolState>, Usable), TakeError> {
    let found = Reconciliation::of(agent, snapshot).pool();
    found.map_err(|why| TakeError::Ended(TakeResult::NotYet(why)))
}

/// The result of a disk error for all snapshots. None of them exists.
fn failed(agent: &Agent, snapshots: &[PoolSnapshot], error: &image::Error) -> TakeError {
    agent.pools.suspect(error);
    let about = |snapshot: &&PoolSnapshot| {
        let uid = error.uid().map(Uid::as_str);
        uid.is_some()
            && (uid == Some(&snapshot.spec.source_image) || uid == snapshot.uid().as_deref())
    };
    let message = Chain(error).to_string();
    let message = match snapshots.iter().find(about) {
        Some(snapshot) => naming(snapshot, &message),
        None => message,
    };
    match error.reason() {
        _ if error.is_no_space() => TakeError::Ended(TakeResult::Refused(Explanation {
            reason: Reason::NoSpace,
            message,
        })),
        reason @ (Reason::TooManyExtents
        | Reason::SourceMissing
        | Reason::FreezeFailed
        | Reason::IdentityConflict) => {
            TakeError::Ended(TakeResult::Refused(Explanation::new(reason, message)))
        }
        Reason::ProvisioningFailed => not_yet(Reason::SnapshotFailed, message),
        reason => not_yet(reason, message),
    }
}

/// The message for a group member names its volume, because the other members are refused with it.
fn naming(snapshot: &PoolSnapshot, message: &str) -> String {
    let spec = &snapshot.spec;
    match spec.group_name {
        Some(_) => format!("volume {}: {message}", spec.source_volume),
        None => message.to_owned(),
    }
}

fn refused(snapshot: &PoolSnapshot, why: &Explanation) -> TakeError {
    let message = naming(snapshot, &why.message);
    TakeError::Ended(TakeResult::Refused(Explanation::new(why.reason, message)))
}

/// The image of a snapshot that was taken before is missing. It may come back with its disk.
fn lost(snapshot: &PoolSnapshot) -> TakeError {
    let message = "its group was taken before, and its image is not on the disk";
    not_yet(Reason::ImageMissing, naming(snapshot, message))
}

fn not_yet(reason: Reason, message: String) -> TakeError {
    TakeError::Ended(TakeResult::NotYet(Explanation::new(reason, message)))
}

fn broken(snapshots: &[PoolSnapshot], source: Broken) -> Error {
    let names: Vec<String> = snapshots.iter().map(ResourceExt::name_any).collect();
    Error::Broken {
        object: format!("snapshots {}", names.join(", ")),
        source,
    }
}
