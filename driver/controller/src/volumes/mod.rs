//! Volumes as the controller sees them: wishes in custom resources, and what the agents say.
//!
//! ```text
//! ensure ── placement ──▶ PoolVolume.spec ──▶ agent ──▶ PoolVolume.status ──▶ watch ──▶ ensure
//! expand ───────────────▶ spec.size ─▶ agent ─▶ status ─▶ watch ─▶ expand
//! delete ───────────────▶ spec.deletionRequested ─▶ agent ─▶ status ─▶ watch ─▶ delete
//! ```
//!
//! *Invariant:* several controllers run at once. Every write carries what it was based on, and
//! after a crash, or when a caller gives up, at any point a repeat of the same call takes up where
//! the last one stood.

mod capacity;
mod delete;
mod ensure;
mod expand;
mod health;
mod listed;
mod placement;
mod request;
mod source;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use cistern_client::http::Readiness;
use cistern_crds::{PoolSnapshot, PoolVolume, StorageNode};
use futures::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;

pub use self::{
    capacity::{Capacity, CapacityQuery},
    health::ExaminedVolume,
    listed::ListedVolume,
    placement::Error as PlacementError,
    request::{NewVolume, Requirement, SizeRange},
    source::{Error as SourceError, SourceReference},
};
use crate::objects::{
    self, Objects,
    listing::{Listed as _, Listing, Page, PageQuery},
    not_found,
    watch::watch,
};

/// Why an operation on a volume did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is as with every object.
    #[error(transparent)]
    Object(#[from] objects::Error),
    /// No node takes the volume, and nothing of it is left.
    #[error(transparent)]
    Placement(#[from] placement::Error),
    /// The volume cannot be made from what it is to be a copy of, and nothing of it is left.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// The volume cannot have such a size, and is as large as it was (CEV-07).
    #[error("volume {volume} cannot have the size that is asked for: {why}")]
    SizeNotPossible {
        /// Its id.
        volume: String,
        /// Why, with the size that could be had.
        why: String,
    },
}

/// Makes, finds, expands and removes volumes.
#[derive(Debug)]
pub struct Volumes {
    objects: Objects<PoolVolume>,
    snapshots: Objects<PoolSnapshot>,
    listing: Listing<ListedVolume>,
}

impl Volumes {
    /// The volumes of a cluster, and the watch that feeds them: poll it as long as the process
    /// serves. `readiness` is done when it has seen everything once.
    pub fn new(
        objects: Objects<PoolVolume>,
        snapshots: Objects<PoolSnapshot>,
        readiness: Readiness,
    ) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let client = objects.client();
        let volumes = Arc::new(Self {
            objects,
            snapshots,
            listing: Listing::default(),
        });
        let (mut listed, mut unfinished) = (HashSet::new(), BTreeSet::new());
        let seeing = Arc::clone(&volumes);
        let watch = watch::<PoolVolume>(client, readiness, "watch of PoolVolumes", move |event| {
            seeing.listing.see(&event, &mut unfinished);
            seeing.objects.attendance().see(event, &mut listed);
        });
        (volumes, watch.boxed())
    }

    /// The volume of an id, as the API server has it: what another replica did counts. One that
    /// cannot be used yet is not there.
    pub async fn get(&self, id: &str) -> Result<PoolVolume, Error> {
        let found = self.objects.find(id).await?;
        let volume = found.filter(|volume| ListedVolume::of(volume).is_some());
        Ok(volume.ok_or_else(|| not_found::<PoolVolume>(id))?)
    }

    /// The same, as callers are told of it, and what is wrong with it.
    pub async fn describe(&self, id: &str) -> Result<ExaminedVolume, Error> {
        let found = self.objects.find(id).await?;
        let volume = found.as_ref().and_then(ListedVolume::of);
        let volume = volume.ok_or_else(|| not_found::<PoolVolume>(id))?;
        let nodes = self.storage_nodes()?;
        Ok(examined(volume, &nodes))
    }

    /// Some of all volumes, from memory.
    pub fn list(&self, query: &PageQuery) -> Result<Page<ExaminedVolume>, Error> {
        let nodes = self.storage_nodes()?;
        let page = self.listing.page(query, |_| true);
        let page = page.ok_or(objects::Error::Starting)?;
        Ok(page.map(|volume| examined(volume, &nodes)))
    }

    /// Some of those volumes that something is wrong with, from memory (CLH-07).
    pub fn list_unwell(&self, query: &PageQuery) -> Result<Page<ExaminedVolume>, Error> {
        let nodes = self.storage_nodes()?;
        let unwell = |volume: &ListedVolume| {
            let node = nodes.get(&*volume.node);
            !health::problems(volume, node.map(Arc::as_ref)).is_empty()
        };
        let page = self.listing.page(query, unwell);
        let page = page.ok_or(objects::Error::Starting)?;
        Ok(page.map(|volume| examined(volume, &nodes)))
    }

    /// Room for new volumes.
    pub fn capacity(&self, query: &CapacityQuery) -> Result<Capacity, Error> {
        let nodes = self.objects.nodes().all().ok_or(objects::Error::Starting)?;
        Ok(capacity::capacity(query, &nodes))
    }

    fn storage_nodes(&self) -> Result<StorageNodes, Error> {
        let nodes = self.objects.nodes().by_name();
        Ok(nodes.ok_or(objects::Error::Starting)?)
    }

    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.objects.client(), namespace)
    }
}

/// The nodes, by name.
type StorageNodes = BTreeMap<String, Arc<StorageNode>>;

fn examined(volume: ListedVolume, nodes: &StorageNodes) -> ExaminedVolume {
    let node = nodes.get(&*volume.node).cloned();
    ExaminedVolume::on(volume, node.as_deref())
}
