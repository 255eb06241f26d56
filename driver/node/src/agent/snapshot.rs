//! Snapshots: from the spec of a PoolSnapshot to an image of its own, and its removal; alone, or
//! with the others of a group.
//!
//! ```text
//! reserve what was written to the source ─▶ take ─▶ reserve what was allocated ─▶ status
//! ```
//!
//! *Invariant:* a snapshot that became ready is never taken again, even if its image is missing
//! later. A refused snapshot has nothing on the disk and nothing in the ledger.

pub mod group;
pub mod status;
pub mod take;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{Explanation, PoolSnapshot, PoolSnapshotStatus, volume::FilesystemStatus};
use cistern_host::{Owner, SnapshotRecord};
use kube::{ResourceExt as _, runtime::controller::Action};

use self::{
    status::{Own, SnapshotOutcome},
    take::{Origin, TakeResult},
};
use super::{
    Agent,
    admission::Reservation,
    desired::readable,
    outcome::{ObjectPhase, phase},
    reconcile::{LOCKED, ReconciledImage, Reconciliation},
    work::{Error, Kind, Work},
};
use crate::{
    blocking::on_host,
    image::{self, Difference, Image, ImageObject},
};

impl Kind for PoolSnapshot {
    const NOUN: &'static str = "snapshot";
    const CLAIM: &'static str = "VolumeSnapshot or VolumeGroupSnapshot";

    fn pool(&self) -> Option<&str> {
        Some(&self.spec.pool_name)
    }

    fn work(agent: &Agent) -> &Work<Self> {
        &agent.work.snapshots
    }

    async fn reconcile(agent: &Agent, snapshot: &Self) -> Result<Action, Error> {
        let (reconciliation, phase) = (Reconciliation::of(agent, snapshot), phase(snapshot));
        let pool = &snapshot.spec.pool_name;
        tracing::debug!(snapshot = reconciliation.name, pool, ?phase, "reconciling");
        if let Some(group) = &snapshot.spec.group_name {
            // The group waits for its snapshots.
            agent.work.groups.enqueue(group);
        }
        match phase {
            ObjectPhase::Rest if snapshot.spec.deletion_requested => Ok(Action::await_change()),
            ObjectPhase::Rest => reconciliation.end(SnapshotOutcome::Rested).await,
            ObjectPhase::Reclaim => reconciliation.reclaim().await,
            ObjectPhase::Admitted if snapshot.is_announced() => reconciliation.keep().await,
            ObjectPhase::Admit | ObjectPhase::Admitted if snapshot.spec.group_name.is_some() => {
                Ok(Action::await_change())
            }
            ObjectPhase::Admit | ObjectPhase::Admitted => {
                let origin = Origin::New(snapshot.spec.consistency);
                let taken = take::take(agent, vec![snapshot.clone()], origin).await?;
                Ok(match taken {
                    TakeResult::Ready(_) | TakeResult::Refused(_) | TakeResult::Overtaken => {
                        Action::await_change()
                    }
                    TakeResult::Busy => Action::requeue(LOCKED),
                    TakeResult::NotYet(why) => reconciliation.retry_later(&take::retried(why)),
                })
            }
        }
    }

    fn gone(_: &Agent, _: &str) {}
}

impl ReconciledImage for PoolSnapshot {
    type Own = Own;

    fn status_after(&self, outcome: &SnapshotOutcome, now: DateTime<Utc>) -> PoolSnapshotStatus {
        status::after(self, outcome, now)
    }
}

impl ImageObject for PoolSnapshot {
    fn noun() -> &'static str {
        Self::NOUN
    }

    fn is_announced(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.size.is_some())
    }

    fn volume(&self) -> String {
        self.spec.source_volume.clone()
    }

    fn is_named(&self, owner: &Owner) -> bool {
        owner.snapshot().map(|record| &record.name) == self.metadata.name.as_ref()
    }

    fn is_served_by(&self, image: &Image) -> Result<(), Difference> {
        serves(self, image)
    }

    fn filesystem(&self) -> Option<&FilesystemStatus> {
        self.status.as_ref()?.filesystem.as_ref()
    }
}

/// Whether a snapshot still waits for a reservation. The size of a snapshot is known only when it
/// is taken, so it may need more than its first reservation.
pub(super) fn awaits_reservation(snapshot: &PoolSnapshot, reservation: &Reservation) -> bool {
    let held = snapshot.status.as_ref().and_then(|status| status.reserved);
    match phase(snapshot) {
        ObjectPhase::Admit => true,
        ObjectPhase::Admitted => !snapshot.is_announced() && held < Some(reservation.size),
        ObjectPhase::Rest | ObjectPhase::Reclaim => false,
    }
}

/// Whether the image matches the spec: name, volume, source, access type and filesystem; and the
/// recorded size and moment.
fn serves(snapshot: &PoolSnapshot, image: &Image) -> Result<(), Difference> {
    let spec = &snapshot.spec;
    let Owner::Snapshot(record) = &image.owner else {
        let wanted = format!("snapshot {}", snapshot.name_any());
        return Err(image.differs("owner", image.owner.to_string(), wanted));
    };
    let status = snapshot.status.clone().unwrap_or_default();
    let recorded = |record: &SnapshotRecord| status.creation_time.unwrap_or(record.time);
    for (what, found, wanted) in [
        ("snapshot", record.name.clone(), snapshot.name_any()),
        ("volume", record.volume.clone(), spec.source_volume.clone()),
        (
            "source",
            record.source.to_string(),
            spec.source_image.clone(),
        ),
        (
            "moment",
            record.time.to_rfc3339(),
            recorded(record).to_rfc3339(),
        ),
    ] {
        if found != wanted {
            return Err(image.differs(what, found, wanted));
        }
    }
    let size = status.size.unwrap_or(image.size);
    if image.size != size {
        return Err(image.differs("size", image.size.to_string(), size.to_string()));
    }
    image.holds(spec.access_type, spec.filesystem)
}

/// Format time of a snapshot's filesystem, from its volume if that still exists.
fn formatted(agent: &Agent, snapshot: &PoolSnapshot) -> DateTime<Utc> {
    let volume = agent.desired.volume(&snapshot.spec.source_volume);
    let volume = volume.as_deref().and_then(readable);
    let filesystem = volume.and_then(|volume| volume.status.as_ref()?.filesystem.as_ref());
    filesystem.map_or_else(agent.node.now, |filesystem| filesystem.format_time)
}

impl Reconciliation<'_, PoolSnapshot> {
    /// Checks that a ready snapshot is unchanged.
    async fn keep(&self) -> Result<Action, Error> {
        let pool = match self.pool() {
            Ok((_, usable)) => Arc::clone(&usable.pool),
            Err(why) => return self.end(SnapshotOutcome::NotReady(why)).await,
        };
        let (snapshot, formatted) = (self.object.clone(), formatted(self.agent, self.object));
        let permit = self.permit().await;
        let work = on_host(permit, move || inspect(&pool, &snapshot, formatted));
        let outcome = match work.await.map_err(|source| self.broken(source))? {
            Ok(image) => SnapshotOutcome::Ready(image),
            Err(error) => {
                self.agent.pools.suspect(&error);
                let (reason, message) = (error.reason(), Chain(&error).to_string());
                SnapshotOutcome::NotReady(Explanation::new(reason, message))
            }
        };
        self.end(outcome).await
    }
}

/// Reads the image of a snapshot, if it exists and is the snapshot's. Blocks.
fn inspect(
    pool: &cistern_host::Pool,
    snapshot: &PoolSnapshot,
    formatted: DateTime<Utc>,
) -> Result<Image, image::Error> {
    let image = Image::read(&image::find(pool, snapshot)?, formatted)?;
    image::is_the_same(snapshot, &image)?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, ConditionType, Reason, condition, condition::ConditionUpdate};

    use super::*;
    use crate::testing::{
        admitted_snapshot, at, image_of_snapshot, image_of_volume, ready_snapshot, wanted_snapshot,
    };

    #[test]
    fn every_part_of_a_snapshots_identity_must_agree() {
        let check = |change: fn(&mut Image)| {
            let mut image = image_of_snapshot();
            change(&mut image);
            let same = image::is_the_same(&ready_snapshot(), &image);
            same.map_err(|difference| difference.reason())
        };
        let record = |change: fn(&mut SnapshotRecord)| {
            let mut image = image_of_snapshot();
            let Owner::Snapshot(record) = &mut image.owner else {
                panic!("{image:?}");
            };
            change(record);
            let same = image::is_the_same(&ready_snapshot(), &image);
            same.map_err(|difference| difference.reason())
        };
        let conflict = Err(Reason::IdentityConflict);
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(record(|record| record.name = "snapshot-2".into()), conflict);
        assert_eq!(record(|record| record.volume = "pvc-2".into()), conflict);
        assert_eq!(
            record(|record| record.source = "uid-2".parse().unwrap()),
            conflict
        );
        assert_eq!(record(|record| record.time = at(301)), conflict);
        assert_eq!(check(|image| image.size = Bytes::gib(2)), conflict);
        assert_eq!(check(|image| image.filesystem = None), conflict);
        let other_pool = check(|image| image.image.pool_uuid = "other".into());
        assert_eq!(other_pool, conflict);
        let other_filesystem = check(|image| {
            let filesystem = image.filesystem.as_mut().unwrap();
            filesystem.uuid = "33333333-3333-4333-8333-333333333333".into();
        });
        assert_eq!(other_filesystem, Err(Reason::FilesystemConflict));
    }

    #[test]
    fn r08_a_volume_image_is_never_a_snapshot_nor_a_snapshot_image_a_volume() {
        let mut snapshot = wanted_snapshot();
        snapshot.metadata.name = Some("pvc-1".into());
        let of_volume = image_of_volume();
        assert!(!snapshot.is_named(&of_volume.owner));
        assert!(snapshot.is_served_by(&of_volume).is_err());
        let mut volume = crate::testing::wanted_volume();
        volume.metadata.name = Some("snapshot-1".into());
        let of_snapshot = image_of_snapshot();
        assert!(!volume.is_named(&of_snapshot.owner));
        assert!(volume.is_served_by(&of_snapshot).is_err());
    }

    #[test]
    fn a_reservation_is_kept_until_the_snapshot_has_it_or_is_refused() {
        let reservation = |mib| Reservation::for_snapshot(&wanted_snapshot(), Bytes::mib(mib));
        assert!(awaits_reservation(&wanted_snapshot(), &reservation(64)));
        assert!(!awaits_reservation(&admitted_snapshot(), &reservation(64)));
        // It needs more than was estimated.
        assert!(awaits_reservation(&admitted_snapshot(), &reservation(65)));
        assert!(!awaits_reservation(&ready_snapshot(), &reservation(65)));
        let mut deleted = admitted_snapshot();
        deleted.spec.deletion_requested = true;
        assert!(!awaits_reservation(&deleted, &reservation(65)));
        let mut refused = wanted_snapshot();
        let status = refused.status.get_or_insert_default();
        let finding = ConditionUpdate::new(ConditionType::Admitted, false, Reason::NoSpace, "");
        condition::set(&mut status.conditions, &finding, None, at(0));
        assert!(!awaits_reservation(&refused, &reservation(64)));
        assert_eq!(phase(&refused), ObjectPhase::Rest);
    }

    #[test]
    fn r05_a_second_reconcile_of_the_same_state_changes_nothing() {
        let ready = SnapshotOutcome::Ready(image_of_snapshot());
        let snapshot = admitted_snapshot().after(&ready, at(0));
        let status = snapshot.status.clone().unwrap();
        assert_eq!(status.creation_time, Some(at(300)));
        assert_eq!(status.reserved, Some(Bytes::mib(64)));
        assert_eq!(snapshot.after(&ready, at(60)).status, snapshot.status);
        assert_eq!(
            snapshot.after(&SnapshotOutcome::Rested, at(120)).status,
            snapshot.status
        );
        let kinds: Vec<_> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, ["Ready", "Admitted", "Reclaimed", "DeletionHeld"]);
    }

    #[test]
    fn a_refusal_after_the_snapshot_leaves_nothing_reserved() {
        let refused = SnapshotOutcome::Refused(Explanation {
            reason: Reason::NoSpace,
            message: "full".into(),
        });
        let snapshot = admitted_snapshot().after(&refused, at(0));
        assert_eq!(snapshot.status.as_ref().unwrap().reserved, None);
        assert_eq!(phase(&snapshot), ObjectPhase::Rest);
    }
}
