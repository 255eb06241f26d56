//! Locates a pool on its host, even if its StoragePool was recreated as another object.
//!
//! A cluster that is restored from a backup has the same pools under new UIDs. The pool on the disk has
//! its name in its marker, and is adopted by replacing the marker. File and mount point keep the UID of
//! the StoragePool that created them, their *home*: nothing is renamed, moved or unmounted, and pods
//! that use volumes of the pool are not affected.
//!
//! *Invariants:* a pool is adopted only if exactly one candidate has its name, and no pool is created
//! while a candidate exists or cannot be read. The search writes nothing.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    time::Duration,
};

use cistern_types::FilesystemType;

use super::{
    Candidate, Conflict, Error, Expectation, PoolDeclaration, Source,
    adoption::{Candidates, Matches},
    backing, failed, file,
    marker::{self, Marker},
};
use crate::{
    id::{Uid, Uuid},
    loopdev,
    mount_target::MountTarget,
    root::Root,
    superblock::{self, Superblock},
    system::{Mount, OFlags},
};

/// Time limit for reading the marker of a mounted pool.
const PATIENCE: Duration = Duration::from_secs(10);

impl Root {
    /// The UID that names the pool's file and mount point: its own, or that of the StoragePool that
    /// created it.
    pub(super) fn find_home(
        &self,
        pools: BorrowedFd<'_>,
        declaration: &PoolDeclaration,
        expectation: Expectation,
    ) -> Result<Uid, Error> {
        let uid = &declaration.uid;
        let look = |source: io::Error| failed("find the pool")(source);
        if self.has_file(pools, uid)? || self.mounted(uid).map_err(look)?.is_some() {
            return Ok(uid.clone());
        }
        let mut homes = self.homes(pools).map_err(look)?;
        homes.retain(|home| home != uid && !declaration.others.contains(home));
        let found = match expectation {
            Expectation::Known { filesystem_uuid } => {
                self.find_filesystem(pools, declaration, homes, filesystem_uuid)?
            }
            Expectation::Made | Expectation::New => self.find_marker(pools, declaration, homes)?,
        };
        Ok(found.unwrap_or_else(|| uid.clone()))
    }

    /// The home of the pool whose filesystem is known. The identity is verified after it is opened.
    /// A superblock can be read even if the filesystem has shut down.
    fn find_filesystem(
        &self,
        pools: BorrowedFd<'_>,
        declaration: &PoolDeclaration,
        homes: BTreeSet<Uid>,
        filesystem_uuid: Uuid,
    ) -> Result<Option<Uid>, Error> {
        let system = &*self.system;
        let look = |home: &Uid| -> Result<io::Result<Option<Superblock>>, Error> {
            Ok(match file::find(system, pools, self, home)? {
                Some(file) => superblock::read(system, file.as_fd()),
                None => match self.mounted(home) {
                    Ok(Some(mount)) => backing::superblock(system, mount.device),
                    Ok(None) => Ok(None),
                    Err(error) => Err(error),
                },
            })
        };
        let mut matches = Matches::none();
        for home in homes {
            let path = self.mount_point(&home);
            match look(&home)? {
                Ok(Some(seen)) if seen.uuid == filesystem_uuid => matches.found.push((path, home)),
                Ok(_) => {}
                Err(error) => matches.unread.push((path, error)),
            }
        }
        // A known pool is never created again, so what cannot be read is refused only beside a match.
        let why = || Candidate::Filesystem(filesystem_uuid);
        matches.only(declaration, why, |_| Ok(false))
    }

    /// The home of the pool whose marker names it.
    fn find_marker(
        &self,
        pools: BorrowedFd<'_>,
        declaration: &PoolDeclaration,
        homes: BTreeSet<Uid>,
    ) -> Result<Option<Uid>, Error> {
        let look = |source: io::Error| failed("find the pool")(source);
        let is_image = matches!(declaration.source, Source::Image { .. });
        let mut candidates = Candidates::none();
        for home in homes {
            let has_file = self.has_file(pools, &home)?;
            let (at, marker) = match self.mounted(&home).map_err(look)?.is_some() {
                true => (self.mount_point(&home), self.marker_of_mounted(&home)),
                false if has_file => (file::path(self, &home), self.marker_of_file(pools, &home)),
                false => continue,
            };
            let counts = candidates.consider(declaration, at.clone(), home, marker);
            if counts && has_file != is_image {
                candidates.doubt(at, Candidate::OtherSource { in_file: has_file });
            }
        }
        candidates.decide(declaration)
    }

    /// All UIDs with a file or mount point.
    fn homes(&self, pools: BorrowedFd<'_>) -> io::Result<BTreeSet<Uid>> {
        let names = self.system.list(pools)?.into_iter();
        let uids = names.filter_map(|name| {
            let name = name.to_str()?;
            name.strip_suffix(".img").unwrap_or(name).parse().ok()
        });
        Ok(uids.collect())
    }

    fn has_file(&self, pools: BorrowedFd<'_>, home: &Uid) -> Result<bool, Error> {
        Ok(file::find(&*self.system, pools, self, home)?.is_some())
    }

    fn mounted(&self, home: &Uid) -> io::Result<Option<Mount>> {
        MountTarget::open(&*self.system, &self.mount_point(home))?.mounted()
    }

    /// The marker of a pool that is mounted at its home. A disk that hangs blocks the caller only for the
    /// time limit.
    fn marker_of_mounted(&self, home: &Uid) -> Result<Option<Marker>, Error> {
        let path = self.mount_point(home);
        let (system, at) = (self.system.clone(), path.clone());
        let read = move || {
            let directory = system.open(&at, OFlags::RDONLY | OFlags::DIRECTORY)?;
            marker::read(&*system, directory.as_fd(), &at).map_err(io::Error::other)
        };
        let silent = || io::Error::from(io::ErrorKind::TimedOut);
        self.ask_within(&path, PATIENCE, read)
            .unwrap_or_else(|| Err(silent()))
            .map_err(failed(format!("read the marker in {}", path.display())))
    }

    /// The marker in a file that is not mounted. Every file here is a pool of Cistern.
    fn marker_of_file(&self, pools: BorrowedFd<'_>, home: &Uid) -> Result<Option<Marker>, Error> {
        let system = &*self.system;
        let path = file::path(self, home);
        let foreign = |why| Error::BackingConflict {
            path: path.clone(),
            why,
        };
        let io = |source: io::Error| failed(format!("inspect {}", path.display()))(source);
        let Some(file) = file::find(system, pools, self, home)? else {
            return Ok(None);
        };
        let found = superblock::read(system, file.as_fd()).map_err(io)?;
        let is_pool = found.is_some_and(|found| {
            found.kind == FilesystemType::Xfs && found.complete && found.label == home.label()
        });
        if !is_pool {
            return Err(foreign(Conflict::NoPool));
        }
        let bound = loopdev::attach(system, file.as_fd(), file::name(home).as_ref())
            .map_err(failed(format!("attach {}", path.display())))?;
        match marker::read_unmounted(system, &bound.path)? {
            Some(marker) => Ok(Some(marker)),
            None => Err(foreign(Conflict::NoMarker)),
        }
    }
}
