//! The desired state of this node: pruned copies of the custom resources, one watch for each kind.
//!
//! The first lists are consistent (never from the API server's cache), because the ledger is computed
//! from them, and outdated objects would make it reserve bytes twice. An object that this version
//! cannot read stops no watch (R21, R22).

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use cistern_client::{
    own_writes::{OwnWrites, versions},
    watches,
};
use cistern_crds::{
    HasImage, PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode, volume::ImageStatus,
};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client, ResourceExt,
    api::ObjectMeta,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store},
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;

use crate::usage::Volume;

/// A custom resource, readable by this version or not.
pub type Guarded<K> = DeserializeGuard<K>;

/// The desired state of this node.
#[derive(Clone, Debug)]
pub struct Desired {
    node_name: Arc<str>,
    node: Store<Guarded<StorageNode>>,
    volumes: Store<Guarded<PoolVolume>>,
    snapshots: Store<Guarded<PoolSnapshot>>,
    groups: Store<Guarded<PoolSnapshotGroup>>,
    own_writes: Arc<OwnWrites>,
}

/// Changed objects of a watch. Errors are transient: the watch continues.
pub type Changes<K> = std::pin::Pin<Box<dyn Stream<Item = Result<K, watcher::Error>> + Send>>;

/// The watches of [`Desired`], which is up to date only while all of them are polled.
#[expect(missing_debug_implementations, reason = "streams have nothing to show")]
pub struct Watches {
    /// The watch of this node's StorageNode.
    pub node: Changes<Guarded<StorageNode>>,
    /// The watch of its PoolVolumes.
    pub volumes: Changes<Guarded<PoolVolume>>,
    /// The watch of its PoolSnapshots.
    pub snapshots: Changes<Guarded<PoolSnapshot>>,
    /// The watch of its PoolSnapshotGroups.
    pub groups: Changes<Guarded<PoolSnapshotGroup>>,
}

/// The volumes and snapshots of one pool of this node.
#[derive(Clone, Debug, Default)]
pub struct AssignedObjects {
    /// PoolVolumes of the pool.
    pub volumes: Vec<Arc<Guarded<PoolVolume>>>,
    /// PoolSnapshots of the pool.
    pub snapshots: Vec<Arc<Guarded<PoolSnapshot>>>,
}

/// Starts to watch the objects of this node.
pub fn watch(client: &Client, node_name: &str) -> (Desired, Watches) {
    let own_writes = Arc::<OwnWrites>::default();
    let this = format!("metadata.name={node_name}");
    let (node, node_changes) = observe(client, &this, Definition::Required, &own_writes);
    let ours = format!("spec.nodeName={node_name}");
    let (volumes, volume_changes) = observe(client, &ours, Definition::Required, &own_writes);
    // An installation of an older version lacks these kinds, and its volumes must work.
    let (snapshots, snapshot_changes) = observe(client, &ours, Definition::Optional, &own_writes);
    let (groups, group_changes) = observe(client, &ours, Definition::Optional, &own_writes);
    let desired = Desired {
        node_name: node_name.into(),
        node,
        volumes,
        snapshots,
        groups,
        own_writes,
    };
    let watches = Watches {
        node: node_changes,
        volumes: volume_changes,
        snapshots: snapshot_changes,
        groups: group_changes,
    };
    (desired, watches)
}

/// Whether the agent can work without the definition of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Definition {
    /// The agent waits for it.
    Required,
    /// Without it, the kind has no objects.
    Optional,
}

/// Watches the objects of a kind that a field selector chooses.
fn observe<K>(
    client: &Client,
    fields: &str,
    definition: Definition,
    own_writes: &Arc<OwnWrites>,
) -> (Store<Guarded<K>>, Changes<Guarded<K>>)
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
    let chosen = watcher::Config::default()
        .page_size(watches::PAGE)
        .fields(fields);
    let events = watcher(Api::<Guarded<K>>::all(client.clone()), chosen);
    let events = events.backoff(watches::backoff());
    let own_writes = Arc::clone(own_writes);
    let changes = or_none(events, K::kind(&()).into_owned(), definition)
        .modify(prune)
        .reflect(writer)
        .inspect_ok(move |event| _ = own_writes.saw::<Guarded<K>>(&versions(event)))
        .touched_objects()
        .boxed();
    (store, changes)
}

/// Replaces the first list with an empty one if the kind is not defined. The watch continues to
/// list, and sees the objects once the kind is defined.
fn or_none<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
    kind: String,
    definition: Definition,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send {
    let mut was_listed = definition == Definition::Required;
    events.flat_map(move |event| {
        let is_undefined = match &event {
            Ok(watcher::Event::InitDone) => {
                was_listed = true;
                false
            }
            Ok(_) => false,
            Err(error) => watches::is_not_installed(error),
        };
        if is_undefined && !was_listed {
            was_listed = true;
            tracing::warn!(
                kind,
                "the kind is not defined: apply the CustomResourceDefinitions of this version"
            );
            stream::iter([Ok(watcher::Event::Init), Ok(watcher::Event::InitDone)]).left_stream()
        } else {
            stream::iter([event]).right_stream()
        }
    })
}

impl Desired {
    /// Resolves when every first list has arrived. Fails if a watch was dropped before that.
    pub async fn complete(&self) -> Result<(), reflector::store::WriterDropped> {
        self.node.wait_until_ready().await?;
        self.volumes.wait_until_ready().await?;
        self.snapshots.wait_until_ready().await?;
        self.groups.wait_until_ready().await
    }

    /// The StorageNode of this node; None if it does not exist.
    pub fn node(&self) -> Option<Arc<Guarded<StorageNode>>> {
        self.node.get(&ObjectRef::new(&self.node_name))
    }

    /// The PoolVolume with a volume id; None if it is not on this node or not readable.
    pub fn volume(&self, id: &str) -> Option<Arc<Guarded<PoolVolume>>> {
        readable_one(&self.volumes, id)
    }

    /// The PoolSnapshot with a snapshot id; None if it is not on this node or not readable.
    pub fn snapshot(&self, id: &str) -> Option<Arc<Guarded<PoolSnapshot>>> {
        readable_one(&self.snapshots, id)
    }

    /// Every PoolVolume of this node.
    pub fn volumes(&self) -> Vec<Arc<Guarded<PoolVolume>>> {
        self.volumes.state()
    }

    /// The volumes of a pool that have an image and are not being destroyed.
    pub fn volumes_of(&self, pool: &str) -> Vec<Volume> {
        let objects = self.volumes();
        let volumes = objects.iter().filter_map(|object| readable(object));
        let volumes = volumes.filter(|volume| volume.spec.pool_name == pool);
        volumes.filter_map(|it| Volume::read(it).ok()).collect()
    }

    /// The readable volumes and snapshots of this node, by name of the pool.
    pub fn by_pool(&self) -> HashMap<String, AssignedObjects> {
        let mut all = HashMap::<String, AssignedObjects>::new();
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

    /// Kind and name of an object that cannot be read, if there is one. It may hold an unknown
    /// number of bytes in any pool.
    pub fn unreadable(&self) -> Option<String> {
        let named = |kind, name: String| format!("{kind} {name}");
        let volume = self.volumes.find(|object| object.0.is_err());
        let snapshot = || self.snapshots.find(|object| object.0.is_err());
        volume
            .map(|volume| named("PoolVolume", name(&volume)))
            .or_else(|| snapshot().map(|snapshot| named("PoolSnapshot", name(&snapshot))))
    }

    /// All objects of this node. None while one of them cannot be read, because it may claim any image.
    pub fn everything(
        &self,
    ) -> Option<(Vec<PoolVolume>, Vec<PoolSnapshot>, Vec<PoolSnapshotGroup>)> {
        Some((
            all(&self.volumes)?,
            all(&self.snapshots)?,
            all(&self.groups)?,
        ))
    }

    /// The agent's own writes, some of which these copies may lack.
    pub fn own_writes(&self) -> &Arc<OwnWrites> {
        &self.own_writes
    }

    /// The copies of the volumes, for their work queue.
    pub fn volume_store(&self) -> Store<Guarded<PoolVolume>> {
        self.volumes.clone()
    }

    /// The copies of the snapshots, for their work queue.
    pub fn snapshot_store(&self) -> Store<Guarded<PoolSnapshot>> {
        self.snapshots.clone()
    }

    /// The copies of the groups, for their work queue.
    pub fn group_store(&self) -> Store<Guarded<PoolSnapshotGroup>> {
        self.groups.clone()
    }
}

impl AssignedObjects {
    /// Whether the pool has neither volumes nor snapshots.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty()
    }

    /// The readable volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &PoolVolume> {
        self.volumes.iter().filter_map(|object| readable(object))
    }

    /// The readable snapshots.
    pub fn snapshots(&self) -> impl Iterator<Item = &PoolSnapshot> {
        self.snapshots.iter().filter_map(|object| readable(object))
    }

    /// Names of the images that these objects claim: each its own, and the one that it has adopted.
    pub fn claimed_images(&self) -> HashSet<String> {
        let volumes = self.volumes().filter_map(ResourceExt::uid);
        let snapshots = self.snapshots().filter_map(ResourceExt::uid);
        let images = self.images().map(|image| image.uid.clone());
        volumes.chain(snapshots).chain(images).collect()
    }

    /// The images in the status of these objects.
    pub fn images(&self) -> impl Iterator<Item = &ImageStatus> {
        let snapshots = self.snapshots().filter_map(HasImage::image);
        self.volumes().filter_map(HasImage::image).chain(snapshots)
    }
}

/// The object, if this version can read it.
pub fn readable<K>(object: &Guarded<K>) -> Option<&K> {
    object.0.as_ref().ok()
}

/// Copies of all objects; None if one cannot be read.
fn all<K>(store: &Store<Guarded<K>>) -> Option<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    let objects = store.state();
    objects
        .iter()
        .map(|object| readable(object).cloned())
        .collect()
}

fn readable_one<K>(store: &Store<Guarded<K>>, name: &str) -> Option<Arc<Guarded<K>>>
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    let found = store.get(&ObjectRef::new(name))?;
    readable(&found).is_some().then_some(found)
}

/// Drops the metadata that the agent does not need.
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

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use watcher::{Error::InitialListFailed, Event};

    use super::*;

    /// The events of a watch whose first lists are answered with this code.
    async fn reported(definition: Definition, code: u16) -> Vec<&'static str> {
        let status = Status::failure("no", "NotFound").with_code(code);
        let failure = || {
            Err(InitialListFailed(kube::Error::Api(Box::new(
                status.clone(),
            ))))
        };
        let events = [
            failure(),
            failure(),
            Ok(Event::Init),
            Ok(Event::InitApply(())),
            Ok(Event::InitDone),
        ];
        let events = or_none(stream::iter(events), "Kind".to_owned(), definition);
        let words = events.map(|event| match event {
            Ok(Event::Init) => "init",
            Ok(Event::InitDone) => "done",
            Ok(Event::InitApply(()) | Event::Apply(()) | Event::Delete(())) => "object",
            Err(_) => "error",
        });
        words.collect().await
    }

    #[tokio::test]
    async fn a_kind_that_is_not_defined_has_no_objects_until_it_is() {
        let listed = ["init", "object", "done"];
        let missing = [&["init", "done", "error"][..], &listed].concat();
        assert_eq!(reported(Definition::Optional, 404).await, missing);
        let waited_for = [&["error", "error"][..], &listed].concat();
        assert_eq!(reported(Definition::Optional, 403).await, waited_for);
        assert_eq!(reported(Definition::Required, 404).await, waited_for);
    }
}
