//! Removes orphaned images from pools that have opted in: first to the trash, and later from there,
//! each after `reclaimOrphansAfterHours`.
//!
//! *Invariants:* an image is removed only if it carries an identity and was an orphan for that
//! time, by its entry in the status or, if the status is full, by the comparisons of this process.
//! No image is removed while an object of its name exists, readable or not, on any node: the API
//! server is asked before each step. No image is removed from a pool that has not opted in, or that
//! has opted out while its orphan waited.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use cistern_client::Chain;
use cistern_crds::{
    NodePoolStatus, StorageNode,
    drift::{Orphan, OrphanIdentity},
    volume::SourceKind,
};
use cistern_host::{InvalidUid, Uid, image};

use super::{elsewhere, per_pool::PerPool};
use crate::{
    agent::{
        Agent,
        desired::readable,
        pools::{Permit, Pools, Usable},
    },
    blocking::{Broken, on_host},
    locks::{VolumeGuard, VolumeLocks},
};

/// A step of the removal of an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrphanStep {
    /// Move it to the trash.
    Discard,
    /// Delete it from the trash.
    Remove,
}

/// Starts the next step for each orphan that is due, in pools without a running task.
pub(super) fn begin(agent: &Arc<Agent>, tasks: &mut PerPool) {
    if agent.desired.everything().is_none() {
        return;
    }
    // Uses the written status: it has listed the image for the whole time.
    let reported = agent.report.last().unwrap_or_default();
    for pool_state in agent.pools.all() {
        let spec = &pool_state.spec;
        let status = reported.iter().find(|status| status.uid == spec.uid);
        if let (Some(status), Some(_)) = (status, spec.reclaim_orphans_after_hours) {
            let (agent, pool, status) = (Arc::clone(agent), spec.name.clone(), status.clone());
            let work = async move { of_pool(&agent, &pool, &status).await };
            tasks.start(&spec.uid, work);
        }
    }
}

async fn of_pool(agent: &Arc<Agent>, pool: &str, status: &NodePoolStatus) {
    let orphans = agent.drift.orphans(&status.uid).unwrap_or_default();
    for orphan in reported(&orphans, status) {
        let Some(identity) = &orphan.identity else {
            continue;
        };
        let due_now = || {
            let node = agent.desired.node()?;
            due_in(readable(&node)?, &status.uid, orphan, (agent.node.now)())
        };
        let volume = identity.source_volume.as_ref().unwrap_or(&identity.name);
        let turn = turn(&agent.pools, pool, &agent.locks, volume, due_now);
        let Some(turn) = turn.await else {
            continue;
        };
        let (image, name) = (&orphan.image, &identity.name);
        match elsewhere::node_of(agent, identity).await {
            Ok(None) => {}
            Ok(Some(_)) => continue,
            // Unknown, so that no image is removed.
            Err(error) => {
                let error = Chain(&error);
                tracing::warn!(pool, image, name, %error, "cannot check the owner of an orphaned image, it is kept");
                return;
            }
        }
        // Read after every wait: an object may claim the image now, and the pool may have opted out or been
        // closed.
        if is_claimed_now(agent, pool, orphan, identity) {
            continue;
        }
        let (Some(step), Some(usable)) = (due_now(), open(agent, pool, &status.uid)) else {
            continue;
        };
        match turn.take(step, usable, image, (agent.node.now)()).await {
            Ok(()) => {
                tracing::warn!(pool, image, name, ?step, "reclaimed an orphaned image");
                agent.report.request();
            }
            Err(error) => {
                let error = Chain(&error);
                tracing::warn!(pool, image, name, ?step, %error, "cannot remove an orphaned image");
            }
        }
    }
}

/// Returns the orphans that the status lists with the same start time. If the status has no room
/// for all, adds the orphans after the number that it lists.
fn reported<'a>(
    orphans: &'a [Orphan],
    status: &NodePoolStatus,
) -> impl Iterator<Item = &'a Orphan> {
    let is_listed = |orphan: &Orphan| {
        let mut listed = status.orphans.iter();
        listed.any(|reported| reported.image == orphan.image && reported.since == orphan.since)
    };
    let room = match status.unlisted_orphans {
        0 => orphans.len(),
        _ => status.orphans.len().min(orphans.len()),
    };
    let (listed, beyond) = orphans.split_at(room);
    listed
        .iter()
        .filter(move |orphan| is_listed(orphan))
        .chain(beyond)
}

/// The step that is due for an orphan.
fn due(orphan: &Orphan, after: TimeDelta, now: DateTime<Utc>) -> Option<OrphanStep> {
    orphan.identity.as_ref()?;
    let (step, since) = match orphan.trashed_since {
        None => (OrphanStep::Discard, orphan.since),
        Some(since) => (OrphanStep::Remove, since),
    };
    (now.signed_duration_since(since) >= after).then_some(step)
}

/// Whether an object now claims the image, or has the name in the identity of the image.
fn is_claimed_now(agent: &Agent, pool: &str, orphan: &Orphan, identity: &OrphanIdentity) -> bool {
    let claimed = agent.desired.assigned_to(pool).claimed_images();
    let name = &identity.name;
    claimed.contains(&orphan.image)
        || match identity.kind {
            SourceKind::Volume => agent.desired.volume(name).is_some(),
            SourceKind::Snapshot => agent.desired.snapshot(name).is_some(),
        }
}

/// The step that is due for an orphan of the pool with this UID, as the StorageNode declares the pool;
/// none if it has not opted in.
fn due_in(
    node: &StorageNode,
    pool_uid: &str,
    orphan: &Orphan,
    now: DateTime<Utc>,
) -> Option<OrphanStep> {
    let pool = node.spec.pools.iter().find(|pool| pool.uid == pool_uid)?;
    let hours = pool.reclaim_orphans_after_hours?;
    due(orphan, TimeDelta::hours(i64::from(hours)), now)
}

/// The pool of this name and UID; None if it is not usable.
fn open(agent: &Agent, pool: &str, uid: &str) -> Option<Usable> {
    let pool_state = agent.pools.get(pool)?;
    let is_same = pool_state.spec.uid == uid;
    pool_state.usable().filter(|_| is_same).cloned()
}

/// The turn of an orphan: a permit of its pool, and the lock of its volume.
#[derive(Debug)]
struct Turn {
    permit: Option<Permit>,
    guard: VolumeGuard,
}

/// Waits for a permit of the pool. None if no step is due before the wait or after it, or if the volume
/// is locked. Does not keep the pool open, because an open pool cannot be unmounted.
async fn turn(
    pools: &Pools,
    pool: &str,
    locks: &VolumeLocks,
    volume: &str,
    due_now: impl Fn() -> Option<OrphanStep>,
) -> Option<Turn> {
    due_now()?;
    let permit = pools.permit(pool).await;
    due_now()?;
    let guard = locks.try_lock(volume)?;
    Some(Turn { permit, guard })
}

/// Error of a step on the disk.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Uid(#[from] InvalidUid),
    #[error(transparent)]
    Image(#[from] image::Error),
    #[error(transparent)]
    Broken(#[from] Broken),
}

impl Turn {
    /// Runs the step on the disk.
    async fn take(
        self,
        step: OrphanStep,
        usable: Usable,
        image: &str,
        now: DateTime<Utc>,
    ) -> Result<(), StepError> {
        let Self { permit, guard } = self;
        let uid: Uid = image.parse()?;
        let work = on_host((permit, guard), move || -> Result<(), image::Error> {
            let pool = usable.pool.images_for("a trash")?;
            match step {
                OrphanStep::Discard => pool.discard(&uid, now),
                OrphanStep::Remove => {
                    pool.remove_discarded(&uid)?;
                    usable.images.removed(uid.as_str());
                    Ok(())
                }
            }
        });
        Ok(work.await??)
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::Bytes;
    use futures::FutureExt as _;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::testing::{at, orphan_identity};

    fn orphan(since: i64, trashed_since: Option<i64>) -> Orphan {
        Orphan {
            image: "uid-1".to_owned(),
            size: Bytes::gib(1),
            identity: Some(orphan_identity()),
            since: at(since),
            belongs_to: None,
            trashed_since: trashed_since.map(at),
        }
    }

    #[test]
    fn an_orphan_moves_to_the_trash_and_is_deleted_after_the_same_time_each() {
        let hour = TimeDelta::hours(1);
        let due = |orphan: &Orphan, now| due(orphan, hour, at(now));
        assert_eq!(due(&orphan(0, None), 3599), None);
        assert_eq!(due(&orphan(0, None), 3600), Some(OrphanStep::Discard));
        assert_eq!(due(&orphan(0, Some(3600)), 7199), None);
        assert_eq!(due(&orphan(0, Some(3600)), 7200), Some(OrphanStep::Remove));
        // A clock that was wrong removes nothing.
        assert_eq!(due(&orphan(9000, None), 0), None);
    }

    #[test]
    fn an_orphan_without_an_identity_is_never_removed() {
        let mut strange = orphan(0, None);
        strange.identity = None;
        assert_eq!(due(&strange, TimeDelta::hours(1), at(1_000_000)), None);
    }

    /// A node whose pool reclaims orphans after this many hours.
    fn node(hours: Option<u32>) -> StorageNode {
        let mut node: StorageNode = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"topology": {}, "pools": [{
                "name": "fast", "uid": "u", "source": {"image": {"size": "1Gi"}},
                "overcommitPercent": 100, "reservedPercent": 5,
            }]},
        }))
        .unwrap();
        node.spec.pools[0].reclaim_orphans_after_hours = hours;
        node
    }

    #[test]
    fn no_step_is_due_in_a_pool_that_has_opted_out_or_has_another_uid() {
        let due_in = |hours, uid| due_in(&node(hours), uid, &orphan(0, None), at(7200));
        assert_eq!(due_in(Some(1), "u"), Some(OrphanStep::Discard));
        assert_eq!(due_in(Some(3), "u"), None);
        assert_eq!(due_in(None, "u"), None);
        assert_eq!(due_in(Some(1), "another"), None);
    }

    #[tokio::test]
    async fn an_orphan_whose_pool_opts_out_while_it_waits_for_its_turn_is_kept() {
        for (hours, is_taken) in [(Some(1), true), (Some(3), false), (None, false)] {
            let (pools, locks) = (Pools::default(), VolumeLocks::default());
            let declared = Mutex::new(node(Some(1)));
            let orphan = orphan(0, None);
            let due_now = || due_in(&declared.lock(), "u", &orphan, at(7200));
            let mut busy = Vec::new();
            while let Some(permit) = pools.permit("fast").now_or_never() {
                busy.push(permit);
            }
            let mut turn = Box::pin(turn(&pools, "fast", &locks, "pvc-1", due_now));
            assert!(turn.as_mut().now_or_never().is_none(), "it waits");
            *declared.lock() = node(hours);
            busy.clear();
            assert_eq!(turn.await.is_some(), is_taken, "{hours:?}");
        }
    }

    #[test]
    fn every_orphan_is_removed_even_if_the_status_cannot_list_all() {
        let orphans: Vec<Orphan> = (0..100)
            .map(|number| Orphan {
                image: format!("uid-{number}"),
                ..orphan(number, None)
            })
            .collect();
        let removed = |listed: &[Orphan], unlisted_orphans| {
            let status = NodePoolStatus {
                orphans: listed.to_vec(),
                unlisted_orphans,
                ..NodePoolStatus::default()
            };
            reported(&orphans, &status).count()
        };
        let listed = &orphans[..40];
        assert_eq!(removed(listed, 60), 100);
        // The status lists one with another start time.
        let mut younger = listed.to_vec();
        younger[0].since = at(1000);
        assert_eq!(removed(&younger, 60), 99);
        // The status has room, and does not list them yet.
        assert_eq!(removed(listed, 0), 40);
        assert_eq!(removed(&listed[1..], 0), 39);
        assert_eq!(removed(&[], 0), 0);
    }
}
