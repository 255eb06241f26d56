//! Admission: which volume, snapshot, growth or change of a volume gets bytes of a pool.
//!
//! ```text
//! watched objects ──────────────┐
//! pending reservations ─────────┼─▶ ledger ─▶ reservation, or the reason of the refusal
//! unclaimed images, other files ┘
//! ```
//!
//! Unclaimed images are orphans, and what volumes that moved have left: closed images and copies.
//!
//! *Invariant:* every decision is made here, against all reservations of the pool. An existing
//! image is counted even if its pool takes nothing new.

mod closed;
mod ledger;
mod refusal;
mod reservation;
mod reservations;

use std::{collections::HashMap, sync::Arc};

use cistern_crds::{
    Bytes, Explanation, HasImage, IoLimits, NodePoolStatus, PoolReplica, PoolSnapshot, PoolVolume,
    Reason, ReplicaPurpose,
};

pub use self::{
    closed::Closed,
    ledger::Ledger,
    refusal::Refusal,
    reservation::{Holder, Reservation},
};
use self::{
    ledger::{Limits, Supported},
    reservations::{Pending, PendingOfPool, ReservationKind, Reservations},
};
use super::{
    desired::{AssignedObjects, Desired},
    health::Health,
    pools::PoolState,
};
use crate::image::Image;

/// Decides who may reserve bytes of the pools of this node.
#[derive(Debug)]
pub struct Admission {
    desired: Desired,
    health: Arc<Health>,
    reservations: Reservations,
}

/// The image of a snapshot when its bytes are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotImage {
    /// It is not made yet, and its size is an estimate.
    Expected,
    /// It exists, and the snapshot adopts it.
    Adopted,
    /// It was made just now, and holds more than the estimate.
    Taken,
}

impl Admission {
    pub(super) fn new(desired: Desired, health: Arc<Health>) -> Self {
        Self {
            desired,
            health,
            reservations: Reservations::default(),
        }
    }

    /// Reserves and returns the bytes of a new volume. `adopted` is its image, if it exists
    /// already. Fails with the reason of the refusal.
    pub fn volume(
        &self,
        volume: &PoolVolume,
        pool: &PoolState,
        adopted: Option<&Image>,
    ) -> Result<Bytes, Explanation> {
        let (kind, on_disk) = match adopted {
            Some(image) => (ReservationKind::Adopted, image.size),
            None if pool.spec.cordoned
                && let Some(why) =
                    self.closed_to_volumes(pool, &self.desired.assigned_to(&pool.spec.name)) =>
            {
                return Err(Explanation::new(why.reason(), why.to_string()));
            }
            None => (ReservationKind::New, Bytes::ZERO),
        };
        let size = desired_size(volume, pool).max(on_disk);
        self.reserve(volume, pool, Reservation::for_volume(volume, size), kind)?;
        Ok(size)
    }

    /// Reserves and returns the bytes to which a volume grows. Fails with the reason of the refusal.
    pub fn growth(&self, volume: &PoolVolume, pool: &PoolState) -> Result<Bytes, Explanation> {
        let held = volume.reserved().unwrap_or_default();
        let size = desired_size(volume, pool);
        let wanted = Reservation::for_volume(volume, size);
        self.reserve(volume, pool, wanted, ReservationKind::Growth { held })?;
        Ok(size)
    }

    /// Reserves the bytes of a volume with the attributes of its spec. Fails with the reason of the
    /// refusal.
    pub fn change(&self, volume: &PoolVolume, pool: &PoolState) -> Result<(), Explanation> {
        let wanted = Reservation::for_change(volume);
        self.reserve(volume, pool, wanted, ReservationKind::Change)
    }

    /// Reserves the bytes of a snapshot. Fails with the reason of the refusal.
    pub fn snapshot(
        &self,
        snapshot: &PoolSnapshot,
        pool: &PoolState,
        size: Bytes,
        image: SnapshotImage,
    ) -> Result<(), Explanation> {
        let held = snapshot.reserved().unwrap_or_default();
        let kind = match image {
            SnapshotImage::Expected => ReservationKind::New,
            SnapshotImage::Adopted => ReservationKind::Adopted,
            SnapshotImage::Taken => ReservationKind::Excess { held },
        };
        let wanted = Reservation::for_snapshot(snapshot, size);
        self.reserve(snapshot, pool, wanted, kind)
    }

    /// Reserves and returns the bytes of an image beside a volume's own. What the node keeps of a volume has its bytes
    /// already. One that grows keeps what it has. Fails with the reason of the refusal.
    pub fn replica(&self, replica: &PoolReplica, pool: &PoolState) -> Result<Bytes, Explanation> {
        let kind = match replica.spec.purpose {
            ReplicaPurpose::Retained => ReservationKind::Adopted,
            ReplicaPurpose::Incoming => {
                if let Some(held) = replica.reserved() {
                    ReservationKind::Growth { held }
                } else if let Some(why) =
                    self.closed_to_volumes(pool, &self.desired.assigned_to(&pool.spec.name))
                {
                    return Err(Explanation::new(why.reason(), why.to_string()));
                } else {
                    ReservationKind::New
                }
            }
        };
        let size = replica.spec.size;
        self.reserve(replica, pool, Reservation::for_replica(replica, size), kind)?;
        Ok(size)
    }

    /// Withdraws the reservation of an object whose status the API server has rejected.
    pub fn withdraw(&self, object: &impl HasImage) {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        self.reservations.release(object.pool_name(), uid);
    }

    /// Why a pool takes no new volumes, snapshots and growths; None if it takes them.
    pub fn closed(&self, pool: &PoolState) -> Option<Closed> {
        self.closed_with(pool, &self.desired.assigned_to(&pool.spec.name))
    }

    /// Why a pool with these objects takes no new volumes; None if it takes them.
    pub fn closed_to_volumes(
        &self,
        pool: &PoolState,
        assigned: &AssignedObjects,
    ) -> Option<Closed> {
        let closed = self.closed_with(pool, assigned);
        closed.or_else(|| pool.spec.cordoned.then_some(Closed::Cordoned))
    }

    /// As [`Self::closed`], for the objects of the pool.
    fn closed_with(&self, pool: &PoolState, assigned: &AssignedObjects) -> Option<Closed> {
        if pool.spec.retiring {
            return Some(Closed::retiring(assigned));
        }
        if let Some(owner) = &pool.spec.take_over {
            let node = owner.node.clone();
            return Some(Closed::Following { node });
        }
        if self.health.reports(&pool.spec.name, Reason::NotAllocated) {
            return Some(Closed::NotAllocated);
        }
        if let Some(stray) = pool.usable().and_then(|usable| usable.uncounted()) {
            return Some(Closed::Stray(stray.path.clone()));
        }
        self.desired.unreadable().map(Closed::Unreadable)
    }

    /// The ledger of a pool, for its status. `before` is the last status.
    pub fn ledger(
        &self,
        pool: &PoolState,
        before: Option<&NodePoolStatus>,
        assigned: &AssignedObjects,
    ) -> Ledger {
        let pending = self.reservations.of_pool(&pool.spec.name);
        ledger_of(pool, before, assigned, pending)
    }

    /// Reads the watched objects of all pools, and drops the pending reservations that they show.
    pub fn observe(&self) -> HashMap<String, AssignedObjects> {
        self.reservations
            .locked(|pending| self.observe_with(pending))
    }

    /// As [`Self::observe`]. The pending reservations are locked before the objects are read: one that is made later,
    /// for a later object, would be dropped.
    fn observe_with(&self, pending: &mut Pending) -> HashMap<String, AssignedObjects> {
        let all = self.desired.by_pool();
        drop_observed(pending, &all);
        all
    }

    fn reserve(
        &self,
        object: &impl HasImage,
        pool: &PoolState,
        wanted: Reservation,
        kind: ReservationKind,
    ) -> Result<(), Explanation> {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        let name = &pool.spec.name;
        self.reservations.locked(|pending| {
            let assigned = self.observe_with(pending).remove(name).unwrap_or_default();
            if let Some(reason) = kind.refused_by_closed_pool()
                && let Some(why) = self.closed_with(pool, &assigned)
            {
                return Err(Explanation::new(reason, why.to_string()));
            }
            let ledger = |others| ledger_of(pool, None, &assigned, others);
            Ok(pending.reserve(uid, name, wanted, kind, ledger)?)
        })
    }
}

/// Fails if a limit that changes exceeds the maximum of the pool. A volume without a limit, or with a higher one that its
/// class names, has that of the pool.
pub fn check_limits(
    requested: &IoLimits,
    admitted: &IoLimits,
    maximum: &IoLimits,
) -> Result<(), Explanation> {
    let changed = IoLimits {
        read_iops: unless_equal(requested.read_iops, admitted.read_iops),
        write_iops: unless_equal(requested.write_iops, admitted.write_iops),
        read_bytes_per_second: unless_equal(
            requested.read_bytes_per_second,
            admitted.read_bytes_per_second,
        ),
        write_bytes_per_second: unless_equal(
            requested.write_bytes_per_second,
            admitted.write_bytes_per_second,
        ),
    };
    if changed.exceed(maximum) {
        let message =
            format!("a volume of the pool has at most {maximum}, and {changed} is requested");
        return Err(Explanation::new(Reason::LimitTooHigh, message));
    }
    Ok(())
}

/// A requested limit; None if it is the admitted one.
fn unless_equal<T: Copy + PartialEq>(requested: Option<T>, admitted: Option<T>) -> Option<T> {
    requested.filter(|limit| admitted != Some(*limit))
}

/// Drops the pending reservations that these objects show.
fn drop_observed(pending: &mut Pending, all: &HashMap<String, AssignedObjects>) {
    let volumes = by_uid(all.values().flat_map(AssignedObjects::volumes));
    let snapshots = by_uid(all.values().flat_map(AssignedObjects::snapshots));
    let replicas = by_uid(all.values().flat_map(AssignedObjects::replicas));
    pending.retain(|uid, reservation| match reservation.holder {
        Holder::Volume => match (volumes.get(uid), replicas.get(uid)) {
            (Some(volume), _) => reservation.is_awaited_by_volume(volume),
            (None, Some(replica)) => reservation.is_awaited_by_replica(replica),
            (None, None) => false,
        },
        Holder::Snapshot { .. } => snapshots
            .get(uid)
            .is_some_and(|snapshot| reservation.is_awaited_by_snapshot(snapshot)),
    });
}

/// The ledger of a pool: the watched objects, the pending reservations, and the unclaimed bytes on the
/// disk.
fn ledger_of(
    pool: &PoolState,
    before: Option<&NodePoolStatus>,
    assigned: &AssignedObjects,
    mut pending: PendingOfPool,
) -> Ledger {
    let empty = match pool.usable() {
        Some(usable) => usable.statistics.empty,
        None => before.map_or(Bytes::ZERO, |before| before.empty),
    };
    // Its bytes are in the reservation of the volume.
    for replica in assigned.uncounted_replicas() {
        pending.remove(replica.metadata.uid.as_deref().unwrap_or_default());
    }
    let mut reservations = observed(assigned.volumes(), Reservation::for_volume, &mut pending);
    reservations.extend(observed(
        assigned.snapshots(),
        Reservation::for_snapshot,
        &mut pending,
    ));
    reservations.extend(observed(
        assigned.counted_replicas(),
        Reservation::for_replica,
        &mut pending,
    ));
    let unclaimed = pool.usable().map_or(Bytes::ZERO, |usable| {
        let claimed = assigned.claimed_images();
        let images = usable.images.unclaimed(&claimed);
        let moving = usable.images.unclaimed_moving(&claimed);
        images
            .saturating_add(moving)
            .saturating_add(usable.stray_bytes())
    });
    let reservations = reservations.into_iter().chain(pending.into_values());
    let limits = Limits::new(empty, supported(pool), &pool.spec);
    Ledger::new(limits, reservations, unclaimed)
}

/// The size that a volume will have. Logical volumes have whole extents, with the header.
fn desired_size(volume: &PoolVolume, pool: &PoolState) -> Bytes {
    let header = volume.header();
    let whole = supported(pool).taken(volume.spec.size.saturating_add(header));
    whole.saturating_sub(header)
}

/// What volumes a pool holds. The size of an extent matters only while the pool can be used.
fn supported(pool: &PoolState) -> Supported {
    if pool.spec.source.has_images() {
        return Supported::Images;
    }
    let extent = pool.usable().map(|usable| usable.pool.unit());
    let extent = extent.unwrap_or(Bytes::ZERO);
    Supported::LogicalVolumes { extent }
}

/// The reservations that the watch shows. A pending reservation of the same object is removed from
/// the rest, because it replaces a smaller one.
fn observed<'a, K: HasImage + 'a>(
    objects: impl Iterator<Item = &'a K>,
    reservation: fn(&K, Bytes) -> Reservation,
    pending: &mut PendingOfPool,
) -> Vec<Reservation> {
    let reservations = objects.filter_map(|object| {
        let held = object.reserved()?;
        let more = pending.remove(object.meta().uid.as_deref().unwrap_or_default());
        let more = more.map_or(Bytes::ZERO, |more| more.size);
        Some(reservation(object, held.max(more)))
    });
    reservations.collect()
}

fn by_uid<'a, K: HasImage>(objects: impl Iterator<Item = &'a K>) -> HashMap<&'a str, &'a K> {
    let with_uid = objects.filter_map(|object| Some((object.meta().uid.as_deref()?, object)));
    with_uid.collect()
}

#[cfg(test)]
mod tests {
    use cistern_host::health::{PoolTrouble, PoolVitals};

    use super::*;
    use crate::{
        agent::{
            desired,
            health::pool_judgement::{PoolPlace, of_vitals},
            pools::PoolAvailability,
            testing::silent_client,
        },
        testing::{
            at, image_of_volume, image_source, node_pool, ready_volume, wanted_snapshot,
            wanted_volume,
        },
    };

    #[test]
    fn cmv_05_cmv_06_a_limit_that_stays_does_not_keep_others_from_changing() {
        let reads = |read_iops| IoLimits {
            read_iops,
            ..IoLimits::NONE
        };
        let maximum = reads(Some(500));
        // The limit of a class, or one from before the maximum was lowered.
        let admitted = reads(Some(5000));
        let check = |requested: &IoLimits| check_limits(requested, &admitted, &maximum);
        assert_eq!(check(&admitted), Ok(()));
        let writes = IoLimits {
            write_iops: Some(9000),
            ..admitted
        };
        assert_eq!(check(&writes), Ok(()));
        for allowed in [None, Some(400), Some(500)] {
            assert_eq!(check(&reads(allowed)), Ok(()));
        }
        let refused = check(&reads(Some(501))).unwrap_err();
        assert_eq!(refused.reason, Reason::LimitTooHigh);
        assert!(refused.message.contains("501"), "{refused}");
    }

    #[tokio::test]
    async fn a_pool_whose_file_has_lost_blocks_takes_nothing_new_until_they_are_allocated() {
        let (desired, _watches) = desired::watch(&silent_client(), "node-1");
        let health = Arc::<Health>::default();
        let admission = Admission::new(desired, Arc::clone(&health));
        let pool = PoolState {
            spec: node_pool("fast", "uid-of-fast", image_source(Bytes::gib(11))),
            found: PoolAvailability::unusable(Reason::Pending, "the test has no disk"),
        };
        let place = PoolPlace {
            pool: "fast",
            node: "node-1",
        };
        let probe = |troubles: Vec<PoolTrouble>| {
            let vitals = PoolVitals {
                fill: None,
                troubles,
            };
            health.probed("fast", &[], of_vitals(place, &vitals, false), at(0));
        };
        let missing = Bytes::mib(64);
        let lost = || vec![PoolTrouble::NotAllocated { missing }];
        let nothing = AssignedObjects::default();

        probe(lost());
        // The reconcile that follows may allocate them.
        assert_eq!(admission.closed(&pool), None);
        probe(lost());
        assert_eq!(admission.closed(&pool), Some(Closed::NotAllocated));
        let closed_to_volumes = admission.closed_to_volumes(&pool, &nothing);
        assert_eq!(closed_to_volumes, Some(Closed::NotAllocated));
        let refused = admission.volume(&wanted_volume(), &pool, None);
        assert_eq!(refused.unwrap_err().reason, Reason::PoolNotReady);
        let expected = SnapshotImage::Expected;
        let refused = admission.snapshot(&wanted_snapshot(), &pool, missing, expected);
        assert_eq!(refused.unwrap_err().reason, Reason::PoolNotReady);
        let refused = admission.growth(&ready_volume(), &pool);
        assert_eq!(refused.unwrap_err().reason, Reason::PoolClosed);
        // What is there already is counted.
        let adopted = admission.volume(&wanted_volume(), &pool, Some(&image_of_volume()));
        assert_eq!(adopted, Ok(Bytes::gib(1)));

        probe(Vec::new());
        assert_eq!(admission.closed(&pool), Some(Closed::NotAllocated));
        probe(Vec::new());
        assert_eq!(admission.closed(&pool), None);
        assert_eq!(admission.closed_to_volumes(&pool, &nothing), None);
        // The ledger alone decides again.
        let refused = admission.volume(&wanted_volume(), &pool, None);
        assert_eq!(refused.unwrap_err().reason, Reason::TooLarge);
    }
}
