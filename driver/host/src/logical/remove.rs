//! Removing volumes, and what an interrupted creation left.

use super::{State, VolumeGroup, making::Making, volume::LogicalVolume};
use crate::{
    cause::Cause,
    id::Uid,
    image::{Error, IdentityConflict, failed},
};

impl VolumeGroup {
    /// Removes a volume. Succeeds when it does not exist; fails while something uses it, or is a snapshot or a cache of
    /// it. Its data stays on the disks until they are used again: a new volume is zeroed first.
    pub fn remove(&self, uid: &Uid) -> Result<(), Error> {
        match self.find(uid)? {
            Some(volume) => {
                self.refuse_others(&volume)?;
                volume.refuse_dependents()?;
                self.refuse_in_use(&volume)?;
                self.remove_volume(&volume)
            }
            None => Ok(()),
        }
    }

    /// Fails while something uses a volume, or is a snapshot or a cache of it. Succeeds when it does not exist.
    pub fn check_unused(&self, uid: &Uid) -> Result<(), Error> {
        match self.find(uid)? {
            Some(volume) => {
                volume.refuse_dependents()?;
                self.refuse_in_use(&volume)
            }
            None => Ok(()),
        }
    }

    /// Removes the volumes whose creation was interrupted, and returns their number. Keeps one that is being made, or
    /// that has a snapshot or a cache. Resumes devices that an interrupted command has left suspended. Fails if one
    /// cannot be removed or resumed.
    pub fn sweep(&self) -> Result<usize, Error> {
        let listed = self.logical_volumes()?;
        self.resume(&listed)?;
        let mut removed = 0;
        for volume in listed.iter().filter(|volume| is_left(volume)) {
            let Some(_sweeping) = Making::unless_made(self.path_of(&volume.uid)) else {
                continue;
            };
            // It may have become whole since it was listed.
            let found = self.find(&volume.uid)?.filter(is_left);
            if let Some(volume) = found
                && self.refuse_others(&volume).is_ok()
                && volume.refuse_dependents().is_ok()
            {
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

    /// Removes a logical volume, and with it its snapshots and caches.
    pub(super) fn lvremove(&self, uid: &Uid) -> Result<(), Cause> {
        let command = self.lvm.command("lvremove").arg("--yes");
        self.change(&command.operand(self.path_of(uid)))
    }

    fn remove_volume(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let uid = &volume.uid;
        let Err(cause) = self.lvremove(uid) else {
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

/// Whether a volume is what an interrupted call has left, unless it is being made.
fn is_left(volume: &LogicalVolume) -> bool {
    volume.state == State::Making && !volume.is_open
}
