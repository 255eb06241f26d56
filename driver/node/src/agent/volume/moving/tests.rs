use cistern_crds::{Bytes, FenceState, FenceStatus, MoveTarget, PoolVolumeStatus};

use super::*;
use crate::testing::{ready_volume, replica, wanted_volume};

fn moving() -> PoolVolume {
    let mut volume = ready_volume();
    volume.spec.target = Some(MoveTarget {
        node_name: "node-2".to_owned(),
        move_uid: "move-1".to_owned(),
    });
    volume
}

fn step(volume: &PoolVolume, replicas: &[PoolReplica]) -> Option<MoveStep> {
    next(volume, replicas.iter())
}

#[test]
fn a_volume_is_closed_for_its_target_after_what_is_being_grown() {
    assert_eq!(step(&ready_volume(), &[]), None);
    let close = MoveStep::Close {
        by: "move-1".to_owned(),
        to: "node-2".to_owned(),
    };
    assert_eq!(step(&moving(), &[]), Some(close));
    let mut growing = moving();
    growing.status.as_mut().unwrap().reserved = Some(Bytes::gib(2));
    assert_eq!(step(&growing, &[]), None);
    let mut unreported = moving();
    unreported.spec.epoch = 1;
    assert_eq!(step(&unreported, &[]), None);
}

#[test]
fn a_volume_that_is_not_admitted_yet_is_not_closed() {
    let created_again = PoolVolume {
        status: None,
        ..moving()
    };
    assert_eq!(step(&created_again, &[]), None);
    let mut refused = moving();
    refused.status.as_mut().unwrap().reserved = None;
    assert_eq!(step(&refused, &[]), None);
}

#[test]
fn a_volume_that_was_created_again_takes_up_its_copy_and_is_not_made_beside_it() {
    let mut volume = wanted_volume();
    (volume.spec.epoch, volume.metadata.uid) = (1, Some("uid-2".to_owned()));
    assert_eq!(step(&volume, &[]), None, "it is made");
    let mut copy = replica("pvc-1", 1);
    let (by, image) = ("move-1".to_owned(), "uid-1".to_owned());
    let refuse = MoveStep::Refuse { by: by.clone() };
    assert_eq!(step(&volume, &[copy.clone()]), Some(refuse));
    volume.spec.promoted_move_uid = Some(by.clone());
    let promote = MoveStep::Promote {
        by: by.clone(),
        image: image.clone(),
    };
    assert_eq!(step(&volume, &[copy.clone()]), Some(promote.clone()));
    // Also if the node that is lost, or this one, has refused it before.
    volume.status = Some(PoolVolumeStatus::default());
    assert_eq!(step(&volume, &[copy.clone()]), Some(promote));
    copy.status.get_or_insert_default().complete = true;
    let open = MoveStep::Open { by, image };
    assert_eq!(step(&volume, &[copy.clone()]), Some(open));
    let mut earlier = copy.clone();
    earlier.spec.epoch = 2;
    assert_eq!(step(&volume, &[earlier]), None, "of another epoch");
    volume.spec.deletion_requested = true;
    assert_eq!(step(&volume, &[copy]), None);
}

#[test]
fn a_closed_volume_is_opened_where_its_spec_names_it() {
    let mut undone = ready_volume();
    undone.spec.epoch = 1;
    undone.status.as_mut().unwrap().fence = Some(FenceStatus {
        state: FenceState::Closed,
        move_uid: "move-1".to_owned(),
    });
    let by = "move-1".to_owned();
    assert_eq!(
        step(&undone, &[]),
        Some(MoveStep::Reopen { by: by.clone() })
    );
    let mut copy = replica("pvc-1", 1);
    let reopen = Some(MoveStep::Reopen { by });
    assert_eq!(step(&undone, &[copy.clone()]), reopen, "not complete");
    copy.status.get_or_insert_default().complete = true;
    let open = MoveStep::Open {
        by: "move-1".to_owned(),
        image: "uid-1".to_owned(),
    };
    assert_eq!(step(&undone, &[copy.clone()]), Some(open));
    copy.spec.epoch = 2;
    assert_eq!(step(&undone, &[copy]), reopen, "of another epoch");
}

#[test]
fn a_volume_of_a_new_epoch_loses_a_mark_that_no_status_has_reported() {
    // The move was undone before the status said that the image is closing, or the disk is in another machine.
    let mut undone = ready_volume();
    undone.spec.epoch = 1;
    assert_eq!(undone.status.as_ref().unwrap().fence, None);
    assert_eq!(step(&undone, &[]), Some(MoveStep::Unmark));
    undone.spec.deletion_requested = true;
    assert_eq!(step(&undone, &[]), Some(MoveStep::Unmark));
    undone.status.as_mut().unwrap().epoch = 1;
    assert_eq!(step(&undone, &[]), None, "reported");
}

#[test]
fn a_copy_is_promoted_only_if_the_spec_names_its_move_and_no_later_copy_is_complete() {
    let mut volume = ready_volume();
    volume.spec.epoch = 1;
    let mut copy = replica("pvc-1", 1);
    let unmark = Some(MoveStep::Unmark);
    assert_eq!(step(&volume, &[copy.clone()]), unmark);
    volume.spec.promoted_move_uid = Some("move-0".to_owned());
    assert_eq!(step(&volume, &[copy.clone()]), unmark, "of an earlier move");
    let by = "move-1".to_owned();
    volume.spec.promoted_move_uid = Some(by.clone());
    let image = "uid-1".to_owned();
    let promote = MoveStep::Promote {
        by: by.clone(),
        image: image.clone(),
    };
    assert_eq!(step(&volume, &[copy.clone()]), Some(promote));
    assert_eq!(step(&volume, &[]), unmark);
    // The copy of the closed volume has what was written since.
    copy.status.get_or_insert_default().complete = true;
    let open = MoveStep::Open { by, image };
    assert_eq!(step(&volume, &[copy]), Some(open));
}
