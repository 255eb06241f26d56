//! Grows an XFS or btrfs that is not in use: they grow only while they are mounted, so it is
//! mounted without being attached to a mount namespace.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use cistern_types::{Bytes, FilesystemType};

use super::{grow_xfs, is_full};
use crate::{
    attached::wait_until_detached,
    cause::Cause,
    check,
    id::Uid,
    loopdev,
    system::{self, MountAttrFlags, OFlags, Parameter, System},
};

/// Attributes of the short-lived mount, in which no path is looked up.
const ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOATIME
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Mounts the filesystem of a file, which replays its log, grows it to the size of the file, and
/// unmounts it. Another filesystem of the same UUID may be mounted at the same time.
pub(crate) fn grow(
    system: &dyn System,
    file: BorrowedFd<'_>,
    name: &Uid,
    filesystem: FilesystemType,
    size: Bytes,
) -> Result<(), check::Error> {
    let bound = loopdev::bind(system, file).map_err(Cause::from)?;
    grow_on(system, (&bound.path, bound.as_fd()), filesystem, size)?;
    drop(bound);
    // The unmount is complete when the device is detached from the file.
    Ok(wait_until_detached(system, file, name)?)
}

/// Does the same to the filesystem on a device, open for reading, that is mounted until this returns or shortly after.
pub(crate) fn grow_on(
    system: &dyn System,
    (path, device): (&Path, BorrowedFd<'_>),
    filesystem: FilesystemType,
    size: Bytes,
) -> Result<(), check::Error> {
    let parameters: &[Parameter<'_>] = match filesystem {
        FilesystemType::Xfs => &[("nouuid", None)],
        FilesystemType::Ext4 | FilesystemType::Btrfs => &[],
    };
    let mount = system
        .mount_filesystem(filesystem.as_str(), path, parameters, ATTRIBUTES)
        .map_err(|error| {
            if system::is_damage(&error) {
                let report = error.to_string();
                check::Error::Damaged { report }
            } else {
                Cause::from(error).into()
            }
        })?;
    grow_mount(system, mount.as_fd(), device, filesystem, size)
        .map_err(|error| Cause::from(error).into())
}

fn grow_mount(
    system: &dyn System,
    mount: BorrowedFd<'_>,
    device: BorrowedFd<'_>,
    filesystem: FilesystemType,
    size: Bytes,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let inside = system.open_beneath(mount, ".".as_ref(), flags)?;
    if is_full(system, inside.as_fd(), device, filesystem, size)? {
        return Ok(());
    }
    match filesystem {
        FilesystemType::Xfs => grow_xfs(system, inside.as_fd(), size),
        FilesystemType::Btrfs => system.grow_btrfs(inside.as_fd()),
        FilesystemType::Ext4 => system.grow_ext4(inside.as_fd(), super::ext4::blocks(size)),
    }
}
