//! Former disks of a pool: they are recognized by the UUID of their filesystem, and one that cannot be read by
//! its identity.
//!
//! *Invariant:* a disk that cannot be read is a former disk only if its identity says so. Otherwise it may be
//! the pool.

use std::{io, os::fd::AsFd as _, path::Path};

use cistern_types::FilesystemType;

use super::{Expectation, PoolDeclaration, Unusable};
use crate::{
    id::Uuid,
    superblock::Superblock,
    system::{OFlags, System},
};

/// A former disk of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedDisk {
    /// UUID of the pool's filesystem on it.
    pub filesystem_uuid: Uuid,
    /// Its identity; None if it has none.
    pub identity: Option<String>,
}

impl PoolDeclaration {
    /// Whether the pool is on a disk that it is to leave.
    pub fn replaces(&self, expectation: Expectation) -> bool {
        let Expectation::Known { filesystem_uuid } = expectation else {
            return false;
        };
        let mut listed = self.replaced.iter();
        listed.any(|disk| disk.filesystem_uuid == filesystem_uuid)
    }
}

/// Why the device of a filesystem is not used, if it is a former disk.
pub(super) fn unusable(replaced: &[ReplacedDisk], found: &Superblock) -> Option<Unusable> {
    let is_listed = replaced.iter().any(|it| it.filesystem_uuid == found.uuid);
    (is_listed && found.kind == FilesystemType::Xfs).then_some(Unusable::Replaced(found.uuid))
}

/// Whether the device of a path has the identity of a former disk. Asks the kernel, and not the device.
pub(super) fn is_by_identity(system: &dyn System, replaced: &[ReplacedDisk], path: &Path) -> bool {
    let identity = || -> io::Result<Option<String>> {
        let device = system.open_following(path, OFlags::PATH)?;
        match system.stat(device.as_fd())?.device() {
            Some(number) => system.device_identity(number),
            None => Ok(None),
        }
    };
    // A device whose identity is not known may be the pool.
    let Ok(Some(found)) = identity() else {
        return false;
    };
    let mut listed = replaced.iter().filter_map(|it| it.identity.as_ref());
    listed.any(|identity| *identity == found)
}
