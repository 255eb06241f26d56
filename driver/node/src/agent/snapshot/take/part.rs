//! Takes the part of a group across nodes that is on this node, in step with the parts on other nodes.
//!
//! *Invariants:* the attempt is compared with that of the group in the API server while the volumes are locked. So a
//! controller that was replaced removes nothing that its successor has taken. No snapshot of a part becomes ready
//! before the group is taken, and none is taken again after that.

use std::time::Duration;

use cistern_client::Chain;
use cistern_crds::{Explanation, PoolSnapshot, PoolSnapshotGroup, Reason};
use cistern_host::snapshot::Barrier;
use kube::ResourceExt as _;
use tokio::time::{sleep, timeout};

use super::{
    admit_all,
    attempt::{Origin, TakeError, TakeResult, not_yet, refused},
    disk,
    reserve::reserve_taken,
};
use crate::agent::{
    Agent, desired::readable, reconcile::Reconciliation, snapshot::status::SnapshotOutcome,
};

/// How long to wait for the API server, and for the watch to show the snapshots.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two looks at what the watch shows.
const LOOK: Duration = Duration::from_millis(50);

/// Which part of which group is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the PoolSnapshotGroup.
    pub group: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Names of its PoolSnapshots on this node.
    pub snapshots: Vec<String>,
}

/// Why a part is not taken. Nothing of it remains but reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Reason and message.
    pub why: Explanation,
    /// Whether another attempt is as useless until a user has changed something.
    pub is_final: bool,
}

/// Takes a part of a group. When it returns, its snapshots are on the disk, and wait for the group to be taken.
pub async fn take_part<B: Barrier + Send + 'static>(
    agent: &Agent,
    part: &Part,
    barrier: B,
) -> Result<(), Refused> {
    let again = |message: String| Refused {
        why: Explanation::new(Reason::SnapshotFailed, message),
        is_final: false,
    };
    match attempt(agent, part, barrier).await {
        Ok(()) => Ok(()),
        Err(TakeError::Ended(TakeResult::Refused(why))) => Err(Refused {
            why,
            is_final: true,
        }),
        Err(TakeError::Ended(TakeResult::NotYet(why))) => Err(Refused {
            why,
            is_final: false,
        }),
        Err(TakeError::Ended(TakeResult::Busy)) => Err(again(
            "another operation works on one of the volumes".to_owned(),
        )),
        Err(TakeError::Ended(TakeResult::Overtaken | TakeResult::Ready(_))) => {
            Err(again("one of the objects has changed meanwhile".to_owned()))
        }
        Err(TakeError::Error(error)) => Err(again(Chain(&error).to_string())),
    }
}

async fn attempt<B: Barrier + Send + 'static>(
    agent: &Agent,
    part: &Part,
    barrier: B,
) -> Result<(), TakeError> {
    let group = current(agent, part).await?;
    let members = timeout(PATIENCE, members(agent, part, &group)).await;
    let mut snapshots = members.map_err(|_| {
        let message = "the watch of this node does not show its snapshots yet";
        not_yet(Reason::SnapshotFailed, message.to_owned())
    })?;
    admit_all(agent, &mut snapshots, Origin::New(group.spec.consistency)).await?;
    if snapshots.iter().any(disk::is_settled) {
        return Err(TakeResult::Overtaken.into());
    }
    let guard = disk::lock_all(agent, &snapshots).await?;
    let consistency = current(agent, part).await?.spec.consistency;
    let (guard, images) = disk::take_part(agent, &snapshots, consistency, barrier, guard).await?;
    for (snapshot, image) in snapshots.iter().zip(&images) {
        if let Err(why) = reserve_taken(agent, snapshot, image)? {
            disk::discard_locked(agent, &snapshots, guard).await?;
            return Err(refused(snapshot, &why));
        }
        let (size, reconciliation) = (image.allocated, Reconciliation::of(agent, snapshot));
        let outcome = SnapshotOutcome::Admitted { size, image: None };
        let written = reconciliation.write_reservation(&outcome).await?;
        written.ok_or(TakeResult::Overtaken)?;
    }
    drop(guard);
    Ok(())
}

/// The group, if this is its attempt and it is not taken.
async fn current(agent: &Agent, part: &Part) -> Result<PoolSnapshotGroup, TakeError> {
    let asked = timeout(PATIENCE, agent.work.groups.api.get_opt(&part.group)).await;
    let silent = |why: String| {
        let message = format!("cannot read PoolSnapshotGroup {}: {why}", part.group);
        not_yet(Reason::SnapshotFailed, message)
    };
    let found = asked
        .map_err(|_| silent("the API server does not answer".to_owned()))?
        .map_err(|error| silent(Chain(&error).to_string()))?;
    let found = found.filter(|group| is_open(group, part.attempt));
    found.ok_or_else(|| TakeResult::Overtaken.into())
}

/// Whether a group is to be taken in this attempt.
fn is_open(group: &PoolSnapshotGroup, attempt: u32) -> bool {
    let spec = &group.spec;
    spec.across_nodes
        && spec.attempt == attempt
        && spec.taken_at.is_none()
        && !spec.deletion_requested
        && group.metadata.deletion_timestamp.is_none()
}

/// The snapshots of the part, once the watch shows all of them.
async fn members(agent: &Agent, part: &Part, group: &PoolSnapshotGroup) -> Vec<PoolSnapshot> {
    loop {
        let found = part.snapshots.iter().map(|name| {
            let copy = || agent.desired.snapshot(name);
            let snapshot = agent.desired.own_writes().read(copy).ok()??;
            let snapshot = readable(&snapshot)?.clone();
            is_member(group, &snapshot).then_some(snapshot)
        });
        if let Some(found) = found.collect::<Option<Vec<_>>>() {
            return found;
        }
        sleep(LOOK).await;
    }
}

fn is_member(group: &PoolSnapshotGroup, snapshot: &PoolSnapshot) -> bool {
    let name = snapshot.name_any();
    let is_named = |member: &cistern_crds::snapshot_group::GroupMember| {
        member.snapshot == name && member.volume == snapshot.spec.source_volume
    };
    snapshot.spec.group_name == Some(group.name_any()) && group.spec.members.iter().any(is_named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, ready_group};

    #[test]
    fn a_group_is_taken_in_its_current_attempt_only_and_once() {
        let mut open = ready_group();
        open.spec.across_nodes = true;
        open.spec.attempt = 2;
        assert!(is_open(&open, 2));
        assert!(!is_open(&open, 1) && !is_open(&open, 3));
        let changes: [fn(&mut PoolSnapshotGroup); 4] = [
            |it| it.spec.across_nodes = false,
            |it| it.spec.taken_at = Some(at(1)),
            |it| it.spec.deletion_requested = true,
            |it| it.metadata.deletion_timestamp = Some(cistern_crds::time::to_kubernetes(at(1))),
        ];
        for change in changes {
            let mut group = open.clone();
            change(&mut group);
            assert!(!is_open(&group, 2), "{group:?}");
        }
    }
}
