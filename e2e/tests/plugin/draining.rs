//! `kubectl cistern drain`. The tests play operator and agents.

use cistern_crds::{
    StorageNode, StoragePool,
    testing::{node_pool, volume_group_source},
};
use cistern_e2e::{eventually, objects::change};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

use crate::{SOON, create, moving::Stage, rights};

/// A stage with a StoragePool, which is cordoned, and volumes on the first node.
pub(crate) async fn stage(pool: &str, volumes: &[&str]) -> Stage {
    let stage = Stage::new(pool).await;
    let spec =
        json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "source": {"image": {"size": "1Gi"}}});
    let pools: Api<StoragePool> = Api::all(stage.client());
    create(&pools, json!({"metadata": {"name": pool}, "spec": spec})).await;
    for name in volumes {
        stage.volume(name, 1).await;
    }
    stage
}

#[tokio::test]
async fn a_drain_shows_what_would_move_without_a_change() {
    let stage = stage("planned", &["planned-a"]).await;
    let planned = stage.plugin.text(&["drain", "planned-1", "--dry-run"]);
    let planned = planned.await;
    assert!(
        planned.contains("would move default/planned-a"),
        "{planned}"
    );
    assert_eq!(stage.moves.get_opt("planned-a").await.unwrap(), None);
    let now = DeleteParams::default();
    stage.volumes.delete("planned-a", &now).await.unwrap();
    let planned = stage.plugin.text(&["drain", "planned-1", "--dry-run"]);
    let planned = planned.await;
    assert!(planned.contains("no volumes"), "{planned}");
    let itself = ["drain", "planned-1", "--to", "planned-1"];
    assert_eq!(stage.plugin.run(&itself).await.code, 3);
}

#[tokio::test]
async fn a_drain_by_a_user_who_may_not_move_volumes_leaves_the_pools_as_they_are() {
    let stage = stage("denied", &["denied-a"]).await;
    let read = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]});
    let edit = json!({"apiGroups": ["cistern.storage"], "resources": ["storagepools"], "verbs": ["patch"]});
    rights::grant(stage.client(), "editor", &[read, edit]).await;
    let flags = ["drain", "denied-1", "--as", "editor"];
    let refused = "you may not create VolumeMoves: only cluster administrators move volumes; use another --context: nothing was changed";
    eventually("the role of the editor to be in force", SOON, async || {
        let answer = stage.plugin.run(&flags).await;
        assert_eq!((answer.code, answer.stdout.as_str()), (3, ""));
        let is_refused = answer.stderr.contains(refused);
        is_refused.then_some(()).ok_or(answer.stderr)
    })
    .await;
    let pools: Api<StoragePool> = Api::all(stage.client());
    let pool = pools.get("denied").await.unwrap();
    assert!(pool.spec.cordoned_nodes.is_empty());
}

#[tokio::test]
async fn a_drain_moves_one_group_after_the_other_until_the_node_is_empty() {
    let names = ["drained-a", "drained-b", "drained-c"];
    let stage = stage("drained", &names).await;
    let running = stage.start(&["drain", "drained-1", "--to", "drained-2", "--at-once", "1"]);
    for name in names {
        assert_eq!(stage.moves(name).await.spec.to_node.unwrap(), "drained-2");
        stage.wait(name, "Copying", "10 % are done").await;
        running
            .says(&format!("(volume {name}): Copying: 10 %"))
            .await;
        let all = stage.moves.list(&ListParams::default()).await.unwrap();
        let ours = |it: &str| names.contains(&it);
        let at_once = all.items.iter().filter(|it| ours(&it.spec.volume_name));
        assert_eq!(at_once.count(), 1);
        stage.arrive(name).await;
        running.says(&format!("(volume {name}) has moved")).await;
    }
    let printed = running.ends(0).await;
    assert!(
        printed.contains("pool drained is cordoned on drained-1"),
        "{printed}"
    );
    assert!(
        printed.ends_with("drained-1 has no volumes any more\n"),
        "{printed}"
    );
}

/// Creates a pod on a node that uses a claim. Returns all pods.
async fn user(stage: &Stage, name: &str, claim: &str, node: &str) -> Api<Pod> {
    let pods: Api<Pod> = Api::namespaced(stage.client(), "default");
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
    let container = json!({"name": "main", "image": "none"});
    let spec = json!({"nodeName": node, "containers": [container], "volumes": [claim],
        "automountServiceAccountToken": false});
    create(&pods, json!({"metadata": {"name": name}, "spec": spec})).await;
    pods
}

#[tokio::test]
async fn a_volume_that_cannot_move_stays_and_the_others_move() {
    let stage = stage("mixed", &["mixed-a"]).await;
    let source = volume_group_source("vg-mixed");
    let pools: Api<StoragePool> = Api::all(stage.client());
    let spec = json!({"nodeSelector": {"matchLabels": {"a": "b"}}, "source": source});
    let group = json!({"metadata": {"name": "mixed-group"}, "spec": spec});
    create(&pools, group).await;
    let nodes: Api<StorageNode> = Api::all(stage.client());
    let mut carried = nodes.get("mixed-1").await.unwrap().spec.pools;
    carried.push(node_pool("mixed-group", "g", source));
    change(&nodes, "mixed-1", json!({"spec": {"pools": carried}})).await;
    stage.volume_in("mixed-group", "mixed-b", 1).await;
    // The drain does not wait for it.
    let pods = user(&stage, "mixed", "mixed-b", "mixed-1").await;

    let why = "volume mixed-b cannot move: pool mixed-group is a volume group";
    let said = format!("default/mixed-b (volume mixed-b) cannot move: {why}");
    let planned = stage.plugin.run(&["drain", "mixed-1", "--dry-run"]).await;
    assert_eq!(planned.code, 1, "{}", planned.stderr);
    assert!(planned.stdout.contains(&said), "{}", planned.stdout);
    let moves = "would move default/mixed-a (volume mixed-a)\n";
    assert!(planned.stdout.contains(moves), "{}", planned.stdout);
    let running = stage.start(&["drain", "mixed-1"]);
    running.says(&said).await;
    stage.arrive("mixed-a").await;
    let printed = running.ends(1).await;
    let stays = format!("default/mixed-b (volume mixed-b) stays on mixed-1: {why}");
    assert!(printed.contains(&stays), "{printed}");
    assert_eq!(stage.moves.get_opt("mixed-b").await.unwrap(), None);
    let now = DeleteParams::default().grace_period(0);
    pods.delete("mixed", &now).await.unwrap();
}

#[tokio::test]
async fn a_drain_waits_for_pods_and_moves_the_others_meanwhile() {
    let stage = stage("used", &["used-a", "used-b"]).await;
    let pods = user(&stage, "used", "used-a", "used-1").await;
    let running = stage.start(&["drain", "used-1", "--at-once", "1"]);
    running
        .says("(volume used-a) waits for pods: default/used\n")
        .await;
    stage.arrive("used-b").await;
    running.says("(volume used-b) has moved").await;
    assert_eq!(stage.moves.get_opt("used-a").await.unwrap(), None);
    pods.delete("used", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    stage.arrive("used-a").await;
    running.ends(0).await;
}

#[tokio::test]
async fn a_drain_follows_a_move_to_another_node_and_ends_although_a_move_of_a_group_is_undone() {
    let stage = stage("group", &["group-a", "group-b", "group-c"]).await;
    for (name, others) in [("group-a", json!(["group-b"])), ("group-c", json!([]))] {
        let spec = json!({"volumeName": name, "toNode": "group-2", "togetherWith": others});
        create(
            &stage.moves,
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await;
    }
    let nodes: Api<StorageNode> = Api::all(stage.client());
    let third = json!({"metadata": {"name": "group-3"},
        "spec": nodes.get("group-2").await.unwrap().spec});
    create(&nodes, third).await;
    let running = stage.start(&["drain", "group-1", "--to", "group-3"]);
    running
        .says("(volume group-c) moves to group-2 already")
        .await;
    let spec = stage.moves("group-b").await.spec;
    assert_eq!(spec.to_node.as_deref(), Some("group-2"));
    stage.arrive("group-c").await;
    running.says("(volume group-c) has moved").await;
    stage.delete_move("group-a").await;
    let printed = running.ends(1).await;
    let stays = |name: &str, why: &str| {
        let line = format!("(volume {name}) stays on group-1: {why}");
        assert!(printed.contains(&line), "{printed}");
    };
    stays("group-a", "its move was undone");
    stays(
        "group-b",
        "default/group-a (volume group-a) stays; undo its move with `kubectl cistern move group-b --undo`",
    );
}

#[tokio::test]
async fn a_drain_gives_up_on_a_volume_that_cannot_move_any_more() {
    let stage = stage("given-up", &["given-up-a", "given-up-b"]).await;
    let running = stage.start(&[
        "drain",
        "given-up-1",
        "--to",
        "given-up-2",
        "--at-once",
        "1",
    ]);
    stage.moves("given-up-a").await;
    let nodes: Api<StorageNode> = Api::all(stage.client());
    change(&nodes, "given-up-2", json!({"spec": {"pools": []}})).await;
    stage.arrive("given-up-a").await;
    let printed = running.ends(1).await;
    let why = "node given-up-2 does not carry pool given-up";
    let said = format!("(volume given-up-b) cannot move: {why}");
    assert!(printed.contains(&said), "{printed}");
    let stays = format!("(volume given-up-b) stays on given-up-1: {why}");
    assert!(printed.contains(&stays), "{printed}");
}
