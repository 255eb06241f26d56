//! Standby copies: passes without end, and their promotion after the node of the volume is lost.

use chrono::{DateTime, SecondsFormat, Utc};
use cistern_crds::{Bytes, ConditionType, HasImage as _, PoolReplica, PoolVolume, condition};
use cistern_e2e::{eventually, objects::change};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::{Value, json};

use super::{
    kubelet::{SUMS, shell, stage, unstage},
    nodes::{Nodes, SOON, is_ready},
    passes::Used,
};
use crate::{cluster::Cluster, objects::delete};

/// The shortest interval.
const INTERVAL: u32 = 10;

impl Used<'_> {
    async fn keep_standby(&self) {
        let spec = json!({
            "toNode": self.nodes.names[1], "cutover": "Never", "standbyIntervalSeconds": INTERVAL,
        });
        self.nodes.move_volume(self.name, spec).await;
        let says = self.nodes.waits(self.name, "Standby").await;
        assert!(says.contains("renewed every 10 seconds"), "{says}");
    }

    /// Waits until the copy has the data of this time. Returns the time that it has.
    async fn until_copied(&self, since: DateTime<Utc>) -> DateTime<Utc> {
        eventually("another pass", SOON, async || {
            let found = self.nodes.moves().get(self.name).await.unwrap();
            let taken = found.copied_as_of().filter(|taken| *taken > since);
            taken.ok_or_else(|| format!("{:#?}", found.status))
        })
        .await
    }

    async fn change_move(&self, spec: Value) {
        change(&self.nodes.moves(), self.name, json!({"spec": spec})).await;
    }

    async fn promote(&self, data_as_of: DateTime<Utc>) {
        let time = data_as_of.to_rfc3339_opts(SecondsFormat::Nanos, true);
        self.change_move(json!({"promotion": {"dataAsOf": time}}))
            .await;
    }

    /// Waits until the replica of what the first node keeps says this of itself.
    async fn until_kept(&self, status: &str, reason: &str) {
        let replicas = Api::<PoolReplica>::all(self.nodes.api.client.clone());
        let name = PoolReplica::name_of(self.name, 0);
        eventually(&format!("{name} to report {reason}"), SOON, async || {
            let replica = replicas.get(&name).await.unwrap();
            let ready = condition::find(replica.conditions(), ConditionType::Ready);
            let is_it = ready.is_some_and(|it| it.status == status && it.reason == reason);
            is_it
                .then_some(())
                .ok_or_else(|| format!("{:#?}", replica.status))
        })
        .await;
    }
}

#[tokio::test]
async fn a_standby_copy_is_promoted_once_its_node_is_lost_and_the_old_image_is_superseded() {
    let cluster = Cluster::shared().await;
    let mut nodes = Nodes::start(cluster, "standby", 0).await;
    let [first, second] = nodes.names.clone();
    let used = Used::new(&nodes, "standby-v").await;
    used.keep_standby().await;
    used.write("second").await;
    let taken = used.until_copied(Utc::now()).await;
    let copied = shell(&nodes.first, SUMS).await;
    assert_eq!(copied.lines().count(), 2);
    assert!(used.is_left_alone().await);

    let volume = used.volume;
    nodes.first.kill_node();
    let used = Used {
        nodes: &nodes,
        name: "standby-v",
        volume: volume.clone(),
    };
    used.write("late").await;
    let says = nodes.waits("standby-v", "StandbyLags").await;
    assert!(says.contains(&second), "{says}");
    // A node that may run the pod is not lost.
    used.promote(taken).await;
    let says = nodes.waits("standby-v", "NotPromotable").await;
    assert!(
        says.contains(&first) && says.contains("out-of-service"),
        "{says}"
    );
    used.change_move(json!({"promotion": null})).await;
    nodes.waits("standby-v", "StandbyLags").await;
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    change(
        &nodes.api.nodes(),
        &first,
        json!({"spec": {"taints": taint}}),
    )
    .await;
    used.promote(Utc::now()).await;
    let says = nodes.waits("standby-v", "NotPromotable").await;
    assert!(says.contains("older than"), "{says}");
    // Kubernetes forgets the pods of a node with this taint.
    delete(&nodes.user_pods(), "standby-v").await;
    used.promote(taken).await;

    let says = nodes.waits("standby-v", "Superseded").await;
    assert!(says.contains(&first), "{says}");
    let promoted = nodes
        .until("standby-v", "to be ready there", is_ready)
        .await;
    assert_eq!(promoted.spec.node_name, second);
    assert_eq!(promoted.uid(), volume.uid());
    assert_eq!(nodes.bound_to("standby-v").await, [second.as_str()]);
    stage(&nodes.second, &promoted).await.unwrap();
    assert_eq!(shell(&nodes.second, SUMS).await, copied);

    // The node is back, and what ran there ends. Nobody gets the old image.
    let mut nodes = nodes;
    nodes.first.start_node().await;
    let used = Used {
        nodes: &nodes,
        name: "standby-v",
        volume: volume.clone(),
    };
    used.until_kept("False", "InUse").await;
    stage(&nodes.first, &volume).await.unwrap_err();
    unstage(&nodes.first, &volume).await;
    used.until_kept("True", "Reconciled").await;
    stage(&nodes.first, &volume).await.unwrap_err();
    nodes.waits("standby-v", "Superseded").await;
    nodes.first.fsck().await;
    assert_eq!(shell(&nodes.second, SUMS).await, copied);

    delete(&nodes.moves(), "standby-v").await;
    nodes.until_ended("standby-v").await;
    nodes.reserves(&nodes.first, Bytes::ZERO).await;
    unstage(&nodes.second, &promoted).await;
    nodes.finish(&["standby-v"]).await;
}

#[tokio::test]
async fn a_standby_copy_is_removed_with_its_object_or_cut_over_without_a_loss() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "standby-cut", 0).await;
    let used = Used::new(&nodes, "standby-cut-v").await;
    used.keep_standby().await;
    delete(&nodes.moves(), "standby-cut-v").await;
    nodes.until_ended("standby-cut-v").await;
    nodes.reserves(&nodes.second, Bytes::ZERO).await;
    assert!(used.is_left_alone().await);

    used.keep_standby().await;
    let number = used.passes().await;
    let larger = json!({"spec": {"size": "400Mi"}});
    change(&nodes.api.volumes(), "standby-cut-v", larger).await;
    nodes.reserves(&nodes.second, Bytes::mib(800)).await;
    used.until_copied(Utc::now()).await;
    assert!(used.passes().await > number, "the copy goes on");
    let spec = json!({"cutover": "Automatic", "standbyIntervalSeconds": null});
    used.change_move(spec).await;
    let sums = used.until_evicted().await;
    used.until_moved(&sums).await;
    nodes.finish(&["standby-cut-v"]).await;
}

#[tokio::test]
async fn a_standby_copy_stays_if_only_the_object_of_its_volume_is_gone_and_goes_with_the_claim() {
    let cluster = Cluster::shared().await;
    let nodes = Nodes::start(cluster, "standby-gone", 0).await;
    let (name, volumes) = ("standby-gone-v", nodes.api.volumes());
    let used = Used::new(&nodes, name).await;
    used.keep_standby().await;
    delete(&nodes.user_pods(), name).await;
    unstage(&nodes.first, &used.volume).await;
    nodes.api.remove::<PoolVolume>(name).await;
    let says = nodes.waits(name, "NotMovable").await;
    assert!(says.contains("keeps the copy"), "{says}");

    let again = PoolVolume::desired(name, used.volume.spec.clone());
    volumes
        .create(&PostParams::default(), &again)
        .await
        .unwrap();
    nodes.waits(name, "Standby").await;
    let leaves = json!({"spec": {"deletionRequested": true}});
    change(&volumes, name, leaves).await;
    nodes
        .until(name, "to be removed", |it| it.reserved().is_none())
        .await;
    nodes.api.remove::<PoolVolume>(name).await;
    // external-provisioner deletes it once DeleteVolume has succeeded.
    let (persistent, of_volume) = (nodes.persistent_volumes(), format!("pv-of-{name}"));
    let unprotected = json!({"metadata": {"finalizers": null}});
    change(&persistent, &of_volume, unprotected).await;
    delete(&persistent, &of_volume).await;
    nodes.until_ended(name).await;
    for node in [&nodes.first, &nodes.second] {
        nodes.reserves(node, Bytes::ZERO).await;
    }
    nodes.finish(&[]).await;
}
