//! A move whose volume has no object any more. Pure.
//!
//! ```text
//! its deletion was requested: the VolumeMove is being deleted, or the PersistentVolume is gone, too ─▶ the copy is removed
//! somebody has removed the object, or forgotten its node ─▶ a whole copy is kept, until a person decides
//! the VolumeMove was deleted before that, which undid the move ─▶ its deletion does not count
//! ```
//!
//! *Invariants:* only a request removes data: that of the deletion of the volume, or that of an administrator who
//! deletes the VolumeMove, or requests the removal of the copy. The image of the former node is never removed here:
//! it may be the only one.

use cistern_crds::{
    ConditionType, Explanation, HasImage as _, PoolReplica, Reason, ReplicaPurpose, condition,
};
use kube::ResourceExt as _;

use super::{Action, Seen, clear_one};

impl Seen<'_> {
    /// The next step of a move whose PoolVolume does not exist.
    pub(super) fn without_volume(&self) -> Action {
        if self.is_to_follow {
            return Action::Follow;
        }
        // It was promoted, and the former node may have what was written meanwhile.
        if self.is_promoted()
            && self.incoming.is_none()
            && let Some(action) = self.superseded()
        {
            return action;
        }
        if let Some(retained) = self.retained {
            // Its removal was requested when the volume was ready elsewhere. Without an agent, nothing is removed.
            let is_to_go = retained.spec.deletion_requested
                && !is_refused(retained)
                && !self.source.is_forgotten;
            return if is_to_go {
                clear_one(retained)
            } else {
                Action::Release(ReplicaPurpose::Retained)
            };
        }
        let is_deleted = self.object.metadata.deletion_timestamp.is_some();
        let is_requested = is_deleted && !self.object.keeps_copy() || !self.is_claimed;
        if let Some(copy) = self.incoming.filter(|it| may_be_only_data(it))
            && !is_requested
        {
            return Action::Wait(self.kept(copy));
        }
        let snapshots = self.remove_snapshots();
        let copy = || self.incoming.map(|copy| self.remove_copy(copy));
        snapshots.or_else(copy).unwrap_or(Action::End)
    }

    fn kept(&self, copy: &PoolReplica) -> Explanation {
        let (volume, node) = (&self.object.spec.volume_name, &copy.spec.node_name);
        let (from, spec) = (&self.plan.from_node, spec_for(copy));
        let discard = if self.object.keeps_copy() {
            let replica = copy.name_any();
            format!("set spec.deletionRequested of PoolReplica {replica} to true")
        } else {
            "delete this VolumeMove".to_owned()
        };
        let message = format!(
            "PoolVolume {volume} does not exist, although its deletion was not requested; node {node} keeps the copy. To \
             continue, create the PoolVolume again with the same spec or, if node {from} is lost, {spec}. To discard the \
             copy, {discard}"
        );
        Explanation::new(Reason::NotMovable, message)
    }
}

/// With which fields a PoolVolume is created again, so that the node with the copy makes that the volume.
pub(super) fn spec_for(copy: &PoolReplica) -> String {
    let (node, epoch, uid) = (&copy.spec.node_name, copy.spec.epoch, &copy.spec.move_uid);
    let promoted = if copy.is_complete() {
        String::new()
    } else {
        // What was written after the last pass is not in it.
        format!(", promotedMoveUID: {uid}")
    };
    format!(
        "with `nodeName: {node}, epoch: {epoch}{promoted}` and without target: node {node} then opens the copy"
    )
}

/// Whether a copy may be the only data of its volume: it is whole, and its removal is not requested.
pub(in crate::moves) fn may_be_only_data(copy: &PoolReplica) -> bool {
    let is_whole = copy.is_complete() || copy.received_snapshot().is_some();
    copy.spec.purpose == ReplicaPurpose::Incoming && is_whole && !copy.spec.deletion_requested
}

/// Whether the agent does not remove the image of a replica as requested.
fn is_refused(replica: &PoolReplica) -> bool {
    let found = condition::failing(replica.conditions(), ConditionType::Reclaimed);
    let reason = found.and_then(|found| Reason::parse(&found.reason));
    matches!(reason, Some(Reason::InUse | Reason::ReclaimFailed))
}

#[cfg(test)]
mod tests {
    use cistern_crds::condition::ConditionUpdate;
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use crate::{
        moves::testing::{Case, complete, received},
        testing::moment,
    };

    fn gone(mut case: Case) -> Case {
        case.volume = None;
        case
    }

    #[test]
    fn the_persistent_volume_of_a_volume_that_is_gone_is_created_again_first() {
        let mut case = gone(Case::prepared());
        case.is_to_follow = true;
        assert_eq!(case.next(), Action::Follow);
    }

    #[test]
    fn the_image_of_the_former_node_is_not_removed_without_its_volume() {
        for case in [Case::prepared(), Case::arrived()] {
            let mut case = gone(case);
            assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
            case.object.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
            assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
        }
        // That was decided when the volume was ready elsewhere.
        let mut requested = gone(Case::arrived());
        let retained = requested.retained.as_mut().unwrap();
        retained.spec.deletion_requested = true;
        assert_eq!(requested.waits_for(), Some(Reason::RemovingImage));
        let refused = ConditionUpdate::new(
            ConditionType::Reclaimed,
            false,
            Reason::InUse,
            "the image may be the only one",
        );
        let status = requested.retained.as_mut().unwrap().status.as_mut();
        condition::set(&mut status.unwrap().conditions, &refused, None, moment());
        assert_eq!(requested.next(), Action::Release(ReplicaPurpose::Retained));
    }

    #[test]
    fn nothing_waits_for_a_node_that_is_gone_for_good() {
        let mut case = gone(Case::arrived());
        for replica in [&mut case.retained, &mut case.incoming] {
            replica.as_mut().unwrap().spec.deletion_requested = true;
        }
        assert_eq!(case.waits_for(), Some(Reason::RemovingImage));
        case.source.is_forgotten = true;
        assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
        case.retained = None;
        assert_eq!(case.waits_for(), Some(Reason::RemovingImage));
        case.lost = Some("gone");
        assert_eq!(case.next(), Action::Release(ReplicaPurpose::Incoming));
        case.incoming = None;
        assert_eq!(case.next(), Action::End);
    }

    #[test]
    fn a_whole_copy_of_a_volume_that_is_gone_stays_until_its_volume_move_is_deleted() {
        let mut standby = gone(Case::prepared());
        standby.retained = None;
        let mut closed = gone(Case::prepared());
        closed.retained = None;
        received(standby.incoming.as_mut().unwrap(), "image-3");
        complete(closed.incoming.as_mut().unwrap());
        for mut case in [standby, closed] {
            let Action::Wait(why) = case.next() else {
                panic!("{:?}", case.next());
            };
            assert_eq!(why.reason, Reason::NotMovable);
            assert!(why.message.contains("node node-2 keeps the copy"), "{why}");
            let spec = if case.incoming.as_ref().unwrap().is_complete() {
                "`nodeName: node-2, epoch: 1`"
            } else {
                "`nodeName: node-2, epoch: 1, promotedMoveUID: move-1`"
            };
            assert!(why.message.contains(spec), "{why}");
            case.object.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
            assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
            case.incoming = None;
            assert_eq!(case.next(), Action::End);
        }
    }

    #[test]
    fn the_copy_that_an_undone_move_keeps_stays_without_its_volume() {
        // The former node has not opened its image again.
        let mut case = Case::prepared();
        case.volume.as_mut().unwrap().spec.epoch = 1;
        complete(case.incoming.as_mut().unwrap());
        case.object.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
        assert_eq!(case.next(), Action::KeepCopy);
        case.object.status.as_mut().unwrap().copy_kept = true;
        assert_eq!(case.waits_for(), Some(Reason::NotMovable));
        let mut case = gone(case);
        assert_eq!(case.next(), Action::Release(ReplicaPurpose::Retained));
        case.retained = None;
        let Action::Wait(why) = case.next() else {
            panic!("{:?}", case.next());
        };
        assert_eq!(why.reason, Reason::NotMovable);
        let says = "set spec.deletionRequested of PoolReplica pvc-1.1 to true";
        assert!(why.message.contains(says), "{why}");
        case.is_claimed = false;
        assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
        case.is_claimed = true;
        let copy = case.incoming.as_mut().unwrap();
        copy.spec.deletion_requested = true;
        assert_eq!(case.waits_for(), Some(Reason::RemovingImage));
    }

    #[test]
    fn the_copy_of_a_volume_whose_persistent_volume_is_gone_too_is_removed() {
        let mut case = gone(Case::prepared());
        case.retained = None;
        received(case.incoming.as_mut().unwrap(), "image-3");
        case.is_claimed = false;
        assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
    }

    #[test]
    fn the_image_of_before_a_promotion_stays_without_its_volume_until_the_volume_move_is_deleted() {
        let mut case = gone(Case::arrived());
        case.incoming = None;
        case.object.status.as_mut().unwrap().promoted = Some(moment());
        case.is_claimed = false;
        assert_eq!(case.waits_for(), Some(Reason::Superseded));
        case.object.metadata.deletion_timestamp = Some(Time(Timestamp::default()));
        assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Retained));
    }

    #[test]
    fn a_copy_with_nothing_whole_in_it_goes_with_its_volume() {
        let mut case = gone(Case::prepared());
        case.retained = None;
        assert_eq!(case.next(), Action::Remove(ReplicaPurpose::Incoming));
    }
}
