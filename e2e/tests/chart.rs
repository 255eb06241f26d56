//! The Helm chart: the same objects as kustomize's for the same choices, its life in a cluster, and its values.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_crds::definitions;
use cistern_e2e::{
    ControlPlane, Folder, eventually,
    process::{command, output, run, tool, workspace},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

const README: &str = include_str!("../../charts/cistern/README.md");
const VALUES: &str = include_str!("../../charts/cistern/values.yaml");
const SOON: Duration = Duration::from_mins(2);
/// The tag that the manifests have in the repository, where the chart has the version of a release.
const DEV: &[&str] = &["image.driver.tag=dev", "image.operator.tag=dev"];

/// Kinds of the cluster to which kustomize gives a namespace.
const POLICIES: &[&str] = &[
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// Objects by kind, namespace and name.
type Objects = BTreeMap<String, Value>;

/// The same choices, expressed for both tools.
struct Choice {
    name: &'static str,
    namespace: &'static str,
    values: Vec<&'static str>,
    /// An overlay for kustomize; `resources` and `components` are relative to `manifests`.
    overlay: Value,
}

fn choices() -> Vec<Choice> {
    let choice = |name, namespace, values: &[&'static str], overlay| Choice {
        name,
        namespace,
        values: values.to_vec(),
        overlay,
    };
    let base = json!(["crds", "base"]);
    let kubelet = json!([{
        "name": "cistern-kubelet-root",
        "literals": ["path=/data/kubelet"],
        "options": {"annotations": {"config.kubernetes.io/local-config": "true"}},
    }]);
    let digest = "sha256:0123456789012345678901234567890123456789012345678901234567890123";
    let images = json!([
        {"name": "cistern/driver", "newName": "registry.example/driver", "newTag": "v9"},
        {"name": "cistern/operator", "newName": "registry.example/operator", "newTag": "v9"},
        {"name": "registry.k8s.io/sig-storage/csi-resizer", "newTag": "v2.3.0", "digest": digest},
    ]);
    let other_images = [
        "image.driver.repository=registry.example/driver",
        "image.driver.tag=v9",
        "image.operator.repository=registry.example/operator",
        "image.operator.tag=v9",
        "image.resizer.digest=sha256:0123456789012345678901234567890123456789012345678901234567890123",
    ];
    let mut everything = vec![
        "snapshots.enabled=true",
        "monitoring.enabled=true",
        "monitoring.prometheusOperator=true",
        "networkPolicy.enabled=true",
        "kubeletRoot=/data/kubelet",
    ];
    everything.extend(other_images);
    vec![
        choice("default", "cistern-system", &[], json!({"resources": base})),
        choice(
            "snapshots",
            "cistern-system",
            &["snapshots.enabled=true"],
            json!({"resources": ["crds", "snapshots"]}),
        ),
        choice(
            "monitoring",
            "cistern-system",
            &["monitoring.enabled=true"],
            json!({"resources": ["crds", "base", "monitoring"]}),
        ),
        choice(
            "network policy",
            "cistern-system",
            &["networkPolicy.enabled=true"],
            json!({"resources": base, "components": ["components/network-policy"]}),
        ),
        choice(
            "another namespace",
            "storage",
            &[],
            json!({"resources": base, "namespace": "storage"}),
        ),
        choice(
            "another root of kubelet",
            "cistern-system",
            &["kubeletRoot=/data/kubelet"],
            json!({
                "resources": base,
                "components": ["components/kubelet-root"],
                "configMapGenerator": kubelet,
            }),
        ),
        choice(
            "other images",
            "cistern-system",
            &other_images,
            json!({"resources": base, "images": images}),
        ),
        choice(
            "everything",
            "storage",
            &everything,
            json!({
                "namespace": "storage",
                "resources": ["crds", "snapshots", "monitoring", "monitoring/prometheus-operator"],
                "components": ["components/network-policy", "components/kubelet-root"],
                "configMapGenerator": kubelet,
                "images": images,
            }),
        ),
    ]
}

#[tokio::test]
async fn helm_and_kustomize_render_the_same_objects() {
    for choice in choices() {
        let helm = rendered_by_helm(&choice).await;
        let kustomize = rendered_by_kustomize(&choice).await;
        let names = |objects: &Objects| objects.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(names(&helm), names(&kustomize), "{}", choice.name);
        for (name, object) in &helm {
            assert_eq!(object, &kustomize[name], "{}: {name}", choice.name);
        }
    }
}

/// Renders the chart, and removes what only Helm's objects have: the annotation that keeps the definitions and their
/// policy, and no other difference.
async fn rendered_by_helm(choice: &Choice) -> Objects {
    let mut helm = command(tool("helm").await);
    helm.args(["template", "cistern"])
        .arg(chart())
        .args(["--namespace", choice.namespace, "--set"])
        .args(["namespace.create=true"]);
    for value in DEV.iter().chain(&choice.values) {
        helm.args(["--set", value]);
    }
    let mut objects = objects(&output(helm, SOON).await);
    let mut kept = 0;
    for (name, object) in &mut objects {
        let metadata = object["metadata"].as_object_mut().unwrap();
        let Some(annotations) = metadata.get("annotations") else {
            continue;
        };
        assert_eq!(
            annotations,
            &json!({"helm.sh/resource-policy": "keep"}),
            "{name}"
        );
        metadata.remove("annotations");
        kept += 1;
    }
    // The definitions, their policy and its binding.
    assert_eq!(kept, definitions().len() + 2, "{}", choice.name);
    objects
}

async fn rendered_by_kustomize(choice: &Choice) -> Objects {
    let folder = Folder::new();
    // Kustomize does not accept absolute paths.
    let up = "../".repeat(folder.path().components().count() - 1);
    let workspace = workspace().canonicalize().unwrap();
    let manifests = format!("{up}{}/manifests", &workspace.to_str().unwrap()[1..]);
    let mut overlay = choice.overlay.clone();
    for key in ["resources", "components"] {
        for path in overlay[key].as_array_mut().into_iter().flatten() {
            *path = json!(format!("{manifests}/{}", path.as_str().unwrap()));
        }
        if overlay[key].is_null() {
            overlay[key] = json!([]);
        }
    }
    std::fs::write(folder.join("kustomization.yaml"), overlay.to_string()).unwrap();
    let mut kustomize = command(tool("kubectl").await);
    kustomize.arg("kustomize").arg(folder.path());
    let built = output(kustomize, SOON).await;
    // Kustomize takes these kinds of the cluster for namespaced ones. The API server ignores the namespace.
    let mut objects = Objects::new();
    for mut object in documents(&built) {
        if POLICIES.contains(&object["kind"].as_str().unwrap()) {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("namespace");
        }
        add(&mut objects, object);
    }
    objects
}

/// Returns the objects of a stream of YAML documents.
fn objects(yaml: &str) -> Objects {
    let mut objects = Objects::new();
    for object in documents(yaml) {
        add(&mut objects, object);
    }
    objects
}

fn documents(yaml: &str) -> impl Iterator<Item = Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    documents.into_iter().filter(|document| !document.is_null())
}

fn add(objects: &mut Objects, object: Value) {
    let metadata = &object["metadata"];
    let name = format!(
        "{} {}/{}",
        object["kind"], metadata["namespace"], metadata["name"]
    );
    let twice = objects.insert(name.clone(), object);
    assert!(twice.is_none(), "{name} is there twice");
}

#[tokio::test]
async fn pools_and_definitions_survive_the_release() {
    let control_plane = ControlPlane::start().await;
    let client = control_plane.client();
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    // The chart installs its own.
    for definition in definitions() {
        let name = definition.name_any();
        kinds.delete(&name, &DeleteParams::default()).await.unwrap();
        eventually(&format!("{name} to be gone"), SOON, async || {
            let seen = kinds.get_opt(&name).await;
            match seen.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(_) => Err("it is there".to_owned()),
            }
        })
        .await;
    }
    let chart = chart();
    let chart = chart.to_str().unwrap();
    let install = ["install", "cistern", chart, "--create-namespace"];
    helm(&control_plane, &install).await;
    let pool_kind = GroupVersionKind::gvk("cistern.storage", "v1alpha1", "StoragePool");
    let pools: Api<DynamicObject> =
        Api::all_with(client.clone(), &ApiResource::from_gvk(&pool_kind));
    let pool: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "StoragePool",
        "metadata": {"name": "kept"},
        "spec": {"nodeSelector": {"matchLabels": {"pool": "kept"}}, "source": {"image": {"size": "2Gi"}}},
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
        "--set=kubeletRoot=/data/kubelet,operator.replicas=3,networkPolicy.enabled=true",
    ];
    helm(&control_plane, &changed).await;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(client.clone(), "storage");
    let operator = deployments.get("cistern-operator").await.unwrap();
    assert_eq!(operator.spec.replicas, Some(3));
    let daemon_sets: Api<k8s_openapi::api::apps::v1::DaemonSet> =
        Api::namespaced(client.clone(), "storage");
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
    eventually("the release to be gone", SOON, async || {
        let seen = deployments.get_opt("cistern-operator").await;
        match seen.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(_) => Err("the operator's Deployment is there".to_owned()),
        }
    })
    .await;
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
    ] {
        let mut helm = command(tool("helm").await);
        helm.args(["template", "cistern"])
            .arg(chart())
            .args(["--set", value]);
        let refused = run(helm, SOON).await;
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{value} is taken");
        assert!(stderr.contains("schema"), "{value}: {stderr}");
        assert!(stderr.contains(names), "{value}: {stderr}");
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

fn chart() -> PathBuf {
    Path::new(workspace()).join("charts/cistern")
}
