//! What a volume group has, as the comparison of a node with its custom resources needs it.

use std::path::Path;

use super::{Error, State, claim, command::Lvm, tags, volume::LogicalVolume};
use crate::{
    id::{Uid, Uuid},
    image::Image,
    inventory::PoolInventory,
    root::Root,
};

impl Root {
    /// Returns what a volume group has that is the pool with this UID; none if there is no such group, or if it is no pool.
    /// The result says why a group cannot be read. Asks LVM, for one that is another pool, too.
    pub fn group_inventory(&self, uid: &Uid, name: &str) -> Option<PoolInventory> {
        let path = Path::new("/dev").join(name);
        match read(self, name) {
            Ok(found) => found.map(|found| PoolInventory {
                mount_point: path.clone(),
                temporary: found.making.iter().map(|name| path.join(name)).collect(),
                images: found.images,
                name: found.pool_name,
                filesystem_uuid: Some(found.pool_uuid),
                ..PoolInventory::of(found.pool)
            }),
            Err(Error::Missing { .. }) => None,
            Err(error) => Some(PoolInventory {
                mount_point: path,
                silent: Some(error.to_string()),
                ..PoolInventory::of(uid.clone())
            }),
        }
    }
}

/// A group that is a pool.
struct Found {
    pool: Uid,
    pool_name: Option<String>,
    pool_uuid: Uuid,
    images: Vec<Image>,
    /// Names of logical volumes that are not whole.
    making: Vec<String>,
}

/// Reads a group; none if it is no pool.
fn read(root: &Root, name: &str) -> Result<Option<Found>, Error> {
    let system = &*root.system;
    let lvm = Lvm::new(root);
    let lvm = lvm.map_err(|error| claim::failed("list the devices", name)(error.into()))?;
    let row = claim::read(system, &lvm, name)?;
    let tag = |field| tags::value(&row.tags, field);
    let pool = tag("pool").and_then(|uid| uid.parse().ok());
    let uuid = tag("pool-uuid").and_then(|uuid| uuid.parse().ok());
    let (Some(pool), Some(pool_uuid)) = (pool, uuid) else {
        return Ok(None);
    };
    let volumes = LogicalVolume::list(system, &lvm, name);
    let volumes = volumes.map_err(claim::failed("list the volumes", name))?;
    let (made, making): (Vec<_>, Vec<_>) = volumes
        .into_iter()
        .partition(|volume| volume.state == State::Made);
    Ok(Some(Found {
        pool,
        pool_name: tag("pool-name").map(str::to_owned),
        pool_uuid,
        images: made.into_iter().map(LogicalVolume::into_image).collect(),
        making: making.iter().map(LogicalVolume::name).collect(),
    }))
}
