//! Groups: snapshots of several volumes of this node at one moment.
//!
//! *Invariant:* the group says its moment after every one of its snapshots does, and is never taken
//! a second time. Objects that are restored from a backup come in any order, so a group may have its
//! moment before its snapshots: then each of them adopts its image.

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionType, PoolSnapshot, PoolSnapshotGroup, PoolSnapshotGroupStatus, Reason,
    condition::Finding,
};
use kube::{ResourceExt as _, runtime::controller::Action};

use super::take::{Origin, Taken, take};
use crate::agent::{
    Agent,
    desired::readable,
    outcome::{Stage, conclude, deletion_held, stage},
    pass::{Kept as _, LOCKED},
    work::{Error, Kind, Work},
};

/// The conditions of a group.
const CONDITIONS: [ConditionType; 2] = [ConditionType::Ready, ConditionType::DeletionHeld];

impl Kind for PoolSnapshotGroup {
    const NOUN: &'static str = "group of snapshots";
    const CLAIM: &'static str = "VolumeGroupSnapshot";

    fn pool(&self) -> Option<&str> {
        None
    }

    fn work(agent: &Agent) -> &Work<Self> {
        &agent.groups
    }

    async fn pass(agent: &Agent, group: &Self) -> Result<Action, Error> {
        if is_unwanted(group) {
            write(agent, group, None).await?;
            return Ok(Action::await_change());
        }
        if let Some(moment) = moment(group) {
            write(agent, group, None).await?;
            let adopted = adopt(agent, group, moment).await?;
            return Ok(next(agent, group, &adopted));
        }
        // Each member asks for a pass when it comes.
        let members: Option<Vec<_>> = members(agent, group).collect();
        let Some(members) = members else {
            return Ok(Action::await_change());
        };
        let taken = take(agent, members, Origin::New(group.spec.consistency)).await?;
        write(agent, group, Some(&taken)).await?;
        Ok(next(agent, group, &taken))
    }

    fn gone(_: &Agent, _: &str) {}
}

/// The moment of a group that was taken: nothing of it is taken any more.
fn moment(group: &PoolSnapshotGroup) -> Option<DateTime<Utc>> {
    group.status.as_ref()?.creation_time
}

/// Whether the group is being deleted.
fn is_unwanted(group: &PoolSnapshotGroup) -> bool {
    group.spec.deletion_requested || group.metadata.deletion_timestamp.is_some()
}

/// Has each snapshot of a group that was taken adopt its image, as far as it has not yet. One whose
/// image is missing keeps no other from its own.
async fn adopt(
    agent: &Agent,
    group: &PoolSnapshotGroup,
    moment: DateTime<Utc>,
) -> Result<Taken, Error> {
    let mut all = Taken::Ready(moment);
    for member in members(agent, group).flatten().filter(is_to_be_adopted) {
        match take(agent, vec![member], Origin::Existing).await? {
            Taken::Ready(_) => {}
            not => all = not,
        }
    }
    Ok(all)
}

/// Whether a snapshot of a group that was taken waits for its image.
fn is_to_be_adopted(snapshot: &PoolSnapshot) -> bool {
    matches!(stage(snapshot), Stage::Admit | Stage::Admitted) && !snapshot.is_announced()
}

/// When to come back to a group after an attempt.
fn next(agent: &Agent, group: &PoolSnapshotGroup, taken: &Taken) -> Action {
    let name = group.name_any();
    let retries = &agent.groups.retries;
    match taken {
        Taken::Busy => Action::requeue(LOCKED),
        Taken::Overtaken => Action::await_change(),
        Taken::Ready(_) | Taken::Refused(_) => {
            retries.forget(&name);
            Action::await_change()
        }
        Taken::NotYet(why) => {
            let wait = retries.failed(name.clone());
            tracing::warn!(group = name, ?why, ?wait, "not as desired");
            Action::requeue(wait)
        }
    }
}

/// The snapshots of a group, each as the agent wrote it last; none in place of one that is not seen.
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

/// Writes what became of a group, if that is news.
async fn write(
    agent: &Agent,
    group: &PoolSnapshotGroup,
    taken: Option<&Taken>,
) -> Result<(), Error> {
    let status = after(group, taken, (agent.now)());
    if group.status.as_ref() != Some(&status) {
        let written = PoolSnapshotGroup {
            status: Some(status),
            ..group.clone()
        };
        // One that has changed meanwhile brings us back.
        agent.groups.write(&written).await?;
    }
    Ok(())
}

/// The status of a group after an attempt to take it.
fn after(
    group: &PoolSnapshotGroup,
    taken: Option<&Taken>,
    now: DateTime<Utc>,
) -> PoolSnapshotGroupStatus {
    let mut status = group.status.clone().unwrap_or_default();
    let not =
        |reason, message: &str| Some(Finding::new(ConditionType::Ready, false, reason, message));
    let ready = match taken {
        Some(Taken::Ready(moment)) => {
            status.creation_time = Some(*moment);
            Some(Finding::new(
                ConditionType::Ready,
                true,
                Reason::AsDesired,
                "",
            ))
        }
        Some(Taken::Refused(why) | Taken::NotYet(why)) => not(why.reason, &why.message),
        // It is not told yet, or not for the last time.
        Some(Taken::Busy | Taken::Overtaken) | None => None,
    };
    status.observed_generation = group.metadata.generation;
    let held = deletion_held(group, group.spec.deletion_requested);
    let findings = ready.into_iter().chain([held]);
    conclude(&mut status.conditions, group, findings, &CONDITIONS, now);
    status
}

#[cfg(test)]
mod tests {
    use cistern_crds::condition;

    use super::{super::take::Why, *};
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
    fn a_group_says_its_moment_once_and_why_it_has_none() {
        let mut group = wanted_group();
        let why = Why {
            reason: Reason::NoSpace,
            message: "volume pvc-1: full".into(),
        };
        let refused = after(&group, Some(&Taken::Refused(why)), at(0));
        assert_eq!(
            (refused.creation_time, reason(&refused)),
            (None, "NoSpace".into())
        );
        // Whether it is taken will be told in a moment.
        group.status = Some(refused.clone());
        assert_eq!(after(&group, Some(&Taken::Busy), at(9)), refused);
        let taken = after(&group, Some(&Taken::Ready(at(300))), at(301));
        assert_eq!(taken.creation_time, Some(at(300)));
        group.status = Some(taken.clone());
        assert_eq!(moment(&group), Some(at(300)));
        assert_eq!(after(&group, None, at(302)), taken);
    }

    #[test]
    fn r07_nothing_is_taken_for_a_group_that_is_to_go() {
        assert!(!is_unwanted(&wanted_group()));
        let mut unwanted = wanted_group();
        unwanted.spec.deletion_requested = true;
        assert!(is_unwanted(&unwanted));
        let mut leaving = wanted_group();
        leaving.metadata.deletion_timestamp = Some(cistern_crds::time::to_kubernetes(at(1)));
        assert!(is_unwanted(&leaving));
    }
}
