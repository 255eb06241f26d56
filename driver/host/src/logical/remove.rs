//! Removing volumes, and what an interrupted creation left.

use super::{State, VolumeGroup, volume::LogicalVolume};
use crate::{
    cause::Cause,
    id::Uid,
    image::{Error, failed},
};

impl VolumeGroup {
    /// Removes a volume. Succeeds when it does not exist; fails while something uses it. Its data stays on the disks until
    /// they are used again: a new volume is zeroed first.
    pub fn remove(&self, uid: &Uid) -> Result<(), Error> {
        match self.find(uid)? {
            Some(volume) => {
                self.refuse_in_use(&volume)?;
                self.remove_volume(&volume)
            }
            None => Ok(()),
        }
    }

    /// Fails while something uses a volume. Succeeds when it does not exist.
    pub fn check_unused(&self, uid: &Uid) -> Result<(), Error> {
        match self.find(uid)? {
            Some(volume) => self.refuse_in_use(&volume),
            None => Ok(()),
        }
    }

    /// Removes the volumes whose creation was interrupted, and returns their number. Call this before the first volume is
    /// made: one that is being made is removed, too, unless its device is open. Fails if one cannot be removed.
    pub fn sweep(&self) -> Result<usize, Error> {
        let mut removed = 0;
        for volume in self.logical_volumes()? {
            if volume.state == State::Making && !volume.is_open {
                self.remove_volume(&volume)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn remove_volume(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let uid = &volume.uid;
        let command = self.lvm.command("lvremove").arg("--yes");
        let command = command.operand(self.path_of(uid));
        let Err(cause) = self.lvm.run(&*self.system, &command) else {
            return Ok(());
        };
        // LVM has one exit code for all failures.
        match self.find(uid)? {
            None => Ok(()),
            Some(volume) => {
                self.refuse_in_use(&volume)?;
                Err(failed::<Cause>("remove the logical volume", uid)(cause))
            }
        }
    }
}
