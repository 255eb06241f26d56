use cistern_crds::{ConditionType, Encryption, Provisioning, SourceKind, node::NodeEncryption};
use proptest::{prelude::*, sample};

use super::*;
use crate::{
    objects::nodes::tests::{node, node_of_volume_group, set},
    volumes::{
        SourceReference,
        request::{Requirement, tests::wanted},
    },
};

/// Nodes by name and gibibytes of room, each with 10 GiB usable.
fn nodes(rooms: &[(&str, u64)]) -> Vec<Arc<StorageNode>> {
    rooms
        .iter()
        .map(|&(name, room)| Arc::new(node(name, Bytes::gib(room), Bytes::gib(10))))
        .collect()
}

fn places(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn request(gib: u64, requisite: Option<&[&str]>, preferred: &[&str]) -> NewVolume {
    let mut wanted = wanted("v");
    wanted.size.chosen = Bytes::gib(gib);
    wanted.requirement = Requirement {
        requisite: requisite.map(places),
        preferred: places(preferred),
    };
    wanted
}

fn refusal(node: &str, reason: Reason) -> Refusal {
    Refusal {
        node: node.to_owned(),
        pool: "fast".to_owned(),
        why: Explanation::new(reason, "the agent says no"),
    }
}

// Shows: TOP-23.
#[test]
fn top_06_top_21_top_24_the_order_of_the_request_decides() {
    let rooms = nodes(&[("a", 3), ("b", 5), ("c", 1), ("d", 5)]);
    let all = Some(&["a", "b", "c", "d"][..]);
    for (gib, requisite, preferred, expected) in [
        // First preferred, then the next preferred, then the rest in the order of requisite.
        (1, all, &["c", "a"][..], Some("c")),
        (2, all, &["c", "a"], Some("a")),
        (4, Some(&["d", "c", "b"][..]), &["c"], Some("d")),
        (2, Some(&["a", "b"][..]), &[], Some("a")),
        // Nothing outside requisite, nothing that does not exist.
        (2, Some(&["c"][..]), &["c"], None),
        (1, Some(&["gone", "b"][..]), &["gone"], Some("b")),
        (1, Some(&[][..]), &[], None),
        // Preferred alone is a preference (TOP-23); no requirement at all: the most room, then by name.
        (5, None, &["a"], Some("b")),
        (1, None, &[], Some("b")),
    ] {
        let choice = choose(&request(gib, requisite, preferred), &rooms, &[]);
        assert_eq!(
            choice.ok().map(|choice| choice.node).as_deref(),
            expected,
            "{gib}Gi in {requisite:?} by {preferred:?}"
        );
    }
}

#[test]
fn what_the_request_asks_for_first_is_explained_when_it_is_passed_over() {
    let rooms = nodes(&[("a", 1), ("b", 5)]);
    let all = Some(&["a", "b", "gone"][..]);
    let over = |preferred: &[&str]| {
        choose(&request(2, all, preferred), &rooms, &[])
            .unwrap()
            .passed_over
    };
    assert_eq!(over(&["b", "a"]), None);
    assert_eq!(over(&[]), None);
    assert_eq!(over(&["a", "b"]).unwrap(), "a has room for 1Gi");
    assert_eq!(
        over(&["gone", "b"]).unwrap(),
        "gone does not carry pool fast"
    );
}

#[test]
fn a_node_that_refused_is_not_asked_again() {
    let rooms = nodes(&[("a", 5), ("b", 4)]);
    let refused = [refusal("a", Reason::NoSpace)];
    let choice = choose(&request(1, None, &["a"]), &rooms, &refused).unwrap();
    assert_eq!(choice.node, "b");
    assert_eq!(choice.passed_over.unwrap(), "a refused: the agent says no");
}

#[test]
fn room_is_that_of_the_kind_and_overcommitment_makes_no_single_volume_fit() {
    let mut one = node("a", Bytes::gib(20), Bytes::gib(10));
    one.status.as_mut().unwrap().pools[0].thick_room = Bytes::gib(2);
    let nodes = [Arc::new(one)];
    let mut thick = request(3, None, &[]);
    thick.attributes.provisioning = Provisioning::Thick;
    assert!(matches!(
        choose(&thick, &nodes, &[]),
        Err(Error::NoRoom { .. })
    ));
    assert!(choose(&request(10, None, &[]), &nodes, &[]).is_ok());
    assert!(choose(&request(11, None, &[]), &nodes, &[]).is_err());
}

#[test]
fn a_volume_that_only_volume_groups_could_take_and_never_hold_is_told_what_to_change() {
    let group = Arc::new(node_of_volume_group("a", Bytes::gib(8)));
    let mut wanted = request(1, None, &[]);
    let refused = |wanted: &NewVolume, nodes: &[Arc<StorageNode>]| {
        let error = choose(wanted, nodes, &[]).unwrap_err();
        let is_final = matches!(error, Error::NotInVolumeGroup { .. });
        (is_final, error.to_string())
    };
    let only = std::slice::from_ref(&group);
    let (is_final, message) = refused(&wanted, only);
    assert!(
        is_final && message.contains("set provisioning: thick"),
        "{message}"
    );
    wanted.attributes.provisioning = Provisioning::Thick;
    assert_eq!(choose(&wanted, only, &[]).unwrap().node, "a");
    wanted.source = Some(SourceReference {
        kind: SourceKind::Volume,
        id: "pvc-1".into(),
    });
    let (is_final, message) = refused(&wanted, only);
    assert!(
        is_final && message.contains("no snapshots and clones"),
        "{message}"
    );

    // Another pool may have room later.
    let thin = request(4, None, &[]);
    let nodes = [group, Arc::new(node("b", Bytes::gib(1), Bytes::gib(10)))];
    let (is_final, message) = refused(&thin, &nodes);
    assert!(
        !is_final && message.contains("b has room for 1Gi"),
        "{message}"
    );
    let error = choose(&request(11, None, &[]), &nodes, &[]).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[test]
fn cv_10_gc_06_the_largest_encrypted_volume_leaves_room_for_its_header() {
    let mut wanted = request(10, None, &[]);
    wanted.encryption = Some(Encryption::Luks2);
    let largest = Bytes::gib(10).saturating_sub(wanted.header());
    let mut full = node("a", Bytes::gib(3), Bytes::gib(10));
    full.status.get_or_insert_default().encryption = Some(NodeEncryption::default());
    let full = [Arc::new(full)];
    let too_large = choose(&wanted, &full, &[]).unwrap_err();
    assert!(
        matches!(too_large, Error::TooLarge { largest: named, .. } if named == largest),
        "{too_large}"
    );
    wanted.size.chosen = largest;
    let no_room = choose(&wanted, &full, &[]).unwrap_err();
    assert!(matches!(no_room, Error::NoRoom { .. }), "{no_room}");
}

#[test]
fn cv_08_cv_09_no_pool_is_chosen_that_rounds_the_size_above_the_limit() {
    let mut wanted = request(1, None, &[]);
    wanted.attributes.provisioning = Provisioning::Thick;
    wanted.size.chosen = Bytes::mib(17);
    wanted.size.limit = Some(Bytes::mib(17));
    let mut group = node_of_volume_group("a", Bytes::gib(1));
    group.status.as_mut().unwrap().pools[0].size_unit = Some(Bytes::mib(4));
    let only = [Arc::new(group.clone())];
    let error = choose(&wanted, &only, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "pool fast cannot have a volume of 17Mi within the limit of 17Mi: the smallest is 20Mi"
    );
    // A pool with another unit, or a larger limit.
    let images = node("b", Bytes::gib(1), Bytes::gib(1));
    let both = [Arc::new(group), Arc::new(images)];
    assert_eq!(choose(&wanted, &both, &[]).unwrap().node, "b");
    wanted.size.limit = Some(Bytes::mib(20));
    assert_eq!(choose(&wanted, &only, &[]).unwrap().node, "a");
}

#[test]
fn cv_10_gc_06_too_large_is_said_only_when_every_node_that_carries_the_pool_knows_it() {
    let full = nodes(&[("a", 0), ("b", 3)]);
    let too_large = choose(&request(11, None, &[]), &full, &[]).unwrap_err();
    assert!(
        too_large.to_string().contains("the largest volume is 10Gi"),
        "{too_large}"
    );
    assert!(matches!(too_large, Error::TooLarge { .. }));
    let no_room = choose(&request(10, None, &[]), &full, &[]).unwrap_err();
    assert!(
        no_room
            .to_string()
            .contains("a has room for 0; b has room for 3Gi")
            || no_room
                .to_string()
                .contains("b has room for 3Gi; a has room for 0"),
        "{no_room}"
    );

    // A node that does not report may be larger.
    let mut silent = node("s", Bytes::gib(1), Bytes::gib(1));
    set(
        &mut silent.status.as_mut().unwrap().conditions,
        ConditionType::AgentReporting,
        false,
    );
    let with_silent = [full.clone(), vec![Arc::new(silent)]].concat();
    let error = choose(&request(11, None, &[]), &with_silent, &[]).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");

    // So may one whose agent refused for another reason.
    let refused = [
        refusal("a", Reason::NoSpace),
        refusal("b", Reason::TooLarge),
    ];
    let error = choose(&request(10, None, &[]), &full, &refused).unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    let refused = [
        refusal("a", Reason::TooLarge),
        refusal("b", Reason::TooLarge),
    ];
    let error = choose(&request(10, None, &[]), &full, &refused).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[test]
fn cv_16_a_pool_that_no_allowed_node_carries_is_no_room_because_it_may_be_declared_later() {
    let mut elsewhere = request(1, None, &[]);
    elsewhere.pools = PoolNames::only("slow");
    let error = choose(&elsewhere, &nodes(&[("a", 5)]), &[]).unwrap_err();
    assert!(matches!(&error, Error::NoRoom { why, .. } if why.contains("carries pool slow")));
    assert!(matches!(
        choose(&elsewhere, &[], &[]),
        Err(Error::NoRoom { .. })
    ));
}

#[test]
fn top_13_a_node_with_a_long_name_is_found_by_its_hash() {
    let long = "n".repeat(70);
    let value = names::topology_value(&long);
    let choice = choose(
        &request(1, Some(&[&value]), &[&value]),
        &nodes(&[(&long, 5)]),
        &[],
    );
    assert_eq!(
        choice.unwrap(),
        Choice {
            node: long,
            pool: "fast".to_owned(),
            passed_over: None
        }
    );
}

#[test]
fn an_error_over_many_nodes_stays_short() {
    let names: Vec<String> = (0..100).map(|n| format!("node-{n:03}")).collect();
    let many: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let error = choose(&request(5, None, &[]), &nodes(&many), &[]).unwrap_err();
    assert!(error.to_string().len() < 400 && error.to_string().contains("and 96 more"));
}

/// A node that carries `pools`, by name and gibibytes of room.
fn node_of(name: &str, pools: &[(&str, u64)]) -> Arc<StorageNode> {
    let mut made = node(name, Bytes::ZERO, Bytes::gib(10));
    let entry = made.spec.pools.remove(0);
    let status = made.status.as_mut().unwrap();
    let report = status.pools.remove(0);
    for &(pool, room) in pools {
        let uid = format!("uid-{pool}");
        let mut entry = entry.clone();
        (entry.name, entry.uid) = (pool.to_owned(), uid.clone());
        made.spec.pools.push(entry);
        let mut report = report.clone();
        (report.name, report.uid) = (pool.to_owned(), uid);
        (report.thin_room, report.thick_room) = (Bytes::gib(room), Bytes::gib(room));
        status.pools.push(report);
    }
    Arc::new(made)
}

/// A request for a volume of a class with two pools.
fn of_two_pools(gib: u64, preferred: &[&str]) -> NewVolume {
    let mut wanted = request(gib, None, preferred);
    wanted.pools = "nvme-0,nvme-1".parse().unwrap();
    wanted
}

fn place(choice: &Choice) -> (&str, &str) {
    (&choice.node, &choice.pool)
}

// Shows: TOP-06, TOP-24.
#[test]
fn of_several_pools_the_one_with_the_most_room_on_the_first_node_that_fits_is_chosen() {
    let nodes = [
        node_of("a", &[("nvme-0", 2), ("nvme-1", 4)]),
        node_of("b", &[("nvme-0", 9), ("nvme-1", 1)]),
        node_of("c", &[("nvme-1", 7), ("other", 10)]),
    ];
    for (gib, preferred, expected) in [
        (1, &["a", "b"][..], Some(("a", "nvme-1"))),
        (4, &["a", "b"], Some(("a", "nvme-1"))),
        (5, &["a", "c", "b"], Some(("c", "nvme-1"))),
        (1, &[], Some(("b", "nvme-0"))),
        (9, &[], Some(("b", "nvme-0"))),
        (10, &[], None),
    ] {
        let choice = choose(&of_two_pools(gib, preferred), &nodes, &[]).ok();
        assert_eq!(
            choice.as_ref().map(place),
            expected,
            "{gib}Gi by {preferred:?}"
        );
    }
    // Of equal pools, the first of the class.
    let equal = [node_of("a", &[("nvme-1", 3), ("nvme-0", 3)])];
    let choice = choose(&of_two_pools(1, &[]), &equal, &[]).unwrap();
    assert_eq!(place(&choice), ("a", "nvme-0"));
}

#[test]
fn a_node_whose_published_capacity_shows_room_is_chosen_again_also_if_a_copy_has_none_there() {
    let mut copy = of_two_pools(4, &["a"]);
    copy.size.required = Bytes::gib(1);
    copy.source = Some(SourceReference {
        kind: SourceKind::Snapshot,
        id: "snapshot-1".into(),
    });
    let shown = |rooms: [u64; 2], refusals: &[Refusal]| {
        let [first, second] = rooms;
        let nodes = [node_of("a", &[("nvme-0", first), ("nvme-1", second)])];
        has_published_room(&copy, "a", &nodes, refusals)
    };
    assert!(shown([0, 5], &[]), "the other pool has room");
    assert!(shown([2, 0], &[]), "the claim is smaller than the source");
    assert!(!shown([0, 0], &[]));
    let refusal = Refusal {
        pool: "nvme-1".to_owned(),
        ..refusal("a", Reason::NoSpace)
    };
    assert!(
        !shown([0, 5], &[refusal]),
        "the capacity is not published yet"
    );
    let groups = [Arc::new(node_of_volume_group("a", Bytes::gib(5)))];
    copy.pools = PoolNames::only("fast");
    copy.attributes.provisioning = Provisioning::Thick;
    assert!(choose(&copy, &groups, &[]).is_err(), "it has no copies");
    assert!(has_published_room(&copy, "a", &groups, &[]));
}

#[test]
fn another_pool_of_the_node_is_used_when_one_is_cordoned_not_ready_or_has_refused() {
    type Change = fn(&mut StorageNode);
    let changes: [Change; 3] = [
        |node| node.spec.pools[0].cordoned = true,
        |node| node.spec.pools[0].retiring = true,
        |node| {
            let pool = &mut node.status.as_mut().unwrap().pools[0];
            set(&mut pool.conditions, ConditionType::Ready, false);
        },
    ];
    let whole = node_of("a", &[("nvme-0", 5), ("nvme-1", 3)]);
    let wanted = of_two_pools(1, &["a"]);
    for change in changes {
        let mut broken = (*whole).clone();
        change(&mut broken);
        let choice = choose(&wanted, &[Arc::new(broken)], &[]).unwrap();
        assert_eq!(place(&choice), ("a", "nvme-1"));
        assert_eq!(choice.passed_over, None, "it is the preferred node");
    }
    let mut full = refusal("a", Reason::NoSpace);
    full.pool = "nvme-0".to_owned();
    let choice = choose(&wanted, &[whole], &[full]).unwrap();
    assert_eq!(place(&choice), ("a", "nvme-1"));
}

#[test]
fn an_error_names_the_reason_of_each_pool() {
    let mut cordoned = (*node_of("a", &[("nvme-0", 3), ("nvme-1", 5)])).clone();
    cordoned.spec.pools[1].cordoned = true;
    let nodes = [Arc::new(cordoned), node_of("b", &[("nvme-0", 2)])];
    let error = choose(&of_two_pools(4, &["a"]), &nodes, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no node can take a volume of 4Gi from any of the pools nvme-0, nvme-1: \
         a has room for 3Gi in pool nvme-0, \
         pool nvme-1 is cordoned there: `kubectl cistern uncordon`; \
         b has room for 2Gi in pool nvme-0"
    );
    let mut full = refusal("b", Reason::NoSpace);
    full.pool = "nvme-0".to_owned();
    let error = choose(&of_two_pools(2, &["b"]), &nodes[1..], &[full]).unwrap_err();
    let refused = "b refused in pool nvme-0: the agent says no";
    assert!(error.to_string().ends_with(refused), "{error}");
}

#[test]
fn what_keeps_all_pools_of_a_node_from_use_is_said_once() {
    let mut silent = (*node_of("a", &[("nvme-0", 3), ("nvme-1", 5)])).clone();
    set(
        &mut silent.status.as_mut().unwrap().conditions,
        ConditionType::AgentReporting,
        false,
    );
    let error = choose(&of_two_pools(1, &[]), &[Arc::new(silent)], &[]).unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text.matches("its agent does not report").count(),
        1,
        "{text}"
    );
}

// Shows: CV-10, GC-06.
#[test]
fn no_volume_is_larger_than_the_largest_pool_of_its_class() {
    let nodes = [node_of("a", &[("nvme-0", 10), ("nvme-1", 10)])];
    let error = choose(&of_two_pools(11, &[]), &nodes, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "11Gi is more than any node can hold in any of the pools nvme-0, nvme-1: \
         the largest volume is 10Gi"
    );
}

#[test]
fn an_error_names_every_pool_of_one_node_if_the_class_has_many() {
    let names: Vec<String> = (0..16).map(|number| format!("nvme-{number}")).collect();
    let pools: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let nodes = ["a", "b", "c"].map(|name| node_of(name, &pools));
    let mut wanted = request(5, None, &[]);
    wanted.pools = names.join(",").parse().unwrap();
    let text = choose(&wanted, &nodes, &[]).unwrap_err().to_string();
    assert_eq!(text.matches("has room for 1Gi").count(), 16, "{text}");
    assert!(
        text.ends_with("; and 2 more") && text.len() < 1024,
        "{text}"
    );
}

fn some_of(names: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    sample::subsequence(names, 0..=names.len()).prop_shuffle()
}

proptest! {
    #[test]
    fn whatever_is_asked_for_the_choice_is_allowed_has_room_and_nothing_that_fits_comes_before_it(
        rooms in prop::collection::vec(0..10_u64, 5),
        gib in 1..12_u64,
        requisite in prop::option::of(some_of(&["a", "b", "c", "d", "gone"])),
        preferred in some_of(&["a", "b", "c", "d", "e", "gone"]),
        refused in some_of(&["a", "b", "c", "d", "e"]),
    ) {
        let named: Vec<_> = ["a", "b", "c", "d", "e"].into_iter().zip(rooms).collect();
        let refusals: Vec<_> = refused.iter().map(|&node| refusal(node, Reason::NoSpace)).collect();
        let fits = |node: &str| {
            named.iter().any(|&(name, room)| name == node && room >= gib)
                && !refused.contains(&node)
                && requisite.as_ref().is_none_or(|requisite| requisite.contains(&node))
        };
        let wanted = request(gib, requisite.as_deref(), &preferred);
        match choose(&wanted, &nodes(&named), &refusals) {
            Ok(Choice { node, passed_over, .. }) => {
                prop_assert!(fits(&node));
                let first = preferred.iter().find(|place| fits(place));
                prop_assert!(first.is_none_or(|first| *first == node));
                let is_first = preferred.first().is_none_or(|first| *first == node);
                prop_assert_eq!(passed_over.is_none(), is_first);
            }
            Err(_) => prop_assert!(!named.iter().any(|(name, _)| fits(name))),
        }
    }
}
