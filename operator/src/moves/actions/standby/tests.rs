use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionType, Cutover, PreparedCopy, Promotion, ReceivedSnapshot, ReplicaPurpose,
    condition::{self, ConditionUpdate},
    testing::ready_snapshot,
};

use super::*;
use crate::{
    moves::{
        passes::Passes,
        testing::{Case, companion, complete, pod, received, replica},
        together::Progress,
    },
    testing::moment,
};

const INTERVAL: u32 = 60;

fn after(seconds: i64) -> DateTime<Utc> {
    moment() + TimeDelta::seconds(seconds)
}

/// A standby copy whose last pass had its snapshot taken at [`moment`].
fn standby() -> Case {
    let mut case = Case::used(Cutover::Never);
    case.object.spec.standby_interval_seconds = Some(INTERVAL);
    let status = case.object.status.as_mut().unwrap();
    status.prepared = Some(PreparedCopy {
        number: 3,
        snapshot_name: "pass-3".to_owned(),
        image: "image-3".to_owned(),
        taken: Some(moment()),
        received: after(2),
        seconds: Some(1),
        settled: true,
    });
    let mut snapshot = ready_snapshot();
    snapshot.metadata.name = Some("pass-3".to_owned());
    case.snapshots[1] = Some(snapshot);
    let copy = case.incoming.as_mut().unwrap();
    copy.status.get_or_insert_default().snapshot = Some(ReceivedSnapshot {
        image: "image-3".to_owned(),
        received: after(2),
        seconds: Some(1),
    });
    case.now = after(10);
    case
}

/// The same after its promotion is requested, while its node is lost.
fn promotable() -> Case {
    let mut case = standby();
    case.object.spec.promotion = Some(Promotion {
        data_as_of: moment(),
    });
    case.source.is_lost = true;
    case
}

/// The same after the commit, when the new node has opened the copy.
fn promoted() -> Case {
    let mut case = promotable();
    let arrived = Case::arrived();
    case.object.status.as_mut().unwrap().promoted = Some(moment());
    case.volume = arrived.volume;
    case.incoming = None;
    case.users.clear();
    case
}

fn why(case: &Case) -> (Reason, String) {
    match case.next() {
        Action::Wait(why) => (why.reason, why.message),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn begins(case: &Case, number: u32) {
    match case.next() {
        Action::Record(Passes {
            copying: Some(pass),
            ..
        }) => {
            assert_eq!(pass.number, number);
            assert_eq!(pass.base_image.as_deref(), Some("image-3"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_standby_copy_is_renewed_at_its_interval_whether_or_not_pods_use_the_volume() {
    for users in [vec![pod(Some("node-1"), true)], Vec::new()] {
        let mut case = standby();
        case.users = users;
        let rests = Action::Rest(
            "node node-2 has a copy of the volume, which is renewed every 60 seconds".to_owned(),
        );
        assert_eq!(case.next(), rests);
        case.now = after(59);
        assert_eq!(case.next(), rests);
        case.now = after(60);
        begins(&case, 4);
        // A volume of many extents is blocked by each snapshot.
        let status = case.volume.as_mut().unwrap().status.as_mut().unwrap();
        status.extents = Some(100_000);
        assert_eq!(case.next(), rests);
        case.now = after(203);
        begins(&case, 4);
    }
    let mut fresh = standby();
    let status = fresh.object.status.as_mut().unwrap();
    status.prepared = None;
    assert!(matches!(fresh.next(), Action::Record(_)), "the first pass");
}

#[test]
fn a_standby_copy_lags_once_it_is_older_than_two_intervals_and_says_why() {
    let mut case = standby();
    // Its node is silent: the pass waits for its snapshot.
    case.now = after(60);
    let Action::Record(passes) = case.next() else {
        panic!("{:?}", case.next());
    };
    let pass = passes.copying.clone().unwrap();
    case.object.status.as_mut().unwrap().copying = passes.copying;
    let mut snapshot = ready_snapshot();
    snapshot.metadata.name = Some(pass.snapshot_name);
    snapshot.status = None;
    case.snapshots[0] = Some(snapshot);
    assert!(matches!(case.next(), Action::Rest(_)));
    case.now = after(120);
    let (reason, message) = why(&case);
    assert_eq!(reason, Reason::StandbyLags);
    assert!(
        message.contains("takes the snapshot of pass 4"),
        "{message}"
    );
    // Before the first copy is complete, nothing lags.
    case.object.status.as_mut().unwrap().prepared = None;
    case.snapshots[1] = None;
    assert_eq!(why(&case).0, Reason::Copying);
    let mut unready = standby();
    unready.now = after(200);
    let status = unready.volume.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions.clear();
    assert_eq!(why(&unready).0, Reason::StandbyLags);
}

#[test]
fn a_standby_copy_is_promoted_only_if_its_node_is_lost_and_it_is_as_new_as_demanded() {
    let case = promotable();
    assert_eq!(case.next(), Action::RecordPromotion(moment()));
    let refused = |change: &dyn Fn(&mut Case)| {
        let mut case = promotable();
        change(&mut case);
        let (reason, message) = why(&case);
        assert_eq!(reason, Reason::NotPromotable, "{message}");
        message
    };
    let alive = refused(&|case| case.source.is_lost = false);
    assert!(alive.contains("out-of-service"), "{alive}");
    let older = refused(&|case| {
        let promotion = case.object.spec.promotion.as_mut();
        promotion.unwrap().data_as_of = after(1);
    });
    assert!(older.contains("older than"), "{older}");
    for lost in [
        refused(&|case| case.incoming = None),
        refused(&|case| {
            let status = case.incoming.as_mut().unwrap().status.as_mut();
            status.unwrap().snapshot = None;
        }),
        refused(&|case| {
            let copy = case.incoming.as_mut().unwrap();
            "move-0".clone_into(&mut copy.spec.move_uid);
        }),
        refused(&|case| received(case.incoming.as_mut().unwrap(), "image-2")),
        refused(&|case| case.incoming.as_mut().unwrap().spec.deletion_requested = true),
        refused(&|case| case.object.status.as_mut().unwrap().prepared = None),
    ] {
        assert!(lost.contains("no complete copy"), "{lost}");
    }
}

#[test]
fn a_copy_that_its_node_cannot_read_is_not_promoted() {
    let reporting = |reason: Reason| {
        let mut case = promotable();
        let unready = ConditionUpdate::new(ConditionType::Ready, false, reason, "broken");
        let status = case.incoming.as_mut().unwrap().status.as_mut().unwrap();
        condition::set(&mut status.conditions, &unready, Some(1), moment());
        case
    };
    // It cannot receive more, because the node of the volume is lost.
    for reason in [Reason::SourceUnreachable, Reason::Copying] {
        assert_eq!(reporting(reason).next(), Action::RecordPromotion(moment()));
    }
    let mut silent = promotable();
    silent.unavailable = Some("broken");
    let refuses = |case: &Case| {
        let (reason, message) = why(case);
        assert_eq!(reason, Reason::NotPromotable);
        let says = "node node-2 cannot use its copy now: broken";
        assert!(message.contains(says), "{message}");
    };
    refuses(&silent);
    for reason in [
        Reason::PoolNotReady,
        Reason::ImageMissing,
        Reason::ProvisioningFailed,
    ] {
        refuses(&reporting(reason));
    }
}

#[test]
fn no_copy_is_promoted_for_a_volume_that_no_node_has_reported() {
    let mut case = promotable();
    case.volume.as_mut().unwrap().status = None;
    let (reason, message) = why(&case);
    assert_eq!(reason, Reason::NotPromotable);
    let says = "`nodeName: node-2, epoch: 1, promotedMoveUID: move-1`";
    assert!(message.contains(says), "{message}");
}

#[test]
fn a_promotion_that_is_recorded_is_committed_without_a_fence() {
    let mut case = promotable();
    case.object.status.as_mut().unwrap().promoted = Some(moment());
    // The node is back meanwhile.
    case.source.is_lost = false;
    assert_eq!(case.next(), Action::Declare);
    let declared = Case::declared(None);
    case.volume = declared.volume;
    assert_eq!(case.next(), Action::Commit);
    // The volume was being closed for a move when its node was lost.
    let mut closing = promotable();
    closing.volume = Case::declared(Some(cistern_crds::FenceState::Closing)).volume;
    assert_eq!(closing.next(), Action::RecordPromotion(moment()));
    // Neither is done for a volume that is to be deleted.
    let mut unwanted = promotable();
    unwanted.volume.as_mut().unwrap().spec.deletion_requested = true;
    assert_eq!(unwanted.next(), Action::GiveUp);
}

fn delete(case: &mut Case) {
    let deleted = cistern_crds::time::to_kubernetes(moment());
    case.object.metadata.deletion_timestamp = Some(deleted);
}

#[test]
fn a_promotion_that_is_recorded_is_carried_out_although_the_move_is_deleted() {
    let mut case = promotable();
    case.object.status.as_mut().unwrap().promoted = Some(moment());
    delete(&mut case);
    case.disk_at = Some("node-3");
    assert_eq!(case.next(), Action::Declare);
    let spec = &mut case.volume.as_mut().unwrap().spec;
    spec.cancelled_move_uid = Some("move-1".to_owned());
    assert_eq!(case.next(), Action::Declare);
    spec_of(&mut case).target = spec_of(&mut Case::declared(None)).target.clone();
    assert_eq!(case.next(), Action::Commit);
    spec_of(&mut case).deletion_requested = true;
    assert_eq!(case.next(), Action::Commit);
    // There is nothing that could become the volume.
    case.incoming.as_mut().unwrap().spec.deletion_requested = true;
    assert_eq!(case.next(), Action::Undo);
}

fn spec_of(case: &mut Case) -> &mut cistern_crds::PoolVolumeSpec {
    &mut case.volume.as_mut().unwrap().spec
}

#[test]
fn a_promotion_that_is_not_recorded_keeps_no_move_from_being_given_up() {
    let declared = || Case {
        volume: Case::declared(Some(cistern_crds::FenceState::Closing)).volume,
        ..promotable()
    };
    let give_up: [fn(&mut Case); 4] = [
        delete,
        |case| case.lost = Some("gone"),
        |case| case.disk_at = Some("node-3"),
        |case| case.companions = vec![companion(Progress::Absent)],
    ];
    for give_up in give_up {
        let mut case = declared();
        give_up(&mut case);
        assert_eq!(case.next(), Action::Undo);
    }
    let mut early = promotable();
    early.disk_at = Some("node-3");
    assert_eq!(early.next(), Action::Cancel, "its disk has newer data");
}

#[test]
fn a_move_goes_on_while_the_promotion_of_its_copy_is_refused() {
    let mut case = promotable();
    case.source.is_lost = false;
    case.volume = Case::declared(Some(cistern_crds::FenceState::Closed)).volume;
    assert_eq!(why(&case).0, Reason::NotPromotable);
    complete(case.incoming.as_mut().unwrap());
    assert_eq!(case.next(), Action::Commit);
}

#[test]
fn a_pass_that_ended_before_the_node_was_lost_is_promoted_as_of_its_snapshot() {
    let mut case = promotable();
    let status = case.object.status.as_mut().unwrap();
    status.copying = Some(cistern_crds::MovePass {
        number: 4,
        snapshot_name: "pass-4".to_owned(),
        image: Some("image-4".to_owned()),
        base_image: Some("image-3".to_owned()),
    });
    received(case.incoming.as_mut().unwrap(), "image-4");
    assert_eq!(case.next(), Action::RecordPromotion(moment()), "at least");
    let mut snapshot = ready_snapshot();
    snapshot.status.as_mut().unwrap().creation_time = Some(after(60));
    case.snapshots[0] = Some(snapshot);
    assert_eq!(case.next(), Action::RecordPromotion(after(60)));
}

#[test]
fn a_standby_copy_is_kept_when_a_growth_is_refused_or_its_volume_becomes_thick() {
    let mut refused = standby();
    let copy = refused.incoming.as_mut().unwrap();
    copy.spec.size = cistern_crds::Bytes::gib(4);
    assert!(matches!(refused.next(), Action::Rest(_)));
    let retained = refused.retained.as_mut().unwrap();
    retained.spec.size = cistern_crds::Bytes::gib(2);
    assert!(matches!(refused.next(), Action::Rest(_)));
    let mut thick = standby();
    let thick_now = cistern_crds::Provisioning::Thick;
    spec_of(&mut thick).attributes.provisioning = thick_now;
    assert!(matches!(thick.next(), Action::Rest(_)), "not admitted");
    let admitted = spec_of(&mut thick).attributes;
    let status = thick.volume.as_mut().unwrap().status.as_mut();
    status.unwrap().attributes = Some(admitted);
    assert_eq!(thick.next(), Action::Release(ReplicaPurpose::Retained));
    thick.retained.as_mut().unwrap().spec.provisioning = thick_now;
    let Action::Rest(message) = thick.next() else {
        panic!("{:?}", thick.next());
    };
    assert!(
        message.contains("is now thick, but its copy is reserved as thin"),
        "{message}"
    );
}

#[test]
fn the_superseded_image_is_kept_until_its_volume_move_is_deleted() {
    let mut case = promoted();
    case.now = after(100_000);
    let (reason, message) = why(&case);
    assert_eq!(reason, Reason::Superseded);
    assert!(
        message.contains("Node node-1 keeps the previous image"),
        "{message}"
    );
    assert!(message.contains("delete this VolumeMove"), "{message}");
    delete(&mut case);
    assert_eq!(case.next(), Action::RemoveSnapshot("pass-3".to_owned()));
    case.snapshots = [None, None];
    assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Retained));
    case.retained = None;
    assert_eq!(case.next(), Action::End);
}

#[test]
fn the_superseded_image_is_kept_if_the_pool_volume_is_created_again_from_the_copy() {
    let mut case = promoted();
    case.object.status.as_mut().unwrap().promoted = None;
    spec_of(&mut case).promoted_move_uid = Some("move-1".to_owned());
    case.now = after(100_000);
    assert_eq!(why(&case).0, Reason::Superseded);
    let retained = case.retained.take();
    assert_eq!(case.next(), Action::End);
    case.retained = retained;
    // The deletion of the volume does not remove it either.
    spec_of(&mut case).deletion_requested = true;
    case.incoming = Some(replica(ReplicaPurpose::Incoming, "node-2", 1));
    assert_eq!(case.next(), Action::Release(ReplicaPurpose::Incoming));
    case.incoming = None;
    assert_eq!(why(&case).0, Reason::Superseded);
    // Another move made it what it is.
    spec_of(&mut case).promoted_move_uid = Some("move-0".to_owned());
    spec_of(&mut case).deletion_requested = false;
    case.snapshots = [None, None];
    assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Retained));
}

#[test]
fn nothing_waits_for_a_node_that_is_forgotten() {
    let mut case = promoted();
    case.source.is_forgotten = true;
    assert_eq!(case.next(), Action::ReleaseSnapshot("pass-3".to_owned()));
    case.snapshots = [None, None];
    assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
    case.retained = None;
    assert_eq!(case.next(), Action::End);
    // The old image of a move is not removed either.
    let mut moved = Case::arrived();
    moved.incoming = None;
    moved.source.is_forgotten = true;
    moved.snapshots = standby().snapshots;
    assert_eq!(moved.next(), Action::ReleaseSnapshot("pass-3".to_owned()));
    moved.snapshots = [None, None];
    assert_eq!(moved.next(), Action::Release(ReplicaPurpose::Retained));
    moved.retained = None;
    assert_eq!(moved.next(), Action::End);
    // The copy is the volume's own image first.
    let mut arriving = promoted();
    arriving.source.is_forgotten = true;
    arriving.incoming = Some(replica(ReplicaPurpose::Incoming, "node-2", 1));
    assert_eq!(arriving.next(), Action::Release(ReplicaPurpose::Incoming));
}
