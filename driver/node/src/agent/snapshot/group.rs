//! Groups: snapshots of several volumes of this node at one moment.
//!
//! *Invariant:* the group says its moment after every one of its snapshots does, and is never taken
//! a second time.

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionType, PoolSnapshot, PoolSnapshotGroup, PoolSnapshotGroupStatus, Reason,
    condition::Finding,
};
use kube::{ResourceExt as _, runtime::controller::Action};

use super::take::{Taken, take};
use crate::agent::{
    Agent,
    desired::readable,
    outcome::{conclude, deletion_held},
    pass::LOCKED,
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
        let name = group.name_any();
        if is_over(group) {
            write(agent, group, None).await?;
            return Ok(Action::await_change());
        }
        let Some(members) = members(agent, group) else {
            // Each of them asks for a pass when it comes.
            return Ok(Action::await_change());
        };
        let taken = take(agent, members, group.spec.consistency).await?;
        write(agent, group, Some(&taken)).await?;
        let retries = &agent.groups.retries;
        Ok(match taken {
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
        })
    }

    fn gone(_: &Agent, _: &str) {}
}

/// Whether nothing of the group is to be taken any more.
fn is_over(group: &PoolSnapshotGroup) -> bool {
    let status = group.status.as_ref();
    let is_taken = status.is_some_and(|status| status.creation_time.is_some());
    is_taken || group.spec.deletion_requested || group.metadata.deletion_timestamp.is_some()
}

/// The snapshots of a group; none before all of them are seen, each as the agent wrote it last.
fn members(agent: &Agent, group: &PoolSnapshotGroup) -> Option<Vec<PoolSnapshot>> {
    let name = group.name_any();
    let members = group.spec.members.iter().map(|member| {
        let copy = || agent.desired.snapshot(&member.snapshot);
        let snapshot = agent.desired.own_writes().read(copy).ok()??;
        let snapshot = readable(&snapshot)?;
        let is_ours = snapshot.spec.group_name.as_ref() == Some(&name)
            && snapshot.spec.source_volume == member.volume;
        is_ours.then(|| snapshot.clone())
    });
    members.collect()
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
        assert!(is_over(&group));
        assert_eq!(after(&group, None, at(302)), taken);
    }

    #[test]
    fn r07_nothing_is_taken_for_a_group_that_is_to_go() {
        assert!(!is_over(&wanted_group()));
        let mut unwanted = wanted_group();
        unwanted.spec.deletion_requested = true;
        assert!(is_over(&unwanted));
        let mut leaving = wanted_group();
        leaving.metadata.deletion_timestamp = Some(cistern_crds::time::to_kubernetes(at(1)));
        assert!(is_over(&leaving));
    }
}
