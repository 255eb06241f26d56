//! Names that several components share: API groups, labels, finalizers, field managers, keys.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The driver's name (`GetPluginInfo`, `CSIDriver`, a class's `provisioner`). GPI-03, SAN-01.
pub const DRIVER: &str = "csi.cistern.storage";
/// API group of the custom resources.
pub const GROUP: &str = "cistern.storage";
/// The only topology key. Its value is [`topology_value`] of the node's name.
pub const TOPOLOGY_KEY: &str = "topology.cistern.storage/node";
/// Label that cluster-autoscaler gives to the template of a new node, with the value `true`.
pub const TEMPLATE_NODE_LABEL: &str = "cluster-autoscaler.kubernetes.io/template-node";
/// Finalizer that holds an object until its data is removed (volumes) or nothing depends on it (pools,
/// nodes).
pub const FINALIZER: &str = "cistern.storage/data";

/// Field manager of the driver's controller mode.
pub const CONTROLLER_MANAGER: &str = "cistern-controller";
/// Field manager of the node agent.
pub const AGENT_MANAGER: &str = "cistern-agent";
/// Field manager of the operator.
pub const OPERATOR_MANAGER: &str = "cistern-operator";

/// Label on objects that the operator makes (capacity objects), so that it changes no others.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Label of the node plugin's pods. The operator finds the agent of a node by it.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Value of [`COMPONENT_LABEL`] on the node plugin's pods.
pub const NODE_COMPONENT: &str = "node";
/// Name of the port of the node plugin's container at which it sends snapshots to other nodes.
pub const TRANSFER_PORT: &str = "transfer";
/// Label that names the pool on a PoolVolume.
pub const POOL_LABEL: &str = "cistern.storage/pool";

/// Annotation of a StorageNode with which an administrator lets the node take over a pool that this
/// cluster does not know: the UUID of the pool's filesystem.
pub const TAKE_OVER_ANNOTATION: &str = "cistern.storage/take-over";

/// Prefix of keys in parameters and contexts that the sidecars of Kubernetes add. CV-22, K8S-01.
pub const RESERVED_PREFIX: &str = "csi.storage.k8s.io/";

/// Cistern's only key in a volume's context, and so in its PersistentVolume: the name of its image, which
/// stays the same when the PoolVolume is restored from a backup.
pub const IMAGE_CONTEXT: &str = "cistern.storage/image";

/// Annotation of a PersistentVolume that is being replaced: UID of the VolumeMove.
pub const MOVE_ANNOTATION: &str = "cistern.storage/move";
/// Annotation that the scheduler sets on a claim once it has chosen the node.
pub const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";

/// The value of [`TOPOLOGY_KEY`] for a node: its name, or a hash if the name is longer than the 63
/// characters that a label value and CSI allow (TOP-13).
pub fn topology_value(node: &str) -> String {
    if node.len() <= 63 {
        node.to_owned()
    } else {
        format!("n-{}", short_hash(node))
    }
}

/// The name of the PoolVolume, and so the volume id, for a CSI volume name.
///
/// A DNS label is kept (`pvc-<uid>` from the provisioner). Any other name becomes `vol-<hash>`, and the
/// spec keeps the original for comparison (CV-13, SAN-12).
pub fn volume_name(requested: &str) -> String {
    object_name("vol", requested)
}

/// The name of the PoolSnapshot, and so the snapshot id, for a CSI snapshot name: as
/// [`volume_name`] (CS-11).
pub fn snapshot_name(requested: &str) -> String {
    object_name("snap", requested)
}

/// The name of the PoolSnapshotGroup, and so the group snapshot id, for a CSI name: as
/// [`volume_name`].
pub fn snapshot_group_name(requested: &str) -> String {
    object_name("group", requested)
}

/// The name of the PoolSnapshot of one volume in a group. No request can result in the same name,
/// because control characters are refused in names (FLD-12).
pub fn group_member_name(group: &str, volume: &str) -> String {
    format!("snap-{}", short_hash(&format!("{group}\0{volume}")))
}

/// The name of the PoolSnapshot from which an image is copied for a volume on another node. No request can result
/// in the same name, as for [`group_member_name`].
pub fn copied_snapshot_name(volume: &str, image: &str) -> String {
    format!("snap-{}", short_hash(&format!("{volume}\0copy\0{image}")))
}

/// The name of the PoolSnapshot from which a volume is copied in a pass of its move. No request can result in the same
/// name, as for [`group_member_name`].
pub fn pass_snapshot_name(volume: &str, move_uid: &str, number: u32) -> String {
    let text = format!("{volume}\0move\0{move_uid}\0{number}");
    format!("snap-{}", short_hash(&text))
}

fn object_name(prefix: &str, requested: &str) -> String {
    let is_ours = requested
        .strip_prefix(prefix)
        .is_some_and(|rest| rest.starts_with('-'));
    if is_id(requested) && !is_ours {
        requested.to_owned()
    } else {
        format!("{prefix}-{}", short_hash(requested))
    }
}

/// The first 128 bits of the SHA-256 of a string, in hexadecimal.
pub fn short_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(16).fold(
        String::with_capacity(32),
        |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        },
    )
}

/// Whether a volume, a snapshot or a group can have this id: a DNS label. Any other id is unknown and
/// must not become part of a path or a URL.
pub fn is_id(name: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.bytes().all(|c| alphanumeric(c) || c == b'-')
        && name.bytes().next().is_some_and(alphanumeric)
        && name.bytes().last().is_some_and(alphanumeric)
}

/// Whether a StoragePool can have this name: DNS labels that are separated by dots, together at most 63
/// characters, which its schema enforces.
pub fn is_pool_name(name: &str) -> bool {
    name.len() <= 63 && name.split('.').all(is_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provisioner_names_stay_readable_and_all_others_are_hashed() {
        let readable = "pvc-0b5c2f0e-6ab4-4d0a-9b6c-3c0a5a1f8f11";
        assert_eq!(volume_name(readable), readable);
        for odd in [
            "",
            "UPPER",
            "a/b",
            "..",
            "ünï",
            "-a",
            "a-",
            "nul\0",
            "vol-x",
            &"x".repeat(128),
        ] {
            let name = volume_name(odd);
            assert!(is_id(&name) && name.len() == 36, "{odd:?} became {name:?}");
        }
        assert_ne!(volume_name("A"), volume_name("a"));
        assert_ne!(snapshot_name("A"), volume_name("A"));
    }

    #[test]
    fn cs_11_no_request_results_in_the_name_of_a_group_member() {
        let member = group_member_name("group-1", "pvc-1");
        assert!(is_id(&member));
        assert_ne!(snapshot_name(&member), member);
        assert_ne!(member, group_member_name("group-1", "pvc-2"));
    }

    #[test]
    fn long_node_names_become_a_legal_topology_value() {
        assert_eq!(topology_value("worker-1.example"), "worker-1.example");
        assert_eq!(topology_value(&"n".repeat(64)).len(), 34);
    }
}
