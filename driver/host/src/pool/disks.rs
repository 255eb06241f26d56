//! Lists the disks of the host, and says on which of them a pool can be created.
//!
//! *Invariants:* nothing is written. A disk without a stable name and a removable one are not opened. What
//! is blank is decided as for the listed devices of a pool.

use std::{
    collections::BTreeSet,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use super::{
    ReplacedDisk, Unusable,
    backing::{has_no_content, open_device},
    inspection,
};
use crate::{
    cause::Cause,
    root::Root,
    system::{DeviceNumber, Disk, OFlags, System},
};

/// The number of the device of a path. Does not open the device.
pub(crate) fn number_of(system: &dyn System, path: &Path) -> io::Result<DeviceNumber> {
    let file = system.open_following(path, OFlags::PATH)?;
    Ok(system.stat(file.as_fd())?.node)
}

/// Why the device of a path is not blank; None if it is blank and nothing holds it. Fails if it cannot be inspected.
pub(crate) fn objection_to_path(
    root: &Root,
    path: &Path,
) -> Result<(DeviceNumber, Option<Unusable>), Cause> {
    let (device, number) = open_device(&*root.system, path, OFlags::RDONLY)?;
    drop(device);
    Ok((number, inspection::objection(root, path, number, &[])?))
}

impl Root {
    /// Lists the disks of the host, by the kernel's names. Opens none of them.
    pub fn disks(&self) -> io::Result<Vec<Disk>> {
        self.system.disks()
    }

    /// The paths of the disks that a pool may use, in the order of their names: those that have a stable name,
    /// are not removable, and meet the condition, without the devices of the paths in `except`. Opens no
    /// device. Fails if one of these paths cannot be followed, unless nothing is there.
    pub fn matching_disks(
        &self,
        matches: impl Fn(&Disk) -> bool,
        except: &[PathBuf],
    ) -> io::Result<Vec<PathBuf>> {
        let mut others = BTreeSet::new();
        for path in except {
            match number_of(&*self.system, path) {
                Ok(number) => _ = others.insert(number),
                Err(error) if has_no_content(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let disks = self.disks()?.into_iter();
        let disks =
            disks.filter(|disk| !disk.removable && !others.contains(&disk.number) && matches(disk));
        let mut paths: Vec<PathBuf> = disks.filter_map(|disk| disk.path).collect();
        paths.sort();
        Ok(paths)
    }

    /// Why no pool can be created on a disk; None if it is blank and nothing holds it. `replaced` is the
    /// former disks of the pools of the node. Blocks if the disk hangs.
    pub fn objection_to(&self, disk: &Disk, replaced: &[ReplacedDisk]) -> Option<Unusable> {
        if disk.removable {
            return Some(Unusable::Removable);
        }
        let Some(path) = &disk.path else {
            return Some(Unusable::NoStableName);
        };
        match inspection::objection(self, path, disk.number, replaced) {
            Ok(objection) => objection,
            Err(cause) => Some(cause.into()),
        }
    }
}
