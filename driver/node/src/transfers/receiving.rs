//! Receives the copy of a snapshot for a new volume.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{
    ContentSource, Explanation, HasImage as _, ImageTransfer, PoolSnapshot, PoolVolume, Reason,
    StorageNode,
};
use cistern_host::{
    Pool,
    copy::{Chunk, CopyRequest, Incoming},
    image,
};
use cistern_transfer::{Fetch, PublicKey, fetch};
use futures::StreamExt as _;
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::timeout};

use super::{copies::RunningCopy, grants::key_of};
use crate::{agent::Agent, blocking::on_host, image::name_of, locks::VolumeGuard};

/// Bytes of data after which a copy is synced: what is copied again after a crash.
const SYNCED: u64 = 64 << 20;
/// Chunks that wait to be written.
const QUEUED: usize = 2;
/// How long a read from the API server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no complete copy. The explanation is for the condition `Ready`.
#[derive(Debug)]
pub enum NotCopied {
    /// The snapshot is gone: it cannot be copied any more.
    Gone(Explanation),
    /// A later attempt goes on.
    Later(Explanation),
}

/// Where a snapshot is copied from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    /// Name of the node.
    node: String,
    /// Its address.
    address: SocketAddr,
    /// Its key.
    key: PublicKey,
}

/// Receives the copy that a volume is made from, unless its snapshot is in this node's pools meanwhile.
pub async fn receive(
    agent: &Agent,
    volume: &PoolVolume,
    source: &ContentSource,
    (pool, guard): (Arc<Pool>, VolumeGuard),
) -> Result<(), NotCopied> {
    let Some(route) = route(agent, volume, source).await? else {
        return Ok(());
    };
    let _slot = agent.transfers.receiving.acquire().await;
    let unreachable = |why: &str| unreachable(&route.node, &source.name, why);
    let peer = (route.address, route.key);
    let fetch = fetch(&agent.transfers.keys, peer, &volume.name_any()).await;
    let fetch = fetch.map_err(|error| unreachable(&Chain(&error).to_string()))?;
    let original = fetch.original().clone();
    let is_it = original.identity.uid.as_str() == source.image
        && original.identity.owner.snapshot().is_some();
    if !is_it {
        return Err(unreachable("it offers another image"));
    }
    // More than what is reserved would take the space of others.
    if Some(original.size) > volume.reserved() {
        return Err(unreachable(
            "it offers an image that is larger than the volume",
        ));
    }
    let uid = name_of(volume).map_err(|error| failed(&error))?;
    let size = original.size;
    let request = CopyRequest {
        volume: uid,
        original,
    };
    let opened = on_host((), move || pool.receive(&request)).await;
    let incoming = opened
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
    let what = format!("snapshot {} of node {}", source.name, route.node);
    let (now, copies) = (agent.node.now, &agent.transfers.copies);
    let extent = (incoming.written(), size);
    let copy = copies.begin(&volume.name_any(), what, extent, now());
    tracing::info!(
        volume = volume.name_any(),
        snapshot = source.name,
        node = route.node,
        from = extent.0.0,
        "a copy begins"
    );
    match copied(fetch, incoming, copy, now, guard).await {
        Ok(()) => Ok(()),
        Err(Ended::Source(error)) => Err(unreachable(&Chain(&error).to_string())),
        Err(Ended::Disk(why)) => Err(NotCopied::Later(why)),
    }
}

/// Why a copy ended before it was complete.
enum Ended {
    /// The source does not send any more.
    Source(cistern_transfer::Error),
    /// It cannot be written.
    Disk(Explanation),
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
    let mut chunks = fetch.read(from).await.map_err(Ended::Source)?;
    let (sender, receiver) = mpsc::channel(QUEUED);
    let writing = on_host(guard, move || write(incoming, &copy, receiver, now));
    // It owns the sender, so that an end of the source ends the writer.
    let reading = async move {
        while let Some(chunk) = chunks.next().await {
            // The writer has failed, and says why.
            if sender.send(Next::Chunk(chunk?)).await.is_err() {
                return Ok(());
            }
        }
        let _ = sender.send(Next::End).await;
        Ok(())
    };
    let (read, written) = tokio::join!(reading, writing);
    written
        .map_err(|error| Ended::Disk(explanation(&error)))?
        .map_err(|error| Ended::Disk(explanation(&error)))?;
    read.map_err(Ended::Source)
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
    let (mut data, mut unsynced) = (0, 0);
    while let Some(next) = chunks.blocking_recv() {
        let chunk = match next {
            Next::Chunk(chunk) => chunk,
            Next::End => return incoming.complete(),
        };
        incoming.write(&chunk)?;
        let length = chunk.data.len() as u64;
        (data, unsynced) = (data + length, unsynced + length);
        if unsynced >= SYNCED {
            incoming.sync()?;
            unsynced = 0;
        }
        copy.reached(incoming.written().0, data, now());
    }
    incoming.sync()
}

/// Where a snapshot is copied from; None if it is on this node meanwhile. Fails while the copy is not permitted, or
/// the node cannot be reached.
async fn route(
    agent: &Agent,
    volume: &PoolVolume,
    source: &ContentSource,
) -> Result<Option<Route>, NotCopied> {
    let client = &agent.transfers.client;
    let snapshot = get::<PoolSnapshot>(client, &source.name).await?;
    let stays = |it: &PoolSnapshot| {
        let image = it.image().is_some_and(|image| image.uid == source.image);
        image && !it.spec.deletion_requested
    };
    let Some(snapshot) = snapshot.filter(stays) else {
        let message = format!("snapshot {} is gone", source.name);
        return Err(NotCopied::Gone(Explanation::new(
            Reason::SourceMissing,
            message,
        )));
    };
    let node = snapshot.spec.node_name;
    if node == agent.node.name {
        return Ok(None);
    }
    let transfer = get::<ImageTransfer>(client, &volume.name_any()).await?;
    let permits = |it: &ImageTransfer| {
        let spec = &it.spec;
        (&spec.source_node, &spec.target_node) == (&node, &agent.node.name)
            && (&spec.snapshot_name, &spec.image) == (&source.name, &source.image)
    };
    if !transfer.as_ref().is_some_and(permits) {
        let message = format!(
            "the operator has not permitted yet that snapshot {} is copied from node {node}",
            source.name
        );
        return Err(NotCopied::Later(Explanation::new(Reason::Copying, message)));
    }
    let unreachable = |why: &str| unreachable(&node, &source.name, why);
    let Some(peer) = get::<StorageNode>(client, &node).await? else {
        return Err(unreachable("it has no StorageNode"));
    };
    let address = peer.spec.transfer_endpoint.as_ref();
    let address = address.and_then(|address| address.parse().ok());
    let address = address.ok_or_else(|| unreachable("its node plugin has no address"))?;
    let key = key_of(&peer).ok_or_else(|| unreachable("its node plugin has published no key"))?;
    Ok(Some(Route { node, address, key }))
}

async fn get<K>(client: &Client, name: &str) -> Result<Option<K>, NotCopied>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let failed = |why: String| {
        let message = format!("cannot read {} {name}: {why}", K::kind(&()));
        NotCopied::Later(Explanation::new(Reason::ProvisioningFailed, message))
    };
    match timeout(PATIENCE, api.get_opt(name)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(failed(Chain(&error).to_string())),
        Err(_) => Err(failed("the API server does not answer".to_owned())),
    }
}

fn unreachable(node: &str, snapshot: &str, why: &str) -> NotCopied {
    let message = format!(
        "node {node} cannot send snapshot {snapshot} now: {why}. The copy goes on when it can"
    );
    NotCopied::Later(Explanation::new(Reason::SourceUnreachable, message))
}

fn explanation(error: &(dyn std::error::Error + 'static)) -> Explanation {
    Explanation::new(Reason::ProvisioningFailed, Chain(error).to_string())
}

fn failed(error: &(dyn std::error::Error + 'static)) -> NotCopied {
    NotCopied::Later(explanation(error))
}
