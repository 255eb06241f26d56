//! Taking a group of snapshots, or finding it as it was taken before.
//!
//! ```text
//! group ─▶ a snapshot for each volume ─▶ agent admits all and cuts them together ─▶ taken
//!                                    └─▶ agent refuses one ─▶ all of it is removed ─▶ refused
//! ```
//!
//! *Invariant:* an error that the caller takes for final leaves nothing behind: the group and its
//! snapshots are removed first. What the agent has admitted is waited for and never given up.

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::{
    ConditionStatus, ConditionType, PoolSnapshot, PoolSnapshotGroup, PoolVolume, Reason, Stored,
    condition, snapshot_group::GroupMember,
};
use futures::future::try_join_all;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, Groups, ListedGroup, NewGroup, request};
use crate::{
    objects::{self, attendance::Attention, named, silence::silent},
    snapshots::advice,
};

impl Groups {
    /// Makes sure that the group was taken (CGS-05).
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn ensure(&self, wanted: &NewGroup, deadline: Instant) -> Result<ListedGroup, Error> {
        let settling = async |attention: &mut _| self.settle(wanted, attention).await;
        self.objects
            .attending(&wanted.id(), deadline, settling)
            .await
    }

    async fn settle(
        &self,
        wanted: &NewGroup,
        attention: &mut Attention<PoolSnapshotGroup>,
    ) -> Result<ListedGroup, Error> {
        // A refusal from before this call may be old: then the agent is asked once more.
        let mut asked = false;
        loop {
            let mut found = self.objects.find(attention.name()).await?;
            if found.is_none() {
                asked = true;
                found = self.create(wanted).await?;
            }
            // None: another replica was faster, so look again.
            let Some(group) = found else { continue };
            if group.spec.deletion_requested {
                self.see_off(group, attention).await?;
                continue;
            }
            if let Some(difference) = wanted.difference(&group) {
                let object = named::<PoolSnapshotGroup>(attention.name());
                return Err(objects::Error::Different { object, difference }.into());
            }
            match self.follow(group, attention).await? {
                Outcome::Taken(taken) => return Ok(taken),
                Outcome::Changed => {}
                Outcome::Withdraw(group, why) => {
                    let withdrawn = self.withdraw(*group, attention).await?;
                    if let Some(why) = why.filter(|_| withdrawn && asked) {
                        return Err(why);
                    }
                }
            }
        }
    }

    /// Writes the wish. None when the object is there by now.
    async fn create(&self, wanted: &NewGroup) -> Result<Option<PoolSnapshotGroup>, Error> {
        let volumes =
            try_join_all(wanted.volumes.iter().map(|id| self.snapshots.volume(id))).await?;
        let node = one_node(&volumes)?;
        let created = self.objects.create(&wanted.on_node(&node)).await?;
        if created.is_some() {
            tracing::info!(
                group = wanted.id(),
                node,
                "a group of snapshots is asked for"
            );
        }
        Ok(created)
    }

    /// Has the group's snapshots asked for, and waits until the agent has taken them all, or will
    /// not.
    async fn follow(
        &self,
        mut group: PoolSnapshotGroup,
        attention: &mut Attention<PoolSnapshotGroup>,
    ) -> Result<Outcome, Error> {
        let snapshots = match self.ask_for_snapshots(&group).await {
            // The volumes have changed since the group was asked for.
            Err(
                why @ (Error::SeveralNodes { .. } | Error::Object(objects::Error::NotFound { .. })),
            ) => return Ok(Outcome::Withdraw(Box::new(group), Some(why))),
            snapshots => snapshots?,
        };
        let mut nodes = self.objects.nodes().subscribe();
        loop {
            let why = match progress(&group) {
                Progress::Taken => return self.taken(&group).await.map(Outcome::Taken),
                Progress::Leaving => return Ok(Outcome::Changed),
                Progress::Refused(reason, message) => Some((Some(reason), message)),
                Progress::Waits(waits_for) => {
                    attention.note(waits_for);
                    self.unfit(&snapshots).map(|message| (None, message))
                }
            };
            // What somebody deleted by hand is never taken, and made anew. What the agent has
            // admitted is waited for: it may be half taken.
            let is_hopeless = why.is_some() || group.metadata.deletion_timestamp.is_some();
            if is_hopeless && !self.is_admitted(&group).await? {
                let why = why.map(|(reason, message)| refused(&group, &snapshots, reason, message));
                return Ok(Outcome::Withdraw(Box::new(group), why));
            }
            let node = &group.spec.node_name;
            if let Some(silence) = self.objects.nodes().silence(node) {
                return Err(silent(&group, silence).into());
            }
            if let Some((_, message)) = why {
                attention.note(format!("node {node} to go on: {message}"));
            }
            tokio::select! {
                change = attention.change(&group) => match change {
                    Some(changed) => group = changed,
                    None => return Ok(Outcome::Changed),
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
            Progress::Waits(_) => {}
            Progress::Taken | Progress::Leaving | Progress::Refused(..) => return Ok(Vec::new()),
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
                // Of an older group of this name, whose removal was cut short.
                Some(snapshot) if snapshot.spec.deletion_requested => {
                    let mut attention = snapshots.attend(&member.snapshot)?;
                    snapshots.see_off(snapshot, &mut attention).await?;
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
            let wish = request::member(group, &volume, &image);
            if let Some(snapshot) = snapshots.create(&wish).await? {
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

    /// Why the node takes nothing; none where it does.
    fn unfit(&self, snapshots: &[PoolSnapshot]) -> Option<String> {
        snapshots.iter().find_map(|snapshot| {
            let (node, pool) = (snapshot.node_name(), snapshot.pool_name());
            let unfit = self.objects.nodes().unfit(node, pool)?;
            Some(unfit.to_string())
        })
    }

    /// Whether the agent has begun, so that it has to end what it did.
    async fn is_admitted(&self, group: &PoolSnapshotGroup) -> Result<bool, Error> {
        let snapshots = self.snapshots_of(group).await?;
        Ok(snapshots
            .iter()
            .any(|snapshot| snapshot.reserved().is_some()))
    }
}

/// How following a group ended.
enum Outcome {
    Taken(ListedGroup),
    /// The object is not what it was: look again.
    Changed,
    /// Nobody will take it: why, where that is for the caller to know.
    Withdraw(Box<PoolSnapshotGroup>, Option<Error>),
}

/// Where a group stands on its way to be taken.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Taken,
    /// Its deletion is asked for.
    Leaving,
    /// The agent will not take it; its words.
    Refused(Reason, String),
    /// It waits for this.
    Waits(String),
}

fn progress(group: &PoolSnapshotGroup) -> Progress {
    let status = group.status.clone().unwrap_or_default();
    if group.spec.deletion_requested {
        return Progress::Leaving;
    }
    // It was taken, whatever has happened since.
    if is_taken(group) {
        return Progress::Taken;
    }
    let node = &group.spec.node_name;
    let Some(ready) = condition::find(&status.conditions, ConditionType::Ready) else {
        return Progress::Waits(format!("the agent of node {node} to take it"));
    };
    match Reason::parse(&ready.reason) {
        Some(reason)
            if reason.refuses_snapshot() && ready.status == ConditionStatus::False.as_str() =>
        {
            Progress::Refused(reason, ready.message.clone())
        }
        Some(_) | None => Progress::Waits(format!("{}: node {node} to take it", ready.message)),
    }
}

/// Whether callers may have been told of it.
pub(super) fn is_taken(group: &PoolSnapshotGroup) -> bool {
    let status = group.status.as_ref();
    status.is_some_and(|status| status.creation_time.is_some())
}

fn refused(
    group: &PoolSnapshotGroup,
    snapshots: &[PoolSnapshot],
    reason: Option<Reason>,
    message: String,
) -> Error {
    let pools: BTreeSet<&str> = snapshots.iter().map(Stored::pool_name).collect();
    let pools: Vec<&str> = pools.into_iter().collect();
    Error::Refused {
        group: group.name_any(),
        node: group.spec.node_name.clone(),
        reason,
        message,
        advice: advice(reason, &pools.join(", ")),
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
    use cistern_crds::{PoolSnapshotGroupStatus, condition::Finding};

    use super::*;
    use crate::{
        groups::request::tests::wanted,
        testing::{at, ready_volume},
    };

    fn said(status: bool, reason: Reason) -> PoolSnapshotGroup {
        let mut group = wanted("daily", &["a", "b"]).on_node("n1");
        let mut status_of_group = PoolSnapshotGroupStatus::default();
        let finding = Finding::new(ConditionType::Ready, status, reason, "the agent's words");
        condition::set(&mut status_of_group.conditions, &finding, None, at(0));
        group.status = Some(status_of_group);
        group
    }

    #[test]
    fn a_group_is_taken_once_it_has_its_moment_whatever_happens_to_it_later() {
        let mut group = said(false, Reason::ImageMissing);
        group.status.as_mut().unwrap().creation_time = Some(at(5));
        assert_eq!(progress(&group), Progress::Taken);
        group.spec.deletion_requested = true;
        assert_eq!(progress(&group), Progress::Leaving);
    }

    #[test]
    fn a_refusal_carries_the_agents_words_and_what_is_tried_again_is_none() {
        for reason in [
            Reason::NoSpace,
            Reason::SnapshotLimitReached,
            Reason::TooManyExtents,
            Reason::SourceMissing,
            Reason::NotHeldStill,
            Reason::PoolUnknown,
            Reason::PoolNotReady,
            Reason::IdentityConflict,
        ] {
            let refused = Progress::Refused(reason, "the agent's words".to_owned());
            assert_eq!(progress(&said(false, reason)), refused);
        }
        for reason in [Reason::Pending, Reason::CutFailed] {
            let waits = progress(&said(false, reason));
            assert!(matches!(&waits, Progress::Waits(said) if said.contains("words")));
        }
        let fresh = wanted("daily", &["a"]).on_node("n1");
        assert!(matches!(progress(&fresh), Progress::Waits(_)));
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
