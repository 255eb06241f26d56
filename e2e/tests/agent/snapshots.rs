//! Snapshots: taken completely or not at all, only once, and kept until their own deletion is requested.
//! And volumes that are created from them.

mod across;
mod copies;
mod frozen;
mod groups;
mod life;
mod limits;

use std::path::{Path, PathBuf};

use cistern_crds::{
    Bytes, ConditionType, Consistency, ContentSource, HasImage, PoolLimits, PoolSnapshot,
    PoolSnapshotSpec, PoolSnapshotStatus, PoolVolume, Reason, SourceKind, condition, names,
};
use cistern_e2e::{
    eventually,
    objects::{change, write_status},
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{Fixture, SOON, node_service::KubeletVolume};

impl Fixture {
    pub(crate) fn snapshots(&self) -> Api<PoolSnapshot> {
        Api::all(self.volumes.clone().into_client())
    }

    /// The object of a snapshot of a volume.
    pub(crate) fn desired_snapshot(&self, name: &str, of: &PoolVolume) -> PoolSnapshot {
        let image = &of.image().unwrap().uid;
        let spec = PoolSnapshotSpec::of(of, image, name, Consistency::Crash);
        let mut object = PoolSnapshot::new(&format!("{}-{name}", self.name), spec);
        object.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        object
    }

    pub(crate) async fn create_snapshot(&self, desired: &PoolSnapshot) -> PoolSnapshot {
        let (api, parameters) = (self.snapshots(), PostParams::default());
        api.create(&parameters, desired).await.unwrap()
    }

    /// Takes a snapshot and waits until it is ready.
    pub(crate) async fn snapshot(&self, name: &str, of: &PoolVolume) -> PoolSnapshot {
        let created = self.create_snapshot(&self.desired_snapshot(name, of)).await;
        self.ready_snapshot(&created.name_any()).await
    }

    pub(crate) async fn ready_snapshot(&self, name: &str) -> PoolSnapshot {
        let ready = is(ConditionType::Ready, "True", Reason::Reconciled);
        self.snapshot_until(name, "to be ready", ready).await
    }

    /// Waits until a snapshot is refused, and checks that no file of it exists.
    pub(crate) async fn refused_snapshot(&self, name: &str, reason: Reason) -> PoolSnapshot {
        let refused = is(ConditionType::Admitted, "False", reason);
        let object = self.snapshot_until(name, "to be refused", refused).await;
        assert_eq!(object.reserved(), None);
        let uid = object.uid().unwrap();
        self.shell("! test -e $0/$1 && ! test -e $0/../tmp/$1", &[&uid])
            .await;
        object
    }

    pub(crate) async fn get_snapshot(&self, name: &str) -> PoolSnapshot {
        self.snapshots().get(name).await.unwrap()
    }

    pub(crate) async fn snapshot_until(
        &self,
        name: &str,
        what: &str,
        expected: impl Fn(&PoolSnapshot) -> bool,
    ) -> PoolSnapshot {
        eventually(&format!("{name} {what}"), SOON, async || {
            let object = self.get_snapshot(name).await;
            if expected(&object) {
                Ok(object)
            } else {
                Err(format!("{:#?}", object.status))
            }
        })
        .await
    }

    pub(crate) async fn patch_snapshot(&self, name: &str, patch: Value) {
        change(&self.snapshots(), name, patch).await;
    }

    /// Patches a snapshot's status in place of the agent, which is stopped.
    pub(crate) async fn write_snapshot_status(&self, name: &str, status: Value) {
        write_status(&self.snapshots(), name, status).await;
    }

    /// Removes the finalizer and deletes the object.
    pub(crate) async fn force_delete_snapshot(&self, name: &str) {
        self.patch_snapshot(name, json!({"metadata": {"finalizers": []}}))
            .await;
        let snapshots = self.snapshots();
        // The object may already be gone with its finalizer.
        let _ = snapshots.delete(name, &DeleteParams::default()).await;
        eventually(
            &format!("{name} to be deleted"),
            SOON,
            async || match snapshots.get_opt(name).await.unwrap() {
                None => Ok(()),
                Some(object) => Err(format!("{:?}", object.metadata)),
            },
        )
        .await;
    }

    /// Removes a snapshot as the controller does.
    pub(crate) async fn remove_snapshot(&self, name: &str) {
        self.patch_snapshot(name, json!({"spec": {"deletionRequested": true}}))
            .await;
        let object = self.get_snapshot(name).await;
        // A snapshot that was never admitted needs no reclaim.
        if object.reserved().is_some() {
            let reclaimed = is(ConditionType::Reclaimed, "True", Reason::Reconciled);
            let object = self
                .snapshot_until(name, "to be reclaimed", reclaimed)
                .await;
            assert_eq!(object.reserved(), None);
        }
        let uid = object.uid().unwrap();
        self.shell("! test -e $0/$1", &[&uid]).await;
        self.force_delete_snapshot(name).await;
    }

    /// Makes the agent reconcile a volume, by a change that requests nothing.
    pub(crate) async fn enqueue(&self, volume: &PoolVolume) {
        let label = json!({"metadata": {"labels": {"reconcile": "again"}}});
        self.patch(&volume.name_any(), label).await;
    }

    /// Removes every snapshot of the node.
    pub(crate) async fn remove_snapshots(&self) {
        let ours = ListParams::default().fields(&format!("spec.nodeName={}", self.name));
        for object in self.snapshots().list(&ours).await.unwrap() {
            self.remove_snapshot(&object.name_any()).await;
        }
    }

    /// Creates a volume that is refused, and checks that no file of it exists.
    async fn refused_volume(&self, desired: &PoolVolume, reason: Reason) {
        let object = self.create(desired).await;
        let refused = is(ConditionType::Admitted, "False", reason);
        let object = self
            .until(&object.name_any(), "to be refused", refused)
            .await;
        assert_eq!(object.reserved(), None);
        let uid = object.uid().unwrap();
        self.shell("! test -e $0/$1 && ! test -e $0/../tmp/$1", &[&uid])
            .await;
        self.force_delete(&object.name_any()).await;
    }

    /// Sets the limits of the pool, and waits until the agent applies them.
    async fn limit(&self, limits: PoolLimits) {
        let mut spec = self.driver.storage_node().await.spec.pools;
        spec[0].limits = limits;
        self.driver.set_pools(spec).await;
        eventually("the limits to be observed", SOON, async || {
            let node = self.driver.storage_node().await;
            let observed = node.status.unwrap_or_default().observed_generation;
            if observed == node.metadata.generation {
                Ok(())
            } else {
                Err(format!("{observed:?}"))
            }
        })
        .await;
    }

    /// Creates a restored or cloned volume and waits until it is ready.
    pub(crate) async fn volume_from(
        &self,
        name: &str,
        size: Bytes,
        source: &impl HasImage,
        change: impl FnOnce(&mut PoolVolume),
    ) -> PoolVolume {
        let mut desired = self.desired_volume(name, size);
        desired.spec.content_source = Some(content_source(source));
        change(&mut desired);
        self.create_ready(&desired).await
    }
}

/// The content source that names an object.
pub(crate) fn content_source<K: HasImage>(source: &K) -> ContentSource {
    let kind = match K::kind(&()).as_ref() {
        "PoolSnapshot" => SourceKind::Snapshot,
        _ => SourceKind::Volume,
    };
    ContentSource {
        kind,
        name: source.meta().name.clone().unwrap(),
        image: source.image().unwrap().uid.clone(),
        node_name: None,
        snapshot_name: None,
    }
}

/// Matches an object that has a condition with this status and reason.
pub(crate) fn is<K: HasImage>(
    kind: ConditionType,
    status: &str,
    reason: Reason,
) -> impl Fn(&K) -> bool {
    move |object| {
        condition::find(object.conditions(), kind)
            .is_some_and(|found| found.status == status && found.reason == reason.as_str())
    }
}

pub(crate) fn status_of(snapshot: &PoolSnapshot) -> PoolSnapshotStatus {
    snapshot.status.clone().unwrap_or_default()
}

/// Writes a file in a mounted volume and syncs it to the disk.
pub(crate) async fn write(node: &Fixture, mounted: &Path, name: &str, mib: u32) {
    let script = "dd if=/dev/urandom of=$1 bs=1M count=$2 status=none conv=fsync";
    let file = mounted.join(name);
    node.shell(script, &[file.to_str().unwrap(), &mib.to_string()])
        .await;
}

/// The checksum of every file in a mounted volume.
pub(crate) async fn sums(node: &Fixture, mounted: &Path) -> String {
    let script = "cd $1 && find . -type f -print0 | sort -z | xargs -0 -r sha256sum";
    node.shell(script, &[mounted.to_str().unwrap()]).await
}

/// Stages a volume and returns its staging path.
pub(crate) async fn stage(node: &Fixture, volume: &PoolVolume, at: &str) -> PathBuf {
    let kubelet = KubeletVolume::at(node, volume, at);
    kubelet.stage(&[]).await.unwrap();
    kubelet.staging
}

pub(crate) async fn unstage(node: &Fixture, volume: &PoolVolume, at: &str) {
    KubeletVolume::at(node, volume, at).unstage().await.unwrap();
}
