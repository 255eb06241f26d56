//! Volumes that move to another node, by a real operator and real agents. No kubelet and no controller manager run:
//! the tests make the PersistentVolumes and the pods.

mod killed;
mod kubelet;
mod nodes;
mod passes;
mod persistent_volumes;
mod standby;

use cistern_crds::Bytes;
use cistern_e2e::ControlPlane;
use kube::ResourceExt as _;
use serde_json::json;

use self::nodes::{Nodes, is_ready};
use crate::{
    cluster::Cluster,
    objects::{change, delete},
};

#[tokio::test]
async fn an_unused_volume_moves_to_the_node_with_room_and_its_persistent_volume_follows() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "relocate", 0).await;
    let [first, second] = nodes.names.clone();
    let before = nodes.add_volume("relocate-v").await;
    nodes
        .add_pod("relocate-pod", &first, &["relocate-v"], "Running")
        .await;
    nodes.move_volume("relocate-v", json!({})).await;
    let says = nodes.waits("relocate-v", "PodsRemain").await;
    assert!(says.contains("default/relocate-pod"), "{says}");
    nodes.reserves(&nodes.second, Bytes::ZERO).await;
    delete(&nodes.user_pods(), "relocate-pod").await;

    let says = nodes.waits("relocate-v", "OldImageKept").await;
    assert!(says.contains(&second) && says.contains(&first), "{says}");
    let moved = nodes
        .until("relocate-v", "to be ready there", is_ready)
        .await;
    assert_eq!((&moved.spec.node_name, moved.spec.epoch), (&second, 1));
    assert_eq!(moved.uid(), before.uid());
    assert_eq!(nodes.bound_to("relocate-v").await, &[&*second]);
    nodes.reserves(&nodes.second, Bytes::mib(320)).await;
    // A pod uses it there, so the old image goes.
    nodes
        .add_pod("relocate-pod", &second, &["relocate-v"], "Running")
        .await;
    nodes.until_ended("relocate-v").await;
    nodes.reserves(&nodes.first, Bytes::ZERO).await;
    delete(&nodes.user_pods(), "relocate-pod").await;
    nodes.finish(&["relocate-v"]).await;
}

#[tokio::test]
async fn a_move_that_is_deleted_is_undone_and_the_volume_stays_where_it_was() {
    let cluster = Cluster::shared().await;
    // Slow enough to be undone in between.
    let nodes = Nodes::start(cluster, "unmove", 16 * 1024).await;
    let [first, second] = nodes.names.clone();
    nodes.add_volume("unmove-v").await;
    nodes
        .move_volume("unmove-v", json!({"toNode": second}))
        .await;
    let says = nodes.waits("unmove-v", "Copying").await;
    assert!(says.contains(&second), "{says}");
    delete(&nodes.moves(), "unmove-v").await;
    nodes.until_ended("unmove-v").await;
    let undone = nodes.until("unmove-v", "to be ready again", is_ready).await;
    assert_eq!((&undone.spec.node_name, undone.spec.epoch), (&first, 1));
    assert_eq!(undone.spec.target, None);
    nodes.reserves(&nodes.second, Bytes::ZERO).await;
    nodes.reserves(&nodes.first, Bytes::mib(320)).await;
    assert_eq!(nodes.bound_to("unmove-v").await, [first]);
    nodes.finish(&["unmove-v"]).await;
}

#[tokio::test]
async fn a_move_that_cannot_begin_says_why_and_changes_nothing() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "immovable", 0).await;
    let [first, second] = nodes.names.clone();
    nodes.add_volume("immovable-v").await;
    for (to, reason, says) in [
        (first.as_str(), "NotMovable", "has volume immovable-v now"),
        (
            "nowhere",
            "PoolUnknown",
            "node nowhere does not carry pool immovable",
        ),
    ] {
        nodes
            .move_volume("immovable-v", json!({"toNode": to}))
            .await;
        let found = nodes.waits("immovable-v", reason).await;
        assert!(found.contains(says), "{found}");
        delete(&nodes.moves(), "immovable-v").await;
        nodes.until_ended("immovable-v").await;
    }
    nodes
        .move_volume("no-such-volume", json!({"toNode": second}))
        .await;
    let found = nodes.waits("no-such-volume", "NotMovable").await;
    assert_eq!(found, "there is no PoolVolume no-such-volume");
    delete(&nodes.moves(), "no-such-volume").await;
    nodes.until_ended("no-such-volume").await;
    let volume = nodes.api.volumes().get("immovable-v").await.unwrap();
    assert_eq!((&volume.spec.node_name, volume.spec.epoch), (&first, 0));
    nodes.finish(&["immovable-v"]).await;
}

#[tokio::test]
async fn a_volume_stays_while_its_pods_could_not_be_scheduled_on_the_new_node() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "unsuitable", 0).await;
    let [first, second] = nodes.names.clone();
    let name = "unsuitable-v";
    nodes.add_volume(name).await;
    nodes.add_pod_of_set(name, &first, &[name]).await;
    let taint = json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]);
    change(
        &nodes.api.nodes(),
        &second,
        json!({"spec": {"taints": taint}}),
    )
    .await;
    for spec in [json!({"toNode": second}), json!({})] {
        nodes.move_volume(name, spec).await;
        let says = nodes.waits(name, "NotMovable").await;
        let expected = format!(
            "node {second} has the taint dedicated, which pod default/{name} does not tolerate"
        );
        assert!(says.contains(&expected), "{says}");
        delete(&nodes.moves(), name).await;
        nodes.until_ended(name).await;
    }
    nodes.move_volume(name, json!({})).await;
    nodes.waits(name, "NotMovable").await;
    let untainted = json!({"spec": {"taints": null}});
    change(&nodes.api.nodes(), &second, untainted).await;
    nodes.waits(name, "PodsRemain").await;
    delete(&nodes.moves(), name).await;
    nodes.until_ended(name).await;
    delete(&nodes.user_pods(), name).await;
    nodes.finish(&[name]).await;
}

#[tokio::test]
async fn volumes_of_one_pod_move_together_or_not_at_all() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "together", 0).await;
    let [first, second] = nodes.names.clone();
    let volumes = ["together-a", "together-b"];
    for volume in volumes {
        nodes.add_volume(volume).await;
    }
    nodes
        .add_pod("together-pod", &first, &volumes, "Running")
        .await;
    nodes
        .move_volume("together-b", json!({"toNode": second}))
        .await;
    nodes.waits("together-b", "PodsRemain").await;
    delete(&nodes.user_pods(), "together-pod").await;
    let says = nodes.waits("together-b", "WaitingForOthers").await;
    assert!(
        says.contains("together-a") && says.contains("no VolumeMove"),
        "{says}"
    );
    let waiting = nodes.api.volumes().get("together-b").await.unwrap();
    assert_eq!(waiting.spec.target, None);
    nodes
        .move_volume("together-a", json!({"toNode": second}))
        .await;
    for volume in volumes {
        nodes.waits(volume, "OldImageKept").await;
    }
    nodes
        .add_pod("together-pod", &second, &volumes, "Running")
        .await;
    for volume in volumes {
        nodes.until_ended(volume).await;
        assert_eq!(nodes.bound_to(volume).await, &[&*second]);
    }
    delete(&nodes.user_pods(), "together-pod").await;
    nodes.finish(&volumes).await;
}

#[tokio::test]
async fn volumes_that_pods_link_through_others_are_planned_together() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "linked", 0).await;
    let [first, second] = nodes.names.clone();
    let volumes = ["linked-a", "linked-b", "linked-c"];
    for volume in volumes {
        nodes.add_volume_of(volume, Bytes::mib(64)).await;
    }
    let pods = [("linked-1", &volumes[..2]), ("linked-2", &volumes[1..])];
    for (pod, claims) in pods {
        nodes.add_pod(pod, &first, claims, "Running").await;
    }
    nodes
        .move_volume("linked-a", json!({"toNode": second}))
        .await;
    nodes.waits("linked-a", "PodsRemain").await;
    let plan = nodes.moves().get("linked-a").await.unwrap().plan();
    assert_eq!(plan.unwrap().together_with, volumes[1..]);
    delete(&nodes.moves(), "linked-a").await;
    nodes.until_ended("linked-a").await;
    for (pod, _) in pods {
        delete(&nodes.user_pods(), pod).await;
    }
    nodes.finish(&volumes).await;
}

#[tokio::test]
async fn a_persistent_volume_whose_affinity_can_be_changed_is_changed_in_place() {
    let control_plane = ControlPlane::start_with_feature_gates(&["MutablePVNodeAffinity"]).await;
    let cluster = Cluster::start_on(control_plane).await;
    let nodes = Nodes::start(&cluster, "in-place", 0).await;
    let second = nodes.names[1].clone();
    nodes.add_volume("in-place-v").await;
    let persistent_volumes = nodes.persistent_volumes();
    let before = persistent_volumes.get("pv-of-in-place-v").await.unwrap();
    nodes
        .move_volume("in-place-v", json!({"toNode": second}))
        .await;
    nodes.waits("in-place-v", "OldImageKept").await;
    assert_eq!(nodes.bound_to("in-place-v").await, &[&*second]);
    let after = persistent_volumes.get("pv-of-in-place-v").await.unwrap();
    assert_eq!(after.uid(), before.uid());
    nodes.end_by_use("in-place-v").await;
    nodes.finish(&["in-place-v"]).await;
}
