//! How an image differs from the expected one.

use std::fmt;

use cistern_types::{Bytes, FilesystemType, Provisioning};

use super::{Content, Error, Identity, Image, Owner};
use crate::{
    id::{Uid, Uuid},
    pool::Pool,
    superblock::Superblock,
};

/// How the identity or the size of an image differs from the expected one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityConflict {
    /// It has no identity, or one that cannot be parsed.
    #[error("it has no valid identity")]
    NoIdentity,
    /// Another object made it.
    #[error("it is {0}")]
    OtherOwner(Box<Owner>),
    /// It does not belong to the volume.
    #[error("it is not volume {volume} of pool {pool}")]
    OtherVolume {
        /// Name of the PoolVolume.
        volume: String,
        /// Name of the expected StoragePool.
        pool: String,
    },
    /// It was made in another pool.
    #[error("it is not of pool {pool}")]
    OtherPool {
        /// Name of the expected StoragePool.
        pool: String,
    },
    /// Its identity names another image or another pool.
    #[error("its identity does not name this image of this pool")]
    OtherName,
    /// It was made with other properties.
    #[error("it is {found:?} and not {asked:?}")]
    Differs {
        /// Properties that the image records.
        found: Box<Properties>,
        /// The expected properties.
        asked: Box<Properties>,
    },
    /// Its file is smaller than the volume.
    #[error("it has only {size} bytes")]
    TooSmall {
        /// Size of the file.
        size: Bytes,
    },
    /// A source is larger than the volume.
    #[error("it has {size}, more than the {wanted} of volume {volume}")]
    TooLarge {
        /// Size of the source.
        size: Bytes,
        /// Name of the PoolVolume.
        volume: String,
        /// Size of the volume.
        wanted: Bytes,
    },
    /// A source has another filesystem than the volume.
    #[error("it holds {}, but volume {volume} needs {}", name(*.found), name(*.wanted))]
    OtherContent {
        /// Filesystem of the source; none for block access.
        found: Option<FilesystemType>,
        /// Name of the PoolVolume.
        volume: String,
        /// Filesystem of the volume; none for block access.
        wanted: Option<FilesystemType>,
    },
    /// A source is encrypted and the volume is not, or the other way round.
    #[error("it is {}encrypted, and volume {volume} is not like it", if *.is_encrypted { "" } else { "not " })]
    OtherEncryption {
        /// Whether the source is encrypted.
        is_encrypted: bool,
        /// Name of the PoolVolume.
        volume: String,
    },
    /// It is not the image of a raw block volume of this size.
    #[error("it is {content:?} and has {size} bytes")]
    NotBlock {
        /// Its content; none if it has no identity.
        content: Option<Content>,
        /// Size of the file.
        size: Bytes,
    },
    /// It is the image of a volume.
    #[error("its identity is not that of a snapshot")]
    NotSnapshot,
    /// It is the image of a volume that pods may write to.
    #[error("it is that of a volume which is not closed, and is not sent")]
    MayChange,
    /// The image of a snapshot does not move.
    #[error("it is snapshot {snapshot}, which is never closed")]
    NeverCloses {
        /// Name of the PoolSnapshot.
        snapshot: String,
    },
    /// The pool has the image and a copy of it from another node.
    #[error("the pool has it, and another copy of it from another node")]
    BesideCopy,
    /// The copy was received for another move, or for a new volume.
    #[error("it was not received for the VolumeMove with UID {by}")]
    CopyOfOtherMove {
        /// UID of the move that it is opened for.
        by: Uid,
    },
    /// The pool has an image of a volume that is to move here, and the move has not made it.
    #[error(
        "it is an image of the volume from before the VolumeMove with UID {by}, and may be out of date. Delete \
         the VolumeMove; if nobody needs this image, remove it as an orphan of the pool, and move the volume again"
    )]
    NotOfMove {
        /// UID of the move.
        by: Uid,
    },
    /// The pool has the image twice: one is closed for a move.
    #[error("the pool has it, and another one of this name that is closed for a move")]
    BesideClosed,
    /// The image of a snapshot does not grow.
    #[error("it is snapshot {snapshot}, which never grows")]
    NeverGrows {
        /// Name of the PoolSnapshot.
        snapshot: String,
    },
}

/// The properties of a volume's image that a request states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The object that made it.
    pub owner: Owner,
    /// Name of the image.
    pub uid: Uid,
    /// UUID of the pool's filesystem.
    pub pool_uuid: Uuid,
    /// Size of the volume.
    pub size: Bytes,
    /// The filesystem; none for block access.
    pub filesystem: Option<FilesystemType>,
    /// Whether the image is allocated in full.
    pub provisioning: Provisioning,
    /// Whether the image is encrypted.
    pub is_encrypted: bool,
    /// The image that it was cloned from.
    pub source: Option<Uid>,
}

impl Properties {
    pub(super) fn of(identity: &Identity) -> Self {
        Self {
            owner: identity.owner.clone(),
            uid: identity.uid.clone(),
            pool_uuid: identity.pool_uuid,
            size: identity.size,
            filesystem: identity.content.filesystem(),
            provisioning: identity.provisioning,
            is_encrypted: identity.encryption.is_some(),
            source: identity.source.clone(),
        }
    }
}

impl Image {
    /// Fails if the image does not belong to this volume of the pool with this UUID.
    pub(crate) fn verify_owner(
        &self,
        volume: &str,
        pool_uuid: Uuid,
        pool: &dyn fmt::Display,
    ) -> Result<(), Error> {
        let is_ours = self.identity.as_ref().is_some_and(|found| {
            found.owner.volume() == Some(volume) && found.pool_uuid == pool_uuid
        });
        if is_ours {
            return Ok(());
        }
        Err(Error::IdentityConflict {
            uid: self.uid.clone(),
            why: IdentityConflict::OtherVolume {
                volume: volume.to_owned(),
                pool: pool.to_string(),
            },
        })
    }
}

impl Pool {
    /// Fails if an image does not belong to a volume of this pool.
    pub(crate) fn verify_owner(&self, image: &Image, volume: &str) -> Result<(), Error> {
        image.verify_owner(volume, self.filesystem_uuid(), self)
    }
}

/// How the filesystem in an image differs from the one that was made in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilesystemConflict {
    /// There is no filesystem.
    #[error("there is none")]
    Missing,
    /// There is another filesystem.
    #[error("it holds {filesystem} {uuid}")]
    Other {
        /// Type of the filesystem in the image.
        filesystem: FilesystemType,
        /// UUID of the filesystem in the image.
        uuid: Uuid,
    },
    /// The image is smaller than its filesystem or its volume.
    #[error("the image has only {size} bytes")]
    ImageTooSmall {
        /// Size of the file.
        size: Bytes,
    },
}

impl FilesystemConflict {
    pub(crate) fn of(found: &Superblock) -> Self {
        Self::Other {
            filesystem: found.kind,
            uuid: found.uuid,
        }
    }
}

fn name(filesystem: Option<FilesystemType>) -> &'static str {
    filesystem.map_or("no filesystem", FilesystemType::as_str)
}
