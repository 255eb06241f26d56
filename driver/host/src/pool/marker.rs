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

use cistern_types::{Bytes, is_zero};
use serde::{Deserialize, Serialize};

use super::{
    Conflict, Error, Expectation, ForeignMarker, Owner, PoolDeclaration, failed, filesystem,
};
use crate::{
    id::{Uid, Uuid},
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
    /// UID of the StoragePool.
    pub(crate) pool_uid: Uid,
    /// Name of the StoragePool.
    pub(crate) pool_name: String,
    /// UUID of the filesystem that contains it.
    pub(crate) filesystem_uuid: Uuid,
    /// Size of the filesystem when it was made.
    pub(crate) size: Bytes,
    /// Free space of the empty filesystem.
    pub(crate) empty: Bytes,
    /// The node that carries the pool. None in pools of versions that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<Owner>,
    /// How often a node has taken over the pool from another one. Never lowered: it tells the latest
    /// node from those that carried the pool before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) takeovers: u32,
}

impl Marker {
    /// Whether it is the declared pool before its StoragePool was recreated as another object: the same
    /// name, and a UID of no other pool on this host.
    pub(super) fn is_returning(&self, declaration: &PoolDeclaration) -> bool {
        self.pool_name == declaration.name
            && self.pool_uid != declaration.uid
            && !declaration.others.contains(&self.pool_uid)
    }

    /// The marker after the declared pool has adopted this one.
    fn settled(&self, declaration: &PoolDeclaration) -> Self {
        let present = &declaration.node;
        let owner = self.owner.as_ref().unwrap_or(present).completed(present);
        let foreign = self.foreign();
        let is_taken_over = foreign.is_some_and(|it| !it.is_of(present, &declaration.uid));
        Self {
            pool_uid: declaration.uid.clone(),
            owner: Some(owner),
            takeovers: self.takeovers.saturating_add(u32::from(is_taken_over)),
            ..self.clone()
        }
    }

    /// Verifies that this is the marker of the declared pool, and of this node or of a node whose pool
    /// this node may take over.
    fn verify(
        &self,
        path: &Path,
        declaration: &PoolDeclaration,
        filesystem_uuid: Uuid,
    ) -> Result<(), Error> {
        if self.filesystem_uuid != filesystem_uuid {
            return Err(copy(path));
        }
        if self.pool_uid != declaration.uid && !self.is_returning(declaration) {
            return Err(Error::BackingConflict {
                path: path.to_owned(),
                why: Conflict::OtherPool {
                    name: self.pool_name.clone(),
                    uid: self.pool_uid.clone(),
                },
            });
        }
        let Some(foreign) = self.foreign() else {
            return Ok(());
        };
        let is_granted = declaration.take_over.as_ref() == Some(&foreign);
        if is_granted || foreign.is_of(&declaration.node, &declaration.uid) {
            return Ok(());
        }
        Err(Error::OtherNode {
            path: path.to_owned(),
            foreign: Box::new(foreign),
        })
    }

    /// The marker as one of another node may be granted. None if it names no node.
    fn foreign(&self) -> Option<ForeignMarker> {
        Some(ForeignMarker {
            owner: self.owner.clone()?,
            pool: self.pool_uid.clone(),
            filesystem: self.filesystem_uuid,
        })
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
        (Some(marker), Some(found)) if *marker.filesystem_uuid.as_bytes() != found.uuid => {
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
    let found = match read_unmounted(system, device) {
        // It is mounted elsewhere on this host, so no log is replayed; the marker is read there.
        Err(Error::Failed { source, .. }) if source.is_busy() => return Ok(()),
        result => result?,
    };
    let is_settled = match &found {
        Some(marker) => {
            marker.verify(device, declaration, marker.filesystem_uuid)?;
            marker.settled(declaration) == *marker
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
    let found = read(system, directory, path)?;
    match (found, expectation) {
        (Some(marker), _) => {
            marker.verify(path, declaration, filesystem_uuid)?;
            let settled = marker.settled(declaration);
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
            make(system, directory, declaration, filesystem_uuid)
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
    declaration: &PoolDeclaration,
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
        pool_uid: declaration.uid.clone(),
        pool_name: declaration.name.clone(),
        filesystem_uuid,
        size: Bytes(space.size),
        empty: Bytes(space.available),
        owner: Some(declaration.node.clone()),
        takeovers: 0,
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
    let text = |marker: &Marker| {
        let owner = marker.owner.as_ref().map(ToString::to_string);
        format!("{} on {}", marker.pool_uid, owner.unwrap_or_default())
    };
    let (before, is) = (text(before), text(&marker));
    tracing::info!(pool = marker.pool_name, before, is, "adopted the pool");
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
            pool_uid: "a".parse().unwrap(),
            pool_name: "p".to_owned(),
            filesystem_uuid: Uuid::from_bytes([0; 16]),
            size: Bytes::mib(960),
            empty: Bytes::mib(921),
            owner: None,
            takeovers: 0,
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
