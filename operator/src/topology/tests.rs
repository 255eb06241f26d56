use cistern_crds::Bytes;
use serde_json::json;

use super::*;
use crate::{
    contents::Count,
    testing::{self, moment, registered, storage_node, unregistered},
};

fn csi_node(keys: &[&str]) -> CSINode {
    serde_json::from_value(json!({
        "metadata": {"name": "w1"},
        "spec": {"drivers": [{"name": names::DRIVER, "nodeID": "w1", "topologyKeys": keys}]},
    }))
    .unwrap()
}

fn pod(name: &str, ready: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"nodeName": "w1", "containers": []},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }))
    .unwrap()
}

fn told(conditions: &[Condition], kind: ConditionType) -> (&str, &str) {
    let condition = condition::find(conditions, kind).unwrap();
    (condition.status.as_str(), condition.reason.as_str())
}

#[test]
fn top_the_topology_is_registered_when_csi_node_and_label_show_it() {
    let node = testing::node("w1", &[(names::TOPOLOGY_KEY, "w1")]);
    let registered = csi_node(&[names::TOPOLOGY_KEY]);
    let reason =
        |node: Option<&Node>, csi_node: Option<&CSINode>| topology("w1", node, csi_node).reason;
    assert_eq!(reason(Some(&node), Some(&registered)), Reason::AsDesired);
    assert_eq!(reason(None, Some(&registered)), Reason::NodeMissing);
    assert_eq!(reason(Some(&node), None), Reason::DriverNotRegistered);
    let other_key = csi_node(&["kubernetes.io/hostname"]);
    assert_eq!(
        reason(Some(&node), Some(&other_key)),
        Reason::DriverNotRegistered
    );
    for labels in [&[][..], &[(names::TOPOLOGY_KEY, "w2")]] {
        let node = testing::node("w1", labels);
        assert_eq!(reason(Some(&node), Some(&registered)), Reason::LabelMissing);
    }
}

#[test]
fn an_agent_reports_while_one_of_its_pods_is_ready_and_not_leaving() {
    let ready = pod("a", "True");
    let starting = pod("b", "False");
    let mut leaving = pod("c", "True");
    let time = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    leaving.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    let reason = |pods: &[&Pod]| agent("w1", pods.iter().copied()).reason;
    assert_eq!(reason(&[&starting, &ready]), Reason::AsDesired);
    assert_eq!(reason(&[&starting]), Reason::AgentNotReady);
    assert_eq!(reason(&[&leaving]), Reason::AgentNotReady);
    assert_eq!(reason(&[]), Reason::AgentMissing);
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
        let (status, reason) = told(&conditions, ConditionType::Ready);
        (status.to_owned(), reason.to_owned())
    };
    let expected = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(
        ready(&well, &registered("w1")),
        expected("True", "AsDesired")
    );
    let unknown = ready(&well, &unregistered("w1"));
    assert_eq!(unknown, expected("False", "DriverNotRegistered"));
    assert_eq!(
        ready(&broken, &registered("w1")),
        expected("False", "ReadOnly")
    );
}

#[test]
fn r5_the_same_world_gives_equal_conditions_at_any_time() {
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
    gone.topology = topology("w1", None, None);
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
            told(&conditions, ConditionType::Healthy),
            ("Unknown", "NodeGone")
        );
        ready.message.clone()
    };
    assert!(message(&kept).contains("goes by itself"));
    kept.add(Some("fast"), Count::VOLUME);
    kept.add(Some("fast"), Count::SNAPSHOT);
    let told = message(&kept);
    assert!(
        told.contains("1 volume and 1 snapshot in pool fast"),
        "{told}"
    );
    assert!(told.contains("kubectl cistern forget-node w1"), "{told}");
}

#[test]
fn a_deleted_storage_node_says_what_holds_it() {
    let mut node = storage_node("w1").carrying("fast").build();
    let held = |node: &StorageNode| {
        let (conditions, _) = summarize(node, &registered("w1"), &Contents::default(), moment());
        let (status, _) = told(&conditions, ConditionType::DeletionHeld);
        status.to_owned()
    };
    assert_eq!(held(&node), "False");
    let time = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    node.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    assert_eq!(held(&node), "True");
}
