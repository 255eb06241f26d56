//! What the custom resources ask of this node: pruned copies, kept current by one watch per kind.
//!
//! The first lists are consistent ones (never from the API server's cache): the ledger is derived
//! from them, and one made of old news would promise bytes twice. An object that this version
//! cannot read stops no watch (R21, R22).

use std::{collections::HashMap, fmt, sync::Arc};

use cistern_crds::{
    PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode, Stored, volume::ImageStatus,
};
use futures::{Stream, StreamExt as _};
use kube::{
    Api, Client, ResourceExt as _,
    api::ObjectMeta,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;

/// A custom resource as it came, readable or not.
pub type Guarded<K> = DeserializeGuard<K>;

/// What this node is to carry.
#[derive(Clone, Debug)]
pub struct Desired {
    node_name: Arc<str>,
    node: Store<Guarded<StorageNode>>,
    volumes: Store<Guarded<PoolVolume>>,
    snapshots: Store<Guarded<PoolSnapshot>>,
    groups: Store<Guarded<PoolSnapshotGroup>>,
}

/// What has changed, for whoever drives the watches. Errors are transient: the watch goes on.
pub type Changes<K> = std::pin::Pin<Box<dyn Stream<Item = Result<K, watcher::Error>> + Send>>;

/// The watches behind [`Desired`]: nothing moves in it unless all of them are polled.
#[expect(missing_debug_implementations, reason = "streams have nothing to show")]
pub struct Watches {
    /// Of this node's StorageNode.
    pub node: Changes<Guarded<StorageNode>>,
    /// Of its PoolVolumes.
    pub volumes: Changes<Guarded<PoolVolume>>,
    /// Of its PoolSnapshots.
    pub snapshots: Changes<Guarded<PoolSnapshot>>,
    /// Of its PoolSnapshotGroups.
    pub groups: Changes<Guarded<PoolSnapshotGroup>>,
}

/// What this node is to hold in one pool.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    /// Its volumes.
    pub volumes: Vec<Arc<Guarded<PoolVolume>>>,
    /// Its snapshots.
    pub snapshots: Vec<Arc<Guarded<PoolSnapshot>>>,
}

/// Starts to watch what belongs to this node.
pub fn watch(client: &Client, node_name: &str) -> (Desired, Watches) {
    let (node, node_changes) = observe(client, &format!("metadata.name={node_name}"));
    let ours = format!("spec.nodeName={node_name}");
    let (volumes, volume_changes) = observe(client, &ours);
    let (snapshots, snapshot_changes) = observe(client, &ours);
    let (groups, group_changes) = observe(client, &ours);
    let desired = Desired {
        node_name: node_name.into(),
        node,
        volumes,
        snapshots,
        groups,
    };
    let watches = Watches {
        node: node_changes,
        volumes: volume_changes,
        snapshots: snapshot_changes,
        groups: group_changes,
    };
    (desired, watches)
}

/// The objects of a kind that a field selector chooses.
fn observe<K>(client: &Client, fields: &str) -> (Store<Guarded<K>>, Changes<Guarded<K>>)
where
    K: kube::Resource<DynamicType = ()>
        + DeserializeOwned
        + Clone
        + fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let chosen = watcher::Config::default().fields(fields);
    let changes = watcher(Api::<Guarded<K>>::all(client.clone()), chosen)
        .default_backoff()
        .modify(prune)
        .reflect(writer)
        .touched_objects()
        .boxed();
    (store, changes)
}

impl Desired {
    /// Resolves when every first list is here.
    pub async fn complete(&self) -> Result<(), reflector::store::WriterDropped> {
        self.node.wait_until_ready().await?;
        self.volumes.wait_until_ready().await?;
        self.snapshots.wait_until_ready().await?;
        self.groups.wait_until_ready().await
    }

    /// The StorageNode of this node, if there is one.
    pub fn node(&self) -> Option<Arc<Guarded<StorageNode>>> {
        self.node.get(&ObjectRef::new(&self.node_name))
    }

    /// The PoolVolume of a volume id, if it is on this node and readable.
    pub fn volume(&self, id: &str) -> Option<Arc<Guarded<PoolVolume>>> {
        readable_one(&self.volumes, id)
    }

    /// The PoolSnapshot of a snapshot id, if it is on this node and readable.
    pub fn snapshot(&self, id: &str) -> Option<Arc<Guarded<PoolSnapshot>>> {
        readable_one(&self.snapshots, id)
    }

    /// Every PoolVolume of this node.
    pub fn volumes(&self) -> Vec<Arc<Guarded<PoolVolume>>> {
        self.volumes.state()
    }

    /// What this node is to hold, by name of the pool, as far as this version can read it.
    pub fn by_pool(&self) -> HashMap<String, Holdings> {
        let mut all = HashMap::<String, Holdings>::new();
        for object in self.volumes.state() {
            if let Some(volume) = readable(&object) {
                let pool = all.entry(volume.spec.pool_name.clone()).or_default();
                pool.volumes.push(object);
            }
        }
        for object in self.snapshots.state() {
            if let Some(snapshot) = readable(&object) {
                let pool = all.entry(snapshot.spec.pool_name.clone()).or_default();
                pool.snapshots.push(object);
            }
        }
        all
    }

    /// An object that may hold bytes of any pool, and nobody can tell how many.
    pub fn unreadable(&self) -> Option<String> {
        let named = |kind, name: String| format!("{kind} {name}");
        let volume = self.volumes.find(|object| object.0.is_err());
        let snapshot = || self.snapshots.find(|object| object.0.is_err());
        volume
            .map(|volume| named("PoolVolume", name(&volume)))
            .or_else(|| snapshot().map(|snapshot| named("PoolSnapshot", name(&snapshot))))
    }

    /// For the queue of passes over volumes.
    pub fn volume_store(&self) -> Store<Guarded<PoolVolume>> {
        self.volumes.clone()
    }

    /// For the queue of passes over snapshots.
    pub fn snapshot_store(&self) -> Store<Guarded<PoolSnapshot>> {
        self.snapshots.clone()
    }

    /// For the queue of passes over groups.
    pub fn group_store(&self) -> Store<Guarded<PoolSnapshotGroup>> {
        self.groups.clone()
    }
}

impl Holdings {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty()
    }

    /// The volumes themselves.
    pub fn volumes(&self) -> impl Iterator<Item = &PoolVolume> {
        self.volumes.iter().filter_map(|object| readable(object))
    }

    /// The snapshots themselves.
    pub fn snapshots(&self) -> impl Iterator<Item = &PoolSnapshot> {
        self.snapshots.iter().filter_map(|object| readable(object))
    }

    /// The images that are known of.
    pub fn images(&self) -> impl Iterator<Item = &ImageStatus> {
        let snapshots = self.snapshots().filter_map(Stored::image);
        self.volumes().filter_map(Stored::image).chain(snapshots)
    }
}

/// The object, if this version can read it.
pub fn readable<K>(object: &Guarded<K>) -> Option<&K> {
    object.0.as_ref().ok()
}

fn readable_one<K>(store: &Store<Guarded<K>>, name: &str) -> Option<Arc<Guarded<K>>>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    let found = store.get(&ObjectRef::new(name))?;
    readable(&found).is_some().then_some(found)
}

/// Keeps what the agent needs.
fn prune<K: kube::Resource<DynamicType = ()>>(object: &mut Guarded<K>) {
    let metadata: &mut ObjectMeta = match &mut object.0 {
        Ok(object) => object.meta_mut(),
        Err(invalid) => &mut invalid.metadata,
    };
    metadata.managed_fields = None;
    metadata.annotations = None;
    metadata.labels = None;
    metadata.owner_references = None;
}

/// Name of an object, readable or not.
pub fn name<K: kube::Resource<DynamicType = ()>>(object: &Guarded<K>) -> String {
    object.name_any()
}
