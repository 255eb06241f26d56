//! What can write to an image: nothing, a mounted filesystem, or the users of a device.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use crate::{
    image::{self, Content, failed, read::Reading},
    loopdev,
    patience::until,
    system::{DeviceNumber, OFlags, System},
};

/// How an image is attached.
#[derive(Debug)]
pub(super) enum Attachment {
    /// Not attached. That cannot change while its lock is held.
    None,
    /// Its filesystem is mounted. Holds the open root of a mount.
    Mounted(OwnedFd),
    /// Attached as a raw block volume.
    Device,
    /// Attached with a filesystem that has no mount visible to this process.
    Unseen,
}

/// Determines how an image is attached.
pub(super) fn find(system: &dyn System, source: &Reading) -> Result<Attachment, image::Error> {
    let uid = &source.image.uid;
    let id = system
        .stat(source.as_fd())
        .map_err(failed("stat the file", uid))?
        .id;
    let bound =
        loopdev::find(system, id, uid.as_ref()).map_err(failed("find the loop device", uid))?;
    let Some(bound) = bound else {
        return Ok(Attachment::None);
    };
    match source
        .image
        .identity
        .as_ref()
        .map(|identity| identity.content)
    {
        Some(Content::Block) | None => Ok(Attachment::Device),
        Some(Content::Filesystem { .. }) => {
            // Between two steps of stage or unstage the mount does not exist.
            let inside = until(
                || open_mounted(system, bound.device()),
                |found| !matches!(found, Ok(None)),
            );
            let inside = inside.map_err(failed("open the mounted filesystem", uid))?;
            Ok(inside.map_or(Attachment::Unseen, Attachment::Mounted))
        }
    }
}

/// Opens the root of any mount of a device; none when none is visible or all are covered by others.
pub(super) fn open_mounted(
    system: &dyn System,
    device: DeviceNumber,
) -> io::Result<Option<OwnedFd>> {
    let mut mounts = system.mounts()?;
    mounts.retain(|mount| mount.device == device);
    // Mounts of the whole filesystem first: their root is a directory.
    mounts.sort_by_key(|mount| mount.root != Path::new("/"));
    for mount in mounts {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        match system.open(&mount.mount_point, flags) {
            Ok(inside) if system.mount_id(inside.as_fd())? == mount.id => return Ok(Some(inside)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
