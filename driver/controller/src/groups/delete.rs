//! Removes a group with all of its snapshots.
//!
//! *Invariant:* the snapshots are removed one by one and the group last. If a snapshot is in use,
//! the snapshots after it stay, and a repeated call finds them.

use cistern_crds::{
    PoolSnapshotGroup,
    removal::{RemovalStep, step},
};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, GroupQuery, Groups};
use crate::objects::in_flight::Operation;

impl Groups {
    /// Destroys the data of all snapshots of the group and removes their objects. Succeeds if the group
    /// does not exist (DGS-05), and finishes an interrupted removal.
    ///
    /// Fails if the query names other snapshots than the group has, if a snapshot is in use, if its
    /// agent is silent, or if a request to the API server fails. Also fails at the deadline: the
    /// state stays as it is, and a repeated call resumes.
    pub async fn delete(&self, query: &GroupQuery, deadline: Instant) -> Result<(), Error> {
        let removing = async |operation: &mut _| match self.objects.find(&query.id).await? {
            Some(group) => {
                query.check(&group)?;
                self.remove(group, operation).await.map(drop)
            }
            None => self.remove_left_over(query, operation).await,
        };
        self.objects
            .run_exclusive(&query.id, deadline, removing)
            .await
    }

    /// Removes a group and all of its snapshots. Returns the object if foreign finalizers keep it.
    /// Fails if a snapshot is in use, if its agent is silent, or if a request to the API server
    /// fails.
    pub(super) async fn remove(
        &self,
        group: PoolSnapshotGroup,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<Option<PoolSnapshotGroup>, Error> {
        let (mut current, mut is_left) = (Some(group), true);
        while let Some(group) = current {
            current = match step(&group, group.spec.deletion_requested, is_left) {
                RemovalStep::Await => {
                    self.remove_snapshots(&group, operation).await?;
                    is_left = false;
                    Some(group)
                }
                RemovalStep::Held => return Ok(Some(group)),
                step @ (RemovalStep::Ask | RemovalStep::Delete | RemovalStep::Release) => {
                    operation.note("the API server to answer");
                    self.objects.advance(&group, step).await?
                }
            };
        }
        Ok(None)
    }

    async fn remove_snapshots(
        &self,
        group: &PoolSnapshotGroup,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<(), Error> {
        let name = group.name_any();
        for member in &group.spec.members {
            self.remove_snapshot(&member.snapshot, &name, operation)
                .await?;
        }
        Ok(())
    }

    /// Removes the snapshots of a group whose object a user removed by force, because no other call
    /// can remove them (DS-05).
    async fn remove_left_over(
        &self,
        query: &GroupQuery,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<(), Error> {
        for id in &query.snapshots {
            self.remove_snapshot(id, &query.id, operation).await?;
        }
        Ok(())
    }

    /// Removes a snapshot, if it is of this group.
    async fn remove_snapshot(
        &self,
        id: &str,
        group: &str,
        operation: &mut Operation<PoolSnapshotGroup>,
    ) -> Result<(), Error> {
        let snapshots = self.snapshots.objects();
        if let Some(found) = snapshots.find(id).await? {
            if found.spec.group_name.as_deref() != Some(group) {
                return Ok(());
            }
            operation.note(format!(
                "node {} to remove snapshot {id}",
                found.spec.node_name
            ));
            let mut removal = snapshots.begin(id)?;
            removal.ends_at(operation.deadline());
            snapshots.remove(&mut removal).await?;
        }
        self.snapshots.until_shown(id, false).await;
        Ok(())
    }
}
