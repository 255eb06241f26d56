//! Removes copies of snapshots whose volumes are gone. A copy is never the only one of its data.

use std::{collections::HashSet, sync::Arc};

use cistern_client::Chain;
use cistern_host::Pool;
use kube::ResourceExt as _;

use super::per_pool::PerPool;
use crate::{
    agent::{Agent, pools::Usable},
    blocking::on_host,
};

/// Begins to remove the copies of snapshots that no PoolVolume of the node is made from, in pools without a running
/// task. A copy that is being received stays.
pub(super) fn begin(agent: &Arc<Agent>, tasks: &mut PerPool) {
    for pool_state in agent.pools.all() {
        if let Some(usable) = pool_state.open().cloned() {
            let agent = Arc::clone(agent);
            let work = async move { remove_unclaimed(&agent, usable).await };
            tasks.start(&pool_state.spec.uid, work);
        }
    }
}

async fn remove_unclaimed(agent: &Agent, usable: Usable) {
    let pool = Arc::clone(&usable.pool);
    let list = move || pool.images().map_or(Ok(Vec::new()), Pool::incoming);
    let Ok(Ok(mut listed)) = on_host((), list).await else {
        return;
    };
    // The copy of a volume that moves here belongs to a PoolReplica, and only that one removes it.
    listed.retain(|copy| !copy.is_of_move());
    // Read after the list: the volume of each copy was known before the copy began.
    let volumes = agent.desired.volumes();
    let known: HashSet<String> = volumes.iter().filter_map(|it| it.uid()).collect();
    listed.retain(|copy| !known.contains(copy.volume.as_str()));
    if listed.is_empty() {
        return;
    }
    let remove_all = move || {
        let Some(pool) = usable.pool.images() else {
            return;
        };
        for copy in &listed {
            if remove(pool, &copy.volume) {
                usable.images.removed_moving(copy.volume.as_str());
            }
        }
    };
    let _ = on_host((), remove_all).await;
}

/// Removes a copy. Returns whether it is gone.
fn remove(pool: &Pool, volume: &cistern_host::Uid) -> bool {
    let removed = pool.remove_incoming(volume);
    match &removed {
        Ok(()) => tracing::info!(%pool, %volume, "removed the copy for a volume that is gone"),
        Err(error) => {
            let error = Chain(error);
            tracing::warn!(%pool, %volume, %error, "cannot remove the copy for a volume that is gone");
        }
    }
    removed.is_ok()
}
