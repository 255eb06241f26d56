//! Takes a group of snapshots, or returns the existing one.
//!
//! *Invariant:* a final error leaves nothing behind: the group and its snapshots are removed first.

use std::collections::BTreeMap;

use cistern_crds::{PoolSnapshotGroup, PoolVolume};
use futures::{FutureExt as _, future::try_join_all};
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::{Error, Groups, ListedGroup, NewGroup};
use crate::objects::{
    ensure::{Attempt, attempt},
    in_flight::Operation,
};

impl Groups {
    /// Ensures that the group is taken (CGS-05).
    ///
    /// Fails if a different group has this name, if a volume does not exist, if the volumes are on
    /// several nodes, if their node refuses the group or its agent is silent, or if a request to
    /// the API server fails. Also fails at the deadline: the state stays as it is, and a repeated
    /// call resumes.
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
        let node = one_node(&volumes)?;
        let created = self.objects.create(&wanted.on_node(&node)).await?;
        if created.is_some() {
            tracing::info!(group = wanted.id(), node, "group snapshot requested");
        }
        Ok(created)
    }
}

/// The node that has all of the volumes. Fails if they are on several nodes.
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
    use super::*;
    use crate::testing::ready_volume;

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
