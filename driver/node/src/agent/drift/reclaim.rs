//! The end of images that nobody claims, where their pool has opted in: first to the trash, and from
//! there for good, after the same time each.
//!
//! *Invariants:* an image goes only for having been an orphan for that long, by what the status says,
//! or, of those that a status has no place for, by what this process has seen; only if it says itself
//! what it was; never while an object of its name exists, readable or not, on this node or another,
//! which the API server is asked before each step; and never from a pool that has not opted in.

use std::{collections::HashMap, sync::Arc};

use chrono::{DateTime, TimeDelta, Utc};
use cistern_client::Chain;
use cistern_crds::{
    NodePoolStatus,
    health::{LISTED, Orphan, OrphanIdentity},
    volume::SourceKind,
};
use cistern_host::{Uid, image};
use tokio::task::{AbortHandle, JoinSet};

use super::elsewhere;
use crate::{
    agent::{Agent, blocking::on_host, lanes::Place, pools::Usable, report::claimed},
    locks::VolumeGuard,
};

/// What is done with an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It goes to the trash.
    Discard,
    /// It goes from the trash for good.
    Remove,
}

/// Work on the orphans of each pool, in a task of its own: one that hangs holds up nothing else.
#[derive(Debug, Default)]
pub(super) struct Reclaims {
    tasks: JoinSet<()>,
    running: HashMap<String, AbortHandle>,
}

impl Reclaims {
    /// Begins to take each orphan whose time has come one step on its way out, in pools where no
    /// earlier work is still under way.
    pub(super) fn begin(&mut self, agent: &Arc<Agent>) {
        while self.tasks.try_join_next().is_some() {}
        self.running.retain(|_, task| !task.is_finished());
        if agent.desired.everything().is_none() {
            return;
        }
        // What was written: whoever is to claim an image has been told of it for as long.
        let told = agent.report.last().unwrap_or_default();
        for look in agent.pools.all() {
            let (pool, uid) = (look.spec.name.clone(), look.spec.uid.clone());
            let status = told.iter().find(|status| status.uid == uid);
            let is_asked = look.spec.reclaim_orphans_after_hours.is_some();
            if let (Some(status), true, false) = (status, is_asked, self.running.contains_key(&uid))
            {
                let (agent, status) = (Arc::clone(agent), status.clone());
                let work = async move { of_pool(&agent, &pool, &status).await };
                self.running.insert(uid, self.tasks.spawn(work));
            }
        }
    }
}

async fn of_pool(agent: &Arc<Agent>, pool: &str, status: &NodePoolStatus) {
    let orphans = agent.drift.orphans(&status.uid).unwrap_or_default();
    for orphan in told(&orphans, &status.orphans) {
        let Some(identity) = &orphan.identity else {
            continue;
        };
        let Some(held) = hold(agent, pool, orphan, identity).await else {
            continue;
        };
        if is_wanted(agent, pool, orphan, identity) {
            continue;
        }
        let (image, name, step) = (&orphan.image, &identity.name, held.step);
        match elsewhere::node_of(agent, identity).await {
            Ok(None) => {}
            Ok(Some(_)) => continue,
            // Nobody knows, so everything stays.
            Err(error) => {
                let error = Chain(&error);
                tracing::warn!(pool, image, name, %error, "an image stays that nobody claims");
                return;
            }
        }
        match held.take(image, (agent.now)()).await {
            Ok(()) => {
                tracing::warn!(
                    pool,
                    image,
                    name,
                    ?step,
                    "nobody claims an image, and its time has come"
                );
                agent.report.request();
            }
            Err(error) => tracing::warn!(
                pool,
                image,
                name,
                ?step,
                error,
                "an image stays that nobody claims"
            ),
        }
    }
}

/// The orphans that were told of: what a status lists as it lists it, and what it has no place for.
fn told<'a>(orphans: &'a [Orphan], listed: &[Orphan]) -> impl Iterator<Item = &'a Orphan> {
    let is_listed = |orphan: &Orphan| {
        let mut listed = listed.iter();
        listed.any(|told| told.image == orphan.image && told.since == orphan.since)
    };
    let (listed, beyond) = orphans.split_at(orphans.len().min(LISTED));
    listed
        .iter()
        .filter(move |orphan| is_listed(orphan))
        .chain(beyond)
}

/// What is to be done with an orphan by now.
fn due(orphan: &Orphan, after: TimeDelta, now: DateTime<Utc>) -> Option<Step> {
    orphan.identity.as_ref()?;
    let (step, since) = match orphan.trashed_since {
        None => (Step::Discard, orphan.since),
        Some(since) => (Step::Remove, since),
    };
    (now.signed_duration_since(since) >= after).then_some(step)
}

/// Whether somebody claims the image by now, or an object is there that may.
fn is_wanted(agent: &Agent, pool: &str, orphan: &Orphan, identity: &OrphanIdentity) -> bool {
    let holdings = agent.desired.by_pool().remove(pool);
    let is_claimed = holdings.is_some_and(|holdings| claimed(&holdings).contains(&orphan.image));
    let name = &identity.name;
    is_claimed
        || match identity.kind {
            SourceKind::Volume => agent.desired.volume(name).is_some(),
            SourceKind::Snapshot => agent.desired.snapshot(name).is_some(),
        }
}

/// An orphan whose time has come, and on which nobody else works.
struct Held {
    step: Step,
    usable: Usable,
    place: Option<Place>,
    guard: VolumeGuard,
}

/// Waits for a place in the lane of the pool. None where there is nothing to do, or somebody works on
/// the volume just now.
async fn hold(
    agent: &Agent,
    pool: &str,
    orphan: &Orphan,
    identity: &OrphanIdentity,
) -> Option<Held> {
    // As it is now: what is open cannot be unmounted, and people may have opted out.
    let look = agent.pools.get(pool)?;
    let hours = look.spec.reclaim_orphans_after_hours?;
    let step = due(orphan, TimeDelta::hours(i64::from(hours)), (agent.now)())?;
    let usable = look.usable()?.clone();
    drop(look);
    let volume = identity.source_volume.as_ref().unwrap_or(&identity.name);
    let place = agent.lanes.volume(pool).await;
    let guard = agent.locks.try_lock(volume)?;
    Some(Held {
        step,
        usable,
        place,
        guard,
    })
}

impl Held {
    /// Does the step.
    async fn take(self, image: &str, now: DateTime<Utc>) -> Result<(), String> {
        let Self {
            step,
            usable,
            place,
            guard,
        } = self;
        let uid: Uid = image.parse().map_err(|error| Chain(&error).to_string())?;
        let work = on_host((place, guard), move || -> Result<(), image::Error> {
            match step {
                Step::Discard => usable.pool.discard(&uid, now),
                Step::Remove => {
                    usable.pool.remove_discarded(&uid)?;
                    usable.images.removed(uid.as_str());
                    Ok(())
                }
            }
        });
        match work.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Chain(&error).to_string()),
            Err(error) => Err(Chain(&error).to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{AccessType, Bytes, Provisioning};

    use super::*;
    use crate::testing::at;

    fn orphan(since: i64, trashed_since: Option<i64>) -> Orphan {
        Orphan {
            image: "uid-1".to_owned(),
            size: Bytes::gib(1),
            identity: Some(OrphanIdentity {
                kind: SourceKind::Volume,
                name: "pvc-1".to_owned(),
                source_volume: None,
                source_image: None,
                creation_time: None,
                volume_size: Bytes::gib(1),
                access_type: AccessType::Block,
                filesystem: None,
                provisioning: Provisioning::Thin,
            }),
            since: at(since),
            belongs_to: None,
            trashed_since: trashed_since.map(at),
        }
    }

    #[test]
    fn an_orphan_goes_to_the_trash_after_its_time_and_from_there_after_as_long_again() {
        let hour = TimeDelta::hours(1);
        let due = |orphan: &Orphan, now| due(orphan, hour, at(now));
        assert_eq!(due(&orphan(0, None), 3599), None);
        assert_eq!(due(&orphan(0, None), 3600), Some(Step::Discard));
        assert_eq!(due(&orphan(0, Some(3600)), 7199), None);
        assert_eq!(due(&orphan(0, Some(3600)), 7200), Some(Step::Remove));
        // A clock that was wrong removes nothing.
        assert_eq!(due(&orphan(9000, None), 0), None);
    }

    #[test]
    fn what_does_not_say_what_it_was_never_goes() {
        let mut strange = orphan(0, None);
        strange.identity = None;
        assert_eq!(due(&strange, TimeDelta::hours(1), at(1_000_000)), None);
    }

    #[test]
    fn every_orphan_goes_in_its_time_however_many_a_status_lists() {
        let orphans: Vec<Orphan> = (0..100)
            .map(|number| Orphan {
                image: format!("uid-{number}"),
                ..orphan(number, None)
            })
            .collect();
        let (listed, beyond) = orphans.split_at(LISTED);
        assert_eq!(told(&orphans, listed).count(), 100);
        // The status does not say it, or not since then.
        assert_eq!(told(&orphans, &listed[1..]).count(), 99);
        let mut younger = listed.to_vec();
        younger[0].since = at(1000);
        assert_eq!(told(&orphans, &younger).count(), 99);
        assert_eq!(told(listed, &[]).count(), 0);
        assert_eq!(told(&orphans, &[]).count(), beyond.len());
    }
}
