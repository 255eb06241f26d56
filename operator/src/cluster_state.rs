//! The operator's cached view of the cluster: one watch per kind, shared by all controllers.
//!
//! An object that cannot be read does not stop its watch: the cache keeps its metadata, and
//! it counts as an object that holds data.
//!
//! *Invariant:* this module decides nothing and writes nothing.

use std::{future::Future, sync::Arc};

use cistern_client::{OwnWrites, http::Readiness, watches};
use cistern_crds::{
    HasImage, PoolSnapshot, PoolVolume, Provisioning, StorageNode, StoragePool, names,
};
use futures::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolumeClaim, Pod},
    storage::v1::{CSINode, CSIStorageCapacity, StorageClass},
};
use kube::{
    Api, Client, ResourceExt as _,
    core::DeserializeGuard,
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use tokio::sync::broadcast;

use crate::{
    change::Change,
    contents::{Contents, Count},
    kinds::WatchedKind,
    watch::watch,
};

/// Changes that a slow controller may lag behind before it reconciles everything again.
const CHANGES: usize = 4096;

/// Caches of all watched objects.
#[derive(Clone, Debug)]
pub struct ClusterState {
    /// Every StoragePool.
    pub pools: Store<DeserializeGuard<StoragePool>>,
    /// Every StorageNode.
    pub storage_nodes: Store<DeserializeGuard<StorageNode>>,
    /// Every PoolVolume.
    pub volumes: Store<DeserializeGuard<PoolVolume>>,
    /// Every PoolSnapshot.
    pub snapshots: Store<DeserializeGuard<PoolSnapshot>>,
    /// Every Node.
    pub nodes: Store<Node>,
    /// Every CSINode.
    pub csi_nodes: Store<CSINode>,
    /// The pods of the node plugin.
    pub agents: Store<Pod>,
    /// The StorageClasses of our driver.
    pub classes: Store<StorageClass>,
    /// The claims that wait for a volume, of any provisioner.
    pub claims: Store<PersistentVolumeClaim>,
    /// The capacity objects that the operator made.
    pub capacities: Store<CSIStorageCapacity>,
    /// Writes of the operator that these caches do not contain yet.
    pub own_writes: Arc<OwnWrites>,
    changes: broadcast::Sender<Change>,
}

impl ClusterState {
    /// Creates the caches, and the future that keeps them up to date. They are empty until it has run for a while.
    pub fn new(
        client: &Client,
        namespace: &str,
        readiness: &Readiness,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (changes, _) = broadcast::channel(CHANGES);
        let mut watches = Watches {
            running: Vec::new(),
            changes: changes.clone(),
            readiness: readiness.clone(),
            own_writes: Arc::default(),
        };
        let any = || watcher::Config::default().page_size(watches::PAGE);
        let labelled = |key: &str, value: &str| any().labels(&format!("{key}={value}"));
        let ours = Api::namespaced(client.clone(), namespace);
        let agents = labelled(names::COMPONENT_LABEL, names::NODE_COMPONENT);
        let capacities = labelled(names::MANAGED_BY_LABEL, names::OPERATOR_MANAGER);
        let cluster = Self {
            pools: watches.add(Api::all(client.clone()), any()),
            storage_nodes: watches.add(Api::all(client.clone()), any()),
            volumes: watches.add(Api::all(client.clone()), any()),
            snapshots: watches.add(Api::all(client.clone()), any()),
            nodes: watches.add(Api::all(client.clone()), any()),
            csi_nodes: watches.add(Api::all(client.clone()), any()),
            agents: watches.add(Api::namespaced(client.clone(), namespace), agents),
            classes: watches.add(Api::all(client.clone()), any()),
            claims: watches.add(Api::all(client.clone()), any()),
            capacities: watches.add(ours, capacities),
            own_writes: Arc::clone(&watches.own_writes),
            changes,
        };
        (cluster, watches.run())
    }

    /// Subscribes to all changes from now on.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Waits until every kind has been listed once.
    pub async fn ready(&self) {
        // An error means that the watches ended, which they do only with the process.
        let _ = tokio::join!(
            self.pools.wait_until_ready(),
            self.storage_nodes.wait_until_ready(),
            self.volumes.wait_until_ready(),
            self.snapshots.wait_until_ready(),
            self.nodes.wait_until_ready(),
            self.csi_nodes.wait_until_ready(),
            self.agents.wait_until_ready(),
            self.classes.wait_until_ready(),
            self.claims.wait_until_ready(),
            self.capacities.wait_until_ready(),
        );
    }

    /// A StoragePool.
    pub fn pool(&self, name: &str) -> Option<Arc<DeserializeGuard<StoragePool>>> {
        self.pools.get(&ObjectRef::new(name))
    }

    /// Every StoragePool, by name.
    pub fn pools_by_name(&self) -> Vec<Arc<DeserializeGuard<StoragePool>>> {
        let mut pools = self.pools.state();
        pools.sort_by_key(|pool| pool.name_any());
        pools
    }

    /// A StorageNode.
    pub fn storage_node(&self, name: &str) -> Option<Arc<DeserializeGuard<StorageNode>>> {
        self.storage_nodes.get(&ObjectRef::new(name))
    }

    /// A Node.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }

    /// A CSINode.
    pub fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.get(&ObjectRef::new(name))
    }

    /// A StorageClass of our driver.
    pub fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(&ObjectRef::new(name))
    }

    /// The pods of the node plugin on a node: one, or two for a moment.
    pub fn agents_on(&self, node: &str) -> Vec<Arc<Pod>> {
        self.agents.state_filter(|pod| {
            pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
        })
    }

    /// The volumes and snapshots on a node, by pool.
    pub fn contents_on(&self, node: &str) -> Contents {
        self.contents_by(|on, pool| (on == node).then_some(pool))
    }

    /// The volumes and snapshots of a pool, by node.
    pub fn contents_of(&self, pool: &str) -> Contents {
        self.contents_by(|node, of| (of == pool).then_some(node))
    }

    /// The volumes and snapshots of a pool that are thick. Unreadable objects count as thick.
    pub fn thick_in(&self, pool: &str) -> Count {
        let is_thick = |of: &str, provisioning| of == pool && provisioning == Provisioning::Thick;
        let mut thick = Count::default();
        for object in self.volumes.state() {
            let spec = object.0.as_ref().map(|volume| &volume.spec);
            if spec.map_or(true, |spec| {
                is_thick(&spec.pool_name, spec.attributes.provisioning)
            }) {
                thick += Count::VOLUME;
            }
        }
        for object in self.snapshots.state() {
            let spec = object.0.as_ref().map(|snapshot| &snapshot.spec);
            if spec.map_or(true, |spec| is_thick(&spec.pool_name, spec.provisioning)) {
                thick += Count::SNAPSHOT;
            }
        }
        thick
    }

    /// Names of all present and former Nodes.
    pub fn node_names(&self) -> Vec<String> {
        let nodes = self.nodes.state();
        let storage_nodes = self.storage_nodes.state();
        let csi_nodes = self.csi_nodes.state();
        let mut names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
        names.extend(storage_nodes.iter().map(|node| node.name_any()));
        names.extend(csi_nodes.iter().map(|node| node.name_any()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Counts objects by the location that `place` selects from node and pool; `None` skips the object.
    fn contents_by(&self, place: impl for<'a> Fn(&'a str, &'a str) -> Option<&'a str>) -> Contents {
        let mut contents = Contents::default();
        count(&self.volumes, Count::VOLUME, &place, &mut contents);
        count(&self.snapshots, Count::SNAPSHOT, &place, &mut contents);
        contents
    }
}

fn count<K: HasImage + Clone + 'static>(
    store: &Store<DeserializeGuard<K>>,
    one: Count,
    place: &impl for<'a> Fn(&'a str, &'a str) -> Option<&'a str>,
    contents: &mut Contents,
) {
    for object in store.state() {
        match &object.0 {
            Ok(stored) => {
                if let Some(place) = place(stored.node_name(), stored.pool_name()) {
                    contents.add(Some(place), one);
                }
            }
            Err(_) => contents.add(None, one),
        }
    }
}

/// The watches that fill the caches.
struct Watches {
    running: Vec<BoxFuture<'static, ()>>,
    changes: broadcast::Sender<Change>,
    readiness: Readiness,
    own_writes: Arc<OwnWrites>,
}

impl Watches {
    fn add<K: WatchedKind + 'static>(&mut self, api: Api<K>, config: watcher::Config) -> Store<K> {
        self.readiness.wait_for(K::NAME, "not listed yet");
        let (store, writer) = reflector::store();
        let (changes, readiness) = (self.changes.clone(), self.readiness.clone());
        let own_writes = Arc::clone(&self.own_writes);
        let watch = watch(api, config, writer, changes, readiness, own_writes);
        self.running.push(watch.boxed());
        store
    }

    async fn run(self) {
        futures::future::join_all(self.running).await;
    }
}
