//! Inspects a listed device: whether it holds the pool, is blank, or cannot be used. Nothing is written.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use cistern_types::FilesystemType;

use super::{
    Error, PoolDeclaration, ReplacedDisk, Unusable,
    backing::{has_no_content, open_device, unless_busy},
    blank, failed, layers, replaced,
};
use crate::{
    cause::Cause,
    id::is_label,
    root::Root,
    superblock::{self, Superblock},
    system::{DeviceNumber, OFlags},
};

/// What a listed device holds.
pub(super) enum DeviceState {
    /// It holds the pool.
    Own,
    /// It holds the pool, but mkfs did not complete.
    Unfinished,
    /// Blank.
    Blank,
    /// It holds an XFS with another label, which may be the pool before a restore.
    Labelled(String),
    /// Another process holds it, and it has an XFS with the label of some pool.
    Held(String),
    /// It cannot be used.
    Unusable(Unusable),
}

/// Inspects a listed device. A device that another process holds cannot be used. If it holds the pool,
/// or may hold it, no other device is used instead.
pub(super) fn inspect(
    root: &Root,
    declaration: &PoolDeclaration,
    path: &Path,
) -> Result<(DeviceState, DeviceNumber), Cause> {
    let busy = match unless_busy(|| examine(root, declaration, path, OFlags::EXCL)) {
        Err(cause) if cause.is_busy() => cause,
        result => return result,
    };
    match examine(root, declaration, path, OFlags::empty()) {
        Ok((state @ (DeviceState::Own | DeviceState::Unusable(Unusable::Replaced(_))), number)) => {
            Ok((state, number))
        }
        Ok((DeviceState::Labelled(label), number)) if is_label(&label) => {
            Ok((DeviceState::Held(label), number))
        }
        Err(cause) if !cause.is_busy() => Err(cause),
        _ => Err(busy),
    }
}

/// Whether a device that cannot be inspected is not the pool: none is there, or another process holds it.
pub(crate) fn is_certain(error: &io::Error) -> bool {
    has_no_content(error) || error.kind() == io::ErrorKind::ResourceBusy
}

/// Whether a device is mounted as a pool of this host.
pub(super) fn is_mounted_pool(root: &Root, number: DeviceNumber) -> Result<bool, Error> {
    let mounts = root.system.mounts();
    let mounts = mounts.map_err(failed("read the mount table"))?;
    let pools = root.pools_path();
    Ok(mounts
        .iter()
        .any(|mount| mount.device == number && mount.mount_point.parent() == Some(pools.as_path())))
}

/// Inspects a device; with `EXCL`, no other process may hold it.
pub(super) fn examine(
    root: &Root,
    declaration: &PoolDeclaration,
    path: &Path,
    flags: OFlags,
) -> Result<(DeviceState, DeviceNumber), Cause> {
    let (device, number) = open_device(&*root.system, path, OFlags::RDONLY | flags)?;
    let state = match read(root, device.as_fd(), number)? {
        Content::Unusable(why) => DeviceState::Unusable(why),
        Content::Filesystem(found) => judge(declaration, &found),
        Content::Blank => DeviceState::Blank,
    };
    Ok((state, number))
}

/// What a device holds, whichever pool it is listed for.
enum Content {
    Blank,
    Filesystem(Superblock),
    Unusable(Unusable),
}

fn read(root: &Root, device: BorrowedFd<'_>, number: DeviceNumber) -> Result<Content, Cause> {
    let system = &*root.system;
    let found = superblock::read(system, device)?;
    let objection = match layers::objection(root, device, number, found.as_ref())? {
        None if found.is_none() => blank::objection(system, device, number)?,
        objection => objection,
    };
    Ok(match (objection, found) {
        (Some(why), _) => Content::Unusable(why),
        (None, Some(found)) => Content::Filesystem(found),
        (None, None) => Content::Blank,
    })
}

/// Why no pool can be created on the device of a path; None if it is blank and nothing holds it. A blank
/// device is opened exclusively only for a moment, because another program that wants to use it would fail meanwhile.
/// `replaced` is the former disks of the pools of the node.
pub(super) fn objection(
    root: &Root,
    path: &Path,
    expected: DeviceNumber,
    replaced: &[ReplacedDisk],
) -> Result<Option<Unusable>, Cause> {
    let system = &*root.system;
    let (device, number) = open_device(system, path, OFlags::RDONLY)?;
    if number != expected {
        return Err(io::Error::other("its path leads to another device now").into());
    }
    match read(root, device.as_fd(), number)? {
        Content::Unusable(why) => return Ok(Some(why)),
        Content::Filesystem(found) => {
            let listed = replaced::unusable(replaced, &found);
            return Ok(Some(listed.unwrap_or_else(|| Unusable::filesystem(&found))));
        }
        Content::Blank => {}
    }
    drop(device);
    let held = unless_busy(|| Ok(open_device(system, path, OFlags::RDONLY | OFlags::EXCL)?));
    held.map(|_| None)
}

/// State of a device with a filesystem. The marker is read after it is mounted.
fn judge(declaration: &PoolDeclaration, found: &Superblock) -> DeviceState {
    if let Some(why) = replaced::unusable(&declaration.replaced, found) {
        return DeviceState::Unusable(why);
    }
    let uid = &declaration.uid;
    let is_xfs = found.kind == FilesystemType::Xfs;
    if is_xfs && found.complete && found.label != uid.label() {
        return DeviceState::Labelled(found.label.clone());
    }
    if !is_xfs || found.label != uid.label() {
        return DeviceState::Unusable(Unusable::filesystem(found));
    }
    if found.complete {
        DeviceState::Own
    } else {
        DeviceState::Unfinished
    }
}
