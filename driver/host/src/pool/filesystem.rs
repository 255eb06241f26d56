//! The filesystem of a pool: mounting and verifying it.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use super::{Conflict, Error, Expectation, failed};
use crate::{
    id::Uuid,
    mount_target::is_busy,
    patience::until,
    system::{MountAttrFlags, OFlags, Parameter, System, XfsGeometry},
};

/// Access times of images are not used and would cost a write for each read. A pool contains no
/// programs and no devices.
const ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOATIME
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Mounts the filesystem of a pool without attaching it to a path. Retries while the device is busy: a
/// search for an adoptable pool may be reading it, or an unmount may not have completed.
pub(super) fn mount(
    system: &dyn System,
    device: &Path,
    parameters: &[Parameter<'_>],
) -> io::Result<OwnedFd> {
    until(
        || system.mount_filesystem("xfs", device, parameters, ATTRIBUTES),
        |mounted| !is_busy(mounted),
    )
}

/// Verifies that the mounted filesystem is an XFS with reflink and, if known, with this UUID.
pub(super) fn verify(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
    expectation: Expectation,
) -> Result<XfsGeometry, Error> {
    let foreign = |why| Error::BackingConflict {
        path: path.to_owned(),
        why,
    };
    let geometry = system
        .xfs_geometry(directory)
        .map_err(failed(format!(
            "query the filesystem at {}",
            path.display()
        )))?
        .ok_or_else(|| foreign(Conflict::NotXfs))?;
    if !geometry.reflink {
        return Err(foreign(Conflict::NoReflink));
    }
    let found = Uuid::from_bytes(geometry.uuid);
    match expectation {
        Expectation::Known { filesystem_uuid } if filesystem_uuid != found => {
            Err(foreign(Conflict::Uuid {
                found,
                expected: filesystem_uuid,
            }))
        }
        Expectation::Known { .. } | Expectation::Made | Expectation::New => Ok(geometry),
    }
}

/// Opens a folder of a pool. Fails if something is mounted over it.
pub(super) fn open_folder(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    mount_id: u64,
    name: &str,
) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let folder = system.open_beneath(directory, name.as_ref(), flags)?;
    if system.mount_id(folder.as_fd())? != mount_id {
        return Err(io::Error::other(
            "something is mounted over a pool's folder",
        ));
    }
    Ok(folder)
}
