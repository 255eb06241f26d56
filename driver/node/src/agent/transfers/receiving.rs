//! Receives the copy of a snapshot for a new volume, or of a volume that moves here. A clone of a volume on another
//! node is copied from a snapshot of it, and so is a volume that is used while it moves, in passes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{Bytes, Explanation};
use cistern_host::{
    Engine, Pool, Uid,
    copy::{Chunk, CopyRequest, Incoming},
    image,
};
use cistern_transfer::{Error, Fetch, fetch};
use futures::StreamExt as _;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{
    copies::RunningCopy,
    route::{NotCopied, Route, failed, not_written, route, unreachable},
    wanted::{Origin, Wanted},
};
use crate::{agent::Agent, blocking::on_host, image::COPIES, locks::VolumeGuard};

/// Bytes of data after which a copy is synced: what is copied again after a crash.
const SYNCED: u64 = 64 << 20;
/// Milliseconds after which a source is asked again that has refused: it may see the permission a moment later than
/// this node.
const REFUSED: [u64; 4] = [50, 100, 200, 400];
/// How long a source may send nothing. It may compare a large image that has not changed, but a disk that hangs never ends.
const IDLE: Duration = Duration::from_mins(10);
/// Chunks that wait to be written.
const QUEUED: usize = 2;

/// What this node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A complete copy: nothing more has to be received.
    Complete,
    /// A complete copy of a snapshot of a volume that moves here.
    Snapshot {
        /// Name of its image.
        image: Uid,
        /// How long the pass took; None if it was interrupted.
        took: Option<Duration>,
    },
}

/// What a pass begins with.
enum Held {
    /// The copy that it would make is there.
    All,
    /// The copy of this image, or nothing.
    Base(Option<Uid>),
}

/// Receives a copy, unless it is complete, or the snapshot is in this node's pools meanwhile. A complete copy needs
/// no source.
pub async fn receive(
    agent: &Agent,
    wanted: &Wanted,
    target: (Arc<dyn Engine>, VolumeGuard),
) -> Result<Received, NotCopied> {
    let received = receive_rest(agent, wanted, target).await;
    if matches!(received, Ok(Received::Complete)) {
        agent.transfers.copies.complete(&wanted.volume);
    }
    received
}

/// What the pool has of a volume that moves here. Blocks.
fn held(pool: &Pool, wanted: &Wanted, by: &Uid) -> Result<Held, image::Error> {
    if matches!(wanted.origin, Origin::Pass { .. })
        && pool.has_point(&wanted.copy, by, &wanted.image)?
    {
        return Ok(Held::All);
    }
    let point = pool.point(&wanted.copy, by)?;
    Ok(Held::Base(
        point.filter(|it| Some(it) == wanted.base.as_ref()),
    ))
}

/// Does work on a pool of images. Its failure ends this attempt.
async fn on_pool<T: Send + 'static>(
    pool: &Arc<dyn Engine>,
    work: impl FnOnce(&Pool) -> Result<T, image::Error> + Send + 'static,
) -> Result<T, NotCopied> {
    let pool = Arc::clone(pool);
    let done = on_host((), move || work(pool.images_for(COPIES)?)).await;
    done.map_err(|error| failed(&error))?
        .map_err(|error| not_written(&error))
}

/// Whether the pool has all that is wanted. Its failure ends this attempt.
async fn is_received(pool: &Arc<dyn Engine>, wanted: &Wanted) -> Result<bool, NotCopied> {
    let (pool, wanted) = (Arc::clone(pool), wanted.clone());
    let found = on_host((), move || wanted.is_received(&*pool)).await;
    let found = found.map_err(|error| failed(&error))?;
    found.map_err(|error| {
        let why = Chain(&error).to_string();
        NotCopied::Later(Explanation::new(error.reason(), why))
    })
}

/// Receives what is left of a copy.
async fn receive_rest(
    agent: &Agent,
    wanted: &Wanted,
    (pool, guard): (Arc<dyn Engine>, VolumeGuard),
) -> Result<Received, NotCopied> {
    if is_received(&pool, wanted).await? {
        return Ok(Received::Complete);
    }
    let Some(route) = route(agent, wanted).await? else {
        return Ok(Received::Complete);
    };
    let permitted = wanted.permitted_by(&route.transfer);
    let wanted = &permitted.map_err(|error| failed(&error))?;
    let by = wanted.moved_by().map_err(|error| failed(&error))?;
    let mut base = None;
    if let Some(by) = by.clone() {
        let sought = wanted.clone();
        match on_pool(&pool, move |pool| held(pool, &sought, &by)).await? {
            Held::All => {
                let (image, took) = (wanted.image.clone(), None);
                return Ok(Received::Snapshot { image, took });
            }
            Held::Base(held) => base = held,
        }
    }
    let queued = agent.transfers.copies.queue(&wanted.volume);
    let _slot = agent.transfers.receiving.acquire().await;
    drop(queued);
    let began = Instant::now();
    let fetch = offered(agent, wanted, &route, base.as_ref()).await?;
    let size = fetch.original().size;
    let is_pass = matches!(wanted.origin, Origin::Pass { .. });
    let request = CopyRequest {
        volume: wanted.copy.clone(),
        original: fetch.original().clone(),
        extent_size: wanted.extent_size,
        point_for: by.filter(|_| is_pass),
        // The source does not have it any more if it sends all data.
        base: base.filter(|_| fetch.base().is_some()),
    };
    let incoming = on_pool(&pool, move |pool| pool.receive(&request)).await?;
    let extent = (incoming.written(), size);
    let copy = begin(agent, wanted, &route.node, extent);
    match copied(fetch, incoming, copy, agent.node.now, guard).await {
        Ok(()) if is_pass => Ok(Received::Snapshot {
            image: wanted.image.clone(),
            took: (extent.0 == Bytes::ZERO).then(|| began.elapsed()),
        }),
        Ok(()) => Ok(Received::Complete),
        Err(Ended::Source(error)) => {
            let why = Chain(&error).to_string();
            Err(unreachable(&route.node, wanted, &why))
        }
        Err(Ended::Silent(limit)) => {
            let why = format!("it has sent nothing for {limit:?}, and its disk may hang");
            Err(unreachable(&route.node, wanted, &why))
        }
        Err(Ended::Disk(why)) => Err(why),
    }
}

/// Asks the source for the copy. Fails if it offers another image, or a larger one than the volume.
async fn offered(
    agent: &Agent,
    wanted: &Wanted,
    route: &Route,
    base: Option<&Uid>,
) -> Result<Fetch, NotCopied> {
    let unreachable = |why: &str| unreachable(&route.node, wanted, why);
    let fetch = ask(agent, wanted, route, base.map(Uid::as_str)).await;
    let fetch = fetch.map_err(|error| unreachable(&Chain(&error).to_string()))?;
    if !wanted.is_offered(fetch.original()) {
        return Err(unreachable("it offers another image"));
    }
    // More than what is reserved would take the space of others.
    if fetch.original().size > wanted.reserved {
        return Err(unreachable(
            "it offers an image that is larger than the volume",
        ));
    }
    Ok(fetch)
}

/// Asks the source for the copy, and again for a moment if it refuses.
async fn ask(
    agent: &Agent,
    wanted: &Wanted,
    route: &Route,
    base: Option<&str>,
) -> Result<Fetch, Error> {
    let ask = || {
        let peer = (route.address, route.key);
        fetch(&agent.transfers.keys, peer, &wanted.volume, base)
    };
    for wait in REFUSED {
        match ask().await {
            Err(Error::Answer(_) | Error::Protocol(_)) => {
                sleep(Duration::from_millis(wait)).await;
            }
            asked => return asked,
        }
    }
    ask().await
}

/// Records that a copy runs, which has this many of its bytes.
fn begin(agent: &Agent, wanted: &Wanted, node: &str, extent: (Bytes, Bytes)) -> RunningCopy {
    let (what, now) = (wanted.described(node), (agent.node.now)());
    let copies = &agent.transfers.copies;
    let copy = copies.begin(&wanted.volume, what, extent, now);
    tracing::info!(
        volume = wanted.volume,
        what = wanted.name(),
        node,
        from = extent.0.0,
        "started to receive a copy"
    );
    copy
}

/// Why a copy ended before it was complete.
enum Ended {
    /// The source does not send any more.
    Source(cistern_transfer::Error),
    /// The source has sent nothing for so long.
    Silent(Duration),
    /// It cannot be written.
    Disk(NotCopied),
}

/// Writes what the source sends, until it is complete.
async fn copied(
    fetch: Fetch,
    incoming: Incoming,
    copy: RunningCopy,
    now: fn() -> DateTime<Utc>,
    guard: VolumeGuard,
) -> Result<(), Ended> {
    let from = incoming.written().0;
    let mut chunks = within(IDLE, fetch.read(from))
        .await?
        .map_err(Ended::Source)?;
    let (sender, receiver) = mpsc::channel(QUEUED);
    let writing = on_host(guard, move || write(incoming, &copy, receiver, now));
    // It owns the sender, so that an end of the source ends the writer.
    let reading = async move {
        while let Some(chunk) = within(IDLE, chunks.next()).await? {
            let chunk = chunk.map_err(Ended::Source)?;
            // The writer has failed, and says why.
            if sender.send(Next::Chunk(chunk)).await.is_err() {
                return Ok(());
            }
        }
        let _ = sender.send(Next::End).await;
        Ok(())
    };
    let (read, written) = tokio::join!(reading, writing);
    written
        .map_err(|error| Ended::Disk(failed(&error)))?
        .map_err(|error| Ended::Disk(not_written(&error)))?;
    read
}

/// Waits for the source, which may hang.
async fn within<T>(limit: Duration, answer: impl Future<Output = T>) -> Result<T, Ended> {
    let answered = timeout(limit, answer).await;
    answered.map_err(|_| Ended::Silent(limit))
}

/// What the writer gets. Without [`Next::End`] the copy is not complete.
enum Next {
    Chunk(Chunk),
    End,
}

/// Writes chunks until the last one. What was written is synced also if the source ends before. Blocks.
fn write(
    mut incoming: Incoming,
    copy: &RunningCopy,
    mut chunks: mpsc::Receiver<Next>,
    now: fn() -> DateTime<Utc>,
) -> Result<(), image::Error> {
    let mut unsynced = 0;
    while let Some(next) = chunks.blocking_recv() {
        let chunk = match next {
            Next::Chunk(chunk) => chunk,
            Next::End => return incoming.complete(),
        };
        incoming.write(&chunk)?;
        let length = chunk.data.len() as u64;
        unsynced += length;
        if unsynced >= SYNCED {
            incoming.sync()?;
            unsynced = 0;
        }
        copy.reached(incoming.written().0, length, now());
    }
    incoming.sync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_copy_ends_once_its_source_has_sent_nothing_for_long() {
        let limit = Duration::from_millis(20);
        let hangs = within(limit, std::future::pending::<()>()).await;
        assert!(matches!(hangs, Err(Ended::Silent(it)) if it == limit));
        let answers = within(limit, std::future::ready(7)).await;
        assert!(matches!(answers, Ok(7)));
    }
}
