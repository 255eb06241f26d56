//! Reading an image while it is protected from removal: to clone it, to snapshot it, or to read its
//! extents.
//!
//! *Invariant:* a reader of an image holds a shared lock on it (flock(2)). A caller that removes or
//! checks an image, or begins to attach it, holds an exclusive lock. The kernel releases a lock
//! when its holder exits. (An attached image needs no lock: its loop device shows that it is in
//! use.)

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Instant,
};

use cistern_types::{Bytes, ExtentLimits};

use super::{Error, Image, describe, failed};
use crate::{
    id::Uid,
    patience::until,
    pool::Pool,
    system::{Extent, OFlags, Placement, System, if_there},
};

/// An image that cannot be removed while this value lives.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Identity and size of the image.
    pub(crate) image: Image,
    file: OwnedFd,
}

impl Reading {
    /// An image whose file is locked.
    pub(crate) fn new(image: Image, file: OwnedFd) -> Self {
        Self { image, file }
    }

    /// Returns the file, open for reading.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Pool {
    /// Counts the extents of an image. Cloning blocks its writers for 10 to 20 µs per extent. Fails
    /// if the image is missing or cannot be read.
    pub fn extent_count(&self, uid: &Uid) -> Result<u64, Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        self.system
            .extent_count(file.as_fd())
            .map_err(failed("count the extents", uid))
    }

    /// Counts the written bytes of an image, which a snapshot of it shares: XFS does not clone
    /// space that was allocated and never written. Fails if the image is missing or cannot be read.
    pub fn written(&self, uid: &Uid) -> Result<Bytes, Error> {
        let source = self.read_source(uid)?;
        let size = source.image.file_size().0;
        let written = written_bytes(&*self.system, source.as_fd(), size);
        Ok(Bytes(written.map_err(failed("read the extents", uid))?))
    }

    /// Opens an image for reading; none when it does not exist.
    pub(crate) fn read_image(&self, uid: &Uid) -> Result<Option<Reading>, Error> {
        match self.open_image_for(OFlags::RDONLY, uid)? {
            Some(file) => self.read_named(self.images.as_fd(), file, uid),
            None => Ok(None),
        }
    }

    /// Protects an open file that has the name of an image in a folder; none when it has lost the name
    /// before it was locked.
    pub(crate) fn read_named(
        &self,
        folder: BorrowedFd<'_>,
        file: OwnedFd,
        uid: &Uid,
    ) -> Result<Option<Reading>, Error> {
        self.lock_shared(file.as_fd(), uid)?;
        let failed = || failed("stat the file", uid);
        let is_named = self.is_named(folder, file.as_fd(), uid);
        if !is_named.map_err(failed())? {
            return Ok(None);
        }
        let image = describe(&*self.system, file.as_fd(), uid).map_err(failed())?;
        Ok(Some(Reading { image, file }))
    }

    /// Whether an open file has the name of an image in a folder. It may have been moved or removed before
    /// it was locked.
    pub(crate) fn is_named(
        &self,
        folder: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        uid: &Uid,
    ) -> io::Result<bool> {
        let system = &*self.system;
        let name = uid.as_str().as_ref();
        match if_there(system.open_beneath(folder, name, OFlags::RDONLY))? {
            Some(named) => Ok(system.stat(named.as_fd())?.id == system.stat(file)?.id),
            None => Ok(false),
        }
    }

    /// Opens the source image of a snapshot or a clone.
    pub(crate) fn read_source(&self, uid: &Uid) -> Result<Reading, Error> {
        if let Some(reading) = self.read_image(uid)? {
            return Ok(reading);
        }
        self.refuse_closed(uid)?;
        let (uid, pool) = (uid.clone(), self.to_string());
        Err(Error::SourceMissing { uid, pool })
    }

    /// Opens the source image of a clone. Without it, a complete copy of it serves that another node has sent
    /// for this volume.
    pub(crate) fn read_clone_source(&self, uid: &Uid, volume: &Uid) -> Result<Reading, Error> {
        match self.read_incoming(volume, uid)? {
            Some(copy) => Ok(copy),
            None => self.read_source(uid),
        }
    }

    /// Returns the number of extents of an image; fails when cloning it would block its writers for too
    /// long.
    pub(crate) fn refuse_extents(
        &self,
        source: &Reading,
        limits: ExtentLimits,
    ) -> Result<u64, Error> {
        let uid = &source.image.uid;
        let extents = self
            .system
            .extent_count(source.as_fd())
            .map_err(failed("count the extents", uid))?;
        if extents > limits.number {
            return Err(Error::TooManyExtents {
                uid: uid.clone(),
                extents,
                limit: limits.number,
            });
        }
        let stall = self.extent_cost.of(extents);
        match limits.stall {
            Some(limit) if stall > limit => Err(Error::StallTooLong {
                uid: uid.clone(),
                extents,
                stall,
                limit,
            }),
            Some(_) | None => Ok(extents),
        }
    }

    /// Clones an image with this number of extents into an empty file, and measures what an extent costs.
    pub(crate) fn copy_extents(
        &self,
        source: &Reading,
        copy: BorrowedFd<'_>,
        extents: u64,
    ) -> io::Result<()> {
        let started = Instant::now();
        self.system.reflink(source.as_fd(), copy)?;
        self.extent_cost.measured(extents, started.elapsed());
        Ok(())
    }

    /// Opens an image and locks it exclusively. A tool that inherits the file keeps the lock, even
    /// when it outlives the process that started it. Fails if the image is missing.
    pub(crate) fn lock_alone(&self, uid: &Uid) -> Result<OwnedFd, Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        wait_for_lock(self.lock_file(file.as_fd()), uid)?;
        let is_named = self.is_named(self.images.as_fd(), file.as_fd(), uid);
        if is_named.map_err(failed("stat the file", uid))? {
            return Ok(file);
        }
        Err(self.missing(uid))
    }

    /// Tries for a short time to lock the file of an image with a shared lock.
    pub(crate) fn lock_shared(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<(), Error> {
        let locked = until(
            || self.system.try_lock_shared(file),
            |locked| !matches!(locked, Ok(false)),
        );
        wait_for_lock(locked, uid)
    }

    /// Tries for a short time to lock a file exclusively.
    pub(crate) fn lock_file(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        until(
            || self.system.try_lock(file),
            |locked| !matches!(locked, Ok(false)),
        )
    }
}

/// Counts the written bytes of a file of this size, without space that was allocated and never written.
pub(crate) fn written_bytes(
    system: &dyn System,
    file: BorrowedFd<'_>,
    size: u64,
) -> io::Result<u64> {
    let (mut at, mut written) = (0, 0_u64);
    while at < size {
        let (extents, end) = system.extents(file, &(at..size))?;
        for Extent { logical, placement } in extents {
            let length = match placement {
                Placement::Unwritten => 0,
                Placement::At(_) | Placement::Unknown => {
                    logical.end.min(end).saturating_sub(logical.start.max(at))
                }
            };
            written = written.saturating_add(length);
        }
        at = end;
    }
    Ok(written)
}

fn wait_for_lock(locked: io::Result<bool>, uid: &Uid) -> Result<(), Error> {
    if locked.map_err(failed("lock the file", uid))? {
        return Ok(());
    }
    let busy = io::Error::from(io::ErrorKind::ResourceBusy);
    Err(failed("wait for the tool or the reader", uid)(busy))
}
