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
    /// Promise it the bytes of a growth, or refuse that.
    AdmitGrowth,
    /// Grow its image to what is promised.
    Grow,
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
            Some(size) if status.reserved > Some(size) => Step::Grow,
            Some(_) if status.reserved >= Some(volume.spec.size) => Step::Keep,
            Some(_) if volume.refused_growth().is_some() => Step::Keep,
            Some(_) => Step::AdmitGrowth,
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

/// The bytes that the volume is to be promised next; none where its promise stands or will not be
/// made.
pub fn asked(volume: &PoolVolume) -> Option<Bytes> {
    match next(volume) {
        Step::Admit | Step::AdmitGrowth => Some(volume.spec.size),
        Step::Rest | Step::Make | Step::Grow | Step::Keep | Step::Reclaim => None,
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
    let granted = volume
        .status
        .as_ref()
        .and_then(|status| status.size.or(status.reserved));
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

#[cfg(test)]
mod tests {
    use cistern_crds::{Reason, condition::Finding};
    use cistern_host::{Identity, Uid};

    use super::*;
    use crate::testing::{
        FILESYSTEM_UUID, POOL_UUID, admitted_volume, at, being_deleted, ready_volume, wanted_volume,
    };

    fn with_wish(mut volume: PoolVolume) -> PoolVolume {
        volume.spec.deletion_requested = true;
        volume
    }

    fn refused(mut volume: PoolVolume) -> PoolVolume {
        let finding = Finding::new(ConditionType::Admitted, false, Reason::NoSpace, "");
        let status = volume.status.get_or_insert_default();
        condition::set(&mut status.conditions, &finding, None, at(0));
        volume
    }

    #[test]
    fn a_volume_goes_its_way_step_by_step() {
        assert_eq!(next(&wanted_volume()), Step::Admit);
        assert_eq!(next(&admitted_volume()), Step::Make);
        assert_eq!(next(&ready_volume()), Step::Keep);
        assert_eq!(next(&with_wish(ready_volume())), Step::Reclaim);
        assert_eq!(next(&with_wish(admitted_volume())), Step::Reclaim);
    }

    #[test]
    fn a_growth_is_promised_before_it_is_done_and_a_refused_one_is_not_tried_again() {
        let mut volume = ready_volume();
        volume.spec.size = Bytes::gib(2);
        volume.metadata.generation = Some(2);
        assert_eq!(next(&volume), Step::AdmitGrowth);
        assert_eq!(asked(&volume), Some(Bytes::gib(2)));
        assert_eq!(next(&being_deleted(volume.clone())), Step::AdmitGrowth);
        assert_eq!(next(&with_wish(volume.clone())), Step::Reclaim);

        let mut refused = volume.clone();
        let finding = Finding::new(ConditionType::Expanded, false, Reason::NoSpace, "full");
        let conditions = &mut refused.status.as_mut().unwrap().conditions;
        condition::set(conditions, &finding, Some(2), at(0));
        assert_eq!(next(&refused), Step::Keep);
        assert_eq!(asked(&refused), None);
        refused.metadata.generation = Some(3);
        assert_eq!(next(&refused), Step::AdmitGrowth, "asked for anew");
        refused.spec.size = Bytes::gib(1);
        assert_eq!(next(&refused), Step::Keep, "taken back");

        volume.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
        assert_eq!(next(&volume), Step::Grow);
        // Somebody wants even more meanwhile: first things first.
        volume.spec.size = Bytes::gib(3);
        assert_eq!(next(&volume), Step::Grow);
        volume.status.as_mut().unwrap().size = Some(Bytes::gib(2));
        assert_eq!(next(&volume), Step::AdmitGrowth);
    }

    #[test]
    fn r07_only_the_wish_in_the_spec_destroys() {
        for volume in [wanted_volume(), admitted_volume(), ready_volume()] {
            assert_ne!(next(&being_deleted(volume)), Step::Reclaim);
        }
        assert_eq!(next(&being_deleted(ready_volume())), Step::Keep);
        assert_eq!(
            next(&with_wish(being_deleted(ready_volume()))),
            Step::Reclaim
        );
    }

    #[test]
    fn r07_what_could_be_used_once_is_never_made_again() {
        let mut volume = ready_volume();
        let status = volume.status.as_mut().unwrap();
        (status.image, status.filesystem) = (None, None);
        assert_eq!(next(&volume), Step::Keep);
    }

    #[test]
    fn nothing_is_admitted_that_is_refused_leaving_or_unwanted() {
        assert_eq!(next(&refused(wanted_volume())), Step::Rest);
        assert_eq!(next(&being_deleted(wanted_volume())), Step::Rest);
        assert_eq!(next(&with_wish(wanted_volume())), Step::Rest);
    }

    fn image() -> Image {
        let found = cistern_host::Image {
            uid: "uid-1".parse().unwrap(),
            identity: Some(Identity {
                volume: "pvc-1".into(),
                uid: "uid-1".parse::<Uid>().unwrap(),
                pool_uuid: POOL_UUID.parse().unwrap(),
                size: Bytes::gib(1),
                content: Content::Filesystem {
                    filesystem: FilesystemType::Ext4,
                    uuid: FILESYSTEM_UUID.parse().unwrap(),
                },
                provisioning: cistern_crds::Provisioning::Thin,
            }),
            size: Bytes::gib(1),
            allocated: Bytes::ZERO,
        };
        Image::read(&found, at(0)).unwrap()
    }

    #[test]
    fn an_image_that_does_not_say_whose_it_is_is_nobodys() {
        let found = cistern_host::Image {
            uid: "uid-1".parse().unwrap(),
            identity: None,
            size: Bytes::gib(1),
            allocated: Bytes::ZERO,
        };
        let difference = Image::read(&found, at(0)).unwrap_err();
        assert_eq!(difference.reason(), Reason::IdentityConflict);
    }

    #[test]
    fn every_part_of_an_images_identity_must_agree() {
        let check = |change: fn(&mut Image)| {
            let mut image = image();
            change(&mut image);
            let difference = is_the_same(&ready_volume(), &image);
            difference.map_err(|difference| difference.reason())
        };
        let conflict = Err(Reason::IdentityConflict);
        assert_eq!(check(|_| {}), Ok(()));
        assert_eq!(check(|image| image.volume = "pvc-2".into()), conflict);
        assert_eq!(check(|image| image.size = Bytes::mib(1023)), conflict);
        assert_eq!(
            check(|image| image.access_type = AccessType::Block),
            conflict
        );
        assert_eq!(check(|image| image.filesystem = None), conflict);
        assert_eq!(
            check(|image| image.image.pool_uuid = "other".into()),
            conflict
        );
        // A growth that was interrupted is no conflict.
        assert_eq!(check(|image| image.size = Bytes::gib(2)), Ok(()));
        let other_filesystem = check(|image| {
            let filesystem = image.filesystem.as_mut().unwrap();
            filesystem.uuid = "33333333-3333-4333-8333-333333333333".into();
        });
        assert_eq!(other_filesystem, Err(Reason::FilesystemConflict));
    }

    #[test]
    fn an_image_smaller_than_what_was_asked_for_is_not_adopted() {
        let mut volume = wanted_volume();
        assert_eq!(serves(&volume, &image()), Ok(()));
        volume.spec.size = Bytes::gib(2);
        assert!(serves(&volume, &image()).is_err());
    }
}
