//! What is to be done for a volume, and whether what lies on the disk is the volume. Pure.
//!
//! *Invariant:* [`Step::Reclaim`] comes from `spec.deletionRequested` alone, and [`Step::Make`]
//! never for a volume that could be used once: what was there and is missing stays missing until a
//! person decides.

use chrono::{DateTime, Utc};
use cistern_crds::{
    AccessType, Bytes, ConditionStatus, ConditionType, FilesystemType, PoolVolume,
    PoolVolumeStatus, Reason, condition,
    volume::{FilesystemStatus, ImageStatus},
};
use cistern_host::image::{self, Content};

/// Bytes of a logical sector of every volume: never derived from the pool, where it can change.
const SECTOR_SIZE: u32 = 4096;

/// The next step for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is to be done, or not by us.
    Rest,
    /// Promise it its bytes, or refuse it.
    Admit,
    /// Make its image, or finish making it.
    Make,
    /// Look whether it is as it was.
    Keep,
    /// Destroy its image.
    Reclaim,
}

/// The next step for a volume, as far as its custom resource tells.
pub fn next(volume: &PoolVolume) -> Step {
    let unset = PoolVolumeStatus::default();
    let status = volume.status.as_ref().unwrap_or(&unset);
    let admitted = status.reserved.is_some();
    if volume.spec.deletion_requested {
        // What was never admitted has nothing on the disk, and is the controller's to withdraw.
        return if admitted { Step::Reclaim } else { Step::Rest };
    }
    if admitted {
        return match status.size {
            None => Step::Make,
            Some(_) => Step::Keep,
        };
    }
    let refused = condition::find(&status.conditions, ConditionType::Admitted)
        .is_some_and(|admitted| admitted.status == ConditionStatus::False.as_str());
    if refused || volume.metadata.deletion_timestamp.is_some() {
        Step::Rest
    } else {
        Step::Admit
    }
}

/// An image as it lies on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The volume that it was made for.
    pub volume: String,
    /// Its own identity.
    pub image: ImageStatus,
    /// Its size now.
    pub size: Bytes,
    /// How it was to be given to pods.
    pub access_type: AccessType,
    /// The filesystem that was made in it, and when we first saw it.
    pub filesystem: Option<FilesystemStatus>,
}

/// Why an image is not the volume's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// Made for another volume, or of another kind.
    #[error(
        "the image {uid} in the pool is not this volume's: its {what} is {found}, not {wanted}"
    )]
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

impl Image {
    /// An image of the pool, in the words of the custom resource. Fails where it does not say
    /// whose it is.
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
            volume: identity.volume.clone(),
            image: ImageStatus {
                uid: image.uid.to_string(),
                pool_uuid: identity.pool_uuid.to_string(),
                sector_size: SECTOR_SIZE,
            },
            size: image.size,
            access_type,
            filesystem,
        })
    }
}

/// Whether the image is what the spec asks for: name, size, access type and filesystem agree.
///
/// Its pool needs no look: the image was found in a pool whose own identity was checked.
pub fn serves(volume: &PoolVolume, image: &Image) -> Result<(), Difference> {
    let spec = &volume.spec;
    let differs = |what, found: String, wanted: String| Difference::Identity {
        uid: image.image.uid.clone(),
        what,
        found,
        wanted,
    };
    let name = volume.metadata.name.clone().unwrap_or_default();
    if image.volume != name {
        return Err(differs("volume", image.volume.clone(), name));
    }
    // A larger image is a growth that was interrupted.
    let granted = volume.status.as_ref().and_then(|status| status.size);
    let wanted = granted.unwrap_or(spec.size);
    if image.size < wanted {
        return Err(differs("size", image.size.to_string(), wanted.to_string()));
    }
    if image.access_type != spec.access_type {
        let found = format!("{:?}", image.access_type);
        let wanted = format!("{:?}", spec.access_type);
        return Err(differs("access type", found, wanted));
    }
    let found = image.filesystem.as_ref().map(|filesystem| filesystem.kind);
    if found != spec.filesystem {
        let name = |kind: Option<FilesystemType>| {
            kind.map_or_else(|| "none".to_owned(), |kind| kind.to_string())
        };
        return Err(differs("filesystem", name(found), name(spec.filesystem)));
    }
    Ok(())
}

/// Whether the image is the one that the status tells of.
pub fn is_the_same(volume: &PoolVolume, image: &Image) -> Result<(), Difference> {
    serves(volume, image)?;
    let Some(status) = &volume.status else {
        return Ok(());
    };
    if let Some(known) = &status.image
        && known.pool_uuid != image.image.pool_uuid
    {
        return Err(Difference::Identity {
            uid: image.image.uid.clone(),
            what: "pool",
            found: image.image.pool_uuid.clone(),
            wanted: known.pool_uuid.clone(),
        });
    }
    match (&status.filesystem, &image.filesystem) {
        (Some(known), Some(found)) if known.uuid != found.uuid => Err(Difference::Filesystem {
            uid: image.image.uid.clone(),
            found: format!("{} {}", found.kind, found.uuid),
            wanted: format!("{} {}", known.kind, known.uuid),
        }),
        _ => Ok(()),
    }
}
