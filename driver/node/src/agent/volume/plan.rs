//! What is to be done for a volume, and whether what lies on the disk is the volume. Pure.
//!
//! *Invariant:* [`Step::Make`] comes never for a volume that could be used once: what was there and
//! is missing stays missing until a person decides.

use cistern_crds::{PoolVolume, PoolVolumeStatus};
use cistern_host::Owner;

use crate::agent::{
    image::{Difference, Image},
    ledger::Promise,
    outcome::{Stage, stage},
};

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
    match stage(volume) {
        Stage::Rest => Step::Rest,
        Stage::Admit => Step::Admit,
        Stage::Reclaim => Step::Reclaim,
        Stage::Admitted => {
            let unset = PoolVolumeStatus::default();
            let status = volume.status.as_ref().unwrap_or(&unset);
            match status.size {
                None => Step::Make,
                Some(size) if status.reserved > Some(size) => Step::Grow,
                Some(_) if status.reserved >= Some(volume.spec.size) => Step::Keep,
                Some(_) if volume.refused_growth().is_some() => Step::Keep,
                Some(_) => Step::AdmitGrowth,
            }
        }
    }
}

/// Whether the volume still waits for a promise that was made to it.
pub fn is_asked(volume: &PoolVolume, promise: &Promise) -> bool {
    match next(volume) {
        Step::Admit | Step::AdmitGrowth => volume.spec.size <= promise.size,
        Step::Rest | Step::Make | Step::Grow | Step::Keep | Step::Reclaim => false,
    }
}

/// Whether the image is what the spec asks for: name, source, size, access type and filesystem
/// agree.
pub fn serves(volume: &PoolVolume, image: &Image) -> Result<(), Difference> {
    let spec = &volume.spec;
    let name = volume.metadata.name.clone().unwrap_or_default();
    if image.owner.volume() != Some(&name) {
        return Err(image.differs(
            "owner",
            image.owner.to_string(),
            Owner::Volume(name).to_string(),
        ));
    }
    let wanted = spec.content_source.as_ref().map(|source| &source.image);
    if image.source.as_ref() != wanted {
        let text = |source: Option<&String>| source.map_or_else(|| "none".to_owned(), Clone::clone);
        return Err(image.differs("source", text(image.source.as_ref()), text(wanted)));
    }
    // A larger image is a growth that was interrupted.
    let granted = volume
        .status
        .as_ref()
        .and_then(|status| status.size.or(status.reserved));
    let wanted = granted.unwrap_or(spec.size);
    if image.size < wanted {
        return Err(image.differs("size", image.size.to_string(), wanted.to_string()));
    }
    image.holds(spec.access_type, spec.filesystem)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        AccessType, Bytes, ConditionType, ContentSource, Reason, SourceKind,
        condition::{self, Finding},
    };

    use super::*;
    use crate::{
        agent::image::is_the_same,
        testing::{
            admitted_volume, at, being_deleted, image_of_volume, ready_volume, wanted_volume,
        },
    };

    fn with_wish(mut volume: PoolVolume) -> PoolVolume {
        volume.spec.deletion_requested = true;
        volume
    }

    fn refused(mut volume: PoolVolume, reason: Reason) -> PoolVolume {
        let finding = Finding::new(ConditionType::Admitted, false, reason, "");
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
        assert!(is_asked(
            &volume,
            &Promise::to_volume(&volume, Bytes::gib(2))
        ));
        assert_eq!(next(&being_deleted(volume.clone())), Step::AdmitGrowth);
        assert_eq!(next(&with_wish(volume.clone())), Step::Reclaim);

        let mut refused = volume.clone();
        let finding = Finding::new(ConditionType::Expanded, false, Reason::NoSpace, "full");
        let conditions = &mut refused.status.as_mut().unwrap().conditions;
        condition::set(conditions, &finding, Some(2), at(0));
        assert_eq!(next(&refused), Step::Keep);
        assert!(!is_asked(
            &refused,
            &Promise::to_volume(&refused, Bytes::gib(2))
        ));
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
        let full = refused(wanted_volume(), Reason::NoSpace);
        assert_eq!(next(&full), Step::Rest);
        assert_eq!(next(&being_deleted(wanted_volume())), Step::Rest);
        assert_eq!(next(&with_wish(wanted_volume())), Step::Rest);
    }

    #[test]
    fn a_refusal_by_who_could_not_look_is_thought_over() {
        for reason in [Reason::PoolNotReady, Reason::PoolUnknown] {
            let unseen = refused(wanted_volume(), reason);
            assert_eq!(next(&unseen), Step::Admit, "{reason}");
            assert_eq!(next(&with_wish(unseen.clone())), Step::Rest, "{reason}");
            assert_eq!(next(&being_deleted(unseen)), Step::Rest, "{reason}");
        }
    }

    #[test]
    fn every_part_of_an_images_identity_must_agree() {
        let check = |change: fn(&mut Image)| {
            let mut image = image_of_volume();
            change(&mut image);
            let difference = is_the_same(&ready_volume(), &image);
            difference.map_err(|difference| difference.reason())
        };
        let conflict = Err(Reason::IdentityConflict);
        assert_eq!(check(|_| {}), Ok(()));
        let other = |image: &mut Image| image.owner = Owner::Volume("pvc-2".into());
        assert_eq!(check(other), conflict);
        assert_eq!(check(|image| image.source = Some("uid-0".into())), conflict);
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
    fn an_image_that_was_made_from_something_else_is_not_adopted() {
        let mut volume = wanted_volume();
        volume.spec.content_source = Some(ContentSource {
            kind: SourceKind::Snapshot,
            name: "snapshot-1".into(),
            image: "uid-0".into(),
        });
        let mut image = image_of_volume();
        assert!(serves(&volume, &image).is_err());
        image.source = Some("uid-0".into());
        assert_eq!(serves(&volume, &image), Ok(()));
    }

    #[test]
    fn an_image_smaller_than_what_was_asked_for_is_not_adopted() {
        let mut volume = wanted_volume();
        assert_eq!(serves(&volume, &image_of_volume()), Ok(()));
        volume.spec.size = Bytes::gib(2);
        assert!(serves(&volume, &image_of_volume()).is_err());
    }
}
