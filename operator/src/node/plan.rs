//! Decides what is done with the StorageNode of one node. Pure.

use cistern_crds::{StorageNode, StorageNodeSpec, names};
use kube::ResourceExt as _;

use super::{StorageNodeAction, View, entries::carried};

/// Computes the action for one node.
pub(super) fn plan(view: &View<'_>) -> StorageNodeAction {
    let spec = StorageNodeSpec {
        topology: [(
            names::TOPOLOGY_KEY.to_owned(),
            names::topology_value(view.name),
        )]
        .into(),
        machine_id: machine_id(view),
        transfer_endpoint: transfer_endpoint(view),
        pools: carried(view),
    };
    let Some(current) = view.storage_node else {
        let has_agent = view.node.is_some() && view.agent;
        return if has_agent || !spec.pools.is_empty() {
            StorageNodeAction::Create(spec)
        } else {
            StorageNodeAction::Keep
        };
    };
    let released = is_deleted(current) && is_given_up(view, current, &spec);
    if released {
        return StorageNodeAction::Release;
    }
    if view.node.is_none() && spec.pools.is_empty() && view.kept.is_empty() {
        return StorageNodeAction::Delete;
    }
    if current.spec == spec && current.finalizers() == finalizers(Some(current), &spec) {
        StorageNodeAction::Keep
    } else {
        StorageNodeAction::Write(spec)
    }
}

/// The finalizers that a StorageNode is to have. One without pools needs none: nothing is lost with it.
pub(super) fn finalizers(current: Option<&StorageNode>, spec: &StorageNodeSpec) -> Vec<String> {
    let present = current.map(kube::ResourceExt::finalizers);
    let mut finalizers = present.unwrap_or_default().to_vec();
    let is_held = finalizers.iter().any(|name| name == names::FINALIZER);
    // The API server refuses to add one to an object that is being deleted.
    if !is_held && !spec.pools.is_empty() && !current.is_some_and(is_deleted) {
        finalizers.push(names::FINALIZER.to_owned());
    }
    finalizers
}

/// Whether the finalizer of a deleted StorageNode may be removed. If the Node is gone, the deletion
/// gives up its disks, but no volumes or snapshots.
fn is_given_up(view: &View<'_>, current: &StorageNode, desired: &StorageNodeSpec) -> bool {
    let empty = desired.pools.is_empty() && !current.has_pools();
    (empty || view.node.is_none()) && view.kept.is_empty()
}

/// The machine id that the Node reports, or the last one that it reported.
fn machine_id(view: &View<'_>) -> Option<String> {
    let info = view
        .node
        .and_then(|node| node.status.as_ref()?.node_info.as_ref());
    let reported = info.map(|info| info.machine_id.clone());
    // An id that the schema rejects identifies no machine.
    let reported = reported.filter(|id| !id.is_empty() && id.len() <= 64);
    reported.or_else(|| view.storage_node?.spec.machine_id.clone())
}

/// The address of the agent, or the last one that it had: a restart is no reason for two writes.
fn transfer_endpoint(view: &View<'_>) -> Option<String> {
    let present = view.endpoint.map(|endpoint| endpoint.to_string());
    present.or_else(|| view.storage_node?.spec.transfer_endpoint.clone())
}

fn is_deleted(node: &StorageNode) -> bool {
    node.metadata.deletion_timestamp.is_some()
}
