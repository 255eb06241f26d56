//! Checks the CSIDriver object and the registration of the driver with kubelet on every node. Pure.

use std::collections::BTreeMap;

use cistern_crds::names::{DRIVER, NODE_COMPONENT, TOPOLOGY_KEY, topology_value};
use k8s_openapi::api::{
    core::v1::Node,
    storage::v1::{CSIDriver, CSINode},
};
use kube::ResourceExt as _;

use super::{
    facts::Facts,
    report::{APPLY, Check},
    workloads::{component, node_logs},
};

const DRIVER_OBJECT: &str = "driver";
const REGISTRATION: &str = "registration";

/// Checks the CSIDriver, and its registration on each node with the node plugin.
pub fn examine(facts: &Facts) -> Vec<Check> {
    let driver = match &facts.drivers {
        Ok(drivers) => driver(drivers),
        Err(error) => Check::unread(DRIVER_OBJECT, error),
    };
    let registration = match (&facts.nodes, &facts.csi_nodes, &facts.pods) {
        (Ok(nodes), Ok(csi_nodes), Ok(pods)) => {
            let agents = pods
                .iter()
                .filter(|pod| component(*pod) == Some(NODE_COMPONENT));
            let carried = agents.filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
            registered(
                nodes,
                csi_nodes,
                &carried.collect::<Vec<_>>(),
                &facts.namespace,
            )
        }
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
            vec![Check::unread(REGISTRATION, error)]
        }
    };
    let mut checks = vec![driver];
    checks.extend(registration);
    checks
}

fn driver(drivers: &[CSIDriver]) -> Check {
    let Some(driver) = drivers.iter().find(|driver| driver.name_any() == DRIVER) else {
        return Check::fail(
            DRIVER_OBJECT,
            format!("there is no CSIDriver {DRIVER}"),
            APPLY,
        );
    };
    let spec = &driver.spec;
    let wrong = [
        (
            "attachRequired",
            spec.attach_required != Some(false),
            "pods wait for an attachment forever",
        ),
        (
            "storageCapacity",
            spec.storage_capacity != Some(true),
            "pods are scheduled to nodes without free space",
        ),
        (
            "podInfoOnMount",
            spec.pod_info_on_mount == Some(true),
            "kubelet sends pod information that the driver does not use",
        ),
        (
            "requiresRepublish",
            spec.requires_republish == Some(true),
            "kubelet publishes volumes repeatedly",
        ),
        (
            "fsGroupPolicy",
            spec.fs_group_policy.as_deref() != Some("File"),
            "pods with an fsGroup cannot write",
        ),
    ];
    match wrong.iter().find(|(_, is_wrong, _)| *is_wrong) {
        None => Check::ok(
            DRIVER_OBJECT,
            format!("CSIDriver {DRIVER} is configured correctly"),
        ),
        Some((field, _, danger)) => {
            let message = format!("{field} of CSIDriver {DRIVER} is wrong: {danger}");
            let action = format!("kubectl delete csidriver {DRIVER}, then {APPLY}");
            Check::fail(DRIVER_OBJECT, message, action)
        }
    }
}

/// Checks that kubelet has registered the driver on each node with the node plugin.
fn registered(
    nodes: &[Node],
    csi_nodes: &[CSINode],
    carried: &[String],
    namespace: &str,
) -> Vec<Check> {
    let of_node: BTreeMap<String, &CSINode> =
        csi_nodes.iter().map(|it| (it.name_any(), it)).collect();
    let mut checks = Vec::new();
    for name in carried {
        let node = nodes.iter().find(|node| node.name_any() == *name);
        let wrong = wrong_on(name, node, of_node.get(name).copied());
        let logs = format!(
            "{}, and kubelet's own log there",
            node_logs(namespace, name)
        );
        checks.extend(wrong.map(|message| Check::fail(REGISTRATION, message, logs)));
    }
    if checks.is_empty() {
        checks.push(match carried.len() {
            0 => Check::fail(REGISTRATION, "the node plugin runs on no node", APPLY),
            count => Check::ok(
                REGISTRATION,
                format!(
                    "kubelet has registered driver and topology on {count} of {} nodes",
                    nodes.len()
                ),
            ),
        });
    }
    checks
}

fn wrong_on(name: &str, node: Option<&Node>, csi_node: Option<&CSINode>) -> Option<String> {
    let mut drivers = csi_node.into_iter().flat_map(|it| &it.spec.drivers);
    let Some(driver) = drivers.find(|driver| driver.name == DRIVER) else {
        return Some(format!("kubelet on {name} has not registered the driver"));
    };
    let keys = driver.topology_keys.as_deref().unwrap_or_default();
    if !keys.iter().any(|key| key == TOPOLOGY_KEY) {
        return Some(format!(
            "CSINode {name} lacks the topology key {TOPOLOGY_KEY}"
        ));
    }
    let value = topology_value(name);
    let label = node.and_then(|node| node.labels().get(TOPOLOGY_KEY));
    match label {
        Some(label) if *label == value => None,
        Some(label) => Some(format!(
            "Node {name} has the label {TOPOLOGY_KEY}={label}, not {value}"
        )),
        None => Some(format!(
            "Node {name} lacks the label {TOPOLOGY_KEY}={value}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{doctor::report::CheckOutcome, testing::object};

    fn announced(attach: bool) -> CSIDriver {
        object(
            json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": attach,
            "storageCapacity": true, "fsGroupPolicy": "File"}}),
        )
    }

    #[test]
    fn a_missing_or_misconfigured_csi_driver_fails() {
        assert_eq!(driver(&[announced(false)]).outcome, CheckOutcome::Ok);
        assert_eq!(driver(&[]).outcome, CheckOutcome::Fail);
        let wrong = driver(&[announced(true)]);
        assert!(
            wrong.message.contains("attachRequired"),
            "{}",
            wrong.message
        );
    }

    fn node(label: &str) -> Node {
        object(json!({"metadata": {"name": "n", "labels": {TOPOLOGY_KEY: label}}}))
    }

    fn csi_node(driver: &str, key: &str) -> CSINode {
        object(json!({"metadata": {"name": "n"}, "spec": {"drivers": [
            {"name": driver, "nodeID": "n", "topologyKeys": [key]}]}}))
    }

    #[test]
    fn a_node_with_an_agent_needs_registration_topology_key_and_label() {
        let judge = |node: Node, csi: CSINode| {
            let checks = registered(&[node], &[csi], &["n".to_owned()], "s");
            (checks[0].outcome, checks[0].message.clone())
        };
        let well = judge(node("n"), csi_node(DRIVER, TOPOLOGY_KEY));
        assert_eq!(
            well,
            (
                CheckOutcome::Ok,
                "kubelet has registered driver and topology on 1 of 1 nodes".to_owned()
            )
        );
        for (node, csi, words) in [
            (
                node("n"),
                csi_node("other", TOPOLOGY_KEY),
                "has not registered",
            ),
            (
                node("n"),
                csi_node(DRIVER, "zone"),
                "lacks the topology key",
            ),
            (node("m"), csi_node(DRIVER, TOPOLOGY_KEY), "not n"),
        ] {
            let (outcome, message) = judge(node, csi);
            assert_eq!(outcome, CheckOutcome::Fail);
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(
            registered(&[], &[], &[], "s")[0].outcome,
            CheckOutcome::Fail
        );
    }
}
