//! Periodic health checks: a task for each pool probes it and observes its volumes.
//!
//! *Invariant:* a pool whose disk hangs blocks only its own checks (R16) and takes one host thread,
//! however many checks follow. A probe has at most one interval to answer, and the second probe
//! that sees a problem reports it at the latest, so a problem is reported within three intervals.
//! The checks change only the known health and the limits of the volumes' I/O.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{MissedTickBehavior, interval},
};

use super::{examine, limits};
use crate::agent::{
    Agent,
    pools::{NodeVersion, PoolAvailability},
};

/// Longest time that a disk may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Checks every pool periodically until dropped.
pub async fn run(agent: &Arc<Agent>, every: Duration) {
    let mut reconciles = agent.pools.reconciles();
    let mut tasks = JoinSet::new();
    let mut running = HashMap::<String, AbortHandle>::new();
    loop {
        let pools = agent.pools.all();
        running.retain(|name, task| {
            let stays = pools.iter().any(|pool_state| pool_state.spec.name == *name);
            if !stays {
                task.abort();
                agent.metrics.forget_pool(name);
            }
            stays && !task.is_finished()
        });
        for pool_state in &pools {
            let name = &pool_state.spec.name;
            if !running.contains_key(name) {
                let rounds = go_round(Arc::clone(agent), name.clone(), every, reconciles.clone());
                running.insert(name.clone(), tasks.spawn(rounds));
            }
        }
        while tasks.try_join_next().is_some() {}
        // The sender lives as long as the agent.
        if reconciles.changed().await.is_err() {
            return;
        }
    }
}

/// Checks one pool at each interval, and whenever its usability changes.
async fn go_round(
    agent: Arc<Agent>,
    pool: String,
    every: Duration,
    mut reconciles: watch::Receiver<Option<NodeVersion>>,
) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = deadline(every);
    let mut was_usable = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = reconciles.changed() => {
                let usable = agent.pools.get(&pool).map(|pool_state| pool_state.usable().is_some());
                if changed.is_err() {
                    return;
                }
                if usable == was_usable {
                    continue;
                }
            }
        }
        let Some(pool_state) = agent.pools.get(&pool) else {
            continue;
        };
        was_usable = Some(pool_state.usable().is_some());
        if !matches!(pool_state.found, PoolAvailability::Gone) {
            examine::pool(&agent, &pool_state, deadline).await;
            examine::volumes(&agent, &pool_state, deadline).await;
            limits::enforce(&agent, &pool_state).await;
        }
    }
}

/// How long the disk of a pool that is probed at this interval may take to answer.
fn deadline(every: Duration) -> Duration {
    every.min(DEADLINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_ends_before_the_next_is_due() {
        for seconds in [1, 9, 10, 11, 3600] {
            let every = Duration::from_secs(seconds);
            assert!(deadline(every) <= every && deadline(every) <= DEADLINE);
        }
    }
}
