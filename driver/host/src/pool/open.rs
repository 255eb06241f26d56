//! Makes a pool usable: finds or creates it, mounts it and verifies it.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    Conflict, Error, Expectation, NotMounted, Pool, PoolDeclaration, Source, device,
    extent_cost::ExtentCost, failed, file, marker,
};
use crate::{
    id::{Uid, Uuid},
    layout::{IMAGES, TEMPORARY},
    loopdev::Loop,
    mount_target::{MountTarget, is_busy},
    patience::until,
    root::Root,
    system::{DeviceNumber, FileId, Mount, MountAttrFlags, OFlags, Parameter, System, XfsGeometry},
};

/// Access times of images are not used and would cost a write for each read. A pool contains no
/// programs and no devices.
const ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOATIME
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// The block device under a pool: a loop device over its file, or a device of its own.
#[derive(Debug)]
pub(super) struct Backing {
    pub(super) number: DeviceNumber,
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// The file behind it, if there is one.
    pub(super) file: Option<FileId>,
    /// Stable identity of the device.
    pub(super) identity: Option<String>,
    /// Keeps a loop device bound until it is mounted.
    pub(super) _bound: Option<Loop>,
}

impl Root {
    /// Makes a pool usable: creates it if it is new and no data exists, adopts an existing pool, under
    /// whichever UID it was created, attaches, mounts and verifies it. The pool grows with its device,
    /// but an existing file keeps its size until [`Pool::resize_file`]. Idempotent.
    pub fn open_pool(
        &self,
        declaration: &PoolDeclaration,
        expectation: Expectation,
    ) -> Result<Pool, Error> {
        let pools = self
            .open_pools()
            .map_err(failed("open the folder of the pools"))?;
        let home = self.find_home(pools.as_fd(), declaration, expectation)?;
        let path = self.mount_point(&home);
        let describe = |what: &str| format!("{what} {}", path.display());
        let place = MountTarget::open(&*self.system, &path).map_err(failed(describe("inspect")))?;
        let mounted = self.usable_mount(&place, pools.as_fd(), declaration, &home, expectation)?;
        if mounted.is_none() {
            place
                .make_directory(0o700)
                .map_err(failed(describe("make the directory")))?;
        }
        let backing = match &declaration.source {
            Source::Image { size } => file::open(self, pools.as_fd(), &home, *size, expectation)?,
            Source::Device { paths, identity } => match &mounted {
                Some(mount) => device::of_mount(&*self.system, mount)?,
                None => device::open(self, declaration, paths, identity.as_deref(), expectation)?,
            },
        };
        if let Some(mount) = mounted {
            is_mount_of(&mount, &backing)?;
        } else {
            marker::settle(&*self.system, &backing.path, declaration, expectation)?;
            attach(&*self.system, &place, &backing)?;
        }
        self.enter(&place, home, declaration, expectation, &backing)
    }

    /// Opens the mounted filesystem, verifies that it is the pool, and grows it to its device.
    fn enter(
        &self,
        place: &MountTarget<'_>,
        home: Uid,
        declaration: &PoolDeclaration,
        expectation: Expectation,
        backing: &Backing,
    ) -> Result<Pool, Error> {
        let system = &*self.system;
        let path = place.path();
        let io = |source: io::Error| failed(format!("read {}", path.display()))(source);
        let directory = system
            .open(path, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(io)?;
        let mount_id = system.mount_id(directory.as_fd()).map_err(io)?;
        let geometry = verify(system, directory.as_fd(), path, expectation)?;
        if system.space(directory.as_fd()).map_err(io)?.read_only {
            return Err(Error::ReadOnly { path: path.into() });
        }
        let filesystem_uuid = Uuid::from_bytes(geometry.uuid);
        let marker = marker::ensure(
            system,
            directory.as_fd(),
            path,
            declaration,
            filesystem_uuid,
            expectation,
        )?;
        let disk = backing.file.map_or(backing.number, |file| file.device);
        let errors = system.device_errors(disk).map_err(io)?;
        let open = |name: &str| open_folder(system, directory.as_fd(), mount_id, name);
        let pool = Pool {
            images: open(IMAGES).map_err(io)?,
            temporary: open(TEMPORARY).map_err(io)?,
            system: Arc::clone(&self.system),
            root: self.clone(),
            declaration: declaration.clone(),
            home,
            filesystem_uuid,
            device: backing.path.clone(),
            device_identity: backing.identity.clone(),
            disk,
            errors_before: errors.unwrap_or(0),
            file: backing.file,
            directory,
            mount_id,
            marker,
            extent_cost: ExtentCost::default(),
        };
        if let Source::Device { .. } = declaration.source {
            pool.cover(backing.size)
                .map_err(failed(format!("grow the filesystem at {}", path.display())))?;
        }
        Ok(pool)
    }
}

/// Opens a folder of a pool. Fails if something is mounted over it.
pub(super) fn open_folder(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    mount_id: u64,
    name: &str,
) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let folder = system.open_beneath(directory, name.as_ref(), flags)?;
    if system.mount_id(folder.as_fd())? != mount_id {
        return Err(io::Error::other(
            "something is mounted over a pool's folder",
        ));
    }
    Ok(folder)
}

fn is_mount_of(mount: &Mount, backing: &Backing) -> Result<(), Error> {
    if mount.device == backing.number {
        return Ok(());
    }
    Err(Error::NotMounted {
        path: mount.mount_point.clone(),
        why: NotMounted::OtherDevice {
            filesystem: mount.filesystem.clone(),
            device: mount.source.clone(),
        },
    })
}

/// Mounts the filesystem of a pool without attaching it to a path. Retries while the device is busy: a
/// search for an adoptable pool may be reading it, or an unmount may not have completed.
pub(super) fn mount(
    system: &dyn System,
    device: &Path,
    parameters: &[Parameter<'_>],
) -> io::Result<OwnedFd> {
    until(
        || system.mount_filesystem("xfs", device, parameters, ATTRIBUTES),
        |mounted| !is_busy(mounted),
    )
}

fn attach(system: &dyn System, place: &MountTarget<'_>, backing: &Backing) -> Result<(), Error> {
    let operation = format!(
        "mount {} at {}",
        backing.path.display(),
        place.path().display()
    );
    mount(system, &backing.path, &[])
        .and_then(|mount| place.attach(mount.as_fd()))
        .map_err(failed(operation))
}

/// Verifies that the mounted filesystem is an XFS with reflink and, if known, with this UUID.
pub(super) fn verify(
    system: &dyn System,
    directory: BorrowedFd<'_>,
    path: &Path,
    expectation: Expectation,
) -> Result<XfsGeometry, Error> {
    let foreign = |why| Error::BackingConflict {
        path: path.to_owned(),
        why,
    };
    let geometry = system
        .xfs_geometry(directory)
        .map_err(failed(format!(
            "query the filesystem at {}",
            path.display()
        )))?
        .ok_or_else(|| foreign(Conflict::NotXfs))?;
    if !geometry.reflink {
        return Err(foreign(Conflict::NoReflink));
    }
    let found = Uuid::from_bytes(geometry.uuid);
    match expectation {
        Expectation::Known { filesystem_uuid } if filesystem_uuid != found => {
            Err(foreign(Conflict::Uuid {
                found,
                expected: filesystem_uuid,
            }))
        }
        Expectation::Known { .. } | Expectation::Made | Expectation::New => Ok(geometry),
    }
}
