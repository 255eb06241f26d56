//! Disks that join the volume group of their pool later.
//!
//! *Invariant:* a disk that cannot join changes nothing for the group, nor for the disks after it.

use std::{collections::BTreeSet, fmt, path::PathBuf};

use super::{
    VolumeGroup,
    disks::{BlankDisk, inspect, prepare},
};
use crate::{
    cause::Cause,
    pool::{self, Unusable, list},
    system::DeviceNumber,
};

/// What came of adding disks to a volume group.
#[derive(Debug, Default)]
pub struct DisksAdded {
    /// How many have joined.
    pub count: usize,
    /// Those that exist and are not in the group.
    pub left_out: DisksLeftOut,
}

/// Disks of a pool that are not in its volume group, and why.
#[derive(Debug, Default)]
pub struct DisksLeftOut(Vec<(PathBuf, Unusable)>);

impl DisksLeftOut {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that could not be read or added. The others have something on them, or are used by something else.
    #[must_use]
    pub fn failed(self) -> Self {
        let is_failure = |(_, why): &(_, Unusable)| matches!(why, Unusable::Failed(_));
        Self(self.0.into_iter().filter(is_failure).collect())
    }
}

impl fmt::Display for DisksLeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let are = if self.0.len() == 1 { "is" } else { "are" };
        let (count, disks) = (self.0.len(), list(&self.0));
        write!(
            f,
            "{count} of its disks {are} not in its volume group: {disks}"
        )
    }
}

impl VolumeGroup {
    /// Adds the blank ones of these disks to a group that Cistern has made. Fails if it cannot be determined which of
    /// them are in the group.
    pub fn add_disks(&self, paths: &[PathBuf]) -> Result<DisksAdded, pool::Error> {
        let members = self.members()?;
        let mut found = inspect(&self.lvm, self.uid(), paths, &members)?;
        let _lock;
        if !found.blank.is_empty() {
            // Another pool that lists the same disks does not take them meanwhile.
            _lock = pool::lock(&self.root)?;
            found = inspect(&self.lvm, self.uid(), paths, &members)?;
        }
        let unread = found.unread.into_iter();
        let mut left_out: Vec<_> = unread
            .map(|(path, error)| (path, Unusable::Failed(error.into())))
            .collect();
        let mut count = 0;
        for disk in found.blank {
            match self.add(&disk) {
                Ok(()) => count += 1,
                Err(cause) => left_out.push((disk.path, Unusable::Failed(cause))),
            }
        }
        // The list can have the disks of several nodes.
        let others = found.unusable.into_iter();
        left_out.extend(others.filter(|(_, why)| !matches!(why, Unusable::Missing)));
        left_out.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(DisksAdded {
            count,
            left_out: DisksLeftOut(left_out),
        })
    }

    /// The disks that are in the group.
    fn members(&self) -> Result<BTreeSet<DeviceNumber>, pool::Error> {
        self.read()?;
        Ok(self.disks.lock().clone())
    }

    fn add(&self, disk: &BlankDisk) -> Result<(), Cause> {
        prepare(&self.lvm, self.uid(), disk)?;
        let command = self.lvm.command("vgextend").operand(&self.name);
        self.change(&command.operand(&disk.path))?;
        self.lvm.flush([&disk.path])?;
        let path = disk.path.display();
        tracing::info!(pool = %self, group = self.name, disk = %path, "added a disk to the volume group");
        Ok(())
    }
}
