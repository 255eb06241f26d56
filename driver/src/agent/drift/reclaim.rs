//! The end of images that nobody claims, where their pool has opted in: first to the trash, and from
//! there for good, after the same time each.
//!
//! *Invariants:* an image goes only for having stood in the status as an orphan for that long; only
//! if it says itself what it was; never while an object of its name exists, readable or not, on this
//! node or another, which the API server is asked before each step; and never from a pool that has
//! not opted in.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use cistern_client::Chain;
use cistern_crds::{
    NodePoolStatus,
    health::{Orphan, OrphanIdentity},
    volume::SourceKind,
};
use cistern_host::{Uid, image};

use super::elsewhere;
use crate::agent::{
    Agent,
    blocking::on_host,
    pools::{PoolLook, Usable},
    report::claimed,
};

/// What is done with an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It goes to the trash.
    Discard,
    /// It goes from the trash for good.
    Remove,
}

/// Takes each orphan whose time has come one step on its way out.
pub(super) async fn reclaim(agent: &Arc<Agent>) {
    if agent.desired.everything().is_none() {
        return;
    }
    // What was written: whoever is to claim an image has been told of it for as long.
    let told = agent.report.last().unwrap_or_default();
    for look in agent.pools.all() {
        let hours = look.spec.reclaim_orphans_after_hours;
        let status = told.iter().find(|status| status.uid == look.spec.uid);
        if let (Some(hours), Some(status)) = (hours, status) {
            of_pool(agent, &look, status, TimeDelta::hours(i64::from(hours))).await;
        }
    }
}

async fn of_pool(agent: &Arc<Agent>, look: &PoolLook, status: &NodePoolStatus, after: TimeDelta) {
    let Some(usable) = look.usable() else {
        return;
    };
    let now = (agent.now)();
    let orphans = agent.drift.orphans(&status.uid);
    for orphan in orphans.unwrap_or_default() {
        let is_told = |told: &Orphan| told.image == orphan.image && told.since == orphan.since;
        if !status.orphans.iter().any(is_told) {
            continue;
        }
        let (Some(step), Some(identity)) = (due(&orphan, after, now), &orphan.identity) else {
            continue;
        };
        if is_wanted(agent, look, &orphan, identity) {
            continue;
        }
        let (pool, image, name) = (&look.spec.name, &orphan.image, &identity.name);
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
        match take(agent, usable, &orphan, identity, step, now).await {
            Ok(true) => {
                tracing::warn!(
                    pool,
                    image,
                    name,
                    ?step,
                    "nobody claims an image, and its time has come"
                );
                agent.report.request();
            }
            Ok(false) => {}
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
fn is_wanted(agent: &Agent, look: &PoolLook, orphan: &Orphan, identity: &OrphanIdentity) -> bool {
    let holdings = agent.desired.by_pool().remove(&look.spec.name);
    let is_claimed = holdings.is_some_and(|holdings| claimed(&holdings).contains(&orphan.image));
    let name = &identity.name;
    is_claimed
        || match identity.kind {
            SourceKind::Volume => agent.desired.volume(name).is_some(),
            SourceKind::Snapshot => agent.desired.snapshot(name).is_some(),
        }
}

/// Does a step; false when somebody works on the volume just now.
async fn take(
    agent: &Arc<Agent>,
    usable: &Usable,
    orphan: &Orphan,
    identity: &OrphanIdentity,
    step: Step,
    now: DateTime<Utc>,
) -> Result<bool, String> {
    let uid: Uid = orphan
        .image
        .parse()
        .map_err(|error| Chain(&error).to_string())?;
    let volume = identity.source_volume.as_ref().unwrap_or(&identity.name);
    let place = agent.lanes.volume(&usable.pool.to_string()).await;
    let Some(guard) = agent.locks.try_lock(volume) else {
        return Ok(false);
    };
    let usable = usable.clone();
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
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) => Err(Chain(&error).to_string()),
        Err(error) => Err(Chain(&error).to_string()),
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
}
