//! Kubernetes' snapshot objects, as users write them.
//!
//! The distribution defines the kinds. Only the fields that the tests use are declared here.

use cistern_crds::{Bytes, PoolSnapshot, PoolSnapshotGroup, names};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::PersistentVolumeClaim};
use kube::{
    Api, CustomResource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Cluster, Harness, NAMESPACE, PATIENCE, TEST_LABEL, Test,
    objects::claim_spec,
    skipped,
    test::{list, remove_all},
};
use crate::eventually;

/// The spec of a VolumeSnapshot.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    namespaced,
    schema = "disabled",
    status = "SnapshotStatus"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// The VolumeSnapshotClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    /// The source of the snapshot.
    pub source: SnapshotSource,
}

/// The source of a VolumeSnapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// The name of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
}

/// The spec of a VolumeGroupSnapshot.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize)]
#[kube(
    group = "groupsnapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeGroupSnapshot",
    namespaced,
    schema = "disabled",
    status = "SnapshotStatus"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotSpec {
    /// The VolumeGroupSnapshotClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_class_name: Option<String>,
    /// A selector of claims.
    pub source: Value,
}

/// The status of a VolumeSnapshot or VolumeGroupSnapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// Whether volumes can be created from it.
    pub ready_to_use: Option<bool>,
    /// The minimum size of those volumes; absent for a group.
    pub restore_size: Option<Bytes>,
    /// The point in time of the snapshot.
    pub creation_time: Option<String>,
    /// The last error.
    pub error: Option<SnapshotError>,
}

/// The error of a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotError {
    /// The message, which includes the driver's.
    pub message: Option<String>,
}

/// Methods that VolumeSnapshot and VolumeGroupSnapshot share.
pub trait Taken:
    kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + DeserializeOwned
    + Serialize
    + std::fmt::Debug
{
    /// The status.
    fn status(&self) -> SnapshotStatus;
}

impl Taken for VolumeSnapshot {
    fn status(&self) -> SnapshotStatus {
        self.status.clone().unwrap_or_default()
    }
}

impl Taken for VolumeGroupSnapshot {
    fn status(&self) -> SnapshotStatus {
        self.status.clone().unwrap_or_default()
    }
}

/// The source of a claim's volume.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A VolumeSnapshot.
    Snapshot(&'a str),
    /// Another claim.
    Claim(&'a str),
}

impl Source<'_> {
    /// Returns the reference for the claim's spec.
    pub fn reference(self) -> Value {
        match self {
            Self::Snapshot(name) => {
                json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name})
            }
            Self::Claim(name) => json!({"kind": "PersistentVolumeClaim", "name": name}),
        }
    }
}

impl Cluster {
    /// Returns whether Cistern is installed with snapshot support. The cluster then has the snapshot kinds.
    pub async fn takes_snapshots(&self) -> bool {
        let deployments: Api<Deployment> = Api::namespaced(self.client(), NAMESPACE);
        let controller = deployments.get("cistern-controller").await;
        let template = controller.expect("Cistern is installed").spec.template;
        let mut containers = template.spec.expect("it has one").containers.into_iter();
        containers.any(|container| container.name == "snapshotter")
    }

    /// Returns whether snapshots are supported. Otherwise prints that `what` is skipped.
    pub async fn takes_snapshots_or_skip(&self, what: &str) -> bool {
        let takes = self.takes_snapshots().await;
        if !takes {
            skipped(what, "Cistern is installed without csi-snapshotter");
        }
        takes
    }
}

impl Test {
    /// Creates a VolumeSnapshotClass with these parameters.
    pub async fn snapshot_class(&self, name: &str, parameters: Value) -> String {
        let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
        self.class_of_snapshots(&kind, name, parameters).await
    }

    /// Creates a VolumeGroupSnapshotClass with these parameters.
    pub async fn group_class(&self, name: &str, parameters: Value) -> String {
        let (group, kind) = ("groupsnapshot.storage.k8s.io", "VolumeGroupSnapshotClass");
        let kind = GroupVersionKind::gvk(group, "v1", kind);
        self.class_of_snapshots(&kind, name, parameters).await
    }

    async fn class_of_snapshots(
        &self,
        kind: &GroupVersionKind,
        name: &str,
        parameters: Value,
    ) -> String {
        let name = self.own(name);
        let kind = ApiResource::from_gvk(kind);
        let mut class = DynamicObject::new(&name, &kind).data(json!({
            "driver": names::DRIVER,
            "deletionPolicy": "Delete",
            "parameters": parameters,
        }));
        class
            .labels_mut()
            .insert(TEST_LABEL.to_owned(), self.name.clone());
        let classes: Api<DynamicObject> = Api::all_with(self.cluster.client(), &kind);
        let created = classes.create(&PostParams::default(), &class).await;
        created.unwrap_or_else(|error| panic!("creating {name}: {error}"));
        name
    }

    /// Creates a snapshot of a claim.
    pub async fn take(&self, name: &str, class: &str, claim: &str) -> VolumeSnapshot {
        let source = json!({"persistentVolumeClaimName": claim});
        let spec = json!({"volumeSnapshotClassName": class, "source": source});
        self.object(name, spec).await
    }

    /// Creates a snapshot of a claim and waits until it is ready.
    pub async fn snapshot(&self, name: &str, class: &str, claim: &str) -> VolumeSnapshot {
        self.take(name, class, claim).await;
        self.taken(name).await
    }

    /// Creates a group snapshot of all claims of the test and waits until it is ready.
    pub async fn snapshot_group(&self, name: &str, class: &str) -> VolumeGroupSnapshot {
        self.take_group(name, class).await;
        self.taken(name).await
    }

    /// Creates a group snapshot of all claims of the test.
    pub async fn take_group(&self, name: &str, class: &str) -> VolumeGroupSnapshot {
        let selector = json!({"matchLabels": {TEST_LABEL: self.name}});
        let source = json!({"selector": selector});
        let spec = json!({"volumeGroupSnapshotClassName": class, "source": source});
        self.object(name, spec).await
    }

    /// Waits until a group has a VolumeSnapshot of a claim, and returns its name.
    pub async fn member(&self, group: &VolumeGroupSnapshot, claim: &str) -> String {
        let all = self.namespaced::<VolumeSnapshot>();
        let of_group = |snapshot: &VolumeSnapshot| {
            let mut owners = snapshot.owner_references().iter();
            owners.any(|owner| Some(&owner.uid) == group.uid().as_ref())
        };
        let is_member = |snapshot: &VolumeSnapshot| {
            let source = &snapshot.spec.source.persistent_volume_claim_name;
            of_group(snapshot) && source.as_deref() == Some(claim)
        };
        let what = format!("a snapshot of {claim} in group {}", group.name_any());
        eventually(&what, PATIENCE, async || {
            let found = all.list(&ListParams::default()).await;
            let found = found.map_err(|error| error.to_string())?.items;
            let member = found.iter().find(|snapshot| is_member(snapshot));
            let member = member.map(ResourceExt::name_any);
            member.ok_or_else(|| format!("{found:#?}"))
        })
        .await
    }

    /// Waits until a snapshot or group is ready.
    pub async fn taken<K: Taken>(&self, name: &str) -> K {
        let api = self.namespaced::<K>();
        let what = format!("{} {name} to be ready", K::kind(&()));
        eventually(&what, PATIENCE, async || {
            let taken = api.get(name).await.map_err(|error| error.to_string())?;
            match taken.status() {
                status if status.ready_to_use == Some(true) => Ok(taken),
                status => Err(format!("{status:?}")),
            }
        })
        .await
    }

    /// Waits until a snapshot or group reports an error that contains all of these strings, and returns it.
    pub async fn refused<K: Taken>(&self, name: &str, says: &[&str]) -> String {
        let api = self.namespaced::<K>();
        let what = format!("{} {name} to say {says:?}", K::kind(&()));
        eventually(&what, PATIENCE, async || {
            let taken = api.get(name).await.map_err(|error| error.to_string())?;
            let status = taken.status();
            let message = status.error.clone().and_then(|error| error.message);
            match message {
                Some(message) if says.iter().all(|part| message.contains(part)) => Ok(message),
                _ => Err(format!("{status:?}")),
            }
        })
        .await
    }

    /// Creates a claim with a source for its volume.
    pub async fn claim_from(
        &self,
        source: Source<'_>,
        name: &str,
        class: &str,
        size: Bytes,
    ) -> PersistentVolumeClaim {
        let mut spec = claim_spec(class, size);
        spec["dataSource"] = source.reference();
        self.object(name, spec).await
    }

    /// Deletes the snapshots and groups of the test's namespace and waits until no object of them is left in
    /// Kubernetes or Cistern.
    pub(super) async fn remove_snapshots(&self) {
        remove_snapshots_of(&self.cluster, &self.namespace).await;
        let kept = self.all::<PoolSnapshot>();
        eventually("the test's snapshots to be gone", PATIENCE, async || {
            let kept = kept.list(&ListParams::default()).await;
            let mut kept = kept.map_err(|error| error.to_string())?.items;
            kept.retain(|snapshot| snapshot.spec.pool_name.starts_with(&self.own("")));
            if kept.is_empty() {
                return Ok(());
            }
            Err(format!("{kept:#?}"))
        })
        .await;
        // A group does not record its test. On the harness' cluster, none may be left but those of other tests.
        if Harness::is_there() {
            self.no_group_is_left().await;
        }
    }

    /// Waits until each PoolSnapshotGroup belongs to a VolumeGroupSnapshot, which another test uses or has kept.
    async fn no_group_is_left(&self) {
        let (groups, asked_for) = (
            self.all::<PoolSnapshotGroup>(),
            Api::<VolumeGroupSnapshot>::all(self.cluster.client()),
        );
        eventually("the test's groups to be gone", PATIENCE, async || {
            let asked_for = list(&asked_for, "").await;
            let mut left = list(&groups, "").await;
            left.retain(|group| !is_of_one_of(group, &asked_for));
            if left.is_empty() {
                return Ok(());
            }
            Err(format!("{left:#?}"))
        })
        .await;
    }
}

/// Whether the name that the snapshotter requested for the group is that of one of these objects.
fn is_of_one_of(group: &PoolSnapshotGroup, asked_for: &[VolumeGroupSnapshot]) -> bool {
    let mut uids = asked_for.iter().filter_map(ResourceExt::uid);
    uids.any(|uid| group.spec.requested_name.ends_with(&uid))
}

/// Deletes the snapshots and groups of a namespace.
pub(super) async fn remove_snapshots_of(cluster: &Cluster, namespace: &str) {
    if cluster.takes_snapshots().await {
        // Group members are deleted with their group.
        remove_all::<VolumeGroupSnapshot>(&Api::namespaced(cluster.client(), namespace), "").await;
        remove_all::<VolumeSnapshot>(&Api::namespaced(cluster.client(), namespace), "").await;
    }
}

/// Deletes the snapshot classes with a label.
pub(super) async fn remove_snapshot_classes(cluster: &Cluster, label: &str) {
    if cluster.takes_snapshots().await {
        let kinds = "volumesnapshotclasses,volumegroupsnapshotclasses";
        cluster
            .kubectl(["delete", kinds, "--selector", label])
            .await;
    }
}
