//! The objects in the cluster that relate to Cistern, at the time of the list requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use cistern_client::Rejection;
pub use cistern_crds::unclaimed::handle;
use cistern_crds::{
    ImageTransfer, PoolReplica, PoolSnapshot, PoolSnapshotGroup, PoolVolume, StorageNode,
    StoragePool, VolumeMove, names,
    unclaimed::{self, snapshot_handle},
    volume::ClaimReference,
};
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DynamicObject, ListParams},
    core::{DeserializeGuard, Selector, SelectorExt as _},
};
use serde::de::DeserializeOwned;

use crate::{
    Connection, Error,
    unreadable::{Unreadable, UnreadableObjects},
};

/// Cistern's own objects, and the Kubernetes objects that use them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// All StoragePools.
    pub pools: Vec<StoragePool>,
    /// All StorageNodes.
    pub nodes: Vec<StorageNode>,
    /// All PoolVolumes.
    pub volumes: Vec<PoolVolume>,
    /// All PoolSnapshots.
    pub snapshots: Vec<PoolSnapshot>,
    /// All PoolSnapshotGroups.
    pub groups: Vec<PoolSnapshotGroup>,
    /// All VolumeMoves.
    pub moves: Vec<VolumeMove>,
    /// All ImageTransfers.
    pub transfers: Vec<ImageTransfer>,
    /// All PoolReplicas; empty until [`Cluster::read_replicas`].
    pub replicas: Vec<PoolReplica>,
    /// StorageClasses with Cistern as provisioner.
    pub classes: Vec<StorageClass>,
    /// Claims of these classes, and claims bound to `persistent_volumes`.
    pub claims: Vec<PersistentVolumeClaim>,
    /// PersistentVolumes of the Cistern driver, by volume handle.
    pub persistent_volumes: BTreeMap<String, PersistentVolume>,
    /// Pods that are neither Succeeded nor Failed, by namespace and name of each claim that they use.
    pub pods: BTreeMap<(String, String), Vec<Arc<Pod>>>,
    /// Warning events about claims.
    pub events: Vec<Event>,
    /// Notes for the user about kinds or devices that could not be read.
    pub unread: Vec<String>,
    /// Objects of Cistern that cannot be parsed. No other field has them.
    pub unreadable: UnreadableObjects,
}

/// Lists of the Kubernetes objects that may use Cistern's objects. A list is `None` if the user may
/// not list the kind.
#[derive(Clone, Debug, Default)]
pub struct Users {
    /// All StorageClasses.
    pub classes: Option<Vec<StorageClass>>,
    /// All PersistentVolumeClaims.
    pub claims: Option<Vec<PersistentVolumeClaim>>,
    /// All PersistentVolumes.
    pub persistent_volumes: Option<Vec<PersistentVolume>>,
    /// All pods.
    pub pods: Option<Vec<Pod>>,
    /// Events that [`CLAIM_WARNINGS`] selects.
    pub events: Option<Vec<Event>>,
}

/// Field selector of warning events about claims.
pub const CLAIM_WARNINGS: &str = "involvedObject.kind=PersistentVolumeClaim,type=Warning";

impl Cluster {
    /// Lists Cistern's own objects. Those that cannot be parsed are only in `unreadable`. Kinds that version 0.1
    /// does not have may be missing. Fails if the other CRDs are not installed, or if a request fails.
    pub async fn own(connection: &Connection) -> Result<Self, Error> {
        let (pools, nodes, volumes, snapshots, groups, moves, transfers) = tokio::try_join!(
            connection.own(),
            connection.own(),
            connection.own(),
            connection.own(),
            connection.own(),
            of_newer_version(connection),
            of_newer_version(connection),
        )?;
        let (mut unread, mut unreadable) = (Vec::new(), UnreadableObjects::default());
        Ok(Self {
            pools: unreadable.sort_out(pools),
            nodes: unreadable.sort_out(nodes),
            volumes: unreadable.sort_out(volumes),
            snapshots: unreadable.sort_out(snapshots),
            groups: unreadable.sort_out(groups),
            moves: unreadable.sort_out(or_note(moves, &mut unread)),
            transfers: unreadable.sort_out(or_note(transfers, &mut unread)),
            unread,
            unreadable,
            ..Self::default()
        })
    }

    /// Lists Cistern's own objects and the Kubernetes objects that use them. Kubernetes kinds that
    /// the user may not list are left empty and reported in `unread`. Fails if Cistern's own
    /// objects cannot be listed, or if another request fails for a reason other than denied access.
    pub async fn with_users(connection: &Connection) -> Result<Self, Error> {
        let (own, classes, claims, persistent_volumes, pods, events) = tokio::try_join!(
            Self::own(connection),
            optional(connection, ListParams::default()),
            optional(connection, ListParams::default()),
            optional(connection, ListParams::default()),
            optional(connection, ListParams::default()),
            optional(connection, ListParams::default().fields(CLAIM_WARNINGS)),
        )?;
        Ok(own.with(Users {
            classes,
            claims,
            persistent_volumes,
            pods,
            events,
        }))
    }

    /// Lists the PoolReplicas. Reports in `unread` if the user may not list them. Fails if the request fails for
    /// another reason.
    pub async fn read_replicas(&mut self, connection: &Connection) -> Result<(), Error> {
        let found = of_newer_version(connection).await?;
        let found = or_note(found, &mut self.unread);
        self.replicas = self.unreadable.sort_out(found);
        Ok(())
    }

    /// Fails if a volume, snapshot or group cannot be parsed. A command that gives up data must know them all:
    /// the pool or node of an object that is left out would look emptier than it is.
    pub fn require_all_data(&self) -> Result<(), Error> {
        let has_data = |it: &&Unreadable| {
            ["PoolVolume", "PoolSnapshot", "PoolSnapshotGroup"].contains(&it.kind)
        };
        let first = self.unreadable.iter().find(has_data).cloned();
        first.map_or(Ok(()), |first| Err(Error::Incomplete(first)))
    }

    /// Adds the Kubernetes objects that use Cistern's objects. Kinds that are `None` are reported
    /// in `unread`.
    #[must_use]
    pub fn with(mut self, users: Users) -> Self {
        let unread = &mut self.unread;
        self.classes = or_note(users.classes, unread);
        self.classes
            .retain(|class| class.provisioner == names::DRIVER);
        self.claims = or_note(users.claims, unread);
        self.persistent_volumes = by_handle(or_note(users.persistent_volumes, unread));
        self.pods = by_claim(or_note(users.pods, unread));
        self.events = or_note(users.events, unread);
        self.forget_claims_of_others();
        self
    }

    /// Keeps claims of Cistern's classes and claims bound to Cistern's PersistentVolumes.
    fn forget_claims_of_others(&mut self) {
        let classes: BTreeSet<String> = self.classes.iter().map(ResourceExt::name_any).collect();
        let volumes = self.persistent_volumes.values();
        let volumes: BTreeSet<String> = volumes.map(ResourceExt::name_any).collect();
        self.claims.retain(|claim| {
            let Some(spec) = &claim.spec else {
                return false;
            };
            let class = spec.storage_class_name.as_deref().unwrap_or_default();
            let bound = spec.volume_name.as_deref().unwrap_or_default();
            classes.contains(class) || volumes.contains(bound)
        });
    }

    /// Returns the PoolVolume of this name.
    pub fn volume(&self, name: &str) -> Option<&PoolVolume> {
        named(&self.volumes, name)
    }

    /// Returns the StorageNode of this name.
    pub fn node(&self, name: &str) -> Option<&StorageNode> {
        named(&self.nodes, name)
    }

    /// Returns the VolumeMove of a volume, which has its name.
    pub fn move_of(&self, volume: &str) -> Option<&VolumeMove> {
        named(&self.moves, volume)
    }

    /// Returns the PersistentVolume whose volume handle is `volume`.
    pub fn persistent_volume(&self, volume: &str) -> Option<&PersistentVolume> {
        self.persistent_volumes.get(volume)
    }

    /// Returns the claim of a volume: the `claimRef` of its PersistentVolume, or else the claim in its spec.
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

    /// Returns the claims that exist and have labels that a selector selects.
    pub fn claims_with(&self, labels: &Selector) -> BTreeSet<ClaimReference> {
        let claims = self.claims.iter();
        let selected = claims.filter(|claim| labels.matches(claim.labels()));
        selected.map(claim_reference).collect()
    }

    /// Returns pods that use a claim and are neither Succeeded nor Failed.
    pub fn pods_with(&self, claim: &ClaimReference) -> impl Iterator<Item = &Pod> {
        let claim = (claim.namespace.clone(), claim.name.clone());
        self.pods
            .get(&claim)
            .into_iter()
            .flatten()
            .map(|pod| &**pod)
    }
}

fn named<'a, K: Resource>(all: &'a [K], name: &str) -> Option<&'a K> {
    all.iter()
        .find(|it| it.meta().name.as_deref() == Some(name))
}

/// Indexes the PersistentVolumes of the Cistern driver by volume handle. The first one of a handle counts.
pub(crate) fn by_handle(all: Vec<PersistentVolume>) -> BTreeMap<String, PersistentVolume> {
    let mut volumes = BTreeMap::new();
    for volume in all {
        if let Some(handle) = handle(&volume).map(str::to_owned) {
            volumes.entry(handle).or_insert(volume);
        }
    }
    volumes
}

/// Returns the reference to a claim.
pub fn claim_reference(claim: &PersistentVolumeClaim) -> ClaimReference {
    ClaimReference {
        namespace: claim.namespace().unwrap_or_default(),
        name: claim.name_any(),
    }
}

/// Indexes pods by namespace and name of their claims. Leaves out pods that are Succeeded or
/// Failed.
pub(crate) fn by_claim(all: Vec<Pod>) -> BTreeMap<(String, String), Vec<Arc<Pod>>> {
    let mut pods: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for pod in all.into_iter().map(Arc::new) {
        let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
        let Some(namespace) = pod.namespace() else {
            continue;
        };
        if matches!(phase, Some("Succeeded" | "Failed")) {
            continue;
        }
        for name in claims_of(&pod).collect::<BTreeSet<String>>() {
            let claim = (namespace.clone(), name);
            pods.entry(claim).or_default().push(Arc::clone(&pod));
        }
    }
    pods
}

/// Names of the claims that a pod uses, including those of generic ephemeral volumes.
fn claims_of(pod: &Pod) -> impl Iterator<Item = String> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes.into_iter().flatten().filter_map(|volume| {
        let named = volume.persistent_volume_claim.as_ref();
        let own = volume.ephemeral.as_ref();
        let named = named.map(|claim| claim.claim_name.clone());
        named.or_else(|| own.map(|_| format!("{}-{}", pod.name_any(), volume.name)))
    })
}

/// Lists the VolumeSnapshotContents of all drivers. Fails if the kind is not installed, if the user
/// may not list it, or if the request fails.
pub async fn contents(connection: &Connection) -> Result<Vec<DynamicObject>, Error> {
    let kind = unclaimed::contents();
    let what = format!("cannot list {}", kind.plural);
    let api = Api::<DynamicObject>::all_with(connection.client(), &kind);
    let all = ListParams::default();
    Ok(connection.ask(what, api.list(&all)).await?.items)
}

/// VolumeSnapshots, as `NAMESPACE/NAME`, by the name of their PoolSnapshot.
#[derive(Clone, Debug, Default)]
pub struct VolumeSnapshots(BTreeMap<String, String>);

impl VolumeSnapshots {
    /// Lists the VolumeSnapshotContents. The result is empty if the kind is not installed, or if
    /// the user may not list it; a denial is reported in `unread`. Fails if the request fails for
    /// another reason.
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

    /// Builds the map from VolumeSnapshotContents.
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

    /// Returns the VolumeSnapshot of a PoolSnapshot, as `NAMESPACE/NAME`; `None` if no
    /// VolumeSnapshotContent names it.
    pub fn of(&self, snapshot: &str) -> Option<String> {
        self.0.get(snapshot).cloned()
    }
}

/// Returns the list. If the user may not list the kind, returns an empty list and adds a note to
/// `unread`.
fn or_note<K: Resource<DynamicType = ()>>(
    list: Option<Vec<K>>,
    unread: &mut Vec<String>,
) -> Vec<K> {
    list.unwrap_or_else(|| {
        let kind = K::plural(&());
        unread.push(format!("{kind} are not shown: you may not list them"));
        Vec::new()
    })
}

/// Returns the notes that are about one of these kinds, given as plural names. A note begins with the name of its kind.
pub(crate) fn notes_about(notes: &[String], kinds: &[&str]) -> Vec<String> {
    let is_about = |note: &&String| note.split(' ').next().is_some_and(|it| kinds.contains(&it));
    notes.iter().filter(is_about).cloned().collect()
}

/// Lists a kind that version 0.1 of Cistern does not have; `None` if the user may not list it, as with the
/// ClusterRoles of that version.
async fn of_newer_version<K>(
    connection: &Connection,
) -> Result<Option<Vec<DeserializeGuard<K>>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match connection.own().await {
        Ok(list) => Ok(Some(list)),
        Err(Error::NotInstalled { .. }) => Ok(Some(Vec::new())),
        Err(Error::Denied { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists a kind; `None` if the user may not list it.
async fn optional<K>(connection: &Connection, select: ListParams) -> Result<Option<Vec<K>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match connection.list(connection.everywhere::<K>(), select).await {
        Ok(list) => Ok(Some(list)),
        Err(Error::Denied { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{object, pod};

    #[test]
    fn the_first_persistent_volume_of_a_handle_counts_and_other_drivers_do_not() {
        let volume = |name: &str, driver: &str, handle: &str| -> PersistentVolume {
            object(json!({
                "metadata": {"name": name},
                "spec": {"csi": {"driver": driver, "volumeHandle": handle}},
            }))
        };
        let cluster = Cluster {
            persistent_volumes: by_handle(vec![
                volume("a", names::DRIVER, "pvc-1"),
                volume("b", names::DRIVER, "pvc-1"),
                volume("c", "other", "pvc-2"),
            ]),
            ..Cluster::default()
        };
        let found = cluster
            .persistent_volume("pvc-1")
            .map(ResourceExt::name_any);
        assert_eq!(found.as_deref(), Some("a"));
        assert_eq!(cluster.persistent_volume("pvc-2"), None);
    }

    #[test]
    fn a_claim_is_selected_by_its_labels_and_a_volume_without_one_never() {
        let mut cluster = crate::testing::cluster();
        let claim = cluster.claims.iter_mut().find(|it| it.name_any() == "data");
        let labels = claim.unwrap().labels_mut();
        labels.insert("app".to_owned(), "db".to_owned());
        let claim = |name: &str| ClaimReference {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        };
        let selected = |selector: &str, claim: Option<&ClaimReference>| {
            let claims = cluster.claims_with(&crate::selector::parse(selector).unwrap());
            claim.is_some_and(|claim| claims.contains(claim))
        };
        assert!(selected("app=db", Some(&claim("data"))));
        assert!(!selected("app=db", Some(&claim("copy"))));
        assert!(selected("!app", Some(&claim("copy"))));
        assert!(!selected("!app", Some(&claim("none"))) && !selected("!app", None));
    }

    #[test]
    fn a_pod_is_found_once_by_each_of_its_claims_until_it_ends() {
        let mut both = pod("db-0", "data", "Running");
        let more = pod("x", "more", "Running").spec.unwrap().volumes.unwrap();
        let volumes = both.spec.as_mut().unwrap().volumes.as_mut().unwrap();
        volumes.extend(volumes.clone());
        volumes.extend(more);
        let cluster = Cluster {
            pods: by_claim(vec![
                both,
                pod("done", "data", "Succeeded"),
                pod("broken", "data", "Failed"),
            ]),
            ..Cluster::default()
        };
        let with = |namespace: &str, name: &str| {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            let claim = ClaimReference { namespace, name };
            let pods = cluster.pods_with(&claim);
            pods.map(ResourceExt::name_any).collect::<Vec<_>>()
        };
        assert_eq!(with("shop", "data"), ["db-0"]);
        assert_eq!(with("shop", "more"), ["db-0"]);
        assert!(with("other", "data").is_empty() && with("shop", "none").is_empty());
    }
}
