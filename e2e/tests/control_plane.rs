//! The API server that other tests stand on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_crds::{
    Bytes, StorageNode, StoragePool,
    pool::{ImageSource, PoolSource},
    testing::node_pool,
};
use cistern_e2e::{ControlPlane, Folder, Process, eventually, process::dying_with_us};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

#[tokio::test]
async fn custom_resources_are_served_and_validated() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let pool = |size: &str| {
        serde_json::from_value::<StoragePool>(json!({
            "apiVersion": "cistern.storage/v1alpha1",
            "kind": "StoragePool",
            "metadata": {"name": "some-pool"},
            "spec": {"nodeSelector": {}, "source": {"image": {"size": size}}},
        }))
        .unwrap()
    };
    let error = pools
        .create(&PostParams::default(), &pool("1Mi"))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("at least 1Gi"), "{error}");
    let made = pools
        .create(&PostParams::default(), &pool("4Gi"))
        .await
        .unwrap();
    assert_eq!(made.spec.source.image.unwrap().size, Bytes::gib(4));
}

#[tokio::test]
async fn the_directory_of_a_pool_is_an_absolute_path_and_never_changes() {
    let pools: Api<StoragePool> = Api::all(ControlPlane::shared().await.client());
    let pool = |name: &str, directory: Option<&str>| {
        let mut image = json!({"size": "1Gi"});
        if let Some(directory) = directory {
            image["directory"] = json!(directory);
        }
        serde_json::from_value::<StoragePool>(json!({
            "apiVersion": "cistern.storage/v1alpha1",
            "kind": "StoragePool",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {}, "source": {"image": image}},
        }))
        .unwrap()
    };
    let create = async |name: &str, directory: Option<&str>| {
        let pool = pool(name, directory);
        pools.create(&PostParams::default(), &pool).await
    };
    let too_long = format!("/{}", "d".repeat(512));
    for text in [
        "", "/", "data", "/data/", "//data", "/data/..", "/../data", "/./data", "/a:b", "/a\nb",
        "/a\u{7f}", "/a\u{85}", &too_long,
    ] {
        let refused = create("no-directory", Some(text)).await;
        let error = refused.map(|_| text).unwrap_err().to_string();
        assert!(error.contains("directory"), "{text:?}: {error}");
    }
    for (name, directory) in [
        ("in-data", Some("/data/a b/..c/.d/\u{fc}")),
        ("in-default", None),
    ] {
        let made = create(name, directory).await.unwrap();
        assert_eq!(
            made.spec.source.image.unwrap().directory.as_deref(),
            directory
        );
        for change in [json!("/other"), json!(null)] {
            if directory.is_none() && change.is_null() {
                continue;
            }
            let change = json!({"spec": {"source": {"image": {"directory": change}}}});
            let changed = pools
                .patch(name, &PatchParams::default(), &Patch::Merge(change))
                .await;
            let error = changed.map(|_| name).unwrap_err().to_string();
            assert!(error.contains("directory cannot be changed"), "{error}");
        }
        let grown = json!({"spec": {"source": {"image": {"size": "2Gi"}}}});
        let grown = Patch::Merge(grown);
        pools
            .patch(name, &PatchParams::default(), &grown)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn the_pool_of_a_node_can_be_replaced_by_one_of_its_name_in_another_directory() {
    let nodes: Api<StorageNode> = Api::all(ControlPlane::shared().await.client());
    let pool = |uid: &str, directory: Option<&str>| {
        let image = ImageSource {
            size: Bytes::gib(1),
            directory: directory.map(str::to_owned),
        };
        let source = PoolSource {
            image: Some(image),
            device: None,
        };
        json!({"spec": {"topology": {}, "pools": [node_pool("fast", uid, source)]}})
    };
    let mut node = pool("default", None);
    node["apiVersion"] = json!("cistern.storage/v1alpha1");
    node["kind"] = json!("StorageNode");
    node["metadata"] = json!({"name": "successors"});
    let node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    for (uid, directory) in [
        ("in-data", Some("/data")),
        ("in-other", Some("/other")),
        ("default-again", None),
    ] {
        let change = Patch::Merge(pool(uid, directory));
        let changed = nodes
            .patch("successors", &PatchParams::default(), &change)
            .await
            .unwrap();
        let found = &changed.spec.pools[0];
        let found_directory = found.source.image.as_ref().unwrap().directory.as_deref();
        assert_eq!((found.uid.as_str(), found_directory), (uid, directory));
    }
}

#[tokio::test]
async fn tests_share_one_api_server() {
    let (one, other) = (ControlPlane::shared().await, ControlPlane::shared().await);
    assert_eq!(one.kubeconfig(), other.kubeconfig());
    one.client().apiserver_version().await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_of_a_control_plane_whose_test_was_killed() {
    let folder = Folder::new();
    let log = folder.join("log");
    let command = dying_with_us(env!("CARGO_BIN_EXE_control-plane"));
    let mut process = Process::start("control-plane", &log, command);
    let its_folder = eventually("the control plane", Duration::from_mins(1), async || {
        let log = process.log();
        let kubeconfig = log
            .lines()
            .find_map(|l| l.strip_prefix("export KUBECONFIG="));
        kubeconfig
            .and_then(|path| Some(Path::new(path).parent()?.to_owned()))
            .ok_or(log)
    })
    .await;
    assert_eq!(
        processes_that_name(&its_folder).len(),
        2,
        "etcd and kube-apiserver"
    );

    process.kill();
    eventually("its end", Duration::from_secs(10), async || {
        let processes = processes_that_name(&its_folder);
        if processes.is_empty() && !its_folder.exists() {
            Ok(())
        } else {
            Err(format!(
                "processes {processes:?}, folder {}",
                its_folder.display()
            ))
        }
    })
    .await;
}

fn processes_that_name(path: &Path) -> Vec<PathBuf> {
    std::fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|process| {
            let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(path.to_str().unwrap())
        })
        .collect()
}
