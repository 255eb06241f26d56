//! Removing a group with all of its snapshots.
//!
//! *Invariant:* the snapshots go one after the other and the group last, so that one that is in use
//! keeps those behind it, and a repeat finds what is left.

use cistern_crds::{
    PoolSnapshotGroup,
    removal::{Step, step},
};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, GroupQuery, Groups, ensure::is_taken};
use crate::objects::{self, attendance::Attention};

impl Groups {
    /// Has the data of all snapshots of the group destroyed and their objects removed. A group that
    /// is not there is fine (DGS-05), and one that was half removed is removed.
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn delete(&self, query: &GroupQuery, deadline: Instant) -> Result<(), Error> {
        let removing = async |attention: &mut _| match self.objects.find(&query.id).await? {
            Some(group) => {
                query.check(&group)?;
                self.remove(group, attention).await.map(drop)
            }
            None => self.remove_left_over(query, attention).await,
        };
        self.objects.attending(&query.id, deadline, removing).await
    }

    /// Removes a group to its end; gives the object where finalizers of others hold it.
    pub(super) async fn remove(
        &self,
        group: PoolSnapshotGroup,
        attention: &mut Attention<PoolSnapshotGroup>,
    ) -> Result<Option<PoolSnapshotGroup>, Error> {
        let (mut current, mut is_left) = (Some(group), true);
        while let Some(group) = current {
            current = match step(&group, group.spec.deletion_requested, is_left) {
                Step::Await => {
                    self.remove_snapshots(&group, attention).await?;
                    is_left = false;
                    Some(group)
                }
                Step::Held => return Ok(Some(group)),
                step @ (Step::Ask | Step::Delete | Step::Release) => {
                    attention.note("the API server to answer");
                    self.objects.advance(&group, step).await?
                }
            };
        }
        Ok(None)
    }

    async fn remove_snapshots(
        &self,
        group: &PoolSnapshotGroup,
        attention: &mut Attention<PoolSnapshotGroup>,
    ) -> Result<(), Error> {
        let node = &group.spec.node_name;
        for member in &group.spec.members {
            self.remove_snapshot(&member.snapshot, node, attention)
                .await?;
        }
        Ok(())
    }

    /// Removes those of the snapshots that belong to a group whose object somebody took away by
    /// force: nothing else can remove them (DS-05).
    async fn remove_left_over(
        &self,
        query: &GroupQuery,
        attention: &mut Attention<PoolSnapshotGroup>,
    ) -> Result<(), Error> {
        for id in &query.snapshots {
            let Some(snapshot) = self.snapshots.objects().find(id).await? else {
                continue;
            };
            if snapshot.spec.group_name.as_deref() == Some(&*query.id) {
                self.remove_snapshot(id, &snapshot.spec.node_name, attention)
                    .await?;
            }
        }
        Ok(())
    }

    async fn remove_snapshot(
        &self,
        id: &str,
        node: &str,
        attention: &mut Attention<PoolSnapshotGroup>,
    ) -> Result<(), Error> {
        attention.note(format!("node {node} to remove snapshot {id}"));
        let snapshots = self.snapshots.objects();
        let mut attention = snapshots.attend(id)?;
        snapshots.remove(&mut attention).await?;
        self.snapshots.until_shown(id, false).await;
        Ok(())
    }

    /// Removes a group that was not taken. False if it was by now: somebody may have been told of it.
    pub(super) async fn withdraw(
        &self,
        group: PoolSnapshotGroup,
        attention: &mut Attention<PoolSnapshotGroup>,
    ) -> Result<bool, Error> {
        let mut current = Some(group);
        // Once the wish is written, no agent takes it any more.
        while let Some(group) = current.take_if(|group| !group.spec.deletion_requested) {
            if is_taken(&group) {
                return Ok(false);
            }
            current = self.objects.advance(&group, Step::Ask).await?;
        }
        if let Some(group) = current {
            self.see_off(group, attention).await?;
        }
        Ok(true)
    }

    /// Brings to an end what began to remove a group; or says what that waits for.
    pub(super) async fn see_off(
        &self,
        group: PoolSnapshotGroup,
        attention: &mut Attention<PoolSnapshotGroup>,
    ) -> Result<(), Error> {
        let waits_for = match self.remove(group, attention).await {
            Ok(None) => return Ok(()),
            Ok(Some(held)) => format!(
                "the finalizers {} to be taken off an old object",
                held.finalizers().join(", ")
            ),
            // Final to the caller, and something is left.
            Err(Error::Object(in_use @ objects::Error::InUse { .. })) => {
                format!("the end of an old one: {in_use}")
            }
            Err(error) => return Err(error),
        };
        attention.note(waits_for);
        Err(attention.pending().into())
    }
}
