//! Volumes that are copied while pods use them. The tests are kubelet, and the disruption controller.

use cistern_crds::{Bytes, FenceState, PoolVolume};
use cistern_e2e::{
    eventually,
    objects::{change, write_status},
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use serde_json::{Value, json};

use super::{
    kubelet::{SUMS, evicted, shell, stage},
    nodes::{Nodes, SOON, is_ready},
};
use crate::{
    cluster::{Cluster, DEFAULT},
    objects::{create, delete},
};

/// A volume on the first node that a pod of its name uses, with data.
pub(super) struct Used<'a> {
    pub(super) nodes: &'a Nodes<'a>,
    pub(super) name: &'a str,
    pub(super) volume: PoolVolume,
}

impl<'a> Used<'a> {
    pub(super) async fn new(nodes: &'a Nodes<'a>, name: &'a str) -> Self {
        let volume = nodes.add_volume(name).await;
        stage(&nodes.first, &volume).await.unwrap();
        nodes.add_pod_of_set(name, &nodes.names[0], &[name]).await;
        let used = Self {
            nodes,
            name,
            volume,
        };
        used.write("first").await;
        used
    }

    /// Writes a file.
    pub(super) async fn write(&self, file: &str) {
        let script =
            format!("dd if=/dev/urandom of=$1/{file} bs=1M count=5 conv=fsync status=none");
        shell(&self.nodes.first, &script).await;
    }

    /// Whether nothing was asked of the pod, nor of the volume.
    pub(super) async fn is_left_alone(&self) -> bool {
        let pod = self.nodes.user_pods().get(self.name).await.unwrap();
        let volume = self.nodes.api.volumes().get(self.name).await.unwrap();
        pod.metadata.deletion_timestamp.is_none() && volume.spec.target.is_none()
    }

    /// Writes more, waits until the pod is evicted, and ends it as kubelet does. Returns the checksums of its files.
    pub(super) async fn until_evicted(&self) -> String {
        self.write("second").await;
        let mut sums = String::new();
        eventually("the pod to be evicted", SOON, async || {
            let pod = self.nodes.user_pods().get(self.name).await.unwrap();
            if pod.metadata.deletion_timestamp.is_none() {
                return Err(format!("{:#?}", pod.metadata));
            }
            let volume = self.nodes.api.volumes().get(self.name).await.unwrap();
            let fence = volume.status.and_then(|it| it.fence).unwrap();
            assert_eq!(fence.state, FenceState::Closing, "no other pod gets it");
            // Pods write until the end.
            self.write("third").await;
            sums = shell(&self.nodes.first, SUMS).await;
            let ended = (self.name, &self.volume);
            assert!(evicted(self.nodes, &self.nodes.first, ended).await);
            Ok(())
        })
        .await;
        sums
    }

    /// Waits until the volume is on the second node with these files, and ends the move there.
    pub(super) async fn until_moved(&self, sums: &str) {
        let (nodes, name) = (self.nodes, self.name);
        let second = &nodes.names[1];
        nodes.waits(name, "OldImageKept").await;
        let moved = nodes.until(name, "to be ready there", is_ready).await;
        assert_eq!(&moved.spec.node_name, second);
        assert_eq!(nodes.bound_to(name).await, [second.as_str()]);
        stage(&nodes.second, &moved).await.unwrap();
        assert_eq!(shell(&nodes.second, SUMS).await, sums);
        nodes.add_pod_of_set(name, second, &[name]).await;
        nodes.until_ended(name).await;
        super::kubelet::unstage(&nodes.second, &moved).await;
        delete(&nodes.user_pods(), name).await;
    }

    async fn begin(&self, cutover: &str) {
        let spec = json!({"toNode": self.nodes.names[1], "cutover": cutover});
        self.nodes.move_volume(self.name, spec).await;
    }

    /// Number of the last pass.
    pub(super) async fn passes(&self) -> u32 {
        let found = self.nodes.moves().get(self.name).await.unwrap();
        found.status.unwrap().prepared.unwrap().number
    }
}

fn budgets(nodes: &Nodes<'_>) -> Api<PodDisruptionBudget> {
    Api::namespaced(nodes.api.client.clone(), DEFAULT)
}

/// Creates the budget of a pod, which allows no eviction.
async fn add_budget(nodes: &Nodes<'_>, name: &str) {
    let budget = json!({
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
    });
    create(&budgets(nodes), &budget).await;
    allow(nodes, name, 0).await;
}

/// Writes how many evictions a budget allows, as the disruption controller does.
async fn allow(nodes: &Nodes<'_>, name: &str, evictions: u32) {
    let status = json!({
        "observedGeneration": 1, "disruptionsAllowed": evictions,
        "currentHealthy": 1 + evictions, "desiredHealthy": 1, "expectedPods": 1 + evictions,
    });
    write_status(&budgets(nodes), name, status).await;
}

#[tokio::test]
async fn a_volume_that_a_pod_uses_is_copied_meanwhile_and_moves_once_the_pod_is_evicted() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "used", 0).await;
    let used = Used::new(&nodes, "used-v").await;
    used.begin("Automatic").await;
    nodes.reserves(&nodes.second, Bytes::mib(640)).await;
    let sums = used.until_evicted().await;
    assert!(used.passes().await >= 1);
    used.until_moved(&sums).await;
    nodes.reserves(&nodes.second, Bytes::mib(320)).await;
    nodes.reserves(&nodes.first, Bytes::ZERO).await;
    nodes.finish(&["used-v"]).await;
}

#[tokio::test]
async fn a_pod_whose_budget_allows_no_eviction_keeps_the_volume_until_it_does() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "budget", 0).await;
    let used = Used::new(&nodes, "budget-v").await;
    add_budget(&nodes, "budget-v").await;
    used.begin("Automatic").await;
    let says = nodes.waits("budget-v", "EvictionBlocked").await;
    assert!(says.contains("default/budget-v"), "{says}");
    assert!(says.contains("disruption budget"), "{says}");
    assert!(used.is_left_alone().await);
    allow(&nodes, "budget-v", 1).await;
    let sums = used.until_evicted().await;
    used.until_moved(&sums).await;
    delete(&budgets(&nodes), "budget-v").await;
    nodes.finish(&["budget-v"]).await;
}

#[tokio::test]
async fn a_manual_move_waits_until_it_is_released_and_nothing_else_of_it_can_be_changed() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "manual", 0).await;
    let used = Used::new(&nodes, "manual-v").await;
    used.begin("Manual").await;
    let says = nodes.waits("manual-v", "ReadyToCutOver").await;
    assert!(says.contains("default/manual-v"), "{says}");
    assert!(used.is_left_alone().await);
    let merge = kube::api::Patch::Merge;
    for other in [
        json!({"toNode": nodes.names[0]}),
        json!({"toNode": null}),
        json!({"togetherWith": ["other"]}),
        json!({"cutover": "Sometimes"}),
    ] {
        let change = merge(json!({"spec": other}));
        let refused = nodes
            .moves()
            .patch("manual-v", &kube::api::PatchParams::default(), &change)
            .await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("cutover"), "{error}");
    }
    set_cutover(&nodes, "manual-v", json!("Automatic")).await;
    let sums = used.until_evicted().await;
    used.until_moved(&sums).await;
    nodes.finish(&["manual-v"]).await;
}

#[tokio::test]
async fn a_volume_that_is_not_to_be_copied_any_more_keeps_nothing_hidden_and_neither_does_an_undone_move()
 {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "revoked", 0).await;
    let used = Used::new(&nodes, "revoked-v").await;
    let first = Bytes::mib(320);
    used.begin("Manual").await;
    nodes.waits("revoked-v", "ReadyToCutOver").await;
    set_cutover(&nodes, "revoked-v", Value::Null).await;
    nodes.waits("revoked-v", "PodsRemain").await;
    nodes.reserves(&nodes.first, first).await;
    nodes.reserves(&nodes.second, Bytes::ZERO).await;

    set_cutover(&nodes, "revoked-v", json!("Manual")).await;
    nodes.waits("revoked-v", "ReadyToCutOver").await;
    delete(&nodes.moves(), "revoked-v").await;
    nodes.until_ended("revoked-v").await;
    assert!(used.is_left_alone().await);
    nodes.reserves(&nodes.first, first).await;
    nodes.reserves(&nodes.second, Bytes::ZERO).await;

    // Somebody removes the finalizer of a VolumeMove.
    used.begin("Manual").await;
    nodes.waits("revoked-v", "ReadyToCutOver").await;
    let none = json!({"metadata": {"finalizers": null}});
    change(&nodes.moves(), "revoked-v", none).await;
    delete(&nodes.moves(), "revoked-v").await;
    nodes.reserves(&nodes.first, first).await;
    used.write("second").await;
    super::kubelet::unstage(&nodes.first, &used.volume).await;
    delete(&nodes.user_pods(), "revoked-v").await;
    // Its copy is that of an earlier move, and is removed for the next one.
    used.begin("WhenUnused").await;
    nodes.waits("revoked-v", "OldImageKept").await;
    nodes
        .add_pod_of_set("revoked-v", &nodes.names[1], &["revoked-v"])
        .await;
    nodes.until_ended("revoked-v").await;
    delete(&nodes.user_pods(), "revoked-v").await;
    nodes.finish(&["revoked-v"]).await;
}

#[tokio::test]
async fn a_volume_without_room_for_its_passes_moves_once_its_pod_has_ended() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "roomless", 0).await;
    let used = Used::new(&nodes, "roomless-v").await;
    // It leaves room for the volume on the second node, but not for a pass.
    nodes
        .add_volume_on("roomless-f", &nodes.names[1], Bytes::mib(400))
        .await;
    used.begin("Automatic").await;
    let says = nodes.waits("roomless-v", "PodsRemain").await;
    assert!(says.contains("twice its size"), "{says}");
    assert!(used.is_left_alone().await);
    nodes.reserves(&nodes.second, Bytes::mib(400)).await;
    let sums = shell(&nodes.first, SUMS).await;
    super::kubelet::unstage(&nodes.first, &used.volume).await;
    delete(&nodes.user_pods(), "roomless-v").await;
    used.until_moved(&sums).await;
    nodes.finish(&["roomless-v", "roomless-f"]).await;
}

async fn set_cutover(nodes: &Nodes<'_>, name: &str, cutover: Value) {
    let cutover = json!({"spec": {"cutover": cutover}});
    change(&nodes.moves(), name, cutover).await;
}
