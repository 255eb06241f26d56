//! The PersistentVolume of a volume whose node changes follows, and its claim stays bound.

use cistern_crds::{
    Bytes, MoveTakeover, PoolVolume, VolumeMove, VolumeMoveSpec, names, persistent_volume::nodes_of,
};
use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
    objects::change,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{ResourceExt as _, api::PostParams};
use serde_json::json;

/// Moves a volume as the operator does for a disk that is in another machine. Here, the disk stays.
async fn move_volume(test: &Test, volume: &str, node: &str, epoch: u32) {
    let volumes = test.all::<PoolVolume>();
    let spec = VolumeMoveSpec {
        volume_name: volume.to_owned(),
        to_node: Some(node.to_owned()),
        takeover: Some(MoveTakeover {
            from_node: volumes.get(volume).await.unwrap().spec.node_name,
            epoch,
        }),
        ..VolumeMoveSpec::default()
    };
    let mut object = VolumeMove::new(volume, spec);
    object.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    let location = json!({"spec": {"nodeName": node, "epoch": epoch, "takeovers": epoch}});
    change(&volumes, volume, location).await;
    let moves = test.all::<VolumeMove>();
    moves.create(&PostParams::default(), &object).await.unwrap();
    test.gone(&moves, volume).await;
}

#[tokio::test]
async fn a_claim_stays_bound_while_its_volume_changes_its_node_and_its_pod_finds_the_data() {
    Test::run("moves", async |test| {
        let [first, second, _] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&first, &second]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let claim = test.claim("claim", &class, Bytes::mib(64)).await;
        let script = "echo kept >/data/file && sync && sleep 3600";
        let on_first = json!({"kubernetes.io/hostname": first});
        test.pod("before", "claim", script, on_first).await;
        test.running("before").await;
        eventually("the pod to have written", PATIENCE, async || {
            let found = test.shell("before", "cat /data/file").await?;
            if found.trim() == "kept" {
                Ok(())
            } else {
                Err(found)
            }
        })
        .await;
        test.delete(&test.namespaced::<Pod>(), "before").await;
        let volume = test.bound("claim").await.name_any();

        let claims = test.namespaced::<PersistentVolumeClaim>();
        let bound = claims.get("claim").await.unwrap().spec.unwrap();
        let name = bound.volume_name.unwrap();
        let persistent_volumes = test.all::<PersistentVolume>();
        let before = persistent_volumes.get(&name).await.unwrap();
        for (epoch, node) in [(1, &second), (2, &first)] {
            move_volume(test, &volume, node, epoch).await;
            let after = persistent_volumes.get(&name).await.unwrap();
            assert_eq!(nodes_of(&after), [node]);
            assert_ne!(after.uid(), before.uid());
            eventually("the claim to be bound again", PATIENCE, async || {
                let is = claims
                    .get("claim")
                    .await
                    .map_err(|error| error.to_string())?;
                let phase = is.status.as_ref().and_then(|status| status.phase.clone());
                assert_eq!(is.uid(), claim.uid());
                match phase.as_deref() {
                    Some("Bound") => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
        let script = "grep -q kept /data/file && sleep 3600";
        test.pod("after", "claim", script, json!({})).await;
        assert_eq!(test.running("after").await, first);
        let found = test.shell("after", "cat /data/file").await.unwrap();
        assert_eq!(found.trim(), "kept");
    })
    .await;
}
