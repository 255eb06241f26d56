//! Pools that a node has taken over from another one, and what is to follow them. Pure.
//!
//! An object is known to be in a pool by the UUID of the filesystem in the status of its image. An object whose image
//! was never made has none, and stays.

use cistern_crds::{HasImage, NodePool, NodePoolStatus, PoolVolume, StorageNode};
use kube::ResourceExt as _;

use crate::cluster_state::ClusterState;

/// A pool that a node has taken over, and whose objects follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenOver<'a> {
    /// Name of the node.
    pub(crate) node: &'a str,
    /// Name of the StoragePool.
    pub(crate) pool: &'a str,
    filesystem_uuid: &'a str,
    /// How often a node has taken over the pool.
    pub(crate) takeovers: u32,
}

impl<'a> TakenOver<'a> {
    /// A pool of a node, by its entry in the spec and in the status.
    pub(crate) fn of(node: &'a str, entry: &'a NodePool, status: &'a NodePoolStatus) -> Self {
        Self {
            node,
            pool: &entry.name,
            filesystem_uuid: status.filesystem_uuid.as_deref().unwrap_or_default(),
            takeovers: status.takeovers,
        }
    }
}

/// The node that has taken over the volume's disk, to which the volume must move. None if its disk is where it was.
pub(crate) fn destination(cluster: &ClusterState, volume: &PoolVolume) -> Option<String> {
    let nodes = cluster.storage_nodes.all();
    let nodes = nodes.iter().filter_map(|guard| guard.0.as_ref().ok());
    let mut taking = nodes.filter(|node| has_disk_of(node, volume));
    taking.next().map(StorageNode::name_any)
}

/// Whether a node has taken over a pool, whose objects may still have to follow.
pub(crate) fn has_taken_over(cluster: &ClusterState, node: &str) -> bool {
    let found = cluster.storage_node(node);
    let found = found.as_deref().and_then(|guard| guard.0.as_ref().ok());
    found.is_some_and(|node| !taken_over(node).is_empty())
}

/// Whether a node has taken over the disk of a volume that names another node, and can use it.
fn has_disk_of(node: &StorageNode, volume: &PoolVolume) -> bool {
    let name = node.name_any();
    let taken = taken_over(node);
    let mut usable = taken.iter().filter(|(_, status)| status.is_ready());
    usable.any(|(entry, status)| is_to_follow(volume, TakenOver::of(&name, entry, status)))
}

/// The pools that a node was granted and has taken over.
pub(crate) fn taken_over(node: &StorageNode) -> Vec<(&NodePool, &NodePoolStatus)> {
    let each = node.spec.pools.iter().filter_map(|entry| {
        let owner = entry.take_over.as_ref()?;
        let status = node.status_of(&entry.name)?;
        let is_here = status.belongs_to.is_none()
            && status.filesystem_uuid.as_ref() == Some(&owner.filesystem_uuid);
        is_here.then_some((entry, status))
    });
    each.collect()
}

/// Whether an object is on a disk that a node has taken over, and still names another node.
pub(crate) fn is_to_follow(object: &impl HasImage, pool: TakenOver<'_>) -> bool {
    let image = object.image();
    object.node_name() != pool.node
        && object.pool_name() == pool.pool
        && image.is_some_and(|image| image.pool_uuid == pool.filesystem_uuid)
        && object.takeovers() < pool.takeovers
}

#[cfg(test)]
mod tests {
    use cistern_crds::{PoolOwner, testing::ready_volume};

    use super::*;
    use crate::testing::storage_node;

    const UUID: &str = "0e3c8a3e-9f2b-4c55-8d21-000000000001";

    fn pool(takeovers: u32) -> TakenOver<'static> {
        TakenOver {
            node: "node-2",
            pool: "fast",
            filesystem_uuid: UUID,
            takeovers,
        }
    }

    fn volume() -> PoolVolume {
        let mut volume = ready_volume();
        let image = volume.status.as_mut().unwrap().image.as_mut().unwrap();
        UUID.clone_into(&mut image.pool_uuid);
        volume
    }

    /// The former owner of a pool.
    fn owner(filesystem_uuid: &str) -> PoolOwner {
        PoolOwner {
            node: "node-1".to_owned(),
            machine_id: None,
            pool_uid: "uid".to_owned(),
            filesystem_uuid: filesystem_uuid.to_owned(),
        }
    }

    /// The node that has the filesystem now.
    fn node() -> StorageNode {
        let mut node = storage_node("node-2")
            .with_room("fast", cistern_crds::Bytes::gib(1))
            .carrying("fast")
            .build();
        let status = &mut node.status.as_mut().unwrap().pools[0];
        status.filesystem_uuid = Some(UUID.to_owned());
        node
    }

    #[test]
    fn a_volume_follows_its_filesystem_to_another_node() {
        assert!(is_to_follow(&volume(), pool(1)));
        let mut other = volume();
        "slow".clone_into(&mut other.spec.pool_name);
        assert!(!is_to_follow(&other, pool(1)), "another pool");
        let mut here = volume();
        "node-2".clone_into(&mut here.spec.node_name);
        assert!(!is_to_follow(&here, pool(1)), "it is there");
        assert!(
            !is_to_follow(&ready_volume(), pool(1)),
            "another filesystem"
        );
        let mut unmade = volume();
        unmade.status.as_mut().unwrap().image = None;
        assert!(!is_to_follow(&unmade, pool(1)), "it has no image");
    }

    #[test]
    fn a_volume_that_was_verified_after_the_takeover_does_not_follow() {
        let mut returned = volume();
        returned.status.as_mut().unwrap().takeovers = 2;
        assert!(!is_to_follow(&returned, pool(1)) && !is_to_follow(&returned, pool(2)));
        assert!(is_to_follow(&returned, pool(3)));
        let mut moved = volume();
        moved.spec.takeovers = 2;
        assert!(!is_to_follow(&moved, pool(2)));
    }

    #[test]
    fn a_pool_is_taken_over_once_the_agent_reports_the_granted_filesystem_as_its_own() {
        let mut node = node();
        assert!(taken_over(&node).is_empty(), "no grant");
        node.spec.pools[0].take_over = Some(owner("another"));
        assert!(taken_over(&node).is_empty());
        node.spec.pools[0].take_over = Some(owner(UUID));
        assert_eq!(taken_over(&node).len(), 1);
        node.status.as_mut().unwrap().pools[0].belongs_to = Some(owner(UUID));
        assert!(taken_over(&node).is_empty(), "not yet");
    }

    #[test]
    fn a_volume_follows_once_the_node_with_its_disk_can_use_it() {
        let mut node = node();
        node.status.as_mut().unwrap().pools[0].takeovers = 1;
        assert!(!has_disk_of(&node, &volume()), "no grant");
        node.spec.pools[0].take_over = Some(owner(UUID));
        assert!(has_disk_of(&node, &volume()));
        assert!(!has_disk_of(&node, &ready_volume()), "another filesystem");
        let mut there = volume();
        "node-2".clone_into(&mut there.spec.node_name);
        assert!(!has_disk_of(&node, &there), "it has followed");
        node.status.as_mut().unwrap().pools[0].conditions.clear();
        assert!(!has_disk_of(&node, &volume()), "the pool is not ready");
    }
}
