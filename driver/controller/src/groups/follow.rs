//! Follows a group until its snapshots are taken, refused or removed.
//!
//! ```text
//! group ─▶ a snapshot for each volume ─▶ agent admits all and takes them together ─▶ taken
//!                                    └─▶ agent refuses one ─▶ all of it is removed ─▶ refused
//! ```
//!
//! *Invariant:* the controller waits for an admitted group and never withdraws it.

use std::collections::BTreeSet;

use cistern_crds::{
    ConditionStatus, ConditionType, Explanation, HasImage, PoolSnapshot, PoolSnapshotGroup, Reason,
    condition, removal::RemovalStep, snapshot_group::GroupMember,
};
use futures::future::join_all;
use kube::ResourceExt as _;

use super::{Error, Groups, ListedGroup, decide::Decision, is_member, request};
use crate::objects::{
    self, Objects,
    advice::advice,
    ensure::{FollowOutcome, Lifecycle},
    in_flight::Operation,
    listed_snapshot::ListedSnapshot,
    listing::Listed as _,
    named,
    not_ready::not_ready,
    silence::silent,
};

impl Lifecycle<ListedGroup> for Groups {
    type Object = PoolSnapshotGroup;
    type Refusal = Error;
    type Error = Error;

    fn objects(&self) -> &Objects<PoolSnapshotGroup> {
        &self.objects
    }

    /// Creates the group's snapshots, and waits until the agent has taken or refused them all.
    async fn follow(
        &self,
        mut group: PoolSnapshotGroup,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<FollowOutcome<ListedGroup, PoolSnapshotGroup, Error>, Error> {
        let snapshots = match self.ask_for_snapshots(&group).await {
            // The volumes have changed since the group was requested, or another snapshot has the name of one of its own.
            Err(
                why @ Error::Object(
                    objects::Error::NotFound { .. } | objects::Error::Different { .. },
                ),
            ) => {
                return Ok(FollowOutcome::Withdraw(Box::new(group), Some(why)));
            }
            snapshots => snapshots?,
        };
        let Some(snapshots) = snapshots else {
            return Ok(FollowOutcome::Withdraw(Box::new(group), None));
        };
        if group.spec.across_nodes && progress(&group) != GroupProgress::Leaving {
            match self.take_across(group, &snapshots, operation).await? {
                Decision::Taken(taken) => group = taken,
                Decision::Changed => return Ok(FollowOutcome::Changed),
                Decision::Refused(group, why) => {
                    return Ok(FollowOutcome::Withdraw(Box::new(group), Some(why)));
                }
            }
            self.publish(&group).await?;
        }
        self.until_taken(group, &snapshots, operation).await
    }

    /// Removes a group that is not taken. Returns false if it was taken meanwhile, because a caller
    /// may know it.
    async fn withdraw(
        &self,
        group: PoolSnapshotGroup,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<bool, Error> {
        let mut current = Some(group);
        // No agent takes a group whose deletion is requested.
        while let Some(group) = current.take_if(|group| !group.spec.deletion_requested) {
            if is_taken(&group) {
                return Ok(false);
            }
            current = self.objects.advance(&group, RemovalStep::Ask).await?;
        }
        if let Some(group) = current {
            self.finish_removal(group, operation).await?;
        }
        Ok(true)
    }

    async fn finish_removal(
        &self,
        group: PoolSnapshotGroup,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<(), Error> {
        let waits_for = match self.remove(group, operation).await {
            Ok(None) => return Ok(()),
            Ok(Some(held)) => format!(
                "the finalizers {} to be removed from an old object",
                held.finalizers().join(", ")
            ),
            // This error would be final for the caller, but objects remain.
            Err(Error::Object(in_use @ objects::Error::InUse { .. })) => {
                format!("the end of an old one: {in_use}")
            }
            Err(error) => return Err(error),
        };
        operation.note(waits_for);
        Err(operation.pending().into())
    }
}

impl Groups {
    /// Waits until the agent has taken or refused the snapshots of a group. Fails if the agent is silent, or if the pool
    /// of an admitted snapshot stays not ready.
    async fn until_taken(
        &self,
        mut group: PoolSnapshotGroup,
        snapshots: &[PoolSnapshot],
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<FollowOutcome<ListedGroup, PoolSnapshotGroup, Error>, Error> {
        let mut nodes = self.objects.nodes().subscribe();
        loop {
            let why = match progress(&group) {
                GroupProgress::Taken => {
                    let taken = self.taken(&group, operation).await;
                    return taken.map(FollowOutcome::Made);
                }
                GroupProgress::Leaving => return Ok(FollowOutcome::Changed),
                GroupProgress::Refused(why) => Some(why),
                GroupProgress::Waits(waits_for) => {
                    operation.note(waits_for);
                    self.unavailable(snapshots)
                }
            };
            // A group that a user deleted is never taken: it is removed and created again. An
            // admitted group stays, because some of its snapshots may be taken.
            let is_hopeless = why.is_some() || group.metadata.deletion_timestamp.is_some();
            let mut admitted = Vec::new();
            if is_hopeless {
                admitted = self.admitted(&group).await?;
                if admitted.is_empty() {
                    let node = &group.spec.node_name;
                    let why = why.map(|why| refused(&group, node, snapshots, why));
                    return Ok(FollowOutcome::Withdraw(Box::new(group), why));
                }
            }
            let node = &group.spec.node_name;
            if let Some(silence) = self.objects.nodes().silence(node) {
                return Err(silent(&group, silence).into());
            }
            if let Some(why) = why {
                operation.note(format!("node {node} to go on: {why}"));
            }
            let pools: Vec<_> = admitted
                .iter()
                .map(|snapshot| (snapshot.node_name(), snapshot.pool_name()))
                .collect();
            tokio::select! {
                pool = self.objects.nodes().until_not_ready(&pools) => {
                    return Err(not_ready(&group, pool).into());
                }
                change = operation.change(&group) => match change {
                    Some(changed) => group = changed,
                    None => return Ok(FollowOutcome::Changed),
                },
                // The sender lives as long as `self`.
                _ = nodes.changed() => {}
            }
        }
    }

    /// Ensures that a PoolSnapshot exists for each volume of a group that is not taken yet. Returns None if a volume is
    /// not on the node of its group any more.
    async fn ask_for_snapshots(
        &self,
        group: &PoolSnapshotGroup,
    ) -> Result<Option<Vec<PoolSnapshot>>, Error> {
        match progress(group) {
            GroupProgress::Waits(_) => {}
            GroupProgress::Taken | GroupProgress::Leaving | GroupProgress::Refused(..) => {
                return Ok(Some(Vec::new()));
            }
        }
        let members = group.spec.members.iter();
        // No request is given up: it could create a snapshot after the group is removed.
        let snapshots = join_all(members.map(|member| self.ask_for_snapshot(group, member)));
        snapshots.await.into_iter().collect()
    }

    async fn ask_for_snapshot(
        &self,
        group: &PoolSnapshotGroup,
        member: &GroupMember,
    ) -> Result<Option<PoolSnapshot>, Error> {
        let snapshots = self.snapshots.objects();
        loop {
            match snapshots.find(&member.snapshot).await? {
                // It belongs to an older group of this name, whose removal was interrupted.
                Some(snapshot) if snapshot.spec.deletion_requested => {
                    let mut operation = snapshots.begin(&member.snapshot)?;
                    snapshots.finish_removal(snapshot, &mut operation).await?;
                    continue;
                }
                Some(snapshot) if is_member(group, &snapshot) => return Ok(Some(snapshot)),
                Some(_) => {
                    return Err(objects::Error::Different {
                        object: named::<PoolSnapshot>(&member.snapshot),
                        difference: format!(
                            "it is not of {}",
                            named::<PoolSnapshotGroup>(&group.name_any())
                        ),
                    }
                    .into());
                }
                None => {}
            }
            let (volume, image) = self.snapshots.volume(&member.volume).await?;
            if !group.spec.across_nodes && volume.spec.node_name != group.spec.node_name {
                return Ok(None);
            }
            let desired = request::member(group, &volume, &image);
            if let Some(snapshot) = snapshots.create(&desired).await? {
                return Ok(Some(snapshot));
            }
        }
    }

    /// The listed fields of a taken group, with the current state of all of its snapshots (CGS-09).
    ///
    /// Fails if one of them is gone, or if the agent of its node is silent or its pool is not ready before the agent has
    /// published it.
    async fn taken(
        &self,
        group: &PoolSnapshotGroup,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<ListedGroup, Error> {
        let mut snapshots = Vec::new();
        for member in &group.spec.members {
            let id = &member.snapshot;
            let published = self.published(group, id, operation).await?;
            let missing = || objects::Error::Different {
                object: named::<PoolSnapshotGroup>(&group.name_any()),
                difference: format!("its snapshot {id} was removed"),
            };
            snapshots.push(published.ok_or_else(missing)?);
        }
        for member in &group.spec.members {
            self.snapshots.until_shown(&member.snapshot, true).await;
        }
        let waits = || objects::Error::Pending {
            object: named::<PoolSnapshotGroup>(&group.name_any()),
            waits_for: "its snapshots".to_owned(),
        };
        Ok(ListedGroup::of(group, &snapshots).ok_or_else(waits)?)
    }

    /// Waits until a snapshot of a taken group is published: each agent does this for its own. Returns None if it is gone.
    async fn published(
        &self,
        group: &PoolSnapshotGroup,
        id: &str,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<Option<PoolSnapshot>, Error> {
        let snapshots = self.snapshots.objects();
        let mut waiting = snapshots.begin(id)?;
        let mut current = snapshots.find(id).await?;
        while let Some(snapshot) = current.take_if(|it| is_member(group, it)) {
            if ListedSnapshot::of(&snapshot).is_some() {
                return Ok(Some(snapshot));
            }
            operation.note(format!(
                "node {} to publish snapshot {id}",
                snapshot.node_name()
            ));
            current = match snapshots.change(&snapshot, &mut waiting).await? {
                Some(changed) => Some(changed),
                None => snapshots.find_again(&snapshot).await?,
            };
        }
        Ok(None)
    }

    /// Why the node takes no snapshot; None if it does.
    pub(super) fn unavailable(&self, snapshots: &[PoolSnapshot]) -> Option<Explanation> {
        snapshots.iter().find_map(|snapshot| {
            let (node, pool) = (snapshot.node_name(), snapshot.pool_name());
            self.objects.nodes().unavailable(node, pool)
        })
    }

    /// The snapshots of the group that an agent has admitted. If there is one, the agent must finish the group.
    async fn admitted(&self, group: &PoolSnapshotGroup) -> Result<Vec<PoolSnapshot>, Error> {
        let mut snapshots = self.snapshots_of(group).await?;
        snapshots.retain(|snapshot| snapshot.reserved().is_some());
        Ok(snapshots)
    }
}

/// Progress of taking a group.
#[derive(Debug, PartialEq, Eq)]
enum GroupProgress {
    Taken,
    /// Its deletion is requested.
    Leaving,
    /// The agent refused it.
    Refused(Explanation),
    /// The group waits for this event.
    Waits(String),
}

fn progress(group: &PoolSnapshotGroup) -> GroupProgress {
    let status = group.status.clone().unwrap_or_default();
    if group.spec.deletion_requested {
        return GroupProgress::Leaving;
    }
    // A group that was taken counts as taken, regardless of later changes.
    if is_taken(group) {
        return GroupProgress::Taken;
    }
    let node = &group.spec.node_name;
    let Some(ready) = condition::find(&status.conditions, ConditionType::Ready) else {
        return GroupProgress::Waits(format!("the agent of node {node} to take it"));
    };
    match Reason::parse(&ready.reason) {
        Some(reason)
            if reason.refuses_snapshot() && ready.status == ConditionStatus::False.as_str() =>
        {
            GroupProgress::Refused(Explanation::new(reason, &*ready.message))
        }
        Some(_) | None => {
            GroupProgress::Waits(format!("{}: node {node} to take it", ready.message))
        }
    }
}

/// Whether the group was taken, so that a caller may have received it in a response.
fn is_taken(group: &PoolSnapshotGroup) -> bool {
    let status = group.status.as_ref();
    group.spec.taken_at.is_some() || status.is_some_and(|status| status.creation_time.is_some())
}

/// Why a node does not take a group.
pub(super) fn refused(
    group: &PoolSnapshotGroup,
    node: &str,
    snapshots: &[PoolSnapshot],
    why: Explanation,
) -> Error {
    let pools: BTreeSet<&str> = snapshots.iter().map(HasImage::pool_name).collect();
    let pools: Vec<&str> = pools.into_iter().collect();
    Error::Refused {
        group: group.name_any(),
        node: node.to_owned(),
        advice: advice(why.reason, &pools.join(", ")),
        why,
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{PoolSnapshotGroupStatus, condition::ConditionUpdate};

    use super::*;
    use crate::{groups::request::tests::wanted, testing::at};

    fn said(status: bool, reason: Reason) -> PoolSnapshotGroup {
        let mut group = wanted("daily", &["a", "b"]).on(&["n1"].into());
        let mut status_of_group = PoolSnapshotGroupStatus::default();
        let finding =
            ConditionUpdate::new(ConditionType::Ready, status, reason, "the agent's words");
        condition::set(&mut status_of_group.conditions, &finding, None, at(0));
        group.status = Some(status_of_group);
        group
    }

    #[test]
    fn a_group_is_taken_once_it_has_its_moment_whatever_happens_to_it_later() {
        let mut group = said(false, Reason::ImageMissing);
        group.status.as_mut().unwrap().creation_time = Some(at(5));
        assert_eq!(progress(&group), GroupProgress::Taken);
        group.spec.deletion_requested = true;
        assert_eq!(progress(&group), GroupProgress::Leaving);
    }

    #[test]
    fn a_refusal_carries_the_agents_words_and_what_is_tried_again_is_none() {
        for reason in [
            Reason::NoSpace,
            Reason::SnapshotLimitReached,
            Reason::TooManyExtents,
            Reason::NotInVolumeGroup,
            Reason::SourceMissing,
            Reason::FreezeFailed,
            Reason::PoolUnknown,
            Reason::PoolNotReady,
            Reason::IdentityConflict,
        ] {
            let refused = GroupProgress::Refused(Explanation::new(reason, "the agent's words"));
            assert_eq!(progress(&said(false, reason)), refused);
        }
        for reason in [Reason::Pending, Reason::SnapshotFailed] {
            let waits = progress(&said(false, reason));
            assert!(matches!(&waits, GroupProgress::Waits(said) if said.contains("words")));
        }
        let fresh = wanted("daily", &["a"]).on(&["n1"].into());
        assert!(matches!(progress(&fresh), GroupProgress::Waits(_)));
    }
}
