//! Takes a group of snapshots, or returns the existing one.
//!
//! ```text
//! group ─▶ a snapshot for each volume ─▶ agent admits all and takes them together ─▶ taken
//!                                    └─▶ agent refuses one ─▶ all of it is removed ─▶ refused
//! ```
//!
//! *Invariant:* a final error leaves nothing behind: the group and its snapshots are removed first.
//! An admitted group is waited for and never withdrawn.

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::{
    ConditionStatus, ConditionType, Explanation, HasImage, PoolSnapshot, PoolSnapshotGroup,
    PoolVolume, Reason, condition, snapshot_group::GroupMember,
};
use futures::future::try_join_all;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, Groups, ListedGroup, NewGroup, request};
use crate::objects::{self, advice::advice, in_flight::Operation, named, silence::silent};

impl Groups {
    /// Ensures that the group is taken (CGS-05).
    ///
    /// When the deadline passes, the state stays as it is and a repeated call resumes.
    pub async fn ensure(&self, wanted: &NewGroup, deadline: Instant) -> Result<ListedGroup, Error> {
        let ensuring = async |operation: &mut _| self.ensure_ready(wanted, operation).await;
        self.objects
            .run_exclusive(&wanted.id(), deadline, ensuring)
            .await
    }

    async fn ensure_ready(
        &self,
        wanted: &NewGroup,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<ListedGroup, Error> {
        // A refusal from before this call may be stale: ask the agent once more.
        let mut asked = false;
        loop {
            let mut found = self.objects.find(operation.name()).await?;
            if found.is_none() {
                asked = true;
                found = self.create(wanted).await?;
            }
            // None: another replica was faster, so read again.
            let Some(group) = found else { continue };
            if group.spec.deletion_requested {
                self.finish_removal(group, operation).await?;
                continue;
            }
            if let Some(difference) = wanted.difference(&group) {
                let object = named::<PoolSnapshotGroup>(operation.name());
                return Err(objects::Error::Different { object, difference }.into());
            }
            match self.follow(group, operation).await? {
                GroupOutcome::Taken(taken) => return Ok(taken),
                GroupOutcome::Changed => {}
                GroupOutcome::Withdraw(group, why) => {
                    let withdrawn = self.withdraw(*group, operation).await?;
                    if let Some(why) = why.filter(|_| withdrawn && asked) {
                        return Err(why);
                    }
                }
            }
        }
    }

    /// Writes the spec. None when the object exists by now.
    async fn create(&self, wanted: &NewGroup) -> Result<Option<PoolSnapshotGroup>, Error> {
        let volumes =
            try_join_all(wanted.volumes.iter().map(|id| self.snapshots.volume(id))).await?;
        let node = one_node(&volumes)?;
        let created = self.objects.create(&wanted.on_node(&node)).await?;
        if created.is_some() {
            tracing::info!(group = wanted.id(), node, "group snapshot requested");
        }
        Ok(created)
    }

    /// Creates the group's snapshots, and waits until the agent has taken or refused them all.
    async fn follow(
        &self,
        mut group: PoolSnapshotGroup,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<GroupOutcome, Error> {
        let snapshots = match self.ask_for_snapshots(&group).await {
            // The volumes have changed since the group was requested.
            Err(
                why @ (Error::SeveralNodes { .. } | Error::Object(objects::Error::NotFound { .. })),
            ) => return Ok(GroupOutcome::Withdraw(Box::new(group), Some(why))),
            snapshots => snapshots?,
        };
        let mut nodes = self.objects.nodes().subscribe();
        loop {
            let why = match progress(&group) {
                GroupProgress::Taken => return self.taken(&group).await.map(GroupOutcome::Taken),
                GroupProgress::Leaving => return Ok(GroupOutcome::Changed),
                GroupProgress::Refused(why) => Some(why),
                GroupProgress::Waits(waits_for) => {
                    operation.note(waits_for);
                    self.unavailable(&snapshots)
                }
            };
            // A group that a user deleted is never taken, and created again. What the agent has
            // admitted is waited for: it may be half taken.
            let is_hopeless = why.is_some() || group.metadata.deletion_timestamp.is_some();
            if is_hopeless && !self.is_admitted(&group).await? {
                let why = why.map(|why| refused(&group, &snapshots, why));
                return Ok(GroupOutcome::Withdraw(Box::new(group), why));
            }
            let node = &group.spec.node_name;
            if let Some(silence) = self.objects.nodes().silence(node) {
                return Err(silent(&group, silence).into());
            }
            if let Some(why) = why {
                operation.note(format!("node {node} to go on: {why}"));
            }
            tokio::select! {
                change = operation.change(&group) => match change {
                    Some(changed) => group = changed,
                    None => return Ok(GroupOutcome::Changed),
                },
                // The sender lives as long as `self`.
                _ = nodes.changed() => {}
            }
        }
    }

    /// Makes sure that there is a snapshot for each volume of a group that is not taken yet.
    async fn ask_for_snapshots(
        &self,
        group: &PoolSnapshotGroup,
    ) -> Result<Vec<PoolSnapshot>, Error> {
        match progress(group) {
            GroupProgress::Waits(_) => {}
            GroupProgress::Taken | GroupProgress::Leaving | GroupProgress::Refused(..) => {
                return Ok(Vec::new());
            }
        }
        let members = group.spec.members.iter();
        try_join_all(members.map(|member| self.ask_for_snapshot(group, member))).await
    }

    async fn ask_for_snapshot(
        &self,
        group: &PoolSnapshotGroup,
        member: &GroupMember,
    ) -> Result<PoolSnapshot, Error> {
        let snapshots = self.snapshots.objects();
        loop {
            match snapshots.find(&member.snapshot).await? {
                // It belongs to an older group of this name, whose removal was interrupted.
                Some(snapshot) if snapshot.spec.deletion_requested => {
                    let mut operation = snapshots.begin(&member.snapshot)?;
                    snapshots.finish_removal(snapshot, &mut operation).await?;
                    continue;
                }
                Some(snapshot) => return Ok(snapshot),
                None => {}
            }
            let (volume, image) = self.snapshots.volume(&member.volume).await?;
            let node = &group.spec.node_name;
            if volume.spec.node_name != *node {
                let places = format!("{} is not on node {node} any more", member.volume);
                return Err(Error::SeveralNodes { places });
            }
            let desired = request::member(group, &volume, &image);
            if let Some(snapshot) = snapshots.create(&desired).await? {
                return Ok(snapshot);
            }
        }
    }

    /// A group that was taken, as its snapshots are now.
    async fn taken(&self, group: &PoolSnapshotGroup) -> Result<ListedGroup, Error> {
        for member in &group.spec.members {
            self.snapshots.until_shown(&member.snapshot, true).await;
        }
        let listed = ListedGroup::of(group, &self.snapshots_of(group).await?);
        let missing = || objects::Error::Different {
            object: named::<PoolSnapshotGroup>(&group.name_any()),
            difference: "its snapshots were removed".to_owned(),
        };
        Ok(listed.ok_or_else(missing)?)
    }

    /// Why the node takes no snapshot; None if it does.
    fn unavailable(&self, snapshots: &[PoolSnapshot]) -> Option<Explanation> {
        snapshots.iter().find_map(|snapshot| {
            let (node, pool) = (snapshot.node_name(), snapshot.pool_name());
            self.objects.nodes().unavailable(node, pool)
        })
    }

    /// Whether the agent has begun, so that it must finish.
    async fn is_admitted(&self, group: &PoolSnapshotGroup) -> Result<bool, Error> {
        let snapshots = self.snapshots_of(group).await?;
        Ok(snapshots
            .iter()
            .any(|snapshot| snapshot.reserved().is_some()))
    }
}

/// The result of following a group.
enum GroupOutcome {
    Taken(ListedGroup),
    /// The object has changed: read it again.
    Changed,
    /// No agent will take it; the reason where the caller needs it.
    Withdraw(Box<PoolSnapshotGroup>, Option<Error>),
}

/// Progress of taking a group.
#[derive(Debug, PartialEq, Eq)]
enum GroupProgress {
    Taken,
    /// Its deletion is requested.
    Leaving,
    /// The agent refused it.
    Refused(Explanation),
    /// It waits for this.
    Waits(String),
}

fn progress(group: &PoolSnapshotGroup) -> GroupProgress {
    let status = group.status.clone().unwrap_or_default();
    if group.spec.deletion_requested {
        return GroupProgress::Leaving;
    }
    // It was taken, regardless of later changes.
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

/// Whether a caller may have received it in a response.
pub(super) fn is_taken(group: &PoolSnapshotGroup) -> bool {
    let status = group.status.as_ref();
    status.is_some_and(|status| status.creation_time.is_some())
}

fn refused(group: &PoolSnapshotGroup, snapshots: &[PoolSnapshot], why: Explanation) -> Error {
    let pools: BTreeSet<&str> = snapshots.iter().map(HasImage::pool_name).collect();
    let pools: Vec<&str> = pools.into_iter().collect();
    Error::Refused {
        group: group.name_any(),
        node: group.spec.node_name.clone(),
        advice: advice(why.reason, &pools.join(", ")),
        why,
    }
}

/// The node that has all of the volumes.
fn one_node(volumes: &[(PoolVolume, String)]) -> Result<String, Error> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (volume, _) in volumes {
        let place = places.entry(&volume.spec.node_name).or_default();
        place.push(volume.name_any());
    }
    let place = |(node, volumes): (&str, Vec<String>)| format!("{} on {node}", volumes.join(", "));
    match places.pop_first() {
        Some((node, _)) if places.is_empty() => Ok(node.to_owned()),
        first => {
            let places: Vec<String> = first.into_iter().chain(places).map(place).collect();
            let places = places.join("; ");
            Err(Error::SeveralNodes { places })
        }
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{PoolSnapshotGroupStatus, condition::ConditionUpdate};

    use super::*;
    use crate::{
        groups::request::tests::wanted,
        testing::{at, ready_volume},
    };

    fn said(status: bool, reason: Reason) -> PoolSnapshotGroup {
        let mut group = wanted("daily", &["a", "b"]).on_node("n1");
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
        let fresh = wanted("daily", &["a"]).on_node("n1");
        assert!(matches!(progress(&fresh), GroupProgress::Waits(_)));
    }

    #[test]
    fn cgs_07_volumes_on_several_nodes_are_refused_by_name() {
        let on = |name: &str, node: &str| {
            let mut volume = ready_volume();
            volume.metadata.name = Some(name.to_owned());
            volume.spec.node_name = node.to_owned();
            (volume, "uid-1".to_owned())
        };
        let together = [on("a", "n1"), on("b", "n1")];
        assert_eq!(one_node(&together).unwrap(), "n1");
        let apart = [on("a", "n2"), on("b", "n1"), on("c", "n2")];
        let message = one_node(&apart).unwrap_err().to_string();
        assert!(message.contains("b on n1; a, c on n2"), "{message}");
        assert!(message.contains("one node"), "{message}");
    }
}
