use cistern_crds::names;
use serde_json::{Value, json};

use super::*;
use crate::testing::node;

/// A PersistentVolume on node-1 that has to stay in a zone.
fn persistent_volume(claim: &str) -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {"name": "pvc-1"},
        "spec": {
            "claimRef": {"namespace": "shop", "name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": names::TOPOLOGY_KEY, "operator": "In", "values": ["node-1"]},
                {"key": "zone", "operator": "In", "values": ["a", "b"]},
            ]}]}},
        },
    }))
    .unwrap()
}

/// A pod with these fields of its spec that uses the claim `data`, and that a StatefulSet makes again.
fn pod(fields: &Value) -> Pod {
    let mut spec = fields.clone();
    spec["containers"] = json!([]);
    spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u",
        "controller": true,
    });
    serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "db-0", "ownerReferences": [owner]},
        "spec": spec,
    }))
    .unwrap()
}

/// A node with further labels.
fn node_2(labels: &[(&str, &str)]) -> Node {
    let own = [(names::TOPOLOGY_KEY, "node-2")];
    node("node-2", &[&own[..], labels].concat())
}

/// A node in a zone of the volume that has a taint.
fn tainted(taint: Value) -> Node {
    let mut node = node_2(&[("zone", "a")]);
    let taint: Taint = serde_json::from_value(taint).unwrap();
    node.spec.get_or_insert_default().taints = Some(vec![taint]);
    node
}

/// What a pod with these fields of its spec uses.
fn workload(fields: &Value) -> Workload {
    Workload::new(vec![persistent_volume("data")], vec![pod(fields)])
}

/// What a pod with these fields of its spec requires, and the node does not have.
fn unmet(fields: &Value, node: &Node) -> String {
    workload(fields).unmet_on(node).unwrap_or_default()
}

#[test]
fn a_node_that_does_not_match_other_requirements_of_a_persistent_volume_is_refused() {
    let alone = Workload::new(vec![persistent_volume("data")], Vec::new());
    let refused = Some("does not match zone In [a, b] of PersistentVolume pvc-1");
    for (labels, expected) in [
        (&[("zone", "b")][..], None),
        (&[("zone", "c")][..], refused),
        (&[][..], refused),
    ] {
        let unmet = alone.unmet_on(&node_2(labels));
        assert_eq!(unmet.as_deref(), expected, "{labels:?}");
    }
    let nothing = Workload::new(Vec::new(), Vec::new());
    assert_eq!(nothing.unmet_on(&node_2(&[])), None);
}

#[test]
fn a_node_that_the_node_selector_of_a_pod_excludes_is_refused() {
    let node = node_2(&[("zone", "a"), ("disk", "ssd")]);
    let selecting = |disk: &str| json!({"nodeSelector": {"disk": disk}});
    assert_eq!(unmet(&selecting("ssd"), &node), "");
    let refused = "does not match nodeSelector disk=hdd of pod shop/db-0";
    assert_eq!(unmet(&selecting("hdd"), &node), refused);
}

/// Fields of a pod that requires one of these terms, and prefers something else.
fn requiring(terms: &[&Value]) -> Value {
    json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 1,
            "preference": {"matchExpressions": [{"key": "tpu", "operator": "Exists"}]},
        }],
    }}})
}

#[test]
fn a_node_that_the_required_affinity_of_a_pod_excludes_is_refused() {
    let node = node_2(&[("zone", "a"), ("disk", "ssd"), ("cores", "8")]);
    let term = |key: &str, operator: &str, values: &[&str]| {
        let values = (!values.is_empty()).then_some(values);
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    };
    for (term, expected) in [
        (term("disk", "In", &["hdd", "ssd"]), ""),
        (term("disk", "NotIn", &["ssd"]), "disk NotIn [ssd]"),
        (term("gpu", "NotIn", &["no"]), ""),
        (term("gpu", "Exists", &[]), "gpu Exists"),
        (term("disk", "DoesNotExist", &[]), "disk DoesNotExist"),
        (term("cores", "Gt", &["7"]), ""),
        (term("cores", "Lt", &["8"]), "cores Lt [8]"),
        // What is not known here is left to the scheduler.
        (term("cores", "Resembles", &["9"]), ""),
    ] {
        let expected = match expected {
            "" => String::new(),
            unmet => format!("does not match {unmet} of pod shop/db-0"),
        };
        assert_eq!(unmet(&requiring(&[&term]), &node), expected, "{term}");
    }
    let named = |name: &str| {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
        json!({"matchFields": [field]})
    };
    let (gpu, hdd) = (term("gpu", "Exists", &[]), term("disk", "In", &["hdd"]));
    let refused = "does not match gpu Exists or disk In [hdd] of pod shop/db-0";
    assert_eq!(unmet(&requiring(&[&gpu, &hdd]), &node), refused);
    let either = requiring(&[&gpu, &named("node-2")]);
    assert_eq!(unmet(&either, &node), "", "one term is enough");
    let refused = "does not match metadata.name In [node-1] of pod shop/db-0";
    assert_eq!(unmet(&requiring(&[&named("node-1")]), &node), refused);
}

#[test]
fn a_node_with_a_lasting_taint_that_a_pod_does_not_tolerate_is_refused() {
    let dedicated =
        |effect: &str| tainted(json!({"key": "dedicated", "value": "db", "effect": effect}));
    let node = dedicated("NoSchedule");
    let refused = "has the taint dedicated, which pod shop/db-0 does not tolerate";
    assert_eq!(unmet(&json!({}), &node), refused);
    for (toleration, expected) in [
        (json!({"operator": "Exists"}), ""),
        (json!({"key": "dedicated", "value": "db"}), ""),
        (json!({"key": "dedicated", "value": "web"}), refused),
        (json!({"key": "other", "operator": "Exists"}), refused),
        (
            json!({"operator": "Exists", "effect": "NoExecute"}),
            refused,
        ),
    ] {
        let fields = json!({"tolerations": [toleration]});
        assert_eq!(unmet(&fields, &node), expected, "{toleration}");
    }
    assert_eq!(unmet(&json!({}), &dedicated("PreferNoSchedule")), "");
    let state = json!({"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"});
    assert_eq!(unmet(&json!({}), &tainted(state)), "", "it passes");
}

#[test]
fn only_pods_that_use_the_volumes_and_are_made_again_have_requirements() {
    let elsewhere = json!({"nodeSelector": {"disk": "hdd"}});
    let node = node_2(&[("zone", "a")]);
    let is_refused = |claim: &str, change: fn(&mut Pod)| {
        let mut pod = pod(&elsewhere);
        change(&mut pod);
        let workload = Workload::new(vec![persistent_volume(claim)], vec![pod]);
        workload.unmet_on(&node).is_some()
    };
    assert!(is_refused("data", |_| {}));
    assert!(!is_refused("other", |_| {}));
    let without_controller = |pod: &mut Pod| pod.metadata.owner_references = None;
    assert!(!is_refused("data", without_controller));
    let of_another_namespace = |pod: &mut Pod| pod.metadata.namespace = Some("web".to_owned());
    assert!(!is_refused("data", of_another_namespace));
    let ending = |pod: &mut Pod| {
        let time = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    };
    assert!(!is_refused("data", ending));
}

#[test]
fn a_node_that_is_closed_to_pods_is_not_chosen() {
    let with = |spec: Value, ready: &str| -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "w1"}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    };
    let without_pods = Workload::new(Vec::new(), Vec::new());
    let why = |node: &Node| without_pods.closed_on(node).unwrap_or_default();
    assert_eq!(why(&node("w1", &[])), "");
    assert_eq!(why(&with(json!({}), "True")), "");
    assert_eq!(why(&with(json!({}), "Unknown")), "is not ready");
    let cordoned = json!({"unschedulable": true});
    assert_eq!(why(&with(cordoned, "True")), "is cordoned");
    let taint = |effect| json!({"taints": [{"key": "dedicated", "effect": effect}]});
    let tainted = with(taint("NoSchedule"), "True");
    assert_eq!(why(&tainted), "has the taint dedicated");
    assert_eq!(why(&with(taint("PreferNoSchedule"), "True")), "");
    let tolerating = json!({"tolerations": [{"operator": "Exists"}]});
    assert_eq!(workload(&tolerating).closed_on(&tainted), None);
    assert!(workload(&json!({})).closed_on(&tainted).is_some());
}
