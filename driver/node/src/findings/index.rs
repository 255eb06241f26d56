//! Indexes of a [`View`], so that the comparison takes linear time.

use std::collections::{HashMap, HashSet};

use kube::ResourceExt;

use super::{
    View,
    owners::{ImageOwner, Unclaimed},
};

/// What the objects, devices and mounts of a node refer to.
pub(super) struct Index<'a> {
    /// Custom resources by image.
    pub(super) owners: HashMap<&'a str, ImageOwner<'a>>,
    /// Images that no custom resource claims.
    pub(super) unclaimed: Vec<Unclaimed<'a>>,
    /// UID of the pool and name of each image outside the trash, also of those that are closed for a move.
    pub(super) images: HashSet<(&'a str, &'a str)>,
    /// Names of the PoolSnapshots.
    pub(super) snapshots: HashSet<String>,
    /// Names of the PoolSnapshotGroups.
    pub(super) groups: HashSet<String>,
    /// Numbers of the loop devices that are mounted or published.
    pub(super) used_loops: HashSet<u32>,
}

impl<'a> Index<'a> {
    pub(super) fn new(view: &'a View) -> Self {
        let owners = view.owners();
        let pools = view.inventory.pools.iter();
        let images = pools.flat_map(|pool| {
            let closed = pool.closed.iter().map(|closed| &closed.image);
            let images = pool.images.iter().chain(closed);
            images.map(|image| (pool.uid.as_str(), image.uid.as_str()))
        });
        let mounts = view.inventory.mounts.iter();
        let mounted = mounts.filter_map(|mount| mount.device.as_loop());
        let published = view.inventory.nodes.iter().map(|node| node.number);
        Self {
            unclaimed: view.unclaimed_by(&owners),
            owners,
            images: images.collect(),
            snapshots: view.snapshots.iter().map(ResourceExt::name_any).collect(),
            groups: view.groups.iter().map(ResourceExt::name_any).collect(),
            used_loops: mounted.chain(published).collect(),
        }
    }
}
