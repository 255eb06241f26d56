//! Only a deleted claim destroys data, and a deleted claim leaves nothing behind.

use cistern_crds::{Bytes, ConditionType, PoolVolume, StoragePool, condition};
use cistern_e2e::{
    Harness, Test,
    cluster::{
        Cluster, NAMESPACE, PATIENCE,
        failed::{ALLOW_DELETION, DEFINITIONS},
        objects::Binding::{Immediate, WaitForFirstConsumer},
        snapshots::VolumeGroupSnapshot,
    },
    eventually,
    process::run,
};
use k8s_openapi::{
    api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;

#[tokio::test]
async fn a_claim_deleted_while_its_volume_is_being_made_leaves_nothing() {
    let Some(harness) = Harness::or_skip("an agent that hangs") else {
        return;
    };
    Test::run("abandoned", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, Immediate, &[]).await;
        // The brackets keep the pattern from matching the shell that it is given to.
        let send = |signal: &str| format!("pkill -{signal} -f 'cistern-driver nod[e]'");
        let frozen = harness.freeze(&node, &send("STOP"), &send("CONT")).await;
        let claim = test.claim("claim", &class, Bytes::mib(100)).await;
        let volume = format!("pvc-{}", claim.uid().unwrap());
        let volumes = test.all::<PoolVolume>();
        let asked = eventually("the volume to be asked for", PATIENCE, async || {
            volumes
                .get(&volume)
                .await
                .map_err(|error| error.to_string())
        })
        .await;
        assert_eq!(asked.status, None, "the agent hangs");
        let claims = test.namespaced::<PersistentVolumeClaim>();
        claims
            .delete("claim", &DeleteParams::default())
            .await
            .unwrap();
        drop(frozen);

        test.gone(&claims, "claim").await;
        test.gone(&volumes, &volume).await;
        test.gone(&test.all::<PersistentVolume>(), &volume).await;
    })
    .await;
}

#[tokio::test]
async fn deleting_every_pool_volume_touches_no_image_and_the_pod_goes_on_writing() {
    let Some(harness) = Harness::or_skip("deleting every PoolVolume of the cluster") else {
        return;
    };
    Test::run_alone("delete-volumes", async |test| {
        let writer = Writer::start(test, harness).await;
        test.cluster
            .kubectl(["delete", "poolvolumes", "--all", "--wait=false"])
            .await;
        writer.deletion_is_blocked_and_volume_works(test).await;
        // The claim still decides: deleting it destroys the volume.
        let claims = test.namespaced::<PersistentVolumeClaim>();
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.delete(&claims, "claim").await;
        test.gone(&test.all::<PoolVolume>(), &writer.volume).await;
    })
    .await;
}

#[tokio::test]
async fn uninstalling_touches_no_image_and_installing_again_finds_every_volume() {
    let Some(harness) = Harness::or_skip("uninstalling Cistern") else {
        return;
    };
    Test::run_alone("uninstall", async |test| {
        let writer = Writer::start(test, harness).await;
        // The manifests include the definitions: their deletion is refused because it was not confirmed,
        // and everything else is deleted.
        let everything = Cluster::manifests();
        let command = ["delete", "--kustomize", everything.to_str().unwrap()];
        let output = run(test.cluster.kubectl_command(command), 2 * PATIENCE).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(ALLOW_DELETION), "{said}");
        let definitions = test.all::<CustomResourceDefinition>();
        for definition in cistern_crds::definitions() {
            let definition = definitions.get(&definition.name_any()).await.unwrap();
            assert_eq!(definition.metadata.deletion_timestamp, None);
        }
        // kubectl does not wait for deletions after an error.
        test.gone(&test.all::<Namespace>(), NAMESPACE).await;
        test.writes_go_on("writer").await;

        test.cluster.install().await;
        test.pool_on(&writer.pool, 1).await;
        assert_eq!(writer.images(test).await, writer.images);
        test.writes_go_on("writer").await;
        writer.starts_again(test).await;
        let class = test.own("class");
        test.claim("another", &class, Bytes::mib(100)).await;
        test.writer("another", "another").await;
        test.running("another").await;
    })
    .await;
}

#[tokio::test]
async fn deleting_the_definitions_touches_no_image_and_the_pod_goes_on_writing() {
    let Some(harness) = Harness::or_skip("deleting the CustomResourceDefinitions") else {
        return;
    };
    Test::run_alone("delete-definitions", async |test| {
        test.no_failed_test_keeps_volumes().await;
        let writer = Writer::start(test, harness).await;
        // Every kind has an object: a definition without objects would be deleted immediately.
        let together = test.group_class("together", json!({})).await;
        test.snapshot_group("group", &together).await;
        let writer = writer.with_images(test, 2).await;
        let meant = format!("{ALLOW_DELETION}=true");
        test.cluster
            .kubectl(["annotate", "crd", DEFINITIONS, &meant])
            .await;
        test.cluster
            .kubectl(["delete", "crd", DEFINITIONS, "--wait=false"])
            .await;
        writer.deletion_is_blocked_and_volume_works(test).await;

        // The finalizers of the objects block the definitions. After the claims are deleted, so are they.
        test.delete(&test.namespaced::<VolumeGroupSnapshot>(), "group")
            .await;
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.delete(&test.namespaced::<PersistentVolumeClaim>(), "claim")
            .await;
        let api = test.all::<CustomResourceDefinition>();
        for definition in cistern_crds::definitions() {
            test.gone(&api, &definition.name_any()).await;
        }
        test.cluster.install().await;
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("another", Bytes::gib(1), &[&node]).await;
        let class = test
            .class("another", &pool, WaitForFirstConsumer, &[])
            .await;
        test.claim("another", &class, Bytes::mib(100)).await;
        test.writer("another", "another").await;
        test.running("another").await;
    })
    .await;
}

/// A pod that writes, and the initial images of its pool.
struct Writer {
    harness: Harness,
    node: String,
    pool: String,
    volume: String,
    images: String,
}

impl Writer {
    async fn start(test: &Test, harness: Harness) -> Self {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::mib(100)).await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        test.writes_go_on("writer").await;
        let volume = test.bound("claim").await.name_any();
        let this = Self {
            harness,
            node,
            pool,
            volume,
            images: String::new(),
        };
        this.with_images(test, 1).await
    }

    /// Reads the images again and asserts their number.
    async fn with_images(mut self, test: &Test, count: usize) -> Self {
        self.images = self.images(test).await;
        assert_eq!(self.images.lines().count(), count, "{}", self.images);
        self
    }

    /// Name, inode and size of every image in the pool.
    async fn images(&self, test: &Test) -> String {
        let pool = test.all::<StoragePool>().get(&self.pool).await.unwrap();
        let folder = format!("/var/lib/cistern/pools/{}/images", pool.uid().unwrap());
        let look = format!("find {folder} -type f -printf '%p %i %s\\n' | sort");
        self.harness.shell(&self.node, &look).await
    }

    /// Asserts that the object has a deletion timestamp and reports what blocks its deletion, and that the
    /// volume still works for its pod, for a new agent and for the next pod.
    async fn deletion_is_blocked_and_volume_works(&self, test: &Test) {
        let volumes = test.all::<PoolVolume>();
        eventually(
            "the volume to say that its data is kept",
            PATIENCE,
            async || {
                let volume = volumes
                    .get(&self.volume)
                    .await
                    .map_err(|error| error.to_string())?;
                let conditions = volume.status.unwrap_or_default().conditions;
                let held = condition::holds(&conditions, ConditionType::DeletionHeld);
                if volume.metadata.deletion_timestamp.is_some() && held {
                    return Ok(());
                }
                Err(format!("{:?}, {conditions:?}", volume.metadata))
            },
        )
        .await;
        test.writes_go_on("writer").await;
        test.cluster.replace_agent(&self.node).await;
        test.writes_go_on("writer").await;
        self.starts_again(test).await;
        assert_eq!(self.images(test).await, self.images);
    }

    /// Asserts that another pod can use the volume and finds all data.
    async fn starts_again(&self, test: &Test) {
        let before = test.written("writer").await;
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.writer("writer", "claim").await;
        assert_eq!(test.running("writer").await, self.node);
        test.writes_go_on_after("writer", before).await;
    }
}
