//! Volumes whose PersistentVolume is bound to another node than they are on: their disk has moved, and
//! no pod that uses them can be scheduled. Pure.

use cistern_crds::{PoolVolume, Stored as _, names};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt as _;

use super::{Severity, Wrong};
use crate::cluster::Cluster;

/// The PersistentVolume of a volume, if it is bound to another node.
pub(super) fn of_volume(volume: &PoolVolume, cluster: &Cluster) -> Option<Wrong> {
    let (name, node) = (volume.name_any(), volume.node_name());
    let bound = cluster.persistent_volume(&name)?;
    let nodes = nodes_of(bound);
    if nodes.is_empty() || nodes.contains(&names::topology_value(node).as_str()) {
        return None;
    }
    let message = format!(
        "it is bound to node {}, and its volume {name} is on node {node}: no pod can use it until the \
         PersistentVolume is made anew for that node",
        nodes.join(", ")
    );
    let wrong = Wrong::new(
        Severity::Error,
        "PersistentVolume",
        bound.name_any(),
        "BoundToOtherNode",
    );
    let wrong = Wrong { message, ..wrong };
    Some(wrong.at(node, volume.pool_name()))
}

/// The nodes that a PersistentVolume is bound to, by our topology key.
fn nodes_of(volume: &PersistentVolume) -> Vec<&str> {
    let affinity = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    let terms = required.map_or(&[][..], |required| &required.node_selector_terms);
    let expressions = terms
        .iter()
        .flat_map(|term| term.match_expressions.iter().flatten());
    expressions
        .filter(|it| it.key == names::TOPOLOGY_KEY && it.operator == "In")
        .flat_map(|it| it.values.iter().flatten())
        .map(String::as_str)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, object};

    #[test]
    fn a_persistent_volume_that_is_bound_to_the_node_that_a_disk_has_left_is_named() {
        let mut cluster = cluster();
        let volume = cluster.volumes[0].clone();
        let bound_to = |node: &str| {
            object(json!({
                "metadata": {"name": "pv-1"},
                "spec": {
                    "csi": {"driver": names::DRIVER, "volumeHandle": volume.name_any()},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                        {"key": names::TOPOLOGY_KEY, "operator": "In", "values": [node]},
                    ]}]}},
                },
            }))
        };
        cluster.persistent_volumes = vec![bound_to("the-old-node")];
        let wrong = of_volume(&volume, &cluster).unwrap();
        assert_eq!(
            (wrong.kind, wrong.name.as_str()),
            ("PersistentVolume", "pv-1")
        );
        assert_eq!(wrong.node.as_deref(), Some(volume.node_name()));
        assert!(
            wrong.message.contains("bound to node the-old-node"),
            "{}",
            wrong.message
        );
        assert!(super::super::all(&cluster, crate::testing::at(600)).contains(&wrong));

        cluster.persistent_volumes = vec![bound_to(&names::topology_value(volume.node_name()))];
        assert_eq!(of_volume(&volume, &cluster), None);
        cluster.persistent_volumes.clear();
        assert_eq!(of_volume(&volume, &cluster), None);
    }
}
