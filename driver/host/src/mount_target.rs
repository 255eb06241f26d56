//! [`MountTarget`]: a path at which a filesystem or a device is mounted.
//!
//! *Invariant:* mounts are identified by the kernel's mount ids, without access to the mounted
//! filesystem, which may hang or be shut down. No part of the path is a symbolic link.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use crate::{
    patience::until,
    system::{DeviceNumber, FileKind, Mount, OFlags, System},
};

/// Limit of reads of the mount table while it changes between two reads.
const ATTEMPTS: u32 = 8;

/// A name in an open directory.
#[derive(Debug)]
pub(crate) struct MountTarget<'a> {
    system: &'a dyn System,
    path: PathBuf,
    parent: OwnedFd,
    name: OsString,
}

impl<'a> MountTarget<'a> {
    /// Opens an absolute path; `NotFound` if its parent directory does not exist.
    pub(crate) fn open(system: &'a dyn System, path: &Path) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path has no last part",
            ));
        };
        Ok(Self {
            system,
            parent: system.open(parent, OFlags::PATH | OFlags::DIRECTORY)?,
            name: name.to_owned(),
            path: path.to_owned(),
        })
    }

    /// The whole path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file at the path, without following or opening it; None if nothing exists there.
    pub(crate) fn find(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        match self
            .system
            .open_beneath(self.parent.as_fd(), Path::new(&self.name), flags)
        {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The topmost mount at the path; None if nothing is mounted there.
    pub(crate) fn mounted(&self) -> io::Result<Option<Mount>> {
        for _ in 0..ATTEMPTS {
            let Some(file) = self.find()? else {
                return Ok(None);
            };
            let id = self.system.mount_id(file.as_fd())?;
            if id == self.system.mount_id(self.parent.as_fd())? {
                return Ok(None);
            }
            drop(file);
            let mut mounts = self.system.mounts()?.into_iter();
            if let Some(mount) = mounts.find(|mount| mount.id == id) {
                return Ok(Some(mount));
            }
            // It was unmounted between the two reads.
        }
        Err(io::Error::other("the mount table changes continuously"))
    }

    /// Creates the directory at the path unless it exists. Returns whether it created it.
    pub(crate) fn make_directory(&self, mode: u32) -> io::Result<bool> {
        match self
            .system
            .make_directory(self.parent.as_fd(), &self.name, mode)
        {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = self
                    .find()?
                    .map(|file| self.kind(file.as_fd()))
                    .transpose()?;
                match found {
                    Some(FileKind::Directory) => Ok(false),
                    _ => Err(io::ErrorKind::NotADirectory.into()),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the empty file at the path unless it exists. Returns whether it created it.
    pub(crate) fn make_file(&self) -> io::Result<bool> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        match self
            .system
            .open_beneath(self.parent.as_fd(), Path::new(&self.name), flags)
        {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = self
                    .find()?
                    .map(|file| self.system.stat(file.as_fd()))
                    .transpose()?;
                match found {
                    // A mount on top of the file is not inspected here.
                    Some(stat) if stat.device().is_some() => Ok(false),
                    Some(stat) if stat.kind == FileKind::File && stat.size == 0 => Ok(false),
                    _ => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a directory exists at the path.
    pub(crate) fn is_directory(&self) -> io::Result<bool> {
        let found = self.find()?;
        let kind = found.map(|file| self.kind(file.as_fd())).transpose()?;
        Ok(kind == Some(FileKind::Directory))
    }

    /// The block device whose node exists at the path, or the loop device under it if it is a mapping of Cistern;
    /// None if there is no such node.
    pub(crate) fn device(&self) -> io::Result<Option<DeviceNumber>> {
        let Some(file) = self.find()? else {
            return Ok(None);
        };
        let device = self.system.stat(file.as_fd())?.device();
        device.map(|device| self.system.beneath(device)).transpose()
    }

    /// Attaches a mount.
    pub(crate) fn attach(&self, mount: BorrowedFd<'_>) -> io::Result<()> {
        let onto = self.find()?.ok_or(io::ErrorKind::NotFound)?;
        self.system.attach_mount(mount, onto.as_fd())
    }

    /// Unmounts every mount at the path, the topmost first.
    pub(crate) fn clear(&self) -> io::Result<()> {
        while self.mounted()?.is_some() {
            self.unmount()?;
        }
        Ok(())
    }

    /// Unmounts the topmost mount at the path. `ResourceBusy` while it is in use.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        until(
            || self.system.unmount(self.parent.as_fd(), &self.name),
            |result| !is_busy(result),
        )
    }

    /// Removes the empty directory, empty file or symbolic link at the path. Keeps anything else,
    /// and fails.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let Some(file) = self.find()? else {
            return Ok(());
        };
        let stat = self.system.stat(file.as_fd())?;
        drop(file);
        match stat.kind {
            FileKind::Directory => self
                .system
                .remove_directory(self.parent.as_fd(), &self.name),
            FileKind::File if stat.size == 0 => self.system.unlink(self.parent.as_fd(), &self.name),
            // The link alone: it is not followed, and holds no data.
            FileKind::SymbolicLink => self.system.unlink(self.parent.as_fd(), &self.name),
            FileKind::File | FileKind::BlockDevice | FileKind::Other => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither a directory nor an empty file exists there",
            )),
        }
    }

    fn kind(&self, file: BorrowedFd<'_>) -> io::Result<FileKind> {
        Ok(self.system.stat(file)?.kind)
    }
}

/// Whether the result is `ResourceBusy`: another process uses the file.
pub(crate) fn is_busy<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::ResourceBusy)
}
