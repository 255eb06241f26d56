//! Pods that use a claim. Pure.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

/// Whether a pod uses a claim and has not ended.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mut volumes = volumes.into_iter().flatten();
    let names_it = volumes.any(|volume| match &volume.persistent_volume_claim {
        Some(source) => source.claim_name == claim,
        // The claim of a generic ephemeral volume has this name.
        None => {
            volume.ephemeral.is_some() && claim == format!("{}-{}", pod.name_any(), volume.name)
        }
    });
    names_it && !matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_uses_a_claim_whichever_way_it_names_it_until_it_has_ended() {
        let pod = |volumes: serde_json::Value, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "web-0"},
                "spec": {"containers": [], "volumes": volumes},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let named = json!([
            {"name": "tmp", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ]);
        assert!(uses(&pod(named.clone(), "Running"), "data"));
        assert!(!uses(&pod(named.clone(), "Running"), "other"));
        assert!(!uses(&pod(named, "Succeeded"), "data"));
        let ephemeral = json!([{"name": "scratch", "ephemeral": {}}]);
        assert!(uses(&pod(ephemeral.clone(), "Pending"), "web-0-scratch"));
        assert!(!uses(&pod(ephemeral, "Pending"), "data"));
    }
}
