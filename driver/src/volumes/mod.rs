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
mod listing;
mod nodes;
mod placement;
mod request;
mod watch;

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use cistern_client::{Chain, http::Readiness};
use cistern_crds::{PoolVolume, StorageNode};
use futures::{
    FutureExt as _, Stream, StreamExt as _,
    future::{self, BoxFuture},
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client, Resource,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _, watcher,
        watcher::{Config, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

pub use self::{
    capacity::{Capacity, CapacityQuery},
    listing::{ListedVolume, Page, PageQuery, Token},
    placement::Error as PlacementError,
    request::{NewVolume, Requirement, SizeRange},
};
use self::{listing::Listing, nodes::Nodes, watch::Attendance, watch::Attention};

/// Why an operation on a volume did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The nodes are not known yet, so nothing can be placed or counted.
    #[error("the controller has just started and does not know the nodes yet")]
    Starting,
    /// Whether the API server did it is not known.
    #[error("cannot {action}")]
    Api {
        /// What was tried, and with which object.
        action: String,
        /// What the API server, or the way to it, said.
        #[source]
        source: Box<kube::Error>,
    },
    /// Another operation of this process works on the volume.
    #[error("another operation on volume {volume} is running")]
    Busy {
        /// Its id.
        volume: String,
    },
    /// The time is up. What was begun stays, and a repeat goes on with it.
    #[error("volume {volume} is waiting for {waits_for}")]
    Pending {
        /// Its id.
        volume: String,
        /// What it waits for.
        waits_for: String,
    },
    /// A volume has this name that is not what is asked for (CV-07).
    #[error("volume {volume} exists and is not what is asked for: {difference}")]
    Different {
        /// Its id.
        volume: String,
        /// The first thing that differs.
        difference: String,
    },
    /// No node takes the volume, and nothing of it is left.
    #[error(transparent)]
    Placement(#[from] placement::Error),
    /// There is no such volume.
    #[error("there is no volume {volume}")]
    NotFound {
        /// As it was asked for.
        volume: String,
    },
    /// The volume cannot have such a size, and is as large as it was (CEV-07).
    #[error("volume {volume} cannot have the size that is asked for: {why}")]
    SizeNotPossible {
        /// Its id.
        volume: String,
        /// Why, with the size that could be had.
        why: String,
    },
    /// The volume is used on its node; its data is untouched (DV-04).
    #[error("volume {volume} is in use on node {node}: {message}")]
    InUse {
        /// Its id.
        volume: String,
        /// Where it is.
        node: String,
        /// What the agent says.
        message: String,
    },
}

/// Makes, finds, expands and removes volumes.
#[derive(Debug)]
pub struct Volumes {
    api: Api<PoolVolume>,
    nodes: Nodes,
    attendance: Attendance,
    listing: Listing,
}

impl Volumes {
    /// The volumes of a cluster, and the watches that feed them: poll these as long as the process
    /// serves. `readiness` is done when both have seen everything once.
    pub fn new(client: Client, readiness: Readiness) -> (Arc<Self>, BoxFuture<'static, ()>) {
        let volumes = Arc::new(Self {
            api: Api::all(client),
            nodes: Nodes::new(),
            attendance: Attendance::default(),
            listing: Listing::new(),
        });
        for watch in [NODES, VOLUMES] {
            readiness.wait_for(watch, "the first list has not come");
        }
        let watches = Arc::clone(&volumes).watch(readiness);
        (volumes, watches.boxed())
    }

    /// The volume of an id, as the API server has it: what another replica did counts. One that
    /// cannot be used yet is not there.
    pub async fn get(&self, id: &str) -> Result<PoolVolume, Error> {
        let found = self.find(id).await?;
        let volume = found.filter(|volume| ListedVolume::of(volume).is_some());
        volume.ok_or_else(|| not_found(id))
    }

    /// The same, as callers are told of it.
    pub async fn describe(&self, id: &str) -> Result<ListedVolume, Error> {
        let found = self.find(id).await?;
        let volume = found.as_ref().and_then(ListedVolume::of);
        volume.ok_or_else(|| not_found(id))
    }

    /// Some of all volumes, from memory.
    pub fn list(&self, query: &PageQuery) -> Result<Page, Error> {
        self.listing.page(query).ok_or(Error::Starting)
    }

    /// Room for new volumes.
    pub fn capacity(&self, query: &CapacityQuery) -> Result<Capacity, Error> {
        let nodes = self.nodes.all().ok_or(Error::Starting)?;
        Ok(capacity::capacity(query, &nodes))
    }

    async fn watch(self: Arc<Self>, readiness: Readiness) {
        let mut unfinished = BTreeMap::new();
        let nodes = events::<StorageNode>(self.client()).for_each(|event| {
            let complete = matches!(event, Event::InitDone);
            self.nodes.see(event, &mut unfinished);
            if complete {
                readiness.done(NODES);
            }
            future::ready(())
        });
        let (mut listed, mut unfinished) = (HashSet::new(), BTreeMap::new());
        let volumes = events::<PoolVolume>(self.client()).for_each(|event| {
            let complete = matches!(event, Event::InitDone);
            self.listing.see(&event, &mut unfinished);
            self.attendance.see(event, &mut listed);
            if complete {
                readiness.done(VOLUMES);
            }
            future::ready(())
        });
        future::join(nodes, volumes).await;
    }

    /// Waits until the list shows what was done with a volume, so that whoever asked for it finds it
    /// there. As a rule the watch was what said that it is done; an answer is not held up for more.
    async fn until_shown(&self, id: &str, listed: bool) {
        let _ = timeout(LAG, self.listing.until(id, listed)).await;
    }

    fn attend(&self, id: &str) -> Result<Attention, Error> {
        self.attendance.attend(id).ok_or_else(|| Error::Busy {
            volume: id.to_owned(),
        })
    }

    /// The object as the API server has it now. An id that none of ours can have is not asked for:
    /// it would become part of a path.
    async fn find(&self, id: &str) -> Result<Option<PoolVolume>, Error> {
        if !cistern_crds::names::is_volume_id(id) {
            return Ok(None);
        }
        let found = self.api.get_opt(id).await;
        found.map_err(failed(|| format!("read PoolVolume {id}")))
    }

    fn claims(&self, namespace: &str) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client(), namespace)
    }

    fn client(&self) -> Client {
        self.api.clone().into_client()
    }
}

const NODES: &str = "watch of StorageNodes";
const VOLUMES: &str = "watch of PoolVolumes";
/// Objects that come at a time when all are listed. Most of each is forgotten at once, and a tenth of
/// memory is what larger pages cost.
const LIST_PAGE: u32 = 100;
/// How far the watch may lag behind what an operation saw itself before its answer goes out.
const LAG: Duration = Duration::from_secs(2);

/// What happens to the objects of a kind. Trouble is logged and tried again, and an object that
/// cannot be read is passed over: it must not hide the others.
fn events<K>(client: Client) -> impl Stream<Item = Event<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client);
    watcher(api, Config::default().page_size(LIST_PAGE))
        .default_backoff()
        .filter_map(|event| {
            future::ready(match event {
                Ok(event) => readable(event),
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), error = %Chain(&error), "the watch is interrupted");
                    None
                }
            })
        })
}

fn readable<K: Resource<DynamicType = ()>>(event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
    let read = |guarded: DeserializeGuard<K>| match guarded.0 {
        Ok(mut object) => {
            object.meta_mut().managed_fields = None;
            Some(object)
        }
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            tracing::error!(kind = %K::kind(&()), name, error = %invalid, "an object cannot be read");
            None
        }
    };
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(object) => read(object).map(Event::InitApply),
        Event::Apply(object) => read(object).map(Event::Apply),
        Event::Delete(object) => read(object).map(Event::Delete),
    }
}

fn not_found(id: &str) -> Error {
    Error::NotFound {
        volume: id.to_owned(),
    }
}

/// Says what was tried when the API server did not do it.
fn failed(action: impl FnOnce() -> String) -> impl FnOnce(kube::Error) -> Error {
    |source| Error::Api {
        action: action(),
        source: Box::new(source),
    }
}
