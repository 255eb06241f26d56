//! Selects the device of a device pool: the one that holds the pool, or the first blank one.
//!
//! *Invariant:* a listed path is resolved once. After that the device is identified by its number, so
//! that a symbolic link that changes cannot replace the inspected device.

use std::{
    collections::BTreeSet,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use cistern_types::FilesystemType;

use super::{
    Candidate, Error, Expectation, PoolDeclaration, Unusable,
    adoption::{Candidates, Matches},
    backing::{Backing, exclusive, has_identity, node, open_device, unless_busy},
    failed,
    inspection::{DeviceState, examine, inspect, is_certain, is_mounted_pool},
    known,
    marker::{self, Marker},
    replaced,
};
use crate::{
    cause::Cause,
    id::{Uuid, is_label},
    mkfs,
    root::Root,
    system::{DeviceNumber, OFlags, System},
};

/// Whether the pool is created on a blank device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blank {
    Taken,
    Left,
}

/// Finds the pool's device, or creates the pool on the first blank one. `identity` is that of the
/// device that held the pool last.
pub(super) fn open(
    root: &Root,
    declaration: &PoolDeclaration,
    paths: &[PathBuf],
    identity: Option<&str>,
    expectation: Expectation,
) -> Result<Backing, Error> {
    match expectation {
        Expectation::Known { filesystem_uuid } => {
            known::find(root, declaration, paths, identity, filesystem_uuid)
        }
        Expectation::Made => choose(root, declaration, paths, identity, Blank::Left),
        Expectation::New => choose(root, declaration, paths, identity, Blank::Taken),
    }
}

/// The device that holds the pool, or else the one that held it before its StoragePool was recreated
/// with another UID, or else the first blank one. Every device is inspected, and if several hold the
/// pool, none is used.
fn choose(
    root: &Root,
    declaration: &PoolDeclaration,
    paths: &[PathBuf],
    identity: Option<&str>,
    blank_device: Blank,
) -> Result<Backing, Error> {
    let system = &*root.system;
    let uid = &declaration.uid;
    let (mut seen, mut devices) = (BTreeSet::new(), Vec::new());
    let mut own = Matches::none();
    let mut blank = None;
    let mut candidates = Candidates::none();
    let is_replaced = |path: &Path| replaced::is_by_identity(system, &declaration.replaced, path);
    for path in paths {
        let (state, number) = match inspect(root, declaration, path) {
            Ok(found) => found,
            Err(Cause::Io(error)) if !is_certain(&error) && !is_replaced(path) => {
                own.unread.push((path.clone(), error));
                continue;
            }
            Err(cause) => {
                devices.push((path.clone(), cause.into()));
                continue;
            }
        };
        if !seen.insert(number) {
            continue;
        }
        match state {
            DeviceState::Own => own.found.push((path.clone(), number)),
            DeviceState::Unfinished | DeviceState::Blank => {
                blank.get_or_insert((number, matches!(state, DeviceState::Unfinished)));
            }
            DeviceState::Labelled(label) => {
                let marker = read_marker(system, number, &label);
                if !candidates.consider(declaration, path.clone(), number, marker) {
                    let filesystem = FilesystemType::Xfs;
                    devices.push((path.clone(), Unusable::Filesystem { filesystem, label }));
                }
            }
            DeviceState::Held(label) => {
                // The marker of a pool that is mounted is read before the devices are.
                if is_mounted_pool(root, number)? {
                    devices.push((path.clone(), Unusable::Busy));
                } else {
                    candidates.doubt(path.clone(), Candidate::Held(label));
                }
            }
            DeviceState::Unusable(why) => devices.push((path.clone(), why)),
        }
    }
    let is_known = |number: &_| has_identity(system, *number, identity);
    if let Some(number) = own.only(declaration, || Candidate::Label(uid.label()), is_known)? {
        return exclusive(system, number);
    }
    for (path, error) in own.unread {
        candidates.doubt(path, Candidate::unread(error));
    }
    if let Some(number) = candidates.decide(declaration)? {
        return exclusive(system, number);
    }
    let Some((number, unfinished)) = blank else {
        return Err(Error::NoUsableDevice { devices });
    };
    if blank_device == Blank::Left {
        let what = format!("a device of the pool (listed: {})", known::join(paths));
        return Err(Error::BackingMissing { what });
    }
    unless_busy(|| make(root, declaration, number, unfinished))
        .map_err(failed(format!("make the pool on device {number}")))?;
    exclusive(system, number)
}

/// The marker on a device with an XFS, if its label may be that of a pool.
fn read_marker(
    system: &dyn System,
    number: DeviceNumber,
    label: &str,
) -> Result<Option<Marker>, Error> {
    if !is_label(label) {
        return Ok(None);
    }
    let path = node(system, number).map_err(failed(format!("find device {number}")))?;
    marker::read_unmounted(system, &path)
}

fn make(
    root: &Root,
    declaration: &PoolDeclaration,
    number: DeviceNumber,
    unfinished: bool,
) -> Result<(), Cause> {
    let (system, uid) = (&*root.system, &declaration.uid);
    let path = node(system, number)?;
    // Does not open the device exclusively, because mkfs.xfs does. The next step inspects it again,
    // exclusively.
    let (device, _) = open_device(system, &path, OFlags::RDWR)?;
    let is_unchanged = || -> Result<bool, Cause> {
        let (state, _) = examine(root, declaration, &path, OFlags::EXCL)?;
        Ok(matches!(
            (state, unfinished),
            (DeviceState::Blank, false) | (DeviceState::Unfinished, true)
        ))
    };
    if !is_unchanged()? {
        return Err(io::Error::other("it changed while it was inspected").into());
    }
    let (filesystem_uuid, label) = (Uuid::new_v4(), uid.label());
    let attempt = || mkfs::pool_device(system, device.as_fd(), filesystem_uuid, &label, unfinished);
    let mut made = attempt();
    // Another process may have held the device while mkfs opened it. If it still does, that is the error.
    if made.as_ref().is_err_and(Cause::is_failed_tool) && is_unchanged()? {
        made = attempt();
    }
    made?;
    system.sync(device.as_fd())?;
    tracing::info!(pool = %uid, device = %path.display(), "made the pool's filesystem");
    Ok(())
}
