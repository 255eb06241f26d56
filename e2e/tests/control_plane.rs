//! The API server that other tests stand on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_crds::{Bytes, StoragePool};
use cistern_e2e::{ControlPlane, Folder, Process, eventually, process::dying_with_us};
use kube::{Api, api::PostParams};
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
