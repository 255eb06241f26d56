//! Snapshots as the controller sees them: wishes in custom resources, and what the agents say.
//!
//! ```text
//! ensure ─▶ PoolSnapshot.spec ──▶ agent ──▶ PoolSnapshot.status ──▶ watch ──▶ ensure
//! delete ─▶ spec.deletionRequested ─▶ agent ─▶ status ─▶ watch ─▶ delete
//! ```
//!
//! A snapshot lies where its volume lies: there is nothing to choose.
//!
//! *Invariant:* a snapshot that was cut is never cut again under its name, whatever becomes of its
//! volume. What a repeat of the call that made it is told comes from the object and is always the
//! same.

mod ensure;
mod listed;
mod refusal;
mod request;

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use cistern_client::http::Readiness;
use cistern_crds::{PoolSnapshot, PoolVolume, Reason};
use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::Instant;

pub use self::{
    listed::ListedSnapshot,
    refusal::advice,
    request::{NewSnapshot, SnapshotQuery},
};
use crate::objects::{
    self, Objects,
    listing::{Listed as _, Listing, Page},
    not_found,
    watch::watch,
};

/// Why an operation on a snapshot did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is as with every object.
    #[error(transparent)]
    Object(#[from] objects::Error),
    /// The node does not take the snapshot, and nothing of it is left (CS-18).
    #[error("node {node} cannot take a snapshot of volume {volume}: {message}: {advice}")]
    Refused {
        /// The volume.
        volume: String,
        /// Where it is.
        node: String,
        /// Why, for programs; none where the agent did not answer.
        reason: Option<Reason>,
        /// Why, for people.
        message: String,
        /// What to do.
        advice: String,
    },
    /// A snapshot can be used nowhere but at its volume's node (CS-13).
    #[error(
        "a snapshot of volume {volume} can only be used on node {node}, which accessibility_requirements leave out"
    )]
    OutOfReach {
        /// The volume.
        volume: String,
        /// Where it is.
        node: String,
    },
    /// The snapshot goes with its group and not before (DS-05).
    #[error(
        "snapshot {snapshot} belongs to group snapshot {group}: delete that, and all of its snapshots go"
    )]
    Member {
        /// Its id.
        snapshot: String,
        /// The group's id.
        group: String,
    },
}

/// Makes, finds and removes snapshots.
#[derive(Debug)]
pub struct Snapshots {
    objects: Objects<PoolSnapshot>,
    volumes: Objects<PoolVolume>,
    listing: Listing<ListedSnapshot>,
}

impl Snapshots {
    /// The snapshots of a cluster, and the watch that feeds them: poll it as long as the process
    /// serves. `readiness` is done when it has seen everything once.
    pub fn new(
        objects: Objects<PoolSnapshot>,
        volumes: Objects<PoolVolume>,
        readiness: Readiness,
    ) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let client = objects.client();
        let snapshots = Arc::new(Self {
            objects,
            volumes,
            listing: Listing::default(),
        });
        let (mut listed, mut unfinished) = (HashSet::new(), BTreeSet::new());
        let seeing = Arc::clone(&snapshots);
        let part = "watch of PoolSnapshots";
        let watch = watch::<PoolSnapshot>(client, readiness, part, move |event| {
            seeing.listing.see(&event, &mut unfinished);
            seeing.objects.attendance().see(event, &mut listed);
        });
        (snapshots, watch.boxed())
    }

    /// The snapshot of an id, as the API server has it: what another replica did counts. One that is
    /// not cut yet is not there.
    pub async fn describe(&self, id: &str) -> Result<ListedSnapshot, Error> {
        let found = self.objects.find(id).await?;
        let snapshot = found.as_ref().and_then(ListedSnapshot::of);
        Ok(snapshot.ok_or_else(|| not_found::<PoolSnapshot>(id))?)
    }

    /// Some of the snapshots that are asked for: from memory, but a single one as the API server has
    /// it (LS-05).
    pub async fn list(&self, query: &SnapshotQuery) -> Result<Page<ListedSnapshot>, Error> {
        let of_source = |snapshot: &ListedSnapshot| {
            let source = query.source_volume.as_deref();
            source.is_none_or(|source| *snapshot.source_volume == *source)
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

    /// Has the snapshot's data destroyed and its object removed. One that is not there is fine
    /// (DS-03), and one that was half removed is removed.
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn delete(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        let removing = async |attention: &mut _| {
            let found = self.objects.find(id).await?;
            if let Some(group) = found.and_then(|snapshot| snapshot.spec.group_name) {
                let snapshot = id.to_owned();
                return Err(Error::Member { snapshot, group });
            }
            self.objects.remove(attention).await?;
            self.listing.until_shown(id, false).await;
            Ok(())
        };
        self.objects.attending(id, deadline, removing).await
    }

    /// Their custom resources.
    pub fn objects(&self) -> &Objects<PoolSnapshot> {
        &self.objects
    }

    /// Waits until the list shows what was done with a snapshot.
    pub async fn until_shown(&self, id: &str, listed: bool) {
        self.listing.until_shown(id, listed).await;
    }
}
