//! Removes a pool from a host.
//!
//! *Invariant:* nothing is removed while the pool contains an image, or a copy of a volume that moves, and a device is
//! never changed. A former disk is asked itself for its images: the kernel may still list those of a dead one, from its
//! memory.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use super::{
    Error, Expectation, PoolDeclaration, Source, failed, file, filesystem::verify, folder::Folder,
};
use crate::{id::Uid, mount_target::MountTarget, root::Root, stray, system::OFlags};

impl Root {
    /// Unmounts a pool that contains no image, and removes its file if it has one. Every [`Pool`]
    /// of it must have been dropped, because an open one keeps it mounted. Idempotent. Fails if
    /// images, copies of volumes that move, or foreign files remain, or if a step fails.
    ///
    /// [`Pool`]: super::Pool
    pub fn remove_pool(
        &self,
        declaration: &PoolDeclaration,
        expectation: Expectation,
    ) -> Result<(), Error> {
        let pools = self
            .open_pools()
            .map_err(failed("open the folder of the pools"))?;
        let Some(folder) = self.folder_to_clear(declaration, expectation)? else {
            return Ok(());
        };
        let uid = &self.find_home(&folder, declaration, expectation)?;
        let path = self.mount_point(uid);
        let io = |source: io::Error| failed(format!("inspect {}", path.display()))(source);
        let place = MountTarget::open(&*self.system, &path).map_err(io)?;
        self.unmount_former(&place, declaration, expectation)?;
        let is_mounted = place.mounted().map_err(io)?.is_some();
        let is_device = matches!(declaration.source, Source::Device { .. });
        let is_there = match &declaration.source {
            Source::Image { .. } => file::find(&*self.system, &folder, uid)?.is_some(),
            // A device that was never recorded has no pool, and a missing one is not changed.
            Source::Device { .. } => expectation != Expectation::New,
        };
        if is_mounted || is_there {
            match self.refuse_unless_empty(declaration, expectation) {
                // A pool that is neither present nor mounted cannot be inspected, and is gone already.
                Err(Error::BackingMissing { what }) if !is_mounted => {
                    tracing::warn!(
                        pool = %declaration.name,
                        %what,
                        "the pool is removed, although its file or device is missing"
                    );
                }
                // Its device belongs to that node now, and is not changed.
                Err(Error::OtherNode { foreign, .. }) if !is_mounted && is_device => {
                    let node = &foreign.owner;
                    tracing::warn!(
                        pool = %declaration.name,
                        %node,
                        "the pool is removed from this node and belongs to another"
                    );
                }
                result => result?,
            }
        }
        place
            .clear()
            .map_err(failed(format!("unmount {}", path.display())))?;
        self.remove_files(pools.as_fd(), &folder, &place, uid)
            .map_err(failed(format!("remove {}", path.display())))
    }

    /// The directory of a pool's file. None if it cannot be used, and the pool was never made: then there is
    /// nothing to remove.
    fn folder_to_clear(
        &self,
        declaration: &PoolDeclaration,
        expectation: Expectation,
    ) -> Result<Option<Folder>, Error> {
        let refused = match self.verified_folder(declaration) {
            Err(error @ (Error::DirectoryNotAllowed { .. } | Error::DirectoryUnusable { .. })) => {
                error
            }
            result => return result.map(Some),
        };
        let path = self.mount_point(&declaration.uid);
        let mounted = MountTarget::open(&*self.system, &path).and_then(|place| place.mounted());
        let mounted = mounted.map_err(failed(format!("inspect {}", path.display())))?;
        if expectation == Expectation::New && mounted.is_none() {
            return Ok(None);
        }
        Err(refused)
    }

    /// Unmounts the filesystem of a former disk, unless it is in use. One that has shut down is left to
    /// [`Root::open_pool`].
    fn unmount_former(
        &self,
        place: &MountTarget<'_>,
        declaration: &PoolDeclaration,
        expectation: Expectation,
    ) -> Result<(), Error> {
        let (system, path) = (&*self.system, place.path());
        let io = |source: io::Error| failed(format!("unmount {}", path.display()))(source);
        if !declaration.replaces(expectation) || place.mounted().map_err(io)?.is_none() {
            return Ok(());
        }
        let is_it = match system.open(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => verify(system, directory.as_fd(), path, expectation).is_ok(),
            Err(_) => false,
        };
        match is_it.then(|| place.unmount()).transpose() {
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy => Err(io(error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn refuse_unless_empty(
        &self,
        declaration: &PoolDeclaration,
        expectation: Expectation,
    ) -> Result<(), Error> {
        let pool = self.open_pool(declaration, expectation)?;
        let list = failed(format!("list the images of pool {pool}"));
        let count = || -> io::Result<usize> {
            let system = &*self.system;
            let images = system.list(pool.images.as_fd())?;
            let strays = stray::outside_of_images(system, pool.directory(), &pool.path())?;
            let copies = pool.count_copies_of_moves()?;
            let kept = pool.closed_names()?.len() + pool.trashed()?.len() + copies;
            Ok(images.len() + kept + strays.len())
        };
        match count().map_err(list)? {
            0 => Ok(()),
            count => Err(Error::ImagesRemain {
                path: pool.path(),
                count,
            }),
        }
    }

    fn remove_files(
        &self,
        pools: BorrowedFd<'_>,
        folder: &Folder,
        place: &MountTarget<'_>,
        uid: &Uid,
    ) -> io::Result<()> {
        if let Some(directory) = folder.directory() {
            for name in [file::name(uid), file::new_name(uid)] {
                match self.system.unlink(directory, name.as_ref()) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            self.system.sync(directory)?;
        }
        place.remove()?;
        self.system.sync(pools)
    }
}
