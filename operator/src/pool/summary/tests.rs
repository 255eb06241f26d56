use cistern_crds::{ConditionType, Reason};

use super::{conditions::enumerate, *};
use crate::{
    contents::Count,
    testing::{moment, storage_node},
};

const READY: PoolNodeState = PoolNodeState::Ready { cordoned: false };

fn declaration() -> Declaration {
    Declaration {
        name: "fast".to_owned(),
        generation: Some(3),
        deleted: false,
        invalid: None,
        is_image: true,
        overcommit: None,
    }
}

fn share(node: &str, state: PoolNodeState, room: Option<Bytes>) -> Arc<Share> {
    let status = room.and_then(|room| {
        let node = storage_node(node).with_room("fast", room).build();
        node.status.unwrap().pools.pop()
    });
    Arc::new(Share {
        node: node.to_owned(),
        state,
        health: PoolHealth::Healthy,
        status,
    })
}

fn refusal(message: &str) -> PoolNodeState {
    PoolNodeState::NotReady(Explanation {
        reason: Reason::AgentNotReady,
        message: message.to_owned(),
    })
}

fn kept(counts: &[(&str, usize, usize)]) -> Contents {
    let mut contents = Contents::default();
    for (node, volumes, snapshots) in counts {
        let (volumes, snapshots) = (*volumes, *snapshots);
        contents.add(Some(node), Count { volumes, snapshots });
    }
    contents
}

fn status(declaration: &Declaration, shares: &[Arc<Share>], kept: &Contents) -> StoragePoolStatus {
    summarize(
        declaration,
        &StoragePoolStatus::default(),
        shares,
        kept,
        moment(),
    )
}

fn condition_of(status: &StoragePoolStatus, kind: ConditionType) -> (String, String, String) {
    let condition = condition::find(&status.conditions, kind).unwrap().clone();
    (condition.status, condition.reason, condition.message)
}

#[test]
fn the_sum_of_the_nodes_is_the_pool() {
    let shares = [
        share("w1", READY, Some(Bytes::gib(4))),
        share("w2", READY, Some(Bytes::gib(7))),
        share("w3", refusal("pod x on w3 is not ready"), None),
    ];
    let status = status(&declaration(), &shares, &kept(&[]));
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!((status.nodes, status.nodes_ready), (3, 2));
    assert_eq!(status.nodes_summary, "2/3");
    assert_eq!(
        (status.usable, status.reserved),
        (Bytes::gib(20), Bytes::gib(9))
    );
    assert_eq!((status.used, status.free), (Bytes::gib(2), Bytes::gib(18)));
    assert_eq!(status.largest_volume, Bytes::gib(7));
    let (holds, reason, message) = condition_of(&status, ConditionType::Ready);
    assert_eq!(
        (holds.as_str(), reason.as_str()),
        ("False", "NodesNotReady")
    );
    assert_eq!(
        message,
        "1 of 3 nodes are not ready: w3: pod x on w3 is not ready"
    );
}

#[test]
fn the_largest_volume_of_a_volume_group_is_a_thick_one() {
    let mut one = Share::clone(&share("w1", READY, Some(Bytes::gib(4))));
    let reported = one.status.as_mut().unwrap();
    (reported.thin_room, reported.thick_room) = (Bytes::ZERO, Bytes::gib(3));
    let status = status(&declaration(), &[Arc::new(one)], &kept(&[]));
    assert_eq!(status.largest_volume, Bytes::gib(3));
}

#[test]
fn r05_the_same_cluster_state_gives_an_equal_status_at_any_time() {
    let shares = [share("w1", READY, Some(Bytes::gib(4)))];
    let first = status(&declaration(), &shares, &kept(&[]));
    let later = moment() + chrono::Duration::hours(1);
    let second = summarize(&declaration(), &first, &shares, &kept(&[]), later);
    assert_eq!(first, second);
}

#[test]
fn a_node_that_leaves_is_named_with_what_it_holds() {
    let shares = [
        share("w1", READY, Some(Bytes::gib(4))),
        share(
            "w2",
            PoolNodeState::Leaving {
                node_is_gone: false,
            },
            Some(Bytes::gib(4)),
        ),
    ];
    let status = status(&declaration(), &shares, &kept(&[("w2", 2, 1)]));
    let (holds, reason, message) = condition_of(&status, ConditionType::Ready);
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "Retiring"));
    assert!(
        message.contains("w2 (holds 2 volumes and 1 snapshot)"),
        "{message}"
    );
    assert_eq!((status.nodes, status.nodes_ready), (1, 1));
}

#[test]
fn a_node_that_is_gone_is_no_room_and_the_pool_says_what_to_do() {
    let gone = PoolNodeState::Leaving { node_is_gone: true };
    let shares = [
        share("w1", READY, Some(Bytes::gib(4))),
        share("w2", gone, Some(Bytes::gib(4))),
    ];
    let left = kept(&[("w2", 2, 1)]);
    let found = status(&declaration(), &shares, &left);
    assert_eq!(
        (found.usable, found.reserved),
        (Bytes::gib(10), Bytes::gib(6))
    );
    let (holds, reason, message) = condition_of(&found, ConditionType::Ready);
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "NodeGone"));
    let advice = "kubectl cistern forget-node w2";
    assert!(
        message.contains("2 volumes and 1 snapshot") && message.contains(advice),
        "{message}"
    );
    let deleted = Declaration {
        deleted: true,
        ..declaration()
    };
    let held = status(&deleted, &shares, &left);
    let (_, reason, message) = condition_of(&held, ConditionType::DeletionHeld);
    assert_eq!(reason, "VolumesRemain");
    assert!(message.contains(advice), "{message}");
}

#[test]
fn a_pool_that_is_cordoned_on_a_node_is_ready_and_says_so() {
    let cordoned = PoolNodeState::Ready { cordoned: true };
    let shares = [
        share("w1", READY, Some(Bytes::gib(4))),
        share("w2", cordoned, Some(Bytes::ZERO)),
    ];
    let status = status(&declaration(), &shares, &kept(&[]));
    let (holds, reason, message) = condition_of(&status, ConditionType::Ready);
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "Reconciled"));
    assert_eq!(message, "2 of 2 nodes are ready; cordoned: w2");
    assert_eq!(status.nodes_summary, "2/2");
}

#[test]
fn a_selector_without_nodes_and_an_invalid_spec_have_different_reasons() {
    let no_nodes = status(&declaration(), &[], &kept(&[]));
    assert_eq!(condition_of(&no_nodes, ConditionType::Ready).1, "NoNodes");
    let invalid = Declaration {
        invalid: Some(InvalidDeclaration::ValuesMissing(
            "disk".into(),
            "In".into(),
        )),
        ..declaration()
    };
    let (_, reason, message) =
        condition_of(&status(&invalid, &[], &kept(&[])), ConditionType::Ready);
    assert_eq!(reason, "InvalidSpec");
    assert!(message.contains("disk In needs values"), "{message}");
}

#[test]
fn a_deletion_that_is_held_says_how_much_is_kept_where_and_what_to_do() {
    let deleted = Declaration {
        deleted: true,
        ..declaration()
    };
    let shares = [share(
        "w1",
        PoolNodeState::Leaving {
            node_is_gone: false,
        },
        Some(Bytes::gib(4)),
    )];
    let held = status(
        &deleted,
        &shares,
        &kept(&[("w1", 2, 0), ("w2", 1, 4), ("w3", 0, 1)]),
    );
    let (holds, reason, message) = condition_of(&held, ConditionType::DeletionHeld);
    assert_eq!((holds.as_str(), reason.as_str()), ("True", "VolumesRemain"));
    for part in [
        "3 volumes and 5 snapshots in the pool",
        "2 volumes on w1; 1 volume and 4 snapshots on w2; 1 snapshot on w3",
        "delete their claims and VolumeSnapshots",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let draining = status(&deleted, &shares, &kept(&[]));
    let (_, reason, message) = condition_of(&draining, ConditionType::DeletionHeld);
    assert_eq!(reason, "Retiring");
    assert!(message.contains("w1 (empty, being removed)"), "{message}");
    let nodes_many: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    assert_eq!(enumerate(&nodes_many), "0; 1; 2; 3; and 5 more");
}
