//! The marker in a pool: its StoragePool, its node, and its free space when it was empty.
//!
//! *Invariants:* the marker is written as the last step of creating a pool, and replaced atomically if
//! the pool is adopted or taken over. Nothing else changes it. It is read, and replaced if necessary,
//! before the pool is mounted for use.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use cistern_types::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Conflict, Error, Expectation, PoolClaim, PoolDeclaration, PoolRecord, failed, filesystem,
};
use crate::{
    id::Uuid,
    layout::{IMAGES, TEMPORARY},
    system::{OFlags, System},
};

const NAME: &str = ".cistern-pool";
const NEW_NAME: &str = ".cistern-pool.new";
/// Read limit in bytes, longer than any marker.
const LIMIT: usize = 64 << 10;

/// The content of the marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Marker {
    /// Which pool it is.
    #[serde(flatten)]
    pub(crate) record: PoolRecord,
    /// Size of the filesystem when it was made.
    pub(crate) size: Bytes,
    /// Free space of the empty filesystem.
    pub(crate) empty: Bytes,
}

impl Marker {
    /// The marker after the claimed pool has adopted this one.
    fn settled(&self, claim: &PoolClaim) -> Self {
        Self {
            record: self.record.settled(claim),
            ..self.clone()
        }
    }

    /// Verifies that this is the marker of the filesystem that contains it, and of the claimed pool.
    fn verify(&self, path: &Path, claim: &PoolClaim, filesystem_uuid: Uuid) -> Result<(), Error> {
        if self.record.filesystem_uuid != filesystem_uuid {
            return Err(copy(path));
        }
        self.record.verify(path, claim)
    }

    /// Free space of the filesystem at its present size if it were empty.
    ///
    /// XFS keeps a reserve of a fixed size and a share of each allocation group. The result depends only
    /// on the marker and the present size, so writes to volumes and a crash of the agent during a growth
    /// do not change it.
    pub(crate) fn empty_at(&self, size: Bytes) -> Bytes {
        let share = self
            .size
            .saturating_sub(self.empty)
            .saturating_sub(reserve(self.size));
        let share = u128::from(share.0) * u128::from(size.0) / u128::from(self.size.0.max(1));
        let share = Bytes(u64::try_from(share).unwrap_or(u64::MAX));
        size.saturating_sub(share).saturating_sub(reserve(size))
    }
}

/// Blocks that XFS holds back so that it can always free space (`xfs_default_resblks`).
fn reserve(size: Bytes) -> Bytes {
    size.percent(5).min(Bytes::mib(32))
}

/// Reads the marker; None if there is none.
pub(crate) fn read(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
) -> Result<Option<Marker>, Error> {
    let io = |source: io::Error| failed(format!("read the marker in {}", path.display()))(source);
    let file = match system.open_beneath(directory, NAME.as_ref(), OFlags::RDONLY) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let bytes = system.read(file.as_fd(), 0, LIMIT).map_err(io)?;
    let marker = serde_json::from_slice(&bytes).map_err(|error| Error::BackingConflict {
        path: path.to_owned(),
        why: Conflict::UnreadableMarker {
            error: error.to_string(),
        },
    })?;
    Ok(Some(marker))
}

/// The marker of a pool that is not mounted; None if there is none. Nothing is written, and the log is
/// not replayed: the device may belong to another system.
pub(super) fn read_unmounted(system: &dyn System, device: &Path) -> Result<Option<Marker>, Error> {
    let io = |source: io::Error| failed(format!("inspect {}", device.display()))(source);
    let parameters = [("ro", None), ("norecovery", None)];
    let mount = filesystem::mount(system, device, &parameters).map_err(io)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = system
        .open_beneath(mount.as_fd(), ".".as_ref(), flags)
        .map_err(io)?;
    let found = system.xfs_geometry(directory.as_fd()).map_err(io)?;
    let marker = read(system, directory.as_fd(), device)?;
    match (&marker, found) {
        (Some(marker), Some(found)) if *marker.record.filesystem_uuid.as_bytes() != found.uuid => {
            Err(copy(device))
        }
        _ => Ok(marker),
    }
}

/// Reads the marker of a pool that is not mounted, before it is: mounting for use replays the log, and
/// another node may be writing it.
///
/// A new marker is written in a mount of its own. Unmounting writes it to its final place on the disk,
/// where another node finds it without replaying the log. That is verified: a process that was forked
/// meanwhile can keep the mount for a moment, and the next mount would then join it.
pub(super) fn settle(
    system: &dyn System,
    device: &Path,
    declaration: &PoolDeclaration,
    expectation: Expectation,
) -> Result<(), Error> {
    let claim = declaration.claim();
    let found = match read_unmounted(system, device) {
        // It is mounted elsewhere on this host, so no log is replayed; the marker is read there.
        Err(Error::Failed { source, .. }) if source.is_busy() => return Ok(()),
        result => result?,
    };
    let is_settled = match &found {
        Some(marker) => {
            marker.record.verify(device, &claim)?;
            marker.settled(&claim) == *marker
        }
        None => expectation != Expectation::New,
    };
    if is_settled {
        return Ok(());
    }
    let io = |source: io::Error| failed(format!("mount {}", device.display()))(source);
    let mount = filesystem::mount(system, device, &[]).map_err(io)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = system
        .open_beneath(mount.as_fd(), ".".as_ref(), flags)
        .map_err(io)?;
    let geometry = filesystem::verify(system, directory.as_fd(), device, expectation)?;
    let uuid = Uuid::from_bytes(geometry.uuid);
    let marker = ensure(
        system,
        directory.as_fd(),
        device,
        declaration,
        uuid,
        expectation,
    )?;
    drop((directory, mount));
    if read_unmounted(system, device)? == Some(marker) {
        return Ok(());
    }
    let why = io::Error::other("the disk does not hold the marker that was written");
    Err(io(why))
}

fn copy(path: &Path) -> Error {
    Error::BackingConflict {
        path: path.to_owned(),
        why: Conflict::Copy,
    }
}

/// The verified marker of a pool. It is written if the creation of the pool was interrupted here, and
/// replaced if the pool is adopted under another UID or taken over by another node.
pub(crate) fn ensure(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
    declaration: &PoolDeclaration,
    filesystem_uuid: Uuid,
    expectation: Expectation,
) -> Result<Marker, Error> {
    let foreign = |why| Error::BackingConflict {
        path: path.to_owned(),
        why,
    };
    let claim = declaration.claim();
    let found = read(system, directory, path)?;
    match (found, expectation) {
        (Some(marker), _) => {
            marker.verify(path, &claim, filesystem_uuid)?;
            let settled = marker.settled(&claim);
            if settled == marker {
                return Ok(marker);
            }
            replace(system, directory, &marker, settled)
                .map_err(failed(format!("replace the marker in {}", path.display())))
        }
        (None, Expectation::Known { .. } | Expectation::Made) => Err(foreign(Conflict::NoMarker)),
        (None, Expectation::New) => {
            if !is_unfinished(system, directory)
                .map_err(failed(format!("list {}", path.display())))?
            {
                return Err(foreign(Conflict::FilesWithoutMarker));
            }
            make(system, directory, &claim, filesystem_uuid)
                .map_err(failed(format!("write the marker in {}", path.display())))
        }
    }
}

/// Whether a filesystem contains only what [`make`] creates before it writes the marker.
fn is_unfinished(system: &dyn System, directory: BorrowedFd<'_>) -> io::Result<bool> {
    for name in system.list(directory)? {
        match name.to_str() {
            Some(NEW_NAME) => {}
            Some(IMAGES | TEMPORARY) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let folder = system.open_beneath(directory, name.as_ref(), flags)?;
                if !system.list(folder.as_fd())?.is_empty() {
                    return Ok(false);
                }
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn make(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    claim: &PoolClaim,
    filesystem_uuid: Uuid,
) -> io::Result<Marker> {
    for folder in [IMAGES, TEMPORARY] {
        ignore(
            system.make_directory(directory, folder.as_ref(), 0o700),
            io::ErrorKind::AlreadyExists,
        )?;
    }
    let space = system.space(directory)?;
    let marker = Marker {
        record: PoolRecord::new(claim, filesystem_uuid),
        size: Bytes(space.size),
        empty: Bytes(space.available),
    };
    prepare(system, directory, &marker)?;
    system.rename(directory, NEW_NAME.as_ref(), directory, NAME.as_ref())?;
    system.sync(directory)?;
    Ok(marker)
}

/// Adopts a pool under another UID, or takes it over to another node: one rename in the pool, and
/// nothing else changes.
fn replace(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    before: &Marker,
    marker: Marker,
) -> io::Result<Marker> {
    prepare(system, directory, &marker)?;
    system.replace(directory, NEW_NAME.as_ref(), directory, NAME.as_ref())?;
    system.sync(directory)?;
    before.record.log_adoption(&marker.record);
    Ok(marker)
}

/// Writes a marker under a temporary name, without effect.
fn prepare(system: &dyn System, directory: BorrowedFd<'_>, marker: &Marker) -> io::Result<()> {
    ignore(
        system.unlink(directory, NEW_NAME.as_ref()),
        io::ErrorKind::NotFound,
    )?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = system.open_beneath(directory, NEW_NAME.as_ref(), flags)?;
    system.write(file.as_fd(), 0, &serde_json::to_vec_pretty(marker)?)?;
    system.sync(file.as_fd())
}

fn ignore(result: io::Result<()>, kind: io::ErrorKind) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_when_empty_grows_with_the_filesystem() {
        let marker = Marker {
            record: PoolRecord {
                pool_uid: "a".parse().unwrap(),
                pool_name: "p".to_owned(),
                filesystem_uuid: Uuid::from_bytes([0; 16]),
                owner: None,
                takeovers: 0,
            },
            size: Bytes::mib(960),
            empty: Bytes::mib(921),
        };
        assert_eq!(marker.empty_at(marker.size), marker.empty);
        // Measured on Linux 6.18: an XFS of 960 MiB (1 GiB without its log) grown to 3008 MiB.
        assert_eq!(
            marker.empty_at(Bytes::mib(3008)).round_down_to_mib(),
            Bytes::mib(2954)
        );
        assert!(marker.empty_at(Bytes(u64::MAX)) < Bytes(u64::MAX));
    }
}
