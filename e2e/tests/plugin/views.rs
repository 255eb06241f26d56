//! Views of a cluster as text, JSON and YAML.

use cistern_crds::{
    StorageNode,
    names::{DRIVER, TOPOLOGY_KEY},
};
use cistern_e2e::ControlPlane;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{Node, Plugin, copy_of, create};

/// Creates a PersistentVolume bound to the claim of the same name.
pub(crate) async fn bind(node: &Node, volume: &str) {
    let requirement = json!({"key": TOPOLOGY_KEY, "operator": "In", "values": [node.name]});
    let persistent_volume = json!({
        "metadata": {"name": volume},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "64Mi"},
            "csi": {"driver": DRIVER, "volumeHandle": volume},
            "claimRef": {"namespace": "default", "name": volume},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}},
        },
    });
    create(&node.all::<PersistentVolume>(), persistent_volume).await;
}

/// Binds a volume to its claim, and creates a pod that uses the claim.
async fn put_to_use(node: &Node, volume: &str) {
    bind(node, volume).await;
    let pods: Api<Pod> = Api::namespaced(node.client.clone(), "default");
    let pod = json!({
        "metadata": {"name": format!("pod-{volume}")},
        "spec": {
            "containers": [{"name": "c", "image": "x"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": volume}}],
        },
    });
    create(&pods, pod).await;
}

#[tokio::test]
async fn views_show_how_objects_relate() {
    let node = Node::start("plugin-views").await;
    let volume = node.volume("views-one", None).await;
    let snapshot = node.snapshot("views-snap", &volume).await;
    let copy = node.volume("views-copy", Some(copy_of(&snapshot))).await;
    put_to_use(&node, "views-one").await;
    let image = volume.uid().unwrap();

    let only = ["--node", "plugin-views"];
    let text = node.plugin.text(&[&["volumes"][..], &only].concat()).await;
    let line = text
        .lines()
        .find(|line| line.contains("default/views-one"))
        .unwrap();
    for word in [
        "views-one",
        "plugin-views",
        "64Mi",
        "ext4",
        "Ready",
        "pod-views-one",
    ] {
        assert!(line.contains(word), "{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 120),
        "{text}"
    );
    let wide = node
        .plugin
        .text(&[&["volumes", "-o", "wide"][..], &only].concat())
        .await;
    assert!(wide.contains(&image), "{wide}");

    let json = node
        .plugin
        .json(&[&["volumes", "--sort", "name"][..], &only].concat())
        .await;
    assert_eq!(json["apiVersion"], "kubectl.cistern.storage/v1");
    assert_eq!(json["kind"], "VolumeList");
    let items = json["items"].as_array().unwrap();
    assert_eq!(items[0]["name"], "views-copy");
    assert_eq!(items[0]["source"]["name"], "views-snap");
    assert_eq!(items[1]["image"], *image);
    assert_eq!(items[1]["sizeBytes"], 64 << 20);
    assert_eq!(items[1]["pods"], json!(["pod-views-one"]));
    assert_eq!(items[1]["ready"], "True");
    let elsewhere = node
        .plugin
        .json(&[&["volumes", "-n", "other"][..], &only].concat())
        .await;
    assert_eq!(elsewhere["items"], json!([]));

    let tree = node
        .plugin
        .text(&["snapshots", "--volume", "views-one"])
        .await;
    let names: Vec<&str> = tree
        .lines()
        .skip(1)
        .map(|line| line.split("  ").next().unwrap())
        .collect();
    assert_eq!(names[0], "views-one");
    assert!(
        tree.contains("└─ views-snap") && tree.contains("└─ views-copy"),
        "{tree}"
    );
    let json = node
        .plugin
        .json(&["snapshots", "--volume", "views-copy"])
        .await;
    let child = &json["origins"][0]["children"][0];
    assert_eq!(
        (&child["kind"], &child["name"]),
        (&json!("Snapshot"), &json!("views-snap"))
    );
    assert_eq!(child["children"][0]["name"], "views-copy");

    let yaml = node
        .plugin
        .text(&["snapshots", "--volume", "views-copy", "-o", "yaml"])
        .await;
    assert!(
        yaml.starts_with("apiVersion: kubectl.cistern.storage/v1\n"),
        "{yaml}"
    );
    node.remove(&copy).await;
    node.remove(&snapshot).await;
    node.remove(&volume).await;
    node.driver.finish().await;
}

#[tokio::test]
async fn status_shows_the_capacity_and_the_problems_of_a_node() {
    let node = Node::start("plugin-status").await;
    let volume = node.volume("status-one", None).await;
    let of_us = |json: &serde_json::Value| {
        let nodes = json["nodes"].as_array().unwrap();
        let ours = nodes.iter().find(|it| it["name"] == "plugin-status");
        ours.unwrap().clone()
    };
    cistern_e2e::eventually("the volume to be counted", crate::SOON, async || {
        let json = node.plugin.json(&["status"]).await;
        match of_us(&json) {
            it if it["reservedBytes"] == 64 << 20 && it["volumes"] == 1 => Ok(()),
            it => Err(it.to_string()),
        }
    })
    .await;

    // The operator does not run, so AgentReporting is not set, and the plugin shows Unknown.
    let json = node.plugin.json(&["status"]).await;
    assert_eq!(of_us(&json)["agent"], "Unknown");
    let uid = volume.uid().unwrap();
    let mut away = node.driver.command_on_node("mv");
    away.arg(node.images().join(&uid))
        .arg(node.images().join("../kept"));
    cistern_e2e::process::output(away, crate::SOON).await;
    cistern_e2e::eventually(
        "the missing image to be reported",
        crate::SOON,
        async || {
            let text = node.plugin.text(&["status"]).await;
            if text.contains("PoolVolume status-one on plugin-status: ImageMissing") {
                Ok(())
            } else {
                Err(text)
            }
        },
    )
    .await;
    let answer = node.plugin.run(&["status", "--exit-code"]).await;
    assert_eq!(answer.code, 2, "{}", answer.stdout);

    let mut back = node.driver.command_on_node("mv");
    back.arg(node.images().join("../kept"))
        .arg(node.images().join(&uid));
    cistern_e2e::process::output(back, crate::SOON).await;
    node.remove(&volume).await;
    node.driver.finish().await;
}

#[tokio::test]
async fn control_characters_in_text_from_a_node_are_escaped() {
    const HOSTILE: &str = "gone\u{1b}[2J\u{1b}]0;title\u{7}\r\nall is well\u{9b}31m\u{202e}";
    let control_plane = ControlPlane::shared().await;
    let plugin = Plugin::of(control_plane);
    let nodes: Api<StorageNode> = Api::all(control_plane.client());
    create(
        &nodes,
        json!({"metadata": {"name": "hostile"}, "spec": {"topology": {}}}),
    )
    .await;
    let drift = json!({"kind": HOSTILE, "object": HOSTILE, "message": HOSTILE,
        "since": "2026-01-01T00:00:00Z"});
    let status = Patch::Merge(json!({"status": {"drift": [drift]}}));
    nodes
        .patch_status("hostile", &PatchParams::default(), &status)
        .await
        .unwrap();

    let obeyed =
        |text: &str| text.contains(|it: char| it.is_control() && it != '\n' || it == '\u{202e}');
    let text = plugin.text(&["orphans", "--node=hostile"]).await;
    assert!(!obeyed(&text), "{text:?}");
    let line = "  gone\\u001b[2J\\u001b]0;title\\u0007\\u000d\\nall is well\\u009b31m\\u202e: ";
    assert!(text.contains(line), "{text}");
    for format in ["json", "yaml"] {
        let text = plugin
            .text(&["orphans", "--node=hostile", "-o", format])
            .await;
        assert!(!obeyed(&text), "{text:?}");
    }
    let json = plugin.json(&["orphans", "--node=hostile"]).await;
    assert_eq!(json["drift"][0]["message"], HOSTILE);
    let answer = plugin.run(&["orphans", "reclaim", HOSTILE]).await;
    assert!(
        !obeyed(&answer.stderr) && answer.code == 3,
        "{:?}",
        answer.stderr
    );
    nodes
        .delete("hostile", &kube::api::DeleteParams::default())
        .await
        .unwrap();
}
