//! Removing volumes, and what an interrupted creation left.

use super::{State, VolumeGroup, making::Making, volume::LogicalVolume};
use crate::{
    cause::Cause,
    id::Uid,
    image::{Error, IdentityConflict, failed},
};

impl VolumeGroup {
    /// Removes a volume. Succeeds when it does not exist; fails while something uses it. Its data stays on the disks until
    /// they are used again: a new volume is zeroed first.
    pub fn remove(&self, uid: &Uid) -> Result<(), Error> {
        match self.find(uid)? {
            Some(volume) => {
                self.refuse_others(&volume)?;
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

    /// Removes the volumes whose creation was interrupted, and returns their number. Keeps one that is being made. Fails if one
    /// cannot be removed.
    pub fn sweep(&self) -> Result<usize, Error> {
        let mut removed = 0;
        for volume in self.logical_volumes()? {
            let is_left = volume.state == State::Making
                && !volume.is_open
                && !Making::includes(&self.path_of(&volume.uid));
            if is_left && self.refuse_others(&volume).is_ok() {
                self.remove_volume(&volume)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Fails if a volume was made in another pool, whose group was merged into this one, or if it has no identity.
    fn refuse_others(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let identity = volume.identity.as_ref();
        let why = match identity.map(|identity| identity.pool_uuid) {
            Some(pool) if pool == self.pool_uuid() => return Ok(()),
            Some(_) => IdentityConflict::OtherPool {
                pool: self.to_string(),
            },
            None => IdentityConflict::NoIdentity,
        };
        let uid = volume.uid.clone();
        Err(Error::IdentityConflict { uid, why })
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
