//! Pods that use a claim, and the addresses of agents. Pure.

use std::{collections::BTreeSet, net::SocketAddr};

use cistern_crds::names::TRANSFER_PORT;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

/// Names of the claims that a pod names, in its namespace.
pub fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| {
        if let Some(source) = &volume.persistent_volume_claim {
            return Some(source.claim_name.clone());
        }
        // The claim of a generic ephemeral volume has this name.
        let name = || format!("{}-{}", pod.name_any(), volume.name);
        volume.ephemeral.is_some().then(name)
    })
}

/// Whether a pod uses a claim and has not ended.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let names_it = claims(pod).any(|name| name == claim);
    names_it && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// All claims of the pods of one namespace that have not ended and use one of these claims.
pub fn claims_beside(pods: &[Pod], known: &BTreeSet<String>) -> BTreeSet<String> {
    let uses_one = |pod: &&Pod| known.iter().any(|claim| uses(pod, claim));
    pods.iter().filter(uses_one).flat_map(claims).collect()
}

/// Address and port at which an agent sends snapshots to other nodes. None until its pod has an address, or if
/// it has no such port.
pub fn endpoint(agent: &Pod) -> Option<SocketAddr> {
    let address = agent.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    let containers = agent.spec.as_ref()?.containers.iter();
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(TRANSFER_PORT))?;
    let port = u16::try_from(port.container_port).ok()?;
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_agent_sends_from_the_address_of_its_pod_once_it_has_one() {
        let agent = |ports: serde_json::Value, status: serde_json::Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "cistern-node-x"},
                "spec": {"containers": [{"name": "driver", "ports": ports}]},
                "status": status,
            }))
            .unwrap()
        };
        let ports = json!([
            {"name": "metrics", "containerPort": 9808},
            {"name": "transfer", "containerPort": 9812},
        ]);
        let at = |ip: &str| agent(ports.clone(), json!({"podIP": ip}));
        assert_eq!(endpoint(&at("10.0.0.7")), "10.0.0.7:9812".parse().ok());
        assert_eq!(endpoint(&at("fd00::7")), "[fd00::7]:9812".parse().ok());
        assert_eq!(endpoint(&agent(ports, json!({}))), None);
        assert_eq!(
            endpoint(&agent(json!([]), json!({"podIP": "10.0.0.7"}))),
            None
        );
    }

    #[test]
    fn pods_link_the_claims_that_they_use_together_until_they_have_ended() {
        let pod = |claims: [&str; 2], phase: &str| -> Pod {
            let volumes = claims
                .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
            serde_json::from_value(json!({
                "metadata": {"name": "web-0"},
                "spec": {"containers": [], "volumes": volumes},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let pods = [
            pod(["v", "w"], "Running"),
            pod(["w", "x"], "Pending"),
            pod(["v", "y"], "Succeeded"),
        ];
        let names = |claims: &[&str]| -> BTreeSet<String> {
            claims.iter().map(ToString::to_string).collect()
        };
        let beside = claims_beside(&pods, &names(&["v"]));
        assert_eq!(beside, names(&["v", "w"]));
        assert_eq!(claims_beside(&pods, &beside), names(&["v", "w", "x"]));
        assert!(claims_beside(&pods, &names(&["y"])).is_empty());
    }

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
