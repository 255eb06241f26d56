//! The directory with the file of an image pool: the folder of the pools, or a directory of the host that
//! its StoragePool names.
//!
//! *Invariants:* a named directory is one that the node allows, or is below one. It is never created, no
//! part of its path is a symbolic link, and it lies in no pool and in no volume. One that does not exist
//! holds no file, so a known pool is missing then, and nothing is created beneath its mount point. No file is
//! created on the filesystem of the folder of the pools, on which the mount point of a missing disk usually is.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{DirectoryFault, Error, PoolDeclaration, Source, failed, file, inspection, layers};
use crate::{
    id::{Uid, Uuid},
    layout::pool_of_file,
    root::Root,
    system::{DeviceNumber, OFlags, System},
};

/// A directory for the files of pools.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// None if it does not exist.
    directory: Option<OwnedFd>,
    /// Whether it may hold files of others, as one that a StoragePool names.
    is_shared: bool,
}

impl Folder {
    /// Path of the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the file that has this UID as its name.
    pub(super) fn file(&self, uid: &Uid) -> PathBuf {
        self.path.join(file::name(uid))
    }

    /// The open directory; None if it does not exist.
    pub(super) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().map(OwnedFd::as_fd)
    }

    /// The open directory. Fails if it does not exist.
    pub(super) fn existing(&self) -> Result<BorrowedFd<'_>, Error> {
        self.directory()
            .ok_or_else(|| unusable(&self.path, DirectoryFault::Missing))
    }

    /// The open directory for a new file. Fails if it does not exist, or if its disk does not seem to be
    /// mounted.
    pub(super) fn for_new_file(&self, root: &Root) -> Result<BorrowedFd<'_>, Error> {
        let directory = self.existing()?;
        let is_default = || -> io::Result<bool> {
            let here = device_under(&*root.system, directory)?;
            let default = device_under(&*root.system, root.open_pools()?.as_fd())?;
            Ok(here.is_none() || here == default)
        };
        let look = failed(format!("inspect {}", self.path.display()));
        if self.is_shared && is_default().map_err(look)? {
            return Err(unusable(&self.path, DirectoryFault::DefaultFilesystem));
        }
        Ok(directory)
    }

    /// The UIDs that name a file in it. Beside files of others, only UUIDs count, as every StoragePool has.
    pub(super) fn files(&self, system: &dyn System) -> io::Result<BTreeSet<Uid>> {
        let names = self.directory().map(|directory| system.list(directory));
        let names = names.transpose()?.unwrap_or_default().into_iter();
        let uids = names.filter_map(|name| pool_of_file(&name));
        let counts = |uid: &Uid| !self.is_shared || uid.as_str().parse::<Uuid>().is_ok();
        Ok(uids.filter(counts).collect())
    }
}

impl Root {
    /// The folder of the pools.
    pub(super) fn default_folder(&self) -> Result<Folder, Error> {
        let opened = self.open_pools();
        Ok(Folder {
            path: self.pools_path(),
            directory: Some(opened.map_err(failed("open the folder of the pools"))?),
            is_shared: false,
        })
    }

    /// The directory for the file of a pool. Fails if the node does not allow it, or if no pool can be in
    /// it.
    pub(super) fn verified_folder(&self, declaration: &PoolDeclaration) -> Result<Folder, Error> {
        let folder = self.folder_of(declaration)?;
        if folder.is_shared
            && let Some(directory) = folder.directory()
            && self.is_own(directory, &folder.path)?
        {
            return Err(unusable(&folder.path, DirectoryFault::InPool));
        }
        Ok(folder)
    }

    /// The directory with the file of a pool. Fails if the node does not allow it.
    pub(super) fn folder_of(&self, declaration: &PoolDeclaration) -> Result<Folder, Error> {
        match &declaration.source {
            Source::Image {
                directory: Some(path),
                ..
            } => self.named_folder(path, &declaration.node.node),
            Source::Image { .. } | Source::Device { .. } => self.default_folder(),
        }
    }

    /// A directory that a StoragePool names.
    fn named_folder(&self, path: &Path, node: &str) -> Result<Folder, Error> {
        let allowed = self.allowed.iter().filter(|it| path.starts_with(it));
        // The most specific one, because it may be mounted by itself.
        let Some(allowed) = allowed.max_by_key(|it| it.components().count()) else {
            return Err(Error::DirectoryNotAllowed {
                directory: path.to_owned(),
                node: node.to_owned(),
                allowed: self.allowed.to_vec(),
            });
        };
        let below = path.strip_prefix(allowed).unwrap_or(path);
        let open = || {
            let top = self.open_directory(allowed)?;
            if below.as_os_str().is_empty() {
                return Ok(top);
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            self.system.open_beneath(top.as_fd(), below, flags)
        };
        let directory = match open() {
            Ok(directory) => Some(directory),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => None,
                Some(Errno::NOTDIR) => return Err(unusable(path, DirectoryFault::NoDirectory)),
                Some(Errno::LOOP) => return Err(unusable(path, DirectoryFault::SymbolicLink)),
                _ => return Err(failed(format!("open {}", path.display()))(error)),
            },
        };
        Ok(Folder {
            path: path.to_owned(),
            directory,
            is_shared: true,
        })
    }

    /// Whether a directory lies in the filesystem of a pool or volume of this host.
    fn is_own(&self, directory: BorrowedFd<'_>, path: &Path) -> Result<bool, Error> {
        let look = |error: io::Error| failed(format!("inspect {}", path.display()))(error);
        match device_under(&*self.system, directory).map_err(look)? {
            Some(device) => Ok(inspection::is_mounted_pool(self, device)?
                || layers::own_file(self, device).map_err(look)?.is_some()),
            None => Ok(false),
        }
    }
}

/// The device of the mounted filesystem that contains a directory.
fn device_under(
    system: &dyn System,
    directory: BorrowedFd<'_>,
) -> io::Result<Option<DeviceNumber>> {
    let id = system.mount_id(directory)?;
    let mut mounts = system.mounts()?.into_iter();
    Ok(mounts.find(|mount| mount.id == id).map(|it| it.device))
}

fn unusable(path: &Path, why: DirectoryFault) -> Error {
    Error::DirectoryUnusable {
        directory: path.to_owned(),
        why,
    }
}
