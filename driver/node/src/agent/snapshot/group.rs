//! Groups: snapshots of several volumes of this node at one moment.
//!
//! *Invariant:* the group reports its moment after every snapshot of it does, and is never taken a
//! second time. Objects that are restored from a backup come in any order, so a group may have its
//! moment before its snapshots. Then each of them adopts its image.

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionType, PoolSnapshot, PoolSnapshotGroup, PoolSnapshotGroupStatus,
    condition::ConditionUpdate,
};
use kube::{ResourceExt as _, runtime::controller::Action};

use super::take::{Origin, TakeResult, take};
use crate::agent::{
    Agent,
    desired::readable,
    outcome::{apply_updates, deletion_held},
    plan::{ObjectPhase, phase},
    reconcile::LOCKED,
    work::{Error, Reconcile, Work},
};
use crate::image::ImageObject as _;

/// The conditions of a group.
const CONDITIONS: [ConditionType; 2] = [ConditionType::Ready, ConditionType::DeletionHeld];

impl Reconcile for PoolSnapshotGroup {
    fn pool(&self) -> Option<&str> {
        None
    }

    fn work(agent: &Agent) -> &Work<Self> {
        &agent.work.groups
    }

    async fn reconcile(agent: &Agent, group: &Self) -> Result<Action, Error> {
        if is_being_deleted(group) {
            write(agent, group, None).await?;
            return Ok(Action::await_change());
        }
        if let Some(moment) = moment(group).filter(|_| !group.spec.across_nodes) {
            write(agent, group, None).await?;
            let adopted = adopt(agent, group, moment).await?;
            return Ok(next(agent, group, &adopted));
        }
        if group.spec.across_nodes {
            // The controller takes it, and then says when it was taken.
            let taken = group.spec.taken_at.map(TakeResult::Ready);
            write(agent, group, taken.as_ref()).await?;
            return Ok(Action::await_change());
        }
        // Each member enqueues the group when it arrives.
        let members: Option<Vec<_>> = members(agent, group).collect();
        let Some(members) = members else {
            return Ok(Action::await_change());
        };
        // The watches of the two kinds are not in step: the snapshots may show before the time that the group was taken.
        if !agent.work.groups.is_latest(group).await? {
            return Ok(next(agent, group, &TakeResult::Overtaken));
        }
        let taken = take(agent, members, Origin::New(group.spec.consistency)).await?;
        write(agent, group, Some(&taken)).await?;
        Ok(next(agent, group, &taken))
    }
}

/// The moment at which the snapshots of the group were taken. None before that.
fn moment(group: &PoolSnapshotGroup) -> Option<DateTime<Utc>> {
    group.status.as_ref()?.creation_time
}

/// Whether the group is being deleted.
fn is_being_deleted(group: &PoolSnapshotGroup) -> bool {
    group.spec.deletion_requested || group.metadata.deletion_timestamp.is_some()
}

/// Lets each snapshot of a taken group adopt its image, if it has not yet. A snapshot whose image is
/// missing does not block the others.
async fn adopt(
    agent: &Agent,
    group: &PoolSnapshotGroup,
    moment: DateTime<Utc>,
) -> Result<TakeResult, Error> {
    let mut result = TakeResult::Ready(moment);
    for member in members(agent, group).flatten().filter(awaits_its_image) {
        match take(agent, vec![member], Origin::Existing).await? {
            TakeResult::Ready(_) => {}
            other => result = other,
        }
    }
    Ok(result)
}

/// Whether a snapshot of a taken group has not adopted its image yet.
fn awaits_its_image(snapshot: &PoolSnapshot) -> bool {
    matches!(phase(snapshot), ObjectPhase::Admit | ObjectPhase::Admitted)
        && !snapshot.is_announced()
}

/// When to reconcile a group again after an attempt.
fn next(agent: &Agent, group: &PoolSnapshotGroup, taken: &TakeResult) -> Action {
    let name = group.name_any();
    let retries = &agent.work.groups.retries;
    match taken {
        TakeResult::Busy => Action::requeue(LOCKED),
        TakeResult::Overtaken => Action::await_change(),
        TakeResult::Ready(_) | TakeResult::Refused(_) => {
            retries.forget(&name);
            Action::await_change()
        }
        TakeResult::NotYet(why) => {
            let wait = retries.failed(name.clone());
            tracing::warn!(
                group = name,
                reason = %why.reason,
                error = %why,
                ?wait,
                "the group does not match its spec, retrying"
            );
            Action::requeue(wait)
        }
    }
}

/// The snapshots of a group, each as the agent wrote it last. None in place of a snapshot that is not
/// in the watch.
fn members(agent: &Agent, group: &PoolSnapshotGroup) -> impl Iterator<Item = Option<PoolSnapshot>> {
    let name = group.name_any();
    group.spec.members.iter().map(move |member| {
        let copy = || agent.desired.snapshot(&member.snapshot);
        let snapshot = agent.desired.own_writes().read(copy).ok()??;
        let snapshot = readable(&snapshot)?;
        let is_ours = snapshot.spec.group_name.as_ref() == Some(&name)
            && snapshot.spec.source_volume == member.volume;
        is_ours.then(|| snapshot.clone())
    })
}

/// Writes the status of a group if it changed.
async fn write(
    agent: &Agent,
    group: &PoolSnapshotGroup,
    taken: Option<&TakeResult>,
) -> Result<(), Error> {
    let status = after(group, taken, (agent.node.now)());
    if group.status.as_ref() != Some(&status) {
        let written = PoolSnapshotGroup {
            status: Some(status),
            ..group.clone()
        };
        // A change of the object triggers the next reconcile.
        agent.work.groups.write(&written).await?;
    }
    Ok(())
}

/// The status of a group after an attempt to take it.
fn after(
    group: &PoolSnapshotGroup,
    taken: Option<&TakeResult>,
    now: DateTime<Utc>,
) -> PoolSnapshotGroupStatus {
    let mut status = group.status.clone().unwrap_or_default();
    let kind = ConditionType::Ready;
    let ready = match taken {
        Some(TakeResult::Ready(moment)) => {
            status.creation_time = Some(*moment);
            Some(ConditionUpdate::reconciled(kind))
        }
        Some(TakeResult::Refused(why) | TakeResult::NotYet(why)) => {
            Some(ConditionUpdate::new(kind, false, why.reason, &why.message))
        }
        // The result is not known yet.
        Some(TakeResult::Busy | TakeResult::Overtaken) | None => None,
    };
    status.observed_generation = group.metadata.generation;
    let held = deletion_held(group, group.spec.deletion_requested);
    let findings = ready.into_iter().chain([held]);
    apply_updates(&mut status.conditions, group, findings, &CONDITIONS, now);
    status
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Reason, condition};

    use super::*;
    use crate::testing::{at, ready_group};

    fn wanted_group() -> PoolSnapshotGroup {
        PoolSnapshotGroup {
            status: None,
            ..ready_group()
        }
    }

    fn reason(status: &PoolSnapshotGroupStatus) -> String {
        let ready = condition::find(&status.conditions, ConditionType::Ready).unwrap();
        ready.reason.clone()
    }

    #[test]
    fn a_group_reports_its_moment_once_and_why_it_has_none() {
        let mut group = wanted_group();
        let why = cistern_crds::Explanation {
            reason: Reason::NoSpace,
            message: "volume pvc-1: full".into(),
        };
        let refused = after(&group, Some(&TakeResult::Refused(why)), at(0));
        assert_eq!(
            (refused.creation_time, reason(&refused)),
            (None, "NoSpace".into())
        );
        // The result is not known yet.
        group.status = Some(refused.clone());
        assert_eq!(after(&group, Some(&TakeResult::Busy), at(9)), refused);
        let taken = after(&group, Some(&TakeResult::Ready(at(300))), at(301));
        assert_eq!(taken.creation_time, Some(at(300)));
        group.status = Some(taken.clone());
        assert_eq!(moment(&group), Some(at(300)));
        assert_eq!(after(&group, None, at(302)), taken);
    }

    #[test]
    fn r07_no_snapshot_is_taken_for_a_group_that_is_deleted() {
        assert!(!is_being_deleted(&wanted_group()));
        let mut unwanted = wanted_group();
        unwanted.spec.deletion_requested = true;
        assert!(is_being_deleted(&unwanted));
        let mut leaving = wanted_group();
        leaving.metadata.deletion_timestamp = Some(cistern_crds::time::to_kubernetes(at(1)));
        assert!(is_being_deleted(&leaving));
    }
}
