//! Removes copies of snapshots whose volumes are gone. A copy is never the only one of its data.

use std::{collections::HashSet, sync::Arc};

use cistern_client::Chain;
use cistern_host::Pool;
use kube::ResourceExt as _;

use crate::{agent::Agent, blocking::on_host};

/// Begins to remove the copies of snapshots that no PoolVolume of the node is made from. One that is received stays. Nothing
/// waits for it, because a disk may hang; a call while an earlier one works does nothing.
pub(super) fn begin(agent: &Arc<Agent>) {
    if let Ok(working) = Arc::clone(&agent.drift.copies_lock).try_lock_owned() {
        let agent = Arc::clone(agent);
        tokio::spawn(async move {
            remove_unclaimed(&agent).await;
            drop(working);
        });
    }
}

async fn remove_unclaimed(agent: &Agent) {
    for pool_state in agent.pools.all() {
        let Some(usable) = pool_state.open() else {
            continue;
        };
        let pool = Arc::clone(&usable.pool);
        let list = move || pool.images().map_or(Ok(Vec::new()), Pool::incoming);
        let listed = on_host((), list).await;
        let Ok(Ok(listed)) = listed else {
            continue;
        };
        if listed.is_empty() {
            continue;
        }
        // Read after the list: the volume of each copy was known before the copy began.
        let volumes = agent.desired.volumes();
        let known: HashSet<String> = volumes.iter().filter_map(|it| it.uid()).collect();
        // The copy of a volume that moves here belongs to a PoolReplica, and only that one removes it.
        let of_snapshots = listed.into_iter().filter(|it| it.moved_by.is_none());
        let unclaimed = of_snapshots
            .map(|copy| copy.volume)
            .filter(|uid| !known.contains(uid.as_str()));
        let (pool, unclaimed) = (Arc::clone(&usable.pool), unclaimed.collect::<Vec<_>>());
        if !unclaimed.is_empty() {
            let remove_all = move || {
                let Some(pool) = pool.images() else { return };
                for uid in &unclaimed {
                    remove(pool, uid);
                }
            };
            let _ = on_host((), remove_all).await;
        }
    }
}

fn remove(pool: &Pool, volume: &cistern_host::Uid) {
    match pool.remove_incoming(volume) {
        Ok(()) => tracing::info!(%pool, %volume, "removed the copy for a volume that is gone"),
        Err(error) => {
            let error = Chain(&error);
            tracing::warn!(%pool, %volume, %error, "cannot remove the copy for a volume that is gone");
        }
    }
}
