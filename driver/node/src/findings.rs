//! Inconsistencies between the node and its custom resources. Pure.

mod index;
mod kind;
mod owners;

use std::collections::HashMap;

use cistern_crds::{
    Bytes, ConditionType, HasImage, NodePool, NodePoolStatus, PoolReplica, PoolSnapshot,
    PoolSnapshotGroup, PoolVolume, StorageNode, StorageNodeSpec, condition,
};
use cistern_host::{
    Inventory, Owner, PoolInventory, Uid,
    inventory::LogicalInventory,
    loopdev::any_image_of,
    system::{BoundLoop, DeviceNumber},
};
use kube::ResourceExt as _;

use self::{
    index::Index,
    kind::finding,
    owners::{UnclaimedMoving, image_of},
};
pub use self::{
    kind::{Finding, FindingKind},
    owners::Unclaimed,
};
use crate::image::ImageObject;

/// The state of both sides when they were read.
#[derive(Debug)]
pub struct View {
    /// The node's custom resource, if there is one.
    pub node: Option<StorageNode>,
    /// The PoolVolumes of the node.
    pub volumes: Vec<PoolVolume>,
    /// The PoolSnapshots of the node.
    pub snapshots: Vec<PoolSnapshot>,
    /// The PoolSnapshotGroups of the node.
    pub groups: Vec<PoolSnapshotGroup>,
    /// The PoolReplicas of the node.
    pub replicas: Vec<PoolReplica>,
    /// The custom resources of the node that this version cannot read. The lists above lack them.
    pub unreadable: Vec<Unreadable>,
    /// Pools, images, loop devices and mounts of the node.
    pub inventory: Inventory,
}

/// A custom resource that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Kind and name.
    pub object: String,
    /// What the parser says.
    pub error: String,
}

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

/// Returns all inconsistencies between the two sides. If a custom resource cannot be read, nothing is said to be unclaimed.
pub fn findings(view: &View) -> Vec<Finding> {
    let index = Index::new(view);
    let mut all = Vec::new();
    all.extend(view.pools());
    all.extend(index.unclaimed.iter().map(Unclaimed::finding));
    all.extend(view.conflicts(&index.owners));
    let moving = index.unclaimed_moving.iter();
    all.extend(moving.map(UnclaimedMoving::finding));
    let volumes = view.volumes.iter();
    all.extend(volumes.filter_map(|it| view.object(it, &index, FindingKind::VolumeWithoutImage)));
    let snapshots = view.snapshots.iter();
    let missing = FindingKind::SnapshotWithoutImage;
    all.extend(snapshots.filter_map(|it| view.object(it, &index, missing)));
    all.extend(view.groups(&index));
    all.extend(view.ledgers(&index));
    all.extend(view.loops(&index));
    all.extend(view.mappings(&index));
    all.extend(view.mounts(&index));
    if !view.unreadable.is_empty() {
        all.retain(|finding| !finding.kind.needs_all_objects());
    }
    all.extend(view.unreadable.iter().map(Unreadable::finding));
    all
}

impl Unreadable {
    fn finding(&self) -> Finding {
        let message = format!(
            "{}; it is left alone, and what it claims is unknown: nothing is reported as unclaimed until the object is \
             corrected, or read with the version that wrote it",
            self.error
        );
        finding(FindingKind::ObjectUnreadable, &self.object, message)
    }
}

impl View {
    fn specs(&self) -> &[NodePool] {
        self.node.as_ref().map_or(&[], |node| &node.spec.pools)
    }

    fn statuses(&self) -> &[NodePoolStatus] {
        let status = self.node.as_ref().and_then(|node| node.status.as_ref());
        status.map_or(&[], |status| &status.pools)
    }

    fn pool(&self, uid: &str) -> Option<&PoolInventory> {
        self.inventory
            .pools
            .iter()
            .find(|pool| pool.uid.as_str() == uid)
    }

    fn pools(&self) -> Vec<Finding> {
        let mut all = Vec::new();
        for spec in self.specs() {
            let was_made = self
                .statuses()
                .iter()
                .any(|status| status.uid == spec.uid && status.filesystem_uuid.is_some());
            let found = self.pool(&spec.uid);
            let is_mounted = found.is_some_and(PoolInventory::is_mounted);
            if was_made && !is_mounted {
                let message = "its volumes cannot be used; the pool's condition has the reason";
                all.push(finding(FindingKind::PoolNotMounted, &spec.name, message));
            }
        }
        for pool in &self.inventory.pools {
            let is_carried = self
                .specs()
                .iter()
                .any(|spec| spec.uid == pool.uid.as_str());
            if !is_carried && pool.silent.is_none() {
                let message = "it is kept as it is: the StoragePool was removed by force, or its \
                               StorageNode has not come back yet";
                all.push(finding(
                    FindingKind::PoolWithoutNode,
                    pool_named(pool),
                    message,
                ));
            }
            if let Some(why) = &pool.silent {
                let message = format!("its content is unknown: {why}");
                all.push(finding(FindingKind::PoolSilent, pool_named(pool), message));
            }
            let strays = pool.strays.iter();
            all.extend(
                strays.map(|stray| finding(FindingKind::Stray, stray.path.display(), NOT_OURS)),
            );
            let message = "the agent removes it at its next scan, unless it is being made now";
            let unfinished = pool.temporary.iter();
            all.extend(
                unfinished
                    .map(|path| finding(FindingKind::UnfinishedImage, path.display(), message)),
            );
        }
        let strays = self.inventory.strays.iter();
        all.extend(strays.map(|path| finding(FindingKind::Stray, path.display(), NOT_OURS)));
        all
    }

    /// The inconsistency of a volume or snapshot: `missing` if its image is gone.
    fn object<K: ImageObject>(
        &self,
        object: &K,
        index: &Index<'_>,
        missing: FindingKind,
    ) -> Option<Finding> {
        let name = object.name_any();
        if object.deletion_requested() {
            let reclaimed = condition::holds(object.conditions(), ConditionType::Reclaimed);
            let message = if reclaimed {
                "its data is destroyed and its object remains: the controller removes it when its \
                 deletion is requested again"
            } else {
                "its data is being destroyed; its condition Reclaimed says what that waits for"
            };
            return Some(finding(FindingKind::DeletionUnfinished, name, message));
        }
        let pool_name = object.pool_name();
        let spec = self.specs().iter().find(|spec| spec.name == pool_name);
        let pool = spec.and_then(|spec| self.pool(&spec.uid));
        // A pool that is not mounted is one finding of the pool.
        let pool = pool.filter(|pool| pool.is_mounted() && pool.silent.is_none())?;
        let image = image_of(object);
        let is_there = index.images.contains(&(pool.uid.as_str(), image));
        let message = format!("image {image} is not in pool {pool_name}");
        (object.is_announced() && !is_there).then(|| finding(missing, name, message))
    }

    fn groups(&self, index: &Index<'_>) -> Vec<Finding> {
        let mut all = Vec::new();
        for group in &self.groups {
            let status = group.status.as_ref();
            let is_taken = status.is_some_and(|status| status.creation_time.is_some());
            // The snapshots of a group across nodes are not all on this node.
            if group.spec.deletion_requested || !is_taken || group.spec.across_nodes {
                continue;
            }
            for member in &group.spec.members {
                if !index.snapshots.contains(&member.snapshot) {
                    let (snapshot, volume) = (&member.snapshot, &member.volume);
                    let message = format!("its snapshot {snapshot} of volume {volume} is gone");
                    all.push(finding(
                        FindingKind::GroupIncomplete,
                        group.name_any(),
                        message,
                    ));
                }
            }
        }
        for snapshot in &self.snapshots {
            let name = snapshot.spec.group_name.as_ref();
            let Some(name) = name.filter(|_| !snapshot.spec.across_nodes) else {
                continue;
            };
            if !index.groups.contains(name) {
                let message = if snapshot.is_announced() {
                    format!("it belongs to group {name}, which is gone")
                } else {
                    format!(
                        "it was never taken, because its group {name} does not exist: remove its \
                         finalizer and delete the PoolSnapshot; it has no data"
                    )
                };
                all.push(finding(
                    FindingKind::GroupIncomplete,
                    snapshot.name_any(),
                    message,
                ));
            }
        }
        all
    }

    /// Compares the reserved bytes in the status with the objects and images that reserve them.
    fn ledgers(&self, index: &Index<'_>) -> Vec<Finding> {
        let mut all = Vec::new();
        for status in self.statuses() {
            let volumes = self.reserved_for_volumes(&status.name);
            let snapshots = reserved(&self.snapshots, &status.name);
            let pool = self.pool(&status.uid);
            if pool.is_some_and(|pool| pool.silent.is_some()) {
                continue;
            }
            let strays = pool.into_iter().flat_map(|pool| &pool.strays);
            let strays: Bytes = strays.filter_map(|stray| stray.size).sum();
            let expected = volumes
                .saturating_add(snapshots)
                .saturating_add(self.reserved_for_replicas(&status.name))
                .saturating_add(index.unclaimed_in(&status.uid))
                .saturating_add(strays);
            if expected != status.reserved {
                let message = format!(
                    "the agent reports {} as reserved, but volumes, snapshots, replicas, images and other \
                     files add up to {expected}",
                    status.reserved
                );
                all.push(finding(FindingKind::LedgerMismatch, &status.name, message));
            }
        }
        all
    }

    /// Bytes that volumes have reserved in a pool, with their headers.
    fn reserved_for_volumes(&self, pool: &str) -> Bytes {
        let of_pool = self.volumes.iter().filter(|it| it.spec.pool_name == pool);
        let bytes = |volume: &PoolVolume| Some(volume.reserved()?.saturating_add(volume.header()));
        of_pool.filter_map(bytes).sum()
    }

    /// Bytes that replicas have reserved in a pool. A volume with a reservation counts its image by itself.
    fn reserved_for_replicas(&self, pool: &str) -> Bytes {
        let counts = |replica: &&PoolReplica| {
            let mut volumes = self.volumes.iter();
            replica.spec.pool_name == pool
                && !volumes.any(|volume| {
                    volume.name_any() == replica.spec.volume_name && volume.reserved().is_some()
                })
        };
        let replicas = self.replicas.iter().filter(counts);
        replicas.filter_map(HasImage::reserved).sum()
    }

    fn loops(&self, index: &Index<'_>) -> Vec<Finding> {
        let is_idle =
            |bound: &&BoundLoop| !index.used.contains(&DeviceNumber::of_loop(bound.number));
        let idle = self.inventory.loops.iter().filter(is_idle);
        idle.map(|bound| {
            let message = format!(
                "it is bound to {} and neither mounted nor published here: another mount \
                 namespace may hold it",
                bound.backing_file.display()
            );
            finding(
                FindingKind::LoopWithoutUse,
                format!("/dev/loop{}", bound.number),
                message,
            )
        })
        .collect()
    }

    fn logical(&self) -> impl Iterator<Item = &LogicalInventory> {
        self.inventory.pools.iter().flat_map(|pool| &pool.logical)
    }

    fn mappings(&self, index: &Index<'_>) -> Vec<Finding> {
        let is_idle = |it: &&LogicalInventory| it.is_mapped && !index.used.contains(&it.device);
        let idle = self.logical().filter(is_idle);
        idle.map(|it| {
            let message = format!(
                "the data of image {} is decrypted, and neither mounted nor published here: another \
                 mount namespace may hold it",
                it.image
            );
            let device = format!("/dev/dm-{}", it.device.minor);
            finding(FindingKind::MappingWithoutUse, device, message)
        })
        .collect()
    }

    fn mounts(&self, index: &Index<'_>) -> Vec<Finding> {
        let loops = self.inventory.loops.iter();
        let loops = loops.filter_map(|bound| {
            let device = DeviceNumber::of_loop(bound.number);
            Some((device, any_image_of(&bound.backing_file)?))
        });
        let logical = self.logical().map(|it| (it.device, it.image.clone()));
        let images: HashMap<DeviceNumber, Uid> = loops.chain(logical).collect();
        let mut all = Vec::new();
        let mounts = self.inventory.mounts.iter();
        let mounts = mounts.map(|mount| (mount.device, mount));
        let nodes = self.inventory.nodes.iter();
        for (device, mount) in mounts.chain(nodes.map(|node| (node.device, &node.mount))) {
            let image = images.get(&device);
            if let Some(image) = image
                && !index.owners.contains_key(image.as_str())
            {
                let message =
                    format!("image {image} is mounted there, but no custom resource claims it");
                all.push(finding(
                    FindingKind::MountWithoutVolume,
                    mount.mount_point.display(),
                    message,
                ));
            }
        }
        all
    }
}

/// The name and uid of a pool.
fn pool_named(pool: &PoolInventory) -> String {
    match &pool.name {
        Some(name) => format!("{name} ({})", pool.uid),
        None => pool.uid.to_string(),
    }
}

const NOT_OURS: &str = "Cistern did not make it and leaves it alone: move it away";

/// Bytes that the objects of a kind have reserved in a pool.
fn reserved<K: HasImage>(objects: &[K], pool: &str) -> Bytes {
    let of_pool = objects.iter().filter(|object| object.pool_name() == pool);
    of_pool.filter_map(HasImage::reserved).sum()
}

/// Bytes that the ledger counts for an unclaimed image: as many as its custom resource has
/// reserved. A volume may be written to its full size, and a snapshot never exceeds its allocated
/// bytes.
pub fn charged_size(image: &cistern_host::Image) -> Bytes {
    let owner = image.identity.as_ref().map(|identity| &identity.owner);
    match owner {
        Some(Owner::Snapshot(_)) => image.allocated,
        Some(Owner::Volume(_)) | None => image.file_size(),
    }
}

#[cfg(test)]
mod tests;
