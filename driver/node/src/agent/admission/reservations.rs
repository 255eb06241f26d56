//! Reservations that the agent has made and that the watch does not show yet.
//!
//! The ledger is derived from the watched custom resources, which lag behind the agent's own
//! writes. A reservation is therefore remembered here from before the write until the watch shows
//! it, so that the same bytes are never reserved twice (R12).

use std::collections::HashMap;

use cistern_crds::{Bytes, Reason};
use parking_lot::Mutex;

use super::{Ledger, Refusal, Reservation};

/// The pending reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations(Mutex<Pending>);

/// The pending reservations by name of the pool, while they are locked.
#[derive(Debug, Default)]
pub(super) struct Pending(HashMap<String, PendingOfPool>);

/// Pending reservations of one pool, by UID of the custom resource.
pub(super) type PendingOfPool = HashMap<String, Reservation>;

/// What a reservation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReservationKind {
    /// A new volume or snapshot. It must fit.
    New,
    /// An existing image. Its bytes are reserved even if the ledger has no room for them.
    Adopted,
    /// A volume whose attributes change. It keeps its bytes.
    Change,
    /// A volume that grows.
    Growth {
        /// Bytes that the volume has reserved so far.
        held: Bytes,
    },
    /// A snapshot that was taken and needs more than was estimated.
    Excess {
        /// Bytes that the snapshot has reserved so far.
        held: Bytes,
    },
}

impl ReservationKind {
    /// Reason of the refusal by a pool that takes nothing new; None for an image that exists
    /// already.
    pub(super) fn refused_by_closed_pool(self) -> Option<Reason> {
        match self {
            Self::New => Some(Reason::PoolNotReady),
            Self::Growth { .. } | Self::Change => Some(Reason::PoolClosed),
            Self::Adopted | Self::Excess { .. } => None,
        }
    }
}

impl Reservations {
    /// Works on the pending reservations, which are locked meanwhile. A ledger is built from objects that are read
    /// within, so that no concurrent reservation is missing in it, and none that is made later is dropped.
    pub(super) fn locked<T>(&self, work: impl FnOnce(&mut Pending) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Removes a reservation whose write the API server refused.
    pub(super) fn release(&self, pool: &str, uid: &str) {
        if let Some(of_pool) = self.0.lock().0.get_mut(pool) {
            of_pool.remove(uid);
        }
    }

    /// Pending reservations of a pool.
    pub(super) fn of_pool(&self, pool: &str) -> PendingOfPool {
        self.0.lock().0.get(pool).cloned().unwrap_or_default()
    }
}

impl Pending {
    /// Reserves bytes if the pool has room for them.
    ///
    /// `ledger` is built from the watched objects and the other pending reservations. An object that already has the same
    /// reservation keeps it.
    pub(super) fn reserve(
        &mut self,
        uid: &str,
        pool: &str,
        reservation: Reservation,
        kind: ReservationKind,
        ledger: impl FnOnce(PendingOfPool) -> Ledger,
    ) -> Result<(), Refusal> {
        let of_pool = self.0.entry(pool.to_owned()).or_default();
        if of_pool.get(uid) == Some(&reservation) {
            return Ok(());
        }
        let mut others = of_pool.clone();
        others.remove(uid);
        match kind {
            ReservationKind::New => ledger(others).check(&reservation)?,
            ReservationKind::Growth { held } | ReservationKind::Excess { held } => {
                ledger(others).check_growth(held, &reservation)?;
            }
            ReservationKind::Change => {
                ledger(others).check_provisioning(reservation.provisioning)?;
            }
            ReservationKind::Adopted => {}
        }
        of_pool.insert(uid.to_owned(), reservation);
        Ok(())
    }

    /// Removes the reservations that the watch shows, that are no longer requested, or whose object
    /// is gone.
    ///
    /// `awaits_reservation` says whether the object with a UID still waits for its reservation.
    pub(super) fn retain(&mut self, awaits_reservation: impl Fn(&str, &Reservation) -> bool) {
        // A write in flight was made from an object that requests it, and fails when the object has
        // changed.
        for of_pool in self.0.values_mut() {
            of_pool.retain(|uid, reservation| awaits_reservation(uid, reservation));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use cistern_crds::Provisioning;

    use super::*;
    use crate::{
        agent::admission::{Holder, Supported, ledger::Limits},
        testing::{admitted_volume, ready_volume, wanted_volume},
    };

    const LIMITS: Limits = Limits {
        usable: Bytes::gib(10),
        overcommit_percent: 100,
        volume_limit: 10,
        snapshot_limit: 10,
        snapshots_per_volume: 10,
        supported: Supported::Images,
    };

    const RESERVATION: Reservation = Reservation {
        header: Bytes::ZERO,
        holder: Holder::Volume,
        size: Bytes::gib(6),
        provisioning: Provisioning::Thick,
    };

    fn make(reservations: &Reservations, uid: &str, kind: ReservationKind) -> Result<(), Refusal> {
        reservations.locked(|pending| make_in(pending, uid, kind))
    }

    fn make_in(pending: &mut Pending, uid: &str, kind: ReservationKind) -> Result<(), Refusal> {
        let ledger = |others: PendingOfPool| Ledger::new(LIMITS, others.into_values(), Bytes::ZERO);
        pending.reserve(uid, "fast", RESERVATION, kind, ledger)
    }

    fn retain(reservations: &Reservations, awaits: impl Fn(&Reservation) -> bool) {
        reservations.locked(|pending| pending.retain(|_, reservation| awaits(reservation)));
    }

    #[test]
    fn r12_concurrent_requests_get_only_the_reservations_that_fit() {
        let reservations = Reservations::default();
        let kept = thread::scope(|scope| {
            let asking: Vec<_> = (0..8)
                .map(|number| {
                    let reservations = &reservations;
                    scope.spawn(move || {
                        make(reservations, &format!("uid-{number}"), ReservationKind::New)
                    })
                })
                .collect();
            let answers = asking.into_iter().map(|thread| thread.join().unwrap());
            answers.flatten().count()
        });
        assert_eq!(kept, 1);
    }

    #[test]
    fn r12_nothing_else_is_reserved_while_the_objects_are_read_that_a_reservation_is_based_on() {
        let reservations = &Reservations::default();
        thread::scope(|scope| {
            let (first, second) = reservations.locked(|pending| {
                let ask = move || make(reservations, "uid-2", ReservationKind::New);
                let second = scope.spawn(ask);
                // It waits, so it does not come between the read of the objects and this reservation.
                assert!(reservations.0.try_lock().is_none());
                (make_in(pending, "uid-1", ReservationKind::New), second)
            });
            assert_eq!(first, Ok(()));
            let refusal = second.join().unwrap().unwrap_err();
            assert_eq!(refusal.reason(), Reason::NoSpace);
        });
    }

    #[test]
    fn a_repeated_reservation_is_kept_and_a_released_one_frees_its_bytes() {
        let reservations = Reservations::default();
        assert_eq!(make(&reservations, "uid-1", ReservationKind::New), Ok(()));
        assert_eq!(make(&reservations, "uid-1", ReservationKind::New), Ok(()));
        let refusal = make(&reservations, "uid-2", ReservationKind::New).unwrap_err();
        assert_eq!(refusal.reason(), Reason::NoSpace);
        reservations.release("fast", "uid-1");
        assert_eq!(make(&reservations, "uid-2", ReservationKind::New), Ok(()));
    }

    #[test]
    fn an_adopted_image_is_counted_even_where_there_is_no_room() {
        let reservations = Reservations::default();
        assert_eq!(make(&reservations, "uid-1", ReservationKind::New), Ok(()));
        assert_eq!(
            make(&reservations, "uid-2", ReservationKind::Adopted),
            Ok(())
        );
        assert_eq!(reservations.of_pool("fast").len(), 2);
        assert!(reservations.of_pool("slow").is_empty());
    }

    #[test]
    fn a_reservation_is_dropped_once_the_watch_shows_it_and_not_before() {
        let reservations = Reservations::default();
        make(&reservations, "uid-1", ReservationKind::New).unwrap();
        let not_yet = wanted_volume();
        retain(&reservations, |it| it.is_awaited_by_volume(&not_yet));
        assert_eq!(reservations.of_pool("fast").len(), 1);
        let shown = admitted_volume();
        retain(&reservations, |it| it.is_awaited_by_volume(&shown));
        assert!(reservations.of_pool("fast").is_empty());
    }

    #[test]
    fn a_growth_reservation_is_dropped_when_it_is_withdrawn_changed_or_shown() {
        let growth = |gib| Reservation {
            header: Bytes::ZERO,
            holder: Holder::Volume,
            size: Bytes::gib(gib),
            provisioning: Provisioning::Thin,
        };
        let reservations = Reservations::default();
        let ask = |gib| {
            let held = Bytes::gib(1);
            let ledger = |pending: PendingOfPool| {
                assert!(
                    pending.is_empty(),
                    "its own growth does not count against it"
                );
                Ledger::new(LIMITS, [growth(1)], Bytes::ZERO)
            };
            let kind = ReservationKind::Growth { held };
            reservations
                .locked(|pending| pending.reserve("uid-1", "fast", growth(gib), kind, ledger))
        };
        let sees = |gib| {
            let mut volume = ready_volume();
            volume.spec.size = Bytes::gib(gib);
            retain(&reservations, |it| it.is_awaited_by_volume(&volume));
        };
        let pending = || reservations.of_pool("fast").values().next().map(|p| p.size);
        ask(6).unwrap();
        sees(6);
        assert_eq!(pending(), Some(Bytes::gib(6)));
        ask(8).unwrap();
        assert_eq!(pending(), Some(Bytes::gib(8)));
        assert_eq!(ask(11).unwrap_err().reason(), Reason::TooLarge);
        assert_eq!(pending(), Some(Bytes::gib(8)));
        sees(1);
        assert_eq!(pending(), None, "the growth was withdrawn");
        ask(8).unwrap();
        sees(9);
        assert_eq!(pending(), None, "another size is requested");
        ask(8).unwrap();
        let mut shown = ready_volume();
        shown.spec.size = Bytes::gib(8);
        shown.status.as_mut().unwrap().reserved = Some(Bytes::gib(8));
        retain(&reservations, |it| it.is_awaited_by_volume(&shown));
        assert_eq!(pending(), None, "the watch shows it");
    }

    #[test]
    fn the_reservation_of_a_deleted_volume_is_dropped() {
        let reservations = Reservations::default();
        make(&reservations, "uid-1", ReservationKind::New).unwrap();
        retain(&reservations, |_| false);
        assert!(reservations.of_pool("fast").is_empty());
    }
}
