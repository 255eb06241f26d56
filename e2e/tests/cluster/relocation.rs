//! Volumes that move to another node with their data. Their claims stay bound.

use std::time::Duration;

use cistern_crds::{
    Bytes, ConditionType, Cutover, PoolReplica, PoolVolume, VolumeMove, condition,
    persistent_volume::nodes_of,
};
use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer, objects::pod_spec},
    eventually, gone,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};

/// The time limit for a move. It copies a volume, ends a pod and starts another one, each of which may take minutes on a busy
/// machine.
const MOVED: Duration = Duration::from_mins(15);
/// The claims of the pod: one of each kind of volume.
const CLAIMS: [&str; 3] = ["ext4", "xfs", "block"];
/// Writes 20 MiB to each volume and prints their checksums.
const WRITE: &str = "for file in /ext4/file /xfs/file /dev/block; do \
    dd if=/dev/urandom of=$file bs=1M count=20 conv=fsync,notrunc 2>/dev/null; done; sync";
/// Prints the checksums of what was written.
const SUMS: &str =
    "for file in /ext4/file /xfs/file /dev/block; do head -c 20971520 $file | sha256sum; done";

/// A pod that uses all claims, on a node or on any.
fn spec(node: Option<&str>) -> Value {
    let volume = json!({"persistentVolumeClaim": {"claimName": "ext4"}});
    let mut spec = pod_spec("sleep 3600", volume);
    let named =
        CLAIMS.map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
    spec["volumes"] = json!(named);
    let container = &mut spec["containers"][0];
    container["volumeMounts"] = json!([
        {"name": "ext4", "mountPath": "/ext4"},
        {"name": "xfs", "mountPath": "/xfs"},
    ]);
    container["volumeDevices"] = json!([{"name": "block", "devicePath": "/dev/block"}]);
    if let Some(node) = node {
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    }
    spec
}

/// Runs a script in the pod, again while the container is being started.
pub(crate) async fn shell(test: &Test, pod: &str, script: &str) -> String {
    eventually(&format!("{script} in {pod}"), PATIENCE, async || {
        test.shell(pod, script).await
    })
    .await
}

/// Declares that volumes move together to a node, and when they leave the pods that use them.
pub(crate) async fn move_all(test: &Test, volumes: &[String], node: &str, cutover: Cutover) {
    for volume in volumes {
        let others = volumes.iter().filter(|other| *other != volume);
        let others: Vec<&String> = others.collect();
        let object = json!({
            "apiVersion": "cistern.storage/v1alpha1", "kind": "VolumeMove",
            "metadata": {"name": volume},
            "spec": {"volumeName": volume, "toNode": node, "togetherWith": others, "cutover": cutover},
        });
        let object: VolumeMove = serde_json::from_value(object).unwrap();
        let moves = test.all::<VolumeMove>();
        moves.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// Waits until the moves of the volumes wait for a reason.
pub(crate) async fn all_wait(test: &Test, volumes: &[String], reason: &str) {
    let moves = test.all::<VolumeMove>();
    for volume in volumes {
        let what = format!("the move of {volume} to wait for {reason}");
        eventually(&what, MOVED, async || {
            let found = moves
                .get_opt(volume)
                .await
                .map_err(|error| error.to_string())?;
            let status = found.as_ref().and_then(|it| it.status.as_ref());
            let ready = status.and_then(|it| condition::find(&it.conditions, ConditionType::Ready));
            match ready {
                Some(ready) if ready.reason == reason => Ok(()),
                _ => Err(format!("{found:#?}")),
            }
        })
        .await;
    }
}

/// Waits until the volumes are on the node with nothing left of their moves, and their claims are bound.
pub(crate) async fn all_moved(test: &Test, volumes: &[String], node: &str) {
    let moves = test.all::<VolumeMove>();
    for volume in volumes {
        gone(&moves, volume, MOVED).await;
        let found = test.all::<PoolVolume>().get(volume).await.unwrap();
        assert_eq!(found.spec.node_name, node);
        let bound = test.all::<PersistentVolume>().get(volume).await.unwrap();
        assert_eq!(nodes_of(&bound), [node]);
    }
    let replicas: Api<PoolReplica> = test.all();
    let left = replicas.list(&ListParams::default()).await.unwrap();
    let mut left = left
        .items
        .iter()
        .filter(|it| volumes.contains(&it.spec.volume_name));
    assert!(left.next().is_none());
}

#[tokio::test]
async fn the_volumes_of_a_pod_move_three_times_round_the_nodes_with_all_data() {
    Test::run("relocation", async |test| {
        let workers = test.cluster.workers().await;
        let [first, second, third] = &workers;
        let pool = test
            .pool("pool", Bytes::gib(2), &[first, second, third])
            .await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let filesystem = [("csi.storage.k8s.io/fstype", "xfs")];
        let xfs = test
            .class("xfs", &pool, WaitForFirstConsumer, &filesystem)
            .await;
        let mut uids = Vec::new();
        uids.push(test.claim("ext4", &class, Bytes::mib(128)).await.uid());
        uids.push(test.claim("xfs", &xfs, Bytes::mib(320)).await.uid());
        uids.push(
            test.block_claim("block", &class, Bytes::mib(64))
                .await
                .uid(),
        );
        test.object::<Pod>("pod-0", spec(Some(first))).await;
        test.running("pod-0").await;
        let mut volumes = Vec::new();
        for claim in CLAIMS {
            volumes.push(test.bound(claim).await.name_any());
        }
        let pods = test.namespaced::<Pod>();
        for (round, node) in [second, third, first].into_iter().enumerate() {
            let (before, after) = (format!("pod-{round}"), format!("pod-{}", round + 1));
            shell(test, &before, WRITE).await;
            let written = shell(test, &before, SUMS).await;
            move_all(test, &volumes, node, Cutover::WhenUnused).await;
            // The pod keeps its volumes until it ends.
            all_wait(test, &volumes, "PodsRemain").await;
            assert_eq!(shell(test, &before, SUMS).await, written);
            test.delete(&pods, &before).await;
            all_wait(test, &volumes, "OldImageKept").await;
            test.object::<Pod>(&after, spec(None)).await;
            assert_eq!(test.running(&after).await, *node);
            assert_eq!(shell(test, &after, SUMS).await, written);
            all_moved(test, &volumes, node).await;
        }
        let claims = test.namespaced::<PersistentVolumeClaim>();
        for (claim, uid) in CLAIMS.iter().zip(uids) {
            assert_eq!(claims.get(claim).await.unwrap().uid(), uid);
        }
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_was_created_during_the_move_finds_its_volume_on_the_new_node() {
    Test::run("during-move", async |test| {
        let [first, second, _] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&first, &second]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::mib(128)).await;
        let on_first = json!({"kubernetes.io/hostname": first});
        test.pod(
            "before",
            "claim",
            "echo kept >/data/file && sync && sleep 3600",
            on_first,
        )
        .await;
        test.running("before").await;
        shell(test, "before", "grep kept /data/file").await;
        let volumes = [test.bound("claim").await.name_any()];
        test.delete(&test.namespaced::<Pod>(), "before").await;
        move_all(test, &volumes, &second, Cutover::WhenUnused).await;
        eventually("the target to be declared", PATIENCE, async || {
            let found = test.all::<PoolVolume>().get(&volumes[0]).await;
            let spec = found.map_err(|error| error.to_string())?.spec;
            if spec.target.is_some() || spec.node_name == second {
                Ok(())
            } else {
                Err(format!("{spec:#?}"))
            }
        })
        .await;
        // The scheduler binds it to the former node until the PersistentVolume has followed.
        let volume = json!({"persistentVolumeClaim": {"claimName": "claim"}});
        let mut spec = pod_spec("grep -q kept /data/file && sleep 3600", volume);
        spec["restartPolicy"] = json!("Always");
        let template = json!({"metadata": {"labels": {"app": "during"}}, "spec": spec});
        let mut deployment = json!({
            "replicas": 1,
            "selector": {"matchLabels": {"app": "during"}},
            "template": template,
        });
        deployment["strategy"] = json!({"type": "Recreate"});
        test.object::<Deployment>("during", deployment).await;
        all_moved(test, &volumes, &second).await;
        let pods = test.namespaced::<Pod>();
        eventually("a pod to run on the new node", PATIENCE, async || {
            let labelled = ListParams::default().labels("app=during");
            let found = pods
                .list(&labelled)
                .await
                .map_err(|error| error.to_string())?;
            let runs = |pod: &Pod| {
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                phase == Some("Running") && node == Some(second.as_str())
            };
            if found.items.iter().any(runs) {
                Ok(())
            } else {
                Err(format!("{:#?}", found.items))
            }
        })
        .await;
        test.delete(&test.namespaced::<Deployment>(), "during")
            .await;
    })
    .await;
}
