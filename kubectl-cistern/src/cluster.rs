//! What a cluster holds that has to do with Cistern, as it was at one moment.

use std::{collections::BTreeMap, fmt::Debug};

use cistern_client::Rejection;
pub use cistern_crds::unclaimed::handle;
use cistern_crds::{
    PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode, StoragePool, names,
    unclaimed::{self, snapshot_handle},
    volume::ClaimReference,
};
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DynamicObject, ListParams},
};
use serde::de::DeserializeOwned;

use crate::{Connection, Error};

/// Cistern's own objects, and those of others that use them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Every pool.
    pub pools: Vec<StoragePool>,
    /// Every node that carries pools.
    pub nodes: Vec<StorageNode>,
    /// Every volume.
    pub volumes: Vec<PoolVolume>,
    /// Every snapshot.
    pub snapshots: Vec<PoolSnapshot>,
    /// Every group of snapshots.
    pub groups: Vec<PoolSnapshotGroup>,
    /// StorageClasses of ours.
    pub classes: Vec<StorageClass>,
    /// Claims of ours.
    pub claims: Vec<PersistentVolumeClaim>,
    /// PersistentVolumes of ours.
    pub persistent_volumes: Vec<PersistentVolume>,
    /// Pods with claims.
    pub pods: Vec<Pod>,
    /// Warnings about claims.
    pub events: Vec<Event>,
    /// What could not be read, for people: what is shown lacks it.
    pub unread: Vec<String>,
}

impl Cluster {
    /// Cistern's own objects.
    pub async fn own(connection: &Connection) -> Result<Self, Error> {
        let (pools, nodes, volumes, snapshots, groups) = tokio::try_join!(
            connection.own(),
            connection.own(),
            connection.own(),
            connection.own(),
            connection.own(),
        )?;
        Ok(Self {
            pools,
            nodes,
            volumes,
            snapshots,
            groups,
            ..Self::default()
        })
    }

    /// These, and the claims, PersistentVolumes and pods that use them. What may not be read is left
    /// out, and told.
    pub async fn with_users(connection: &Connection) -> Result<Self, Error> {
        let warnings = "involvedObject.kind=PersistentVolumeClaim,type=Warning";
        let warnings = ListParams::default().fields(warnings);
        let (mut own, classes, claims, persistent_volumes, pods, events) = tokio::try_join!(
            Self::own(connection),
            optional::<StorageClass>(connection, ListParams::default()),
            optional::<PersistentVolumeClaim>(connection, ListParams::default()),
            optional::<PersistentVolume>(connection, ListParams::default()),
            optional::<Pod>(connection, ListParams::default()),
            optional::<Event>(connection, warnings),
        )?;
        let unread = &mut own.unread;
        own.classes = classes.or_told(unread);
        own.classes
            .retain(|class| class.provisioner == names::DRIVER);
        own.claims = claims.or_told(unread);
        own.persistent_volumes = persistent_volumes.or_told(unread);
        own.persistent_volumes
            .retain(|volume| handle(volume).is_some());
        own.pods = pods.or_told(unread);
        own.pods.retain(|pod| claims_of(pod).next().is_some());
        own.events = events.or_told(unread);
        own.forget_claims_of_others();
        Ok(own)
    }

    /// Keeps claims whose class is ours, and those that are bound to a volume of ours.
    fn forget_claims_of_others(&mut self) {
        let (classes, volumes) = (&self.classes, &self.persistent_volumes);
        self.claims.retain(|claim| {
            let Some(spec) = &claim.spec else {
                return false;
            };
            let class = spec.storage_class_name.as_deref().unwrap_or_default();
            let bound = spec.volume_name.as_deref().unwrap_or_default();
            classes.iter().any(|ours| ours.name_any() == class)
                || volumes.iter().any(|ours| ours.name_any() == bound)
        });
    }

    /// The PersistentVolume of a volume.
    pub fn persistent_volume(&self, volume: &str) -> Option<&PersistentVolume> {
        let mut all = self.persistent_volumes.iter();
        all.find(|object| handle(object) == Some(volume))
    }

    /// The claim of a volume: the one that its PersistentVolume is bound to, or else the one that it
    /// was made for.
    pub fn claim(&self, volume: &PoolVolume) -> Option<ClaimReference> {
        let bound = self
            .persistent_volume(&volume.name_any())
            .and_then(|object| object.spec.as_ref()?.claim_ref.as_ref())
            .and_then(|claim| {
                let namespace = claim.namespace.clone()?;
                let name = claim.name.clone()?;
                Some(ClaimReference { namespace, name })
            });
        bound.or_else(|| volume.spec.claim.clone())
    }

    /// Pods that use a claim and have not ended.
    pub fn pods_with(&self, claim: &ClaimReference) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(move |pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            pod.namespace().as_deref() == Some(&claim.namespace)
                && !matches!(phase, Some("Succeeded" | "Failed"))
                && claims_of(pod).any(|name| name == claim.name)
        })
    }
}

/// Names of the claims that a pod uses; those of its generic ephemeral volumes included.
fn claims_of(pod: &Pod) -> impl Iterator<Item = String> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().filter_map(|volume| {
        let named = volume.persistent_volume_claim.as_ref();
        let own = volume.ephemeral.as_ref();
        let named = named.map(|claim| claim.claim_name.clone());
        named.or_else(|| own.map(|_| format!("{}-{}", pod.name_any(), volume.name)))
    })
}

/// All VolumeSnapshotContents, whoever made them.
pub async fn contents(connection: &Connection) -> Result<Vec<DynamicObject>, Error> {
    let kind = unclaimed::contents();
    let what = format!("cannot list {}", kind.plural);
    let api = Api::<DynamicObject>::all_with(connection.client(), &kind);
    let all = ListParams::default();
    Ok(connection.ask(what, api.list(&all)).await?.items)
}

/// The VolumeSnapshots that people asked for, by the PoolSnapshot that each stands for.
#[derive(Clone, Debug, Default)]
pub struct VolumeSnapshots(BTreeMap<String, String>);

impl VolumeSnapshots {
    /// Reads them. A cluster without the kind has none; what may not be read is left out, and told.
    pub async fn read(connection: &Connection, unread: &mut Vec<String>) -> Result<Self, Error> {
        match contents(connection).await {
            Ok(contents) => Ok(Self::of_contents(&contents)),
            Err(error) if error.rejection() == Some(Rejection::NotFound) => Ok(Self::default()),
            Err(Error::Denied { .. }) => {
                unread.push(
                    "VolumeSnapshots are not shown: you may not list their contents".to_owned(),
                );
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }

    /// By their VolumeSnapshotContents.
    pub fn of_contents(contents: &[DynamicObject]) -> Self {
        let each = contents.iter().filter_map(|content| {
            let text = |path: &str| content.data.pointer(path)?.as_str();
            let handle = snapshot_handle(&content.data)?;
            let namespace = text("/spec/volumeSnapshotRef/namespace")?;
            let name = text("/spec/volumeSnapshotRef/name")?;
            Some((handle.to_owned(), format!("{namespace}/{name}")))
        });
        Self(each.collect())
    }

    /// The VolumeSnapshot of a PoolSnapshot, as `NAMESPACE/NAME`.
    pub fn of(&self, snapshot: &str) -> Option<String> {
        self.0.get(snapshot).cloned()
    }
}

/// A list, or why there is none.
enum Optional<K> {
    Read(Vec<K>),
    Unread(String),
}

impl<K> Optional<K> {
    fn or_told(self, unread: &mut Vec<String>) -> Vec<K> {
        match self {
            Self::Read(list) => list,
            Self::Unread(why) => {
                unread.push(why);
                Vec::new()
            }
        }
    }
}

async fn optional<K>(connection: &Connection, select: ListParams) -> Result<Optional<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match connection.list(connection.everywhere::<K>(), select).await {
        Ok(list) => Ok(Optional::Read(list)),
        Err(Error::Denied { .. }) => {
            let kind = K::plural(&());
            Ok(Optional::Unread(format!(
                "{kind} are not shown: you may not list them"
            )))
        }
        Err(error) => Err(error),
    }
}
