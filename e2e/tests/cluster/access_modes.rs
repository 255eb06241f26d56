//! Access modes, and generic ephemeral volumes and StatefulSets.

use cistern_crds::{Bytes, PoolVolume};
use cistern_e2e::{
    Test,
    cluster::{
        PATIENCE,
        objects::{
            Binding::{Immediate, WaitForFirstConsumer},
            claim_spec, pod_spec,
        },
    },
    eventually,
};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

const SIZE: Bytes = Bytes::mib(64);
const SLEEP: &str = "sleep 3600";

/// A class of a pool on one node.
async fn class(test: &Test) -> String {
    let [node, ..] = test.cluster.workers().await;
    let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
    test.class("class", &pool, WaitForFirstConsumer, &[]).await
}

/// A pod with a volume of any kind that does nothing.
async fn pod(test: &Test, name: &str, volume: Value) {
    test.object::<Pod>(name, pod_spec(SLEEP, volume)).await;
}

fn of_claim(claim: &str, read_only: bool) -> Value {
    json!({"persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}})
}

#[tokio::test]
async fn pods_of_a_node_share_a_read_write_once_volume_and_one_of_them_may_only_read() {
    Test::run("shared", async |test| {
        let class = class(test).await;
        test.claim("claim", &class, SIZE).await;
        pod(test, "one", of_claim("claim", false)).await;
        pod(test, "two", of_claim("claim", false)).await;
        pod(test, "reader", of_claim("claim", true)).await;
        for name in ["one", "two", "reader"] {
            test.running(name).await;
        }
        let write = "echo data > /data/file && sync /data/file";
        test.shell("one", write).await.unwrap();
        for name in ["two", "reader"] {
            let read = test.shell(name, "cat /data/file").await;
            assert_eq!(read.unwrap(), "data\n", "{name}");
        }
        let refused = test.shell("reader", write).await.unwrap_err();
        assert!(refused.contains("Read-only file system"), "{refused}");
        test.delete(&test.namespaced::<Pod>(), "one").await;
        test.shell("two", write).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_read_write_once_pod_volume_is_one_pods_until_that_ends() {
    Test::run("one-pod", async |test| {
        let class = class(test).await;
        test.claim_in("ReadWriteOncePod", "claim", &class, SIZE)
            .await;
        pod(test, "one", of_claim("claim", false)).await;
        test.running("one").await;
        pod(test, "two", of_claim("claim", false)).await;
        test.event("Pod", "two", &["ReadWriteOncePod"]).await;
        let two: Pod = test.namespaced().get("two").await.unwrap();
        assert_eq!(two.spec.unwrap().node_name, None);
        test.delete(&test.namespaced::<Pod>(), "one").await;
        test.running("two").await;
    })
    .await;
}

#[tokio::test]
async fn a_volume_for_many_nodes_is_refused_and_the_claim_says_why() {
    Test::run("many-nodes", async |test| {
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, Immediate, &[]).await;
        for (mode, says) in [
            ("ReadOnlyMany", "MULTI_NODE_READER_ONLY"),
            ("ReadWriteMany", "MULTI_NODE_MULTI_WRITER"),
        ] {
            let name = mode.to_lowercase();
            let claim = test.claim_in(mode, &name, &class, SIZE).await;
            test.may_repeat(&claim);
            test.event("PersistentVolumeClaim", &name, &[says, "one node"])
                .await;
        }
        assert_eq!(volumes(test).await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn kubelet_gives_the_files_of_a_volume_to_the_group_of_the_pod() {
    Test::run("fs-group", async |test| {
        let class = class(test).await;
        test.claim("claim", &class, SIZE).await;
        let mut spec = pod_spec(SLEEP, of_claim("claim", false));
        spec["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 3001});
        test.object::<Pod>("pod", spec).await;
        test.running("pod").await;
        let script = "echo data > /data/file && stat -c %g /data/file";
        assert_eq!(test.shell("pod", script).await.unwrap(), "3001\n");
    })
    .await;
}

#[tokio::test]
async fn a_generic_ephemeral_volume_comes_and_goes_with_its_pod() {
    Test::run("ephemeral", async |test| {
        let class = class(test).await;
        let template = json!({"spec": claim_spec(&class, SIZE)});
        let volume = json!({"ephemeral": {"volumeClaimTemplate": template}});
        pod(test, "pod", volume).await;
        test.running("pod").await;
        test.shell("pod", "echo data > /data/file").await.unwrap();
        assert_eq!(volumes(test).await.len(), 1);
        test.delete(&test.namespaced::<Pod>(), "pod").await;
        test.gone(&test.namespaced::<PersistentVolumeClaim>(), "pod-data")
            .await;
        eventually("its volume to be gone", PATIENCE, async || {
            match volumes(test).await {
                none if none.is_empty() => Ok(()),
                some => Err(format!("{some:?}")),
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn each_pod_of_a_stateful_set_finds_its_own_volume_again() {
    Test::run("stateful-set", async |test| {
        let class = class(test).await;
        let labels = json!({"app": test.own("set")});
        let mut pod = pod_spec(SLEEP, json!({}));
        pod["restartPolicy"] = json!("Always");
        pod["volumes"] = json!([]);
        let spec = json!({
            "serviceName": "set",
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": claim_spec(&class, SIZE),
            }],
        });
        test.object::<StatefulSet>("set", spec).await;
        let names = ["set-0", "set-1", "set-2"];
        for name in names {
            test.running(name).await;
            let write = format!("echo {name} > /data/file && sync /data/file");
            test.shell(name, &write).await.unwrap();
        }
        let sets = test.namespaced::<StatefulSet>();
        let scale = async |replicas: u32| {
            let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
            let parameters = PatchParams::default();
            sets.patch("set", &parameters, &patch).await.unwrap();
        };
        scale(0).await;
        for name in names {
            test.gone(&test.namespaced::<Pod>(), name).await;
        }
        assert_eq!(volumes(test).await.len(), 3, "they stay for the next pods");
        scale(3).await;
        for name in names {
            test.running(name).await;
            let found = test.shell(name, "cat /data/file").await;
            assert_eq!(found.unwrap().trim(), name);
        }
        scale(0).await;
        test.delete(&sets, "set").await;
    })
    .await;
}

/// The PoolVolumes of the test.
async fn volumes(test: &Test) -> Vec<String> {
    let all = test.all::<PoolVolume>().list(&ListParams::default()).await;
    let mine = all.unwrap().into_iter().filter(|volume| {
        let claim = volume.spec.claim.as_ref();
        claim.is_some_and(|claim| claim.namespace == test.namespace)
    });
    mine.filter_map(|volume| volume.metadata.name).collect()
}
