use chrono::TimeDelta;
use cistern_crds::{
    Bytes, ConditionType, FenceState, Provisioning, ReplicaPurpose,
    condition::{self, ConditionUpdate},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::json;

use super::{
    super::{
        testing::{Case, companion, complete, pod, received, replica, set_ready},
        together::Progress,
    },
    *,
};
use crate::testing::moment;

#[test]
fn a_move_reserves_room_on_both_nodes_before_it_declares_its_target() {
    let mut case = Case::decided();
    assert_eq!(case.next(), Action::Create(ReplicaPurpose::Retained));
    case.retained = Case::prepared().retained;
    assert_eq!(case.next(), Action::Create(ReplicaPurpose::Incoming));
    let mut unreserved = replica(ReplicaPurpose::Incoming, "node-2", 1);
    unreserved.status = None;
    case.incoming = Some(unreserved.clone());
    assert_eq!(case.waits_for(), Some(Reason::Pending));
    let refused = ConditionUpdate::new(ConditionType::Admitted, false, Reason::NoSpace, "full");
    let status = unreserved.status.get_or_insert_default();
    condition::set(&mut status.conditions, &refused, Some(1), moment());
    case.incoming = Some(unreserved);
    assert_eq!(case.waits_for(), Some(Reason::NoSpace));
    assert_eq!(Case::prepared().next(), Action::Declare);
    let mut grown = Case::prepared();
    grown
        .volume
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .reserved = Some(Bytes::gib(2));
    assert_eq!(grown.next(), Action::Grow(ReplicaPurpose::Retained));
}

#[test]
fn a_volume_in_use_or_not_ready_does_not_begin_to_move() {
    let mut used = Case::decided();
    used.users = vec![pod(Some("node-1"), true)];
    assert_eq!(used.waits_for(), Some(Reason::PodsRemain));
    used.retained = Case::prepared().retained;
    used.incoming = Case::prepared().incoming;
    assert_eq!(
        used.waits_for(),
        Some(Reason::PodsRemain),
        "also after the reservation"
    );
    used.users = vec![pod(None, false)];
    assert_eq!(
        used.next(),
        Action::Declare,
        "a pod without a node has no volume"
    );
    let mut unready = Case::decided();
    let status = unready.volume.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions.clear();
    assert_eq!(unready.waits_for(), Some(Reason::NotMovable));
}

#[test]
fn a_volume_is_committed_once_it_is_closed_and_its_copy_complete() {
    for fence in [None, Some(FenceState::Closing)] {
        assert_eq!(Case::declared(fence).waits_for(), Some(Reason::Moving));
    }
    let mut closed = Case::declared(Some(FenceState::Closed));
    assert_eq!(closed.waits_for(), Some(Reason::Copying));
    let copy = closed.incoming.as_mut().unwrap();
    complete(copy);
    assert_eq!(closed.next(), Action::Commit);
    // The disk with the copy has failed meanwhile.
    let status = closed.incoming.as_mut().unwrap().status.as_mut().unwrap();
    let missing =
        ConditionUpdate::new(ConditionType::Ready, false, Reason::ImageMissing, "missing");
    condition::set(&mut status.conditions, &missing, Some(1), moment());
    assert_eq!(closed.waits_for(), Some(Reason::ImageMissing));
    complete(closed.incoming.as_mut().unwrap());
    // The fence of another move.
    let fence = closed.volume.as_mut().unwrap().status.as_mut().unwrap();
    "move-0".clone_into(&mut fence.fence.as_mut().unwrap().move_uid);
    assert_eq!(closed.waits_for(), Some(Reason::Moving));
}

/// An administrator deletes the VolumeMove.
fn delete(case: &mut Case) {
    case.object.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
}

/// The volume is to be deleted, and the VolumeMove says so.
fn request_deletion(case: &mut Case) {
    case.volume.as_mut().unwrap().spec.deletion_requested = true;
    assert_eq!(case.next(), Action::GiveUp);
    delete(case);
}

#[test]
fn a_move_that_is_given_up_is_cancelled_before_the_declaration_and_undone_after_it() {
    let give_up: [fn(&mut Case); 4] = [
        delete,
        request_deletion,
        |case| case.lost = Some("gone"),
        |case| {
            case.disk_at = Some("node-3");
        },
    ];
    for give_up in give_up {
        let mut early = Case::prepared();
        give_up(&mut early);
        assert_eq!(early.next(), Action::Cancel);
        early.disk_at = None;
        let spec = &mut early.volume.as_mut().unwrap().spec;
        spec.cancelled_move_uid = Some("move-1".to_owned());
        assert_eq!(early.next(), Action::Remove(ReplicaPurpose::Incoming));
        let mut late = Case::declared(Some(FenceState::Closed));
        complete(late.incoming.as_mut().unwrap());
        give_up(&mut late);
        assert_eq!(late.next(), Action::Undo);
    }
    let mut without_copy = Case::declared(Some(FenceState::Closed));
    without_copy.incoming = None;
    assert_eq!(without_copy.next(), Action::Undo);
}

#[test]
fn an_undone_move_removes_the_copy_once_the_volume_is_ready_and_nothing_of_the_source() {
    let mut undone = Case::prepared();
    undone.volume.as_mut().unwrap().spec.epoch = 1;
    let empty = undone.next();
    assert_eq!(empty, Action::Remove(ReplicaPurpose::Incoming));
    // The source has closed its image, and may not be able to open it again.
    complete(undone.incoming.as_mut().unwrap());
    let Action::Wait(why) = undone.next() else {
        panic!("{:?}", undone.next());
    };
    assert_eq!(why.reason, Reason::NotMovable);
    assert!(why.message.contains("node node-2 keeps the copy"), "{why}");
    let mut unwanted = undone.volume.clone().unwrap();
    unwanted.spec.deletion_requested = true;
    let before = undone.volume.replace(unwanted);
    delete(&mut undone);
    assert_eq!(undone.next(), Action::Remove(ReplicaPurpose::Incoming));
    undone.volume = before;
    let status = undone.volume.as_mut().unwrap().status.as_mut();
    status.unwrap().epoch = 1;
    assert_eq!(undone.next(), Action::Remove(ReplicaPurpose::Incoming));
    let copy = undone.incoming.as_mut().unwrap();
    copy.spec.deletion_requested = true;
    assert_eq!(undone.waits_for(), Some(Reason::RemovingImage));
    undone.incoming.as_mut().unwrap().status = None;
    assert_eq!(undone.next(), Action::Release(ReplicaPurpose::Incoming));
    undone.incoming = None;
    assert_eq!(undone.next(), Action::Release(ReplicaPurpose::Retained));
    undone.retained = None;
    assert_eq!(undone.next(), Action::End);
}

#[test]
fn a_move_that_is_given_up_ends_although_the_node_of_its_copy_is_gone_for_good() {
    let mut cancelled = Case::prepared();
    let spec = &mut cancelled.volume.as_mut().unwrap().spec;
    spec.cancelled_move_uid = Some("move-1".to_owned());
    let mut undone = Case::prepared();
    let volume = undone.volume.as_mut().unwrap();
    volume.spec.epoch = 1;
    volume.status.as_mut().unwrap().epoch = 1;
    for mut case in [cancelled, undone] {
        case.lost = Some("gone");
        complete(case.incoming.as_mut().unwrap());
        assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
        let copy = case.incoming.as_mut().unwrap();
        copy.spec.deletion_requested = true;
        assert_eq!(case.next(), Action::Release(ReplicaPurpose::Incoming));
        // An earlier move has left it on a node that can remove it.
        let copy = case.incoming.as_mut().unwrap();
        "node-3".clone_into(&mut copy.spec.node_name);
        assert_eq!(case.waits_for(), Some(Reason::RemovingImage));
        case.incoming = None;
        assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
        case.retained = None;
        assert_eq!(case.next(), Action::End);
    }
}

#[test]
fn the_copy_of_a_volume_that_is_not_ready_stays_although_its_move_is_cancelled() {
    let mut case = Case::prepared();
    let volume = case.volume.as_mut().unwrap();
    volume.spec.cancelled_move_uid = Some("move-1".to_owned());
    let broken = ConditionUpdate::new(ConditionType::Ready, false, Reason::PoolNotReady, "broken");
    let status = volume.status.as_mut().unwrap();
    condition::set(&mut status.conditions, &broken, Some(1), moment());
    received(case.incoming.as_mut().unwrap(), "image-1");
    assert_eq!(case.waits_for(), Some(Reason::NotMovable));
    set_ready(case.volume.as_mut().unwrap());
    assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
}

/// A closed volume whose copy is complete, while another volume of its pods is not copied.
fn copied() -> Case {
    let mut case = Case::declared(Some(FenceState::Closed));
    complete(case.incoming.as_mut().unwrap());
    case.companions = vec![companion(Progress::Prepared)];
    case
}

#[test]
fn a_closed_volume_whose_copy_is_complete_is_committed_once_its_node_is_lost() {
    let mut case = copied();
    assert_eq!(case.waits_for(), Some(Reason::WaitingForOthers));
    case.source.is_lost = true;
    assert_eq!(case.next(), Action::Commit);
    delete(&mut case);
    assert_eq!(case.next(), Action::Commit, "also in place of an undo");
    case.companions = vec![companion(Progress::Absent)];
    assert_eq!(case.next(), Action::Commit);
    // Only what is closed and copied.
    let mut closing = copied();
    closing.volume = Case::declared(Some(FenceState::Closing)).volume;
    let mut incomplete = copied();
    incomplete.incoming = Case::prepared().incoming;
    for mut case in [closing, incomplete] {
        case.source.is_lost = true;
        delete(&mut case);
        assert_eq!(case.next(), Action::Undo);
    }
}

#[test]
fn a_move_is_not_undone_to_a_node_that_cannot_use_its_pool() {
    let mut case = copied();
    case.source.is_unready = true;
    assert_eq!(case.waits_for(), Some(Reason::WaitingForOthers));
    delete(&mut case);
    assert_eq!(case.next(), Action::Commit);
    let elsewhere: [fn(&mut Case); 3] = [
        |case| case.lost = Some("gone"),
        |case| case.disk_at = Some("node-3"),
        |case| case.volume.as_mut().unwrap().spec.deletion_requested = true,
    ];
    for elsewhere in elsewhere {
        let mut case = copied();
        case.source.is_unready = true;
        delete(&mut case);
        elsewhere(&mut case);
        assert_eq!(case.next(), Action::Undo);
    }
}

#[test]
fn the_target_of_an_earlier_move_is_undone() {
    let mut case = Case::declared(Some(FenceState::Closed));
    let target = case.volume.as_mut().unwrap().spec.target.as_mut().unwrap();
    "move-0".clone_into(&mut target.move_uid);
    assert_eq!(case.next(), Action::Undo);
}

#[test]
fn the_former_node_keeps_its_image_until_the_volume_is_used_or_for_five_minutes() {
    let mut case = Case::arrived();
    assert_eq!(case.next(), Action::Release(ReplicaPurpose::Incoming));
    case.incoming = None;
    case.is_to_follow = true;
    assert_eq!(case.next(), Action::Follow);
    case.is_to_follow = false;
    let left = pod(Some("node-1"), false);
    case.users = vec![left.clone()];
    assert_eq!(case.next(), Action::DeletePods(vec![left.clone()]));
    // Nothing would make this one again.
    let bare = User {
        controller: None,
        ..left.clone()
    };
    case.users = vec![bare.clone(), left.clone()];
    assert_eq!(case.next(), Action::DeletePods(vec![left]));
    case.users = vec![bare];
    let Action::Wait(why) = case.next() else {
        panic!("{:?}", case.next());
    };
    assert_eq!(why.reason, Reason::PodsRemain);
    assert!(why.message.contains("shop/db-0 has no controller"), "{why}");
    case.users = vec![pod(Some("node-2"), false)];
    assert_eq!(case.waits_for(), Some(Reason::OldImageKept));
    case.users = vec![pod(Some("node-2"), true)];
    let remove = Action::Remove(ReplicaPurpose::Retained);
    assert_eq!(case.next(), remove);
    case.users.clear();
    assert_eq!(case.waits_for(), Some(Reason::OldImageKept));
    case.now = moment() + TimeDelta::seconds(301);
    assert_eq!(case.next(), remove);
    let retained = case.retained.as_mut().unwrap();
    retained.spec.deletion_requested = true;
    assert_eq!(case.waits_for(), Some(Reason::RemovingImage));
    case.retained.as_mut().unwrap().status = None;
    assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
    case.retained = None;
    assert_eq!(case.next(), Action::End);
}

#[test]
fn a_pod_that_cannot_start_is_deleted_once_and_then_waited_for() {
    let mut case = Case::arrived();
    case.incoming = None;
    let left = pod(Some("node-1"), false);
    // The kubelet of the former node does not answer.
    let ending = User {
        is_ending: true,
        ..left.clone()
    };
    case.users = vec![ending.clone(), left.clone()];
    assert_eq!(case.next(), Action::DeletePods(vec![left]));
    let bare = User {
        controller: None,
        ..ending.clone()
    };
    for ending in [ending, bare] {
        case.users = vec![ending];
        let Action::Wait(why) = case.next() else {
            panic!("{:?}", case.next());
        };
        assert_eq!(why.reason, Reason::PodsRemain);
        assert!(why.message.contains("are being deleted"), "{why}");
    }
    case.users.clear();
    assert_eq!(case.waits_for(), Some(Reason::OldImageKept));
}

#[test]
fn nothing_is_removed_before_the_new_node_is_ready() {
    let mut case = Case::arrived();
    case.now = moment() + TimeDelta::days(1);
    case.volume.as_mut().unwrap().status.as_mut().unwrap().epoch = 0;
    assert_eq!(case.waits_for(), Some(Reason::Moving));
    case.object.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
    assert_eq!(
        case.waits_for(),
        Some(Reason::Moving),
        "too late to undo it"
    );
}

#[test]
fn a_volume_that_follows_its_disk_leaves_its_replicas_until_it_is_ready_there() {
    let mut cancelled = Case::prepared();
    cancelled.disk_at = Some("node-3");
    let spec = &mut cancelled.volume.as_mut().unwrap().spec;
    spec.cancelled_move_uid = Some("move-1".to_owned());
    let mut undone = Case::prepared();
    undone.disk_at = Some("node-3");
    undone.volume.as_mut().unwrap().spec.epoch = 1;
    for mut case in [cancelled, undone] {
        assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
        case.retained = None;
        assert_eq!(case.next(), Action::End, "with the copy left");
    }
}

#[test]
fn a_volume_that_is_created_again_elsewhere_is_not_moved_by_an_old_plan() {
    let mut elsewhere = Case::prepared();
    "node-3".clone_into(&mut elsewhere.volume.as_mut().unwrap().spec.node_name);
    let mut earlier = Case::prepared();
    let plan = earlier.object.status.as_mut().unwrap().plan.as_mut();
    plan.unwrap().epoch = 3;
    for mut case in [elsewhere, earlier] {
        assert_eq!(case.waits_for(), Some(Reason::NotMovable));
        delete(&mut case);
        assert_eq!(case.next(), Action::Cancel);
    }
}

#[test]
fn replicas_are_made_anew_for_another_provisioning_and_nothing_is_committed_without_its_blocks() {
    let request_thick = |case: &mut Case| {
        let volume = case.volume.as_mut().unwrap();
        volume.spec.attributes.provisioning = Provisioning::Thick;
        volume.spec.attributes
    };
    let make_thick = |case: &mut Case| {
        let admitted = request_thick(case);
        let status = case.volume.as_mut().unwrap().status.as_mut();
        status.unwrap().attributes = Some(admitted);
    };
    // The agent may refuse the change, and a copy would be thrown away for nothing.
    let mut requested = Case::prepared();
    request_thick(&mut requested);
    assert_eq!(requested.waits_for(), Some(Reason::Pending));
    let mut early = Case::declared(Some(FenceState::Closed));
    complete(early.incoming.as_mut().unwrap());
    request_thick(&mut early);
    assert_eq!(early.next(), Action::Undo, "it may become thick");
    let mut case = Case::prepared();
    make_thick(&mut case);
    // Its image is the volume's own.
    assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
    case.retained.as_mut().unwrap().spec.provisioning = Provisioning::Thick;
    assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
    case.incoming.as_mut().unwrap().spec.provisioning = Provisioning::Thick;
    assert_eq!(case.next(), Action::Declare);
    let mut late = Case::declared(Some(FenceState::Closed));
    complete(late.incoming.as_mut().unwrap());
    make_thick(&mut late);
    assert_eq!(late.next(), Action::Undo);
    late.incoming.as_mut().unwrap().spec.provisioning = Provisioning::Thick;
    assert_eq!(late.next(), Action::Commit);
}

#[test]
fn an_old_image_goes_with_its_volume() {
    let mut case = Case::arrived();
    case.volume.as_mut().unwrap().spec.deletion_requested = true;
    assert_eq!(case.next(), Action::GiveUp, "the copy is not handed over");
    case.incoming = None;
    assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Retained));
}

#[test]
fn volumes_that_move_together_wait_for_each_other_before_the_declaration_and_the_commit() {
    let mut early = Case::prepared();
    for (progress, expected) in [
        (Progress::Absent, Some(Reason::WaitingForOthers)),
        (Progress::Leaving, Some(Reason::WaitingForOthers)),
        (Progress::Waiting, Some(Reason::WaitingForOthers)),
        (Progress::Reserved, None),
        (Progress::Prepared, None),
        (Progress::Moved, None),
    ] {
        early.companions = vec![companion(progress)];
        assert_eq!(early.waits_for(), expected, "{progress:?}");
    }
    let mut late = Case::declared(Some(FenceState::Closed));
    complete(late.incoming.as_mut().unwrap());
    late.companions = vec![companion(Progress::Prepared)];
    assert_eq!(late.waits_for(), Some(Reason::WaitingForOthers));
    for progress in [Progress::Absent, Progress::Leaving] {
        late.companions = vec![companion(progress)];
        assert_eq!(late.next(), Action::Undo, "the other was given up");
    }
    for progress in [Progress::Complete, Progress::Moved] {
        late.companions = vec![companion(progress)];
        assert_eq!(late.next(), Action::Commit);
    }
}

#[test]
fn a_copied_volume_follows_one_of_its_pods_that_has_moved_although_its_move_is_deleted() {
    let mut late = Case::declared(Some(FenceState::Closed));
    complete(late.incoming.as_mut().unwrap());
    delete(&mut late);
    late.companions = vec![companion(Progress::Complete)];
    assert_eq!(late.next(), Action::Undo);
    late.companions = vec![companion(Progress::Moved)];
    assert_eq!(late.next(), Action::Commit);
    late.companions.push(companion(Progress::Leaving));
    assert_eq!(late.next(), Action::Commit, "all were deleted at once");
    late.object.metadata.deletion_timestamp = None;
    assert_eq!(late.next(), Action::Commit);
    delete(&mut late);
    late.companions.push(companion(Progress::Absent));
    assert_eq!(late.next(), Action::Undo, "another one was undone");
    late.companions.truncate(1);
    late.incoming = Case::prepared().incoming;
    assert_eq!(late.next(), Action::Undo, "it is not copied");
    let mut early = Case::prepared();
    early.companions = vec![companion(Progress::Moved)];
    delete(&mut early);
    assert_eq!(early.next(), Action::Cancel);
}

#[test]
fn a_companion_is_as_far_as_its_objects_say() {
    let plan = Case::decided().object.plan().unwrap();
    let progress = |case: &Case| {
        let replicas = [case.retained.as_ref(), case.incoming.as_ref()];
        let object = Some(&case.object);
        Companion::of("pvc-1", &plan, object, case.volume.as_ref(), replicas).progress
    };
    assert_eq!(progress(&Case::decided()), Progress::Waiting);
    assert_eq!(progress(&Case::prepared()), Progress::Reserved);
    let mut whole = Case::declared(Some(FenceState::Closed));
    assert_eq!(progress(&whole), Progress::Prepared);
    complete(whole.incoming.as_mut().unwrap());
    assert_eq!(progress(&whole), Progress::Complete);
    delete(&mut whole);
    assert_eq!(progress(&whole), Progress::Leaving);
    for mut early in [Case::decided(), Case::prepared()] {
        delete(&mut early);
        assert_eq!(progress(&early), Progress::Absent);
    }
    let mut undecided = Case::prepared();
    let spec = &mut undecided.volume.as_mut().unwrap().spec;
    spec.attributes.provisioning = Provisioning::Thick;
    assert_eq!(progress(&undecided), Progress::Waiting);
    assert_eq!(progress(&Case::arrived()), Progress::Moved);
    let mut elsewhere = Case::prepared();
    elsewhere.object.status = serde_json::from_value(json!({
        "plan": {"fromNode": "node-1", "toNode": "node-3", "epoch": 1}, "conditions": [],
    }))
    .ok();
    assert_eq!(progress(&elsewhere), Progress::Absent);
    let mut undone = Case::prepared();
    undone.volume.as_mut().unwrap().spec.epoch = 1;
    assert_eq!(progress(&undone), Progress::Absent);
    let volume = undone.volume.as_ref();
    let absent = Companion::of("pvc-1", &plan, None, volume, [None, None]);
    assert!(absent.is_absent());
    let gone = Companion::of("pvc-1", &plan, None, None, [None, None]);
    assert!(gone.is_complete());
}
