//! Sets the limits of a pool's volumes again, where something else has changed them.

use cistern_client::Chain;

use crate::{
    agent::{
        Agent,
        desired::readable,
        io_limits::{self, LimitedVolume},
        pools::PoolState,
    },
    blocking::on_host,
};

/// Sets the limits of the volumes of a pool that no operation holds, and reports which are in force.
pub(super) async fn enforce(agent: &Agent, pool_state: &PoolState) {
    let all = agent.desired.volumes_of(&pool_state.spec.name).into_iter();
    // Also those without limits: a removed limit may still be set.
    let all = all.map(|volume| io_limits::of(&volume, &agent.pools));
    let mut volumes: Vec<LimitedVolume> = all.collect();
    // Without a controller for I/O there is nothing to set, and no volume is locked for that.
    if agent.io.is_available() {
        volumes = set(agent, volumes).await;
    }
    for volume in volumes {
        let object = agent.desired.volume(&volume.name);
        let object = object.as_deref().and_then(readable);
        if object.is_some_and(|object| agent.io.unreported(object, &agent.pools).is_some()) {
            agent.enqueue(&volume.name);
        }
    }
}

/// Sets the limits of those volumes that no operation holds, and returns them.
async fn set(agent: &Agent, mut volumes: Vec<LimitedVolume>) -> Vec<LimitedVolume> {
    let mut guards = Vec::new();
    volumes.retain(|volume| {
        // An operation on the volume sets its limits itself.
        let guard = agent.locks.try_lock(&volume.name);
        let is_free = guard.is_some();
        guards.extend(guard);
        is_free
    });
    if volumes.is_empty() {
        return volumes;
    }
    let (io, root) = (agent.io.clone(), agent.node.root.clone());
    let applied = on_host(guards, move || {
        io.apply(&root, &volumes);
        volumes
    });
    applied.await.unwrap_or_else(|error| {
        tracing::error!(error = %Chain(&error), "setting the limits of volumes panicked");
        Vec::new()
    })
}
