//! The ledger of one pool on this node: its reservations, and whether one more volume or snapshot
//! fits.
//!
//! It is computed from the custom resources each time, so it cannot drift.
//!
//! A requested growth counts from its admission on. A refused growth does not count.
//!
//! A snapshot reserves the bytes that its image had allocated when it was taken: its source may
//! overwrite all of them, and then both images need their own blocks.
//!
//! *Invariants:* all reservations together stay within `usable × overcommit`, and no volume is larger
//! than `usable` (R12). An overcommitted pool holds thin volumes only. A pool that holds a thick
//! volume, or a snapshot of one, is not overcommitted, whatever its spec says.

use std::collections::HashMap;

use cistern_crds::{Bytes, PoolSnapshot, PoolVolume, Provisioning, Reason, pool::usable_of};

/// The limits of a pool's reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Space for volumes and snapshots: the free space of the empty pool less `reservedPercent`.
    pub usable: Bytes,
    /// Limit of all reservations, as a percentage of `usable`; at least 100.
    pub overcommit_percent: u32,
    /// Highest number of volumes.
    pub volume_limit: u32,
    /// Highest number of snapshots.
    pub snapshot_limit: u32,
    /// Highest number of snapshots of one volume.
    pub snapshots_per_volume: u32,
}

impl Limits {
    /// The limits of a pool that had `empty` bytes free when it was made or grown.
    pub fn new(empty: Bytes, pool: &cistern_crds::NodePool) -> Self {
        Self {
            usable: usable_of(empty, pool.reserved_percent),
            overcommit_percent: pool.overcommit_percent,
            volume_limit: pool.limits.volumes,
            snapshot_limit: pool.limits.snapshots,
            snapshots_per_volume: pool.limits.snapshots_per_volume,
        }
    }
}

/// A reservation of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The kind of object that holds it.
    pub holder: Holder,
    /// The size of a volume, or the bytes that a snapshot holds.
    pub size: Bytes,
    /// Whether the bytes are allocated when the volume is made.
    pub provisioning: Provisioning,
}

/// The kind of object that holds a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot {
        /// Name of the image that it is taken from.
        source: String,
    },
}

impl Reservation {
    /// The reservation of a volume whose attributes change to those of its spec.
    pub fn for_change(volume: &PoolVolume) -> Self {
        let status = volume.status.as_ref();
        Self {
            holder: Holder::Volume,
            size: status
                .and_then(|status| status.reserved)
                .unwrap_or_default(),
            provisioning: volume.spec.attributes.provisioning,
        }
    }

    /// The reservation of a volume.
    pub fn for_volume(volume: &PoolVolume, size: Bytes) -> Self {
        Self {
            holder: Holder::Volume,
            size,
            provisioning: volume.admitted_attributes().provisioning,
        }
    }

    /// The reservation of a snapshot.
    pub fn for_snapshot(snapshot: &PoolSnapshot, size: Bytes) -> Self {
        let source = snapshot.spec.source_image.clone();
        Self {
            holder: Holder::Snapshot { source },
            size,
            provisioning: snapshot.spec.provisioning,
        }
    }
}

/// The reason why a volume, a snapshot or a growth is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An empty pool could not hold the volume.
    #[error("the pool holds volumes of up to {usable} on this node, and {size} is asked for")]
    TooLarge {
        /// Requested size.
        size: Bytes,
        /// The largest size of any volume.
        usable: Bytes,
    },
    /// The free space is reserved for others.
    #[error("the pool has room for {room} more on this node, and {size} is asked for")]
    NoSpace {
        /// Requested size.
        size: Bytes,
        /// Unreserved space for volumes and snapshots with this provisioning.
        room: Bytes,
    },
    /// The volume cannot grow to the requested size.
    #[error("the volume can grow to {largest} on this node, and {size} is asked for")]
    Growth {
        /// Requested size.
        size: Bytes,
        /// The largest size to which it can grow now.
        largest: Bytes,
        /// The largest size of any volume.
        usable: Bytes,
    },
    /// An overcommitted pool cannot guarantee the blocks of a thick volume.
    #[error(
        "the pool allows reservations of {percent} % of its usable space (overcommitPercent), so it holds thin volumes only: use a class with provisioning: thin, or a pool whose overcommitPercent is 100"
    )]
    Overcommitted {
        /// Limit of all reservations, as a percentage of the usable space.
        percent: u32,
    },
    /// The pool reserves more than it has, so that it cannot guarantee the blocks of a thick volume.
    #[error(
        "the pool lacks {size} on this node for the volume to become thick: delete volumes or snapshots of the pool, or enlarge it"
    )]
    Lacking {
        /// Bytes that the pool lacks.
        size: Bytes,
    },
    /// The pool holds as many volumes as its limit allows.
    #[error("the pool holds {limit} volumes on this node, its limit")]
    VolumeLimitReached {
        /// The limit.
        limit: u32,
    },
    /// The pool holds as many snapshots as its limit allows.
    #[error("the pool holds {limit} snapshots on this node, its limit")]
    SnapshotLimitReached {
        /// The limit.
        limit: u32,
    },
    /// The volume has as many snapshots as the pool's limit allows.
    #[error("the volume has {limit} snapshots, as many as its pool allows")]
    SnapshotsOfVolumeReached {
        /// The limit.
        limit: u32,
    },
}

impl Refusal {
    /// Reason of the condition that reports the refusal.
    pub fn reason(&self) -> Reason {
        match self {
            Self::TooLarge { .. } => Reason::TooLarge,
            Self::Growth { size, usable, .. } if size > usable => Reason::TooLarge,
            Self::NoSpace { .. } | Self::Growth { .. } | Self::Lacking { .. } => Reason::NoSpace,
            Self::Overcommitted { .. } => Reason::Overcommitted,
            Self::VolumeLimitReached { .. } => Reason::VolumeLimitReached,
            Self::SnapshotLimitReached { .. } | Self::SnapshotsOfVolumeReached { .. } => {
                Reason::SnapshotLimitReached
            }
        }
    }
}

/// The reservations of one pool on this node, as sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    limits: Limits,
    reserved: Bytes,
    /// Whether a thick volume, or a snapshot of one, has a reservation.
    holds_thick: bool,
    reserved_for_snapshots: Bytes,
    volumes: u32,
    snapshots: u32,
    /// Number of snapshots by the image that they are taken from.
    snapshots_of: HashMap<String, u32>,
}

impl Ledger {
    /// Sums up the reservations and the bytes of images that no custom resource claims.
    pub fn new(
        limits: Limits,
        reservations: impl IntoIterator<Item = Reservation>,
        unclaimed: Bytes,
    ) -> Self {
        let empty = Self {
            limits,
            reserved: unclaimed,
            holds_thick: false,
            reserved_for_snapshots: Bytes::ZERO,
            volumes: 0,
            snapshots: 0,
            snapshots_of: HashMap::new(),
        };
        reservations.into_iter().fold(empty, Self::with)
    }

    /// Adds a reservation without a check.
    #[must_use]
    pub fn with(mut self, reservation: Reservation) -> Self {
        let size = reservation.size;
        self.reserved = self.reserved.saturating_add(size);
        self.holds_thick |= reservation.provisioning == Provisioning::Thick;
        match reservation.holder {
            Holder::Volume => self.volumes = self.volumes.saturating_add(1),
            Holder::Snapshot { source } => {
                self.reserved_for_snapshots = self.reserved_for_snapshots.saturating_add(size);
                self.snapshots = self.snapshots.saturating_add(1);
                let of_volume = self.snapshots_of.entry(source).or_default();
                *of_volume = of_volume.saturating_add(1);
            }
        }
        self
    }

    /// Space for volumes and snapshots, without overcommitment.
    pub fn usable(&self) -> Bytes {
        self.limits.usable
    }

    /// All reserved bytes, with those of unclaimed images.
    pub fn reserved(&self) -> Bytes {
        self.reserved
    }

    /// Bytes reserved for snapshots: part of [`Self::reserved`].
    pub fn reserved_for_snapshots(&self) -> Bytes {
        self.reserved_for_snapshots
    }

    /// Number of volumes with a reservation.
    pub fn volumes(&self) -> u32 {
        self.volumes
    }

    /// Number of snapshots with a reservation.
    pub fn snapshots(&self) -> u32 {
        self.snapshots
    }

    /// Room for more volumes with this provisioning, in total.
    pub fn room(&self, provisioning: Provisioning) -> Bytes {
        if self.volumes >= self.limits.volume_limit {
            return Bytes::ZERO;
        }
        self.free(provisioning)
    }

    /// Limit of all reservations, as a percentage of [`Self::usable`].
    fn percent(&self) -> u32 {
        if self.holds_thick {
            100
        } else {
            self.limits.overcommit_percent
        }
    }

    /// The percentage of overcommitment that rules out this provisioning. Only thick volumes are
    /// ruled out, because their blocks must exist.
    fn overcommits(&self, provisioning: Provisioning) -> Option<u32> {
        let percent = self.percent();
        (provisioning == Provisioning::Thick && percent > 100).then_some(percent)
    }

    /// Unreserved bytes, for volumes and snapshots.
    fn free(&self, provisioning: Provisioning) -> Bytes {
        if self.overcommits(provisioning).is_some() {
            return Bytes::ZERO;
        }
        let ceiling = self.limits.usable.percent(self.percent());
        ceiling.saturating_sub(self.reserved)
    }

    /// Whether one more volume or snapshot fits.
    pub fn check(&self, reservation: &Reservation) -> Result<(), Refusal> {
        let (size, limits) = (reservation.size, &self.limits);
        if let Some(percent) = self.overcommits(reservation.provisioning) {
            return Err(Refusal::Overcommitted { percent });
        }
        match &reservation.holder {
            Holder::Volume => {
                let (usable, limit) = (limits.usable, limits.volume_limit);
                if size > usable {
                    return Err(Refusal::TooLarge { size, usable });
                }
                if self.volumes >= limit {
                    return Err(Refusal::VolumeLimitReached { limit });
                }
            }
            Holder::Snapshot { source } => {
                let limit = limits.snapshot_limit;
                if self.snapshots >= limit {
                    return Err(Refusal::SnapshotLimitReached { limit });
                }
                let limit = limits.snapshots_per_volume;
                if self.snapshots_of.get(source).copied().unwrap_or(0) >= limit {
                    return Err(Refusal::SnapshotsOfVolumeReached { limit });
                }
            }
        }
        let room = self.free(reservation.provisioning);
        if size > room {
            return Err(Refusal::NoSpace { size, room });
        }
        Ok(())
    }

    /// Whether a volume of this ledger can have this provisioning. Its bytes are reserved already.
    pub fn check_provisioning(&self, provisioning: Provisioning) -> Result<(), Refusal> {
        if let Some(percent) = self.overcommits(provisioning) {
            return Err(Refusal::Overcommitted { percent });
        }
        match self.reserved.saturating_sub(self.limits.usable) {
            size if provisioning == Provisioning::Thick && size > Bytes::ZERO => {
                Err(Refusal::Lacking { size })
            }
            _ => Ok(()),
        }
    }

    /// Whether an object of this ledger that has `held` bytes reserved can have more.
    pub fn check_growth(&self, held: Bytes, wanted: &Reservation) -> Result<(), Refusal> {
        let (size, usable) = (wanted.size, self.limits.usable);
        let reach = held.saturating_add(self.free(wanted.provisioning));
        let largest = match wanted.holder {
            Holder::Volume => usable.min(reach).round_down_to_mib().max(held),
            Holder::Snapshot { .. } if size > reach => {
                return Err(Refusal::NoSpace { size, room: reach });
            }
            Holder::Snapshot { .. } => return Ok(()),
        };
        if size > largest {
            return Err(Refusal::Growth {
                size,
                largest,
                usable,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        usable: Bytes::gib(10),
        overcommit_percent: 200,
        volume_limit: 100,
        snapshot_limit: 3,
        snapshots_per_volume: 2,
    };

    /// The same pool without overcommitment.
    const EXACT: Limits = Limits {
        overcommit_percent: 100,
        ..LIMITS
    };

    fn thin(size: Bytes) -> Reservation {
        Reservation {
            holder: Holder::Volume,
            size,
            provisioning: Provisioning::Thin,
        }
    }

    fn thick(size: Bytes) -> Reservation {
        Reservation {
            provisioning: Provisioning::Thick,
            ..thin(size)
        }
    }

    #[test]
    fn an_overcommitted_pool_takes_no_thick_volume() {
        let small = Bytes::mib(1);
        for held in [vec![], vec![thin(Bytes::gib(1))]] {
            let ledger = Ledger::new(LIMITS, held, Bytes::ZERO);
            assert_eq!(ledger.room(Provisioning::Thick), Bytes::ZERO);
            let refusal = ledger.check(&thick(small)).unwrap_err();
            assert_eq!(refusal.reason(), Reason::Overcommitted);
            let text = refusal.to_string();
            assert!(text.contains("200 %") && text.contains("thin"), "{text}");
            assert_eq!(ledger.check(&thin(small)), Ok(()));
        }
        let ledger = Ledger::new(EXACT, [thin(Bytes::gib(4))], Bytes::ZERO);
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::gib(6));
        assert_eq!(ledger.check(&thick(Bytes::gib(6))), Ok(()));
    }

    #[test]
    fn a_pool_with_a_thick_volume_or_its_snapshot_is_not_overcommitted() {
        let volume = thick(Bytes::gib(6));
        let snapshot = snapshot_of("a", &thick(Bytes::gib(6)));
        for held in [volume, snapshot] {
            let ledger = Ledger::new(LIMITS, [held], Bytes::ZERO);
            for provisioning in [Provisioning::Thin, Provisioning::Thick] {
                assert_eq!(ledger.room(provisioning), Bytes::gib(4));
            }
            let refusal = ledger.check(&thin(Bytes::gib(5))).unwrap_err();
            assert_eq!(refusal.reason(), Reason::NoSpace);
        }
    }

    #[test]
    fn a_volume_becomes_thick_only_in_a_pool_that_has_all_it_reserves() {
        let held = [thin(Bytes::gib(6)), thin(Bytes::gib(7))];
        for (limits, reason) in [(LIMITS, Reason::Overcommitted), (EXACT, Reason::NoSpace)] {
            let ledger = Ledger::new(limits, held.clone(), Bytes::ZERO);
            let refusal = ledger.check_provisioning(Provisioning::Thick).unwrap_err();
            assert_eq!(refusal.reason(), reason);
            assert_eq!(ledger.check_provisioning(Provisioning::Thin), Ok(()));
        }
        let ledger = Ledger::new(EXACT, held, Bytes::ZERO);
        let refusal = ledger.check_provisioning(Provisioning::Thick).unwrap_err();
        assert!(refusal.to_string().contains("lacks 3Gi"), "{refusal}");
        let exact = [thin(Bytes::gib(6)), thick(Bytes::gib(4))];
        let ledger = Ledger::new(EXACT, exact, Bytes::ZERO);
        assert_eq!(ledger.check_provisioning(Provisioning::Thick), Ok(()));
    }

    #[test]
    fn one_volume_is_never_larger_than_the_pool_whatever_the_overcommitment() {
        let ledger = Ledger::new(LIMITS, [], Bytes::ZERO);
        let size = Bytes::gib(10).saturating_add(Bytes::mib(1));
        let refusal = ledger.check(&thin(size)).unwrap_err();
        assert_eq!(refusal.reason(), Reason::TooLarge);
        assert!(refusal.to_string().contains("10Gi"), "{refusal}");
        assert_eq!(ledger.check(&thin(Bytes::gib(10))), Ok(()));
    }

    #[test]
    fn the_limit_on_volumes_leaves_no_room_at_all() {
        let limits = Limits {
            volume_limit: 1,
            ..LIMITS
        };
        let ledger = Ledger::new(limits, [thin(Bytes::mib(1))], Bytes::ZERO);
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::ZERO);
        let refusal = ledger.check(&thin(Bytes::mib(1))).unwrap_err();
        assert_eq!(refusal.reason(), Reason::VolumeLimitReached);
    }

    #[test]
    fn unclaimed_images_take_room_from_both_kinds() {
        let ledger = Ledger::new(EXACT, [], Bytes::gib(3));
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::gib(7));
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::gib(7));
        assert_eq!(ledger.volumes(), 0);
    }

    fn snapshot_of(source: &str, reservation: &Reservation) -> Reservation {
        let source = source.to_owned();
        Reservation {
            holder: Holder::Snapshot { source },
            ..reservation.clone()
        }
    }

    #[test]
    fn the_reservation_of_a_snapshot_reduces_the_room_of_its_pool() {
        let held = [
            thick(Bytes::gib(4)),
            snapshot_of("a", &thick(Bytes::gib(2))),
            snapshot_of("a", &thin(Bytes::gib(3))),
        ];
        let ledger = Ledger::new(EXACT, held, Bytes::ZERO);
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::gib(1));
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::gib(1));
        assert_eq!(ledger.reserved_for_snapshots(), Bytes::gib(5));
        assert_eq!((ledger.volumes(), ledger.snapshots()), (1, 2));

        let more = snapshot_of("b", &thick(Bytes::gib(5)));
        assert_eq!(ledger.check(&more).unwrap_err().reason(), Reason::NoSpace);
        let held = Bytes::gib(2);
        let reach = snapshot_of("a", &thick(Bytes::gib(3)));
        assert_eq!(ledger.check_growth(held, &reach), Ok(()));
        let refusal = ledger.check_growth(held, &snapshot_of("a", &thick(Bytes::gib(4))));
        assert_eq!(refusal.unwrap_err().reason(), Reason::NoSpace);
    }

    #[test]
    fn snapshots_have_a_limit_for_each_volume_and_for_all_and_volumes_have_theirs() {
        let snapshot = |source| snapshot_of(source, &thin(Bytes::mib(1)));
        let of_one = Ledger::new(LIMITS, [snapshot("a"), snapshot("a")], Bytes::ZERO);
        let refusal = of_one.check(&snapshot("a")).unwrap_err();
        assert_eq!(refusal.reason(), Reason::SnapshotLimitReached);
        assert!(
            refusal.to_string().contains("the volume has 2"),
            "{refusal}"
        );
        assert_eq!(of_one.check(&snapshot("b")), Ok(()));
        let all = of_one.with(snapshot("b"));
        let refusal = all.check(&snapshot("c")).unwrap_err();
        assert_eq!(refusal.reason(), Reason::SnapshotLimitReached);
        assert!(
            refusal.to_string().contains("the pool holds 3"),
            "{refusal}"
        );
        assert_eq!(all.check(&thin(Bytes::mib(1))), Ok(()));
    }

    #[test]
    fn cev_07_a_volume_grows_as_far_as_there_is_room_and_a_refusal_says_how_far() {
        let held = Bytes::gib(4);
        let ledger = Ledger::new(LIMITS, [thick(held), thick(Bytes::gib(3))], Bytes::ZERO);
        assert_eq!(ledger.check_growth(held, &thick(Bytes::gib(7))), Ok(()));
        let more = Bytes::gib(7).saturating_add(Bytes(1));
        let refusal = ledger.check_growth(held, &thick(more)).unwrap_err();
        assert_eq!(refusal.reason(), Reason::NoSpace);
        assert!(refusal.to_string().contains("grow to 7Gi"), "{refusal}");
        // An overcommitted pool can reserve more, but a single volume cannot exceed it.
        let ledger = Ledger::new(LIMITS, [thin(held), thin(Bytes::gib(3))], Bytes::ZERO);
        assert_eq!(ledger.check_growth(held, &thin(Bytes::gib(10))), Ok(()));
        let refusal = ledger
            .check_growth(held, &thin(Bytes::gib(11)))
            .unwrap_err();
        assert_eq!(refusal.reason(), Reason::TooLarge);
        assert!(refusal.to_string().contains("grow to 10Gi"), "{refusal}");
    }

    #[test]
    fn a_volume_grows_where_the_limit_on_volumes_is_reached_and_keeps_what_it_has_in_a_full_pool() {
        let limits = Limits {
            volume_limit: 1,
            ..LIMITS
        };
        let ledger = Ledger::new(limits, [thin(Bytes::gib(1))], Bytes::ZERO);
        let grown = thin(Bytes::gib(2));
        assert_eq!(ledger.check_growth(Bytes::gib(1), &grown), Ok(()));
        // More is reserved than the pool allows now, because its overcommitment was lowered.
        let ledger = Ledger::new(
            LIMITS,
            [thin(Bytes::gib(12)), thin(Bytes::gib(12))],
            Bytes::ZERO,
        );
        let refusal = ledger.check_growth(Bytes::gib(12), &thin(Bytes::gib(13)));
        let refusal = refusal.unwrap_err();
        assert!(refusal.to_string().contains("grow to 12Gi"), "{refusal}");
    }

    fn any_reservation() -> impl Strategy<Value = Reservation> {
        let kind = prop_oneof![Just(Provisioning::Thin), Just(Provisioning::Thick)];
        let holder = prop_oneof![
            Just(Holder::Volume),
            "[ab]".prop_map(|source| Holder::Snapshot { source })
        ];
        (0..20_u64 << 30, kind, holder).prop_map(|(size, provisioning, holder)| Reservation {
            holder,
            size: Bytes(size),
            provisioning,
        })
    }

    fn any_percent() -> impl Strategy<Value = u32> {
        prop_oneof![Just(100), 101..1000_u32]
    }

    fn any_limits() -> impl Strategy<Value = Limits> {
        let limits = (0..20_u32, 0..20_u32, 0..10_u32);
        (0..64_u64 << 30, any_percent(), limits).prop_map(|(usable, percent, limits)| Limits {
            usable: Bytes(usable),
            overcommit_percent: percent,
            volume_limit: limits.0,
            snapshot_limit: limits.1,
            snapshots_per_volume: limits.2,
        })
    }

    proptest! {
        #[test]
        fn r12_reservations_stay_within_the_limits_as_objects_come_and_go(
            limits in any_limits(),
            steps in prop::collection::vec((any_reservation(), any::<prop::sample::Index>(), any::<bool>()), 0..60),
            unclaimed in 0..8_u64 << 30,
        ) {
            let unclaimed = Bytes(unclaimed);
            let mut held: Vec<Reservation> = Vec::new();
            for (reservation, index, release) in steps {
                if release && !held.is_empty() {
                    held.swap_remove(index.index(held.len()));
                    continue;
                }
                let ledger = Ledger::new(limits, held.iter().cloned(), unclaimed);
                if ledger.check(&reservation).is_err() {
                    continue;
                }
                held.push(reservation.clone());
                let all: Bytes = held.iter().map(|p| p.size).sum();
                let thick: Bytes = held
                    .iter()
                    .filter(|p| p.provisioning == Provisioning::Thick)
                    .map(|p| p.size)
                    .sum();
                let ceiling = limits.usable.percent(limits.overcommit_percent);
                prop_assert!(all.saturating_add(unclaimed) <= ceiling);
                prop_assert!(thick == Bytes::ZERO || limits.overcommit_percent == 100);
                let count = |holder: &Holder| held.iter().filter(|p| p.holder == *holder).count();
                match &reservation.holder {
                    Holder::Volume => {
                        prop_assert!(reservation.size <= limits.usable);
                        prop_assert!(count(&Holder::Volume) <= limits.volume_limit as usize);
                    }
                    of_volume @ Holder::Snapshot { .. } => {
                        let snapshots = held.len() - count(&Holder::Volume);
                        prop_assert!(snapshots <= limits.snapshot_limit as usize);
                        prop_assert!(count(of_volume) <= limits.snapshots_per_volume as usize);
                    }
                }
            }
        }

        #[test]
        fn r12_however_the_percentage_changes_thick_volumes_are_never_overcommitted(
            limits in any_limits(),
            steps in prop::collection::vec((any_reservation(), any_percent()), 0..60),
            unclaimed in 0..8_u64 << 30,
        ) {
            let mut held: Vec<Reservation> = Vec::new();
            for (reservation, percent) in steps {
                let limits = Limits { overcommit_percent: percent, ..limits };
                let ledger = Ledger::new(limits, held.iter().cloned(), Bytes(unclaimed));
                if ledger.check(&reservation).is_ok() {
                    held.push(reservation);
                }
                let sum = |counts: fn(&&Reservation) -> bool| -> Bytes {
                    held.iter().filter(counts).map(|it| it.size).sum()
                };
                let thick = sum(|it| it.provisioning == Provisioning::Thick);
                let all = sum(|_| true).saturating_add(Bytes(unclaimed));
                prop_assert!(thick == Bytes::ZERO || all <= limits.usable);
            }
        }

        #[test]
        fn r12_reservations_stay_within_the_limits_as_volumes_grow_or_fail_to(
            limits in any_limits(),
            made in prop::collection::vec(any_reservation(), 1..8),
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0..30_u64 << 30, any::<bool>()), 0..60),
            unclaimed in 0..4_u64 << 30,
        ) {
            let unclaimed = Bytes(unclaimed);
            let ledger = |held: &[Reservation]| Ledger::new(limits, held.iter().cloned(), unclaimed);
            let mut held: Vec<Reservation> = Vec::new();
            for reservation in made {
                if ledger(&held).check(&reservation).is_ok() {
                    held.push(reservation);
                }
            }
            if held.is_empty() {
                return Ok(());
            }
            for (index, size, fails_on_disk) in steps {
                let index = index.index(held.len());
                let before = held[index].clone();
                let wanted = Reservation { size: Bytes(size).max(before.size), ..before.clone() };
                match ledger(&held).check_growth(before.size, &wanted) {
                    Ok(()) => held[index] = wanted,
                    Err(Refusal::Growth { largest, .. }) => {
                        // The volume can grow to the reported size, and not one step further.
                        let most = Reservation { size: largest, ..before.clone() };
                        prop_assert!(ledger(&held).check_growth(before.size, &most).is_ok());
                        let more = Reservation { size: largest.saturating_add(Bytes::mib(1)), ..before.clone() };
                        prop_assert!(ledger(&held).check_growth(before.size, &more).is_err());
                    }
                    Err(Refusal::NoSpace { room, .. }) => {
                        // A snapshot that needs more than was estimated.
                        let most = Reservation { size: room, ..before.clone() };
                        prop_assert!(ledger(&held).check_growth(before.size, &most).is_ok());
                        prop_assert!(before.holder != Holder::Volume);
                    }
                    Err(other) => prop_assert!(false, "{other}"),
                }
                let all = |held: &[Reservation], counts: fn(&Reservation) -> bool| -> Bytes {
                    held.iter().filter(|p| counts(p)).map(|p| p.size).sum()
                };
                let ceiling = limits.usable.percent(limits.overcommit_percent);
                prop_assert!(all(&held, |_| true).saturating_add(unclaimed) <= ceiling);
                if held[index] != before && before.provisioning == Provisioning::Thick {
                    let thick = all(&held, |p| p.provisioning == Provisioning::Thick);
                    prop_assert!(thick.saturating_add(unclaimed) <= limits.usable);
                }
                prop_assert!(before.holder != Holder::Volume || held[index].size <= limits.usable);
                if fails_on_disk {
                    // The disk lacks the space: the reservation of the growth is withdrawn.
                    let free = ledger(&held).free(before.provisioning);
                    held[index] = before.clone();
                    prop_assert!(ledger(&held).free(before.provisioning) >= free);
                }
            }
        }

        #[test]
        fn r12_a_volume_of_the_published_room_fits_and_one_byte_more_does_not(
            limits in any_limits(),
            held in prop::collection::vec(any_reservation(), 0..10),
            provisioning in prop_oneof![Just(Provisioning::Thin), Just(Provisioning::Thick)],
        ) {
            let ledger = Ledger::new(limits, held, Bytes::ZERO);
            let largest = ledger.room(provisioning).min(limits.usable);
            let reservation = |size| Reservation { holder: Holder::Volume, size, provisioning };
            prop_assert!(ledger.check(&reservation(largest.saturating_add(Bytes(1)))).is_err());
            if largest > Bytes::ZERO {
                prop_assert_eq!(ledger.check(&reservation(largest)), Ok(()));
                let less = ledger.clone().with(reservation(largest)).room(provisioning);
                prop_assert!(less <= ledger.room(provisioning).saturating_sub(largest));
            }
        }
    }
}
