//! Adopts the filesystem that a program has written to a raw block volume: the volume has that filesystem from then on,
//! as if Cistern had made it.
//!
//! ```text
//! image (Block) ── reflink ─▶ unfinished copy ─▶ checked, own UUID, full size, identity (Filesystem)
//!       ▲                                                     │
//!       └──────────────── one rename ◀────────────────────────┘
//! ```
//!
//! *Invariants:* the image is only read, and replaced by its copy when that is complete and synced. So it is a whole raw
//! block volume or a whole filesystem at every moment. The image is not in use meanwhile, and no filesystem is made.

use std::os::fd::{AsFd as _, OwnedFd};

use cistern_types::{Bytes, ExtentLimits, ExtentSize, FilesystemType};

use super::{
    Content, Error, Identity, Image, describe, failed, read::Reading, unfinished::Unfinished,
};
use crate::{
    check,
    id::Uid,
    pool::Pool,
    progress::Progress,
    superblock::{self, Superblock},
};

/// Size of a block in every filesystem that is adopted, in bytes: that of the filesystems that Cistern makes.
const BLOCK_SIZE: u64 = 4096;

/// A request to adopt the filesystem in the image of a raw block volume.
#[derive(Clone, Debug)]
pub struct AdoptionRequest<'a> {
    /// Name of the image.
    pub image: &'a Uid,
    /// Name of the PoolVolume.
    pub volume: &'a str,
    /// The expected filesystem; none for any.
    pub filesystem: Option<FilesystemType>,
    /// The extent size hint of the image; none for the default of the kernel.
    pub extent_size: Option<ExtentSize>,
    /// Limits of the number of extents that are cloned.
    pub extent_limits: ExtentLimits,
}

/// Why the content of a raw block volume is not adopted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdoptable {
    /// There is no filesystem that Cistern knows.
    #[error("the volume has no ext4, xfs or btrfs")]
    Missing,
    /// There is another filesystem than the expected one.
    #[error("the volume has {found}, and {expected} is asked for")]
    Other {
        /// The filesystem in the image.
        found: FilesystemType,
        /// The filesystem of the request.
        expected: FilesystemType,
    },
    /// The blocks of the filesystem have another size.
    #[error(
        "the {filesystem} has blocks of {size} bytes, and only blocks of {BLOCK_SIZE} are adopted"
    )]
    BlockSize {
        /// The filesystem in the image.
        filesystem: FilesystemType,
        /// Size of its blocks in bytes.
        size: u64,
    },
    /// The filesystem is larger than the image.
    #[error("the {filesystem} has {size}, and the volume is smaller: was all of it written?")]
    TooLarge {
        /// The filesystem in the image.
        filesystem: FilesystemType,
        /// Size of the filesystem.
        size: Bytes,
    },
}

impl Pool {
    /// Adopts the filesystem in the image of a raw block volume, or returns the image of an earlier call. The filesystem is
    /// checked in full if it is an ext4, gets a UUID of its own unless it is an ext4, and grows to the size of the image.
    ///
    /// The check can take hours, and reports its progress. Fails if the pool or the image cannot be used, if the image
    /// is not that of the volume, if it is attached, read or moving, if it has no filesystem that can be adopted, or if
    /// that is damaged. The image is unchanged then.
    pub fn adopt_filesystem(
        &self,
        request: &AdoptionRequest<'_>,
        progress: Progress<'_>,
    ) -> Result<Image, Error> {
        self.check()?;
        let uid = request.image;
        let image = self.image(uid)?.ok_or_else(|| self.missing(uid))?;
        self.verify_owner(&image, request.volume)?;
        if content_of(&image) == Some(Content::Block) {
            let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
            let file = self.unused(file, uid)?;
            self.replace_by_filesystem(file, request, progress)?;
        }
        // Also for an image that an earlier call replaced: it may have failed at this sync.
        let synced = self.system.sync(self.images.as_fd());
        synced.map_err(failed("sync the name", uid))?;
        self.image(uid)?.ok_or_else(|| self.missing(uid))
    }

    /// Replaces an image by a copy whose filesystem is the volume's. The image is locked.
    fn replace_by_filesystem(
        &self,
        locked: OwnedFd,
        request: &AdoptionRequest<'_>,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        let (system, uid) = (&*self.system, request.image);
        let is_named = self.is_named(self.images.as_fd(), locked.as_fd(), uid);
        if !is_named.map_err(failed("stat the file", uid))? {
            return Err(self.missing(uid));
        }
        self.refuse_marked(locked.as_fd(), uid)?;
        let found = superblock::read(system, locked.as_fd());
        let found = found.map_err(failed("read the filesystem", uid))?;
        let image = describe(system, locked.as_fd(), uid);
        let image = image.map_err(failed("read the identity", uid))?;
        let found = adoptable(found, &image, request).map_err(|why| Error::NotAdoptable {
            uid: uid.clone(),
            why,
        })?;
        let reading = Reading::new(image, locked);
        let extents = self.refuse_extents(&reading, request.extent_limits)?;
        let copy = Unfinished::begin(self, uid, request.extent_size)?;
        self.copy_extents(&reading, copy.as_fd(), extents)
            .map_err(|error| self.no_space_or("clone the image", uid, error.into()))?;
        let (filesystem, size) = ((found.kind, found.uuid), reading.image.size);
        if found.kind == FilesystemType::Ext4 {
            // The kernel trusts a clean ext4, and Cistern does not know who wrote this one.
            check::ext4(system, copy.as_fd(), check::Extent::Full, progress)
                .map_err(|error| self.not_checked(error, uid, &copy, found.kind))?;
        }
        let content = self.make_own(&copy, uid, filesystem, size, progress)?;
        let before = reading.image.identity.as_ref();
        let identity = Identity {
            content,
            ..before.ok_or_else(|| self.missing(uid))?.clone()
        };
        copy.identify(&identity)
            .map_err(|source| self.no_space_or("write the identity", uid, source.into()))?;
        copy.replace()
            .map_err(failed("replace the raw block volume", uid))
    }
}

fn content_of(image: &Image) -> Option<Content> {
    image.identity.as_ref().map(|identity| identity.content)
}

/// The filesystem of an image, if it can be adopted.
fn adoptable(
    found: Option<Superblock>,
    image: &Image,
    request: &AdoptionRequest<'_>,
) -> Result<Superblock, NotAdoptable> {
    let found = found.filter(|found| found.complete);
    let found = found.ok_or(NotAdoptable::Missing)?;
    let filesystem = found.kind;
    match request.filesystem {
        Some(expected) if expected != filesystem => Err(NotAdoptable::Other {
            found: filesystem,
            expected,
        }),
        _ if found.block_size != BLOCK_SIZE => Err(NotAdoptable::BlockSize {
            filesystem,
            size: found.block_size,
        }),
        _ if found.size > image.size => Err(NotAdoptable::TooLarge {
            filesystem,
            size: found.size,
        }),
        _ => Ok(found),
    }
}
