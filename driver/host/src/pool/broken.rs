//! Unmounts a pool whose mounted filesystem has failed, so that it is mounted again, as soon as nothing
//! uses it.
//!
//! *Invariants:* a readable filesystem is unmounted only if it is proved to be the pool, never lazily
//! and never by force. It is not unmounted if the mount is the last reference to a deleted file.

use std::{
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd},
};

use rustix::io::Errno;

use super::{Error, Expectation, PoolDeclaration, Source, backing, failed, file, folder::Folder};
use crate::{
    id::Uid,
    loopdev,
    mount_target::MountTarget,
    root::Root,
    system::{Mount, System},
};

/// Why a filesystem must be mounted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It has shut down after an error.
    ShutDown,
    /// It is read-only.
    ReadOnly,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ShutDown => "has shut itself down after an error",
            Self::ReadOnly => "is read-only",
        })
    }
}

impl Root {
    /// The mount in a pool's place. If it is the pool and has failed, it is unmounted instead.
    pub(super) fn usable_mount(
        &self,
        place: &MountTarget<'_>,
        folder: &Folder,
        declaration: &PoolDeclaration,
        home: &Uid,
        expectation: Expectation,
    ) -> Result<Option<Mount>, Error> {
        let path = place.path();
        let look = |error: io::Error| failed(format!("inspect {}", path.display()))(error);
        let Some(mount) = place.mounted().map_err(look)? else {
            return Ok(None);
        };
        let Some(state) = state_of(&*self.system, place, &mount).map_err(look)? else {
            return Ok(Some(mount));
        };
        if !self.may_go(state, folder, &mount, declaration, home, expectation)? {
            // The caller inspects it and reports what it is.
            return Ok(Some(mount));
        }
        match place.unmount() {
            Ok(()) => {
                tracing::warn!(
                    pool = %declaration.name,
                    path = %path.display(),
                    "the pool's filesystem {state} and is mounted again"
                );
                place.mounted().map_err(look)
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(Error::InUse {
                path: path.to_owned(),
                state,
                images: self.attached_images(home, &mount).map_err(look)?,
            }),
            Err(error) => Err(failed(format!("unmount {}", path.display()))(error)),
        }
    }

    /// Whether the mount is the pool, and the pool can be mounted again afterwards.
    fn may_go(
        &self,
        state: Broken,
        folder: &Folder,
        mount: &Mount,
        declaration: &PoolDeclaration,
        home: &Uid,
        expectation: Expectation,
    ) -> Result<bool, Error> {
        let system = &*self.system;
        match &declaration.source {
            Source::Image { .. } => {
                let Some(file) = file::find(system, folder, home)? else {
                    return Ok(false);
                };
                let is_beneath = || -> io::Result<bool> {
                    let id = system.stat(file.as_fd())?.id;
                    let Some(number) = mount.device.as_loop() else {
                        return Ok(false);
                    };
                    let status = loopdev::status(system, number).map_err(io::Error::other)?;
                    Ok(status.is_some_and(|status| status.file == id))
                };
                is_beneath().map_err(failed(format!("inspect device {}", mount.device)))
            }
            Source::Device { .. } => match state {
                // Nothing can be read from the device, not even its identity: the disk may be gone, or
                // have returned under another name.
                Broken::ShutDown => Ok(true),
                Broken::ReadOnly => backing::is_pool(system, mount.device, home, expectation),
            },
        }
    }

    /// Names of a pool's images that have loop devices. (Images of another node on the same machine may
    /// have the same path.)
    fn attached_images(&self, pool: &Uid, mount: &Mount) -> io::Result<Vec<Uid>> {
        let system = &*self.system;
        let mut images = Vec::new();
        for bound in system.bound_loops()? {
            if !loopdev::is_in_pool(&bound.backing_file, pool) {
                continue;
            }
            let is_here = match loopdev::status(system, bound.number) {
                Ok(status) => status.is_some_and(|status| status.file.device == mount.device),
                // The pool does not answer, because it has shut down.
                Err(error) if error.is_of_file() => true,
                Err(error) => return Err(io::Error::other(error)),
            };
            images.extend(loopdev::any_image_of(&bound.backing_file).filter(|_| is_here));
        }
        Ok(images)
    }
}

/// Whether the XFS that is mounted at a place has failed, and why.
fn state_of(
    system: &dyn System,
    place: &MountTarget<'_>,
    mount: &Mount,
) -> io::Result<Option<Broken>> {
    if mount.filesystem != "xfs" {
        return Ok(None);
    }
    // A filesystem that has shut down cannot be opened.
    let Some(seen) = place.find()? else {
        return Ok(None);
    };
    if has_shut_down(system, seen.as_fd()) {
        return Ok(Some(Broken::ShutDown));
    }
    Ok(mount.is_read_only().then_some(Broken::ReadOnly))
}

/// Whether the XFS that contains a file has shut down. It then answers no query of the file, and this
/// check needs no disk access.
pub(crate) fn has_shut_down(system: &dyn System, inside: BorrowedFd<'_>) -> bool {
    let answer = system.stat(inside);
    answer.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::IO))
}
