//! Images: one file in a pool for each volume.
//!
//! *Invariants:* an image appears whole or not at all. Its name is the UID of the object that made
//! it, and an extended attribute records its identity. Only [`Pool::create_image`] and
//! [`Pool::complete_encrypted`] make a filesystem, in a file that is not yet among the images. Only
//! [`Pool::remove_image`] removes an image, or [`Pool::remove_discarded`] from the trash, or
//! [`Pool::remove_closed`] after a move, and only while it is neither attached nor read. Only
//! [`Pool::adopt_filesystem`] replaces an image by a copy of it, and only [`Pool::complete_encrypted`]
//! replaces an encrypted image by a complete one.

mod adopt;
mod clone;
mod conflict;
pub(crate) mod encrypted;
mod error;
mod grow;
pub(crate) mod identity;
pub(crate) mod make;
mod provision;
pub(crate) mod read;
mod record;
pub(crate) mod trash;
pub(crate) mod unfinished;

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use cistern_types::{
    Bytes, Encryption, ExtentLimits, ExtentSize, FilesystemType, MkfsOptions, Provisioning,
};
use rustix::io::Errno;

pub(crate) use self::error::failed;
pub use self::{
    adopt::{AdoptionRequest, NotAdoptable},
    conflict::{FilesystemConflict, IdentityConflict, Properties},
    error::{Error, ImageUse},
    identity::{Content, Identity, Owner, SnapshotRecord},
    trash::Discarded,
};
use crate::{
    attached::holders,
    cause::Cause,
    check::Checking,
    encryption::EncryptionState,
    id::Uid,
    layout::CLOSED,
    loopdev,
    patience::until,
    pool::{self, Pool},
    progress::Stoppable,
    system::{FileKind, OFlags, SECTOR_SIZE, Stat, System, if_there},
};

/// The extended attribute that records the identity of an image. Only root can read or change it.
pub(crate) const IDENTITY: &str = "trusted.cistern";

/// A tool that fails counts as short of space if the pool has less free space than this: mkfs
/// writes some MiB.
const TOOL_SPACE: Bytes = Bytes::mib(16);

/// A request to create the image of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRequest {
    /// Name of the PoolVolume.
    pub volume: String,
    /// UID of the PoolVolume; names the image.
    pub uid: Uid,
    /// Size of the volume, a multiple of 1 MiB.
    pub size: Bytes,
    /// The filesystem to make; none for block access.
    pub filesystem: Option<FilesystemType>,
    /// Options for mkfs. They are not stored.
    pub mkfs_options: MkfsOptions,
    /// The extent size hint; none for the default of the kernel. It is a property of the file.
    pub extent_size: Option<ExtentSize>,
    /// Whether the image is allocated in full. An encrypted one is allocated when it is staged for the first time.
    pub provisioning: Provisioning,
    /// How the image is encrypted; none for one that is not. The filesystem is then made when it is staged.
    pub encryption: Option<Encryption>,
    /// The image to clone; none for an empty volume.
    pub source: Option<SourceImage>,
}

/// An image in the same pool, of a volume or a snapshot, that a volume is cloned from. It may be
/// smaller than the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceImage {
    /// Name of the image.
    pub uid: Uid,
    /// Limits of what is cloned: more would block its writers for too long.
    pub extent_limits: ExtentLimits,
}

/// An image on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Name of the image: the UID of the object that made it.
    pub uid: Uid,
    /// Recorded identity; none when it is missing or cannot be parsed.
    pub identity: Option<Identity>,
    /// Size of the volume: of the file without the header of an encrypted image.
    pub size: Bytes,
    /// Bytes allocated in the pool, including those shared with other images.
    pub allocated: Bytes,
    /// Logical sector size of the device of the volume in bytes.
    pub sector_size: u32,
}

impl Image {
    /// Returns the size of the file.
    pub fn file_size(&self) -> Bytes {
        self.size.saturating_add(self.header())
    }

    /// Returns the size of the header in front of the volume's data.
    pub(crate) fn header(&self) -> Bytes {
        let identity = self.identity.as_ref();
        identity.map_or(Bytes::ZERO, Identity::header)
    }

    /// What the image has if it is encrypted; none for one that is not, or has no identity.
    pub fn encryption(&self) -> Option<EncryptionState> {
        self.identity.as_ref()?.encryption
    }
}

impl Pool {
    /// Lists all images of the pool. Fails if the pool cannot be read.
    pub fn images(&self) -> Result<Vec<Image>, Error> {
        let failed = pool::failed(format!("list the images of pool {self}"));
        Ok(list(&*self.system, self.images.as_fd()).map_err(failed)?)
    }

    /// Returns one image; none when it does not exist. Fails if it cannot be opened or read.
    pub fn image(&self, uid: &Uid) -> Result<Option<Image>, Error> {
        let failed = failed("read the identity", uid);
        match self.open_image(uid)? {
            Some(file) => describe(&*self.system, file.as_fd(), uid)
                .map(Some)
                .map_err(failed),
            None => Ok(None),
        }
    }

    /// Opens an image read-only, because it may no longer be writable; None if it does not exist. One that is
    /// closed for a move exists.
    pub(crate) fn find_image(&self, uid: &Uid) -> io::Result<Option<Image>> {
        let (system, name) = (&*self.system, uid.as_str().as_ref());
        let open = |folder| if_there(system.open_beneath(folder, name, OFlags::RDONLY));
        let describe = |file: OwnedFd| describe(system, file.as_fd(), uid);
        if let Some(file) = open(self.images.as_fd())? {
            return describe(file).map(Some);
        }
        match self.open_optional_folder(CLOSED)? {
            Some(closed) => open(closed.as_fd())?.map(describe).transpose(),
            None => Ok(None),
        }
    }

    /// Creates an image, whole or not at all. Returns an existing one that matches the request.
    /// Fails if an existing image does not match, if the source cannot be cloned, if the pool
    /// lacks space, or if the progress of the allocation of a thick image stops it. An ext4 that is
    /// cloned to a larger size needs a full check: if `checking` does not allow it, the call fails
    /// with [`Error::CheckNeeded`].
    pub fn create_image(
        &self,
        request: &ImageRequest,
        checking: Checking<'_>,
        progress: Stoppable<'_>,
    ) -> Result<Image, Error> {
        self.check()?;
        let uid = &request.uid;
        if self.image(uid)?.is_none() {
            // Its data is in a closed image, or in a copy of the volume that moves here.
            self.refuse_closed(uid)?;
            self.refuse_copies_of(&request.volume)?;
            self.make(request, checking, progress)?;
        }
        let image = self.image(uid)?.ok_or_else(|| self.missing(uid))?;
        make::disagreement(&image, request, self.filesystem_uuid()).map_or(Ok(()), |why| {
            let uid = uid.clone();
            Err(Error::IdentityConflict { uid, why })
        })?;
        // Also for an existing image: the call that made it may have failed at this sync.
        self.system
            .sync(self.images.as_fd())
            .map_err(failed("sync the name", uid))?;
        match self.reallocate(uid, progress) {
            // It is whole, and does not change before it has moved.
            Err(Error::Moving { .. }) => {}
            result => _ = result?,
        }
        // Before the caller uses the volume: its writes would need space of their own for what they share.
        if request.source.is_some() {
            self.remove_incoming(uid)?;
        }
        Ok(image)
    }

    /// Fails when an image is attached or being read. Succeeds when it does not exist.
    pub fn check_unused(&self, uid: &Uid) -> Result<(), Error> {
        self.check()?;
        match self.open_image(uid)? {
            Some(file) => self.unused(file, uid).map(drop),
            None => Ok(()),
        }
    }

    /// Removes an image, and frees the space that it does not share before it returns. Succeeds
    /// when it does not exist; fails when it is attached or being read, or is closing or closed for a
    /// move, which has to be undone first.
    pub fn remove_image(&self, uid: &Uid) -> Result<(), Error> {
        self.check()?;
        let system = &*self.system;
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        };
        let remove = |file: Option<OwnedFd>| -> io::Result<()> {
            gone(system.unlink(self.images.as_fd(), uid.as_ref()))?;
            gone(system.unlink(self.temporary.as_fd(), uid.as_ref()))?;
            system.sync(self.images.as_fd())?;
            // XFS frees the space of a removed file later, and the ledger must not reserve it
            // before that.
            file.map_or(Ok(()), |file| system.truncate(file.as_fd(), 0))
        };
        self.refuse_closed(uid)?;
        let file = self.open_image(uid)?;
        let file = file.map(|file| self.unused(file, uid)).transpose()?;
        if let Some(file) = &file {
            self.refuse_marked(file.as_fd(), uid)?;
        }
        remove(file).map_err(failed("remove the file", uid))?;
        self.remove_incoming(uid)
    }

    /// Removes the unfinished images of interrupted calls, and returns their number. Keeps an image
    /// that is being made now. Fails if the folder cannot be read, or an image cannot be removed.
    pub fn sweep(&self) -> Result<usize, Error> {
        let failed = pool::failed(format!("sweep the unfinished images of pool {self}"));
        Ok(sweep(&*self.system, self.temporary.as_fd()).map_err(failed)?)
    }

    /// Opens an image; none when it does not exist.
    pub(crate) fn open_image(&self, uid: &Uid) -> Result<Option<OwnedFd>, Error> {
        self.open_image_for(OFlags::RDWR, uid)
    }

    fn open_image_for(&self, access: OFlags, uid: &Uid) -> Result<Option<OwnedFd>, Error> {
        let (system, images) = (&*self.system, self.images.as_fd());
        if_there(system.open_beneath(images, uid.as_str().as_ref(), access))
            .map_err(failed("open the file", uid))
    }

    /// Locks the file of an image exclusively; fails when it is attached or being read.
    pub(crate) fn unused(&self, file: OwnedFd, uid: &Uid) -> Result<OwnedFd, Error> {
        let locked = self.lock_file(file.as_fd());
        if !locked.map_err(failed("lock the file", uid))? {
            return Err(Error::InUse {
                uid: uid.clone(),
                by: ImageUse::Locked,
            });
        }
        // Under the lock, because who attaches an image holds it.
        self.detach_idle(file.as_fd(), uid)
            .map_err(failed("detach the idle device", uid))?;
        self.refuse_in_use(file.as_fd(), uid)?;
        Ok(file)
    }

    /// Fails when a loop device is bound to an image, in this or another mount namespace.
    pub(crate) fn refuse_in_use(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<(), Error> {
        let system = &*self.system;
        let id = system.stat(file).map_err(failed("stat the file", uid))?.id;
        let bound = until(
            || loopdev::find(system, id, uid.as_ref()),
            |found| !matches!(found, Ok(Some(_))),
        );
        match bound.map_err(failed("find the loop device", uid))? {
            None => Ok(()),
            Some(bound) => {
                let holders = holders(system, bound.device());
                let holders = holders.map_err(failed("find the holder", uid))?;
                let (uid, device) = (uid.clone(), bound.number);
                let by = ImageUse::Attached { device, holders };
                Err(Error::InUse { uid, by })
            }
        }
    }

    /// Why an image is not among the images: it is closed for a move, or does not exist.
    pub(crate) fn missing(&self, uid: &Uid) -> Error {
        self.refuse_closed(uid)
            .err()
            .unwrap_or_else(|| Error::Missing {
                uid: uid.clone(),
                pool: self.to_string(),
            })
    }

    /// Whether the pool lacks the space that a tool needs. Queried before the tool's file is removed.
    fn is_full(&self) -> bool {
        self.available()
            .is_ok_and(|available| available < TOOL_SPACE)
    }

    /// Allocates space for an image. If the pool lacks it, frees the preallocated blocks and tries once more.
    pub(crate) fn allocate_for<T>(
        &self,
        uid: &Uid,
        allocate: impl Fn() -> io::Result<T>,
    ) -> Result<T, Error> {
        self.with_space(allocate)
            .map_err(|source| self.no_space_or("allocate the space", uid, source.into()))
    }

    /// [`Error::NoSpace`] if that is the cause of a failed step, or else [`Error::Failed`].
    pub(crate) fn no_space_or(&self, operation: &'static str, uid: &Uid, source: Cause) -> Error {
        if source.is_no_space() || source.is_failed_tool() && self.is_full() {
            let (uid, pool) = (uid.clone(), self.to_string());
            return Error::NoSpace { uid, pool, source };
        }
        failed(operation, uid)(source)
    }
}

/// Lists the files in a directory of images that are named by UIDs. Others are reported as strays.
pub(crate) fn list(system: &dyn System, images: BorrowedFd<'_>) -> io::Result<Vec<Image>> {
    let files = open_named(system, images, |name| name.parse::<Uid>().ok())?;
    files
        .map(|found| {
            let (uid, file) = found?;
            describe(system, file.as_fd(), &uid)
        })
        .collect()
}

/// Opens the regular files in a directory whose names can be parsed, one after the other. Skips one that has been
/// removed since the directory was listed.
pub(crate) fn open_named<T>(
    system: &dyn System,
    folder: BorrowedFd<'_>,
    parse: impl Fn(&str) -> Option<T>,
) -> io::Result<impl Iterator<Item = io::Result<(T, OwnedFd)>>> {
    let names = system.list(folder)?.into_iter();
    Ok(names.filter_map(move |name| {
        let parsed = parse(&name.to_string_lossy())?;
        let opened = open_listed(system, folder, &name).transpose()?;
        Some(opened.map(|file| (parsed, file)))
    }))
}

/// Opens a directory entry; none when it has been removed since, or is not a regular file.
fn open_listed(
    system: &dyn System,
    folder: BorrowedFd<'_>,
    name: &OsStr,
) -> io::Result<Option<OwnedFd>> {
    // Without O_NONBLOCK, opening a pipe would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    match system.open_beneath(folder, name.as_ref(), flags) {
        Ok(file) => {
            let is_file = system.stat(file.as_fd())?.kind == FileKind::File;
            Ok(is_file.then_some(file))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads size and identity of an open image.
pub(crate) fn describe(system: &dyn System, file: BorrowedFd<'_>, uid: &Uid) -> io::Result<Image> {
    let Stat {
        size, allocated, ..
    } = system.stat(file)?;
    let identity = system.attribute(file, IDENTITY)?;
    let identity: Option<Identity> = identity.and_then(|text| serde_json::from_slice(&text).ok());
    let header = identity.as_ref().map_or(Bytes::ZERO, Identity::header);
    Ok(Image {
        uid: uid.clone(),
        identity,
        size: Bytes(size).saturating_sub(header),
        allocated: Bytes(allocated),
        sector_size: SECTOR_SIZE,
    })
}

fn sweep(system: &dyn System, temporary: BorrowedFd<'_>) -> io::Result<usize> {
    let mut removed = 0;
    for unfinished in open_named(system, temporary, |name| name.parse::<Uid>().ok())? {
        let (uid, file) = unfinished?;
        if system.try_lock(file.as_fd())? {
            system.unlink(temporary, uid.as_ref())?;
            removed += 1;
        }
    }
    system.sync(temporary)?;
    Ok(removed)
}
