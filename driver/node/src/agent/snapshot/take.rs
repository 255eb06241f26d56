//! Taking snapshots: one alone, or those of a group; all of them at one moment, or none.
//!
//! *Invariant:* nothing is cut before every snapshot has its promise, nothing is announced before
//! every promise covers what was really allocated, and when one is refused, all are, and nothing of
//! them remains.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{Bytes, Consistency, PoolSnapshot, Provisioning, Reason, Stored};
use cistern_host::{
    Pool, Root, Uid,
    snapshot::{Member, SnapshotRequest},
};
use kube::ResourceExt;

use super::{formatted, look, status::Outcome};
use crate::agent::{
    Agent,
    blocking::{Broken, on_host},
    image::{self, Image},
    ledger::Promise,
    outcome::{Stage, refusal, stage},
    pass::{Kept, NoPool, Pass},
    pools::{PoolLook, Usable},
    promises::Claim,
    work::Error,
};

/// How long to wait for whoever works on one of the volumes.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// What became of snapshots that were to be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All of them are there, and show this moment.
    Ready(DateTime<Utc>),
    /// None is taken, and none will be.
    Refused(Why),
    /// None is taken so far: to be tried again.
    NotYet(Why),
    /// Somebody works on one of the volumes: to be tried again soon.
    Busy,
    /// One of the objects has changed meanwhile, and the change brings us back.
    Overtaken,
}

/// What stands against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// Why an attempt ended early.
#[derive(Debug)]
enum Stop {
    Taken(Taken),
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Why {
    /// As the outcome of each snapshot.
    pub fn into_outcome(self) -> Outcome {
        let Self { reason, message } = self;
        Outcome::NotReady { reason, message }
    }
}

/// Where the images of snapshots come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// They are taken now, unless their images exist already.
    New(Consistency),
    /// They were taken before. A snapshot whose image is missing is not taken again, because its data
    /// would be of another moment.
    Existing,
}

/// Takes snapshots, as far as they are not taken yet, and writes what became of each.
pub async fn take(
    agent: &Agent,
    mut snapshots: Vec<PoolSnapshot>,
    origin: Origin,
) -> Result<Taken, Error> {
    let taken = match attempt(agent, &mut snapshots, origin).await {
        Ok(moment) => return Ok(Taken::Ready(moment)),
        Err(Stop::Error(error)) => return Err(error),
        Err(Stop::Taken(taken)) => taken,
    };
    let outcome = match taken.clone() {
        Taken::Refused(Why { reason, message }) => Outcome::Refused { reason, message },
        Taken::NotYet(why) => why.into_outcome(),
        Taken::Ready(_) | Taken::Busy | Taken::Overtaken => return Ok(taken),
    };
    // One that was announced is as it was, whatever became of the others.
    for snapshot in snapshots.iter().filter(|it| !it.is_announced()) {
        let pass = Pass::over(agent, snapshot);
        tracing::info!(snapshot = pass.name, ?outcome, "not taken");
        if pass.write(&outcome).await?.is_none() {
            return Ok(Taken::Overtaken);
        }
    }
    agent.report.request();
    Ok(taken)
}

async fn attempt(
    agent: &Agent,
    snapshots: &mut [PoolSnapshot],
    origin: Origin,
) -> Result<DateTime<Utc>, Stop> {
    if let Some(refused) = snapshots.iter().find_map(refusal) {
        let reason = Reason::parse(&refused.reason).unwrap_or(Reason::CutFailed);
        let message = refused.message.clone();
        return Err(Stop::Taken(Taken::Refused(Why { reason, message })));
    }
    for snapshot in &mut *snapshots {
        match stage(snapshot) {
            Stage::Admit => *snapshot = admit(agent, snapshot, origin).await?,
            Stage::Admitted => {}
            Stage::Rest | Stage::Reclaim => return Err(Stop::Taken(Taken::Overtaken)),
        }
    }
    let images = cut(agent, snapshots, origin).await?;
    cover(agent, snapshots, &images).await?;
    let mut moment = (agent.now)();
    for (snapshot, image) in snapshots.iter().zip(images) {
        moment = image.owner.snapshot().map_or(moment, |cut| cut.time);
        let pass = Pass::over(agent, snapshot);
        tracing::info!(snapshot = pass.name, %moment, held = %image.allocated, "taken");
        if pass.write_promise(&Outcome::Ready(image)).await?.is_none() {
            return Err(Stop::Taken(Taken::Overtaken));
        }
    }
    Ok(moment)
}

/// Promises a snapshot what was written to its source, or what it keeps if it is there already.
async fn admit(
    agent: &Agent,
    snapshot: &PoolSnapshot,
    origin: Origin,
) -> Result<PoolSnapshot, Stop> {
    let pass = Pass::over(agent, snapshot);
    let refused = |reason, message: String| refused(snapshot, reason, &message);
    let (look, usable) = pass
        .pool()
        .map_err(|NoPool { reason, message }| refused(reason, message))?;
    let adopted = pass.look_for_own_image(&usable).await?;
    let adopted = adopted.map_err(|error| refused(error.reason(), Chain(&error).to_string()))?;
    let (size, image) = match adopted {
        Some(image) => {
            let promise = Promise::to_snapshot(snapshot, image.allocated);
            let promised = agent.promise(snapshot, promise, &look, Claim::Adopted);
            promised.map_err(|error| refused(error.reason(), error.to_string()))?;
            (image.allocated, Some(image.image))
        }
        None if origin == Origin::Existing => return Err(lost(snapshot)),
        None => match agent.closed(&look) {
            None => (promise_new(&pass, &look, &usable).await?, None),
            Some(message) => return Err(refused(Reason::PoolNotReady, message)),
        },
    };
    let admitted = pass
        .write_promise(&Outcome::Admitted { size, image })
        .await?;
    admitted.ok_or(Stop::Taken(Taken::Overtaken))
}

/// Promises a snapshot that is to be cut what it will keep, as far as that can be told before.
///
/// Of a thin volume that is at most what is allocated. How much of it was written takes a look at
/// each of its extents, a tenth of the time of cloning them: only where it decides.
async fn promise_new(
    pass: &Pass<'_, PoolSnapshot>,
    look: &PoolLook,
    usable: &Usable,
) -> Result<Bytes, Stop> {
    let snapshot = pass.object;
    let promise = |size| {
        let promise = Promise::to_snapshot(snapshot, size);
        pass.agent.promise(snapshot, promise, look, Claim::New)
    };
    if snapshot.spec.provisioning == Provisioning::Thin {
        let allocated = |pool: &Pool, source: &Uid| {
            let image = pool.image(source)?;
            Ok(image.map(|image| image.allocated))
        };
        let allocated = of_source(pass, usable, allocated).await?;
        if let Some(allocated) = allocated.filter(|allocated| promise(*allocated).is_ok()) {
            return Ok(allocated);
        }
    }
    let written = of_source(pass, usable, Pool::written).await?;
    promise(written).map_err(|error| refused(snapshot, error.reason(), &error.to_string()))?;
    Ok(written)
}

/// Asks something of the image that a snapshot is to be cut of.
async fn of_source<T: Send + 'static>(
    pass: &Pass<'_, PoolSnapshot>,
    usable: &Usable,
    ask: impl FnOnce(&Pool, &Uid) -> Result<T, cistern_host::image::Error> + Send + 'static,
) -> Result<T, Stop> {
    let (agent, snapshot) = (pass.agent, pass.object);
    let (pool, source) = (Arc::clone(&usable.pool), snapshot.spec.source_image.clone());
    let place = agent.lanes.volume(&snapshot.spec.pool_name).await;
    let work = on_host(place, move || {
        let source: Uid = source.parse()?;
        Ok::<_, image::Error>(ask(&pool, &source)?)
    });
    let answer = work.await.map_err(|source| pass.broken(source))?;
    answer.map_err(|error| failed(agent, std::slice::from_ref(snapshot), &error))
}

/// One snapshot to be cut, or to be looked at.
struct Cutting {
    snapshot: PoolSnapshot,
    pool: Arc<Pool>,
    maximum_extents: u64,
    formatted: DateTime<Utc>,
}

/// Cuts all snapshots, or finds what was cut before.
async fn cut(
    agent: &Agent,
    snapshots: &[PoolSnapshot],
    origin: Origin,
) -> Result<Vec<Image>, Stop> {
    let mut cutting = Vec::new();
    for snapshot in snapshots {
        let (look, usable) = pool(agent, snapshot)?;
        cutting.push(Cutting {
            snapshot: snapshot.clone(),
            pool: usable.pool,
            maximum_extents: look.spec.limits.maximum_extents,
            formatted: formatted(agent, snapshot),
        });
    }
    let guard = hold(agent, snapshots).await?;
    let (root, clock) = (agent.root.clone(), agent.now);
    let is_settled = origin == Origin::Existing || snapshots.iter().any(is_settled);
    let work = on_host(guard, move || {
        if let Origin::New(consistency) = origin
            && !is_settled
        {
            cut_all(&root, &cutting, consistency, clock)?;
        }
        let look = |it: &Cutting| look(&it.pool, &it.snapshot, it.formatted);
        cutting.iter().map(look).collect::<Result<Vec<_>, _>>()
    });
    match work.await.map_err(|source| broken(snapshots, source))? {
        Ok(images) => Ok(images),
        Err(error) if is_settled => {
            agent.suspect_pool(&error);
            Err(not_yet(error.reason(), Chain(&error).to_string()))
        }
        Err(error) => {
            let stop = failed(agent, snapshots, &error);
            if let Stop::Taken(Taken::Refused(_)) = stop {
                // It may be what was cut that is not as it should be.
                discard(agent, snapshots).await?;
            }
            Err(stop)
        }
    }
}

/// Whether the image of a snapshot was there once, so that it is not cut anew whatever became of it.
fn is_settled(snapshot: &PoolSnapshot) -> bool {
    snapshot.is_announced() || image::is_adopted(snapshot)
}

fn cut_all(
    root: &Root,
    cutting: &[Cutting],
    consistency: Consistency,
    clock: fn() -> DateTime<Utc>,
) -> Result<(), image::Error> {
    let members = cutting.iter().map(|it| {
        let spec = &it.snapshot.spec;
        Ok(Member {
            pool: &it.pool,
            request: SnapshotRequest {
                snapshot: it.snapshot.name_any(),
                uid: image::name_of(&it.snapshot)?,
                volume: spec.source_volume.clone(),
                source: spec.source_image.parse()?,
                maximum_extents: it.maximum_extents,
            },
        })
    });
    let members = members.collect::<Result<Vec<_>, image::Error>>()?;
    root.cut(&members, consistency, clock)?;
    Ok(())
}

/// Promises what was allocated beyond the estimates, for writers went on. Where that does not fit,
/// all that was cut goes.
async fn cover(agent: &Agent, snapshots: &[PoolSnapshot], images: &[Image]) -> Result<(), Stop> {
    for (snapshot, image) in snapshots.iter().zip(images) {
        let held = snapshot.reserved().unwrap_or_default();
        if is_settled(snapshot) || image.allocated <= held {
            continue;
        }
        let (look, _) = pool(agent, snapshot)?;
        let promise = Promise::to_snapshot(snapshot, image.allocated);
        let claim = Claim::Growth { held };
        if let Err(error) = agent.promise(snapshot, promise, &look, claim) {
            discard(agent, snapshots).await?;
            return Err(refused(snapshot, error.reason(), &error.to_string()));
        }
    }
    Ok(())
}

/// Removes what was cut and never announced.
async fn discard(agent: &Agent, snapshots: &[PoolSnapshot]) -> Result<(), Stop> {
    let mut cut = Vec::new();
    for snapshot in snapshots {
        cut.push((pool(agent, snapshot)?.1, snapshot.clone()));
    }
    let guard = hold(agent, snapshots).await?;
    let work = on_host(guard, move || {
        cut.iter().try_for_each(|(usable, snapshot)| {
            let uid = image::destroy(&usable.pool, snapshot)?;
            usable.images.removed(uid.as_str());
            Ok::<_, image::Error>(())
        })
    });
    let done = work.await.map_err(|source| broken(snapshots, source))?;
    done.map_err(|error| not_yet(Reason::CutFailed, Chain(&error).to_string()))
}

/// The lock of each volume, so that growth and stage of a volume are never met half way, and a place
/// in the lane of each pool.
async fn hold(agent: &Agent, snapshots: &[PoolSnapshot]) -> Result<impl Send + use<>, Stop> {
    // Each in one order, whoever asks; and whoever has a place waits for no lock.
    let volumes: BTreeSet<String> = snapshots.iter().map(Kept::volume).collect();
    let mut guards = Vec::new();
    for volume in volumes {
        let guard = agent.locks.lock_within(&volume, LOCK_PATIENCE).await;
        guards.push(guard.ok_or(Stop::Taken(Taken::Busy))?);
    }
    let pools: BTreeSet<&str> = snapshots.iter().map(Stored::pool_name).collect();
    let mut places = Vec::new();
    for pool in pools {
        places.push(agent.lanes.volume(pool).await);
    }
    Ok((places, guards))
}

fn pool(agent: &Agent, snapshot: &PoolSnapshot) -> Result<(Arc<PoolLook>, Usable), Stop> {
    let found = Pass::over(agent, snapshot).pool();
    found.map_err(|NoPool { reason, message }| not_yet(reason, message))
}

/// What an error on the disk means to all of the snapshots. Nothing of them is there.
fn failed(agent: &Agent, snapshots: &[PoolSnapshot], error: &image::Error) -> Stop {
    agent.suspect_pool(error);
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
        _ if error.is_no_space() => Stop::Taken(Taken::Refused(Why {
            reason: Reason::NoSpace,
            message,
        })),
        reason @ (Reason::TooManyExtents
        | Reason::SourceMissing
        | Reason::NotHeldStill
        | Reason::IdentityConflict) => Stop::Taken(Taken::Refused(Why { reason, message })),
        Reason::ProvisioningFailed => not_yet(Reason::CutFailed, message),
        reason => not_yet(reason, message),
    }
}

/// That of a group's member says which it is about: the others are refused with it.
fn naming(snapshot: &PoolSnapshot, message: &str) -> String {
    let spec = &snapshot.spec;
    match spec.group_name {
        Some(_) => format!("volume {}: {message}", spec.source_volume),
        None => message.to_owned(),
    }
}

fn refused(snapshot: &PoolSnapshot, reason: Reason, message: &str) -> Stop {
    let message = naming(snapshot, message);
    Stop::Taken(Taken::Refused(Why { reason, message }))
}

/// The image of a snapshot that was taken before is missing. It may come back with its disk.
fn lost(snapshot: &PoolSnapshot) -> Stop {
    let message = "its group was taken before, and its image is not on the disk";
    not_yet(Reason::ImageMissing, naming(snapshot, message))
}

fn not_yet(reason: Reason, message: String) -> Stop {
    Stop::Taken(Taken::NotYet(Why { reason, message }))
}

fn broken(snapshots: &[PoolSnapshot], source: Broken) -> Error {
    let names: Vec<String> = snapshots.iter().map(ResourceExt::name_any).collect();
    Error::Broken {
        object: format!("snapshots {}", names.join(", ")),
        source,
    }
}
