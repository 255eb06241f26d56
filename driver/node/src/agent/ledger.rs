//! The ledger of one pool on this node: what is promised, and whether one more volume or snapshot
//! fits.
//!
//! Pure arithmetic over what the custom resources say; derived anew each time, so it cannot drift.
//!
//! A growth that is asked for counts from its admission on, and one that is refused counts nothing.
//!
//! A snapshot counts what its image had allocated when it was cut: its source may overwrite all of
//! that, and then both need their own.
//!
//! *Invariants:* all promises together stay within `usable × overcommit`, and no single volume is
//! larger than `usable` (R12). A pool that may promise more than it has holds thin volumes only: it
//! takes no thick one, and while it holds one, or a snapshot of one, it promises no more than it has,
//! whatever its spec says.

use std::collections::HashMap;

use cistern_crds::{Bytes, PoolSnapshot, PoolVolume, Provisioning, Reason};

/// What a pool can promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Space for volumes: what was free in the empty pool, less what is kept back.
    pub usable: Bytes,
    /// How much may be promised in all, in hundredths of `usable`: 100 at least.
    pub overcommit_percent: u32,
    /// Volumes.
    pub volume_limit: u32,
    /// Snapshots.
    pub snapshot_limit: u32,
    /// Snapshots of one volume.
    pub snapshots_per_volume: u32,
}

impl Terms {
    /// Of a pool with `empty` bytes free when it was made or grown.
    pub fn new(empty: Bytes, pool: &cistern_crds::NodePool) -> Self {
        let kept_back = empty.percent(pool.reserved_percent);
        Self {
            usable: empty.saturating_sub(kept_back).round_down_to_mib(),
            overcommit_percent: pool.overcommit_percent,
            volume_limit: pool.limits.volumes,
            snapshot_limit: pool.limits.snapshots,
            snapshots_per_volume: pool.limits.snapshots_per_volume,
        }
    }
}

/// A promise of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// To whom.
    pub holder: Holder,
    /// How many: the size of a volume, what a snapshot keeps.
    pub size: Bytes,
    /// Whether the bytes of the volume are allocated at once.
    pub provisioning: Provisioning,
}

/// To whom bytes are promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot {
        /// Name of the image that it is cut from.
        source: String,
    },
}

impl Promise {
    /// A promise to a volume.
    pub fn to_volume(volume: &PoolVolume, size: Bytes) -> Self {
        Self {
            holder: Holder::Volume,
            size,
            provisioning: volume.spec.provisioning,
        }
    }

    /// A promise to a snapshot.
    pub fn to_snapshot(snapshot: &PoolSnapshot, size: Bytes) -> Self {
        let source = snapshot.spec.source_image.clone();
        Self {
            holder: Holder::Snapshot { source },
            size,
            provisioning: snapshot.spec.provisioning,
        }
    }
}

/// Why a volume or a snapshot is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not even an empty pool could hold it.
    #[error("the pool holds volumes of up to {usable} on this node, and {size} is asked for")]
    TooLarge {
        /// Asked for.
        size: Bytes,
        /// The largest size.
        usable: Bytes,
    },
    /// Others have been promised the space.
    #[error("the pool has room for {room} more on this node, and {size} is asked for")]
    NoSpace {
        /// Asked for.
        size: Bytes,
        /// What is left for volumes and snapshots of this kind.
        room: Bytes,
    },
    /// A volume cannot become as large as is asked for.
    #[error("the volume can grow to {largest} on this node, and {size} is asked for")]
    Growth {
        /// Asked for.
        size: Bytes,
        /// The largest size that it can have now.
        largest: Bytes,
        /// The largest that any volume can have.
        usable: Bytes,
    },
    /// The pool may promise more than it has, and the bytes of a thick volume have to be there.
    #[error(
        "the pool may promise {percent} % of what it has (overcommitPercent), so it holds thin volumes only: use a class with provisioning: thin, or a pool whose overcommitPercent is 100"
    )]
    Overcommitted {
        /// How much it may promise, in hundredths.
        percent: u32,
    },
    /// As many volumes as the pool's limit allows.
    #[error("the pool holds {limit} volumes on this node, its limit")]
    VolumeLimitReached {
        /// The limit.
        limit: u32,
    },
    /// As many snapshots as the pool's limit allows.
    #[error("the pool holds {limit} snapshots on this node, its limit")]
    SnapshotLimitReached {
        /// The limit.
        limit: u32,
    },
    /// As many snapshots of the volume as the pool's limit allows.
    #[error("the volume has {limit} snapshots, as many as its pool allows")]
    SnapshotsOfVolumeReached {
        /// The limit.
        limit: u32,
    },
}

impl Refusal {
    /// For the condition.
    pub fn reason(&self) -> Reason {
        match self {
            Self::TooLarge { .. } => Reason::TooLarge,
            Self::Growth { size, usable, .. } if size > usable => Reason::TooLarge,
            Self::NoSpace { .. } | Self::Growth { .. } => Reason::NoSpace,
            Self::Overcommitted { .. } => Reason::Overcommitted,
            Self::VolumeLimitReached { .. } => Reason::VolumeLimitReached,
            Self::SnapshotLimitReached { .. } | Self::SnapshotsOfVolumeReached { .. } => {
                Reason::SnapshotLimitReached
            }
        }
    }
}

/// What one pool on this node has promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    terms: Terms,
    promised: Bytes,
    /// Whether a thick volume, or a snapshot of one, is among them.
    holds_thick: bool,
    promised_to_snapshots: Bytes,
    volumes: u32,
    snapshots: u32,
    /// Snapshots, by the image that they are cut from.
    snapshots_of: HashMap<String, u32>,
}

impl Ledger {
    /// With the promises that stand and the bytes of images that no custom resource claims.
    pub fn new(
        terms: Terms,
        promises: impl IntoIterator<Item = Promise>,
        unclaimed: Bytes,
    ) -> Self {
        let empty = Self {
            terms,
            promised: unclaimed,
            holds_thick: false,
            promised_to_snapshots: Bytes::ZERO,
            volumes: 0,
            snapshots: 0,
            snapshots_of: HashMap::new(),
        };
        promises.into_iter().fold(empty, Self::with)
    }

    /// With one more promise, however large.
    #[must_use]
    pub fn with(mut self, promise: Promise) -> Self {
        let size = promise.size;
        self.promised = self.promised.saturating_add(size);
        self.holds_thick |= promise.provisioning == Provisioning::Thick;
        match promise.holder {
            Holder::Volume => self.volumes = self.volumes.saturating_add(1),
            Holder::Snapshot { source } => {
                self.promised_to_snapshots = self.promised_to_snapshots.saturating_add(size);
                self.snapshots = self.snapshots.saturating_add(1);
                let of_volume = self.snapshots_of.entry(source).or_default();
                *of_volume = of_volume.saturating_add(1);
            }
        }
        self
    }

    /// Space for volumes and snapshots.
    pub fn usable(&self) -> Bytes {
        self.terms.usable
    }

    /// Bytes promised in all.
    pub fn promised(&self) -> Bytes {
        self.promised
    }

    /// Bytes promised to snapshots: part of [`Self::promised`].
    pub fn promised_to_snapshots(&self) -> Bytes {
        self.promised_to_snapshots
    }

    /// Volumes with a promise.
    pub fn volumes(&self) -> u32 {
        self.volumes
    }

    /// Snapshots with a promise.
    pub fn snapshots(&self) -> u32 {
        self.snapshots
    }

    /// Room for more volumes of a kind, all together.
    pub fn room(&self, provisioning: Provisioning) -> Bytes {
        if self.volumes >= self.terms.volume_limit {
            return Bytes::ZERO;
        }
        self.free(provisioning)
    }

    /// How much may be promised in all, in hundredths of [`Self::usable`].
    fn percent(&self) -> u32 {
        if self.holds_thick {
            100
        } else {
            self.terms.overcommit_percent
        }
    }

    /// The percentage that keeps a kind out: the bytes of what is thick have to be there.
    fn overcommits(&self, provisioning: Provisioning) -> Option<u32> {
        let percent = self.percent();
        (provisioning == Provisioning::Thick && percent > 100).then_some(percent)
    }

    /// Bytes that can still be promised, to whomever.
    fn free(&self, provisioning: Provisioning) -> Bytes {
        if self.overcommits(provisioning).is_some() {
            return Bytes::ZERO;
        }
        let ceiling = self.terms.usable.percent(self.percent());
        ceiling.saturating_sub(self.promised)
    }

    /// Whether one more volume or snapshot fits.
    pub fn check(&self, promise: &Promise) -> Result<(), Refusal> {
        let (size, terms) = (promise.size, &self.terms);
        if let Some(percent) = self.overcommits(promise.provisioning) {
            return Err(Refusal::Overcommitted { percent });
        }
        match &promise.holder {
            Holder::Volume => {
                let (usable, limit) = (terms.usable, terms.volume_limit);
                if size > usable {
                    return Err(Refusal::TooLarge { size, usable });
                }
                if self.volumes >= limit {
                    return Err(Refusal::VolumeLimitReached { limit });
                }
            }
            Holder::Snapshot { source } => {
                let limit = terms.snapshot_limit;
                if self.snapshots >= limit {
                    return Err(Refusal::SnapshotLimitReached { limit });
                }
                let limit = terms.snapshots_per_volume;
                if self.snapshots_of.get(source).copied().unwrap_or(0) >= limit {
                    return Err(Refusal::SnapshotsOfVolumeReached { limit });
                }
            }
        }
        let room = self.free(promise.provisioning);
        if size > room {
            return Err(Refusal::NoSpace { size, room });
        }
        Ok(())
    }

    /// Whether one of this ledger, to which `held` is promised, can have more.
    pub fn check_growth(&self, held: Bytes, wanted: &Promise) -> Result<(), Refusal> {
        let (size, usable) = (wanted.size, self.terms.usable);
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

    const TERMS: Terms = Terms {
        usable: Bytes::gib(10),
        overcommit_percent: 200,
        volume_limit: 100,
        snapshot_limit: 3,
        snapshots_per_volume: 2,
    };

    /// The same pool, which promises no more than it has.
    const EXACT: Terms = Terms {
        overcommit_percent: 100,
        ..TERMS
    };

    fn thin(size: Bytes) -> Promise {
        Promise {
            holder: Holder::Volume,
            size,
            provisioning: Provisioning::Thin,
        }
    }

    fn thick(size: Bytes) -> Promise {
        Promise {
            provisioning: Provisioning::Thick,
            ..thin(size)
        }
    }

    #[test]
    fn a_pool_that_may_promise_more_than_it_has_takes_no_thick_volume() {
        let small = Bytes::mib(1);
        for held in [vec![], vec![thin(Bytes::gib(1))]] {
            let ledger = Ledger::new(TERMS, held, Bytes::ZERO);
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
    fn a_pool_that_holds_a_thick_volume_or_its_snapshot_promises_no_more_than_it_has() {
        let volume = thick(Bytes::gib(6));
        let snapshot = snapshot_of("a", &thick(Bytes::gib(6)));
        for held in [volume, snapshot] {
            let ledger = Ledger::new(TERMS, [held], Bytes::ZERO);
            for provisioning in [Provisioning::Thin, Provisioning::Thick] {
                assert_eq!(ledger.room(provisioning), Bytes::gib(4));
            }
            let refusal = ledger.check(&thin(Bytes::gib(5))).unwrap_err();
            assert_eq!(refusal.reason(), Reason::NoSpace);
        }
    }

    #[test]
    fn one_volume_is_never_larger_than_the_pool_whatever_the_overcommitment() {
        let ledger = Ledger::new(TERMS, [], Bytes::ZERO);
        let size = Bytes::gib(10).saturating_add(Bytes::mib(1));
        let refusal = ledger.check(&thin(size)).unwrap_err();
        assert_eq!(refusal.reason(), Reason::TooLarge);
        assert!(refusal.to_string().contains("10Gi"), "{refusal}");
        assert_eq!(ledger.check(&thin(Bytes::gib(10))), Ok(()));
    }

    #[test]
    fn the_limit_on_volumes_leaves_no_room_at_all() {
        let terms = Terms {
            volume_limit: 1,
            ..TERMS
        };
        let ledger = Ledger::new(terms, [thin(Bytes::mib(1))], Bytes::ZERO);
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::ZERO);
        let refusal = ledger.check(&thin(Bytes::mib(1))).unwrap_err();
        assert_eq!(refusal.reason(), Reason::VolumeLimitReached);
    }

    #[test]
    fn images_that_nobody_claims_take_room_from_both_kinds() {
        let ledger = Ledger::new(EXACT, [], Bytes::gib(3));
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::gib(7));
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::gib(7));
        assert_eq!(ledger.volumes(), 0);
    }

    fn snapshot_of(source: &str, promise: &Promise) -> Promise {
        let source = source.to_owned();
        Promise {
            holder: Holder::Snapshot { source },
            ..promise.clone()
        }
    }

    #[test]
    fn what_a_snapshot_keeps_is_taken_from_the_room_of_its_pool() {
        let held = [
            thick(Bytes::gib(4)),
            snapshot_of("a", &thick(Bytes::gib(2))),
            snapshot_of("a", &thin(Bytes::gib(3))),
        ];
        let ledger = Ledger::new(EXACT, held, Bytes::ZERO);
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::gib(1));
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::gib(1));
        assert_eq!(ledger.promised_to_snapshots(), Bytes::gib(5));
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
        let of_one = Ledger::new(TERMS, [snapshot("a"), snapshot("a")], Bytes::ZERO);
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
        let ledger = Ledger::new(TERMS, [thick(held), thick(Bytes::gib(3))], Bytes::ZERO);
        assert_eq!(ledger.check_growth(held, &thick(Bytes::gib(7))), Ok(()));
        let more = Bytes::gib(7).saturating_add(Bytes(1));
        let refusal = ledger.check_growth(held, &thick(more)).unwrap_err();
        assert_eq!(refusal.reason(), Reason::NoSpace);
        assert!(refusal.to_string().contains("grow to 7Gi"), "{refusal}");
        // Overcommitted, the pool has more to promise, but one volume has its bounds.
        let ledger = Ledger::new(TERMS, [thin(held), thin(Bytes::gib(3))], Bytes::ZERO);
        assert_eq!(ledger.check_growth(held, &thin(Bytes::gib(10))), Ok(()));
        let refusal = ledger
            .check_growth(held, &thin(Bytes::gib(11)))
            .unwrap_err();
        assert_eq!(refusal.reason(), Reason::TooLarge);
        assert!(refusal.to_string().contains("grow to 10Gi"), "{refusal}");
    }

    #[test]
    fn a_volume_grows_where_the_limit_on_volumes_is_reached_and_keeps_what_it_has_in_a_full_pool() {
        let terms = Terms {
            volume_limit: 1,
            ..TERMS
        };
        let ledger = Ledger::new(terms, [thin(Bytes::gib(1))], Bytes::ZERO);
        let grown = thin(Bytes::gib(2));
        assert_eq!(ledger.check_growth(Bytes::gib(1), &grown), Ok(()));
        // The pool was promised away more than it has now: its overcommitment was lowered.
        let ledger = Ledger::new(
            TERMS,
            [thin(Bytes::gib(12)), thin(Bytes::gib(12))],
            Bytes::ZERO,
        );
        let refusal = ledger.check_growth(Bytes::gib(12), &thin(Bytes::gib(13)));
        let refusal = refusal.unwrap_err();
        assert!(refusal.to_string().contains("grow to 12Gi"), "{refusal}");
    }

    fn any_promise() -> impl Strategy<Value = Promise> {
        let kind = prop_oneof![Just(Provisioning::Thin), Just(Provisioning::Thick)];
        let holder = prop_oneof![
            Just(Holder::Volume),
            "[ab]".prop_map(|source| Holder::Snapshot { source })
        ];
        (0..20_u64 << 30, kind, holder).prop_map(|(size, provisioning, holder)| Promise {
            holder,
            size: Bytes(size),
            provisioning,
        })
    }

    fn any_percent() -> impl Strategy<Value = u32> {
        prop_oneof![Just(100), 101..1000_u32]
    }

    fn any_terms() -> impl Strategy<Value = Terms> {
        let limits = (0..20_u32, 0..20_u32, 0..10_u32);
        (0..64_u64 << 30, any_percent(), limits).prop_map(|(usable, percent, limits)| Terms {
            usable: Bytes(usable),
            overcommit_percent: percent,
            volume_limit: limits.0,
            snapshot_limit: limits.1,
            snapshots_per_volume: limits.2,
        })
    }

    proptest! {
        #[test]
        fn r12_whatever_comes_and_goes_promises_stay_within_the_terms(
            terms in any_terms(),
            steps in prop::collection::vec((any_promise(), any::<prop::sample::Index>(), any::<bool>()), 0..60),
            unclaimed in 0..8_u64 << 30,
        ) {
            let unclaimed = Bytes(unclaimed);
            let mut held: Vec<Promise> = Vec::new();
            for (promise, index, release) in steps {
                if release && !held.is_empty() {
                    held.swap_remove(index.index(held.len()));
                    continue;
                }
                let ledger = Ledger::new(terms, held.iter().cloned(), unclaimed);
                if ledger.check(&promise).is_err() {
                    continue;
                }
                held.push(promise.clone());
                let all: Bytes = held.iter().map(|p| p.size).sum();
                let thick: Bytes = held
                    .iter()
                    .filter(|p| p.provisioning == Provisioning::Thick)
                    .map(|p| p.size)
                    .sum();
                let ceiling = terms.usable.percent(terms.overcommit_percent);
                prop_assert!(all.saturating_add(unclaimed) <= ceiling);
                prop_assert!(thick == Bytes::ZERO || terms.overcommit_percent == 100);
                let count = |holder: &Holder| held.iter().filter(|p| p.holder == *holder).count();
                match &promise.holder {
                    Holder::Volume => {
                        prop_assert!(promise.size <= terms.usable);
                        prop_assert!(count(&Holder::Volume) <= terms.volume_limit as usize);
                    }
                    of_volume @ Holder::Snapshot { .. } => {
                        let snapshots = held.len() - count(&Holder::Volume);
                        prop_assert!(snapshots <= terms.snapshot_limit as usize);
                        prop_assert!(count(of_volume) <= terms.snapshots_per_volume as usize);
                    }
                }
            }
        }

        #[test]
        fn r12_however_the_percentage_changes_a_pool_with_thick_volumes_has_what_it_promises(
            terms in any_terms(),
            steps in prop::collection::vec((any_promise(), any_percent()), 0..60),
            unclaimed in 0..8_u64 << 30,
        ) {
            let mut held: Vec<Promise> = Vec::new();
            for (promise, percent) in steps {
                let terms = Terms { overcommit_percent: percent, ..terms };
                let ledger = Ledger::new(terms, held.iter().cloned(), Bytes(unclaimed));
                if ledger.check(&promise).is_ok() {
                    held.push(promise);
                }
                let sum = |counts: fn(&&Promise) -> bool| -> Bytes {
                    held.iter().filter(counts).map(|it| it.size).sum()
                };
                let thick = sum(|it| it.provisioning == Provisioning::Thick);
                let all = sum(|_| true).saturating_add(Bytes(unclaimed));
                prop_assert!(thick == Bytes::ZERO || all <= terms.usable);
            }
        }

        #[test]
        fn r12_whatever_grows_is_refused_and_shrinks_back_promises_stay_within_the_terms(
            terms in any_terms(),
            made in prop::collection::vec(any_promise(), 1..8),
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0..30_u64 << 30, any::<bool>()), 0..60),
            unclaimed in 0..4_u64 << 30,
        ) {
            let unclaimed = Bytes(unclaimed);
            let ledger = |held: &[Promise]| Ledger::new(terms, held.iter().cloned(), unclaimed);
            let mut held: Vec<Promise> = Vec::new();
            for promise in made {
                if ledger(&held).check(&promise).is_ok() {
                    held.push(promise);
                }
            }
            if held.is_empty() {
                return Ok(());
            }
            for (index, size, fails_on_disk) in steps {
                let index = index.index(held.len());
                let before = held[index].clone();
                let wanted = Promise { size: Bytes(size).max(before.size), ..before.clone() };
                match ledger(&held).check_growth(before.size, &wanted) {
                    Ok(()) => held[index] = wanted,
                    Err(Refusal::Growth { largest, .. }) => {
                        // What it says can be had, and not one step more.
                        let most = Promise { size: largest, ..before.clone() };
                        prop_assert!(ledger(&held).check_growth(before.size, &most).is_ok());
                        let more = Promise { size: largest.saturating_add(Bytes::mib(1)), ..before.clone() };
                        prop_assert!(ledger(&held).check_growth(before.size, &more).is_err());
                    }
                    Err(Refusal::NoSpace { room, .. }) => {
                        // A snapshot that turned out to keep more than was thought.
                        let most = Promise { size: room, ..before.clone() };
                        prop_assert!(ledger(&held).check_growth(before.size, &most).is_ok());
                        prop_assert!(before.holder != Holder::Volume);
                    }
                    Err(other) => prop_assert!(false, "{other}"),
                }
                let all = |held: &[Promise], counts: fn(&Promise) -> bool| -> Bytes {
                    held.iter().filter(|p| counts(p)).map(|p| p.size).sum()
                };
                let ceiling = terms.usable.percent(terms.overcommit_percent);
                prop_assert!(all(&held, |_| true).saturating_add(unclaimed) <= ceiling);
                if held[index] != before && before.provisioning == Provisioning::Thick {
                    let thick = all(&held, |p| p.provisioning == Provisioning::Thick);
                    prop_assert!(thick.saturating_add(unclaimed) <= terms.usable);
                }
                prop_assert!(before.holder != Holder::Volume || held[index].size <= terms.usable);
                if fails_on_disk {
                    // The disk did not have it after all: nothing of the growth stays.
                    let free = ledger(&held).free(before.provisioning);
                    held[index] = before.clone();
                    prop_assert!(ledger(&held).free(before.provisioning) >= free);
                }
            }
        }

        #[test]
        fn r12_what_is_published_as_room_is_taken_and_one_byte_more_is_not(
            terms in any_terms(),
            held in prop::collection::vec(any_promise(), 0..10),
            provisioning in prop_oneof![Just(Provisioning::Thin), Just(Provisioning::Thick)],
        ) {
            let ledger = Ledger::new(terms, held, Bytes::ZERO);
            let largest = ledger.room(provisioning).min(terms.usable);
            let promise = |size| Promise { holder: Holder::Volume, size, provisioning };
            prop_assert!(ledger.check(&promise(largest.saturating_add(Bytes(1)))).is_err());
            if largest > Bytes::ZERO {
                prop_assert_eq!(ledger.check(&promise(largest)), Ok(()));
                let less = ledger.clone().with(promise(largest)).room(provisioning);
                prop_assert!(less <= ledger.room(provisioning).saturating_sub(largest));
            }
        }
    }
}
