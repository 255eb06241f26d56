//! Locates a pool on its host, even if its StoragePool was recreated as another object.
//!
//! A cluster that is restored from a backup has the same pools under new UIDs. The pool on the disk has
//! its name in its marker, and is adopted by replacing the marker. File and mount point keep the UID of
//! the StoragePool that created them, their *home*: nothing is renamed, moved or unmounted, and pods
//! that use volumes of the pool are not affected.
//!
//! *Invariants:* a pool is adopted only if exactly one candidate has its name, and no pool is created
//! while a candidate exists or cannot be read. The search writes nothing. It knows every mounted pool, and
//! the files in the directory that the pool names and in the folder of the pools.

use std::{collections::BTreeSet, io, os::fd::AsFd as _, time::Duration};

use cistern_types::FilesystemType;

use super::{
    Candidate, Conflict, Error, Expectation, PoolDeclaration, Source,
    adoption::{Candidates, Matches},
    backing, failed, file,
    folder::Folder,
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
    /// created it. `folder` is the directory for its file.
    pub(super) fn find_home(
        &self,
        folder: &Folder,
        declaration: &PoolDeclaration,
        expectation: Expectation,
    ) -> Result<Uid, Error> {
        let uid = &declaration.uid;
        if self.has_file(folder, uid)? || self.mounted(uid).map_err(look)?.is_some() {
            return Ok(uid.clone());
        }
        let mut homes = self.homes(folder).map_err(look)?;
        homes.retain(|home| home != uid && !declaration.others.contains(home));
        let found = match expectation {
            Expectation::Known { filesystem_uuid } => {
                self.find_filesystem(folder, declaration, homes, filesystem_uuid)?
            }
            Expectation::Made | Expectation::New => self.find_marker(folder, declaration, homes)?,
        };
        Ok(found.unwrap_or_else(|| uid.clone()))
    }

    /// The home of the pool whose filesystem is known. The identity is verified after it is opened.
    /// A superblock can be read even if the filesystem has shut down.
    fn find_filesystem(
        &self,
        folder: &Folder,
        declaration: &PoolDeclaration,
        homes: BTreeSet<Uid>,
        filesystem_uuid: Uuid,
    ) -> Result<Option<Uid>, Error> {
        let system = &*self.system;
        let look = |home: &Uid| -> Result<io::Result<Option<Superblock>>, Error> {
            Ok(match file::find(system, folder, home)? {
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
        folder: &Folder,
        declaration: &PoolDeclaration,
        homes: BTreeSet<Uid>,
    ) -> Result<Option<Uid>, Error> {
        let is_image = matches!(declaration.source, Source::Image { .. });
        let mut candidates = Candidates::none();
        for home in homes {
            let has_file = self.has_file(folder, &home)?;
            let mounted = self.mounted(&home).map_err(look)?;
            let (at, marker) = match &mounted {
                Some(_) => (self.mount_point(&home), self.marker_of_mounted(&home)),
                None if has_file => (folder.file(&home), self.marker_of_file(folder, &home)),
                None => continue,
            };
            let is_elsewhere = !has_file && self.is_file(mounted.as_ref(), &home).map_err(look)?;
            let counts = candidates.consider(declaration, at.clone(), home, marker);
            if counts && is_elsewhere && is_image {
                candidates.doubt(at, Candidate::OtherDirectory);
            } else if counts && (has_file || is_elsewhere) != is_image {
                let in_file = has_file || is_elsewhere;
                candidates.doubt(at, Candidate::OtherSource { in_file });
            }
        }
        if folder.path() != self.pools_path() {
            self.doubt_default_files(declaration, &mut candidates)?;
        }
        candidates.decide(declaration)
    }

    /// Doubts the files of the pool in the folder of the pools, although it names another directory.
    fn doubt_default_files(
        &self,
        declaration: &PoolDeclaration,
        candidates: &mut Candidates<Uid>,
    ) -> Result<(), Error> {
        let folder = self.default_folder()?;
        for home in folder.files(&*self.system).map_err(look)? {
            let is_others = declaration.others.contains(&home);
            if is_others || self.mounted(&home).map_err(look)?.is_some() {
                continue;
            }
            let at = folder.file(&home);
            match self.marker_of_file(&folder, &home) {
                Ok(Some(marker))
                    if marker.record.pool_uid == declaration.uid
                        || marker.record.is_returning(&declaration.claim()) =>
                {
                    candidates.doubt(at, Candidate::OtherDirectory);
                }
                Ok(_) => {}
                Err(error) => candidates.doubt(at, Candidate::Unread(Box::new(error))),
            }
        }
        Ok(())
    }

    /// All UIDs with a file or mount point.
    fn homes(&self, folder: &Folder) -> io::Result<BTreeSet<Uid>> {
        let names = self.system.list(self.open_pools()?.as_fd())?.into_iter();
        let mut homes = folder.files(&*self.system)?;
        homes.extend(names.filter_map(|name| name.to_str()?.parse().ok()));
        Ok(homes)
    }

    fn has_file(&self, folder: &Folder, home: &Uid) -> Result<bool, Error> {
        Ok(file::find(&*self.system, folder, home)?.is_some())
    }

    /// Whether a pool that is mounted at its home lies in a file.
    fn is_file(&self, mounted: Option<&Mount>, home: &Uid) -> io::Result<bool> {
        let Some(number) = mounted.and_then(|mount| mount.device.as_loop()) else {
            return Ok(false);
        };
        let backing_file = self.system.backing_file(number)?;
        let name = file::name(home);
        Ok(backing_file.is_some_and(|file| loopdev::is_named(&file, name.as_ref())))
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
    fn marker_of_file(&self, folder: &Folder, home: &Uid) -> Result<Option<Marker>, Error> {
        let system = &*self.system;
        let path = folder.file(home);
        let foreign = |why| Error::BackingConflict {
            path: path.clone(),
            why,
        };
        let io = |source: io::Error| failed(format!("inspect {}", path.display()))(source);
        let Some(file) = file::find(system, folder, home)? else {
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

fn look(source: io::Error) -> Error {
    failed("find the pool")(source)
}
