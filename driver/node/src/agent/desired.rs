//! The desired state of this node: pruned copies of the custom resources, one watch for each kind.
//!
//! The first lists are consistent (never from the API server's cache), because the ledger is computed
//! from them, and outdated objects would make it reserve bytes twice. An object that this version
//! cannot read stops no watch (R21, R22).

mod watches;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cistern_client::own_writes::OwnWrites;
use cistern_crds::{
    HasImage, ImageTransfer, PoolReplica, PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode,
    volume::ImageStatus,
};
use kube::{
    ResourceExt,
    core::DeserializeGuard,
    runtime::reflector::{self, ObjectRef, Store},
};

pub use self::watches::{Changes, Watches, watch};
use crate::usage::Volume;

/// A custom resource, readable by this version or not.
pub type Guarded<K> = DeserializeGuard<K>;

/// The desired state of this node.
#[derive(Clone, Debug)]
pub struct Desired {
    node_name: Arc<str>,
    node: Store<Guarded<StorageNode>>,
    pub(super) volumes: Store<Guarded<PoolVolume>>,
    pub(super) snapshots: Store<Guarded<PoolSnapshot>>,
    pub(super) groups: Store<Guarded<PoolSnapshotGroup>>,
    pub(super) replicas: Store<Guarded<PoolReplica>>,
    transfers: Store<Guarded<ImageTransfer>>,
    own_writes: Arc<OwnWrites>,
}

/// Every volume, snapshot, group and replica of this node.
pub type Everything = (
    Vec<PoolVolume>,
    Vec<PoolSnapshot>,
    Vec<PoolSnapshotGroup>,
    Vec<PoolReplica>,
);

/// The volumes, snapshots and replicas of one pool of this node.
#[derive(Clone, Debug, Default)]
pub struct AssignedObjects {
    /// PoolVolumes of the pool.
    pub volumes: Vec<Arc<Guarded<PoolVolume>>>,
    /// PoolSnapshots of the pool.
    pub snapshots: Vec<Arc<Guarded<PoolSnapshot>>>,
    /// PoolReplicas of the pool.
    pub replicas: Vec<Arc<Guarded<PoolReplica>>>,
}

impl Desired {
    /// Resolves when every first list has arrived. Fails if a watch was dropped before that.
    pub async fn complete(&self) -> Result<(), reflector::store::WriterDropped> {
        self.node.wait_until_ready().await?;
        self.volumes.wait_until_ready().await?;
        self.snapshots.wait_until_ready().await?;
        self.groups.wait_until_ready().await?;
        self.replicas.wait_until_ready().await
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

    /// The ImageTransfers whose source is this node.
    pub fn transfers(&self) -> Vec<Arc<Guarded<ImageTransfer>>> {
        self.transfers.state()
    }

    /// The PoolReplicas of this node that this version can read.
    pub fn replicas(&self) -> Vec<Arc<Guarded<PoolReplica>>> {
        let mut replicas = self.replicas.state();
        replicas.retain(|replica| readable(replica).is_some());
        replicas
    }

    /// Names of the readable PoolReplicas of a volume on this node.
    pub fn replicas_of(&self, volume: &str) -> Vec<String> {
        let replicas = self.replicas();
        let of_volume = replicas.iter().filter_map(|it| readable(it));
        let of_volume = of_volume.filter(|it| it.spec.volume_name == volume);
        of_volume.map(ResourceExt::name_any).collect()
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

    /// The readable volumes, snapshots and replicas of this node, by name of the pool.
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
        for object in self.replicas() {
            if let Some(replica) = readable(&object) {
                let pool = all.entry(replica.spec.pool_name.clone()).or_default();
                pool.replicas.push(object);
            }
        }
        all
    }

    /// The readable volumes, snapshots and replicas of a pool.
    pub fn assigned_to(&self, pool: &str) -> AssignedObjects {
        self.by_pool().remove(pool).unwrap_or_default()
    }

    /// Kind and name of an object that cannot be read, if there is one. It may hold an unknown
    /// number of bytes in any pool.
    pub fn unreadable(&self) -> Option<String> {
        let named = |kind, name: String| format!("{kind} {name}");
        let volume = self.volumes.find(|object| object.0.is_err());
        let snapshot = || self.snapshots.find(|object| object.0.is_err());
        let replica = || self.replicas.find(|object| object.0.is_err());
        volume
            .map(|volume| named("PoolVolume", name(&volume)))
            .or_else(|| snapshot().map(|snapshot| named("PoolSnapshot", name(&snapshot))))
            .or_else(|| replica().map(|replica| named("PoolReplica", name(&replica))))
    }

    /// All objects of this node. None while one of them cannot be read, because it may claim any image.
    pub fn everything(&self) -> Option<Everything> {
        Some((
            all(&self.volumes)?,
            all(&self.snapshots)?,
            all(&self.groups)?,
            all(&self.replicas)?,
        ))
    }

    /// The agent's own writes, some of which these copies may lack.
    pub fn own_writes(&self) -> &Arc<OwnWrites> {
        &self.own_writes
    }
}

impl AssignedObjects {
    /// Whether the pool has neither volumes nor snapshots nor replicas.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty() && self.replicas.is_empty()
    }

    /// The readable volumes.
    pub fn volumes(&self) -> impl Iterator<Item = &PoolVolume> {
        self.volumes.iter().filter_map(|object| readable(object))
    }

    /// The readable snapshots.
    pub fn snapshots(&self) -> impl Iterator<Item = &PoolSnapshot> {
        self.snapshots.iter().filter_map(|object| readable(object))
    }

    /// The readable replicas.
    pub fn replicas(&self) -> impl Iterator<Item = &PoolReplica> {
        self.replicas.iter().filter_map(|object| readable(object))
    }

    /// The replicas whose image the ledger counts. It counts that of a volume with a reservation by itself, so a
    /// volume that arrives or leaves is counted once at every moment.
    pub fn counted_replicas(&self) -> impl Iterator<Item = &PoolReplica> {
        self.replicas()
            .filter(|replica| !self.counts_volume_of(replica))
    }

    /// The other replicas.
    pub fn uncounted_replicas(&self) -> impl Iterator<Item = &PoolReplica> {
        self.replicas()
            .filter(|replica| self.counts_volume_of(replica))
    }

    fn counts_volume_of(&self, replica: &PoolReplica) -> bool {
        let name = Some(&replica.spec.volume_name);
        let is_its = |volume: &PoolVolume| volume.metadata.name.as_ref() == name;
        self.volumes()
            .any(|volume| is_its(volume) && volume.reserved().is_some())
    }

    /// Names of the images that these objects claim: each its own, and the one that it has adopted.
    pub fn claimed_images(&self) -> HashSet<String> {
        let volumes = self.volumes().filter_map(ResourceExt::uid);
        let snapshots = self.snapshots().filter_map(ResourceExt::uid);
        let images = self.images().map(|image| image.uid.clone());
        let replicas = self.replicas().map(|replica| replica.spec.image.clone());
        let own = volumes.chain(snapshots);
        own.chain(images).chain(replicas).collect()
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

/// Name of an object, readable or not.
pub fn name<K: kube::Resource<DynamicType = ()>>(object: &Guarded<K>) -> String {
    object.name_any()
}
