//! The operator's cached view of the cluster: one watch per kind, shared by all controllers.
//!
//! An object that cannot be read does not stop its watch: the cache keeps its metadata, and
//! it counts as an object that holds data.
//!
//! *Invariant:* this module decides nothing and writes nothing.

use std::sync::Arc;

use cistern_client::{OwnWrites, http::Readiness};
use cistern_crds::{
    ImageTransfer, PoolReplica, PoolSnapshot, PoolVolume, StorageNode, StoragePool, VolumeMove,
    names, unclaimed::Owner,
};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSINode, CSIStorageCapacity, StorageClass, VolumeAttributesClass},
};
use kube::{Api, Client, ResourceExt as _, core::DeserializeGuard, runtime::watcher};
use tokio::{sync::broadcast, task::JoinSet};

use crate::{
    cache::{Cache, Difference},
    change::Change,
    contents::{Contents, Count},
    indexes::{AgentIndex, AwaitedCopies, ContentsIndex, LongNames},
    kinds::{WatchedKind, kubernetes::VolumeSnapshotContent},
    stored::{PartOfMove, StoredSnapshot, StoredVolume},
    watch::{Shared, watch},
};

/// Maximum number of changes that a controller may lag behind. A slower one reconciles everything
/// again.
const CHANGES: usize = 4096;

/// Caches of all watched objects. Clones share them.
#[derive(Clone, Debug)]
pub struct ClusterState {
    /// Every StoragePool.
    pub pools: Cache<DeserializeGuard<StoragePool>>,
    /// Every StorageNode.
    pub storage_nodes: Cache<DeserializeGuard<StorageNode>>,
    /// Every PoolVolume.
    pub volumes: Cache<StoredVolume>,
    /// Every PoolSnapshot.
    pub snapshots: Cache<StoredSnapshot>,
    /// Every PoolReplica.
    pub replicas: Cache<PartOfMove>,
    /// Every VolumeMove.
    pub moves: Cache<VolumeMove>,
    /// Every ImageTransfer.
    pub transfers: Cache<ImageTransfer>,
    /// Every Node.
    pub nodes: Cache<Node>,
    /// Every CSINode.
    pub csi_nodes: Cache<CSINode>,
    /// The pods of the node plugin.
    pub agents: Cache<Pod>,
    /// The StorageClasses of our driver.
    pub classes: Cache<StorageClass>,
    /// The VolumeAttributesClasses of our driver.
    pub attributes_classes: Cache<VolumeAttributesClass>,
    /// The claims that wait for a volume, of any provisioner.
    pub claims: Cache<PersistentVolumeClaim>,
    /// The PersistentVolumes of our driver.
    pub volume_owners: Cache<Owner>,
    /// The VolumeSnapshotContents of our driver.
    pub snapshot_owners: Cache<Owner>,
    /// The capacity objects that the operator made.
    pub capacities: Cache<CSIStorageCapacity>,
    /// Writes of the operator that these caches do not contain yet.
    pub own_writes: Arc<OwnWrites>,
    changes: broadcast::Sender<Change>,
    indexes: Arc<Indexes>,
}

#[derive(Debug, Default)]
struct Indexes {
    contents: ContentsIndex,
    awaited: AwaitedCopies,
    agents: AgentIndex,
    long_names: LongNames,
}

impl ClusterState {
    /// Creates the caches, and the tasks that keep them up to date. They are empty at first.
    pub fn new(client: &Client, namespace: &str, readiness: &Readiness) -> (Self, JoinSet<()>) {
        let (changes, _) = broadcast::channel(CHANGES);
        let indexes = Arc::<Indexes>::default();
        let mut watches = Watches {
            client: client.clone(),
            running: JoinSet::new(),
            shared: Shared {
                changes: changes.clone(),
                readiness: readiness.clone(),
                own_writes: Arc::default(),
            },
        };
        let index = || Arc::clone(&indexes);
        let labelled = |key, value| watcher::Config::default().labels(&format!("{key}={value}"));
        let agents = labelled(names::COMPONENT_LABEL, names::NODE_COMPONENT);
        let capacities = labelled(names::MANAGED_BY_LABEL, names::OPERATOR_MANAGER);
        let [volumes, snapshots, pods, nodes] = [index(), index(), index(), index()];
        let cluster = Self {
            pools: watches.add::<DeserializeGuard<StoragePool>>(),
            storage_nodes: watches.add::<DeserializeGuard<StorageNode>>(),
            volumes: watches.add_indexed::<DeserializeGuard<PoolVolume>>(move |difference| {
                volumes.contents.apply(Count::VOLUME, difference);
                volumes.awaited.apply(difference);
            }),
            snapshots: watches.add_indexed::<DeserializeGuard<PoolSnapshot>>(move |difference| {
                snapshots.contents.apply(Count::SNAPSHOT, difference);
            }),
            replicas: watches.add::<DeserializeGuard<PoolReplica>>(),
            moves: watches.add::<VolumeMove>(),
            transfers: watches.add::<ImageTransfer>(),
            nodes: watches.add_indexed::<Node>(move |node| nodes.long_names.apply(node)),
            csi_nodes: watches.add::<CSINode>(),
            agents: watches.start::<Pod>(
                Api::namespaced(client.clone(), namespace),
                agents,
                move |pod| pods.agents.apply(pod),
            ),
            classes: watches.add::<StorageClass>(),
            attributes_classes: watches.add::<VolumeAttributesClass>(),
            claims: watches.add::<PersistentVolumeClaim>(),
            volume_owners: watches.add::<PersistentVolume>(),
            snapshot_owners: watches.add::<VolumeSnapshotContent>(),
            capacities: watches.start::<CSIStorageCapacity>(
                Api::namespaced(client.clone(), namespace),
                capacities,
                |_| {},
            ),
            own_writes: Arc::clone(&watches.shared.own_writes),
            changes,
            indexes,
        };
        (cluster, watches.running)
    }

    /// Empty caches that no watch fills.
    #[cfg(test)]
    pub(crate) fn unwatched() -> Self {
        Self {
            pools: Cache::default(),
            storage_nodes: Cache::default(),
            volumes: Cache::default(),
            snapshots: Cache::default(),
            replicas: Cache::default(),
            moves: Cache::default(),
            transfers: Cache::default(),
            nodes: Cache::default(),
            csi_nodes: Cache::default(),
            agents: Cache::default(),
            classes: Cache::default(),
            attributes_classes: Cache::default(),
            claims: Cache::default(),
            volume_owners: Cache::default(),
            snapshot_owners: Cache::default(),
            capacities: Cache::default(),
            own_writes: Arc::default(),
            changes: broadcast::channel(1).0,
            indexes: Arc::default(),
        }
    }

    /// Subscribes to all changes from now on.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Waits until every kind has been listed once.
    pub async fn ready(&self) {
        tokio::join!(
            self.pools.complete(),
            self.storage_nodes.complete(),
            self.volumes.complete(),
            self.snapshots.complete(),
            self.replicas.complete(),
            self.moves.complete(),
            self.transfers.complete(),
            self.nodes.complete(),
            self.csi_nodes.complete(),
            self.agents.complete(),
            self.classes.complete(),
            self.attributes_classes.complete(),
            self.claims.complete(),
            self.volume_owners.complete(),
            self.snapshot_owners.complete(),
            self.capacities.complete(),
        );
    }

    /// The StoragePool with this name.
    pub fn pool(&self, name: &str) -> Option<Arc<DeserializeGuard<StoragePool>>> {
        self.pools.get(name)
    }

    /// Every StoragePool, by name.
    pub fn pools_by_name(&self) -> Vec<Arc<DeserializeGuard<StoragePool>>> {
        let mut pools = self.pools.all();
        pools.sort_by_key(|pool| pool.name_any());
        pools
    }

    /// The StorageNode with this name.
    pub fn storage_node(&self, name: &str) -> Option<Arc<DeserializeGuard<StorageNode>>> {
        self.storage_nodes.get(name)
    }

    /// The Node with this name.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(name)
    }

    /// The name of the Node with this value of the topology key.
    pub fn node_of_segment(&self, segment: &str) -> Option<String> {
        if self.nodes.contains(segment) {
            return Some(segment.to_owned());
        }
        self.indexes.long_names.node(segment)
    }

    /// The CSINode of the Node with this name.
    pub fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.get(name)
    }

    /// The StorageClass of our driver with this name.
    pub fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(name)
    }

    /// The pods of the node plugin on a node: one, or two for a moment.
    pub fn agents_on(&self, node: &str) -> Vec<Arc<Pod>> {
        self.indexes.agents.on(node)
    }

    /// The volumes and snapshots on a node, by pool.
    pub fn contents_on(&self, node: &str) -> Contents {
        self.indexes.contents.on(node)
    }

    /// The volumes and snapshots of a pool, by node.
    pub fn contents_of(&self, pool: &str) -> Contents {
        self.indexes.contents.of(pool)
    }

    /// The volumes and snapshots of a pool that are thick. Unreadable objects count as thick.
    pub fn thick_in(&self, pool: &str) -> Count {
        self.indexes.contents.thick_in(pool)
    }

    /// Names of the volumes that wait for the copy of a snapshot of another node.
    pub fn awaiting(&self, snapshot: &str) -> Vec<String> {
        self.indexes.awaited.of(snapshot)
    }

    /// Names of all Nodes, CSINodes and StorageNodes, which include Nodes that are gone.
    pub fn node_names(&self) -> Vec<String> {
        let (nodes, storage_nodes) = (self.nodes.all(), self.storage_nodes.all());
        let csi_nodes = self.csi_nodes.all();
        let mut names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
        names.extend(storage_nodes.iter().map(|node| node.name_any()));
        names.extend(csi_nodes.iter().map(|node| node.name_any()));
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Starts the watches that fill the caches.
struct Watches {
    client: Client,
    running: JoinSet<()>,
    shared: Shared,
}

impl Watches {
    /// Watches every object of a kind.
    fn add<K: WatchedKind + 'static>(&mut self) -> Cache<K::Entry> {
        self.add_indexed::<K>(|_| {})
    }

    /// Watches every object of a kind, and passes each difference to an index.
    fn add_indexed<K: WatchedKind + 'static>(
        &mut self,
        index: impl Fn(&Difference<K::Entry>) + Send + Sync + 'static,
    ) -> Cache<K::Entry> {
        self.start(
            Api::<K>::all(self.client.clone()),
            watcher::Config::default(),
            index,
        )
    }

    fn start<K: WatchedKind + 'static>(
        &mut self,
        api: Api<K>,
        config: watcher::Config,
        index: impl Fn(&Difference<K::Entry>) + Send + Sync + 'static,
    ) -> Cache<K::Entry> {
        self.shared.readiness.wait_for(K::NAME, "not listed yet");
        let cache = Cache::default();
        let watch = watch(api, config, cache.clone(), index, self.shared.clone());
        self.running.spawn(watch);
        cache
    }
}
