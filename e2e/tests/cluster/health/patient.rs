//! A volume of the pool that a test breaks, and one of another pool that must not be affected.

use cistern_crds::{Bytes, ConditionType, StoragePool, condition};
use cistern_e2e::{
    Harness, Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::Value;

const SIZE: Bytes = Bytes::mib(100);

/// A pod that writes to a volume of the pool that the test breaks, and one that writes to a volume of another
/// pool on the same node.
pub(super) struct Patient {
    pub(super) harness: Harness,
    pub(super) node: String,
    pub(super) pool: String,
    pub(super) volume: String,
    /// Paths of the pool, and of the image of the volume in it, on the node.
    pub(super) folder: String,
    pub(super) image: String,
}

impl Patient {
    pub(super) async fn start(test: &Test, harness: Harness, node: &str, source: Value) -> Self {
        let pool = test.pool_from("pool", source, &[node]).await;
        let other = test.pool("other", Bytes::gib(1), &[node]).await;
        for (name, pool) in [("claim", &pool), ("neighbour", &other)] {
            let class = test.class(name, pool, WaitForFirstConsumer, &[]).await;
            test.claim(name, &class, SIZE).await;
        }
        test.lasting_writer("writer", "claim").await;
        test.writer("neighbour", "neighbour").await;
        for pod in ["writer", "neighbour"] {
            test.running(pod).await;
            test.writes_go_on(pod).await;
        }
        let volume = test.bound("claim").await;
        let pool_uid = test.all::<StoragePool>().get(&pool).await.unwrap();
        let folder = format!("/var/lib/cistern/pools/{}", pool_uid.uid().unwrap());
        Self {
            harness,
            node: node.to_owned(),
            pool,
            image: format!("{folder}/images/{}", volume.uid().unwrap()),
            folder,
            volume: volume.name_any(),
        }
    }

    pub(super) async fn shell(&self, script: &str) -> String {
        self.harness.shell(&self.node, script).await
    }

    /// Asserts that the other pool is not affected: its pod continues to write, and it accepts new volumes.
    pub(super) async fn neighbour_is_healthy(&self, test: &Test, claim: &str) {
        test.writes_go_on("neighbour").await;
        self.kubelet_says(test, "neighbour", false).await;
        test.claim(claim, &test.own("neighbour"), SIZE).await;
        test.writer(claim, claim).await;
        test.running(claim).await;
        let volume = test.bound("neighbour").await.status.unwrap_or_default();
        assert!(
            condition::holds(&volume.conditions, ConditionType::Healthy),
            "{volume:?}"
        );
    }

    /// Asserts that the pod can be deleted: its volume is unpublished and unstaged.
    pub(super) async fn pod_goes(&self, test: &Test) {
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        let staged = format!(
            "findmnt --noheadings --list --output TARGET \
             | grep \"/$(printf {} | sha256sum | cut -d ' ' -f 1)/globalmount\" || true",
            self.volume
        );
        eventually("the volume to be unstaged", PATIENCE, async || {
            match self.shell(&staged).await {
                none if none.is_empty() => Ok(()),
                mounts => Err(mounts),
            }
        })
        .await;
    }

    /// Asserts that the next pod finds all written data.
    pub(super) async fn pod_comes_back(&self, test: &Test, written: u64) {
        test.writer("writer", "claim").await;
        test.running("writer").await;
        test.writes_go_on_after("writer", written).await;
    }
}
