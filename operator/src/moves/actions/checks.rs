//! What the objects of a move say. Pure.

use cistern_crds::{
    Bytes, ConditionType, Cutover, Explanation, HasImage as _, MovePlan, PoolReplica, PoolVolume,
    Provisioning, Reason, ReplicaPurpose, VolumeMove, condition,
};

use super::{Action, Seen};
use crate::moves::{
    passes,
    removal::{self, Removal},
};

/// Removes a replica, after its image.
pub(in crate::moves) fn clear_one(replica: &PoolReplica) -> Action {
    let purpose = replica.spec.purpose;
    match removal::next(replica, "its image of the volume") {
        Removal::Request => Action::Remove(purpose),
        Removal::Wait(why) => Action::Wait(why),
        Removal::Release => Action::Release(purpose),
    }
}

/// Makes room for a replica that has another size or provisioning, or another move. That of the node that has the
/// volume owns the volume's own image, which stays.
pub(super) fn discard(seen: &Seen<'_>, replica: &PoolReplica) -> Action {
    match replica.spec.purpose {
        ReplicaPurpose::Retained => Action::Release(ReplicaPurpose::Retained),
        ReplicaPurpose::Incoming => {
            passes::remove_snapshots(seen).unwrap_or_else(|| clear_one(replica))
        }
    }
}

/// Whether the new node has all data of the volume, and can read it.
pub(in crate::moves) fn is_usable(copy: &PoolReplica) -> bool {
    copy.is_complete() && condition::holds(copy.conditions(), ConditionType::Ready)
}

/// Why the new node cannot read the copy that it has, as it reports. None if it can. That it cannot receive more of
/// the volume is no such reason.
pub(super) fn unreadable(copy: &PoolReplica) -> Option<&str> {
    let found = condition::failing(copy.conditions(), ConditionType::Ready)?;
    let is_failure = matches!(
        Reason::parse(&found.reason)?,
        Reason::PoolUnknown
            | Reason::PoolNotReady
            | Reason::ProvisioningFailed
            | Reason::ImageMissing
            | Reason::IdentityConflict
            | Reason::FilesystemConflict
    );
    is_failure.then_some(&*found.message)
}

/// Whether a volume can begin to move.
pub(in crate::moves) fn is_movable(volume: &PoolVolume) -> Result<(), Explanation> {
    let refuse = |why: &str| Err(Explanation::new(Reason::NotMovable, why));
    let Some(status) = volume.current_status() else {
        return refuse("the volume's node has not reported it yet");
    };
    if volume.spec.deletion_requested {
        return refuse("the deletion of the volume is requested");
    }
    match condition::find(&status.conditions, ConditionType::Ready) {
        Some(_) if volume.is_ready() => Ok(()),
        Some(ready) => refuse(&format!("the volume is not ready: {}", ready.message)),
        None => refuse("the volume's node has not reported it yet"),
    }
}

/// The bytes that a node has to reserve for the volume.
pub(in crate::moves) fn size_of(volume: &PoolVolume) -> Bytes {
    let size = volume.reserved().unwrap_or(volume.spec.size);
    size.saturating_add(volume.header())
}

/// The bytes that a node has to reserve for a replica. A pass is applied to a clone of the copy before it, and both may
/// differ in all blocks.
pub(in crate::moves) fn room_for(
    object: &VolumeMove,
    volume: &PoolVolume,
    purpose: ReplicaPurpose,
) -> Bytes {
    let size = size_of(volume);
    if purpose == ReplicaPurpose::Incoming && is_copied_while_used(object) {
        return size.saturating_add(size);
    }
    size
}

/// Whether the volume is to be copied while pods use it, and can be.
pub(in crate::moves) fn is_copied_while_used(object: &VolumeMove) -> bool {
    let status = object.status.as_ref();
    match object.spec.cutover {
        Cutover::WhenUnused => false,
        Cutover::Automatic | Cutover::Manual => status.is_none_or(|it| it.not_copied.is_none()),
        Cutover::Never => true,
    }
}

/// Why a replica has no room yet for what the volume needs.
pub(super) fn unreserved(replica: &PoolReplica, needed: Bytes) -> Option<Explanation> {
    let reserved = replica.reserved();
    if reserved >= Some(needed) {
        return None;
    }
    let node = &replica.spec.node_name;
    // One that has bytes already says otherwise why it gets no more.
    let says = match reserved {
        None => ConditionType::Admitted,
        Some(_) => ConditionType::Ready,
    };
    let refused = condition::failing(replica.conditions(), says);
    Some(refused.map_or_else(
        || {
            Explanation::new(
                Reason::Pending,
                format!("node {node} reserves room for the volume"),
            )
        },
        |refused| {
            let reason = Reason::parse(&refused.reason).unwrap_or(Reason::NoSpace);
            Explanation::new(reason, format!("node {node}: {}", refused.message))
        },
    ))
}

/// Whether the new node has not reserved the blocks of a volume that is thick, or may become so. Nothing undoes a commit.
pub(in crate::moves) fn is_too_thin(volume: &PoolVolume, copy: &PoolReplica) -> bool {
    let requested = volume.spec.attributes.provisioning;
    let admitted = volume.admitted_attributes().provisioning;
    let is_thick = [requested, admitted].contains(&Provisioning::Thick);
    is_thick && copy.spec.provisioning != Provisioning::Thick
}

/// Why the copy is not complete yet: what the new node says of it, or else that it is being copied.
pub(in crate::moves) fn copying(plan: &MovePlan, incoming: &PoolReplica) -> Explanation {
    let (from, to) = (&plan.from_node, &plan.to_node);
    let found = condition::failing(incoming.conditions(), ConditionType::Ready);
    found.map_or_else(
        || {
            let message = format!("the volume is copied from node {from} to node {to}");
            Explanation::new(Reason::Copying, message)
        },
        |found| {
            let reason = Reason::parse(&found.reason).unwrap_or(Reason::Copying);
            Explanation::new(reason, format!("node {to}: {}", found.message))
        },
    )
}
