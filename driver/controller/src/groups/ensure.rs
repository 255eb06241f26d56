//! Takes a group of snapshots, or returns the existing one.
//!
//! *Invariant:* a final error leaves nothing behind: the group and its snapshots are removed first.

use std::collections::BTreeSet;

use cistern_crds::{Explanation, PoolSnapshotGroup, PoolVolume, PoolVolumeSpec};
use futures::{FutureExt as _, future::try_join_all};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, Groups, ListedGroup, NewGroup};
use crate::objects::{
    advice::advice,
    ensure::{Attempt, attempt},
    in_flight::Operation,
};

impl Groups {
    /// Ensures that the group is taken (CGS-05).
    ///
    /// Fails if a different group has this name, if a volume does not exist, if a node of the volumes refuses the group
    /// or its agent is silent, or if a request to the API server fails. Also fails at the deadline: the state stays as
    /// it is, and a repeated call resumes.
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
        loop {
            let create = || self.create(wanted).boxed();
            match attempt(self, wanted, operation, create).await? {
                Attempt::Made(group) => return Ok(group),
                Attempt::Refused {
                    refusal,
                    is_new: true,
                } => return Err(refusal),
                // The refusal may be out of date, so the agent is asked once more.
                Attempt::Refused { is_new: false, .. } => {}
            }
        }
    }

    /// Creates the object. Returns None if it exists meanwhile.
    async fn create(&self, wanted: &NewGroup) -> Result<Option<PoolSnapshotGroup>, Error> {
        let volumes =
            try_join_all(wanted.volumes.iter().map(|id| self.snapshots.volume(id))).await?;
        for (volume, _) in &volumes {
            self.check(wanted, volume)?;
        }
        let nodes: BTreeSet<&str> = volumes.iter().map(|(it, _)| &*it.spec.node_name).collect();
        let created = self.objects.create(&wanted.on(&nodes)).await?;
        if created.is_some() {
            tracing::info!(group = wanted.id(), ?nodes, "group snapshot requested");
        }
        Ok(created)
    }

    /// Fails if the pool of a volume has no snapshots.
    fn check(&self, wanted: &NewGroup, volume: &PoolVolume) -> Result<(), Error> {
        let PoolVolumeSpec {
            node_name: node,
            pool_name: pool,
            ..
        } = &volume.spec;
        self.objects
            .nodes()
            .copies(node, pool)
            .map_err(|why| Error::Refused {
                group: wanted.id(),
                node: node.clone(),
                advice: advice(why.reason, pool),
                why: Explanation {
                    message: format!("volume {}: {why}", volume.name_any()),
                    ..why
                },
            })
    }
}
