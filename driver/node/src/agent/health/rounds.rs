//! Rounds: each pool is probed and its volumes are looked at, again and again, in a task of its own.
//!
//! *Invariant:* a pool whose disk hangs holds up its own rounds and nothing else (R16), and costs one
//! thread of the host however many rounds come; nothing here changes anything but what is known.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{MissedTickBehavior, interval},
};

use crate::agent::{Agent, Version, pools::Found};

/// How long a disk may take to answer at most.
const DEADLINE: Duration = Duration::from_secs(10);

/// Goes the rounds of every pool until dropped.
pub async fn run(agent: &Arc<Agent>, every: Duration) {
    let mut looked = agent.looked.subscribe();
    let mut tasks = JoinSet::new();
    let mut running = HashMap::<String, AbortHandle>::new();
    loop {
        let pools = agent.pools.all();
        running.retain(|name, task| {
            let stays = pools.iter().any(|look| look.spec.name == *name);
            if !stays {
                task.abort();
                agent.passes.forget_pool(name);
            }
            stays && !task.is_finished()
        });
        for look in &pools {
            let name = &look.spec.name;
            if !running.contains_key(name) {
                let rounds = go_round(Arc::clone(agent), name.clone(), every, looked.clone());
                running.insert(name.clone(), tasks.spawn(rounds));
            }
        }
        while tasks.try_join_next().is_some() {}
        // The sender lives as long as the agent.
        if looked.changed().await.is_err() {
            return;
        }
    }
}

/// Goes the rounds of one pool: each interval, and whenever a look has found it otherwise.
async fn go_round(
    agent: Arc<Agent>,
    pool: String,
    every: Duration,
    mut looked: watch::Receiver<Option<Version>>,
) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = every.min(DEADLINE);
    let mut was_usable = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = looked.changed() => {
                let usable = agent.pools.get(&pool).map(|look| look.usable().is_some());
                if changed.is_err() {
                    return;
                }
                if usable == was_usable {
                    continue;
                }
            }
        }
        let Some(look) = agent.pools.get(&pool) else {
            continue;
        };
        was_usable = Some(look.usable().is_some());
        if !matches!(look.found, Found::Gone) {
            agent.examine_pool(&look, deadline).await;
            agent.examine_volumes(&look, deadline).await;
        }
    }
}
