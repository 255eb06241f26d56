//! Moves for the tests of what is decided for them.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionType, Cutover, FenceState, FenceStatus, MovePlan, MoveTarget, PoolReplica,
    PoolSnapshot, PoolVolume, Reason, ReceivedSnapshot, ReplicaPurpose, VolumeMove, VolumeMoveSpec,
    VolumeMoveStatus,
    condition::{self, ConditionUpdate},
    testing::{self, ready_volume},
};

use super::{
    actions::{Action, Seen, Source, next},
    pods::User,
    together::{Companion, Progress},
};
use crate::testing::moment;

/// A move, and all that a decision rests on.
pub(super) struct Case {
    pub(super) object: VolumeMove,
    pub(super) volume: Option<PoolVolume>,
    pub(super) retained: Option<PoolReplica>,
    pub(super) incoming: Option<PoolReplica>,
    pub(super) snapshots: [Option<PoolSnapshot>; 2],
    pub(super) is_fragmented: bool,
    pub(super) users: Vec<User>,
    pub(super) companions: Vec<Companion>,
    pub(super) lost: Option<&'static str>,
    pub(super) unavailable: Option<&'static str>,
    pub(super) disk_at: Option<&'static str>,
    pub(super) source: Source,
    pub(super) is_claimed: bool,
    pub(super) is_to_follow: bool,
    pub(super) now: DateTime<Utc>,
}

impl Case {
    /// A move of a ready volume from node-1 to node-2 that has been decided.
    pub(super) fn decided() -> Self {
        let spec = VolumeMoveSpec {
            volume_name: "pvc-1".to_owned(),
            ..VolumeMoveSpec::default()
        };
        let mut object = VolumeMove::new("pvc-1", spec);
        object.metadata.uid = Some("move-1".to_owned());
        let plan = MovePlan {
            from_node: "node-1".to_owned(),
            to_node: "node-2".to_owned(),
            epoch: 1,
            together_with: Vec::new(),
        };
        object.status = Some(VolumeMoveStatus {
            plan: Some(plan),
            ..VolumeMoveStatus::default()
        });
        let mut volume = ready_volume();
        "node-1".clone_into(&mut volume.spec.node_name);
        set_ready(&mut volume);
        Self {
            object,
            volume: Some(volume),
            retained: None,
            incoming: None,
            snapshots: [None, None],
            is_fragmented: false,
            users: Vec::new(),
            companions: Vec::new(),
            lost: None,
            unavailable: None,
            disk_at: None,
            source: Source::default(),
            is_claimed: true,
            is_to_follow: false,
            now: moment(),
        }
    }

    /// The same with reserved replicas.
    pub(super) fn prepared() -> Self {
        Self {
            retained: Some(replica(ReplicaPurpose::Retained, "node-1", 0)),
            incoming: Some(replica(ReplicaPurpose::Incoming, "node-2", 1)),
            ..Self::decided()
        }
    }

    /// The same while a pod uses the volume, with room for passes.
    pub(super) fn used(cutover: Cutover) -> Self {
        let mut case = Self::prepared();
        case.object.spec.cutover = cutover;
        case.users = vec![pod(Some("node-1"), true)];
        let incoming = case.incoming.as_mut().unwrap();
        incoming.spec.size = Bytes::gib(2);
        incoming.status.get_or_insert_default().reserved = Some(Bytes::gib(2));
        case
    }

    /// The same with a declared target, and the fence in a state.
    pub(super) fn declared(fence: Option<FenceState>) -> Self {
        let mut case = Self::prepared();
        let volume = case.volume.as_mut().unwrap();
        volume.spec.target = Some(MoveTarget {
            node_name: "node-2".to_owned(),
            move_uid: "move-1".to_owned(),
        });
        volume.status.as_mut().unwrap().fence = fence.map(|state| FenceStatus {
            state,
            move_uid: "move-1".to_owned(),
        });
        case
    }

    /// The same after the commit, when the new node has opened the copy.
    pub(super) fn arrived() -> Self {
        let mut case = Self::prepared();
        let volume = case.volume.as_mut().unwrap();
        "node-2".clone_into(&mut volume.spec.node_name);
        volume.spec.epoch = 1;
        let status = volume.status.as_mut().unwrap();
        status.epoch = 1;
        case
    }

    pub(super) fn next(&self) -> Action {
        next(&Seen {
            object: &self.object,
            plan: &self.object.plan().unwrap(),
            volume: self.volume.as_ref(),
            retained: self.retained.as_ref(),
            incoming: self.incoming.as_ref(),
            snapshots: self.snapshots.each_ref().map(Option::as_ref),
            is_fragmented: self.is_fragmented,
            users: &self.users,
            companions: &self.companions,
            lost: self.lost,
            unavailable: self.unavailable,
            disk_at: self.disk_at,
            source: self.source,
            is_claimed: self.is_claimed,
            is_to_follow: self.is_to_follow,
            now: self.now,
        })
    }

    pub(super) fn waits_for(&self) -> Option<Reason> {
        match self.next() {
            Action::Wait(why) => Some(why.reason),
            _ => None,
        }
    }
}

pub(super) fn set_ready(volume: &mut PoolVolume) {
    let ready = ConditionUpdate::reconciled(ConditionType::Ready);
    let conditions = &mut volume.status.get_or_insert_default().conditions;
    condition::set(conditions, &ready, Some(1), moment());
}

/// A replica with a reservation.
pub(super) fn replica(purpose: ReplicaPurpose, node: &str, epoch: u32) -> PoolReplica {
    let mut replica = testing::replica("pvc-1", epoch);
    replica.spec.purpose = purpose;
    node.clone_into(&mut replica.spec.node_name);
    replica.status.get_or_insert_default().reserved = Some(Bytes::gib(1));
    replica
}

/// Lets the copy be complete, and its node able to read it.
pub(super) fn complete(copy: &mut PoolReplica) {
    let status = copy.status.get_or_insert_default();
    status.complete = true;
    let ready = ConditionUpdate::reconciled(ConditionType::Ready);
    condition::set(&mut status.conditions, &ready, Some(1), moment());
}

/// Lets the node have a complete copy of a snapshot.
pub(super) fn received(copy: &mut PoolReplica, image: &str) {
    copy.status.get_or_insert_default().snapshot = Some(ReceivedSnapshot {
        image: image.to_owned(),
        received: moment(),
        seconds: Some(1),
    });
}

pub(super) fn pod(node: Option<&str>, has_started: bool) -> User {
    User {
        namespace: "shop".to_owned(),
        name: "db-0".to_owned(),
        uid: "uid-of-the-pod".to_owned(),
        node: node.map(str::to_owned),
        has_started,
        is_ending: false,
        created: None,
        controller: Some("StatefulSet".to_owned()),
    }
}

pub(super) fn companion(progress: Progress) -> Companion {
    Companion {
        volume: "pvc-2".to_owned(),
        progress,
    }
}
