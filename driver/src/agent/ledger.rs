//! The ledger of one pool on this node: what is promised, and whether one more volume fits.
//!
//! Pure arithmetic over what the custom resources say; derived anew each time, so it cannot drift.
//!
//! A growth that is asked for counts from its admission on, and one that is refused counts nothing.
//!
//! *Invariant:* promises to all volumes together stay within `usable × overcommit`, those to thick
//! volumes within `usable`, and no single volume is larger than `usable` (R12). Whatever lies on
//! the disk and belongs to no custom resource counts as if it were thick.

use cistern_crds::{Bytes, Provisioning, Reason};

/// What a pool can promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Space for volumes: what was free in the empty pool, less what is kept back.
    pub usable: Bytes,
    /// How much may be promised in all, in hundredths of `usable`.
    pub overcommit_percent: u32,
    /// Volumes.
    pub volume_limit: u32,
}

impl Terms {
    /// Of a pool with `empty` bytes free when it was made or grown.
    pub fn new(empty: Bytes, pool: &cistern_crds::NodePool) -> Self {
        let kept_back = empty.percent(pool.reserved_percent);
        Self {
            usable: empty.saturating_sub(kept_back).round_down_to_mib(),
            overcommit_percent: pool.overcommit_percent,
            volume_limit: pool.limits.volumes,
        }
    }
}

/// A promise to one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Size of the volume.
    pub size: Bytes,
    /// Whether the bytes are allocated at once.
    pub provisioning: Provisioning,
}

/// Why a volume is not taken.
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
        /// What is left for volumes of this kind.
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
    /// As many volumes as the pool's limit allows.
    #[error("the pool holds {limit} volumes on this node, its limit")]
    VolumeLimitReached {
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
            Self::VolumeLimitReached { .. } => Reason::VolumeLimitReached,
        }
    }
}

/// What one pool on this node has promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    terms: Terms,
    promised: Bytes,
    promised_thick: Bytes,
    volumes: u32,
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
            promised_thick: unclaimed,
            volumes: 0,
        };
        promises.into_iter().fold(empty, Self::with)
    }

    /// With one more promise, however large.
    #[must_use]
    pub fn with(self, promise: Promise) -> Self {
        let thick = match promise.provisioning {
            Provisioning::Thin => Bytes::ZERO,
            Provisioning::Thick => promise.size,
        };
        Self {
            terms: self.terms,
            promised: self.promised.saturating_add(promise.size),
            promised_thick: self.promised_thick.saturating_add(thick),
            volumes: self.volumes.saturating_add(1),
        }
    }

    /// Space for volumes.
    pub fn usable(&self) -> Bytes {
        self.terms.usable
    }

    /// Bytes promised in all.
    pub fn promised(&self) -> Bytes {
        self.promised
    }

    /// Volumes with a promise.
    pub fn volumes(&self) -> u32 {
        self.volumes
    }

    /// Room for more volumes of a kind, all together.
    pub fn room(&self, provisioning: Provisioning) -> Bytes {
        if self.volumes >= self.terms.volume_limit {
            return Bytes::ZERO;
        }
        self.free(provisioning)
    }

    /// Bytes that can still be promised, to whichever volume.
    fn free(&self, provisioning: Provisioning) -> Bytes {
        let ceiling = self.terms.usable.percent(self.terms.overcommit_percent);
        let thin = ceiling.saturating_sub(self.promised);
        match provisioning {
            Provisioning::Thin => thin,
            Provisioning::Thick => thin.min(self.terms.usable.saturating_sub(self.promised_thick)),
        }
    }

    /// Whether one more volume fits.
    pub fn check(&self, promise: Promise) -> Result<(), Refusal> {
        let Promise { size, provisioning } = promise;
        let Terms {
            usable,
            volume_limit: limit,
            ..
        } = self.terms;
        if size > usable {
            return Err(Refusal::TooLarge { size, usable });
        }
        if self.volumes >= limit {
            return Err(Refusal::VolumeLimitReached { limit });
        }
        let room = self.room(provisioning);
        if size > room {
            return Err(Refusal::NoSpace { size, room });
        }
        Ok(())
    }

    /// Whether a volume of this ledger, to which `held` is promised, can have more.
    pub fn check_growth(&self, held: Bytes, wanted: Promise) -> Result<(), Refusal> {
        let (size, usable) = (wanted.size, self.terms.usable);
        let reach = held.saturating_add(self.free(wanted.provisioning));
        let largest = usable.min(reach).round_down_to_mib().max(held);
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
    };

    fn thin(size: Bytes) -> Promise {
        Promise {
            size,
            provisioning: Provisioning::Thin,
        }
    }

    fn thick(size: Bytes) -> Promise {
        Promise {
            size,
            provisioning: Provisioning::Thick,
        }
    }

    #[test]
    fn overcommitment_is_for_thin_volumes_alone() {
        let ledger = Ledger::new(
            TERMS,
            [thick(Bytes::gib(6)), thin(Bytes::gib(10))],
            Bytes::ZERO,
        );
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::gib(4));
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::gib(4));
        let ledger = Ledger::new(TERMS, [thick(Bytes::gib(6))], Bytes::ZERO);
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::gib(14));
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::gib(4));
        // Thin promises take from what thick ones may have only through the ceiling of all.
        let ledger = Ledger::new(TERMS, [thin(Bytes::gib(10)); 2], Bytes::ZERO);
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::ZERO);
    }

    #[test]
    fn one_volume_is_never_larger_than_the_pool_whatever_the_overcommitment() {
        let ledger = Ledger::new(TERMS, [], Bytes::ZERO);
        let size = Bytes::gib(10).saturating_add(Bytes::mib(1));
        let refusal = ledger.check(thin(size)).unwrap_err();
        assert_eq!(refusal.reason(), Reason::TooLarge);
        assert!(refusal.to_string().contains("10Gi"), "{refusal}");
        assert_eq!(ledger.check(thin(Bytes::gib(10))), Ok(()));
    }

    #[test]
    fn the_limit_on_volumes_leaves_no_room_at_all() {
        let terms = Terms {
            volume_limit: 1,
            ..TERMS
        };
        let ledger = Ledger::new(terms, [thin(Bytes::mib(1))], Bytes::ZERO);
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::ZERO);
        let refusal = ledger.check(thin(Bytes::mib(1))).unwrap_err();
        assert_eq!(refusal.reason(), Reason::VolumeLimitReached);
    }

    #[test]
    fn images_that_nobody_claims_take_room_from_both_kinds() {
        let ledger = Ledger::new(TERMS, [], Bytes::gib(3));
        assert_eq!(ledger.room(Provisioning::Thick), Bytes::gib(7));
        assert_eq!(ledger.room(Provisioning::Thin), Bytes::gib(17));
        assert_eq!(ledger.volumes(), 0);
    }

    #[test]
    fn cev_07_a_volume_grows_as_far_as_there_is_room_and_a_refusal_says_how_far() {
        let held = Bytes::gib(4);
        let ledger = Ledger::new(TERMS, [thick(held), thick(Bytes::gib(3))], Bytes::ZERO);
        assert_eq!(ledger.check_growth(held, thick(Bytes::gib(7))), Ok(()));
        let more = Bytes::gib(7).saturating_add(Bytes(1));
        let refusal = ledger.check_growth(held, thick(more)).unwrap_err();
        assert_eq!(refusal.reason(), Reason::NoSpace);
        assert!(refusal.to_string().contains("grow to 7Gi"), "{refusal}");
        // Overcommitted, the pool has more to promise, but one volume has its bounds.
        assert_eq!(ledger.check_growth(held, thin(Bytes::gib(10))), Ok(()));
        let refusal = ledger.check_growth(held, thin(Bytes::gib(11))).unwrap_err();
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
        assert_eq!(ledger.check_growth(Bytes::gib(1), grown), Ok(()));
        // The pool was promised away more than it has now: its overcommitment was lowered.
        let ledger = Ledger::new(TERMS, [thin(Bytes::gib(12)); 2], Bytes::ZERO);
        let refusal = ledger.check_growth(Bytes::gib(12), thin(Bytes::gib(13)));
        let refusal = refusal.unwrap_err();
        assert!(refusal.to_string().contains("grow to 12Gi"), "{refusal}");
    }

    fn any_promise() -> impl Strategy<Value = Promise> {
        let kind = prop_oneof![Just(Provisioning::Thin), Just(Provisioning::Thick)];
        (0..20_u64 << 30, kind).prop_map(|(size, provisioning)| Promise {
            size: Bytes(size),
            provisioning,
        })
    }

    fn any_terms() -> impl Strategy<Value = Terms> {
        (0..64_u64 << 30, 100..1000_u32, 0..20_u32).prop_map(|(usable, percent, limit)| Terms {
            usable: Bytes(usable),
            overcommit_percent: percent,
            volume_limit: limit,
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
                let ledger = Ledger::new(terms, held.iter().copied(), unclaimed);
                if ledger.check(promise).is_err() {
                    continue;
                }
                held.push(promise);
                let all: Bytes = held.iter().map(|p| p.size).sum();
                let thick: Bytes = held
                    .iter()
                    .filter(|p| p.provisioning == Provisioning::Thick)
                    .map(|p| p.size)
                    .sum();
                let ceiling = terms.usable.percent(terms.overcommit_percent);
                prop_assert!(all.saturating_add(unclaimed) <= ceiling);
                if promise.provisioning == Provisioning::Thick {
                    prop_assert!(thick.saturating_add(unclaimed) <= terms.usable);
                }
                prop_assert!(promise.size <= terms.usable);
                prop_assert!(held.len() <= terms.volume_limit as usize);
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
            let ledger = |held: &[Promise]| Ledger::new(terms, held.iter().copied(), unclaimed);
            let mut held: Vec<Promise> = Vec::new();
            for promise in made {
                if ledger(&held).check(promise).is_ok() {
                    held.push(promise);
                }
            }
            if held.is_empty() {
                return Ok(());
            }
            for (index, size, fails_on_disk) in steps {
                let index = index.index(held.len());
                let before = held[index];
                let wanted = Promise { size: Bytes(size).max(before.size), ..before };
                match ledger(&held).check_growth(before.size, wanted) {
                    Ok(()) => held[index] = wanted,
                    Err(Refusal::Growth { largest, .. }) => {
                        // What it says can be had, and not one step more.
                        let most = Promise { size: largest, ..before };
                        prop_assert!(ledger(&held).check_growth(before.size, most).is_ok());
                        let more = Promise { size: largest.saturating_add(Bytes::mib(1)), ..before };
                        prop_assert!(ledger(&held).check_growth(before.size, more).is_err());
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
                prop_assert!(held[index].size <= terms.usable);
                if fails_on_disk {
                    // The disk did not have it after all: nothing of the growth stays.
                    let free = ledger(&held).free(before.provisioning);
                    held[index] = before;
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
            let promise = |size| Promise { size, provisioning };
            prop_assert!(ledger.check(promise(largest.saturating_add(Bytes(1)))).is_err());
            if largest > Bytes::ZERO {
                prop_assert_eq!(ledger.check(promise(largest)), Ok(()));
                let less = ledger.with(promise(largest)).room(provisioning);
                prop_assert!(less <= ledger.room(provisioning).saturating_sub(largest));
            }
        }
    }
}
