//! `kubectl cistern support-bundle`.

use std::path::Path;

use cistern_crds::names::DRIVER;
use cistern_e2e::process::{command, run};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, Secret},
    storage::v1::StorageClass,
};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use crate::{Node, SOON, agent_pod::agent_as_pod, create};

/// Name of the node, its pool and Cistern's namespace.
const NAME: &str = "plugin-bundle";

/// Unpacks an archive. Returns the paths in it, in their order.
async fn unpack(archive: &Path, folder: &Path) -> Vec<String> {
    let mut tar = command("tar");
    tar.arg("-xvzf").arg(archive).arg("-C").arg(folder);
    let output = run(tar, SOON).await;
    assert!(output.status.success());
    let paths = String::from_utf8(output.stdout).unwrap();
    paths.lines().map(str::to_owned).collect()
}

/// Objects of others, and confidential ones.
async fn bystanders(node: &Node) {
    let class = |name: &str, driver: &str| json!({"metadata": {"name": name}, "provisioner": driver, "parameters": {"pool": NAME}});
    create(&node.all::<StorageClass>(), class("bundle-ours", DRIVER)).await;
    create(
        &node.all::<StorageClass>(),
        class("bundle-other", "other.example.com"),
    )
    .await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), "default");
    for name in ["bundle-ours", "bundle-other"] {
        let annotations = json!({"example.com/note": "hunter2"});
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": name,
            "resources": {"requests": {"storage": "64Mi"}},
        });
        let metadata = json!({"name": name, "annotations": annotations});
        create(&claims, json!({"metadata": metadata, "spec": spec})).await;
    }
    let secret = json!({"metadata": {"name": "bundle"}, "stringData": {"password": "hunter2"}});
    create(
        &Api::<Secret>::namespaced(node.client.clone(), NAME),
        secret,
    )
    .await;
    let env = json!([
        {"name": "HTTPS_PROXY", "value": "http://me:hunter2@proxy"}, {"name": "NODE_NAME", "value": NAME},
    ]);
    let pods: Api<Pod> = Api::namespaced(node.client.clone(), NAME);
    let container = json!({"name": "operator", "image": "x", "env": env});
    let labels = json!({"app.kubernetes.io/name": "cistern"});
    let pod = json!({"metadata": {"name": "operator", "labels": labels}, "spec": {"containers": [container]}});
    create(&pods, pod).await;
    let container = json!({"name": "app", "image": "x"});
    let pod = json!({"metadata": {"name": "stranger"}, "spec": {"containers": [container]}});
    create(&pods, pod).await;
}

async fn remove_bystanders(node: &Node) {
    let now = DeleteParams::default().grace_period(0);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(node.client.clone(), "default");
    for name in ["bundle-ours", "bundle-other"] {
        node.all::<StorageClass>().delete(name, &now).await.unwrap();
        claims.delete(name, &now).await.unwrap();
    }
}

#[tokio::test]
async fn a_support_bundle_has_our_objects_and_reports_and_names_what_it_lacks_and_no_credentials() {
    let node = Node::start(NAME).await;
    agent_as_pod(&node, NAME).await;
    let volume = node.volume("bundle-one", None).await;
    bystanders(&node).await;
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("bundle.tar.gz");
    let words = [
        "support-bundle",
        "--system-namespace",
        NAME,
        "--file",
        archive.to_str().unwrap(),
    ];
    let made = node.plugin.run(&words).await;
    // No kubelet serves logs here.
    assert_eq!(made.code, 1, "{}{}", made.stdout, made.stderr);
    assert!(
        made.stdout
            .contains("index.json in the bundle has the reasons"),
        "{}",
        made.stdout
    );
    // It replaces no file.
    let again = node.plugin.run(&words).await;
    assert_eq!(again.code, 3, "{}", again.stderr);
    assert!(
        again.stderr.contains("choose another --file"),
        "{}",
        again.stderr
    );

    let paths = unpack(&archive, folder.path()).await;
    let root = folder.path().join("cistern-support-bundle");
    assert_eq!(paths[0], "cistern-support-bundle/index.json");
    assert!(paths[1..].is_sorted(), "{paths:?}");
    let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let json = |path: &str| -> Value { serde_json::from_str(&text(path)).unwrap() };
    let index = json("index.json");
    let indexed = index["files"].as_array().unwrap().iter();
    let indexed: Vec<String> = indexed
        .map(|file| format!("cistern-support-bundle/{}", file["path"].as_str().unwrap()))
        .collect();
    assert_eq!(indexed, paths[1..]);
    let missing = index["missing"].as_array().unwrap();
    let log = missing
        .iter()
        .find(|it| it["path"] == "logs/agent/driver.log");
    let why = log.unwrap()["reason"].as_str().unwrap();
    assert!(why.contains("cannot read the log of pod agent"), "{why}");
    let snapshots = missing
        .iter()
        .find(|it| it["path"] == "objects/volumesnapshotclasses.json");
    assert_eq!(
        snapshots.unwrap()["reason"],
        "the cluster does not have this kind"
    );

    let names = |kind: &str| -> Vec<String> {
        let list = json(&format!("objects/{kind}.json"));
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|it| it["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(names("storagenodes").contains(&node.name));
    assert!(names("poolvolumes").contains(&"bundle-one".to_owned()));
    assert_eq!(names("pods"), ["agent", "operator"]);
    let (classes, claims) = (names("storageclasses"), names("persistentvolumeclaims"));
    let (ours, other) = ("bundle-ours".to_owned(), "bundle-other".to_owned());
    assert!(
        classes.contains(&ours) && !classes.contains(&other),
        "{classes:?}"
    );
    assert!(
        claims.contains(&ours) && !claims.contains(&other),
        "{claims:?}"
    );
    assert!(text(&format!("metrics/{NAME}.txt")).contains("cistern_"));
    let fsck = json("fsck.json");
    assert!(
        fsck["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["node"] == NAME),
        "{fsck}"
    );
    assert_eq!(json("doctor.json")["kind"], "Diagnosis");
    assert!(text("doctor.txt").contains("kubernetes"));
    assert!(
        json("versions.json")["server"]
            .as_str()
            .unwrap()
            .starts_with('v')
    );
    for path in &paths {
        let text = std::fs::read_to_string(folder.path().join(path)).unwrap();
        assert!(!text.contains("hunter2"), "{path}");
    }
    remove_bystanders(&node).await;
    node.remove(&volume).await;
    node.driver.finish().await;
}
