//! Finds volumes whose disk has moved: their PersistentVolume has the node affinity of another node, so no
//! pod that uses them can be scheduled. Pure.

use cistern_crds::{HasImage as _, PoolVolume, names, persistent_volume::nodes_of};
use kube::ResourceExt as _;

use super::{Issue, Severity};
use crate::cluster::Cluster;

/// Returns an issue if the PersistentVolume of a volume is bound to another node.
pub(super) fn of_volume(volume: &PoolVolume, cluster: &Cluster) -> Option<Issue> {
    let (name, node) = (volume.name_any(), volume.node_name());
    let bound = cluster.persistent_volume(&name)?;
    let nodes = nodes_of(bound);
    if nodes.is_empty() || nodes.contains(&names::topology_value(node).as_str()) {
        return None;
    }
    let message = format!(
        "it is bound to node {}, but its volume {name} is on node {node}: no pod can use it until the \
        PersistentVolume is recreated for that node; if the operator waits with that, the VolumeMove {name} says why",
        nodes.join(", ")
    );
    let issue = Issue::new(
        Severity::Error,
        "PersistentVolume",
        bound.name_any(),
        "BoundToOtherNode",
    );
    let issue = Issue { message, ..issue };
    Some(issue.at(node, volume.pool_name()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cluster::by_handle,
        testing::{cluster, object},
    };

    #[test]
    fn a_persistent_volume_bound_to_the_former_node_of_a_disk_is_reported() {
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
        cluster.persistent_volumes = by_handle(vec![bound_to("the-old-node")]);
        let issue = of_volume(&volume, &cluster).unwrap();
        assert_eq!(
            (issue.kind, issue.name.as_str()),
            ("PersistentVolume", "pv-1")
        );
        assert_eq!(issue.node.as_deref(), Some(volume.node_name()));
        assert!(
            issue.message.contains("bound to node the-old-node"),
            "{}",
            issue.message
        );
        assert!(super::super::all(&cluster, crate::testing::at(600)).contains(&issue));

        let node = names::topology_value(volume.node_name());
        cluster.persistent_volumes = by_handle(vec![bound_to(&node)]);
        assert_eq!(of_volume(&volume, &cluster), None);
        cluster.persistent_volumes.clear();
        assert_eq!(of_volume(&volume, &cluster), None);
    }
}
