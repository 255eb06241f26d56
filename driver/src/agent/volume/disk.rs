//! What a pass does to the disk. Everything here blocks.
//!
//! *Invariant:* an image is made only under the UID of the PoolVolume, and removed only when it
//! says itself that it is this volume's.

use chrono::{DateTime, Utc};
use cistern_crds::{MkfsOptions, PoolVolume, Reason, mkfs_options};
use cistern_host::{Image, ImageRequest, InvalidUid, Pool, Uid, image};
use kube::ResourceExt as _;

use super::plan::{self, Difference, Step};

/// Why a step on the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the image or its pool.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// The image is not the volume's.
    #[error(transparent)]
    Difference(#[from] Difference),
    /// Two images say that they are the volume's.
    #[error("images {first} and {second} both say that they are this volume: remove one of them")]
    Ambiguous {
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
            Self::Image(error) => match error {
                image::Error::Pool(_) => Reason::PoolNotReady,
                image::Error::Missing { .. } => Reason::ImageMissing,
                image::Error::IdentityConflict { .. } => Reason::IdentityConflict,
                image::Error::FilesystemConflict { .. } => Reason::FilesystemConflict,
                image::Error::Damaged { .. } => Reason::FilesystemDamaged,
                image::Error::InUse { .. } => Reason::InUse,
                image::Error::NoSpace { .. } | image::Error::Failed { .. } => {
                    Reason::ProvisioningFailed
                }
            },
        }
    }
}

/// Makes the image of a volume, grows it, or looks at the one that was made.
pub fn bring_up(
    pool: &Pool,
    volume: &PoolVolume,
    step: Step,
    now: DateTime<Utc>,
) -> Result<Image, Error> {
    let uid = name_of_image(volume)?;
    let was_adopted = volume.metadata.uid.as_deref() != Some(uid.as_str());
    let promised = volume.status.as_ref().and_then(|status| status.reserved);
    let promised = promised.unwrap_or(volume.spec.size);
    match step {
        Step::Make if !was_adopted => Ok(pool.create_image(&ImageRequest {
            volume: volume.name_any(),
            uid,
            size: promised,
            filesystem: volume.spec.filesystem,
            mkfs_options: mkfs_options_of(volume)?,
            provisioning: volume.spec.provisioning,
        })?),
        Step::Rest
        | Step::Admit
        | Step::Make
        | Step::AdmitGrowth
        | Step::Grow
        | Step::Keep
        | Step::Reclaim => {
            let image = pool.image(&uid)?.ok_or_else(|| image::Error::Missing {
                uid: uid.clone(),
                pool: pool.to_string(),
            })?;
            if step == Step::Grow {
                // It is written to only if it is the volume's.
                plan::is_the_same(volume, &plan::Image::read(&image, now)?)?;
                return Ok(pool.grow_image(&uid, promised)?);
            }
            pool.refill(&uid)?;
            Ok(image)
        }
    }
}

/// Removes the image of a volume and says which it was. One that is gone already is fine.
pub fn destroy(pool: &Pool, volume: &PoolVolume) -> Result<Uid, Error> {
    let uid = name_of_image(volume)?;
    if let Some(image) = pool.image(&uid)? {
        let name = volume.name_any();
        let owner = image.identity.as_ref().map(|identity| &identity.volume);
        if owner != Some(&name) {
            return Err(Difference::Identity {
                uid: uid.to_string(),
                what: "volume",
                found: owner.map_or_else(|| "unreadable".to_owned(), Clone::clone),
                wanted: name,
            }
            .into());
        }
    }
    // Also without an image: one that was never finished may be there.
    pool.remove_image(&uid)?;
    Ok(uid)
}

/// The image of a volume that another object with its name made: there is none, it can be adopted,
/// or it is not what the spec asks for.
pub fn find_adoptable(
    pool: &Pool,
    volume: &PoolVolume,
    now: DateTime<Utc>,
) -> Result<Option<plan::Image>, Error> {
    let name = volume.name_any();
    let is_ours = |image: &Image| {
        let owner = image.identity.as_ref().map(|identity| &identity.volume);
        owner == Some(&name) && Some(image.uid.as_str()) != volume.metadata.uid.as_deref()
    };
    let mut found = pool.images()?.into_iter().filter(is_ours);
    let Some(image) = found.next() else {
        return Ok(None);
    };
    if let Some(other) = found.next() {
        return Err(Error::Ambiguous {
            first: image.uid,
            second: other.uid,
        });
    }
    let image = plan::Image::read(&image, now)?;
    plan::serves(volume, &image)?;
    Ok(Some(image))
}

fn mkfs_options_of(volume: &PoolVolume) -> Result<MkfsOptions, mkfs_options::Error> {
    match (volume.spec.filesystem, &volume.spec.mkfs_options) {
        (Some(filesystem), Some(options)) => MkfsOptions::parse(filesystem, options),
        (None, _) | (_, None) => Ok(MkfsOptions::default()),
    }
}

/// The name of a volume's image: that of the object that made it.
fn name_of_image(volume: &PoolVolume) -> Result<Uid, InvalidUid> {
    let status = volume.status.as_ref();
    let known = status.and_then(|status| status.image.as_ref());
    match known {
        Some(image) => image.uid.parse(),
        None => volume.uid().unwrap_or_default().parse(),
    }
}
