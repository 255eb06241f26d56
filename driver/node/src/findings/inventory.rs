//! Reads what the node has. Blocks.

use std::io;

use cistern_crds::StorageNodeSpec;
use cistern_host::{Inventory, Root, Uid};

/// The volume groups that are pools of a node: the UID of each pool, and the name of its group if that is given.
pub fn groups(spec: &StorageNodeSpec) -> Vec<(Uid, Option<String>)> {
    let pools = spec.pools.iter();
    let pools = pools.filter(|pool| !pool.source.has_images());
    let groups = pools.filter_map(|pool| {
        let group = pool.source.volume_group.as_ref();
        Some((pool.uid.parse().ok()?, group.map(|it| it.name.clone())))
    });
    groups.collect()
}

/// Lists everything of Cistern on the node, with what is in these volume groups. Fails if the folder of the pools or the kernel's
/// tables cannot be read.
pub fn inventory(root: &Root, groups: &[(Uid, Option<String>)]) -> io::Result<Inventory> {
    root.inventory_with(groups)
}
