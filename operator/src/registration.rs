//! Registration of a node: whether kubelet knows the driver there, and whether its agent is ready.
//!
//! *Invariant:* only the caches are read.

use cistern_crds::{ConditionType, Reason, condition::ConditionUpdate, names, pod::is_ready};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    storage::v1::CSINode,
};
use kube::ResourceExt as _;

use crate::cluster_state::ClusterState;

/// Whether kubelet has registered the driver on a node, and whether its agent is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// `TopologyRegistered`.
    pub topology: ConditionUpdate,
    /// `AgentReporting`.
    pub agent: ConditionUpdate,
}

impl Registration {
    /// Both conditions, for [`cistern_crds::availability`]. Those in the status of the StorageNode may be older than the
    /// caches.
    pub fn parts(&self) -> [&ConditionUpdate; 2] {
        [&self.topology, &self.agent]
    }
}

/// Reads the registration of a node from the caches.
pub fn observe(cluster: &ClusterState, name: &str) -> Registration {
    let node = cluster.node(name);
    Registration {
        topology: topology(name, node.as_deref(), cluster.csi_node(name).as_deref()),
        agent: agent(name, cluster.agents_on(name).iter().map(AsRef::as_ref)),
    }
}

/// Whether kubelet has registered the driver on a node, with Cistern's topology key.
pub fn is_registered(csi_node: &CSINode) -> bool {
    csi_node.spec.drivers.iter().any(|driver| {
        let keys = driver.topology_keys.as_deref().unwrap_or_default();
        driver.name == names::DRIVER && keys.iter().any(|key| key == names::TOPOLOGY_KEY)
    })
}

/// `TopologyRegistered`: CSINode lists the driver with Cistern's topology key, and the label of the
/// Node has the expected value.
fn topology(name: &str, node: Option<&Node>, csi_node: Option<&CSINode>) -> ConditionUpdate {
    let finding = |holds: bool, reason, message: String| {
        ConditionUpdate::new(ConditionType::TopologyRegistered, holds, reason, message)
    };
    let Some(node) = node else {
        let message = format!("there is no Node {name}");
        return finding(false, Reason::NodeMissing, message);
    };
    if !csi_node.is_some_and(is_registered) {
        let message = format!(
            "kubelet on {name} has not registered the driver {}: check the pod of the node plugin there",
            names::DRIVER
        );
        return finding(false, Reason::DriverNotRegistered, message);
    }
    let (key, value) = (names::TOPOLOGY_KEY, names::topology_value(name));
    match node.labels().get(key) {
        Some(label) if *label == value => {
            let message = format!("CSINode and the Node show {key}={value}");
            finding(true, Reason::Reconciled, message)
        }
        Some(label) => {
            let message = format!(
                "label {key} of Node {name} is {label} and not {value}: remove it and restart the node plugin's pod there"
            );
            finding(false, Reason::LabelMissing, message)
        }
        None => {
            let message = format!(
                "label {key} of Node {name} is missing: restart the node plugin's pod there"
            );
            finding(false, Reason::LabelMissing, message)
        }
    }
}

/// `AgentReporting`: the node plugin's pod is ready.
fn agent<'a>(name: &str, pods: impl Iterator<Item = &'a Pod>) -> ConditionUpdate {
    let finding = |holds: bool, reason, message: String| {
        ConditionUpdate::new(ConditionType::AgentReporting, holds, reason, message)
    };
    let mut waiting = None;
    for pod in pods {
        if is_ready(pod) {
            let message = format!("pod {} is ready", pod.name_any());
            return finding(true, Reason::Reconciled, message);
        }
        waiting = Some(pod.name_any());
    }
    if let Some(pod) = waiting {
        let message = format!("pod {pod} on {name} is not ready");
        return finding(false, Reason::AgentNotReady, message);
    }
    let message = format!(
        "no pod of the node plugin runs on {name}: check the selector and the tolerations of the DaemonSet"
    );
    finding(false, Reason::AgentMissing, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

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

    #[test]
    fn top_the_topology_is_registered_when_csi_node_and_label_show_it() {
        let node = testing::node("w1", &[(names::TOPOLOGY_KEY, "w1")]);
        let registered = csi_node(&[names::TOPOLOGY_KEY]);
        let reason =
            |node: Option<&Node>, csi_node: Option<&CSINode>| topology("w1", node, csi_node).reason;
        assert_eq!(reason(Some(&node), Some(&registered)), Reason::Reconciled);
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
        assert_eq!(reason(&[&starting, &ready]), Reason::Reconciled);
        assert_eq!(reason(&[&starting]), Reason::AgentNotReady);
        assert_eq!(reason(&[&leaving]), Reason::AgentNotReady);
        assert_eq!(reason(&[]), Reason::AgentMissing);
    }
}
