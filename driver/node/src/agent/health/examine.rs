//! A look at one pool and its volumes: from what the host sees to what is known.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_client::Chain;
use cistern_crds::{Reason, health::PoolProblem};
use cistern_host::health::{VolumeSubject, VolumeTrouble};

use super::{
    course::Sight,
    judgement::{self, PoolPlace},
};
use crate::{
    agent::{
        Agent,
        blocking::on_host,
        desired::readable,
        pools::{Found, PoolLook},
    },
    mounting::usage::Volume,
};

impl Agent {
    /// Looks at a pool, and asks for whatever follows from what was seen.
    pub(super) async fn examine_pool(&self, look: &PoolLook, deadline: Duration) {
        let pool = &look.spec.name;
        let before = self.health.known_of_pool(pool);
        self.probe(look, deadline).await;
        let after = self.health.known_of_pool(pool);
        if after == before {
            return;
        }
        for problem in after.iter().flatten() {
            let (reason, message) = (&problem.reason, &problem.message);
            tracing::warn!(pool, reason, message, "the pool is not well");
        }
        self.report.request();
    }

    async fn probe(&self, look: &PoolLook, deadline: Duration) {
        let pool = &look.spec.name;
        let place = PoolPlace {
            pool,
            node: &self.node_name,
        };
        let (told, now) = (self.told_of_pool(pool), (self.now)());
        let Some(usable) = look.open() else {
            let seen = match &look.found {
                Found::Unusable {
                    reason, message, ..
                } => judgement::of_closed(place, *reason, message),
                Found::Usable(_) | Found::Gone => None,
            };
            let seen = (seen.into_iter().collect(), Sight::Full);
            self.health.saw_pool(pool, &told, seen, now);
            // It recovers as soon as a look can open it.
            self.look.notify_one();
            return;
        };
        let (opened, began) = (Arc::clone(&usable.pool), Instant::now());
        match on_host((), move || opened.vitals(deadline)).await {
            Ok(vitals) => {
                self.passes.probed(pool, began.elapsed());
                let was_nearly_full = self.health.tells_of_pool(pool, Reason::NearlyFull);
                let (mut seen, sight) = judgement::of_vitals(place, &vitals, was_nearly_full);
                let shortage = usable.file.as_ref().and_then(|it| it.shortage.as_ref());
                seen.extend(shortage.map(|it| judgement::of_shortage(place, it)));
                let has_changed = vitals.troubles.iter().any(judgement::is_of_opening);
                if self.health.probed(pool, &told, (seen, sight), now) || has_changed {
                    self.look.notify_one();
                }
            }
            Err(error) => {
                tracing::error!(pool, error = %Chain(&error), "a probe of the pool broke off");
            }
        }
    }

    /// Looks at every volume of a pool that was made and that nobody wants destroyed.
    pub(super) async fn examine_volumes(&self, look: &PoolLook, deadline: Duration) {
        let pool = &look.spec.name;
        let open = look.open().map(|usable| Arc::clone(&usable.pool));
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
                tracing::error!(pool, error = %Chain(&error), "a look at volumes broke off");
            }
        }
    }

    /// Takes note of what was seen of a volume, and asks for a pass that says it if it is news.
    fn judge(&self, pool: &str, name: &str, troubles: &[VolumeTrouble]) {
        // What has begun meanwhile explains what was seen.
        let Some(object) = self.desired.volume(name) else {
            return;
        };
        let Some(volume) = readable(&object).filter(|it| !it.spec.deletion_requested) else {
            return;
        };
        let (mut seen, sight) = judgement::of_volume(name, &self.node_name, troubles);
        let of_pool = self.health.of_pool(pool);
        seen.extend(judgement::of_pool_of(name, &of_pool));
        let damage = self.damage.of(volume);
        seen.extend(damage.map(|(reason, why)| judgement::of_damage(name, reason, &why)));
        let lacks = self.unallocated.of(name);
        seen.extend(lacks.map(|why| judgement::of_allocation(name, pool, &why)));
        let told = volume.status.as_ref().map(|status| &status.problems[..]);
        let now = (self.now)();
        let told = told.unwrap_or_default();
        self.health.saw_volume(name, told, (seen, sight), now);
        if let Some(problems) = self.health.news_of(volume) {
            for problem in &problems {
                let (reason, message) = (&problem.reason, &problem.message);
                tracing::warn!(
                    volume = name,
                    pool,
                    reason,
                    message,
                    "the volume is not well"
                );
            }
            self.touch(name);
        }
    }

    fn told_of_pool(&self, name: &str) -> Vec<PoolProblem> {
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

    fn volumes_in(&self, pool: &str) -> Vec<Volume> {
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
