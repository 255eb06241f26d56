//! Volumes in the controller: the desired state in custom resources, and the status of the agents.
//!
//! ```text
//! ensure ── placement ──▶ PoolVolume.spec ──▶ agent ──▶ PoolVolume.status ──▶ watch ──▶ ensure
//! expand ───────────────▶ spec.size ─▶ agent ─▶ status ─▶ watch ─▶ expand
//! modify ───────────────▶ spec.attributes ─▶ agent ─▶ status ─▶ watch ─▶ modify
//! delete ───────────────▶ spec.deletionRequested ─▶ agent ─▶ status ─▶ watch ─▶ delete
//! ```
//!
//! *Invariant:* several controllers run concurrently. Every write carries the version it is based
//! on. After a crash or a cancelled call, a repeat of the same call resumes at any point.

mod capacity;
mod change;
mod delete;
mod ensure;
mod expand;
mod health;
mod listed;
mod modify;
mod pinned;
mod placement;
mod request;
mod source;

use std::{collections::BTreeMap, sync::Arc};

use cistern_client::http::Readiness;
use cistern_crds::{Explanation, PoolSnapshot, PoolVolume, StorageNode, VolumeAttributes};
use futures::{
    FutureExt as _,
    future::{self, BoxFuture},
};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::{Api, ResourceExt as _};
use tokio::sync::Notify;

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
    watch::watch_listed,
};

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error that all objects share.
    #[error(transparent)]
    Object(#[from] objects::Error),
    /// No node takes the volume. No object remains.
    #[error(transparent)]
    Placement(#[from] placement::Error),
    /// The volume cannot be created from its source. No object remains.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// The volume cannot have such a size; its size is unchanged (CEV-07).
    #[error("volume {volume} cannot have the requested size: {why}")]
    SizeNotPossible {
        /// The volume id.
        volume: String,
        /// The reason, and the possible size.
        why: String,
    },
    /// The pool refuses the attributes; those of the volume are unchanged (CMV-05).
    #[error("volume {volume} cannot have {attributes}: {why}")]
    AttributesNotPossible {
        /// The volume id.
        volume: String,
        /// The attributes that the request leads to.
        attributes: Box<VolumeAttributes>,
        /// Why the agent refuses them.
        why: Explanation,
    },
}

/// Creates, finds, changes and removes volumes.
#[derive(Debug)]
pub struct Volumes {
    objects: Objects<PoolVolume>,
    snapshots: Objects<PoolSnapshot>,
    listing: Arc<Listing<ListedVolume>>,
    /// Wakes the removal of snapshots that no volume waits for.
    unpinned: Notify,
}

impl Volumes {
    /// Creates the volumes of a cluster, and the future of their watch and of the removal of snapshots that were
    /// taken for copies. Poll the future as long as the process serves. `readiness` waits for the first list.
    pub fn new(
        objects: Objects<PoolVolume>,
        snapshots: Objects<PoolSnapshot>,
        readiness: Readiness,
    ) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let listing = Arc::default();
        let watch = watch_listed(&objects, &listing, readiness, "watch of PoolVolumes");
        let volumes = Self {
            objects,
            snapshots,
            listing,
            unpinned: Notify::new(),
        };
        let volumes = Arc::new(volumes);
        let collect = Arc::clone(&volumes).collect_pinned();
        (volumes, future::join(watch, collect).map(drop).boxed())
    }

    /// Reads a volume from the API server, so that it includes the work of other replicas. Fails if
    /// it does not exist or cannot be used yet, or if a request to the API server fails.
    pub async fn get(&self, id: &str) -> Result<PoolVolume, Error> {
        let found = self.objects.find(id).await?;
        let volume = found.filter(|volume| ListedVolume::of(volume).is_some());
        Ok(volume.ok_or_else(|| not_found::<PoolVolume>(id))?)
    }

    /// Reads a volume again. Fails if it is gone, or if a request to the API server fails.
    async fn read_again(&self, volume: &PoolVolume) -> Result<PoolVolume, Error> {
        let found = self.objects.find_again(volume).await?;
        Ok(found.ok_or_else(|| not_found::<PoolVolume>(&volume.name_any()))?)
    }

    /// Reads the listed fields and the problems of a volume. Fails if it does not exist or cannot
    /// be used yet, if the first list of the nodes is not complete, or if a request to the API
    /// server fails.
    pub async fn describe(&self, id: &str) -> Result<ExaminedVolume, Error> {
        let found = self.objects.find(id).await?;
        let volume = found.as_ref().and_then(ListedVolume::of);
        let volume = volume.ok_or_else(|| not_found::<PoolVolume>(id))?;
        let nodes = self.storage_nodes()?;
        Ok(examined(volume, &nodes))
    }

    /// A page of all volumes, from memory. Fails before the first lists are complete.
    pub fn list(&self, query: &PageQuery) -> Result<Page<ExaminedVolume>, Error> {
        let nodes = self.storage_nodes()?;
        let page = self.listing.page(query, |_| true);
        let page = page.ok_or(objects::Error::Starting)?;
        Ok(page.map(|volume| examined(volume, &nodes)))
    }

    /// A page of the volumes with problems, from memory (CLH-07). Fails before the first lists are
    /// complete.
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

    /// Computes the room for new volumes. Fails before the first list of the nodes is complete.
    pub fn capacity(&self, query: &CapacityQuery) -> Result<Capacity, Error> {
        Ok(capacity::capacity(query, &self.all_nodes()?))
    }

    fn storage_nodes(&self) -> Result<StorageNodes, Error> {
        let nodes = self.objects.nodes().by_name();
        Ok(nodes.ok_or(objects::Error::Starting)?)
    }

    /// Every StorageNode. Fails before the first list of the nodes is complete.
    fn all_nodes(&self) -> Result<Vec<Arc<StorageNode>>, Error> {
        let nodes = self.objects.nodes().all();
        Ok(nodes.ok_or(objects::Error::Starting)?)
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.objects.client())
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
