//! The values of the chart: their schema and their documentation.

use std::collections::BTreeMap;

use cistern_e2e::{
    Folder,
    process::{output, run},
};
use serde_json::{Value, json};

use crate::{SOON, template, template_without_values};

const README: &str = include_str!("../../../charts/cistern/README.md");
const VALUES: &str = include_str!("../../../charts/cistern/values.yaml");

#[tokio::test]
async fn the_schema_refuses_what_is_no_value() {
    for (value, names) in [
        ("kubeletroot=/data", "kubeletroot"),
        ("image.driver.tags=v1", "tags"),
        ("node.tolerations[0].efect=NoSchedule", "efect"),
        ("controller.replicas=many", "replicas"),
        ("kubeletRoot=data", "kubeletRoot"),
        ("image.driver.digest=sha256:short", "digest"),
        ("logFormat=xml", "logFormat"),
        ("node.poolDirectories={/}", "poolDirectories"),
        ("node.poolDirectories={data}", "poolDirectories"),
        ("node.poolDirectories={/data/../etc}", "poolDirectories"),
        ("node.poolDirectories={/data:/etc}", "poolDirectories"),
        ("node.env.max=1", "max"),
        ("node.env.MAX_VOLUMES=true", "MAX_VOLUMES"),
        ("node.env.NODE_NAME=other", "NODE_NAME"),
        ("snapshotMetadata.enabled=true", "snapshots"),
    ] {
        let mut helm = template().await;
        helm.args(["--set", value]);
        let refused = run(helm, SOON).await;
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{value} is taken");
        assert!(stderr.contains("schema"), "{value}: {stderr}");
        assert!(stderr.contains(names), "{value}: {stderr}");
    }
}

/// A default would be a name that anybody may take in a public registry, and nodes would run what is there.
#[tokio::test]
async fn the_chart_is_refused_without_the_names_of_both_images() {
    let helm = template_without_values().await;
    let refused = run(helm, SOON).await;
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "it is rendered");
    for image in ["driver", "operator"] {
        assert!(
            stderr.contains(&format!("/image/{image}/repository")),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn variables_of_the_node_plugin_and_labels_for_prometheus_operator_are_rendered() {
    let folder = Folder::new();
    let file = folder.join("values.yaml");
    let values = json!({
        "node": {"env": {"TRANSFER_BYTES_PER_SECOND": 104_857_600, "HEALTH_INTERVAL": "5s"}},
        "monitoring": {
            "enabled": true,
            "prometheusOperator": true,
            "labels": {"release": "prometheus"},
        },
    });
    std::fs::write(&file, values.to_string()).unwrap();
    let mut helm = template().await;
    helm.arg("--values").arg(&file);
    let rendered = output(helm, SOON).await;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
    let of = |kind: &str| objects.iter().find(|it| it["kind"] == kind).unwrap();
    let driver = &of("DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    let variables = driver["env"].as_array().unwrap();
    for (name, value) in [
        ("TRANSFER_BYTES_PER_SECOND", "104857600"),
        ("HEALTH_INTERVAL", "5s"),
    ] {
        let variable = variables.iter().find(|it| it["name"] == name).unwrap();
        assert_eq!(variable["value"], value);
    }
    for kind in ["PodMonitor", "PrometheusRule"] {
        let labels = &of(kind)["metadata"]["labels"];
        assert_eq!(labels["release"], "prometheus", "{kind}");
        assert_eq!(labels["app.kubernetes.io/name"], "cistern", "{kind}");
    }
}

#[tokio::test]
async fn every_directory_for_pools_is_mounted_at_its_own_path_and_allowed() {
    let mut helm = template().await;
    helm.args(["--set", "node.poolDirectories={/data,/mnt/disks}"]);
    let rendered = output(helm, SOON).await;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
    let mut sets = objects.iter().filter(|it| it["kind"] == "DaemonSet");
    let pod = &sets.next().unwrap()["spec"]["template"]["spec"];
    let of = |list: &Value, name: &str| {
        let mut found = list.as_array().unwrap().iter();
        found.find(|it| it["name"] == name).unwrap().clone()
    };
    let driver = &pod["containers"][0];
    let variable = of(&driver["env"], "POOL_DIRECTORIES");
    assert_eq!(variable["value"], "/data:/mnt/disks");
    for (name, path) in [
        ("pool-directory-0", "/data"),
        ("pool-directory-1", "/mnt/disks"),
    ] {
        let mount = of(&driver["volumeMounts"], name);
        assert_eq!(mount["mountPath"], path);
        assert_eq!(mount["mountPropagation"], "HostToContainer");
        assert_eq!(of(&pod["volumes"], name)["hostPath"]["path"], path);
    }
}

#[test]
fn the_readme_has_every_value_with_its_default() {
    let values: Value = serde_saphyr::from_str(VALUES).unwrap();
    let mut expected = BTreeMap::new();
    leaves("", &values, &mut expected);
    let rows: BTreeMap<String, String> = README.lines().filter_map(row).collect();
    assert_eq!(rows, expected);
}

/// Reads a row of the table: the value and its default.
fn row(line: &str) -> Option<(String, String)> {
    let mut cells = line.strip_prefix("| `")?.split(" | ");
    let name = cells.next()?.trim_end_matches('`');
    let default = cells.next()?.trim_matches('`');
    Some((name.to_owned(), default.to_owned()))
}

/// Adds every value that is no group of values, with its default as the table writes it.
fn leaves(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let group = value.as_object().filter(|map| !map.is_empty());
    if let Some(map) = group.filter(|_| !path.ends_with("nodeSelector")) {
        for (key, value) in map {
            let dot = if path.is_empty() { "" } else { "." };
            leaves(&format!("{path}{dot}{key}"), value, into);
        }
        return;
    }
    let default = match value {
        Value::String(text) if !text.is_empty() => text.clone(),
        other => other.to_string(),
    };
    into.insert(path.to_owned(), default);
}
