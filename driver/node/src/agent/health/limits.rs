//! Sets the limits of a pool's volumes again, where something else has changed them.

use cistern_client::Chain;

use crate::{
    agent::{Agent, desired::readable, io_limits, pools::PoolState},
    blocking::on_host,
};

/// Sets the limits of the volumes of a pool that no operation holds.
pub(super) async fn enforce(agent: &Agent, pool_state: &PoolState) {
    let mut volumes = Vec::new();
    let mut guards = Vec::new();
    let all = agent.desired.volumes_of(&pool_state.spec.name).into_iter();
    // Also those without limits: a removed limit may still be set.
    for volume in all.map(|volume| io_limits::of(&volume, &agent.pools)) {
        // An operation on the volume sets its limits itself.
        if let Some(guard) = agent.locks.try_lock(&volume.name) {
            guards.push(guard);
            volumes.push(volume);
        }
    }
    if volumes.is_empty() {
        return;
    }
    let (io, root) = (agent.io.clone(), agent.node.root.clone());
    let applied = on_host(guards, move || {
        io.apply(&root, &volumes);
        volumes
    });
    match applied.await {
        Ok(volumes) => {
            for volume in volumes {
                let object = agent.desired.volume(&volume.name);
                let object = object.as_deref().and_then(readable);
                if object.is_some_and(|object| agent.io.unreported(object, &agent.pools).is_some())
                {
                    agent.enqueue(&volume.name);
                }
            }
        }
        Err(error) => {
            tracing::error!(error = %Chain(&error), "setting the limits of volumes panicked");
        }
    }
}
