//! Images of volumes and snapshots: whether what lies on the disk is the object's, and its end.
//!
//! *Invariant:* an image is named by the object that made it, and removed only when it says itself
//! that it is this object's.

use chrono::{DateTime, Utc};
use cistern_crds::{
    AccessType, Bytes, FilesystemType, Reason, mkfs_options,
    volume::{FilesystemStatus, ImageStatus},
};
use cistern_host::{
    Identity, InvalidUid, Owner, Pool, Uid,
    image::{self, Content},
    snapshot,
};
use kube::ResourceExt as _;

use super::pass::Kept;

/// Bytes of a logical sector of every volume: never derived from the pool, where it can change.
const SECTOR_SIZE: u32 = 4096;

/// An image as it lies on the disk, in the words of the custom resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Whose it is.
    pub owner: Owner,
    /// Its own identity.
    pub image: ImageStatus,
    /// Its size now.
    pub size: Bytes,
    /// Bytes that it takes of the pool, those that it shares with other images included.
    pub allocated: Bytes,
    /// How it was to be given to pods.
    pub access_type: AccessType,
    /// The filesystem in it, and when we first saw it.
    pub filesystem: Option<FilesystemStatus>,
    /// Name of the image that a volume's was made from.
    pub source: Option<String>,
    /// In how many pieces it lies, where somebody has counted.
    pub extents: Option<u64>,
}

/// Why an image is not the object's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// Made for another object, or of another kind.
    #[error("the image {uid} in the pool is another's: its {what} is {found}, not {wanted}")]
    Identity {
        /// Name of the image.
        uid: String,
        /// What differs.
        what: &'static str,
        /// On the disk.
        found: String,
        /// In the custom resource.
        wanted: String,
    },
    /// It holds another filesystem.
    #[error("the image {uid} holds {found}, and {wanted} was made there")]
    Filesystem {
        /// Name of the image.
        uid: String,
        /// On the disk.
        found: String,
        /// In the custom resource.
        wanted: String,
    },
}

impl Difference {
    /// For the condition.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Identity { .. } => Reason::IdentityConflict,
            Self::Filesystem { .. } => Reason::FilesystemConflict,
        }
    }
}

/// Why a step on the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the image or its pool.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// Of a cut.
    #[error(transparent)]
    Cut(#[from] snapshot::Error),
    /// The image is not the object's.
    #[error(transparent)]
    Difference(#[from] Difference),
    /// Two images say that they are the object's.
    #[error("images {first} and {second} both say that they are this {noun}: remove one of them")]
    Ambiguous {
        /// What the object is.
        noun: &'static str,
        /// One.
        first: Uid,
        /// The other.
        second: Uid,
    },
    /// The custom resource names something that cannot be an image.
    #[error("the custom resource names its image in a way that cannot be")]
    Uid(#[from] InvalidUid),
    /// The custom resource asks for a filesystem that is not made.
    #[error("the filesystem cannot be made with the options that the custom resource asks for")]
    MkfsOptions(#[from] mkfs_options::Error),
}

impl Error {
    /// For the condition.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Difference(difference) => difference.reason(),
            Self::Ambiguous { .. } | Self::Uid(_) => Reason::IdentityConflict,
            Self::MkfsOptions(_) => Reason::ProvisioningFailed,
            Self::Cut(snapshot::Error::NotHeldStill { .. }) => Reason::NotHeldStill,
            Self::Image(error) | Self::Cut(snapshot::Error::Image(error)) => match error {
                image::Error::Pool(_) => Reason::PoolNotReady,
                image::Error::Missing { .. } => Reason::ImageMissing,
                image::Error::SourceMissing { .. } => Reason::SourceMissing,
                image::Error::TooManyExtents { .. } => Reason::TooManyExtents,
                image::Error::IdentityConflict { .. } => Reason::IdentityConflict,
                image::Error::FilesystemConflict { .. } => Reason::FilesystemConflict,
                image::Error::Damaged { .. } => Reason::FilesystemDamaged,
                image::Error::CheckNeeded { .. } => Reason::CheckWaiting,
                image::Error::TooLargeToCheck { .. } => Reason::TooLargeToCheck,
                image::Error::InUse { .. } => Reason::InUse,
                image::Error::NoSpace { .. } | image::Error::Failed { .. } => {
                    Reason::ProvisioningFailed
                }
            },
        }
    }

    /// The image that the error is about, if it is about one.
    pub fn uid(&self) -> Option<&Uid> {
        match self {
            Self::Cut(snapshot::Error::NotHeldStill { uid, .. }) => Some(uid),
            Self::Image(error) | Self::Cut(snapshot::Error::Image(error)) => match error {
                image::Error::Pool(_) => None,
                image::Error::Missing { uid, .. }
                | image::Error::SourceMissing { uid, .. }
                | image::Error::TooManyExtents { uid, .. }
                | image::Error::IdentityConflict { uid, .. }
                | image::Error::FilesystemConflict { uid, .. }
                | image::Error::Damaged { uid, .. }
                | image::Error::CheckNeeded { uid }
                | image::Error::TooLargeToCheck { uid, .. }
                | image::Error::InUse { uid, .. }
                | image::Error::NoSpace { uid, .. }
                | image::Error::Failed { uid, .. } => Some(uid),
            },
            Self::Difference(_) | Self::Ambiguous { .. } | Self::Uid(_) | Self::MkfsOptions(_) => {
                None
            }
        }
    }

    /// Whether the disk does not have what the ledger had promised.
    pub fn is_no_space(&self) -> bool {
        matches!(
            self,
            Self::Image(image::Error::NoSpace { .. })
                | Self::Cut(snapshot::Error::Image(image::Error::NoSpace { .. }))
        )
    }
}

impl Image {
    /// An image of the pool. Fails where it does not say whose it is.
    pub fn read(image: &image::Image, now: DateTime<Utc>) -> Result<Self, Difference> {
        let Some(identity) = &image.identity else {
            return Err(Difference::Identity {
                uid: image.uid.to_string(),
                what: "identity",
                found: "missing or unreadable".to_owned(),
                wanted: "one that Cistern wrote".to_owned(),
            });
        };
        let (access_type, filesystem) = match identity.content {
            Content::Block => (AccessType::Block, None),
            Content::Filesystem { filesystem, uuid } => {
                let filesystem = FilesystemStatus {
                    kind: filesystem,
                    uuid: uuid.to_string(),
                    format_time: now,
                };
                (AccessType::Filesystem, Some(filesystem))
            }
        };
        Ok(Self {
            owner: identity.owner.clone(),
            image: ImageStatus {
                uid: image.uid.to_string(),
                pool_uuid: identity.pool_uuid.to_string(),
                sector_size: SECTOR_SIZE,
            },
            size: image.size,
            allocated: image.allocated,
            access_type,
            filesystem,
            source: identity.source.as_ref().map(ToString::to_string),
            extents: None,
        })
    }

    /// That a part of the image's identity is not as the custom resource says.
    pub fn differs(&self, what: &'static str, found: String, wanted: String) -> Difference {
        Difference::Identity {
            uid: self.image.uid.clone(),
            what,
            found,
            wanted,
        }
    }

    /// Whether access type and filesystem are these.
    pub fn holds(
        &self,
        access_type: AccessType,
        filesystem: Option<FilesystemType>,
    ) -> Result<(), Difference> {
        if self.access_type != access_type {
            let found = format!("{:?}", self.access_type);
            return Err(self.differs("access type", found, format!("{access_type:?}")));
        }
        let found = self.filesystem.as_ref().map(|filesystem| filesystem.kind);
        if found != filesystem {
            let name = |kind: Option<FilesystemType>| {
                kind.map_or_else(|| "none".to_owned(), |kind| kind.to_string())
            };
            return Err(self.differs("filesystem", name(found), name(filesystem)));
        }
        Ok(())
    }
}

/// Whether the image is the one that the status tells of.
pub fn is_the_same<K: Kept>(object: &K, image: &Image) -> Result<(), Difference> {
    object.is_served_by(image)?;
    if let Some(known) = object.image()
        && known.pool_uuid != image.image.pool_uuid
    {
        let (found, wanted) = (image.image.pool_uuid.clone(), known.pool_uuid.clone());
        return Err(image.differs("pool", found, wanted));
    }
    match (object.filesystem(), &image.filesystem) {
        (Some(known), Some(found)) if known.uuid != found.uuid => Err(Difference::Filesystem {
            uid: image.image.uid.clone(),
            found: format!("{} {}", found.kind, found.uuid),
            wanted: format!("{} {}", known.kind, known.uuid),
        }),
        _ => Ok(()),
    }
}

/// The name of an object's image: the UID of the object that made it.
pub fn name_of<K: Kept>(object: &K) -> Result<Uid, InvalidUid> {
    match object.image() {
        Some(image) => image.uid.parse(),
        None => object.uid().unwrap_or_default().parse(),
    }
}

/// Whether an object's image was made by another one, which had its name before.
pub fn is_adopted<K: Kept>(object: &K) -> bool {
    object.image().map(|image| &image.uid) != object.meta().uid.as_ref() && object.image().is_some()
}

/// The image that another object of this name has made: there is none, it can be adopted, or it is
/// not what the spec asks for. One that can be is taken out of the trash. Blocks.
pub fn find_adoptable<K: Kept>(
    pool: &Pool,
    object: &K,
    now: DateTime<Utc>,
) -> Result<Option<Image>, Error> {
    let is_another = |uid: &Uid| Some(uid.as_str()) != object.meta().uid.as_deref();
    let is_ours = |identity: &Identity| object.is_named(&identity.owner);
    let discarded = pool.discarded()?.into_iter().map(|it| it.image);
    let mut found = pool
        .images()?
        .into_iter()
        .chain(discarded)
        .filter(|image| image.identity.as_ref().is_some_and(is_ours) && is_another(&image.uid));
    let Some(image) = found.next() else {
        return Ok(None);
    };
    if let Some(other) = found.next() {
        return Err(Error::Ambiguous {
            noun: K::NOUN,
            first: image.uid,
            second: other.uid,
        });
    }
    let uid = image.uid.clone();
    let image = Image::read(&image, now)?;
    object.is_served_by(&image)?;
    pool.take_back(&uid)?;
    Ok(Some(image))
}

/// The image of a name that an object claims: what is claimed is not in the trash.
fn claimed(pool: &Pool, uid: &Uid) -> Result<Option<image::Image>, image::Error> {
    match pool.image(uid)? {
        None if pool.take_back(uid)? => pool.image(uid),
        found => Ok(found),
    }
}

/// The image that was made for an object. Blocks.
pub fn find<K: Kept>(pool: &Pool, object: &K) -> Result<image::Image, Error> {
    let uid = name_of(object)?;
    let missing = || image::Error::Missing {
        uid: uid.clone(),
        pool: pool.to_string(),
    };
    Ok(claimed(pool, &uid)?.ok_or_else(missing)?)
}

/// Fails where the image of an object cannot be removed now: it is in use, or is not the object's.
/// One that is gone already is fine. Blocks.
pub fn check_removable<K: Kept>(pool: &Pool, object: &K) -> Result<(), Error> {
    let uid = removable(pool, object)?;
    Ok(pool.check_unused(&uid)?)
}

/// Removes the image of an object and says which it was. One that is gone already is fine. Blocks.
pub fn destroy<K: Kept>(pool: &Pool, object: &K) -> Result<Uid, Error> {
    let uid = removable(pool, object)?;
    // Also without an image: one that was never finished may be there.
    pool.remove_image(&uid)?;
    Ok(uid)
}

/// The name of an object's image, which is the object's where it is there.
fn removable<K: Kept>(pool: &Pool, object: &K) -> Result<Uid, Error> {
    let uid = name_of(object)?;
    if let Some(image) = claimed(pool, &uid)? {
        let owner = image.identity.map(|identity| identity.owner);
        if !owner.as_ref().is_some_and(|owner| object.is_named(owner)) {
            return Err(Difference::Identity {
                uid: uid.to_string(),
                what: "owner",
                found: owner.map_or_else(|| "unreadable".to_owned(), |owner| owner.to_string()),
                wanted: format!("{} {}", K::NOUN, object.name_any()),
            }
            .into());
        }
    }
    Ok(uid)
}
