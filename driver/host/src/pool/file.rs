//! The file of an image pool: created in full under a temporary name, allocated in full, and bound to a
//! loop device.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use cistern_types::{Bytes, FilesystemType, size::GIB};

use super::{Conflict, Error, Expectation, backing::Backing, failed, folder::Folder, host, lock};
use crate::{
    allocation::Missing,
    cause::Cause,
    id::{Uid, Uuid},
    loopdev, mkfs,
    root::Root,
    superblock,
    system::{FileId, OFlags, System},
};

pub(crate) fn name(pool: &Uid) -> String {
    format!("{pool}.img")
}

pub(crate) fn new_name(pool: &Uid) -> String {
    format!("{pool}.img.new")
}

/// Opens the file with a UID as its name, on its loop device. A new file is created with the declared
/// size. An existing file keeps its size; [`Pool::resize_file`](super::Pool::resize_file) enlarges it.
pub(super) fn open(
    root: &Root,
    folder: &Folder,
    uid: &Uid,
    size: Bytes,
    expectation: Expectation,
) -> Result<Backing, Error> {
    let system = &*root.system;
    let path = folder.file(uid);
    let size = size.round_down_to_mib();
    let file = match (find(system, folder, uid)?, expectation) {
        (Some(file), _) => file,
        (None, Expectation::Known { .. } | Expectation::Made) => return Err(missing(folder, uid)),
        (None, Expectation::New) => make(root, folder, uid, size)?,
    };
    verify(system, file.as_fd(), path.clone(), uid, expectation)?;
    match allocate(root, folder, file.as_fd(), &path, Bytes::ZERO) {
        // The pool works. `Pool::resize_file` reports what its file lacks.
        Err(Error::HostFilesystemFull { .. }) => {}
        result => result?,
    }
    let bound = loopdev::attach(system, file.as_fd(), name(uid).as_ref())
        .map_err(failed(format!("attach {}", path.display())))?;
    let stat = system
        .stat(file.as_fd())
        .map_err(failed(format!("inspect {}", path.display())))?;
    Ok(Backing {
        number: bound.device(),
        path: bound.path.clone(),
        size: stat.size,
        file: Some(stat.id),
        identity: None,
        _bound: Some(bound),
    })
}

/// Opens the file. Fails if it is missing, or was replaced.
pub(super) fn check(
    root: &Root,
    folder: &Folder,
    uid: &Uid,
    expected: FileId,
) -> Result<OwnedFd, Error> {
    let system = &*root.system;
    let path = folder.file(uid);
    let io = |error: io::Error| failed(format!("inspect {}", path.display()))(error);
    let file = find(system, folder, uid)?.ok_or_else(|| missing(folder, uid))?;
    if system.stat(file.as_fd()).map_err(io)?.id == expected {
        return Ok(file);
    }
    Err(Error::BackingConflict {
        path,
        why: Conflict::Replaced,
    })
}

pub(super) fn find(
    system: &dyn System,
    folder: &Folder,
    uid: &Uid,
) -> Result<Option<OwnedFd>, Error> {
    let Some(directory) = folder.directory() else {
        return Ok(None);
    };
    match system.open_beneath(directory, name(uid).as_ref(), OFlags::RDWR) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(format!("open {}", folder.file(uid).display()))(
            error,
        )),
    }
}

fn missing(folder: &Folder, uid: &Uid) -> Error {
    Error::BackingMissing {
        what: folder.file(uid).display().to_string(),
    }
}

/// Creates the file in full under a temporary name, and then renames it.
fn make(root: &Root, folder: &Folder, uid: &Uid, size: Bytes) -> Result<OwnedFd, Error> {
    let system = &*root.system;
    let path = folder.file(uid);
    let directory = folder.for_new_file(root)?;
    let new_name = new_name(uid);
    let failed = |cause: Cause| failed(format!("make {}", path.display()))(cause);
    let io = |error: io::Error| failed(error.into());
    match system.unlink(directory, new_name.as_ref()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    host::verify(system, directory, new_name.as_ref(), &path)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = system
        .open_beneath(directory, new_name.as_ref(), flags)
        .map_err(io)?;
    let complete = || -> Result<(), Error> {
        allocate(root, folder, file.as_fd(), &path, size)?;
        let filesystem_uuid = Uuid::new_v4();
        mkfs::pool_image(system, file.as_fd(), filesystem_uuid, &uid.label()).map_err(failed)?;
        system.sync(file.as_fd()).map_err(io)?;
        system
            .rename(directory, new_name.as_ref(), directory, name(uid).as_ref())
            .map_err(io)?;
        system.sync(directory).map_err(io)
    };
    if let Err(error) = complete() {
        // The space is released until the next attempt. A failure to release it does no harm.
        let _ = system.unlink(directory, new_name.as_ref());
        return Err(error);
    }
    tracing::info!(pool = %uid, path = %path.display(), %size, "made the pool's file");
    Ok(file)
}

/// Allocates every byte of the file up to `size`, unless its growth would leave too little space to the
/// host. Blocks that the file has lost are reallocated in any case.
pub(super) fn allocate(
    root: &Root,
    folder: &Folder,
    file: BorrowedFd<'_>,
    path: &Path,
    size: Bytes,
) -> Result<(), Error> {
    let system = &*root.system;
    let failed = |error: io::Error| failed(format!("allocate {}", path.display()))(error);
    let before = Bytes(system.stat(file).map_err(failed)?.size);
    let size = before.max(size);
    let missing = Missing::of(system, file, size).map_err(failed)?;
    let needed = missing.size();
    if needed == Bytes::ZERO {
        return Ok(());
    }
    // No other pool allocates space until the file has its own.
    let _lock = lock(root)?;
    let space = system.space(folder.existing()?).map_err(failed)?;
    let kept_percent = if size > before { root.kept_percent } else { 0 };
    let kept = Bytes(space.size).percent(kept_percent);
    let lacking = needed.saturating_add(kept);
    let lacking = lacking.saturating_sub(Bytes(space.available));
    let full = |lacking: Bytes| Error::HostFilesystemFull {
        path: path.to_owned(),
        needed,
        // In steps, so that the message stays the same while little changes.
        lacking: Bytes::gib(lacking.0.div_ceil(GIB)),
        kept_percent,
    };
    if lacking > Bytes::ZERO {
        return Err(full(lacking));
    }
    match missing.allocate(system, file) {
        // Another process took the space, or the filesystem needs some for itself.
        Err(error) if is_full(&error) => Err(full(Bytes(1))),
        result => result.and_then(|()| system.sync(file)).map_err(failed),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Verifies by its superblock that the file is this pool, before the file is used.
fn verify(
    system: &dyn System,
    file: BorrowedFd<'_>,
    path: PathBuf,
    uid: &Uid,
    expectation: Expectation,
) -> Result<(), Error> {
    let found = superblock::read(system, file)
        .map_err(failed(format!("read {}", path.display())))?
        .filter(|found| found.kind == FilesystemType::Xfs && found.complete);
    let why = match (found, expectation) {
        (None, _) => Conflict::NoXfs,
        (Some(found), Expectation::Known { filesystem_uuid }) if found.uuid != filesystem_uuid => {
            Conflict::Uuid {
                found: found.uuid,
                expected: filesystem_uuid,
            }
        }
        (Some(found), Expectation::Made | Expectation::New) if found.label != uid.label() => {
            Conflict::Label { found: found.label }
        }
        (Some(_), Expectation::Known { .. } | Expectation::Made | Expectation::New) => {
            return Ok(());
        }
    };
    Err(Error::BackingConflict { path, why })
}
