//! Cloning: a new volume starts with the content of another image, of a volume or a snapshot.
//!
//! The clone may be mounted at the same time as its source, so an XFS or btrfs in it gets its own
//! UUID. The clone may be larger, so its filesystem grows.
//!
//! | filesystem | UUID | growth |
//! |---|---|---|
//! | ext4 | unchanged: the kernel accepts duplicates | e2fsck and resize2fs on the file |
//! | xfs | xfs_db on the file, after a mount has replayed the log | during that mount |
//! | btrfs | in the superblocks, before any mount | during a mount |
//!
//! A raw block volume has the bytes of its source unchanged, also of a filesystem.
//!
//! *Invariant:* the source is only read, nothing is formatted, and no mount of a clone is visible:
//! it is not attached to any mount namespace.

use std::os::fd::BorrowedFd;

use cistern_types::{Bytes, FilesystemType};

use super::{
    Content, Error, FilesystemConflict, Identity, IdentityConflict, ImageRequest, SourceImage,
    encrypted::of_clone, failed, read::Reading, unfinished::Unfinished,
};
use crate::{
    cause::Cause,
    check::{self, Checking},
    encryption::EncryptionState,
    id::{Uid, Uuid},
    pool::Pool,
    progress::{self, Progress},
    renew,
    resize::{detached, ext4},
    superblock,
};

impl Pool {
    /// Clones a source into a new file and returns the content type.
    pub(super) fn make_clone(
        &self,
        image: &Unfinished<'_>,
        source: &SourceImage,
        request: &ImageRequest,
        checking: Checking<'_>,
    ) -> Result<(Content, Option<EncryptionState>), Error> {
        let (system, name) = (&*self.system, &request.uid);
        let reading = self.read_clone_source(&source.uid, name)?;
        let original = self.content_for(&reading, request)?;
        let encryption = reading.image.encryption();
        let size_of_file = request.size.saturating_add(reading.image.header());
        let progress = match encryption {
            None => self.may_check(&reading, original, request.size, checking)?,
            // It is checked when its key is there.
            Some(_) => progress::UNSEEN,
        };
        let extents = self.refuse_extents(&reading, source.extent_limits)?;
        self.copy_extents(&reading, image.as_fd(), extents)
            .map_err(|error| self.no_space_or("clone the source", name, error.into()))?;
        let size = system
            .stat(image.as_fd())
            .map_err(failed("stat the file", name))?
            .size;
        // Measured on the clone: an attached source can grow.
        if Bytes(size) > size_of_file {
            return Err(Error::IdentityConflict {
                uid: source.uid.clone(),
                why: IdentityConflict::TooLarge {
                    size: Bytes(size).saturating_sub(reading.image.header()),
                    volume: request.volume.clone(),
                    wanted: request.size,
                },
            });
        }
        drop(reading);
        system
            .truncate(image.as_fd(), size_of_file.0)
            .map_err(failed("make the file larger", name))?;
        match (encryption, original) {
            (Some(state), _) => {
                let (content, state) = of_clone(state, original);
                Ok((content, Some(state)))
            }
            (None, Content::Block) => Ok((original, None)),
            (None, Content::Filesystem { filesystem, uuid }) => {
                let found = (filesystem, uuid);
                self.verify_filesystem(image.as_fd(), &source.uid, found)?;
                let content = self.make_own(image, &source.uid, found, request.size, progress)?;
                Ok((content, None))
            }
        }
    }

    /// Returns the progress callback for the check of a clone; fails when the clone needs a check
    /// that is not allowed. Runs before the clone, so that a clone that would fail does not block
    /// the source's writers.
    fn may_check<'a>(
        &self,
        source: &Reading,
        content: Content,
        size: Bytes,
        checking: Checking<'a>,
    ) -> Result<Progress<'a>, Error> {
        let needs_check = || match content.filesystem() {
            Some(FilesystemType::Ext4) => {
                ext4::is_full(&*self.system, source.as_fd(), size).map(|is_full| !is_full)
            }
            Some(FilesystemType::Xfs | FilesystemType::Btrfs) | None => Ok(false),
        };
        match checking {
            Checking::Now(progress) => Ok(progress),
            Checking::Later | Checking::Without => {
                let uid = &source.image.uid;
                if needs_check().map_err(failed("read the filesystem", uid))? {
                    return Err(Error::CheckNeeded { uid: uid.clone() });
                }
                Ok(progress::UNSEEN)
            }
        }
    }

    /// Returns the content type of a copy of a source, if that matches the request. A raw block volume may be a copy of
    /// anything.
    fn content_for(&self, source: &Reading, request: &ImageRequest) -> Result<Content, Error> {
        let differs = |why| Error::IdentityConflict {
            uid: source.image.uid.clone(),
            why,
        };
        let identity: &Identity = match &source.image.identity {
            Some(identity) if identity.pool_uuid == self.filesystem_uuid() => identity,
            Some(_) | None => {
                let pool = self.to_string();
                return Err(differs(IdentityConflict::OtherPool { pool }));
            }
        };
        if identity.encryption.is_some() != request.encryption.is_some() {
            return Err(differs(IdentityConflict::OtherEncryption {
                is_encrypted: identity.encryption.is_some(),
                volume: request.volume.clone(),
            }));
        }
        if request.filesystem.is_none() {
            return Ok(Content::Block);
        }
        let found = identity.content.filesystem();
        if found != request.filesystem {
            return Err(differs(IdentityConflict::OtherContent {
                found,
                volume: request.volume.clone(),
                wanted: request.filesystem,
            }));
        }
        Ok(identity.content)
    }

    /// Verifies type and UUID of the filesystem in the file.
    pub(crate) fn verify_filesystem(
        &self,
        file: BorrowedFd<'_>,
        uid: &Uid,
        expected: (FilesystemType, Uuid),
    ) -> Result<(), Error> {
        let found =
            superblock::read(&*self.system, file).map_err(failed("read the filesystem", uid))?;
        let why = match found {
            Some(found) if (found.kind, found.uuid) == expected => return Ok(()),
            Some(found) => FilesystemConflict::of(&found),
            None => FilesystemConflict::Missing,
        };
        let uid = uid.clone();
        Err(Error::FilesystemConflict { uid, why })
    }

    /// Gives the filesystem in an unfinished copy of an image a UUID of its own, and the size of the volume.
    pub(super) fn make_own(
        &self,
        image: &Unfinished<'_>,
        source: &Uid,
        (filesystem, uuid): (FilesystemType, Uuid),
        size: Bytes,
        progress: Progress<'_>,
    ) -> Result<Content, Error> {
        let (file, name) = (image.as_fd(), image.uid());
        let renewed = self.renew(file, name, (filesystem, uuid), size, progress);
        let uuid = renewed.map_err(|error| self.not_checked(error, source, image, filesystem))?;
        self.verify_filesystem(file, name, (filesystem, uuid))?;
        Ok(Content::Filesystem { filesystem, uuid })
    }

    /// Maps the error of a check or of growth in an unfinished copy of an image.
    pub(super) fn not_checked(
        &self,
        error: check::Error,
        source: &Uid,
        image: &Unfinished<'_>,
        filesystem: FilesystemType,
    ) -> Error {
        let uid = source.clone();
        match error {
            check::Error::Damaged { report } => Error::Damaged {
                uid,
                filesystem,
                report,
            },
            check::Error::TooLarge { report } => Error::TooLargeToCheck { uid, report },
            check::Error::Failed(cause) => {
                self.no_space_or("make a filesystem of its own", image.uid(), cause)
            }
        }
    }

    /// Returns the UUID that the filesystem has now.
    fn renew(
        &self,
        file: BorrowedFd<'_>,
        name: &Uid,
        (filesystem, uuid): (FilesystemType, Uuid),
        size: Bytes,
        progress: Progress<'_>,
    ) -> Result<Uuid, check::Error> {
        let system = &*self.system;
        let new = Uuid::new_v4();
        match filesystem {
            FilesystemType::Ext4 => {
                ext4::grow_unmounted(system, file, progress)?;
                return Ok(uuid);
            }
            FilesystemType::Xfs => {
                detached::grow(system, file, name, filesystem, size)?;
                renew::xfs(system, file, new)?;
            }
            FilesystemType::Btrfs => {
                renew::btrfs(system, file, new).map_err(Cause::from)?;
                let found = superblock::read(system, file).map_err(Cause::from)?;
                if found.is_none_or(|found| found.size < size) {
                    detached::grow(system, file, name, filesystem, size)?;
                }
            }
        }
        Ok(new)
    }
}
