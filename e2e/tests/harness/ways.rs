//! What can be tested of both ways to make a cluster without making one: configuration, arguments, names of images.

use std::{collections::BTreeSet, fs};

use cistern_crds::names::DRIVER;
use cistern_e2e::{
    Cluster,
    process::{dying_with_us, output, tool, workspace},
};
use serde_json::Value;

use crate::PATIENCE;

/// Runs a script with the functions of the harness, in the way `registry` or `offline`.
async fn shell(way: &str, script: &str) -> String {
    let sources = "set -euo pipefail
source \"$0/lib/common.sh\"
for file in packages programs way configuration snapshots; do source \"$harness/lib/$file.sh\"; done
choose_way\n";
    let mut bash = dying_with_us("bash");
    bash.args(["-c", &format!("{sources}{script}")])
        .arg(workspace().join("e2e/cluster"))
        .env("CISTERN_HARNESS", way)
        .env("CISTERN_CLUSTER", "name")
        .env("CISTERN_FEATURE_GATES", "One=true,Other=false");
    output(bash, PATIENCE).await
}

fn parsed(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

/// The values of a field in all patches of a kind of kubeadm's configuration.
fn patched(configuration: &Value, kind: &str, field: &str) -> Vec<Value> {
    let patches = configuration["kubeadmConfigPatches"].as_array().unwrap();
    let patches = patches.iter().map(|patch| parsed(patch.as_str().unwrap()));
    let of_kind = patches.filter(|patch| patch["kind"] == kind);
    of_kind
        .filter_map(|patch| patch.get(field).cloned())
        .collect()
}

#[tokio::test]
async fn the_configuration_of_a_cluster_has_documented_fields_only_and_no_node_image() {
    for way in ["registry", "offline"] {
        let configuration = parsed(&shell(way, "configuration").await);
        let fields: BTreeSet<&str> = configuration
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let documented = [
            "apiVersion",
            "featureGates",
            "kind",
            "kubeadmConfigPatches",
            "name",
            "nodes",
        ];
        assert_eq!(fields, documented.into());
        assert_eq!(configuration["apiVersion"], "kind.x-k8s.io/v1alpha4");
        assert_eq!(configuration["name"], "name");
        assert_eq!(configuration["featureGates"]["One"], true);
        assert_eq!(configuration["featureGates"]["Other"], false);
        let nodes = configuration["nodes"].as_array().unwrap().iter();
        let nodes: Vec<String> = nodes.map(ToString::to_string).collect();
        let (control_plane, worker) = (r#"{"role":"control-plane"}"#, r#"{"role":"worker"}"#);
        assert_eq!(nodes, [control_plane, worker, worker, worker]);
        let pods = patched(&configuration, "KubeletConfiguration", "maxPods");
        assert_eq!(pods, [250]);
        let dns = patched(&configuration, "ClusterConfiguration", "dns");
        assert_eq!(dns.is_empty(), way == "registry", "{dns:?}");
    }
}

#[tokio::test]
async fn the_default_way_needs_kind_and_kubectl_and_the_offline_way_much_more() {
    let needs = "prepare_nodes() { :; }; prepare_nodes
        echo $(packages_of cluster) $(programs_of cluster) $(programs_of_suite) ${kind_arguments[*]}";
    assert_eq!(shell("registry", needs).await.trim(), "kind kubectl");
    let offline = shell("offline", needs).await;
    for needed in ["docker.io", "kind kubectl", "kubelet", "csi-provisioner"] {
        assert!(offline.contains(needed), "{needed} is missing: {offline}");
    }
}

#[tokio::test]
async fn both_ways_define_every_name_that_the_scripts_use() {
    let names =
        "use_engine start_engine may_have_clusters leave_engine packages_of_nodes programs_of_nodes
        programs_of_suite prepare_nodes prepare_suite prepare_postgresql cluster_patch complete_cluster";
    let check = format!(
        "for name in {}; do declare -F $name || fail $name; done; echo ${{#kind_arguments[@]}} $images_archive",
        names.split_whitespace().collect::<Vec<_>>().join(" ")
    );
    for way in ["registry", "offline"] {
        shell(way, &check).await;
    }
}

/// kind contains the name of the node image that it uses unless it is given another one.
#[tokio::test]
async fn the_node_image_of_the_default_way_is_official_and_pinned_by_its_digest() {
    let kind = fs::read(tool("kind").await).unwrap();
    let kind = String::from_utf8_lossy(&kind);
    let images: BTreeSet<&str> = kind
        .match_indices("kindest/node:v")
        .filter_map(|(at, _)| kind.get(at..)?.split_once("@sha256:"))
        .filter(|(name, digest)| {
            let digest = digest.get(..64).unwrap_or_default();
            name.len() < 30 && digest.chars().all(|c| c.is_ascii_hexdigit())
        })
        .map(|(name, _)| name)
        .collect();
    eprintln!("kind's node image: {images:?}");
    assert_eq!(images.len(), 1, "{images:?}");
    let ours = shell("registry", "name_of_image kube-apiserver").await;
    // kubectl, which has the version of go/kubernetes, may differ by one.
    let minor = |name: &str| name.trim().split('.').nth_back(1).unwrap().parse::<u32>();
    let (theirs, ours) = (minor(images.first().unwrap()), minor(&ours));
    assert!(theirs.unwrap().abs_diff(ours.unwrap()) <= 1);
}

#[tokio::test]
async fn the_manifests_name_the_sidecars_in_the_versions_that_the_harness_builds() {
    let mut kustomize = dying_with_us(tool("kubectl").await);
    kustomize.arg("kustomize").arg(Cluster::manifests());
    let manifests = output(kustomize, PATIENCE).await;
    assert!(manifests.contains(DRIVER));
    let named: BTreeSet<&str> = manifests
        .lines()
        .filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("image: "))
        .filter(|image| !image.starts_with("cistern.invalid/"))
        .collect();
    let sidecars =
        "for name in csi-provisioner csi-resizer csi-snapshotter; do name_of_image $name; done";
    let built = shell("registry", sidecars).await;
    assert_eq!(named, built.lines().collect());
}
