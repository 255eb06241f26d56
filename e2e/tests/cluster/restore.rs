//! Restore of the cluster's objects from a backup: every object is new, and the data is unchanged.

use std::panic::AssertUnwindSafe;

use cistern_crds::{Bytes, PoolSnapshot, PoolVolume};
use cistern_e2e::{
    Harness, Test,
    cluster::{
        Cluster, NAMESPACE, PATIENCE, objects::Binding::WaitForFirstConsumer, snapshots::Source,
    },
    eventually,
};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::json;

/// Ordered so that objects only refer to earlier ones.
const KINDS: [&str; 5] = [
    "StoragePool",
    "StorageNode",
    "PoolVolume",
    "PoolSnapshotGroup",
    "PoolSnapshot",
];

#[tokio::test]
async fn objects_restored_under_a_running_pod_find_every_pool_volume_and_snapshot_again() {
    let Some(harness) = Harness::or_skip("restoring every object of Cistern") else {
        return;
    };
    Test::run_alone("restored", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let snapshots = test.snapshot_class("snapshots", json!({})).await;
        test.claim("claim", &class, Bytes::mib(100)).await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        test.snapshot("snapshot", &snapshots, "claim").await;
        let images = "find /var/lib/cistern/pools/*/images -type f -printf '%f %i %s\\n' | sort";
        let found = harness.shell(&node, images).await;

        let dump = dump(&test.cluster).await;
        let lost = async {
            lose_all(&test.cluster, &dump).await;
            test.writes_go_on("writer").await;
        };
        let lost = AssertUnwindSafe(lost).catch_unwind().await;
        // Also after a failure: images without objects would make every later test fail.
        restore(&test.cluster, dump).await;
        if let Err(panic) = lost {
            std::panic::resume_unwind(panic);
        }

        test.pool_on(&pool, 1).await;
        are_what_they_were(test, &pool).await;
        assert_eq!(harness.shell(&node, images).await, found);
        let written = test.writes_go_on("writer").await;
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        test.writes_go_on_after("writer", written).await;
        let source = Source::Snapshot("snapshot");
        test.claim_from(source, "copy", &class, Bytes::mib(100))
            .await;
        test.writer("copy", "copy").await;
        test.running("copy").await;
        test.writes_go_on("copy").await;
    })
    .await;
}

/// Dumps Cistern's objects as a generic backup tool does: without UIDs and status.
async fn dump(cluster: &Cluster) -> Vec<(&'static str, Vec<DynamicObject>)> {
    let mut dump = Vec::new();
    for kind in KINDS {
        let list = api(cluster, kind).list(&ListParams::default()).await;
        let objects = list.unwrap().into_iter().map(|object| {
            let mut kept = DynamicObject::new(&object.name_any(), &resource(kind));
            kept.metadata.labels = object.metadata.labels;
            kept.metadata.annotations = object.metadata.annotations;
            kept.metadata.finalizers = object.metadata.finalizers;
            kept.data(json!({"spec": object.data["spec"]}))
        });
        dump.push((kind, objects.collect()));
    }
    dump
}

/// Deletes all objects while operator and controller, which would block that, are scaled down. The agents
/// keep running, because the pods with volumes do too.
async fn lose_all(cluster: &Cluster, dump: &[(&str, Vec<DynamicObject>)]) {
    scale(cluster, ["0", "0"]).await;
    for component in ["operator", "controller"] {
        eventually("its pods to be gone", PATIENCE, async || {
            match cluster.component(component).await {
                none if none.is_empty() => Ok(()),
                some => Err(format!("{:?}", some.keys())),
            }
        })
        .await;
    }
    let let_go = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    for (kind, objects) in dump {
        let api = api(cluster, kind);
        for name in objects.iter().map(DynamicObject::name_any) {
            api.delete(&name, &DeleteParams::default()).await.unwrap();
            // Without finalizers it is already deleted.
            let _ = api.patch(&name, &PatchParams::default(), &let_go).await;
        }
        eventually(&format!("every {kind} to be gone"), PATIENCE, async || {
            let left = api.list(&ListParams::default()).await;
            match left.map_err(|error| error.to_string())?.items {
                none if none.is_empty() => Ok(()),
                some => Err(format!("{some:?}")),
            }
        })
        .await;
    }
}

async fn restore(cluster: &Cluster, dump: Vec<(&str, Vec<DynamicObject>)>) {
    for (kind, objects) in dump {
        let api = api(cluster, kind);
        for object in objects {
            match api.create(&PostParams::default(), &object).await {
                // It was not lost.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                created => _ = created.unwrap(),
            }
        }
    }
    scale(cluster, ["2", "2"]).await;
    cluster.wait_until_installed().await;
}

/// Replicas of operator and controller.
async fn scale(cluster: &Cluster, replicas: [&str; 2]) {
    for (component, replicas) in ["operator", "controller"].iter().zip(replicas) {
        let deployment = format!("deployment/cistern-{component}");
        let replicas = format!("--replicas={replicas}");
        cluster
            .kubectl(["scale", &deployment, "--namespace", NAMESPACE, &replicas])
            .await;
    }
}

/// Waits until the pool's volumes and snapshots are ready with their former images.
async fn are_what_they_were(test: &Test, pool: &str) {
    let (volumes, snapshots) = (test.all::<PoolVolume>(), test.all::<PoolSnapshot>());
    eventually("every object to be ready again", PATIENCE, async || {
        let all = ListParams::default();
        let volumes = volumes
            .list(&all)
            .await
            .map_err(|error| error.to_string())?;
        let snapshots = snapshots
            .list(&all)
            .await
            .map_err(|error| error.to_string())?;
        let volumes = volumes
            .iter()
            .filter(|volume| volume.spec.pool_name == pool);
        let snapshots = snapshots
            .iter()
            .filter(|snapshot| snapshot.spec.pool_name == pool);
        let adopted = volumes
            .map(|volume| {
                let status = volume.status.clone().unwrap_or_default();
                (
                    volume.uid(),
                    status.image.map(|image| image.uid),
                    status.conditions,
                )
            })
            .chain(snapshots.map(|snapshot| {
                let status = snapshot.status.clone().unwrap_or_default();
                (
                    snapshot.uid(),
                    status.image.map(|image| image.uid),
                    status.conditions,
                )
            }));
        for (uid, image, conditions) in adopted {
            let ready =
                cistern_crds::condition::holds(&conditions, cistern_crds::ConditionType::Ready);
            if !ready || image.is_none() || image == uid {
                return Err(format!("{uid:?} has image {image:?}: {conditions:?}"));
            }
        }
        Ok(())
    })
    .await;
}

fn api(cluster: &Cluster, kind: &str) -> Api<DynamicObject> {
    Api::all_with(cluster.client(), &resource(kind))
}

fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("cistern.storage", "v1alpha1", kind))
}
