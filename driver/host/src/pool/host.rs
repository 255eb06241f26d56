//! Checks whether the filesystem of the host supports the file of a pool: preallocation and direct I/O.
//!
//! *Invariant:* the check leaves nothing behind.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use super::{Error, HostFault, failed};
use crate::{
    loopdev,
    system::{OFlags, System},
};

/// Size of the test file.
const SIZE: u64 = 1 << 20;

/// Fails if the filesystem cannot preallocate space, or has no direct I/O. Creates a small file of this
/// name for the check, and removes it.
pub(super) fn verify(
    system: &dyn System,
    pools: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
) -> Result<(), Error> {
    let io = |error: io::Error| failed(format!("make {}", path.display()))(error);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = system
        .open_beneath(pools, name.as_ref(), flags)
        .map_err(io)?;
    let found = find_fault(system, file.as_fd(), path);
    let removed = system.unlink(pools, name).map_err(io);
    if let Some(why) = found? {
        return Err(Error::HostFilesystemUnfit {
            path: path.to_owned(),
            filesystem: filesystem(system, pools).map_err(io)?,
            why,
        });
    }
    removed
}

/// The feature that the filesystem of an empty file lacks, if any.
fn find_fault(
    system: &dyn System,
    file: BorrowedFd<'_>,
    path: &Path,
) -> Result<Option<HostFault>, Error> {
    let allocated = || -> io::Result<bool> {
        match system.allocate(file, &(0..SIZE)) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
            result => {
                result?;
                system.sync(file)?;
                Ok(system.stat(file)?.allocated >= SIZE)
            }
        }
    };
    if !allocated().map_err(failed(format!("allocate {}", path.display())))? {
        return Ok(Some(HostFault::NoPreallocation));
    }
    match loopdev::bind(system, file) {
        Ok(_) => Ok(None),
        Err(loopdev::Error::Unfit { found, .. }) => Ok(Some(HostFault::NoDirectIo { found })),
        Err(error) => Err(failed(format!("attach {}", path.display()))(error)),
    }
}

/// Type of the filesystem that contains a folder.
fn filesystem(system: &dyn System, folder: BorrowedFd<'_>) -> io::Result<String> {
    let id = system.mount_id(folder)?;
    let mounts = system.mounts()?.into_iter();
    let mut here = mounts.filter(|mount| mount.id == id);
    Ok(here.next().map_or_else(
        || "an unknown filesystem".to_owned(),
        |mount| mount.filesystem,
    ))
}
