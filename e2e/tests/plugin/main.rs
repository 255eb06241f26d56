//! `kubectl cistern` end to end: the program against a real API server and a real agent.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod agent_pod;
mod browser;
mod cordon;
mod discover;
mod doctor;
mod draining;
mod fsck;
mod moving;
mod orphans;
mod replace_disk;
mod rights;
mod standby;
mod support_bundle;
mod top;
mod transfers;
mod ui;
mod unreadable;
mod usage;
mod versions;
mod views;

use std::{path::PathBuf, time::Duration};

use cistern_crds::{
    AccessMode, AccessType, Bytes, ConditionType, ContentSource, FilesystemType, HasImage,
    PoolSnapshot, PoolSnapshotSpec, PoolVolume, PoolVolumeSpec, SourceKind, VolumeAttributes,
    condition, volume::ClaimReference,
};
use cistern_e2e::{
    ControlPlane, Driver, eventually,
    objects::change,
    plugin::{Answer, Plugin, end},
    process::run,
};
use kube::{Api, Client, ResourceExt as _, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Timeout of each step.
const SOON: Duration = Duration::from_mins(2);

/// A node with one pool of the minimum size. The pool has the name of the node.
struct Node {
    driver: Driver,
    plugin: Plugin,
    client: Client,
    name: String,
}

impl Node {
    async fn start(name: &str) -> Self {
        let control_plane = ControlPlane::shared().await;
        let driver = Driver::start(control_plane, name).await;
        driver.add_image_pool(name, Bytes::gib(1)).await;
        Self {
            driver,
            plugin: Plugin::with(rights::kubeconfig(control_plane).await),
            client: control_plane.client(),
            name: name.to_owned(),
        }
    }

    fn all<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Creates a volume of 64 MiB for the claim `default/{name}` and waits until it is ready.
    async fn volume(&self, name: &str, source: Option<ContentSource>) -> PoolVolume {
        let spec = PoolVolumeSpec {
            requested_name: name.to_owned(),
            node_name: self.name.clone(),
            pool_name: self.name.clone(),
            size: Bytes::mib(64),
            access_type: AccessType::Filesystem,
            filesystem: Some(FilesystemType::Ext4),
            mkfs_options: None,
            extent_size: None,
            adopt_filesystem: false,
            encryption: None,
            encryption_discards: false,
            access_modes: vec![AccessMode::SingleNodeMultiWriter],
            attributes: VolumeAttributes::default(),
            content_source: source,
            claim: Some(ClaimReference {
                namespace: "default".to_owned(),
                name: name.to_owned(),
            }),
            deletion_requested: false,
            epoch: 0,
            takeovers: 0,
            target: None,
            cancelled_move_uid: None,
            promoted_move_uid: None,
        };
        self.create_ready(PoolVolume::desired(name, spec)).await
    }

    /// Creates a snapshot of a volume and waits until it is ready.
    async fn snapshot(&self, name: &str, of: &PoolVolume) -> PoolSnapshot {
        let image = &of.image().unwrap().uid;
        let spec = PoolSnapshotSpec::of(of, image, name, cistern_crds::Consistency::Crash);
        self.create_ready(PoolSnapshot::desired(name, spec)).await
    }

    async fn create_ready<K>(&self, desired: K) -> K
    where
        K: HasImage + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = self.all();
        api.create(&PostParams::default(), &desired).await.unwrap();
        self.ready(&desired.name_any()).await
    }

    /// An object once it is ready.
    async fn ready<K>(&self, name: &str) -> K
    where
        K: HasImage + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = self.all();
        eventually(&format!("{name} to be ready"), SOON, async || {
            let object = api.get(name).await.unwrap();
            if condition::holds(object.conditions(), ConditionType::Ready) {
                Ok(object)
            } else {
                Err(format!("{:?}", object.conditions()))
            }
        })
        .await
    }

    /// Removes an object and its image, as the plugin does with an orphan.
    async fn remove<K>(&self, object: &K)
    where
        K: HasImage + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let (api, name): (Api<K>, String) = (self.all(), object.name_any());
        let request = serde_json::json!({"spec": {"deletionRequested": true}});
        change(&api, &name, request).await;
        eventually(&format!("{name} to be reclaimed"), SOON, async || {
            let object = api.get(&name).await.unwrap();
            if object.reserved().is_none() {
                Ok(())
            } else {
                Err(format!("{:?}", object.conditions()))
            }
        })
        .await;
        self.forget(object).await;
    }

    /// Deletes the object and keeps its image.
    async fn forget<K>(&self, object: &K)
    where
        K: HasImage + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let (api, name): (Api<K>, String) = (self.all(), object.name_any());
        let none = serde_json::json!({"metadata": {"finalizers": []}});
        change(&api, &name, none).await;
        api.delete(&name, &kube::api::DeleteParams::default())
            .await
            .unwrap();
    }

    /// Folder of the pool's images, as a path on the node.
    fn images(&self) -> PathBuf {
        let pools = self.driver.storage_root().join("pools");
        pools.join(format!("uid-of-{}", self.name)).join("images")
    }

    /// Returns whether an image exists.
    async fn has_image(&self, image: &str) -> bool {
        let mut test = self.driver.command_on_node("test");
        test.arg("-f").arg(self.images().join(image));
        run(test, SOON).await.status.success()
    }
}

/// Content source of a volume that is created from a snapshot.
fn copy_of(snapshot: &PoolSnapshot) -> ContentSource {
    ContentSource {
        kind: SourceKind::Snapshot,
        name: snapshot.name_any(),
        image: snapshot.image().unwrap().uid.clone(),
        node_name: None,
        snapshot_name: None,
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}
