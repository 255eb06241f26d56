//! The agents and the kubelets of all nodes, played by one program from one watch of the PoolVolumes.
//!
//! An agent writes what the real one writes: it admits a volume, reports it ready, commits to its removal and frees it,
//! and writes the room of its pools after each change. There is no data.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cistern_crds::{Bytes, PoolVolume, StorageNode, names};
use cistern_e2e::{eventually, objects};
use futures::{StreamExt as _, stream};
use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{
    fill::{POOLS, node_name},
    lag::Lag,
};

/// Space of each pool for volumes, in GiB. Every volume has 1 GiB.
const USABLE: u64 = 1023;
/// How often each kubelet writes the status of its Node.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The longest time that the API server keeps the watch.
const WATCH_SECONDS: u32 = 290;
/// How long the operator may take to create all StorageNodes.
const CREATED: Duration = Duration::from_mins(10);
/// Objects in one answer to a list.
const PAGE: u32 = 500;
/// Number of concurrent writers at the start.
const WRITERS: usize = 24;

/// All agents.
pub(crate) struct Agents {
    client: Client,
    lag: Arc<Lag>,
    nodes: BTreeMap<String, Mutex<Pools>>,
    failures: AtomicUsize,
}

/// What one agent knows of its pools.
#[derive(Default)]
struct Pools {
    uids: Vec<String>,
    volumes: [u64; POOLS.len()],
}

impl Agents {
    /// Waits until the operator has created the StorageNodes.
    pub(crate) async fn new(client: Client, lag: Arc<Lag>, count: usize) -> Self {
        let api: Api<StorageNode> = Api::all(client.clone());
        let what = format!("the operator to create {count} StorageNodes");
        let nodes = eventually(&what, CREATED, async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let nodes = api.list(&ListParams::default()).await;
            let mut nodes = nodes.map_err(|error| error.to_string())?.items;
            nodes.retain(|node| node.spec.pools.len() == POOLS.len());
            let found = nodes.len();
            let all = (found == count).then_some(nodes);
            all.ok_or_else(|| format!("{found} of them carry all pools"))
        })
        .await;
        let nodes = nodes.iter().map(|node| {
            let uid = |name: &&str| {
                let mut pools = node.spec.pools.iter();
                let pool = pools.find(|pool| pool.name == **name);
                pool.expect("it carries all pools").uid.clone()
            };
            let pools = Pools {
                uids: POOLS.iter().map(uid).collect(),
                ..Pools::default()
            };
            (node.name_any(), Mutex::new(pools))
        });
        Self {
            client,
            lag,
            nodes: nodes.collect(),
            failures: AtomicUsize::new(0),
        }
    }

    /// Counts the volumes of the cluster, and reports all pools of all nodes.
    pub(crate) async fn report(&self) {
        let api: Api<PoolVolume> = Api::all(self.client.clone());
        let mut parameters = ListParams::default().limit(PAGE);
        loop {
            let page = api.list(&parameters).await.expect("it answers");
            for volume in &page.items {
                let pools = &self.nodes[&volume.spec.node_name];
                pools.lock().await.volumes[index(&volume.spec.pool_name)] += 1;
            }
            let rest = page.metadata.continue_.filter(|token| !token.is_empty());
            let Some(token) = rest else { break };
            parameters = parameters.continue_token(&token);
        }
        stream::iter(&self.nodes)
            .for_each_concurrent(WRITERS, async |(node, pools)| {
                self.write_pools(node, &*pools.lock().await).await;
            })
            .await;
    }

    /// The number of writes that failed.
    pub(crate) fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    /// Follows the PoolVolumes from now on.
    pub(crate) async fn follow(self: Arc<Self>) {
        let api: Api<PoolVolume> = Api::all(self.client.clone());
        let list = api.list_metadata(&ListParams::default().limit(1)).await;
        let list = list.expect("the API server answers");
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let parameters = WatchParams::default().timeout(WATCH_SECONDS);
        loop {
            let events = api.watch(&parameters, &version).await;
            let mut events = events.expect("the API server answers").boxed();
            while let Some(Ok(event)) = events.next().await {
                match event {
                    WatchEvent::Added(volume) | WatchEvent::Modified(volume) => {
                        version = volume.resource_version().unwrap_or(version);
                        self.act(&volume);
                    }
                    WatchEvent::Deleted(volume) => {
                        version = volume.resource_version().unwrap_or(version);
                    }
                    WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                    WatchEvent::Error(error) => panic!("the watch of volumes ends: {error:?}"),
                }
            }
        }
    }

    /// Writes the status of every Node once in an interval, one after the other.
    pub(crate) async fn heartbeats(self: Arc<Self>) {
        let api: Api<Node> = Api::all(self.client.clone());
        let count = u32::try_from(self.nodes.len()).expect("a few thousand");
        let mut ticks = tokio::time::interval(HEARTBEAT / count);
        for number in (0..self.nodes.len()).cycle() {
            ticks.tick().await;
            let (this, api) = (Arc::clone(&self), api.clone());
            tokio::spawn(async move {
                let condition = json!({
                    "type": "Ready", "status": "True",
                    "lastHeartbeatTime": Timestamp::now().to_string(),
                });
                let status = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
                let name = node_name(number);
                let parameters = PatchParams::default();
                this.check(api.patch_status(&name, &parameters, &status).await);
            });
        }
    }

    /// Starts what the agent does about a volume. Its own writes come back and need nothing.
    fn act(self: &Arc<Self>, volume: &PoolVolume) {
        let this = Arc::clone(self);
        let (name, spec) = (volume.name_any(), &volume.spec);
        let (node, pool) = (spec.node_name.clone(), spec.pool_name.clone());
        let status = volume.status.as_ref();
        let is_reserved = status.is_some_and(|status| status.reserved.is_some());
        let is_committed = status.is_some_and(|status| status.deletion_committed);
        if spec.deletion_requested {
            if is_reserved && !is_committed {
                tokio::spawn(async move { this.reclaim(&name, &node, &pool).await });
            }
        } else if !is_reserved && volume.metadata.deletion_timestamp.is_none() {
            tokio::spawn(async move { this.make(&name, &node, &pool).await });
        }
    }

    async fn make(&self, name: &str, node: &str, pool: &str) {
        let admitted = json!({
            "observedGeneration": 1,
            "reserved": "1Gi",
            "attributes": {"provisioning": "Thin"},
            "conditions": [objects::condition("Admitted", "Reconciled", "the space is reserved")],
        });
        self.write_volume(name, admitted).await;
        self.count(node, pool, |volumes| volumes + 1).await;
        self.write_volume(name, objects::made(name)).await;
    }

    async fn reclaim(&self, name: &str, node: &str, pool: &str) {
        self.write_volume(name, json!({"deletionCommitted": true}))
            .await;
        let reclaimed = objects::condition("Reclaimed", "Reconciled", "the data is removed");
        let freed = json!({"reserved": null, "conditions": [reclaimed]});
        self.write_volume(name, freed).await;
        self.count(node, pool, |volumes| volumes.saturating_sub(1))
            .await;
    }

    async fn count(&self, node: &str, pool: &str, change: fn(u64) -> u64) {
        let index = index(pool);
        // Locked during the write, so that an older number does not replace a newer one.
        let mut pools = self.nodes[node].lock().await;
        pools.volumes[index] = change(pools.volumes[index]);
        self.lag.reported(pool, node, room(pools.volumes[index]));
        self.write_pools(node, &pools).await;
    }

    async fn write_pools(&self, node: &str, pools: &Pools) {
        let pools: Vec<Value> = (0..POOLS.len())
            .map(|index| pool_status(POOLS[index], &pools.uids[index], pools.volumes[index]))
            .collect();
        let summary = "five pools of the bench";
        let status = json!({"observedGeneration": 1, "pools": pools, "poolsSummary": summary});
        let api: Api<StorageNode> = Api::all(self.client.clone());
        self.write(&api, node, status).await;
    }

    async fn write_volume(&self, name: &str, status: Value) {
        let api: Api<PoolVolume> = Api::all(self.client.clone());
        self.write(&api, name, status).await;
    }

    async fn write<K>(&self, api: &Api<K>, name: &str, status: Value)
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let parameters = PatchParams {
            field_manager: Some(names::AGENT_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let status = Patch::Merge(json!({"status": status}));
        self.check(api.patch_status(name, &parameters, &status).await);
    }

    fn check<T>(&self, written: Result<T, kube::Error>) {
        if let Err(error) = written {
            self.failures.fetch_add(1, Ordering::Relaxed);
            eprintln!("a write of an agent or kubelet failed: {error}");
        }
    }
}

fn index(pool: &str) -> usize {
    let index = POOLS.iter().position(|name| *name == pool);
    index.expect("it is a pool of the bench")
}

fn room(volumes: u64) -> Bytes {
    Bytes::gib(USABLE.saturating_sub(volumes))
}

fn pool_status(name: &str, uid: &str, volumes: u64) -> Value {
    let room = room(volumes);
    json!({
        "name": name,
        "uid": uid,
        "filesystemUuid": uid,
        "size": "1Ti",
        "usable": Bytes::gib(USABLE),
        "empty": "1Ti",
        "reserved": Bytes::gib(volumes),
        "thinRoom": room,
        "thickRoom": room,
        "volumes": volumes,
        "conditions": [
            objects::condition("Healthy", "Reconciled", "no problem is known"),
            objects::condition("Ready", "Reconciled", "the pool can be used"),
        ],
    })
}
