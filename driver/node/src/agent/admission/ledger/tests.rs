use cistern_crds::Reason;
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    usable: Bytes::gib(10),
    overcommit_percent: 200,
    volume_limit: 100,
    snapshot_limit: 3,
    snapshots_per_volume: 2,
    supported: Supported::Images,
};

/// The same pool without overcommitment.
const EXACT: Limits = Limits {
    overcommit_percent: 100,
    ..LIMITS
};

fn thin(size: Bytes) -> Reservation {
    Reservation {
        header: Bytes::ZERO,
        holder: Holder::Volume,
        size,
        provisioning: Provisioning::Thin,
    }
}

fn thick(size: Bytes) -> Reservation {
    Reservation {
        header: Bytes::ZERO,
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
fn a_volume_group_takes_thick_volumes_only_and_whole_extents_for_each() {
    let group = Limits {
        supported: Supported::LogicalVolumes {
            extent: Bytes::mib(4),
        },
        ..EXACT
    };
    let held = [thick(Bytes::mib(9)), thick(Bytes::mib(1))];
    let ledger = Ledger::new(group, held, Bytes::ZERO);
    assert_eq!(ledger.reserved(), Bytes::mib(16));
    assert_eq!(ledger.room(Provisioning::Thin), Bytes::ZERO);
    let refusal = ledger.check(&thin(Bytes::mib(1))).unwrap_err();
    assert_eq!(refusal.reason(), Reason::NotInVolumeGroup);
    let room = ledger.room(Provisioning::Thick);
    assert_eq!(room, Bytes::mib(10 * 1024 - 16));
    assert_eq!(ledger.check(&thick(room)), Ok(()));
    assert_eq!(ledger.check(&thick(Bytes(room.0 - 1))), Ok(()));
    ledger.check(&thick(Bytes(room.0 + 1))).unwrap_err();
    let held = Bytes::mib(12);
    let most = held.saturating_add(room);
    assert_eq!(ledger.check_growth(held, &thick(most)), Ok(()));
    ledger
        .check_growth(held, &thick(Bytes(most.0 + 1)))
        .unwrap_err();
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
        header: Bytes::ZERO,
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
        supported: Supported::Images,
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
        let reservation = |size| Reservation { holder: Holder::Volume, size, header: Bytes::ZERO, provisioning };
        prop_assert!(ledger.check(&reservation(largest.saturating_add(Bytes(1)))).is_err());
        if largest > Bytes::ZERO {
            prop_assert_eq!(ledger.check(&reservation(largest)), Ok(()));
            let less = ledger.clone().with(reservation(largest)).room(provisioning);
            prop_assert!(less <= ledger.room(provisioning).saturating_sub(largest));
        }
    }
}
