//! Makes a pool usable: finds or creates it, mounts it and verifies it.

use std::{io, os::fd::AsFd as _, sync::Arc};

use super::{
    Error, Expectation, NotMounted, Pool, PoolDeclaration, Source,
    backing::{self, Backing},
    device,
    extent_cost::ExtentCost,
    failed, file,
    filesystem::{mount, open_folder, verify},
    marker,
};
use crate::{
    id::{Uid, Uuid},
    layout::{IMAGES, TEMPORARY},
    mount_target::MountTarget,
    root::Root,
    system::{Mount, OFlags, System},
};

impl Root {
    /// Makes a pool usable: finds it, under whichever UID it was created, or creates it if it is
    /// new and no data exists; then attaches, mounts and verifies it. The pool grows with its
    /// device, but an existing file keeps its size until [`Pool::resize_file`]. Idempotent. Fails
    /// if the pool is missing, if several candidates may be the pool, if other data or another
    /// node's pool is in its place, or if a step fails.
    pub fn open_pool(
        &self,
        declaration: &PoolDeclaration,
        expectation: Expectation,
    ) -> Result<Pool, Error> {
        // The mount point of every pool is in the folder of the pools.
        self.open_pools()
            .map_err(failed("open the folder of the pools"))?;
        let folder = self.verified_folder(declaration)?;
        let home = self.find_home(&folder, declaration, expectation)?;
        let path = self.mount_point(&home);
        let describe = |what: &str| format!("{what} {}", path.display());
        let place = MountTarget::open(&*self.system, &path).map_err(failed(describe("inspect")))?;
        let mounted = self.usable_mount(&place, &folder, declaration, &home, expectation)?;
        if mounted.is_none() {
            place
                .make_directory(0o700)
                .map_err(failed(describe("make the directory")))?;
        }
        let backing = match &declaration.source {
            Source::Image { size, .. } => {
                // The file of a mounted pool is not made again.
                let expectation = match (expectation, &mounted) {
                    (Expectation::New, Some(_)) => Expectation::Made,
                    (expectation, _) => expectation,
                };
                file::open(self, &folder, &home, *size, expectation)?
            }
            Source::Device { paths, identity } => match &mounted {
                Some(mount) => backing::of_mount(&*self.system, mount)?,
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
