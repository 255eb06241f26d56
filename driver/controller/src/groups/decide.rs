//! The attempts to take a group across nodes, and the decision that it is taken.

use std::time::Duration;

use chrono::{DateTime, Utc};
use cistern_crds::{PoolSnapshot, PoolSnapshotGroup};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::sleep;

use super::{
    Error, Groups,
    across::{self, NotTaken},
    follow::refused,
};
use crate::objects::{in_flight::Operation, silence::silent};

/// Pause between two attempts. A node plugin that has just started does not know this controller yet.
const PAUSE: Duration = Duration::from_secs(1);

/// How the attempts have ended.
pub(super) enum Decision {
    /// The group is taken.
    Taken(PoolSnapshotGroup),
    /// The group has changed: read it again.
    Changed,
    /// A node refuses its part.
    Refused(PoolSnapshotGroup, Error),
}

impl Groups {
    /// Takes a group across nodes. Fails if the agent of a node is silent, or if a request to the API server fails.
    pub(super) async fn take_across(
        &self,
        mut group: PoolSnapshotGroup,
        snapshots: &[PoolSnapshot],
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<Decision, Error> {
        loop {
            if group.spec.taken_at.is_some() {
                return Ok(Decision::Taken(group));
            }
            if let Some(why) = self.unavailable(snapshots) {
                let why = refused(&group, &group.spec.node_name, snapshots, why);
                return Ok(Decision::Refused(group, why));
            }
            for snapshot in snapshots {
                if let Some(silence) = self.objects.nodes().silence(&snapshot.spec.node_name) {
                    return Err(silent(&group, silence).into());
                }
            }
            let attempt = json!({"spec": {"attempt": group.spec.attempt.saturating_add(1)}});
            let begun = self.objects.patch_exactly("begin to take", &group, attempt);
            let Some(begun) = begun.await? else {
                return Ok(Decision::Changed);
            };
            operation.note("its nodes to take it together");
            let why = match across::take(&self.plugins, &begun, snapshots).await {
                Ok(time) => return self.decide(begun, time).await,
                Err(NotTaken::Refused { node, why }) => {
                    let why = refused(&begun, &node, snapshots, why);
                    return Ok(Decision::Refused(begun, why));
                }
                Err(NotTaken::Again(why)) => why,
            };
            tracing::info!(group = begun.name_any(), why, "the group is not taken yet");
            operation.note(why);
            sleep(PAUSE).await;
            match self.objects.find_again(&begun).await? {
                Some(again) if !again.spec.deletion_requested => group = again,
                Some(_) | None => return Ok(Decision::Changed),
            }
        }
    }

    /// Decides that a group is taken, unless another attempt has begun meanwhile.
    async fn decide(
        &self,
        mut group: PoolSnapshotGroup,
        time: DateTime<Utc>,
    ) -> Result<Decision, Error> {
        let attempt = group.spec.attempt;
        loop {
            let taken = json!({"spec": {"takenAt": time}});
            if let Some(decided) = self
                .objects
                .patch_exactly("decide on", &group, taken)
                .await?
            {
                tracing::info!(group = decided.name_any(), %time, "the group is taken");
                return Ok(Decision::Taken(decided));
            }
            // The status may have changed.
            match self.objects.find_again(&group).await? {
                Some(again)
                    if again.spec.attempt == attempt
                        && again.spec.taken_at.is_none()
                        && !again.spec.deletion_requested =>
                {
                    group = again;
                }
                Some(_) | None => return Ok(Decision::Changed),
            }
        }
    }

    /// Tells the agents of all nodes that a group is taken: they publish its snapshots.
    pub(super) async fn publish(&self, group: &PoolSnapshotGroup) -> Result<(), Error> {
        let Some(time) = group.spec.taken_at else {
            return Ok(());
        };
        let snapshots = self.snapshots.objects();
        for member in &group.spec.members {
            let mut current = snapshots.find(&member.snapshot).await?;
            // One that is being deleted, or is gone, is published no more.
            while let Some(snapshot) = current.take_if(|it| {
                it.spec.taken_at.is_none() && it.spec.group_name == Some(group.name_any())
            }) {
                let taken = json!({"spec": {"takenAt": time}});
                current = snapshots.patch("publish", &snapshot, taken).await?;
            }
        }
        Ok(())
    }
}
