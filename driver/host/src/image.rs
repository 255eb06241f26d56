//! Images: one file in a pool for each volume.
//!
//! *Invariants:* an image appears whole or not at all; it is named by the UID of the object that
//! made it and carries its identity in an extended attribute; only [`Pool::create_image`] makes a
//! filesystem, in a file that has no name among the images yet; only [`Pool::remove_image`] removes
//! one, or [`Pool::remove_discarded`] from the trash, and only while nobody has it attached or reads it.

mod clone;
mod grow;
mod identity;
mod make;
pub(crate) mod read;
pub(crate) mod trash;
pub(crate) mod unfinished;

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use cistern_crds::{Bytes, FilesystemType, MkfsOptions, Provisioning};
use rustix::io::Errno;

pub use self::{
    identity::{Content, Cut, Identity, Owner},
    trash::Discarded,
};
use crate::{
    allocation,
    cause::Cause,
    check::{self, Checking},
    id::Uid,
    loopdev,
    patience::until,
    pool::{self, Pool},
    system::{FileKind, OFlags, Stat, System},
};

/// The extended attribute that says whose an image is. Only root sees and changes it.
const IDENTITY: &str = "trusted.cistern";

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRequest {
    /// Name of the PoolVolume.
    pub volume: String,
    /// Its UID.
    pub uid: Uid,
    /// Size of the volume, a multiple of 1 MiB.
    pub size: Bytes,
    /// The filesystem to be made in it; none for block access.
    pub filesystem: Option<FilesystemType>,
    /// Options for the tool that makes it. What they were is not remembered.
    pub mkfs_options: MkfsOptions,
    /// Whether it is allocated in full.
    pub provisioning: Provisioning,
    /// The image that it begins as a clone of; none where it begins empty.
    pub source: Option<SourceImage>,
}

/// An image in the same pool, a volume's or a snapshot's, that a volume is made from. It may be
/// smaller than the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceImage {
    /// Its name.
    pub uid: Uid,
    /// With how many extents it is not cloned: its writers would wait for too long.
    pub maximum_extents: u64,
}

/// An image on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its name: the UID of the object that made it.
    pub uid: Uid,
    /// Whose it is; none when it says nothing that can be read.
    pub identity: Option<Identity>,
    /// Its size.
    pub size: Bytes,
    /// Bytes that it takes of the pool, those that it shares with other images included.
    pub allocated: Bytes,
}

/// Why something could not be done with an image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pool cannot be used.
    #[error(transparent)]
    Pool(#[from] pool::Error),
    /// There is no image of this name.
    #[error("image {uid} is not in pool {pool}")]
    Missing {
        /// Its name.
        uid: Uid,
        /// The pool.
        pool: String,
    },
    /// The image that another is to be made from is not there.
    #[error("image {uid}, the source, is not in pool {pool}")]
    SourceMissing {
        /// Name of the source.
        uid: Uid,
        /// The pool.
        pool: String,
    },
    /// Cloning the image would hold up its writers for too long.
    #[error(
        "image {uid} has {extents} extents, more than the {limit} that are cloned: copy its data to a new volume, where it takes fewer, or raise the pool's limit"
    )]
    TooManyExtents {
        /// Name of the source.
        uid: Uid,
        /// How many it has.
        extents: u64,
        /// How many it may have.
        limit: u64,
    },
    /// The image of this name is another volume's, or was made as something else.
    #[error("image {uid} is not what was asked for: {why}; it is left as it is")]
    IdentityConflict {
        /// Its name.
        uid: Uid,
        /// What differs.
        why: String,
    },
    /// What lies in the image is not the filesystem that was made there.
    #[error("image {uid} does not hold the filesystem that was made in it: {why}")]
    FilesystemConflict {
        /// Its name.
        uid: Uid,
        /// What differs.
        why: String,
    },
    /// The filesystem is damaged: a person has to mend it.
    #[error(
        "the {filesystem} in image {uid} is damaged and is not mounted: {report}; have it mended with {}, or restore the volume from a backup", repair_tool(*.filesystem)
    )]
    Damaged {
        /// Name of the image.
        uid: Uid,
        /// Which filesystem.
        filesystem: FilesystemType,
        /// What the tool or the kernel says.
        report: String,
    },
    /// The filesystem has to be checked in full first, which the caller has not allowed in this call.
    #[error("the filesystem in image {uid} has to be checked first")]
    CheckNeeded {
        /// Name of the image.
        uid: Uid,
    },
    /// Checking the filesystem takes more of the node than a check may.
    #[error(
        "the filesystem in image {uid} is too large to be checked by the node plugin, whose checks have {} of memory and {:?} of processor time: {report}; run e2fsck -f -p on the image on its node, where it may take more", check::LIMITS.address_space, check::LIMITS.cpu
    )]
    TooLargeToCheck {
        /// Name of the image.
        uid: Uid,
        /// What the tool says.
        report: String,
    },
    /// The image is attached, here or in another mount namespace, or somebody reads it.
    #[error("image {uid} is still {how}")]
    InUse {
        /// Its name.
        uid: Uid,
        /// What it is used for.
        how: String,
    },
    /// The pool's filesystem is full.
    #[error("pool {pool} has no space left for image {uid}")]
    NoSpace {
        /// Its name.
        uid: Uid,
        /// The pool.
        pool: String,
        /// What the step said.
        #[source]
        source: Cause,
    },
    /// A step failed.
    #[error("could not {operation} of image {uid}")]
    Failed {
        /// What was tried.
        operation: &'static str,
        /// Its name.
        uid: Uid,
        /// Why it failed.
        #[source]
        source: Cause,
    },
}

impl Pool {
    /// Every image in the pool.
    pub fn images(&self) -> Result<Vec<Image>, Error> {
        let failed = pool::failed(format!("list the images of pool {self}"));
        Ok(list(&*self.system, self.images.as_fd()).map_err(failed)?)
    }

    /// One image; none when it is not there.
    pub fn image(&self, uid: &Uid) -> Result<Option<Image>, Error> {
        let look = failed("read the identity", uid);
        match self.open_image(uid)? {
            Some(file) => describe(&*self.system, file.as_fd(), uid)
                .map(Some)
                .map_err(look),
            None => Ok(None),
        }
    }

    /// Makes an image, whole or not at all. One that is there already is taken if it is what is
    /// asked for.
    pub fn create_image(&self, request: &ImageRequest) -> Result<Image, Error> {
        self.create_image_checking(request, Checking::UNSEEN)
    }

    /// As [`Self::create_image`]. A larger copy of an ext4 has to be checked in full.
    pub fn create_image_checking(
        &self,
        request: &ImageRequest,
        checking: Checking<'_>,
    ) -> Result<Image, Error> {
        self.check()?;
        let uid = &request.uid;
        if self.image(uid)?.is_none() {
            self.make(request, checking)?;
        }
        let image = self.image(uid)?.ok_or_else(|| self.missing(uid))?;
        make::disagreement(&image, request, self.filesystem_uuid()).map_or(Ok(()), |why| {
            let uid = uid.clone();
            Err(Error::IdentityConflict { uid, why })
        })?;
        // Also of an image that an earlier call made: it may have failed just here.
        self.system
            .sync(self.images.as_fd())
            .map_err(failed("keep the name", uid))?;
        self.refill(uid)?;
        Ok(image)
    }

    /// Fails where an image is attached or read. None there is no error.
    pub fn check_unused(&self, uid: &Uid) -> Result<(), Error> {
        self.check()?;
        match self.open_image(uid)? {
            Some(file) => self.unused(file, uid).map(drop),
            None => Ok(()),
        }
    }

    /// Removes an image, and frees its space before it returns: that which it shares with no other.
    /// None there is no error; one that is attached or read is.
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
            // XFS frees the space of a removed file some time later, and the ledger must not
            // promise it before.
            file.map_or(Ok(()), |file| system.truncate(file.as_fd(), 0))
        };
        let file = self.open_image(uid)?;
        let file = file.map(|file| self.unused(file, uid)).transpose()?;
        remove(file).map_err(failed("remove the file", uid))
    }

    /// Allocates again what was freed in a thick volume: a trim within, or the filesystem's own
    /// initialisation, punches holes. Does nothing for a thin one, and nothing for a snapshot.
    pub fn refill(&self, uid: &Uid) -> Result<(), Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let image =
            describe(&*self.system, file.as_fd(), uid).map_err(failed("read the identity", uid))?;
        let is_thick = image.identity.is_some_and(|identity| {
            identity.provisioning == Provisioning::Thick && identity.owner.volume().is_some()
        });
        if !is_thick {
            return Ok(());
        }
        allocation::ensure(&*self.system, file.as_fd(), image.size)
            .map_err(|source| self.no_space_or("allocate the space", uid, source.into()))
    }

    /// Removes what was left of images whose making was cut short, and says how many there were.
    /// One that is being made now stays.
    pub fn sweep(&self) -> Result<usize, Error> {
        let failed = pool::failed(format!("sweep the unfinished images of pool {self}"));
        Ok(sweep(&*self.system, self.temporary.as_fd()).map_err(failed)?)
    }

    /// Opens an image; none when it is not there.
    pub(crate) fn open_image(&self, uid: &Uid) -> Result<Option<OwnedFd>, Error> {
        self.open_image_for(OFlags::RDWR, uid)
    }

    fn open_image_for(&self, access: OFlags, uid: &Uid) -> Result<Option<OwnedFd>, Error> {
        let (system, images) = (&*self.system, self.images.as_fd());
        match system.open_beneath(images, uid.as_str().as_ref(), access) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("open the file", uid)(error)),
        }
    }

    /// The file of an image, locked for one alone; an error where it is attached or read.
    fn unused(&self, file: OwnedFd, uid: &Uid) -> Result<OwnedFd, Error> {
        self.let_go_of_idle(file.as_fd(), uid)
            .map_err(failed("let go of the device", uid))?;
        self.refuse_in_use(file.as_fd(), uid)?;
        if self
            .lock_file(file.as_fd())
            .map_err(failed("lock the file", uid))?
        {
            return Ok(file);
        }
        Err(Error::InUse {
            uid: uid.clone(),
            how: "read or checked".to_owned(),
        })
    }

    /// Fails when a loop device is bound to an image, here or in another mount namespace.
    fn refuse_in_use(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<(), Error> {
        let system = &*self.system;
        let id = system
            .stat(file)
            .map_err(failed("look at the file", uid))?
            .id;
        let bound = until(
            || loopdev::find(system, id, uid.as_ref()),
            |found| !matches!(found, Ok(Some(_))),
        );
        match bound.map_err(failed("find the loop device", uid))? {
            None => Ok(()),
            Some(device) => Err(Error::InUse {
                uid: uid.clone(),
                how: format!("attached as {device}"),
            }),
        }
    }

    pub(crate) fn missing(&self, uid: &Uid) -> Error {
        Error::Missing {
            uid: uid.clone(),
            pool: self.to_string(),
        }
    }

    pub(crate) fn no_space_or(&self, operation: &'static str, uid: &Uid, source: Cause) -> Error {
        if source.is_no_space() {
            let (uid, pool) = (uid.clone(), self.to_string());
            return Error::NoSpace { uid, pool, source };
        }
        failed(operation, uid)(source)
    }
}

const fn repair_tool(filesystem: FilesystemType) -> &'static str {
    match filesystem {
        FilesystemType::Ext4 => "e2fsck",
        FilesystemType::Xfs => "xfs_repair",
        FilesystemType::Btrfs => "btrfs check",
    }
}

pub(crate) fn failed<E: Into<Cause>>(
    operation: &'static str,
    uid: &Uid,
) -> impl FnOnce(E) -> Error + use<E> {
    let uid = uid.clone();
    move |source| Error::Failed {
        operation,
        uid,
        source: source.into(),
    }
}

/// Every file in a folder of images whose name is a UID. All else is told as a stray.
pub(crate) fn list(system: &dyn System, images: BorrowedFd<'_>) -> io::Result<Vec<Image>> {
    let mut all = Vec::new();
    for name in system.list(images)? {
        let Some(uid) = name.to_str().and_then(|name| name.parse::<Uid>().ok()) else {
            continue;
        };
        if let Some(file) = open_listed(system, images, &name)? {
            all.push(describe(system, file.as_fd(), &uid)?);
        }
    }
    Ok(all)
}

/// Opens what a folder lists; none where it was removed meanwhile, or is no file.
pub(crate) fn open_listed(
    system: &dyn System,
    folder: BorrowedFd<'_>,
    name: &OsStr,
) -> io::Result<Option<OwnedFd>> {
    // A pipe would have us wait.
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

/// What an open image is.
pub(crate) fn describe(system: &dyn System, file: BorrowedFd<'_>, uid: &Uid) -> io::Result<Image> {
    let Stat {
        size, allocated, ..
    } = system.stat(file)?;
    let identity = system.attribute(file, IDENTITY)?;
    Ok(Image {
        uid: uid.clone(),
        identity: identity.and_then(|text| serde_json::from_slice(&text).ok()),
        size: Bytes(size),
        allocated: Bytes(allocated),
    })
}

fn sweep(system: &dyn System, temporary: BorrowedFd<'_>) -> io::Result<usize> {
    let mut removed = 0;
    for name in system.list(temporary)? {
        let file = match system.open_beneath(temporary, name.as_ref(), OFlags::RDWR) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if system.try_lock(file.as_fd())? {
            system.unlink(temporary, &name)?;
            removed += 1;
        }
    }
    system.sync(temporary)?;
    Ok(removed)
}
