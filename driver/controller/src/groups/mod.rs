//! Groups of snapshots as the controller sees them: several volumes of one node at one moment.
//!
//! ```text
//! ensure ─▶ PoolSnapshotGroup, then a PoolSnapshot for each volume ─▶ agent ─▶ watch ─▶ ensure
//! delete ─▶ group's deletionRequested, then each snapshot is removed, then the group
//! ```
//!
//! *Invariant:* while a snapshot of a group is there, the group is: it is written first and goes
//! last, and its spec names all of its snapshots. So after a crash, or when a caller gives up, at
//! any point a repeat of the same call takes up where the last one stood.

mod delete;
mod ensure;
mod listed;
mod request;

use std::{collections::HashSet, sync::Arc};

use cistern_client::http::Readiness;
use cistern_crds::{PoolSnapshot, PoolSnapshotGroup, Reason};
use futures::{
    FutureExt as _,
    future::{BoxFuture, try_join_all},
};

pub use self::{
    listed::ListedGroup,
    request::{GroupQuery, NewGroup},
};
use crate::{
    objects::{self, Objects, not_found, watch::watch},
    snapshots::Snapshots,
};

/// Why an operation on a group did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is as with every object.
    #[error(transparent)]
    Object(#[from] objects::Error),
    /// The volumes have no moment in common that anybody could hold (CGS-07).
    #[error(
        "a group of snapshots is taken on one node, and these volumes are on several: {places}; \
         take a group for each node"
    )]
    SeveralNodes {
        /// Which volumes are on which node.
        places: String,
    },
    /// The node does not take the group, and nothing of it is left (CGS-16).
    #[error("node {node} cannot take group snapshot {group}: {message}: {advice}")]
    Refused {
        /// Its id.
        group: String,
        /// Where its volumes are.
        node: String,
        /// Why, for programs; none where the agent did not answer.
        reason: Option<Reason>,
        /// Why, for people.
        message: String,
        /// What to do.
        advice: String,
    },
    /// The caller knows other snapshots than the group has (DGS-08, GGS-07).
    #[error("snapshot_ids are not the snapshots of group snapshot {group}: {why}")]
    OtherMembers {
        /// Its id.
        group: String,
        /// The first thing that differs.
        why: String,
    },
}

/// Takes, finds and removes groups.
#[derive(Debug)]
pub struct Groups {
    objects: Objects<PoolSnapshotGroup>,
    snapshots: Arc<Snapshots>,
}

impl Groups {
    /// The groups of a cluster, and the watch that feeds them: poll it as long as the process serves.
    /// `readiness` is done when it has seen everything once.
    pub fn new(
        objects: Objects<PoolSnapshotGroup>,
        snapshots: Arc<Snapshots>,
        readiness: Readiness,
    ) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let client = objects.client();
        let groups = Arc::new(Self { objects, snapshots });
        let (mut listed, seeing) = (HashSet::new(), Arc::clone(&groups));
        let part = "watch of PoolSnapshotGroups";
        let watch = watch::<PoolSnapshotGroup>(client, readiness, part, move |event| {
            seeing.objects.attendance().see(event, &mut listed);
        });
        (groups, watch.boxed())
    }

    /// The group that is asked for, as the API server has it. One that was not taken yet is not
    /// there (GGS-04).
    pub async fn get(&self, query: &GroupQuery) -> Result<ListedGroup, Error> {
        let missing = || not_found::<PoolSnapshotGroup>(&query.id);
        let found = self.objects.find(&query.id).await?.ok_or_else(missing)?;
        let listed = ListedGroup::of(&found, &self.snapshots_of(&found).await?);
        let listed = listed.ok_or_else(missing)?;
        query.check(&found)?;
        Ok(listed)
    }

    /// Those snapshots of a group that are there.
    async fn snapshots_of(&self, group: &PoolSnapshotGroup) -> Result<Vec<PoolSnapshot>, Error> {
        let members = group.spec.members.iter();
        let snapshots = self.snapshots.objects();
        let found = members.map(|member| snapshots.find(&member.snapshot));
        Ok(try_join_all(found).await?.into_iter().flatten().collect())
    }
}
