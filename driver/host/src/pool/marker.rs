//! The marker in a pool: whose it is, and how much was free when it was empty.
//!
//! *Invariant:* it is written once, whole, as the last step of making a pool, and never changed.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use cistern_crds::Bytes;
use serde::{Deserialize, Serialize};

use super::{Error, Expectation, IMAGES, PoolDeclaration, TEMPORARY, failed};
use crate::{
    id::{Uid, Uuid},
    system::{OFlags, System},
};

const NAME: &str = ".cistern-pool";
const NEW_NAME: &str = ".cistern-pool.new";
/// Longer than any marker.
const LIMIT: usize = 64 << 10;

/// What the marker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Marker {
    /// UID of the StoragePool.
    pub(crate) pool_uid: Uid,
    /// Name of the StoragePool, for people.
    pub(crate) pool_name: String,
    /// UUID of the filesystem that it lies in.
    pub(crate) filesystem_uuid: Uuid,
    /// Size of the filesystem when it was made.
    pub(crate) size: Bytes,
    /// What was free in it then.
    pub(crate) empty: Bytes,
}

impl Marker {
    /// What would be free in the filesystem if it were empty, at its present size.
    ///
    /// What XFS keeps for itself is a reserve of a fixed size and a share of each allocation group.
    /// Told by the marker and the present size alone, it is the same whatever the volumes are doing
    /// while the pool is grown, and whenever the agent dies meanwhile.
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

/// What XFS holds back so that it can always free something (`xfs_default_resblks`).
fn reserve(size: Bytes) -> Bytes {
    size.percent(5).min(Bytes::mib(32))
}

/// Reads the marker; none when there is none.
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
    let marker = serde_json::from_slice(&bytes).map_err(|error| Error::BackingForeign {
        path: path.to_owned(),
        why: format!("its marker cannot be read ({error})"),
    })?;
    Ok(Some(marker))
}

/// The marker of a pool, verified; written if the pool is new and its making was cut short here.
pub(crate) fn ensure(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
    declaration: &PoolDeclaration,
    filesystem_uuid: Uuid,
    expectation: Expectation,
) -> Result<Marker, Error> {
    let foreign = |why: String| Error::BackingForeign {
        path: path.to_owned(),
        why,
    };
    let found = read(system, directory, path)?;
    match (found, expectation) {
        (Some(marker), _) if marker.pool_uid != declaration.uid => Err(foreign(format!(
            "it is pool {} ({})",
            marker.pool_name, marker.pool_uid
        ))),
        (Some(marker), _) if marker.filesystem_uuid != filesystem_uuid => Err(foreign(
            "it is a copy: its marker names another UUID".to_owned(),
        )),
        (Some(marker), _) => Ok(marker),
        (None, Expectation::Known { .. } | Expectation::Made) => {
            Err(foreign("it has no marker".to_owned()))
        }
        (None, Expectation::New) => {
            if !is_unfinished(system, directory)
                .map_err(failed(format!("list {}", path.display())))?
            {
                return Err(foreign("it holds files and has no marker".to_owned()));
            }
            write(system, directory, declaration, filesystem_uuid)
                .map_err(failed(format!("write the marker in {}", path.display())))
        }
    }
}

/// Whether a filesystem holds nothing but what [`write()`] makes before the marker stands.
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

fn write(
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
    ignore(
        system.unlink(directory, NEW_NAME.as_ref()),
        io::ErrorKind::NotFound,
    )?;
    let space = system.space(directory)?;
    let marker = Marker {
        pool_uid: declaration.uid.clone(),
        pool_name: declaration.name.clone(),
        filesystem_uuid,
        size: Bytes(space.size),
        empty: Bytes(space.available),
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = system.open_beneath(directory, NEW_NAME.as_ref(), flags)?;
    system.write(file.as_fd(), 0, &serde_json::to_vec_pretty(&marker)?)?;
    system.sync(file.as_fd())?;
    system.rename(directory, NEW_NAME.as_ref(), directory, NAME.as_ref())?;
    system.sync(directory)?;
    Ok(marker)
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
