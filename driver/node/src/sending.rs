//! Sends what is granted.

use std::sync::Arc;

use cistern_client::Chain;
use cistern_crds::ReplicaPurpose;
use cistern_host::{
    Uid,
    copy::{CHUNK, Chunk, Outgoing},
    image,
};
use cistern_transfer::{Data, Opened, PublicKey, Refused, Source};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use prometheus_client::metrics::counter::Counter;

use crate::{
    agent::{Agent, desired::readable, pools::Usable},
    blocking::on_host,
    image::COPIES,
    metadata::{Snapshots, on_node::OnNode},
};

/// The snapshots of this node, and the volumes that move away from it, for other nodes.
#[derive(Debug)]
pub struct Sending {
    agent: Arc<Agent>,
    snapshots: OnNode,
}

impl Sending {
    /// Sends the snapshots and the moving volumes of an agent.
    pub fn new(agent: Arc<Agent>, snapshots: OnNode) -> Self {
        Self { agent, snapshots }
    }

    async fn open(&self, transfer: &str, base: Option<&str>, from: u64) -> Result<Opened, Refused> {
        let unavailable = |error: &(dyn std::error::Error + 'static)| {
            Refused::Unavailable(Chain(error).to_string())
        };
        let grant = self.agent.transfers.grants.get(transfer);
        let spec = grant.ok_or(Refused::NotGranted)?.spec;
        let (pool_name, image) = match (&spec.snapshot_name, &spec.move_uid) {
            (Some(snapshot), _) => {
                let found = self.snapshots.find(snapshot).await;
                let found = found.map_err(|error| unavailable(&error))?;
                // A later snapshot of the same name is not granted.
                if found.image.as_str() != spec.image {
                    return Err(Refused::NotGranted);
                }
                (found.pool, found.image)
            }
            (None, Some(by)) => self.retained(&spec.image, by).ok_or(Refused::NotGranted)?,
            (None, None) => return Err(Refused::NotGranted),
        };
        let (_, Usable { pool, .. }) = self.agent.pools.usable(&pool_name).map_err(|why| {
            let why = crate::metadata::NotReady::from(why);
            unavailable(&why)
        })?;
        let agent = Arc::clone(&self.agent);
        // It is polled after the image was opened. The pool may have been lost by then.
        let lost = async move {
            if agent.pools.usable(&pool_name).is_ok() {
                agent.pools.lost(&pool_name).await;
            }
        };
        // Nothing else may be compared with the image: the answer says where they differ.
        let base = base.filter(|base| spec.base_image.as_deref() == Some(base));
        let base = base.and_then(|base| base.parse().ok());
        let send = move || {
            let pool = pool.images_for(COPIES)?;
            match base {
                Some(base) => pool.send_changes(&image, &base, from),
                None => pool.send(&image, from),
            }
        };
        let opened = on_host((), send).await;
        let outgoing = opened
            .map_err(|error| unavailable(&error))?
            .map_err(|error| unavailable(&error))?;
        // A snapshot is closed for nothing, also if it was taken for a move.
        let closed_for = spec.move_uid.filter(|_| spec.snapshot_name.is_none());
        if outgoing.closed_for().map(Uid::as_str) != closed_for.as_deref() {
            return Err(Refused::NotGranted);
        }
        Ok(Opened {
            original: outgoing.original().clone(),
            base: outgoing.base().map(ToString::to_string),
            data: data(outgoing, self.agent.transfers.sent.clone()),
            lost: lost.boxed(),
        })
    }
}

impl Sending {
    /// Pool and image of a volume that this node keeps for a move; none if it keeps no such image.
    fn retained(&self, image: &str, by: &str) -> Option<(String, Uid)> {
        let replicas = self.agent.desired.replicas();
        let mut replicas = replicas.iter().filter_map(|replica| readable(replica));
        let replica = replicas.find(|replica| {
            let spec = &replica.spec;
            spec.purpose == ReplicaPurpose::Retained
                && (&*spec.image, &*spec.move_uid) == (image, by)
                && !spec.deletion_requested
        })?;
        Some((replica.spec.pool_name.clone(), image.parse().ok()?))
    }
}

impl Source for Sending {
    fn admits(&self, key: &PublicKey) -> bool {
        self.agent.transfers.grants.admit(key)
    }

    fn grants(&self, key: &PublicKey, transfer: &str, image: Option<&str>) -> bool {
        let grant = self.agent.transfers.grants.get(transfer);
        grant.is_some_and(|grant| {
            grant.key == *key && image.is_none_or(|image| grant.spec.image == image)
        })
    }

    fn open<'a>(
        &'a self,
        transfer: &'a str,
        base: Option<&'a str>,
        from: u64,
    ) -> BoxFuture<'a, Result<Opened, Refused>> {
        self.open(transfer, base, from).boxed()
    }
}

/// Chunks that are read at a time at most: differences may be small.
const BATCH: usize = 256;

/// The chunks of an image, whose bytes are counted. They are read on request, on a thread of their own.
fn data(outgoing: Outgoing, sent: Counter) -> Data {
    let chunks = stream::try_unfold(outgoing, async |mut outgoing| {
        let next = on_host((), move || {
            let chunks = next_chunks(&mut outgoing);
            (outgoing, chunks)
        });
        let failed = |error: &(dyn std::error::Error + 'static)| {
            Refused::Unavailable(Chain(error).to_string())
        };
        let (outgoing, chunks) = next.await.map_err(|error| failed(&error))?;
        let chunks = chunks.map_err(|error| failed(&error))?;
        Ok((!chunks.is_empty()).then_some((chunks, outgoing)))
    });
    let chunks = chunks.map_ok(|chunks| stream::iter(chunks.into_iter().map(Ok)));
    let counted = chunks.try_flatten().inspect_ok(move |chunk: &Chunk| {
        sent.inc_by(chunk.data.len() as u64);
    });
    counted.boxed()
}

/// The next parts: as many as fill one chunk, or some small ones. Empty at the end.
fn next_chunks(outgoing: &mut Outgoing) -> Result<Vec<Chunk>, image::Error> {
    let (mut chunks, mut bytes) = (Vec::new(), 0);
    for found in outgoing {
        let Some(chunk) = found? else { continue };
        bytes += chunk.data.len();
        chunks.push(chunk);
        if bytes >= CHUNK || chunks.len() == BATCH {
            break;
        }
    }
    Ok(chunks)
}
