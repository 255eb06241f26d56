//! Images: one file in a pool for each volume.
//!
//! *Invariants:* an image appears whole or not at all; it is named by the UID of the object that
//! made it and carries its identity in an extended attribute; only [`Pool::create_image`] makes a
//! filesystem, in a file that has no name among the images yet; only [`Pool::remove_image`] removes
//! one.

mod grow;
mod make;

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use cistern_crds::{Bytes, FilesystemType, MkfsOptions, Provisioning};
use serde::{Deserialize, Serialize};

use crate::{
    allocation,
    cause::Cause,
    id::{Uid, Uuid},
    loopdev,
    patience::until,
    pool::{self, Pool},
    system::{OFlags, Stat, System},
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
}

/// Whose an image is, and what it was made as. Never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Name of the PoolVolume that made it.
    pub volume: String,
    /// Its UID.
    pub uid: Uid,
    /// UUID of the pool's filesystem.
    pub pool_uuid: Uuid,
    /// Size when it was made.
    pub size: Bytes,
    /// What lies in it.
    #[serde(flatten)]
    pub content: Content,
    /// Whether it is allocated in full.
    pub provisioning: Provisioning,
}

/// What lies in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "accessType")]
pub enum Content {
    /// A filesystem that Cistern made.
    Filesystem {
        /// Which.
        filesystem: FilesystemType,
        /// Its UUID.
        uuid: Uuid,
    },
    /// Whatever the pod writes.
    Block,
}

impl Content {
    /// The filesystem, if there is one.
    pub fn filesystem(self) -> Option<FilesystemType> {
        match self {
            Self::Filesystem { filesystem, .. } => Some(filesystem),
            Self::Block => None,
        }
    }
}

/// An image on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its name: the UID of the PoolVolume that made it.
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
    /// The image is attached, here or in another mount namespace.
    #[error("image {uid} is still attached as {device}")]
    InUse {
        /// Its name.
        uid: Uid,
        /// The loop device.
        device: String,
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
        self.check()?;
        let uid = &request.uid;
        if self.image(uid)?.is_none() {
            self.make(request)
                .map_err(|source| self.no_space_or("make the file", uid, source))?;
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

    /// Removes an image, and frees its space before it returns. None there is no error; one that is
    /// attached is.
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
        if let Some(file) = &file {
            self.let_go_of_idle(file.as_fd(), uid)
                .map_err(failed("let go of the device", uid))?;
            self.refuse_in_use(file.as_fd(), uid)?;
        }
        remove(file).map_err(failed("remove the file", uid))
    }

    /// Allocates again what was freed in a thick volume: a trim within, or the filesystem's own
    /// initialisation, punches holes. Does nothing for a thin one.
    pub fn refill(&self, uid: &Uid) -> Result<(), Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let image =
            describe(&*self.system, file.as_fd(), uid).map_err(failed("read the identity", uid))?;
        let is_thick = image
            .identity
            .is_some_and(|identity| identity.provisioning == Provisioning::Thick);
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
        let (system, images) = (&*self.system, self.images.as_fd());
        match system.open_beneath(images, uid.as_str().as_ref(), OFlags::RDWR) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("open the file", uid)(error)),
        }
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
                device: device.to_string(),
            }),
        }
    }

    pub(crate) fn missing(&self, uid: &Uid) -> Error {
        Error::Missing {
            uid: uid.clone(),
            pool: self.to_string(),
        }
    }

    fn no_space_or(&self, operation: &'static str, uid: &Uid, source: Cause) -> Error {
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

/// Every file in a folder of images whose name is a UID.
pub(crate) fn list(system: &dyn System, images: BorrowedFd<'_>) -> io::Result<Vec<Image>> {
    let mut all = Vec::new();
    for name in system.list(images)? {
        let Some(uid) = name.to_str().and_then(|name| name.parse::<Uid>().ok()) else {
            continue;
        };
        match system.open_beneath(images, name.as_ref(), OFlags::RDONLY) {
            Ok(file) => all.push(describe(system, file.as_fd(), &uid)?),
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn describe(system: &dyn System, file: BorrowedFd<'_>, uid: &Uid) -> io::Result<Image> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_back_and_says_what_it_is() {
        let identity = Identity {
            volume: "pvc-1".to_owned(),
            uid: "u-1".parse().unwrap(),
            pool_uuid: Uuid::from_bytes([7; 16]),
            size: Bytes::gib(1),
            content: Content::Filesystem {
                filesystem: FilesystemType::Xfs,
                uuid: Uuid::from_bytes([8; 16]),
            },
            provisioning: Provisioning::Thick,
        };
        let text = serde_json::to_string(&identity).unwrap();
        assert!(text.contains("\"accessType\":\"Filesystem\""), "{text}");
        assert_eq!(serde_json::from_str::<Identity>(&text).unwrap(), identity);
        let block = Identity {
            content: Content::Block,
            ..identity
        };
        let text = serde_json::to_string(&block).unwrap();
        assert_eq!(serde_json::from_str::<Identity>(&text).unwrap(), block);
    }
}
