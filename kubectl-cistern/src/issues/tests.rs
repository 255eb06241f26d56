use cistern_crds::{
    Bytes,
    testing::{image_source, node_pool},
};

use super::*;
use crate::testing::{at, cluster, condition, object};

fn summaries(cluster: &Cluster) -> Vec<(Severity, &'static str, String, String)> {
    let all = all(cluster, at(600)).into_iter();
    all.map(|issue| (issue.severity, issue.kind, issue.name, issue.reason))
        .collect()
}

#[test]
fn each_issue_is_reported_once_and_the_most_severe_first() {
    let word = |(severity, kind, name, reason): (Severity, &'static str, &str, &str)| {
        (severity, kind, name.to_owned(), reason.to_owned())
    };
    let expected = [
        (Severity::Error, "Pool", "fast", "ProbeTimedOut"),
        (Severity::Error, "PoolVolume", "pvc-2", "ImageMissing"),
        (Severity::Warning, "Pool", "fast", "Orphans"),
        (Severity::Warning, "Claim", "shop/more", "NoSpace"),
    ];
    assert_eq!(summaries(&cluster()), expected.map(word));
}

#[test]
fn many_volumes_with_the_same_issue_are_combined() {
    let mut cluster = cluster();
    let broken = cluster.volumes[1].clone();
    cluster.volumes = (0..40)
        .map(|number| {
            let mut volume = broken.clone();
            volume.metadata.name = Some(format!("pvc-{number}"));
            volume
        })
        .collect();
    let all = all(&cluster, at(600));
    let volumes: Vec<usize> = all
        .iter()
        .filter(|issue| issue.kind == "PoolVolume")
        .map(|issue| issue.count)
        .collect();
    assert_eq!(volumes, [40]);
}

#[test]
fn an_object_that_cannot_be_read_is_an_issue_beside_those_of_the_others() {
    let mut cluster = cluster();
    let before = all(&cluster, at(600)).len();
    let pools = [crate::unreadable::tests::strange("strange")];
    assert_eq!(cluster.unreadable.sort_out(pools), []);
    let all = all(&cluster, at(600));
    assert_eq!(all.len(), before + 1);
    let mut issues = all.iter().filter(|issue| issue.reason == "Unreadable");
    let issue = issues.next().unwrap();
    assert_eq!(
        (issue.kind, issue.name.as_str()),
        ("StoragePool", "strange")
    );
    assert!(issue.message.contains("1e12"), "{}", issue.message);
}

#[test]
fn a_node_that_is_gone_has_one_issue_with_advice() {
    let advice = "Node n is gone: kubectl cistern forget-node n";
    let mut cluster = Cluster::default();
    cluster.nodes.push(object(serde_json::json!({
        "metadata": {"name": "n"}, "spec": {"topology": {}},
        "status": {"conditions": [
            condition("Ready", "False", "NodeGone", advice),
            condition("TopologyRegistered", "False", "NodeMissing", "there is no Node n"),
            condition("AgentReporting", "False", "AgentMissing", "no pod runs on n"),
        ], "pools": [{"name": "fast", "uid": "u", "conditions": [
            condition("Ready", "False", "ProbeTimedOut", "it was hung when it was last seen"),
        ]}]},
    })));
    let all = all(&cluster, at(600));
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(
        (all[0].reason.as_str(), all[0].message.as_str()),
        ("NodeGone", advice)
    );
}

#[test]
fn an_agent_that_does_not_report_is_an_issue_of_a_node_with_pools() {
    let mut cluster = Cluster::default();
    let pool = node_pool("fast", "u", image_source(Bytes::gib(1)));
    for (name, pools) in [("n", vec![pool]), ("bare", Vec::new())] {
        cluster.nodes.push(object(serde_json::json!({
            "metadata": {"name": name}, "spec": {"topology": {}, "pools": pools},
            "status": {"conditions": [
                condition("Ready", "False", "AgentNotReady", "the pod x is not ready"),
                condition("AgentReporting", "False", "AgentNotReady", "the pod x is not ready"),
            ]},
        })));
    }
    let expected = (
        Severity::Error,
        "StorageNode",
        "n".to_owned(),
        "AgentNotReady".to_owned(),
    );
    assert_eq!(summaries(&cluster), [expected]);
}

#[test]
fn a_claim_that_waits_for_its_first_consumer_is_no_issue() {
    let mut cluster = cluster();
    cluster.pods.clear();
    assert!(
        summaries(&cluster)
            .iter()
            .all(|(_, kind, ..)| *kind != "Claim")
    );
    // A class with immediate binding needs no consumer.
    cluster.classes[0].volume_binding_mode = Some("Immediate".to_owned());
    assert!(
        summaries(&cluster)
            .iter()
            .any(|(_, kind, ..)| *kind == "Claim")
    );
}

#[test]
fn a_copy_from_another_node_is_a_warning_until_it_cannot_go_on() {
    let mut cluster = cluster();
    let status = cluster.volumes[1].status.as_mut().unwrap();
    status.problems.clear();
    let severity = |reason: &str| {
        let mut cluster = cluster.clone();
        let status = cluster.volumes[1].status.as_mut().unwrap();
        status.conditions = vec![object(condition("Ready", "False", reason, "it is copied"))];
        let issues = summaries(&cluster).into_iter();
        let of_volume = |(_, kind, ..): &(_, &str, _, _)| *kind == "PoolVolume";
        issues
            .filter(of_volume)
            .map(|(severity, ..)| severity)
            .collect::<Vec<_>>()
    };
    assert_eq!(severity("Copying"), [Severity::Warning]);
    assert_eq!(severity("Zeroing"), [Severity::Warning]);
    assert_eq!(severity("SourceUnreachable"), [Severity::Error]);
}

#[test]
fn a_new_volume_may_be_pending_for_the_grace_period() {
    let mut cluster = cluster();
    cluster.volumes[1].status.as_mut().unwrap().problems.clear();
    let of_volumes = |now| {
        let all = all(&cluster, now).into_iter();
        all.filter(|issue| issue.kind == "PoolVolume").count()
    };
    assert_eq!(of_volumes(at(30)), 0);
    assert_eq!(of_volumes(at(90)), 1);
}
