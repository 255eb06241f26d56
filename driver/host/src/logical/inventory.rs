//! What a volume group has, as the comparison of a node with its custom resources needs it.

use std::io;

use super::{
    Error, State, claim,
    search::{self, Wanted},
    volume::LogicalVolume,
};
use crate::{
    id::Uid,
    image::Image,
    inventory::{LogicalInventory, PoolInventory},
    pool::{self, PoolRecord},
    root::Root,
    system::System,
};

impl Root {
    /// Returns what a volume group has that is the pool with this UID: the group with a given name, or the only one whose
    /// tags say so. None if there is no such group, or if it is no pool. The result says why a group cannot be read, or
    /// which ones may be the pool. Asks LVM, for one that is another pool, too.
    pub fn group_inventory(&self, uid: &Uid, name: Option<&str>) -> Option<PoolInventory> {
        let mut path = claim::path_of(name.unwrap_or(uid.as_str()));
        let found = match name {
            Some(name) => read(self, name),
            None => match find(self, uid) {
                Ok(None) => return None,
                Ok(Some(name)) => {
                    path = claim::path_of(&name);
                    read(self, &name)
                }
                Err(error) => Err(error),
            },
        };
        match found {
            Ok(found) => found.map(|found| PoolInventory {
                mount_point: path.clone(),
                temporary: found.making.iter().map(|name| path.join(name)).collect(),
                images: found.images,
                logical: found.logical,
                name: Some(found.record.pool_name),
                filesystem_uuid: Some(found.record.filesystem_uuid),
                ..PoolInventory::of(found.record.pool_uid)
            }),
            Err(pool::Error::Group(Error::Missing { .. })) => None,
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
    record: PoolRecord,
    images: Vec<Image>,
    logical: Vec<LogicalInventory>,
    /// Names of logical volumes that are not whole.
    making: Vec<String>,
}

/// Finds the group of a pool by its tags.
fn find(root: &Root, uid: &Uid) -> Result<Option<String>, pool::Error> {
    let lvm = claim::lvm(root, &format!("of pool {uid}"))?;
    search::find(&lvm, Wanted::Uid(uid))
}

/// Reads a group; none if it is no pool.
fn read(root: &Root, name: &str) -> Result<Option<Found>, pool::Error> {
    let lvm = claim::lvm(root, name)?;
    let (row, disks) = claim::read(&lvm, name)?;
    let Some(record) = claim::record_of(&row, name)? else {
        return Ok(None);
    };
    let volumes = LogicalVolume::list(&lvm, name);
    let volumes = volumes.map_err(claim::failed("list the volumes", name))?;
    let logical = active(&*root.system, &volumes);
    let logical = logical.map_err(|error| claim::failed("list the devices", name)(error.into()))?;
    let disks = claim::numbers(&disks, name)?;
    let sector_size = claim::sector_size(&*root.system, &disks, name)?;
    let (made, making): (Vec<_>, Vec<_>) = volumes
        .into_iter()
        .partition(|volume| volume.state != State::Making);
    Ok(Some(Found {
        record,
        images: made
            .into_iter()
            .map(|volume| volume.into_image(sector_size))
            .collect(),
        logical,
        making: making.iter().map(LogicalVolume::name).collect(),
    }))
}

/// The logical volumes among these that have a device.
fn active(system: &dyn System, volumes: &[LogicalVolume]) -> io::Result<Vec<LogicalInventory>> {
    let mapped = system.mapped_devices()?;
    let mut all = Vec::new();
    for volume in volumes {
        if let Some(device) = volume.device_among(&mapped) {
            all.push(LogicalInventory {
                device,
                image: volume.uid.clone(),
                is_mapped: system.mapping_over(device)?.is_some(),
            });
        }
    }
    Ok(all)
}
