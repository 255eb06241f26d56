//! Lists the disks of the host, and says on which of them a pool can be created.
//!
//! *Invariants:* nothing is written. A disk without a stable name and a removable one are not opened. What is blank is decided as for the listed devices of a pool.

use std::io;

use super::{Unusable, inspection};
use crate::{root::Root, system::Disk};

impl Root {
    /// Lists the disks of the host, by the kernel's names. Opens none of them.
    pub fn disks(&self) -> io::Result<Vec<Disk>> {
        self.system.disks()
    }

    /// Why no pool can be created on a disk; None if it is blank and nothing holds it. Blocks if the disk
    /// hangs.
    pub fn objection_to(&self, disk: &Disk) -> Option<Unusable> {
        if disk.removable {
            return Some(Unusable::Removable);
        }
        let Some(path) = &disk.path else {
            return Some(Unusable::NoStableName);
        };
        match inspection::objection(self, path, disk.number) {
            Ok(objection) => objection,
            Err(cause) => Some(cause.into()),
        }
    }
}
