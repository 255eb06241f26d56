//! What the custom resources ask of this node: pruned copies, kept current by two watches.
//!
//! The first lists are consistent ones (never from the API server's cache): the ledger is derived
//! from them, and one made of old news would promise bytes twice. An object that this version
//! cannot read stops neither watch (R21, R22).

use std::sync::Arc;

use cistern_crds::{PoolVolume, StorageNode};
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

/// A custom resource as it came, readable or not.
pub type Guarded<K> = DeserializeGuard<K>;

/// What this node is to carry.
#[derive(Clone, Debug)]
pub struct Desired {
    node_name: Arc<str>,
    node: Store<Guarded<StorageNode>>,
    volumes: Store<Guarded<PoolVolume>>,
}

/// What has changed, for whoever drives the watches. Errors are transient: the watch goes on.
pub type Changes<K> = std::pin::Pin<Box<dyn Stream<Item = Result<K, watcher::Error>> + Send>>;

/// Starts to watch this node's StorageNode and PoolVolumes. Nothing moves unless both streams are
/// polled.
pub fn watch(
    client: &Client,
    node_name: &str,
) -> (
    Desired,
    Changes<Guarded<StorageNode>>,
    Changes<Guarded<PoolVolume>>,
) {
    let (node, node_writer) = reflector::store();
    let (volumes, volume_writer) = reflector::store();
    let only_ours =
        |field: &str| watcher::Config::default().fields(&format!("{field}={node_name}"));
    let node_changes = watcher(Api::all(client.clone()), only_ours("metadata.name"))
        .default_backoff()
        .modify(prune)
        .reflect(node_writer)
        .touched_objects()
        .boxed();
    let volume_changes = watcher(Api::all(client.clone()), only_ours("spec.nodeName"))
        .default_backoff()
        .modify(prune)
        .reflect(volume_writer)
        .touched_objects()
        .boxed();
    let desired = Desired {
        node_name: node_name.into(),
        node,
        volumes,
    };
    (desired, node_changes, volume_changes)
}

impl Desired {
    /// Resolves when both first lists are here.
    pub async fn complete(&self) -> Result<(), reflector::store::WriterDropped> {
        self.node.wait_until_ready().await?;
        self.volumes.wait_until_ready().await
    }

    /// The StorageNode of this node, if there is one.
    pub fn node(&self) -> Option<Arc<Guarded<StorageNode>>> {
        self.node.get(&ObjectRef::new(&self.node_name))
    }

    /// The PoolVolume of a volume id, if it is on this node and readable.
    pub fn volume(&self, id: &str) -> Option<Arc<Guarded<PoolVolume>>> {
        let found = self.volumes.get(&ObjectRef::new(id))?;
        readable(&found).is_some().then_some(found)
    }

    /// Every PoolVolume of this node.
    pub fn volumes(&self) -> Vec<Arc<Guarded<PoolVolume>>> {
        self.volumes.state()
    }

    /// For the queue of reconciles.
    pub fn volume_store(&self) -> Store<Guarded<PoolVolume>> {
        self.volumes.clone()
    }
}

/// The object, if this version can read it.
pub fn readable<K>(object: &Guarded<K>) -> Option<&K> {
    object.0.as_ref().ok()
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
