//! The next step for a volume, and whether an image on the disk is the volume's. Pure.
//!
//! *Invariant:* [`VolumeStep::Make`] is never the next step of a volume that was ready once: a missing
//! image stays missing until an administrator acts.

use cistern_crds::{PoolVolume, PoolVolumeStatus};
use cistern_host::Owner;

use crate::{
    agent::{
        admission::Reservation,
        outcome::{ObjectPhase, phase},
    },
    image::{Difference, Image},
};

/// The next step for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeStep {
    /// Nothing is to be done by the agent.
    Rest,
    /// Reserve its bytes, or refuse it.
    Admit,
    /// Make its image, or finish making it.
    Make,
    /// Reserve the bytes of its growth, or refuse the growth.
    AdmitGrowth,
    /// Grow its image to the reserved size.
    Grow,
    /// Admit a change of its attributes, or refuse the change.
    AdmitAttributes,
    /// Check that its image is unchanged.
    Keep,
    /// Destroy its image.
    Reclaim,
}

/// The next step for a volume, from its custom resource alone.
pub fn next(volume: &PoolVolume) -> VolumeStep {
    match phase(volume) {
        ObjectPhase::Rest => VolumeStep::Rest,
        ObjectPhase::Admit => VolumeStep::Admit,
        ObjectPhase::Reclaim => VolumeStep::Reclaim,
        ObjectPhase::Admitted => {
            let unset = PoolVolumeStatus::default();
            let status = volume.status.as_ref().unwrap_or(&unset);
            match status.size {
                None => VolumeStep::Make,
                Some(size) if status.reserved > Some(size) => VolumeStep::Grow,
                Some(_) if awaits_growth(volume) => VolumeStep::AdmitGrowth,
                Some(_) if awaits_attributes(volume) => VolumeStep::AdmitAttributes,
                Some(_) => VolumeStep::Keep,
            }
        }
    }
}

fn awaits_growth(volume: &PoolVolume) -> bool {
    let reserved = volume.status.as_ref().and_then(|status| status.reserved);
    reserved < Some(volume.spec.size) && volume.refused_growth().is_none()
}

fn awaits_attributes(volume: &PoolVolume) -> bool {
    volume.admitted_attributes() != volume.spec.attributes
        && volume.refused_modification().is_none()
}

/// Whether the volume still waits for this reservation.
pub fn awaits_reservation(volume: &PoolVolume, reservation: &Reservation) -> bool {
    match next(volume) {
        VolumeStep::Admit | VolumeStep::AdmitGrowth => volume.spec.size <= reservation.size,
        VolumeStep::AdmitAttributes => Reservation::for_change(volume) == *reservation,
        VolumeStep::Rest
        | VolumeStep::Make
        | VolumeStep::Grow
        | VolumeStep::Keep
        | VolumeStep::Reclaim => false,
    }
}

/// Checks that the image matches the spec in name, source, size, access type and filesystem. Fails
/// with the first difference.
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
    let expected = spec.content_source.as_ref().map(|source| &source.image);
    if image.source.as_ref() != expected {
        let text = |source: Option<&String>| source.map_or_else(|| "none".to_owned(), Clone::clone);
        return Err(image.differs("source", text(image.source.as_ref()), text(expected)));
    }
    // A larger image is the result of an interrupted growth.
    let granted = volume
        .status
        .as_ref()
        .and_then(|status| status.size.or(status.reserved));
    let expected = granted.unwrap_or(spec.size);
    if image.size < expected {
        return Err(image.differs("size", image.size.to_string(), expected.to_string()));
    }
    image.holds(spec.access_type, spec.filesystem)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        AccessType, Bytes, ConditionType, ContentSource, Provisioning, Reason, SourceKind,
        condition::{self, ConditionUpdate},
    };

    use super::*;
    use crate::{
        image::is_the_same,
        testing::{
            admitted_volume, at, being_deleted, image_of_volume, ready_volume, wanted_volume,
        },
    };

    fn with_deletion_requested(mut volume: PoolVolume) -> PoolVolume {
        volume.spec.deletion_requested = true;
        volume
    }

    fn refused(mut volume: PoolVolume, reason: Reason) -> PoolVolume {
        let finding = ConditionUpdate::new(ConditionType::Admitted, false, reason, "");
        let status = volume.status.get_or_insert_default();
        condition::set(&mut status.conditions, &finding, None, at(0));
        volume
    }

    #[test]
    fn a_volume_is_admitted_made_kept_and_reclaimed_in_order() {
        assert_eq!(next(&wanted_volume()), VolumeStep::Admit);
        assert_eq!(next(&admitted_volume()), VolumeStep::Make);
        assert_eq!(next(&ready_volume()), VolumeStep::Keep);
        assert_eq!(
            next(&with_deletion_requested(ready_volume())),
            VolumeStep::Reclaim
        );
        assert_eq!(
            next(&with_deletion_requested(admitted_volume())),
            VolumeStep::Reclaim
        );
    }

    #[test]
    fn a_growth_is_reserved_before_it_is_done_and_a_refused_one_is_not_retried() {
        let mut volume = ready_volume();
        volume.spec.size = Bytes::gib(2);
        volume.metadata.generation = Some(2);
        assert_eq!(next(&volume), VolumeStep::AdmitGrowth);
        assert!(awaits_reservation(
            &volume,
            &Reservation::for_volume(&volume, Bytes::gib(2))
        ));
        assert_eq!(
            next(&being_deleted(volume.clone())),
            VolumeStep::AdmitGrowth
        );
        assert_eq!(
            next(&with_deletion_requested(volume.clone())),
            VolumeStep::Reclaim
        );

        let mut refused = volume.clone();
        let finding = ConditionUpdate::new(ConditionType::Expanded, false, Reason::NoSpace, "full");
        let conditions = &mut refused.status.as_mut().unwrap().conditions;
        condition::set(conditions, &finding, Some(2), at(0));
        assert_eq!(next(&refused), VolumeStep::Keep);
        assert!(!awaits_reservation(
            &refused,
            &Reservation::for_volume(&refused, Bytes::gib(2))
        ));
        refused.metadata.generation = Some(3);
        assert_eq!(next(&refused), VolumeStep::AdmitGrowth, "requested again");
        refused.spec.size = Bytes::gib(1);
        assert_eq!(next(&refused), VolumeStep::Keep, "withdrawn");

        volume.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
        assert_eq!(next(&volume), VolumeStep::Grow);
        // An even larger size is requested: the reserved growth is done first.
        volume.spec.size = Bytes::gib(3);
        assert_eq!(next(&volume), VolumeStep::Grow);
        volume.status.as_mut().unwrap().size = Some(Bytes::gib(2));
        assert_eq!(next(&volume), VolumeStep::AdmitGrowth);
    }

    fn asked_to_be_thick() -> PoolVolume {
        let mut volume = ready_volume();
        volume.spec.attributes.provisioning = Provisioning::Thick;
        volume.metadata.generation = Some(2);
        volume
    }

    #[test]
    fn a_change_of_attributes_is_admitted_first_and_a_refused_one_is_not_retried() {
        let volume = asked_to_be_thick();
        assert_eq!(next(&volume), VolumeStep::AdmitAttributes);
        let reservation = Reservation::for_change(&volume);
        assert!(awaits_reservation(&volume, &reservation));
        let mut larger = volume.clone();
        larger.spec.size = Bytes::gib(2);
        assert_eq!(
            next(&larger),
            VolumeStep::AdmitGrowth,
            "one after the other"
        );

        let mut refused = volume.clone();
        let finding = ConditionUpdate::new(
            ConditionType::AttributesApplied,
            false,
            Reason::Overcommitted,
            "",
        );
        let conditions = &mut refused.status.as_mut().unwrap().conditions;
        condition::set(conditions, &finding, Some(2), at(0));
        assert_eq!(next(&refused), VolumeStep::Keep);
        assert!(!awaits_reservation(&refused, &reservation));
        refused.metadata.generation = Some(3);
        assert_eq!(
            next(&refused),
            VolumeStep::AdmitAttributes,
            "requested again"
        );

        let mut admitted = volume;
        admitted.status.as_mut().unwrap().attributes = Some(admitted.spec.attributes);
        assert_eq!(next(&admitted), VolumeStep::Keep);
        assert!(!awaits_reservation(&admitted, &reservation));
    }

    #[test]
    fn r07_only_a_deletion_request_in_the_spec_destroys_data() {
        for volume in [wanted_volume(), admitted_volume(), ready_volume()] {
            assert_ne!(next(&being_deleted(volume)), VolumeStep::Reclaim);
        }
        assert_eq!(next(&being_deleted(ready_volume())), VolumeStep::Keep);
        assert_eq!(
            next(&with_deletion_requested(being_deleted(ready_volume()))),
            VolumeStep::Reclaim
        );
    }

    #[test]
    fn r07_a_volume_that_was_ready_once_is_never_made_again() {
        let mut volume = ready_volume();
        let status = volume.status.as_mut().unwrap();
        (status.image, status.filesystem) = (None, None);
        assert_eq!(next(&volume), VolumeStep::Keep);
    }

    #[test]
    fn a_refused_or_deleted_volume_is_not_admitted() {
        let full = refused(wanted_volume(), Reason::NoSpace);
        assert_eq!(next(&full), VolumeStep::Rest);
        assert_eq!(next(&being_deleted(wanted_volume())), VolumeStep::Rest);
        assert_eq!(
            next(&with_deletion_requested(wanted_volume())),
            VolumeStep::Rest
        );
    }

    #[test]
    fn a_refusal_without_access_to_the_pool_is_reconsidered() {
        for reason in [Reason::PoolNotReady, Reason::PoolUnknown] {
            let unread = refused(wanted_volume(), reason);
            assert_eq!(next(&unread), VolumeStep::Admit, "{reason}");
            assert_eq!(
                next(&with_deletion_requested(unread.clone())),
                VolumeStep::Rest,
                "{reason}"
            );
            assert_eq!(next(&being_deleted(unread)), VolumeStep::Rest, "{reason}");
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
        // An interrupted growth is no conflict.
        assert_eq!(check(|image| image.size = Bytes::gib(2)), Ok(()));
        let other_filesystem = check(|image| {
            let filesystem = image.filesystem.as_mut().unwrap();
            filesystem.uuid = "33333333-3333-4333-8333-333333333333".into();
        });
        assert_eq!(other_filesystem, Err(Reason::FilesystemConflict));
    }

    #[test]
    fn an_image_with_another_source_is_not_adopted() {
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
    fn an_image_smaller_than_the_requested_size_is_not_adopted() {
        let mut volume = wanted_volume();
        assert_eq!(serves(&volume, &image_of_volume()), Ok(()));
        volume.spec.size = Bytes::gib(2);
        assert!(serves(&volume, &image_of_volume()).is_err());
    }
}
