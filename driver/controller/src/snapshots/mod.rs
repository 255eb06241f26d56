//! Snapshots in the controller: the desired state in custom resources, and the status of the agents.
//!
//! ```text
//! ensure ─▶ PoolSnapshot.spec ──▶ agent ──▶ PoolSnapshot.status ──▶ watch ──▶ ensure
//! delete ─▶ spec.deletionRequested ─▶ agent ─▶ status ─▶ watch ─▶ delete
//! ```
//!
//! A snapshot is on the node of its volume, so no node is chosen.
//!
//! *Invariant:* a snapshot is never taken again under its name, regardless of its volume. A
//! repeated call reads its response from the object, so it is always the same.

mod bases;
mod ensure;
mod request;

use std::sync::Arc;

use cistern_client::http::Readiness;
use cistern_crds::{Explanation, PoolSnapshot, PoolVolume};
use futures::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use tokio::{sync::Notify, time::Instant};

pub use self::request::{NewSnapshot, SnapshotQuery};
pub use crate::objects::listed_snapshot::ListedSnapshot;
use crate::objects::{
    self, Objects,
    listing::{Listed as _, Listing, Page},
    not_found,
    watch::watch_listed,
};

/// Why an operation on a snapshot failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error that all objects share.
    #[error(transparent)]
    Object(#[from] objects::Error),
    /// The node refuses the snapshot. No object remains (CS-18).
    #[error("node {node} cannot take a snapshot of volume {volume}: {why}: {advice}")]
    Refused {
        /// The volume id.
        volume: String,
        /// The node that holds it.
        node: String,
        /// Reason and message of the refusal.
        why: Explanation,
        /// What a user can do about it.
        advice: String,
    },
    /// A snapshot can be used only on its volume's node (CS-13).
    #[error(
        "a snapshot of volume {volume} can only be used on node {node}, which accessibility_requirements leave out"
    )]
    OutOfReach {
        /// The volume id.
        volume: String,
        /// The node that holds it.
        node: String,
    },
    /// The snapshot belongs to a group, and is deleted only with it (DS-05).
    #[error(
        "snapshot {snapshot} belongs to group snapshot {group}: delete that, and all of its snapshots go"
    )]
    Member {
        /// The snapshot id.
        snapshot: String,
        /// The group's id.
        group: String,
    },
}

/// Creates, finds and removes snapshots.
#[derive(Debug)]
pub struct Snapshots {
    objects: Objects<PoolSnapshot>,
    volumes: Objects<PoolVolume>,
    listing: Arc<Listing<ListedSnapshot>>,
    /// Wakes the removal of bases.
    kept: Notify,
}

impl Snapshots {
    /// Creates the snapshots of a cluster, and the future of their watch and of the removal of bases. Poll the future
    /// as long as the process serves. `readiness` waits for the first list.
    pub fn new(
        objects: Objects<PoolSnapshot>,
        volumes: Objects<PoolVolume>,
        readiness: Readiness,
    ) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let listing = Arc::default();
        let watch = watch_listed(&objects, &listing, readiness, "watch of PoolSnapshots");
        let snapshots = Arc::new(Self {
            objects,
            volumes,
            listing,
            kept: Notify::new(),
        });
        let revoke = Arc::clone(&snapshots).revoke_bases();
        (snapshots, future::join(watch, revoke).map(drop).boxed())
    }

    /// Reads a snapshot from the API server, so that it includes the work of other replicas. Fails
    /// if it does not exist or is not taken yet, or if a request to the API server fails.
    pub async fn describe(&self, id: &str) -> Result<ListedSnapshot, Error> {
        let found = self.find(id).await?;
        let snapshot = found.as_ref().and_then(ListedSnapshot::of);
        Ok(snapshot.ok_or_else(|| not_found::<PoolSnapshot>(id))?)
    }

    /// A page of the requested snapshots, from memory; a single one is read from the API server
    /// (LS-05). Fails before the first list is complete, or if a request to the API server fails.
    pub async fn list(&self, query: &SnapshotQuery) -> Result<Page<ListedSnapshot>, Error> {
        let of_source = |snapshot: &ListedSnapshot| {
            let source = query.source_volume.as_deref();
            source.is_none_or(|source| *snapshot.source_volume == *source) && !snapshot.is_hidden
        };
        let Some(id) = &query.snapshot else {
            let page = self.listing.page(&query.page, of_source);
            return Ok(page.ok_or(objects::Error::Starting)?);
        };
        let found = self.objects.find(id).await?;
        let found = found.as_ref().and_then(ListedSnapshot::of);
        let found = found.filter(|snapshot| of_source(snapshot) && query.page.reaches(snapshot));
        Ok(Page {
            entries: found.into_iter().collect(),
            next: None,
        })
    }

    /// Destroys the snapshot's data and removes its object, unless its class keeps it as a base. Succeeds if the
    /// snapshot does not exist (DS-03), and finishes an interrupted removal.
    ///
    /// Fails if the snapshot belongs to a group, if it is in use, if its agent is silent, or if a
    /// request to the API server fails. Also fails at the deadline: the state stays as it is, and a
    /// repeated call resumes.
    pub async fn delete(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        let removing = async |operation: &mut _| {
            if let Some(found) = self.find(id).await? {
                if let Some(group) = found.spec.group_name.clone() {
                    let snapshot = id.to_owned();
                    return Err(Error::Member { snapshot, group });
                }
                if !self.keep_as_base(found).await? {
                    self.objects.remove(operation).await?;
                }
            }
            self.listing.until_shown(id, false).await;
            Ok(())
        };
        self.objects.run_exclusive(id, deadline, removing).await
    }

    /// Reads a snapshot that a user requested from the API server.
    async fn find(&self, id: &str) -> Result<Option<PoolSnapshot>, objects::Error> {
        let found = self.objects.find(id).await?;
        Ok(found.filter(|snapshot| !snapshot.spec.is_hidden()))
    }

    /// The custom resources of the snapshots.
    pub fn objects(&self) -> &Objects<PoolSnapshot> {
        &self.objects
    }

    /// Waits until the list contains a snapshot, or no longer contains it if `listed` is false.
    pub async fn until_shown(&self, id: &str, listed: bool) {
        self.listing.until_shown(id, listed).await;
    }
}
