//! The life of a release: installed, upgraded, uninstalled and installed again.

use cistern_crds::{StoragePool, definitions};
use cistern_e2e::{
    ControlPlane, eventually, gone,
    process::{command, output, tool},
};
use k8s_openapi::{
    api::apps::v1::{DaemonSet, Deployment},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::json;

use crate::{REQUIRED, SOON, chart};

#[tokio::test]
async fn pools_and_definitions_survive_the_release() {
    let control_plane = ControlPlane::start_without_definitions().await;
    let client = control_plane.client();
    let chart = chart();
    let chart = chart.to_str().unwrap();
    let [driver, operator] = REQUIRED;
    let install = [
        "install",
        "cistern",
        chart,
        driver,
        operator,
        "--create-namespace",
    ];
    helm(&control_plane, &install).await;
    let pools: Api<StoragePool> = Api::all(client.clone());
    let pool: StoragePool = serde_json::from_value(json!({
        "metadata": {"name": "kept"},
        "spec": {
            "nodeSelector": {"matchLabels": {"pool": "kept"}},
            "source": {"image": {"size": "2Gi"}},
        },
    }))
    .unwrap();
    eventually("the definitions to be served", SOON, async || {
        let made = pools.create(&PostParams::default(), &pool).await;
        made.map(drop).map_err(|error| error.to_string())
    })
    .await;

    let changed = [
        "upgrade",
        "cistern",
        chart,
        driver,
        operator,
        "--set=kubeletRoot=/data/kubelet,operator.replicas=3,networkPolicy.enabled=true",
    ];
    helm(&control_plane, &changed).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "storage");
    let operator = deployments.get("cistern-operator").await.unwrap();
    assert_eq!(operator.spec.replicas, Some(3));
    let daemon_sets: Api<DaemonSet> = Api::namespaced(client.clone(), "storage");
    let node = daemon_sets.get("cistern-node").await.unwrap();
    let node = serde_json::to_value(node).unwrap().to_string();
    assert!(node.contains("/data/kubelet"), "{node}");
    assert!(!node.contains("/var/lib/kubelet"), "{node}");

    // Nothing collects garbage here, so Helm must not wait for it.
    helm(
        &control_plane,
        &["uninstall", "cistern", "--cascade=background"],
    )
    .await;
    gone(&deployments, "cistern-operator", SOON).await;
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in definitions() {
        kinds.get(&definition.name_any()).await.unwrap();
    }
    let kept = pools.get("kept").await.unwrap();
    assert!(kept.metadata.deletion_timestamp.is_none(), "{kept:?}");
    helm(&control_plane, &install).await;
}

/// Runs Helm for the release in namespace `storage`.
async fn helm(control_plane: &ControlPlane, arguments: &[&str]) {
    let mut helm = command(tool("helm").await);
    helm.args(arguments)
        .args(["--namespace", "storage", "--kubeconfig"])
        .arg(control_plane.kubeconfig());
    output(helm, SOON).await;
}
