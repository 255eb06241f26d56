//! Indexes of a [`View`], so that the comparison takes linear time.

use std::collections::{HashMap, HashSet};

use cistern_crds::Bytes;
use cistern_host::system::DeviceNumber;
use kube::ResourceExt;

use super::{
    View, charged_size,
    owners::{ImageOwner, Unclaimed, UnclaimedMoving},
};

/// What the objects, devices and mounts of a node refer to.
pub(super) struct Index<'a> {
    /// Custom resources by image.
    pub(super) owners: HashMap<&'a str, ImageOwner<'a>>,
    /// Images that no custom resource claims.
    pub(super) unclaimed: Vec<Unclaimed<'a>>,
    /// Closed images and copies that no custom resource claims.
    pub(super) unclaimed_moving: Vec<UnclaimedMoving<'a>>,
    /// UID of the pool and name of each image outside the trash, also of those that are closed for a move.
    pub(super) images: HashSet<(&'a str, &'a str)>,
    /// Names of the PoolSnapshots.
    pub(super) snapshots: HashSet<String>,
    /// Names of the PoolSnapshotGroups.
    pub(super) groups: HashSet<String>,
    /// Devices that are mounted or published.
    pub(super) used: HashSet<DeviceNumber>,
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
        let mounted = mounts.map(|mount| mount.device);
        let published = view.inventory.nodes.iter().map(|node| node.device);
        Self {
            unclaimed: view.unclaimed_by(&owners),
            unclaimed_moving: view.unclaimed_moving(&owners),
            owners,
            images: images.collect(),
            snapshots: view.snapshots.iter().map(ResourceExt::name_any).collect(),
            groups: view.groups.iter().map(ResourceExt::name_any).collect(),
            used: mounted.chain(published).collect(),
        }
    }

    /// Bytes that the ledger counts for what no custom resource claims in a pool.
    pub(super) fn unclaimed_in(&self, pool_uid: &str) -> Bytes {
        let images = self.unclaimed.iter();
        let images = images.filter(|it| it.pool.uid.as_str() == pool_uid);
        let moving = self.unclaimed_moving.iter();
        let moving = moving.filter(|it| it.pool.uid.as_str() == pool_uid);
        let images = images.map(|it| charged_size(it.image));
        images.chain(moving.map(UnclaimedMoving::charged)).sum()
    }
}
