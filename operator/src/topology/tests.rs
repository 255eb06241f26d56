use cistern_crds::Bytes;

use super::*;
use crate::{
    contents::Count,
    testing::{moment, registered, storage_node, unregistered},
};

fn condition_of(conditions: &[Condition], kind: ConditionType) -> (&str, &str) {
    let condition = condition::find(conditions, kind).unwrap();
    (condition.status.as_str(), condition.reason.as_str())
}

#[test]
fn the_summary_names_the_first_thing_that_is_wrong() {
    let kept = Contents::default();
    let well = storage_node("w1")
        .carrying("fast")
        .with_room("fast", Bytes::gib(1));
    let broken = well.clone().broken("fast", Reason::ReadOnly).build();
    let well = well.build();
    let ready = |node: &StorageNode, registration: &Registration| {
        let (conditions, _) = summarize(node, registration, &kept, moment());
        let (status, reason) = condition_of(&conditions, ConditionType::Ready);
        (status.to_owned(), reason.to_owned())
    };
    let expected = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(
        ready(&well, &registered("w1")),
        expected("True", "Reconciled")
    );
    let unknown = ready(&well, &unregistered("w1"));
    assert_eq!(unknown, expected("False", "DriverNotRegistered"));
    assert_eq!(
        ready(&broken, &registered("w1")),
        expected("False", "ReadOnly")
    );
}

#[test]
fn r05_the_same_cluster_state_gives_equal_conditions_at_any_time() {
    let mut node = storage_node("w1").build();
    let kept = Contents::default();
    let first = summarize(&node, &registered("w1"), &kept, moment());
    assert_eq!(first.0.len(), 5);
    node.status
        .as_mut()
        .unwrap()
        .conditions
        .clone_from(&first.0);
    let later = moment() + chrono::Duration::hours(1);
    assert_eq!(summarize(&node, &registered("w1"), &kept, later), first);
}

#[test]
fn a_node_that_is_gone_with_data_says_what_it_holds_and_what_to_do() {
    let mut gone = registered("w1");
    gone.topology = ConditionUpdate::new(
        ConditionType::TopologyRegistered,
        false,
        Reason::NodeMissing,
        "there is no Node w1",
    );
    let node = storage_node("w1")
        .carrying("fast")
        .with_room("fast", Bytes::gib(1))
        .build();
    let mut kept = Contents::default();
    let message = |kept: &Contents| {
        let (conditions, _) = summarize(&node, &gone, kept, moment());
        let ready = condition::find(&conditions, ConditionType::Ready).unwrap();
        assert_eq!(ready.reason, "NodeGone");
        assert_eq!(
            condition_of(&conditions, ConditionType::Healthy),
            ("Unknown", "NodeGone")
        );
        ready.message.clone()
    };
    assert!(message(&kept).contains("is deleted automatically"));
    kept.add(Some("fast"), Count::VOLUME);
    kept.add(Some("fast"), Count::SNAPSHOT);
    let text = message(&kept);
    assert!(
        text.contains("1 volume and 1 snapshot in pool fast"),
        "{text}"
    );
    assert!(text.contains("kubectl cistern forget-node w1"), "{text}");
}

#[test]
fn a_deleted_storage_node_says_what_holds_it() {
    let mut node = storage_node("w1").carrying("fast").build();
    let held = |node: &StorageNode| {
        let (conditions, _) = summarize(node, &registered("w1"), &Contents::default(), moment());
        let (status, _) = condition_of(&conditions, ConditionType::DeletionHeld);
        status.to_owned()
    };
    assert_eq!(held(&node), "False");
    let time = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    node.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    assert_eq!(held(&node), "True");
}
