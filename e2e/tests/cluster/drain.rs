//! `kubectl cistern drain`: the volumes of a node move to other nodes.

use cistern_crds::{Bytes, PoolVolume, StoragePool, VolumeMove};
use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer, objects::pod_spec},
    eventually,
    plugin::end,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::relocation::shell;

/// A pod that uses claims, on a node or on any.
fn spec(claims: &[String], node: Option<&str>) -> Value {
    let mut spec = pod_spec("sleep 3600", json!({}));
    let volume = |claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    spec["volumes"] = claims.iter().map(volume).collect();
    let mount = |claim| json!({"name": claim, "mountPath": format!("/data/{claim}")});
    spec["containers"][0]["volumeMounts"] = claims.iter().map(mount).collect();
    if let Some(node) = node {
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    }
    spec
}

/// Starts a pod, and returns the checksums of the files in its volumes after the script.
async fn sums(
    test: &Test,
    pod: &str,
    claims: &[String],
    node: Option<&str>,
    script: &str,
) -> String {
    test.object::<Pod>(pod, spec(claims, node)).await;
    let on = test.running(pod).await;
    assert!(node.is_none_or(|node| node == on), "{pod} is on {on}");
    shell(test, pod, &format!("{script}; sha256sum /data/*/file")).await
}

/// Waits until none of the volumes is on the node.
async fn have_left(test: &Test, volumes: &[String], node: &str) {
    for volume in volumes {
        eventually(&format!("{volume} to leave {node}"), PATIENCE, async || {
            let found = test.all::<PoolVolume>().get(volume).await;
            let found = found.map_err(|error| error.to_string())?;
            if found.spec.node_name == node {
                Err(format!(
                    "{:#?}",
                    test.all::<VolumeMove>().get_opt(volume).await
                ))
            } else {
                Ok(())
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_node_with_ten_volumes_is_drained() {
    const WRITE: &str =
        "for folder in /data/*; do head -c 4194304 /dev/urandom >$folder/file; done; sync";
    // It moves the volumes of all pools on the node.
    Test::run_alone("drain", async |test| {
        let [first, second, third] = test.cluster.workers().await;
        let nodes: [&str; 3] = [&first, &second, &third];
        let pool = test.pool("pool", Bytes::gib(2), &nodes).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let claims: Vec<String> = (0..10).map(|number| format!("claim-{number}")).collect();
        for claim in &claims {
            test.claim(claim, &class, Bytes::mib(64)).await;
        }
        let (used, unused) = claims.split_at(2);
        let kept = sums(test, "user", used, Some(&first), WRITE).await;
        let written = sums(test, "writer", unused, Some(&first), WRITE).await;
        let pods = test.namespaced::<Pod>();
        test.delete(&pods, "writer").await;
        let mut volumes = Vec::new();
        for claim in &claims {
            volumes.push(test.bound(claim).await.name_any());
        }
        let drain = test.cluster.plugin().start(&["drain", &first], "");
        have_left(test, &volumes[2..], &first).await;
        // The volumes of the pod that runs stay together until it ends.
        for volume in &volumes[..2] {
            let found = test.all::<PoolVolume>().get(volume).await.unwrap();
            assert_eq!(found.spec.node_name, first);
        }
        assert_eq!(shell(test, "user", "sha256sum /data/*/file").await, kept);
        test.delete(&pods, "user").await;
        let drained = timeout(3 * PATIENCE, end(drain)).await.unwrap();
        let printed = format!("{}{}", drained.stdout, drained.stderr);
        assert_eq!(drained.code, 0, "{printed}");
        assert!(printed.contains("has no volumes any more"), "{printed}");
        let found = test.all::<StoragePool>().get(&pool).await.unwrap();
        assert_eq!(found.spec.cordoned_nodes, [first.as_str()]);
        assert_eq!(sums(test, "user-again", used, None, "true").await, kept);
        let mut read = String::new();
        for claim in unused {
            let pod = format!("reads-{claim}");
            read += &sums(test, &pod, std::slice::from_ref(claim), None, "true").await;
        }
        assert_eq!(read, written);
        // Each old image goes once a pod runs on the new node.
        for volume in &volumes {
            test.gone(&test.all::<VolumeMove>(), volume).await;
        }
    })
    .await;
}
