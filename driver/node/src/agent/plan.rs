//! The next step for an object, from the object alone. Pure.
//!
//! *Invariant:* [`VolumeStep::Make`] is never the next step of a volume that was ready once: a missing
//! image stays missing until an administrator acts.

use cistern_crds::{
    AccessType, Condition, ConditionType, HasImage, PoolVolume, PoolVolumeStatus, Provisioning,
    Reason, condition,
};

/// The lifecycle phase of an object of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPhase {
    /// The agent has nothing to do.
    Rest,
    /// The agent reserves its bytes or refuses it.
    Admit,
    /// Its bytes are reserved, and its image must match its spec.
    Admitted,
    /// The agent destroys its image.
    Reclaim,
}

/// The phase of an object, from the object alone. [`ObjectPhase::Reclaim`] depends only on
/// `spec.deletionRequested`.
pub fn phase(object: &impl HasImage) -> ObjectPhase {
    let admitted = object.reserved().is_some();
    if object.deletion_requested() {
        // An object that was never admitted has no image, and the controller removes it.
        return if admitted {
            ObjectPhase::Reclaim
        } else {
            ObjectPhase::Rest
        };
    }
    if admitted {
        return ObjectPhase::Admitted;
    }
    if refusal(object).is_some() || object.meta().deletion_timestamp.is_some() {
        ObjectPhase::Rest
    } else {
        ObjectPhase::Admit
    }
}

/// The condition that refuses an object permanently, if any.
pub fn refusal(object: &impl HasImage) -> Option<&Condition> {
    let admitted = condition::failing(object.conditions(), ConditionType::Admitted)?;
    let is_refused = !object.deletion_requested()
        && object.reserved().is_none()
        && Reason::parse(&admitted.reason).is_none_or(is_final);
    is_refused.then_some(admitted)
}

/// Whether a refusal is permanent, regardless of what is on the disk.
///
/// A refusal because of a move ends with the move. A refusal by an agent that could not read the pool is not permanent,
/// either: an object restored from a backup has its image there. The controller does not wait for that. It withdraws
/// the object that it has just created and tries another node.
fn is_final(reason: Reason) -> bool {
    use Reason::{Moving, PoolNotReady, PoolUnknown, ProvisioningFailed};

    !matches!(
        reason,
        PoolUnknown | PoolNotReady | ProvisioningFailed | Moving
    )
}

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

/// Whether a step makes the image as it is to be, or checks it.
pub fn is_on_image(step: VolumeStep) -> bool {
    match step {
        VolumeStep::Make | VolumeStep::Grow | VolumeStep::Keep => true,
        VolumeStep::Rest
        | VolumeStep::Admit
        | VolumeStep::AdmitGrowth
        | VolumeStep::AdmitAttributes
        | VolumeStep::Reclaim => false,
    }
}

/// Whether a step on a volume that exists can take hours: its space is allocated, or its new part is written with
/// zeros. `is_logical` is whether it is a logical volume.
pub fn is_allocation(step: VolumeStep, volume: &PoolVolume, is_logical: bool) -> bool {
    match step {
        VolumeStep::Keep => {
            let is_thick = volume.admitted_attributes().provisioning == Provisioning::Thick;
            // A volume of a new epoch is reported first.
            let is_reported = volume.current_status().is_some();
            !is_logical && is_thick && is_reported && volume.is_being_modified()
        }
        VolumeStep::Grow => {
            let is_raw = volume.access_type() == AccessType::Block;
            is_logical && is_raw && volume.spec.encryption.is_none()
        }
        VolumeStep::Rest
        | VolumeStep::Admit
        | VolumeStep::Make
        | VolumeStep::AdmitGrowth
        | VolumeStep::AdmitAttributes
        | VolumeStep::Reclaim => false,
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

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, Encryption, condition::ConditionUpdate};

    use super::*;
    use crate::{
        agent::admission::Reservation,
        testing::{admitted_volume, at, being_deleted, ready_volume, wanted_volume},
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
        assert!(Reservation::for_volume(&volume, Bytes::gib(2)).is_awaited_by_volume(&volume));
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
        assert!(!Reservation::for_volume(&refused, Bytes::gib(2)).is_awaited_by_volume(&refused));
        refused.metadata.generation = Some(3);
        assert_eq!(next(&refused), VolumeStep::AdmitGrowth, "requested again");
        refused.spec.size = Bytes::gib(1);
        assert_eq!(next(&refused), VolumeStep::Keep, "withdrawn");

        volume.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
        assert_eq!(next(&volume), VolumeStep::Grow);
        assert!(!is_allocation(VolumeStep::Grow, &volume, false));
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
        assert!(reservation.is_awaited_by_volume(&volume));
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
        assert!(!reservation.is_awaited_by_volume(&refused));
        refused.metadata.generation = Some(3);
        assert_eq!(
            next(&refused),
            VolumeStep::AdmitAttributes,
            "requested again"
        );

        let mut admitted = volume;
        admitted.status.as_mut().unwrap().attributes = Some(admitted.spec.attributes);
        assert_eq!(next(&admitted), VolumeStep::Keep);
        assert!(is_allocation(VolumeStep::Keep, &admitted, false));
        assert!(!reservation.is_awaited_by_volume(&admitted));
        let applied = ConditionUpdate::reconciled(ConditionType::AttributesApplied);
        let conditions = &mut admitted.status.as_mut().unwrap().conditions;
        condition::set(conditions, &applied, Some(2), at(1));
        assert!(!is_allocation(VolumeStep::Keep, &admitted, false));
    }

    #[test]
    fn a_volume_that_becomes_thick_is_allocated_unless_its_epoch_is_not_reported() {
        let mut volume = asked_to_be_thick();
        let is_allocation = |volume: &PoolVolume| is_allocation(VolumeStep::Keep, volume, false);
        assert!(!is_allocation(&volume), "not admitted");
        volume.status.as_mut().unwrap().attributes = Some(volume.spec.attributes);
        assert!(is_allocation(&volume));
        volume.spec.epoch = 1;
        assert!(!is_allocation(&volume), "its move was undone");
        volume.status.as_mut().unwrap().epoch = 1;
        assert!(is_allocation(&volume));
        let attributes = &mut volume.status.as_mut().unwrap().attributes;
        attributes.as_mut().unwrap().provisioning = Provisioning::Thin;
        volume.spec.attributes.provisioning = Provisioning::Thin;
        assert!(volume.is_being_modified() && !is_allocation(&volume));
    }

    #[test]
    fn only_the_growth_of_a_raw_logical_volume_without_encryption_is_written_with_zeros() {
        let is_long = |volume: &PoolVolume| is_allocation(VolumeStep::Grow, volume, true);
        let mut volume = ready_volume();
        assert!(!is_long(&volume), "a filesystem");
        (volume.spec.access_type, volume.spec.filesystem) = (AccessType::Block, None);
        volume.status.as_mut().unwrap().filesystem = None;
        assert!(is_long(&volume));
        assert!(!is_allocation(VolumeStep::Grow, &volume, false), "image");
        assert!(!is_allocation(VolumeStep::Make, &volume, true));
        volume.spec.encryption = Some(Encryption::Luks2);
        assert!(!is_long(&volume), "encrypted");
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
}
