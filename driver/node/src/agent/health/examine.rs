//! Observes one pool and its volumes and records their health.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_client::Chain;
use cistern_crds::{Reason, health::PoolProblem};
use cistern_host::health::{VolumeSubject, VolumeTrouble};

use super::{
    pool_judgement::{self, PoolPlace},
    volume_judgement,
};
use crate::{
    agent::{
        Agent,
        desired::readable,
        pools::{PoolAvailability, PoolState},
        tracker::Visibility,
    },
    blocking::on_host,
    usage::Volume,
};

/// Observes a pool and requests the work that follows.
pub(super) async fn pool(agent: &Agent, pool_state: &PoolState, deadline: Duration) {
    let pool = &pool_state.spec.name;
    let before = agent.health.known_of(pool);
    probe(agent, pool_state, deadline).await;
    let after = agent.health.known_of(pool);
    if after == before {
        return;
    }
    for problem in after.iter().flatten() {
        let (reason, message) = (&problem.reason, &problem.message);
        tracing::warn!(pool, reason, message, "the pool has a problem");
    }
    agent.report.request();
}

async fn probe(agent: &Agent, pool_state: &PoolState, deadline: Duration) {
    let pool = &pool_state.spec.name;
    let place = PoolPlace {
        pool,
        node: &agent.node.name,
    };
    let (reported, now) = (reported_of_pool(agent, pool), (agent.node.now)());
    let Some(usable) = pool_state.open() else {
        let seen = match &pool_state.found {
            PoolAvailability::Unusable { why, .. } => pool_judgement::of_closed(place, why),
            PoolAvailability::Usable(_) | PoolAvailability::Gone => None,
        };
        let seen = (seen.into_iter().collect(), Visibility::Full);
        agent.health.observed(pool, &reported, seen, now);
        // The pool recovers as soon as a reconcile can open it.
        agent.pools.request_reconcile();
        return;
    };
    let (opened, began) = (Arc::clone(&usable.pool), Instant::now());
    match on_host((), move || opened.vitals(deadline)).await {
        Ok(vitals) => {
            agent.metrics.probed(pool, began.elapsed());
            let troubles = vitals.troubles.len();
            tracing::debug!(pool, troubles, "probed the pool");
            let was_nearly_full = agent.health.reports(pool, Reason::NearlyFull);
            let (mut seen, visibility) = pool_judgement::of_vitals(place, &vitals, was_nearly_full);
            let shortage = usable.file.as_ref().and_then(|it| it.shortage.as_ref());
            seen.extend(shortage.map(|it| pool_judgement::of_shortage(place, it)));
            let left_out = usable.left_out.as_ref();
            seen.extend(left_out.map(|it| pool_judgement::of_left_out(place, it)));
            let has_changed = vitals.troubles.iter().any(pool_judgement::is_of_opening);
            if agent
                .health
                .probed(pool, &reported, (seen, visibility), now)
                || has_changed
            {
                agent.pools.request_reconcile();
            }
        }
        Err(error) => {
            tracing::error!(pool, error = %Chain(&error), "the probe of the pool panicked");
        }
    }
}

/// Observes every volume of a pool that was made and is not to be destroyed.
pub(super) async fn volumes(agent: &Agent, pool_state: &PoolState, deadline: Duration) {
    let pool = &pool_state.spec.name;
    let open = pool_state.open().map(|usable| Arc::clone(&usable.pool));
    let open = open.filter(|_| !agent.health.hangs(pool));
    let (root, volumes) = (agent.node.root.clone(), agent.desired.volumes_of(pool));
    let examined = on_host((), move || {
        let subjects: Vec<_> = volumes.iter().map(subject).collect();
        let troubles = match open {
            Some(pool) => pool.examine(&subjects, deadline),
            None => root.examine_attached(&subjects, deadline),
        };
        let names = volumes.into_iter().map(|volume| volume.name);
        names.zip(troubles).collect::<Vec<_>>()
    });
    match examined.await {
        Ok(examined) => {
            for (volume, troubles) in examined {
                judge(agent, pool, &volume, &troubles);
            }
        }
        Err(error) => {
            tracing::error!(pool, error = %Chain(&error), "the examination of the pool's volumes panicked");
        }
    }
}

/// Records the observation of a volume, and enqueues the volume if its status must change.
fn judge(agent: &Agent, pool: &str, name: &str, troubles: &[VolumeTrouble]) {
    // Skips a volume that is now being changed or removed, which explains the observation.
    let Some(object) = agent.desired.volume(name) else {
        return;
    };
    let Some(volume) = readable(&object).filter(|it| !it.spec.deletion_requested) else {
        return;
    };
    let (mut seen, visibility) = volume_judgement::of_volume(name, &agent.node.name, troubles);
    let of_pool = agent.health.known_of(pool).unwrap_or_default();
    seen.extend(volume_judgement::of_pool_of(name, &of_pool));
    let damage = agent.observations.damage_of(volume);
    seen.extend(damage.map(|why| volume_judgement::of_damage(name, &why)));
    let lacks = agent.observations.unallocated(name);
    seen.extend(lacks.map(|why| volume_judgement::of_allocation(name, pool, &why)));
    let reported = volume.status.as_ref().map(|status| &status.problems[..]);
    let now = (agent.node.now)();
    let reported = reported.unwrap_or_default();
    agent
        .observations
        .examined(name, reported, (seen, visibility), now);
    if let Some(problems) = agent.observations.unreported_problems(volume) {
        for problem in &problems {
            let (reason, message) = (&problem.reason, &problem.message);
            tracing::warn!(
                volume = name,
                pool,
                reason,
                message,
                "the volume has a problem"
            );
        }
        agent.enqueue(name);
    }
}

fn reported_of_pool(agent: &Agent, name: &str) -> Vec<PoolProblem> {
    let node = agent.desired.node();
    let node = node.as_deref().and_then(readable);
    let pools = node.and_then(|node| Some(&node.status.as_ref()?.pools));
    let pool = pools
        .into_iter()
        .flatten()
        .find(|status| status.name == name);
    pool.map(|status| status.problems.clone())
        .unwrap_or_default()
}

fn subject(volume: &Volume) -> VolumeSubject<'_> {
    VolumeSubject {
        image: &volume.image,
        volume: &volume.name,
        size: volume.size,
        content: volume.content,
        staging: None,
    }
}
