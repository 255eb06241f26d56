//! Nodes that an administrator has found to be off.

use k8s_openapi::api::core::v1::Node;

/// Taint of such a Node. Kubernetes deletes its pods without waiting for it.
pub const TAINT: &str = "node.kubernetes.io/out-of-service";

/// Whether an administrator has said that a Node is off, so that nothing on it writes to volumes any more.
pub fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.iter();
    let taints = taints.flat_map(|spec| spec.taints.iter().flatten());
    taints.map(|taint| &*taint.key).any(|key| key == TAINT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_is_out_of_service_only_if_an_administrator_says_so() {
        let node = |taint: &str| -> Node {
            let taints = json!([{"key": "dedicated", "effect": "NoSchedule"}, {"key": taint, "effect": "NoExecute"}]);
            serde_json::from_value(json!({"metadata": {}, "spec": {"taints": taints}})).unwrap()
        };
        assert!(is_out_of_service(&node(TAINT)));
        assert!(!is_out_of_service(&node("node.kubernetes.io/unreachable")));
        assert!(!is_out_of_service(&Node::default()));
    }
}
