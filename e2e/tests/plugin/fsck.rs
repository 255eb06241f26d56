//! `kubectl cistern fsck`.

use cistern_crds::{
    Bytes, StorageNode,
    testing::{image_source, node_pool},
};
use cistern_e2e::{eventually, process::run};
use k8s_openapi::api::core::v1::Node as KubernetesNode;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::{Answer, Node, SOON, agent_pod::agent_as_pod, create};

async fn shell(node: &Node, script: &str) {
    let mut shell = node.driver.command_on_node("sh");
    shell.arg("-c").arg(script).arg(node.images());
    assert!(run(shell, SOON).await.status.success(), "{script}");
}

/// Runs `fsck` until its exit code is `code`: the agent repeats a report for a moment.
async fn until(node: &Node, code: i32, words: &[&str]) -> Answer {
    let words = [&["fsck", "--system-namespace", &node.name], words].concat();
    eventually(
        &format!("{words:?} to exit with {code}"),
        SOON,
        async || {
            let answer = node.plugin.run(&words).await;
            if answer.code == code {
                return Ok(answer);
            }
            let Answer {
                code,
                stdout,
                stderr,
            } = answer;
            Err(format!("{code}: {stdout}{stderr}"))
        },
    )
    .await
}

#[tokio::test]
async fn fsck_asks_the_agents_and_names_findings_and_every_node_that_cannot_be_asked() {
    let mut node = Node::start("plugin-fsck").await;
    let (name, lost) = (node.name.clone(), "plugin-fsck-lost");
    let empty = "plugin-fsck-empty";
    agent_as_pod(&node, &name).await;
    let volume = node.volume("fsck-one", None).await;
    let only = ["--node", &name];
    let clean = until(&node, 0, &[&only[..], &["-o", "json"]].concat()).await;
    let clean: Value = serde_json::from_str(&clean.stdout).unwrap();
    assert_eq!(clean["kind"], "NodeFindings");
    assert_eq!(clean["items"][0]["node"], name);
    assert_eq!(clean["items"][0]["images"], 1);
    assert_eq!(clean["items"][0]["findings"], json!([]));
    assert_eq!(clean["notAsked"], json!([]));

    shell(&node, "echo secret > \"$0/notes.txt\"").await;
    let dirty = until(&node, 1, &only).await.stdout;
    assert!(
        dirty.contains("  Stray: ") && dirty.contains("/images/notes.txt\n"),
        "{dirty}"
    );
    assert!(dirty.ends_with("\nfindings on 1 of 1 node.\n"), "{dirty}");
    assert!(!dirty.contains("secret"), "{dirty}");

    // By labels of Nodes. Two of them have no agent, and one of these has never had a pool.
    for node_name in [name.as_str(), lost, empty] {
        let metadata = json!({"name": node_name, "labels": {"fsck": "wanted"}});
        create(
            &node.all::<KubernetesNode>(),
            json!({"metadata": metadata, "spec": {}}),
        )
        .await;
    }
    let pool = node_pool(lost, "u", image_source(Bytes::gib(1)));
    for (node_name, pools) in [(lost, vec![pool]), (empty, vec![])] {
        let spec = json!({"topology": {}, "pools": pools});
        create(
            &node.all::<StorageNode>(),
            json!({"metadata": {"name": node_name}, "spec": spec}),
        )
        .await;
    }
    let both = until(&node, 2, &["-l", "fsck=wanted", "-o", "json"]).await;
    let both: Value = serde_json::from_str(&both.stdout).unwrap();
    assert_eq!(both["items"][0]["findings"][0]["kind"], "Stray");
    assert_eq!(both["items"].as_array().unwrap().len(), 1);
    assert_eq!(both["notAsked"].as_array().unwrap().len(), 1, "{both}");
    assert_eq!(both["notAsked"][0]["node"], lost);
    let why = both["notAsked"][0]["message"].as_str().unwrap();
    assert!(why.contains("no agent is running"), "{why}");
    // A name that nothing has is not clean either.
    let nowhere = until(&node, 2, &["--node", "nowhere"]).await.stdout;
    assert!(nowhere.contains("nowhere\n  not asked\n"), "{nowhere}");
    until(&node, 2, &["-l", "fsck=nobody"]).await;
    let denied = [&only[..], &["--as", "fsck-nobody"]].concat();
    until(&node, 3, &denied).await;

    // The pod is there and its process is not.
    node.driver.kill_node();
    let silent = until(&node, 2, &only).await.stdout;
    assert!(
        silent.contains("cannot ask the agent on plugin-fsck"),
        "{silent}"
    );
    node.driver.start_node().await;
    shell(&node, "rm \"$0/notes.txt\"").await;
    until(&node, 0, &only).await;

    let now = DeleteParams::default();
    for object in [name.as_str(), lost, empty] {
        node.all::<KubernetesNode>()
            .delete(object, &now)
            .await
            .unwrap();
    }
    for object in [lost, empty] {
        node.all::<StorageNode>()
            .delete(object, &now)
            .await
            .unwrap();
    }
    node.remove(&volume).await;
    node.driver.finish().await;
}
