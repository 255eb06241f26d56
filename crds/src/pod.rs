//! The readiness of a pod. Pure.

use k8s_openapi::api::core::v1::Pod;

/// Whether a pod has the condition `Ready` and is not being deleted.
pub fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.iter();
    let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_ready_while_it_has_the_condition_and_is_not_being_deleted() {
        let pod = |metadata: serde_json::Value, ready: &str| -> Pod {
            let conditions = json!([{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]);
            let status = json!({"conditions": conditions});
            serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
        };
        assert!(is_ready(&pod(json!({}), "True")));
        assert!(!is_ready(&pod(json!({}), "False")));
        let leaving = json!({"deletionTimestamp": "1970-01-01T00:00:00Z"});
        assert!(!is_ready(&pod(leaving, "True")));
        assert!(!is_ready(&Pod::default()));
    }
}
