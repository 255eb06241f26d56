use cistern_crds::{Bytes, ReplicaPurpose, condition::ConditionUpdate};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::json;

use super::{
    super::{
        testing::{Case, companion, pod, replica},
        together::Progress,
    },
    *,
};
use crate::testing::moment;

#[test]
fn a_move_reserves_room_on_both_nodes_before_it_declares_its_target() {
    let mut case = Case::decided();
    assert_eq!(case.next(), Stage::Create(ReplicaPurpose::Retained));
    case.retained = Case::prepared().retained;
    assert_eq!(case.next(), Stage::Create(ReplicaPurpose::Incoming));
    let mut unreserved = replica(ReplicaPurpose::Incoming, "node-2", 1);
    unreserved.status = None;
    case.incoming = Some(unreserved.clone());
    assert_eq!(case.waits_for(), Some(Reason::Pending));
    let refused = ConditionUpdate::new(ConditionType::Admitted, false, Reason::NoSpace, "full");
    let status = unreserved.status.get_or_insert_default();
    condition::set(&mut status.conditions, &refused, Some(1), moment());
    case.incoming = Some(unreserved);
    assert_eq!(case.waits_for(), Some(Reason::NoSpace));
    assert_eq!(Case::prepared().next(), Stage::Declare);
    let mut grown = Case::prepared();
    grown
        .volume
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .reserved = Some(Bytes::gib(2));
    assert_eq!(grown.next(), Stage::Grow(ReplicaPurpose::Retained));
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
        Stage::Declare,
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
    copy.status.get_or_insert_default().complete = true;
    assert_eq!(closed.next(), Stage::Commit);
    // The fence of another move.
    let fence = closed.volume.as_mut().unwrap().status.as_mut().unwrap();
    "move-0".clone_into(&mut fence.fence.as_mut().unwrap().move_uid);
    assert_eq!(closed.waits_for(), Some(Reason::Moving));
}

#[test]
fn a_move_that_is_given_up_is_cancelled_before_the_declaration_and_undone_after_it() {
    let give_up: [fn(&mut Case); 3] = [
        |case| {
            case.object.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
        },
        |case| case.volume.as_mut().unwrap().spec.deletion_requested = true,
        |case| case.lost = Some("the node is gone"),
    ];
    for give_up in give_up {
        let mut early = Case::prepared();
        give_up(&mut early);
        assert_eq!(early.next(), Stage::Cancel);
        let spec = &mut early.volume.as_mut().unwrap().spec;
        spec.cancelled_move_uid = Some("move-1".to_owned());
        assert_eq!(early.next(), Stage::Remove(ReplicaPurpose::Incoming));
        let mut late = Case::declared(Some(FenceState::Closed));
        late.incoming
            .as_mut()
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .complete = true;
        give_up(&mut late);
        assert_eq!(late.next(), Stage::Undo);
    }
    let mut without_copy = Case::declared(Some(FenceState::Closed));
    without_copy.incoming = None;
    assert_eq!(without_copy.next(), Stage::Undo);
}

#[test]
fn an_undone_move_removes_the_copy_and_nothing_of_the_source() {
    let mut undone = Case::prepared();
    undone.volume.as_mut().unwrap().spec.epoch = 1;
    assert_eq!(undone.next(), Stage::Remove(ReplicaPurpose::Incoming));
    let copy = undone.incoming.as_mut().unwrap();
    copy.spec.deletion_requested = true;
    assert_eq!(undone.waits_for(), Some(Reason::RemovingImage));
    undone.incoming.as_mut().unwrap().status = None;
    assert_eq!(undone.next(), Stage::Release(ReplicaPurpose::Incoming));
    undone.incoming = None;
    assert_eq!(undone.next(), Stage::Release(ReplicaPurpose::Retained));
    undone.retained = None;
    assert_eq!(undone.next(), Stage::End);
}

#[test]
fn the_target_of_an_earlier_move_is_undone() {
    let mut case = Case::declared(Some(FenceState::Closed));
    let target = case.volume.as_mut().unwrap().spec.target.as_mut().unwrap();
    "move-0".clone_into(&mut target.move_uid);
    assert_eq!(case.next(), Stage::Undo);
}

#[test]
fn the_former_node_keeps_its_image_until_the_volume_is_used_or_for_five_minutes() {
    let mut case = Case::arrived();
    assert_eq!(case.next(), Stage::Release(ReplicaPurpose::Incoming));
    case.incoming = None;
    case.is_to_follow = true;
    assert_eq!(case.next(), Stage::Follow);
    case.is_to_follow = false;
    let left = pod(Some("node-1"), false);
    case.users = vec![left.clone()];
    assert_eq!(case.next(), Stage::DeletePods(vec![left]));
    case.users = vec![pod(Some("node-2"), false)];
    assert_eq!(case.waits_for(), Some(Reason::OldImageKept));
    case.users = vec![pod(Some("node-2"), true)];
    let remove = Stage::Remove(ReplicaPurpose::Retained);
    assert_eq!(case.next(), remove);
    case.users.clear();
    assert_eq!(case.waits_for(), Some(Reason::OldImageKept));
    case.now = moment() + TimeDelta::seconds(301);
    assert_eq!(case.next(), remove);
    let retained = case.retained.as_mut().unwrap();
    retained.spec.deletion_requested = true;
    assert_eq!(case.waits_for(), Some(Reason::RemovingImage));
    case.retained.as_mut().unwrap().status = None;
    assert_eq!(case.next(), Stage::Release(ReplicaPurpose::Retained));
    case.retained = None;
    assert_eq!(case.next(), Stage::End);
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
fn the_replicas_of_a_volume_that_is_gone_are_removed() {
    let mut case = Case::prepared();
    case.volume = None;
    case.is_to_follow = true;
    assert_eq!(
        case.next(),
        Stage::Follow,
        "its PersistentVolume is created again first"
    );
    case.is_to_follow = false;
    assert_eq!(case.next(), Stage::Remove(ReplicaPurpose::Incoming));
    case.incoming = None;
    assert_eq!(case.next(), Stage::Remove(ReplicaPurpose::Retained));
}

#[test]
fn volumes_that_move_together_wait_for_each_other_before_the_declaration_and_the_commit() {
    let mut early = Case::prepared();
    for (progress, expected) in [
        (Progress::Absent, Some(Reason::WaitingForOthers)),
        (Progress::Waiting, Some(Reason::WaitingForOthers)),
        (Progress::Reserved, None),
        (Progress::Prepared, None),
    ] {
        early.companions = vec![companion(progress)];
        assert_eq!(early.waits_for(), expected, "{progress:?}");
    }
    let mut late = Case::declared(Some(FenceState::Closed));
    late.incoming
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .complete = true;
    late.companions = vec![companion(Progress::Prepared)];
    assert_eq!(late.waits_for(), Some(Reason::WaitingForOthers));
    late.companions = vec![companion(Progress::Absent)];
    assert_eq!(late.next(), Stage::Undo, "the other was given up");
    late.companions = vec![companion(Progress::Complete)];
    assert_eq!(late.next(), Stage::Commit);
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
    let mut complete = Case::declared(Some(FenceState::Closed));
    assert_eq!(progress(&complete), Progress::Prepared);
    complete
        .incoming
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .complete = true;
    assert_eq!(progress(&complete), Progress::Complete);
    assert_eq!(progress(&Case::arrived()), Progress::Complete);
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
