//! Observes one pool and its volumes and records their health.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_client::Chain;
use cistern_crds::{Reason, health::PoolProblem};
use cistern_host::health::{VolumeSubject, VolumeTrouble};

use super::{
    judgement::{self, PoolPlace},
    tracker::Visibility,
};
use crate::{
    agent::{
        Agent,
        desired::readable,
        pools::{PoolAvailability, PoolState},
    },
    blocking::on_host,
    usage::Volume,
};

impl Agent {
    /// Observes a pool and requests the work that follows.
    pub(super) async fn examine_pool(&self, pool_state: &PoolState, deadline: Duration) {
        let pool = &pool_state.spec.name;
        let before = self.health.known_of_pool(pool);
        self.probe(pool_state, deadline).await;
        let after = self.health.known_of_pool(pool);
        if after == before {
            return;
        }
        for problem in after.iter().flatten() {
            let (reason, message) = (&problem.reason, &problem.message);
            tracing::warn!(pool, reason, message, "the pool has a problem");
        }
        self.report.request();
    }

    async fn probe(&self, pool_state: &PoolState, deadline: Duration) {
        let pool = &pool_state.spec.name;
        let permit = PoolPlace {
            pool,
            node: &self.node_name,
        };
        let (reported, now) = (self.reported_of_pool(pool), (self.now)());
        let Some(usable) = pool_state.open() else {
            let seen = match &pool_state.found {
                PoolAvailability::Unusable { why, .. } => judgement::of_closed(permit, why),
                PoolAvailability::Usable(_) | PoolAvailability::Gone => None,
            };
            let seen = (seen.into_iter().collect(), Visibility::Full);
            self.health.observed_pool(pool, &reported, seen, now);
            // The pool recovers as soon as a reconcile can open it.
            self.reconcile_pools.notify_one();
            return;
        };
        let (opened, began) = (Arc::clone(&usable.pool), Instant::now());
        match on_host((), move || opened.vitals(deadline)).await {
            Ok(vitals) => {
                self.reconcile_metrics.probed(pool, began.elapsed());
                let was_nearly_full = self.health.reports_of_pool(pool, Reason::NearlyFull);
                let (mut seen, visibility) = judgement::of_vitals(permit, &vitals, was_nearly_full);
                let shortage = usable.file.as_ref().and_then(|it| it.shortage.as_ref());
                seen.extend(shortage.map(|it| judgement::of_shortage(permit, it)));
                let has_changed = vitals.troubles.iter().any(judgement::is_of_opening);
                if self.health.probed(pool, &reported, (seen, visibility), now) || has_changed {
                    self.reconcile_pools.notify_one();
                }
            }
            Err(error) => {
                tracing::error!(pool, error = %Chain(&error), "the probe of the pool panicked");
            }
        }
    }

    /// Observes every volume of a pool that was made and is not to be destroyed.
    pub(super) async fn examine_volumes(&self, pool_state: &PoolState, deadline: Duration) {
        let pool = &pool_state.spec.name;
        let open = pool_state.open().map(|usable| Arc::clone(&usable.pool));
        let open = open.filter(|_| !self.health.hangs(pool));
        let (root, volumes) = (self.root.clone(), self.volumes_in(pool));
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
                    self.judge(pool, &volume, &troubles);
                }
            }
            Err(error) => {
                tracing::error!(pool, error = %Chain(&error), "the examination of the pool's volumes panicked");
            }
        }
    }

    /// Records the observation of a volume, and enqueues the volume if its status must change.
    fn judge(&self, pool: &str, name: &str, troubles: &[VolumeTrouble]) {
        // Skips a volume that is being changed or removed by now, which explains the observation.
        let Some(object) = self.desired.volume(name) else {
            return;
        };
        let Some(volume) = readable(&object).filter(|it| !it.spec.deletion_requested) else {
            return;
        };
        let (mut seen, visibility) = judgement::of_volume(name, &self.node_name, troubles);
        let of_pool = self.health.of_pool(pool);
        seen.extend(judgement::of_pool_of(name, &of_pool));
        let damage = self.observations.damage_of(volume);
        seen.extend(damage.map(|why| judgement::of_damage(name, &why)));
        let lacks = self.observations.unallocated(name);
        seen.extend(lacks.map(|why| judgement::of_allocation(name, pool, &why)));
        let reported = volume.status.as_ref().map(|status| &status.problems[..]);
        let now = (self.now)();
        let reported = reported.unwrap_or_default();
        self.health
            .observed_volume(name, reported, (seen, visibility), now);
        if let Some(problems) = self.health.unreported_problems(volume) {
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
            self.enqueue(name);
        }
    }

    fn reported_of_pool(&self, name: &str) -> Vec<PoolProblem> {
        let node = self.desired.node();
        let node = node.as_deref().and_then(readable);
        let pools = node.and_then(|node| Some(&node.status.as_ref()?.pools));
        let pool = pools
            .into_iter()
            .flatten()
            .find(|status| status.name == name);
        pool.map(|status| status.problems.clone())
            .unwrap_or_default()
    }

    pub(in crate::agent) fn volumes_in(&self, pool: &str) -> Vec<Volume> {
        let objects = self.desired.volumes();
        let volumes = objects.iter().filter_map(|object| readable(object));
        let volumes = volumes.filter(|volume| volume.spec.pool_name == pool);
        volumes.filter_map(|it| Volume::read(it).ok()).collect()
    }
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
