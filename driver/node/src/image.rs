//! Images of volumes and snapshots: whether an image on the disk belongs to an object, and its removal.
//!
//! *Invariant:* an image has the UID of the object that made it as its name, and is removed only if its
//! own identity names this object.

use chrono::{DateTime, Utc};
use cistern_crds::{
    AccessType, Bytes, Encryption, FilesystemType, HasImage, MkfsOptions, PoolVolume, Reason,
    mkfs_options,
    volume::{FilesystemStatus, ImageStatus},
};
use cistern_host::{
    Engine, Identity, InvalidUid, Owner, Pool, Uid,
    image::{self, Content},
    snapshot,
};
use kube::ResourceExt as _;

/// An image on the disk, in terms of the custom resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The object that it was made for.
    pub owner: Owner,
    /// Its identity, as a status reports it.
    pub image: ImageStatus,
    /// Its current size.
    pub size: Bytes,
    /// Allocated bytes, including those that it shares with other images.
    pub allocated: Bytes,
    /// How pods use it.
    pub access_type: AccessType,
    /// The filesystem in it, and when the agent first saw it.
    pub filesystem: Option<FilesystemStatus>,
    /// How it is encrypted; None if it is not.
    pub encryption: Option<Encryption>,
    /// Name of the image that a volume's image was cloned from.
    pub source: Option<String>,
    /// Number of its extents, if they were counted.
    pub extents: Option<u64>,
    /// The number of takeovers of its pool.
    pub takeovers: u32,
}

/// A custom resource that represents one image.
pub trait ImageObject: HasImage {
    /// Name of the kind in messages.
    fn noun() -> &'static str;

    /// Whether the object was ready once, so that users may depend on it.
    fn is_announced(&self) -> bool {
        self.size().is_some()
    }

    /// Name of the volume whose lock the agent holds while it changes the image.
    fn volume(&self) -> String;

    /// Whether an image with this owner was made for an object with this name.
    fn is_named(&self, owner: &Owner) -> bool;

    /// Whether the image matches the spec.
    ///
    /// The pool is not compared: the image was found in a pool whose own identity was checked.
    fn is_served_by(&self, image: &Image) -> Result<(), Difference>;
}

/// The reason why an image does not belong to an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// The image was made for another object, or differs from the spec.
    #[error(
        "the image {uid} in the pool belongs to another object: its {what} is {found}, not {wanted}"
    )]
    Identity {
        /// Name of the image.
        uid: String,
        /// What differs.
        what: &'static str,
        /// Value on the disk.
        found: String,
        /// Value in the custom resource.
        wanted: String,
    },
    /// The image holds another filesystem.
    #[error("the image {uid} holds {found}, but was made with {wanted}")]
    Filesystem {
        /// Name of the image.
        uid: String,
        /// Value on the disk.
        found: String,
        /// Value in the custom resource.
        wanted: String,
    },
}

impl Difference {
    /// Reason of the condition that reports this.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Identity { .. } => Reason::IdentityConflict,
            Self::Filesystem { .. } => Reason::FilesystemConflict,
        }
    }
}

/// The reason why a step on the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on the image or its pool failed.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The image was not made, because the pool is full, and nothing of it exists.
    #[error(transparent)]
    NotMade(image::Error),
    /// Taking a snapshot failed.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// The image is not the object's.
    #[error(transparent)]
    Difference(#[from] Difference),
    /// Two images carry the identity of the object.
    #[error(
        "images {first} and {second} both carry the identity of this {noun}: remove one of them"
    )]
    Ambiguous {
        /// Kind of the object.
        noun: &'static str,
        /// Name of the first image.
        first: Uid,
        /// Name of the second image.
        second: Uid,
    },
    /// The custom resource names its image with an invalid UID.
    #[error("the custom resource has an invalid image name")]
    Uid(#[from] InvalidUid),
    /// The custom resource has invalid mkfs options.
    #[error("the filesystem cannot be made with the options that the custom resource asks for")]
    MkfsOptions(#[from] mkfs_options::Error),
}

impl Error {
    /// Reason of the condition that reports this.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Difference(difference) => difference.reason(),
            Self::Ambiguous { .. } | Self::Uid(_) => Reason::IdentityConflict,
            Self::MkfsOptions(_) => Reason::ProvisioningFailed,
            Self::NotMade(_) => Reason::NoSpace,
            Self::Snapshot(snapshot::Error::FreezeFailed { .. }) => Reason::FreezeFailed,
            Self::Snapshot(snapshot::Error::StallTooLong { .. }) => Reason::TooManyExtents,
            Self::Snapshot(snapshot::Error::Stopped(_)) => Reason::SnapshotFailed,
            Self::Image(error) | Self::Snapshot(snapshot::Error::Image(error)) => match error {
                image::Error::Pool(_) => Reason::PoolNotReady,
                image::Error::Missing { .. } => Reason::ImageMissing,
                image::Error::SourceMissing { .. } => Reason::SourceMissing,
                image::Error::TooManyExtents { .. } | image::Error::StallTooLong { .. } => {
                    Reason::TooManyExtents
                }
                image::Error::IdentityConflict { .. } => Reason::IdentityConflict,
                image::Error::FilesystemConflict { .. } | image::Error::NotAdoptable { .. } => {
                    Reason::FilesystemConflict
                }
                image::Error::KeyNeeded { .. }
                | image::Error::WrongKey { .. }
                | image::Error::EncryptionConflict { .. } => Reason::EncryptionConflict,
                image::Error::Damaged { .. } => Reason::FilesystemDamaged,
                image::Error::CheckNeeded { .. } => Reason::CheckWaiting,
                image::Error::TooLargeToCheck { .. } => Reason::TooLargeToCheck,
                image::Error::InUse { .. } => Reason::InUse,
                image::Error::Moving { .. } | image::Error::NotClosing { .. } => Reason::Moving,
                image::Error::Unsupported { .. } => Reason::NotInVolumeGroup,
                image::Error::NoSpace { .. } | image::Error::Failed { .. } => {
                    Reason::ProvisioningFailed
                }
            },
        }
    }

    /// The image that the error is about; None if it is about none.
    pub fn uid(&self) -> Option<&Uid> {
        match self {
            Self::Snapshot(snapshot::Error::FreezeFailed { uid, .. }) => Some(uid),
            Self::Image(error)
            | Self::NotMade(error)
            | Self::Snapshot(snapshot::Error::Image(error)) => match error {
                image::Error::Pool(_) | image::Error::Unsupported { .. } => None,
                image::Error::Missing { uid, .. }
                | image::Error::SourceMissing { uid, .. }
                | image::Error::TooManyExtents { uid, .. }
                | image::Error::StallTooLong { uid, .. }
                | image::Error::IdentityConflict { uid, .. }
                | image::Error::FilesystemConflict { uid, .. }
                | image::Error::NotAdoptable { uid, .. }
                | image::Error::KeyNeeded { uid }
                | image::Error::WrongKey { uid }
                | image::Error::EncryptionConflict { uid, .. }
                | image::Error::Damaged { uid, .. }
                | image::Error::CheckNeeded { uid }
                | image::Error::TooLargeToCheck { uid, .. }
                | image::Error::InUse { uid, .. }
                | image::Error::Moving { uid, .. }
                | image::Error::NotClosing { uid, .. }
                | image::Error::NoSpace { uid, .. }
                | image::Error::Failed { uid, .. } => Some(uid),
            },
            Self::Difference(_)
            | Self::Ambiguous { .. }
            | Self::Uid(_)
            | Self::MkfsOptions(_)
            | Self::Snapshot(snapshot::Error::StallTooLong { .. } | snapshot::Error::Stopped(_)) => {
                None
            }
        }
    }

    /// Whether the disk lacks the space that the ledger reserved.
    pub fn is_no_space(&self) -> bool {
        matches!(
            self,
            Self::Image(image::Error::NoSpace { .. })
                | Self::NotMade(_)
                | Self::Snapshot(snapshot::Error::Image(image::Error::NoSpace { .. }))
        )
    }
}

impl Image {
    /// Reads an image of a pool that was taken over this often. Fails if it has no valid identity.
    pub fn read(
        image: &image::Image,
        takeovers: u32,
        now: DateTime<Utc>,
    ) -> Result<Self, Difference> {
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
                sector_size: image.sector_size,
            },
            size: image.size,
            allocated: image.allocated,
            access_type,
            filesystem,
            encryption: identity.encrypted_with(),
            source: identity.source.as_ref().map(ToString::to_string),
            extents: None,
            takeovers,
        })
    }

    /// The difference between a part of the image's identity and the custom resource.
    pub fn differs(&self, what: &'static str, found: String, wanted: String) -> Difference {
        Difference::Identity {
            uid: self.image.uid.clone(),
            what,
            found,
            wanted,
        }
    }

    /// Checks that the image has this access type, filesystem and encryption. Fails with the first difference.
    pub fn holds(
        &self,
        access_type: AccessType,
        filesystem: Option<FilesystemType>,
        encryption: Option<Encryption>,
    ) -> Result<(), Difference> {
        if self.encryption != encryption {
            let name = |encryption: Option<Encryption>| {
                encryption.map_or_else(|| "none".to_owned(), |it| it.to_string())
            };
            return Err(self.differs("encryption", name(self.encryption), name(encryption)));
        }
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

/// Checks that the image is the one that the spec and the status describe. Fails with the first
/// difference.
pub fn is_the_same<K: ImageObject>(object: &K, image: &Image) -> Result<(), Difference> {
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

/// The name of an object's image: the UID of the object that made it. Fails if the custom resource
/// has an invalid UID.
pub fn name_of<K: ImageObject>(object: &K) -> Result<Uid, InvalidUid> {
    match object.image() {
        Some(image) => image.uid.parse(),
        None => object.uid().unwrap_or_default().parse(),
    }
}

/// The mkfs options in the spec of a volume. Fails if they are not supported.
pub fn mkfs_options_of(volume: &PoolVolume) -> Result<MkfsOptions, mkfs_options::Error> {
    match (volume.spec.filesystem, &volume.spec.mkfs_options) {
        (Some(filesystem), Some(options)) => MkfsOptions::parse(filesystem, options),
        (None, _) | (_, None) => Ok(MkfsOptions::default()),
    }
}

/// What only a pool of images supports, as its refusal names it.
pub const SNAPSHOTS: &str = "snapshots";
/// As [`SNAPSHOTS`].
pub const COPIES: &str = "copies from other nodes";
/// As [`SNAPSHOTS`].
pub const MOVES: &str = "moves to other nodes";

/// Whether an object's image was made by a predecessor with the same name.
pub fn is_adopted<K: ImageObject>(object: &K) -> bool {
    object.image().map(|image| &image.uid) != object.meta().uid.as_ref() && object.image().is_some()
}

/// Finds the image that a predecessor with the same name has made. Fails if it does not match the
/// spec. Takes an adoptable image out of the trash. Blocks.
pub fn find_adoptable<K: ImageObject>(
    pool: &dyn Engine,
    object: &K,
    now: DateTime<Utc>,
) -> Result<Option<Image>, Error> {
    let is_another = |uid: &Uid| Some(uid.as_str()) != object.meta().uid.as_deref();
    let is_ours = |identity: &Identity| object.is_named(&identity.owner);
    let images = pool.images();
    let discarded = images.map_or(Ok(Vec::new()), Pool::discarded)?;
    let discarded = discarded.into_iter().map(|it| it.image);
    let mut found = pool
        .volumes()?
        .into_iter()
        .chain(discarded)
        .filter(|image| image.identity.as_ref().is_some_and(is_ours) && is_another(&image.uid));
    let Some(image) = found.next() else {
        return Ok(None);
    };
    if let Some(other) = found.next() {
        return Err(Error::Ambiguous {
            noun: K::noun(),
            first: image.uid,
            second: other.uid,
        });
    }
    let uid = image.uid.clone();
    let image = Image::read(&image, pool.takeovers(), now)?;
    object.is_served_by(&image)?;
    if let Some(images) = images {
        images.take_back(&uid)?;
    }
    Ok(Some(image))
}

/// The image with a name that an object claims. Takes it out of the trash if it is there.
fn claimed(pool: &dyn Engine, uid: &Uid) -> Result<Option<image::Image>, image::Error> {
    match (pool.volume(uid)?, pool.images()) {
        (None, Some(images)) if images.take_back(uid)? => pool.volume(uid),
        (found, _) => Ok(found),
    }
}

/// Returns the image that was made for an object. Restores it from the trash if it is there. Fails
/// if it does not exist. Blocks.
pub fn find<K: ImageObject>(pool: &dyn Engine, object: &K) -> Result<image::Image, Error> {
    let uid = name_of(object)?;
    let missing = || image::Error::Missing {
        uid: uid.clone(),
        pool: pool.to_string(),
    };
    Ok(claimed(pool, &uid)?.ok_or_else(missing)?)
}

/// Fails if the image of an object cannot be removed now, because it is in use or belongs to another
/// object. Succeeds if the image is gone already. Blocks.
pub fn check_removable<K: ImageObject>(pool: &dyn Engine, object: &K) -> Result<(), Error> {
    let uid = removable(pool, object)?;
    Ok(pool.check_unused(&uid)?)
}

/// Removes the image of an object and returns its name. Succeeds if the image is gone already.
/// Fails if it is in use or belongs to another object. Blocks.
pub fn destroy<K: ImageObject>(pool: &dyn Engine, object: &K) -> Result<Uid, Error> {
    let uid = removable(pool, object)?;
    // Also without an image, because an unfinished one may exist.
    pool.remove(&uid)?;
    Ok(uid)
}

/// The name of an object's image. Fails if the image exists and belongs to another object.
fn removable<K: ImageObject>(pool: &dyn Engine, object: &K) -> Result<Uid, Error> {
    let uid = name_of(object)?;
    if let Some(image) = claimed(pool, &uid)? {
        let owner = image.identity.map(|identity| identity.owner);
        if !owner.as_ref().is_some_and(|owner| object.is_named(owner)) {
            return Err(Difference::Identity {
                uid: uid.to_string(),
                what: "owner",
                found: owner.map_or_else(|| "unreadable".to_owned(), |owner| owner.to_string()),
                wanted: format!("{} {}", K::noun(), object.name_any()),
            }
            .into());
        }
    }
    Ok(uid)
}
