//! Group snapshots in the controller: several volumes at one point in time.
//!
//! ```text
//! ensure ─▶ PoolSnapshotGroup, then a PoolSnapshot for each volume ─▶ agent ─▶ watch ─▶ ensure
//! delete ─▶ group's deletionRequested, then each snapshot is removed, then the group
//! ```
//!
//! *Invariant:* the group exists as long as one of its snapshots: it is written first and removed last,
//! and its spec names all of its snapshots. So after a crash or a cancelled call, a repeat of the same
//! call resumes at any point.

mod across;
mod decide;
mod delete;
mod ensure;
mod follow;
mod listed;
mod request;

use std::{collections::HashSet, sync::Arc};

use cistern_client::http::Readiness;
use cistern_crds::{Explanation, PoolSnapshot, PoolSnapshotGroup};
use futures::{
    FutureExt as _,
    future::{BoxFuture, try_join_all},
};

pub use self::{
    listed::ListedGroup,
    request::{GroupQuery, NewGroup},
};
use crate::{
    node_plugins::NodePlugins,
    objects::{self, Objects, not_found, watch::watch},
    snapshots::Snapshots,
};

/// Why an operation on a group failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error that all objects share.
    #[error(transparent)]
    Object(#[from] objects::Error),
    /// The node refuses the group (CGS-07). No object remains (CGS-16).
    #[error("node {node} cannot take group snapshot {group}: {why}: {advice}")]
    Refused {
        /// The group snapshot id.
        group: String,
        /// The node that refuses it.
        node: String,
        /// Reason and message of the refusal.
        why: Explanation,
        /// What a user can do about it.
        advice: String,
    },
    /// The caller knows other snapshots than the group has (DGS-08, GGS-07).
    #[error("snapshot_ids are not the snapshots of group snapshot {group}: {why}")]
    OtherMembers {
        /// The group snapshot id.
        group: String,
        /// The first difference.
        why: String,
    },
}

/// Takes, finds and removes groups.
#[derive(Debug)]
pub struct Groups {
    objects: Objects<PoolSnapshotGroup>,
    snapshots: Arc<Snapshots>,
    plugins: NodePlugins,
}

impl Groups {
    /// Creates the groups of a cluster, and the future of their watch. Poll the future as long as
    /// the process serves. `readiness` waits for the first list.
    pub fn new(
        objects: Objects<PoolSnapshotGroup>,
        snapshots: Arc<Snapshots>,
        plugins: NodePlugins,
        readiness: Readiness,
    ) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let client = objects.client();
        let groups = Arc::new(Self {
            objects,
            snapshots,
            plugins,
        });
        let (mut listed, watching) = (HashSet::new(), Arc::clone(&groups));
        let part = "watch of PoolSnapshotGroups";
        let watch = watch::<PoolSnapshotGroup>(client, readiness, part, move |event| {
            watching.objects.in_flight().apply_event(event, &mut listed);
        });
        (groups, watch.boxed())
    }

    /// Reads the requested group from the API server. Fails if it does not exist or is not taken
    /// yet (GGS-04), if the query names other snapshots than it has, or if a request to the API
    /// server fails.
    pub async fn get(&self, query: &GroupQuery) -> Result<ListedGroup, Error> {
        let missing = || not_found::<PoolSnapshotGroup>(&query.id);
        let found = self.objects.find(&query.id).await?.ok_or_else(missing)?;
        let listed = ListedGroup::of(&found, &self.snapshots_of(&found).await?);
        let listed = listed.ok_or_else(missing)?;
        query.check(&found)?;
        Ok(listed)
    }

    /// The existing snapshots of a group. Another snapshot with the name of one of them is not of the group.
    async fn snapshots_of(&self, group: &PoolSnapshotGroup) -> Result<Vec<PoolSnapshot>, Error> {
        let members = group.spec.members.iter();
        let snapshots = self.snapshots.objects();
        let found = members.map(|member| snapshots.find(&member.snapshot));
        let found = try_join_all(found).await?.into_iter().flatten();
        Ok(found.filter(|it| is_member(group, it)).collect())
    }
}

/// Whether a snapshot with the name of a group's snapshot is of that group.
fn is_member(group: &PoolSnapshotGroup, snapshot: &PoolSnapshot) -> bool {
    snapshot.spec.group_name.as_deref() == group.metadata.name.as_deref()
}
