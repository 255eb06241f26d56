//! What the node has of a volume that is used while it is copied here: the copy of its last snapshot.
//!
//! *Invariant:* before the source is asked for anything, the status names the snapshot that the pool has a copy of, or
//! none. A standby copy is promoted by what the status says, when its source does not answer any more.

use std::sync::Arc;

use cistern_client::Chain;
use cistern_crds::{Explanation, PoolReplica};
use cistern_host::{Engine, Uid};
use kube::runtime::controller::Action;

use super::status::{Own, ReplicaOutcome};
use crate::{
    agent::{reconcile::Reconciliation, transfers::Wanted, work::Error},
    blocking::on_host,
    image::{self, COPIES},
};

/// What the pool has of a volume that moves here.
enum Held {
    /// All of it.
    Volume,
    /// The complete copy of this snapshot.
    Snapshot(Uid),
    /// Neither.
    Nothing,
}

impl Reconciliation<'_, PoolReplica> {
    /// Reports what the pool has of the volume, if the status says something else. Returns the action then; None if the
    /// status is right.
    pub(super) async fn correct_snapshot(
        &self,
        pool: &Arc<dyn Engine>,
        wanted: &Wanted,
    ) -> Result<Option<Action>, Error> {
        let (pool, wanted, replica) = (Arc::clone(pool), wanted.clone(), self.object.clone());
        let looking = on_host((), move || held(&*pool, &wanted, &replica));
        let held = match looking.await.map_err(|source| self.broken(source))? {
            Ok(held) => held,
            Err(error) => {
                let why = Explanation::new(error.reason(), Chain(&error).to_string());
                return self.wait(why).await.map(Some);
            }
        };
        let reported = self.object.received_snapshot();
        let reported = reported.map(|reported| &*reported.image);
        match held {
            Held::Volume => Ok(None),
            Held::Snapshot(image) if reported == Some(image.as_str()) => Ok(None),
            Held::Snapshot(image) => self.passed(&image, None).await.map(Some),
            Held::Nothing if reported.is_none() => Ok(None),
            Held::Nothing => {
                let (replica, image) = (&self.name, reported);
                tracing::warn!(replica, image, "the copy of the snapshot is lost");
                let lost = ReplicaOutcome::Own(Own::Lost);
                self.end(lost).await.map(Some)
            }
        }
    }
}

/// What the pool has of a volume, on the disk. Blocks.
fn held(pool: &dyn Engine, wanted: &Wanted, replica: &PoolReplica) -> Result<Held, image::Error> {
    if wanted.is_received(pool)? {
        return Ok(Held::Volume);
    }
    let (volume, by): (Uid, Uid) = (replica.spec.image.parse()?, replica.spec.move_uid.parse()?);
    let pool = pool.images_for(COPIES)?;
    let Some(image) = pool.point(&volume, &by)? else {
        return Ok(Held::Nothing);
    };
    let reported = replica.received_snapshot();
    if reported.is_some_and(|reported| reported.image == image.as_str()) {
        // It was on the disk before it was reported, and a replica that waits looks every few seconds.
        return Ok(Held::Snapshot(image));
    }
    // It is on the disk after that: the call that made it the point may have failed at the sync.
    let is_kept = pool.has_point(&volume, &by, &image)?;
    Ok(if is_kept {
        Held::Snapshot(image)
    } else {
        Held::Nothing
    })
}

#[cfg(test)]
mod tests {
    use cistern_crds::{ConditionType, Reason, ReceivedSnapshot, condition};

    use super::*;
    use crate::{
        agent::replica::status,
        testing::{at, replica},
    };

    #[test]
    fn a_snapshot_whose_copy_is_lost_is_not_reported_any_more() {
        let mut copy = replica("pvc-1", 1);
        copy.status.get_or_insert_default().snapshot = Some(ReceivedSnapshot {
            image: "uid-of-snapshot-1".to_owned(),
            received: at(0),
            seconds: None,
        });
        let lost = ReplicaOutcome::Own(Own::Lost);
        let after = status::after(&copy, &lost, at(1));
        assert_eq!(after.snapshot, None);
        let ready = condition::failing(&after.conditions, ConditionType::Ready).unwrap();
        assert_eq!(ready.reason, Reason::ImageMissing.as_str());
    }
}
