//! For the same choices, Helm and kustomize render the same objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use cistern_crds::definitions;
use cistern_e2e::{
    kustomize::overlay,
    process::{command, output, tool, workspace},
};
use serde_json::{Value, json};

use crate::{SOON, template};

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

/// The ConfigMap by which an overlay states a path to a component.
fn stated_path(name: &str, path: &str) -> Value {
    json!([{
        "name": name,
        "literals": [format!("path={path}")],
        "options": {"annotations": {"config.kubernetes.io/local-config": "true"}},
    }])
}

fn choice(
    name: &'static str,
    namespace: &'static str,
    values: &[&'static str],
    overlay: Value,
) -> Choice {
    Choice {
        name,
        namespace,
        values: values.to_vec(),
        overlay,
    }
}

/// Each optional part by itself.
fn parts() -> [Choice; 4] {
    let base = json!(["crds", "base"]);
    [
        choice(
            "snapshots",
            "cistern-system",
            &["snapshots.enabled=true"],
            json!({"resources": ["crds", "snapshots"]}),
        ),
        choice(
            "snapshot metadata",
            "cistern-system",
            &["snapshots.enabled=true", "snapshotMetadata.enabled=true"],
            json!({
                "resources": ["crds", "snapshots"],
                "components": ["components/snapshot-metadata"],
            }),
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
    ]
}

fn choices() -> Vec<Choice> {
    let base = json!(["crds", "base"]);
    let kubelet = stated_path("cistern-kubelet-root", "/data/kubelet");
    let directory = stated_path("cistern-pool-directory", "/data");
    let digest = "sha256:0123456789012345678901234567890123456789012345678901234567890123";
    let images = json!([
        {"name": "cistern.invalid/driver", "newName": "registry.example/driver", "newTag": "v9"},
        {"name": "cistern.invalid/operator", "newName": "registry.example/operator", "newTag": "v9"},
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
        "snapshotMetadata.enabled=true",
        "monitoring.enabled=true",
        "monitoring.prometheusOperator=true",
        "networkPolicy.enabled=true",
        "kubeletRoot=/data/kubelet",
    ];
    everything.extend(other_images);
    let others = [
        choice("default", "cistern-system", &[], json!({"resources": base})),
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
            "a directory for pools",
            "cistern-system",
            &["node.poolDirectories={/data}"],
            json!({
                "resources": base,
                "components": ["components/pool-directory"],
                "configMapGenerator": directory,
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
                "components": [
                    "components/snapshot-metadata",
                    "components/network-policy",
                    "components/kubelet-root",
                ],
                "configMapGenerator": kubelet,
                "images": images,
            }),
        ),
    ];
    parts().into_iter().chain(others).collect()
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
    let mut helm = template().await;
    helm.args(["--namespace", choice.namespace])
        .args(["--set", "namespace.create=true"]);
    for value in DEV.iter().chain(&choice.values) {
        helm.args(["--set", value]);
    }
    let mut objects = by_name(documents(&output(helm, SOON).await));
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

/// The images are not published. With a name in a public registry, nodes would run what another person puts there.
#[tokio::test]
async fn the_manifests_name_images_of_cistern_that_no_registry_has() {
    for folder in [".", "snapshots", "kind", "kind-snapshots"] {
        let rendered = kustomized(&workspace().join("manifests").join(folder)).await;
        let own: Vec<String> = documents(&rendered)
            .flat_map(|object| images(&object))
            .filter(|image| !image.starts_with("registry.k8s.io/sig-storage/"))
            .collect();
        // Those of operator, controller and node plugin.
        assert_eq!(own.len(), 3, "{folder}: {own:?}");
        let is_nowhere = |image: &String| image.starts_with("cistern.invalid/");
        assert!(own.iter().all(is_nowhere), "{folder}: {own:?}");
    }
}

/// Returns the images of an object's containers.
fn images(object: &Value) -> Vec<String> {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array();
    let images = containers.into_iter().flatten().map(|it| &it["image"]);
    images.map(|it| it.as_str().unwrap().to_owned()).collect()
}

async fn kustomized(folder: &Path) -> String {
    let mut kustomize = command(tool("kubectl").await);
    kustomize.arg("kustomize").arg(folder);
    output(kustomize, SOON).await
}

async fn rendered_by_kustomize(choice: &Choice) -> Objects {
    let folder = overlay(choice.overlay.clone());
    let built = kustomized(folder.path()).await;
    // Kustomize takes these kinds of the cluster for namespaced ones. The API server ignores the namespace.
    by_name(documents(&built).map(|mut object| {
        if POLICIES.contains(&object["kind"].as_str().unwrap()) {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("namespace");
        }
        object
    }))
}

fn documents(yaml: &str) -> impl Iterator<Item = Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    documents.into_iter().filter(|document| !document.is_null())
}

fn by_name(documents: impl Iterator<Item = Value>) -> Objects {
    let mut objects = Objects::new();
    for object in documents {
        let metadata = &object["metadata"];
        let name = format!(
            "{} {}/{}",
            object["kind"], metadata["namespace"], metadata["name"]
        );
        let twice = objects.insert(name.clone(), object);
        assert!(twice.is_none(), "{name} is there twice");
    }
    objects
}
