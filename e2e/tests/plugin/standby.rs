//! `kubectl cistern standby` and `promote`. The tests play operator and agents.

use cistern_crds::{Cutover, StorageNode, VolumeMoveSpec};
use cistern_e2e::{
    eventually,
    objects::{change, condition, write_status},
    plugin::end,
};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;

use crate::{SOON, create, draining, moving::Stage};

const TAKEN: &str = "2026-01-01T00:00:00.500Z";

impl Stage {
    /// Reports that the copy of a volume is complete, as the operator does.
    async fn copied(&self, name: &str) {
        let ready = condition("Ready", "Standby", "node has a copy of the volume");
        let plan = json!({"fromNode": self.node(1), "toNode": self.node(2), "epoch": 1});
        let prepared = json!({"number": 1, "snapshotName": "s", "image": "i", "taken": TAKEN, "received": TAKEN});
        let status = json!({"plan": plan, "prepared": prepared, "conditions": [ready]});
        write_status(&self.moves, name, status).await;
    }

    /// Reports that the pool on the second node is ready, as the agent does.
    async fn is_ready_there(&self) {
        let ready = condition("Ready", "Reconciled", "");
        let pool = json!({"name": self.pool, "uid": "u", "conditions": [ready]});
        let nodes: Api<StorageNode> = Api::all(self.client());
        write_status(&nodes, &self.node(2), json!({"pools": [pool]})).await;
    }

    /// Reports that a volume is ready, as the agent does.
    async fn volume_is_ready(&self, name: &str) {
        let ready = condition("Ready", "Reconciled", "");
        let image = json!({"uid": "i", "sectorSize": 4096,
            "poolUuid": "11111111-1111-4111-8111-111111111111"});
        let status = json!({"image": image, "conditions": [ready]});
        write_status(&self.volumes, name, status).await;
    }

    async fn spec(&self, name: &str) -> VolumeMoveSpec {
        self.moves.get(name).await.unwrap().spec
    }
}

#[tokio::test]
async fn a_standby_copy_is_kept_at_an_interval_cut_over_and_removed() {
    let stage = Stage::new("kept").await;
    stage.volume("kept-a", 1).await;
    let wrong = ["standby", "kept-a", "--interval", "9"];
    assert_eq!(stage.plugin.run(&wrong).await.code, 3);
    let there = stage
        .plugin
        .run(&["standby", "kept-a", "--to", "kept-1"])
        .await;
    assert_eq!(there.code, 3);
    assert!(there.stderr.contains("is on that node"), "{}", there.stderr);

    let running = stage.start(&["standby", "kept-a", "--to", "kept-2", "--interval", "30"]);
    running.says("gets a standby copy").await;
    stage.wait("kept-a", "Copying", "25 % are done").await;
    running.says("Copying: 25 % are done\n").await;
    stage.copied("kept-a").await;
    running.ends(0).await;
    let spec = stage.spec("kept-a").await;
    assert_eq!(spec.cutover, Cutover::Never);
    assert_eq!(spec.standby_interval_seconds, Some(30));
    assert_eq!(spec.to_node.as_deref(), Some("kept-2"));
    let again = ["standby", "kept-a", "--interval", "60"];
    let said = stage.plugin.text(&again).await;
    assert!(said.contains("renewed every 60 s"), "{said}");
    let spec = stage.spec("kept-a").await;
    assert_eq!(spec.standby_interval_seconds, Some(60));

    let undone = stage.plugin.run(&["move", "kept-a", "--undo"]).await;
    assert_eq!(undone.code, 3);
    assert!(
        undone.stderr.contains("standby --remove"),
        "{}",
        undone.stderr
    );
    let moved = ["move", "kept-a", "--cutover", "automatic", "--wait=false"];
    stage.plugin.text(&moved).await;
    let spec = stage.spec("kept-a").await;
    assert_eq!(spec.cutover, Cutover::Automatic);
    assert_eq!(spec.standby_interval_seconds, None);
    let kept = stage.plugin.run(&["standby", "kept-a", "--remove"]).await;
    assert_eq!(kept.code, 3);
    assert!(
        kept.stderr.contains("moves to another node"),
        "{}",
        kept.stderr
    );

    stage.delete_move("kept-a").await;
    stage
        .plugin
        .text(&["standby", "kept-a", "--wait=false"])
        .await;
    stage.copied("kept-a").await;
    let kept = stage.plugin.run(&["standby", "kept-a", "--remove"]).await;
    assert_eq!(kept.code, 3);
    assert!(
        kept.stderr.contains("its copy may be the only data"),
        "{}",
        kept.stderr
    );
    stage.volume_is_ready("kept-a").await;
    let removed = stage.plugin.text(&["standby", "kept-a", "--remove"]).await;
    assert!(
        removed.contains("has no standby copy any more"),
        "{removed}"
    );
    assert_eq!(stage.moves.get_opt("kept-a").await.unwrap(), None);
}

#[tokio::test]
async fn a_copy_is_promoted_only_if_its_node_is_lost_and_the_name_of_the_volume_is_typed() {
    let stage = Stage::new("lost").await;
    stage.volume("lost-a", 1).await;
    let nodes: Api<Node> = Api::all(stage.client());
    create(&nodes, json!({"metadata": {"name": "lost-1"}})).await;
    let words = ["promote", "lost-a"];
    let none = stage.plugin.run(&words).await;
    assert!(
        none.stderr.contains("has no standby copy"),
        "{}",
        none.stderr
    );
    stage
        .plugin
        .text(&["standby", "lost-a", "--wait=false"])
        .await;
    stage.copied("lost-a").await;
    let refused = stage.plugin.run(&words).await;
    assert_eq!(refused.code, 3);
    let says = "node lost-2 cannot use the copy of default/lost-a (volume lost-a)";
    assert!(refused.stderr.contains(says), "{}", refused.stderr);
    stage.is_ready_there().await;
    let refused = stage.plugin.run(&words).await;
    assert_eq!(refused.code, 3);
    let says = "kubectl taint node lost-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    assert!(refused.stderr.contains(says), "{}", refused.stderr);

    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    change(&nodes, "lost-1", json!({"spec": {"taints": taint}})).await;
    let refused = end(stage.plugin.start(&words, "yes\n")).await;
    assert_eq!(refused.code, 3);
    for says in [
        "default/lost-a (volume lost-a)",
        "as of 2026-01-01 00:00:00 UTC",
        "on node lost-1 after that is lost",
        "not confirmed: nothing was changed",
    ] {
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
    assert_eq!(stage.spec("lost-a").await.promotion, None);

    let answered = [&words[..], &["--wait=false"]].concat();
    let promoted = end(stage.plugin.start(&answered, "lost-a\n")).await;
    assert_eq!(promoted.code, 0, "{}", promoted.stderr);
    let promotion = stage.spec("lost-a").await.promotion.unwrap();
    assert_eq!(
        promotion.data_as_of.to_rfc3339(),
        "2026-01-01T00:00:00.500+00:00"
    );

    // Its VolumeMove keeps the old image from now on, and is no move.
    write_status(&stage.moves, "lost-a", json!({"promoted": TAKEN})).await;
    for (reason, says) in [
        (
            "Moving",
            "wait until VolumeMove lost-a has the reason Superseded",
        ),
        ("Superseded", "kubectl delete volumemove lost-a"),
    ] {
        stage.wait("lost-a", reason, "").await;
        for words in [
            &["standby", "lost-a", "--remove"][..],
            &["move", "lost-a", "--undo"],
            &["move", "lost-a"],
        ] {
            let refused = stage.plugin.run(words).await;
            assert_eq!(refused.code, 3, "{words:?}");
            assert!(
                refused.stderr.contains(says),
                "{words:?} {}",
                refused.stderr
            );
        }
    }
    // A second run waits for the first promotion.
    let running = stage.start(&words);
    running.says("is promoted already\n").await;
    stage.arrive("lost-a").await;
    running.says("(volume lost-a) has moved").await;
    running.ends(0).await;
}

#[tokio::test]
async fn a_drain_moves_volumes_to_their_standby_copies() {
    let names = ["copied-a", "copied-b"];
    let stage = draining::stage("copied", &names).await;
    for name in names {
        let words = ["standby", name, "--to", "copied-2", "--wait=false"];
        stage.plugin.text(&words).await;
        stage.copied(name).await;
    }
    let planned = stage.plugin.text(&["drain", "copied-1", "--dry-run"]).await;
    for name in names {
        let ends = format!("would end the standby copy of default/{name}");
        assert!(planned.contains(&ends), "{planned}");
    }
    let running = stage.start(&["drain", "copied-1", "--at-once", "1"]);
    for (name, next) in [("copied-a", Some("copied-b")), ("copied-b", None)] {
        let says = format!(
            "(volume {name}) is to move to its standby copy on copied-2, and has no standby copy any more\n"
        );
        running.says(&says).await;
        eventually("the copy to be cut over", SOON, async || {
            let spec = stage.spec(name).await;
            let is_moved = spec.cutover == Cutover::Manual;
            is_moved.then_some(()).ok_or_else(|| format!("{spec:?}"))
        })
        .await;
        if let Some(next) = next {
            assert_eq!(stage.spec(next).await.cutover, Cutover::Never);
        }
        stage.arrive(name).await;
        running.says(&format!("(volume {name}) has moved")).await;
    }
    running.ends(0).await;
}
