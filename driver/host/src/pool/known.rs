//! Finds the device of an existing pool by the UUID of its filesystem.
//!
//! *Invariants:* every candidate is inspected, and if there are several, none is used: a copy, a
//! snapshot of a storage array and a second path to the same disk have the same UUID. While a device
//! cannot be read, a candidate is used only if it has the identity of the pool's device: it may be a
//! copy of the other. Besides the listed paths, only devices with that identity are opened.

use std::{
    collections::BTreeSet,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use cistern_types::FilesystemType;

use super::{
    Candidate, Error, PoolDeclaration, Unusable,
    adoption::Matches,
    backing::{Backing, exclusive, has_identity, has_no_content, open_device},
    error::list,
    failed, layers,
};
use crate::{
    cause::Cause,
    id::Uuid,
    root::Root,
    superblock,
    system::{OFlags, System},
};

/// Finds the device that holds a filesystem. `identity` is that of the device that held it last.
pub(super) fn find(
    root: &Root,
    declaration: &PoolDeclaration,
    paths: &[PathBuf],
    identity: Option<&str>,
    uuid: Uuid,
) -> Result<Backing, Error> {
    let system = &*root.system;
    let others = with_identity(system, identity).map_err(failed("list the block devices"))?;
    let (mut seen, mut ruled_out) = (BTreeSet::new(), Vec::new());
    let mut devices = Matches::none();
    for path in paths.iter().cloned().chain(others) {
        let (device, number) = match open_device(system, &path, OFlags::RDONLY) {
            Ok(opened) => opened,
            Err(error) if has_no_content(&error) => continue,
            Err(error) => {
                devices.unread.push((path, error));
                continue;
            }
        };
        if !seen.insert(number) {
            continue;
        }
        let found = match superblock::read(system, device.as_fd()) {
            Ok(found) => found,
            Err(error) => {
                devices.unread.push((path, error));
                continue;
            }
        };
        let Some(found) = found.filter(|found| {
            found.kind == FilesystemType::Xfs && found.complete && found.uuid == uuid
        }) else {
            continue;
        };
        let objection = layers::objection(root, device.as_fd(), number, Some(&found));
        match objection.map_err(failed(format!("inspect {}", path.display())))? {
            Some(why) => ruled_out.push((path, why)),
            None => devices.found.push((path, number)),
        }
    }
    let is_known = |number: &_| has_identity(system, *number, identity);
    if let Some(number) = devices.only(declaration, || Candidate::Filesystem(uuid), is_known)? {
        return exclusive(system, number);
    }
    let unread = devices.unread.into_iter();
    ruled_out.extend(unread.map(|(path, error)| (path, Unusable::from(Cause::from(error)))));
    Err(missing(paths, uuid, &ruled_out))
}

/// The devices with an identity, by the kernel's own names.
fn with_identity(system: &dyn System, identity: Option<&str>) -> io::Result<Vec<PathBuf>> {
    let Some(identity) = identity else {
        return Ok(Vec::new());
    };
    let mut paths = Vec::new();
    for (name, number) in system.block_devices()? {
        if system.device_identity(number)?.as_deref() == Some(identity) {
            paths.push(system.device_path(&name, number)?);
        }
    }
    Ok(paths)
}

fn missing(paths: &[PathBuf], uuid: Uuid, ruled_out: &[(PathBuf, Unusable)]) -> Error {
    let mut what = format!(
        "a device with the filesystem {uuid} (listed: {}",
        join(paths)
    );
    if !ruled_out.is_empty() {
        what = format!("{what}; not taken: {}", list(ruled_out));
    }
    what.push(')');
    Error::BackingMissing { what }
}

/// Paths for a message.
pub(crate) fn join(paths: &[PathBuf]) -> String {
    let text = |path: &PathBuf| Path::display(path).to_string();
    paths.iter().map(text).collect::<Vec<_>>().join(", ")
}
