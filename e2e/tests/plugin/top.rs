//! `kubectl cistern top`, and the flags of lists.

use cistern_crds::{StoragePool, names::IMAGE_CONTEXT};
use cistern_e2e::{
    Process, eventually,
    objects::{change, write_status},
};
use cistern_proto::csi::v1::{NodeStageVolumeRequest, NodeUnstageVolumeRequest};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    rbac::v1::{Role, RoleBinding},
};
use kube::{Api, ResourceExt as _, api::DeleteParams};
use serde_json::{Value, json};

use crate::{
    Node, SOON,
    agent_pod::{agent_as_pod, running_agent},
    create,
};

#[tokio::test]
async fn top_shows_the_space_and_the_io_of_volumes_and_pools_to_those_who_may_reach_the_agents() {
    let namespace = "plugin-top";
    let node = Node::start(namespace).await;
    agent_as_pod(&node, namespace).await;
    let volume = node.volume("top-one", None).await;
    node.volume("top-two", None).await;
    let staging = node.driver.kubelet_root().join("staging");
    std::fs::create_dir_all(&staging).unwrap();
    let (path, image) = (staging.to_str().unwrap().to_owned(), volume.uid().unwrap());
    let mut client = node.driver.node_client().await;
    let request = NodeStageVolumeRequest {
        volume_id: volume.name_any(),
        staging_target_path: path.clone(),
        volume_capability: Some(cistern_e2e::requests::single_node_writer()),
        volume_context: [(IMAGE_CONTEXT.to_owned(), image)].into(),
        ..NodeStageVolumeRequest::default()
    };
    client.node_stage_volume(request).await.unwrap();
    let mut writer = node.driver.command_on_node("sh");
    let script = "while dd if=/dev/zero of=$0/file bs=64k count=64 oflag=direct; do :; done";
    writer.args(["-c", script]).arg(&staging);
    let mut writer = Process::start("writer", &node.driver.kubelet_root().join("log"), writer);

    let top = |subject: &'static str| {
        let words = ["top", subject, "--system-namespace", namespace];
        let words = [&words[..], &["--interval", "500ms"]].concat();
        let plugin = &node.plugin;
        async move { plugin.json(&words).await["items"].clone() }
    };
    let volumes = eventually("top to show the writes", SOON, async || {
        let items = top("volumes").await;
        match items[0]["writtenBytesPerSecond"].as_f64() {
            Some(rate) if rate > 0.0 => Ok(items),
            _ => Err(items.to_string()),
        }
    })
    .await;
    assert_eq!(volumes[0]["name"], "top-one");
    assert_eq!(volumes[0]["sizeBytes"], 64 << 20);
    assert!(volumes[0]["writesPerSecond"].as_f64().unwrap() > 0.0);
    let words = ["volumes", "--devices", "--system-namespace", namespace];
    let words = [&words[..], &["--node", namespace]].concat();
    let devices = node.plugin.json(&words).await["items"].clone();
    let device = devices[0]["device"].as_str().unwrap();
    assert!(device.starts_with("/dev/loop"), "{devices}");
    assert_eq!(devices[1].get("device"), None, "{devices}");
    // It is not attached.
    assert_eq!(volumes[1]["name"], "top-two");
    assert_eq!(volumes[1].get("writesPerSecond"), None);
    let pools = eventually("top to show the writes to the pool", SOON, async || {
        let items = top("pools").await;
        let rate = items[0]["writesPerSecond"].as_f64().unwrap_or_default();
        if rate > 0.0 {
            Ok(items)
        } else {
            Err(items.to_string())
        }
    })
    .await;
    assert_eq!(pools[0]["nodes"][0]["node"], node.name);
    assert_eq!(pools[0]["reservedBytes"], 128 << 20);
    assert!(
        pools[0]["freeBytes"].as_u64().unwrap() > 500 << 20,
        "{pools}"
    );
    writer.kill();

    as_a_user(&node, namespace).await;
    eventually("the volume to be unstaged", SOON, async || {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume.name_any(),
            staging_target_path: path.clone(),
        };
        // The last dd may still run.
        let unstaged = client.clone().node_unstage_volume(request).await;
        unstaged.map_err(|error| error.to_string())
    })
    .await;
    let pods: Api<Pod> = Api::namespaced(node.client.clone(), namespace);
    let now = DeleteParams::default().grace_period(0);
    pods.delete("agent", &now).await.unwrap();
    let nothing = node
        .plugin
        .run(&["top", "pools", "--system-namespace", namespace])
        .await;
    assert_eq!(nothing.code, 3);
    assert!(
        nothing.stderr.contains("there is no running agent"),
        "{}",
        nothing.stderr
    );
    for name in ["top-one", "top-two"] {
        let volume = node.ready::<cistern_crds::PoolVolume>(name).await;
        node.remove(&volume).await;
    }
    node.driver.finish().await;
}

#[tokio::test]
async fn a_lost_node_is_noted_and_delays_top_by_a_few_seconds() {
    let namespace = "plugin-lost";
    let node = Node::start(namespace).await;
    agent_as_pod(&node, namespace).await;
    // The address is one for documentation: nothing answers there.
    let nowhere = "192.0.2.1:9808".parse().unwrap();
    let pods: Api<Pod> = Api::namespaced(node.client.clone(), namespace);
    running_agent(&pods, ("lost", "plugin-lost-2"), nowhere, false).await;
    // Longer than a test waits for the program.
    let patient = ["--request-timeout", "600s", "--interval", "500ms"];
    let words = ["top", "pools", "--system-namespace", namespace];
    let answer = node.plugin.run(&[&words[..], &patient].concat()).await;
    assert_eq!(answer.code, 0, "{}{}", answer.stdout, answer.stderr);
    assert!(answer.stdout.contains(namespace), "{}", answer.stdout);
    let says = "cannot read the metrics of the agent on plugin-lost-2";
    assert_eq!(answer.stderr.matches(says).count(), 1, "{}", answer.stderr);
    node.driver.finish().await;
}

#[tokio::test]
async fn a_watched_top_goes_on_after_a_sample_that_failed() {
    let namespace = "plugin-restarted";
    let node = Node::start(namespace).await;
    agent_as_pod(&node, namespace).await;
    let words = ["top", "volumes", "--system-namespace", namespace];
    let watched = ["--watch", "--interval", "200ms"];
    let top = node.plugin.command(&[&words[..], &watched].concat());
    let log = node.driver.kubelet_root().join("top");
    let mut top = Process::start("top", &log, top);
    let pods: Api<Pod> = Api::namespaced(node.client.clone(), namespace);
    let shows = async |text: &str| {
        eventually(&format!("top to show {text:?}"), SOON, async || {
            let printed = std::fs::read_to_string(&log).unwrap_or_default();
            let shown = printed.contains(text).then_some(());
            shown.ok_or(printed)
        })
        .await;
    };
    shows("There are no such volumes.").await;
    let failed = "note: there is no running agent";
    write_status(&pods, "agent", json!({"phase": "Pending"})).await;
    shows(failed).await;
    write_status(&pods, "agent", json!({"phase": "Running"})).await;
    let volume = node.volume("restarted-one", None).await;
    shows("default/restarted-one").await;
    assert!(top.exited().is_none());
    top.kill();
    let printed = std::fs::read_to_string(&log).unwrap();
    assert_eq!(printed.matches(failed).count(), 1, "{printed}");
    node.remove(&volume).await;
    node.driver.finish().await;
}

/// A user needs one right more than those of `view`.
async fn as_a_user(node: &Node, namespace: &str) {
    let group = "rbac.authorization.k8s.io";
    let subjects = json!([{"kind": "User", "name": "top-user", "apiGroup": group}]);
    let permission = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]});
    let roles = Api::<Role>::namespaced(node.client.clone(), namespace);
    let bindings = Api::<RoleBinding>::namespaced(node.client.clone(), namespace);
    // The part of `view` that matters. Without a controller manager nothing fills that role.
    let role = json!({"metadata": {"name": "view"}, "rules": [permission]});
    create(&roles, role).await;
    let role = json!({"kind": "Role", "name": "view", "apiGroup": group});
    let binding = json!({"metadata": {"name": "view"}, "roleRef": role, "subjects": subjects});
    create(&bindings, binding).await;
    let words = [
        "top",
        "volumes",
        "--system-namespace",
        namespace,
        "--as",
        "top-user",
    ];
    eventually("the missing right to be named", SOON, async || {
        let denied = node.plugin.run(&words).await;
        match denied.code {
            3 if denied.stderr.contains("`get` of `pods/proxy`") => Ok(()),
            _ => Err(format!("{}{}", denied.stdout, denied.stderr)),
        }
    })
    .await;

    let permission = json!({"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]});
    let role = json!({"metadata": {"name": "top"}, "rules": [permission]});
    create(&roles, role).await;
    let role = json!({"kind": "Role", "name": "top", "apiGroup": group});
    let binding = json!({"metadata": {"name": "top"}, "roleRef": role, "subjects": subjects});
    create(&bindings, binding).await;
    eventually("the right to be in force", SOON, async || {
        let allowed = node.plugin.run(&words).await;
        match allowed.code {
            0 if allowed.stdout.contains("default/top-one") => Ok(()),
            _ => Err(format!("{}{}", allowed.stdout, allowed.stderr)),
        }
    })
    .await;
}

#[tokio::test]
async fn lists_are_selected_by_labels_and_printed_without_headings() {
    let node = Node::start("plugin-labels").await;
    let spec = json!({"nodeSelector": {}, "source": {"image": {"size": "1Gi"}}});
    let pool = json!({"metadata": {"name": node.name, "labels": {"tier": "fast"}}, "spec": spec});
    create(&node.all::<StoragePool>(), pool).await;
    let words = |list: &'static str, selector| [list, "-l", selector, "--node", "plugin-labels"];
    let words_without_headings = [&words("pools", "tier=fast")[..], &["--no-headers"]].concat();
    let text = node.plugin.text(&words_without_headings).await;
    assert!(
        text.starts_with("plugin-labels ") && text.lines().count() == 2,
        "{text}"
    );
    let nothing = node
        .plugin
        .json(&words("pools", "tier notin (fast),tier"))
        .await;
    assert_eq!(nothing["items"], json!([]));

    let (one, two) = (
        node.volume("labels-one", None).await,
        node.volume("labels-two", None).await,
    );
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), "default");
    for (name, app) in [("labels-one", "db"), ("labels-two", "web")] {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}},
            "storageClassName": "none", "volumeName": name,
        });
        let claim = json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": spec});
        create(&claims, claim).await;
        crate::views::bind(&node, name).await;
    }
    let found = node
        .plugin
        .json(&words("volumes", "app in (db, cache)"))
        .await;
    let names: Vec<&Value> = found["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["labels-one"]);
    let bad = node.plugin.run(&["volumes", "-l", "app in (db"]).await;
    assert_eq!(bad.code, 3);
    assert!(bad.stderr.contains("closing parenthesis"), "{}", bad.stderr);
    node.remove(&one).await;
    node.remove(&two).await;
    node.driver.finish().await;
}

#[tokio::test]
async fn a_watched_list_is_printed_again_after_a_change() {
    let node = Node::start("plugin-watch").await;
    let watch = node.plugin.command(&[
        "volumes",
        "--watch",
        "--no-headers",
        "--node",
        "plugin-watch",
    ]);
    let log = node.driver.kubelet_root().join("watch");
    let mut watch = Process::start("watch", &log, watch);
    let shows = async |text: &str| {
        eventually(&format!("the list to show {text:?}"), SOON, async || {
            let printed = std::fs::read_to_string(&log).unwrap_or_default();
            if printed.contains(text) {
                Ok(())
            } else {
                Err(printed)
            }
        })
        .await;
    };
    shows("There are no such volumes.").await;
    let volume = node.volume("watch-one", None).await;
    shows("default/watch-one").await;
    shows("Ready").await;
    let annotated = json!({"metadata": {"annotations": {"a": "b"}}});
    change(
        &node.all::<cistern_crds::PoolVolume>(),
        "watch-one",
        annotated,
    )
    .await;
    node.remove(&volume).await;
    let what = "the list to show that the volume is gone";
    eventually(what, SOON, async || {
        let printed = std::fs::read_to_string(&log).unwrap_or_default();
        let last = printed.trim_end().lines().last().unwrap_or_default();
        if last == "There are no such volumes." {
            Ok(())
        } else {
            Err(printed)
        }
    })
    .await;
    watch.kill();
    // What looks the same is not printed again.
    let printed = std::fs::read_to_string(&log).unwrap();
    let blocks: Vec<&str> = printed.split("\n\n").collect();
    assert!(
        blocks.windows(2).all(|two| two[0].trim() != two[1].trim()),
        "{printed}"
    );
    node.driver.finish().await;
}
