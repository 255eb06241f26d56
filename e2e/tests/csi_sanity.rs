//! csi-sanity, the conformance tests of the CSI community, against the real controller and node
//! processes.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{collections::BTreeSet, fs, time::Duration};

use cistern_crds::Bytes;
use cistern_e2e::{
    ControlPlane, Driver,
    process::{run, tool},
};
use serde_json::Value;

/// What csi-sanity skips, by the beginning of the specs' names, and why that is right.
const SKIPPED: &[(&str, &str)] = &[
    (
        "ControllerGetVolumeHealth",
        "not announced: GET_VOLUME_HEALTH",
    ),
    (
        "ControllerListVolumeHealth",
        "not announced: LIST_VOLUME_HEALTH",
    ),
    (
        "Controller Service [Controller Server] ControllerPublishVolume",
        NOT_ATTACHED,
    ),
    (
        "Controller Service [Controller Server] ControllerUnpublishVolume",
        NOT_ATTACHED,
    ),
    (
        "Controller Service [Controller Server] volume lifecycle",
        NOT_ATTACHED,
    ),
    (
        "Controller Service [Controller Server] CreateVolume should create volume from an existing source snapshot",
        SNAPSHOTS,
    ),
    (
        "Controller Service [Controller Server] CreateVolume should fail when the volume source snapshot is not found",
        SNAPSHOTS,
    ),
    (
        "Controller Service [Controller Server] CreateVolume should create volume from an existing source volume",
        CLONES,
    ),
    (
        "Controller Service [Controller Server] CreateVolume should fail when the volume source volume is not found",
        CLONES,
    ),
    (
        "Controller Service [Controller Server] CreateVolume should create volume with a volume attribute class",
        MODIFY,
    ),
    (
        "Controller Service [Controller Server] CreateVolume should not create volume with an invalid volume attribute class",
        MODIFY,
    ),
    ("CreateSnapshot", SNAPSHOTS),
    ("DeleteSnapshot", SNAPSHOTS),
    (
        "ExpandVolume",
        "not announced: EXPAND_VOLUME of the controller",
    ),
    ("GetSnapshot", SNAPSHOTS),
    (
        "GroupController Service",
        "not announced: GROUP_CONTROLLER_SERVICE",
    ),
    ("ListSnapshots", SNAPSHOTS),
    ("ModifyVolume", MODIFY),
    (
        "Node Service NodeExpandVolume",
        "not announced: EXPAND_VOLUME of the node",
    ),
    (
        "Node Service NodeGetStorageHealth",
        "not announced: GET_STORAGE_HEALTH",
    ),
    (
        "Node Service NodeGetVolumeHealth",
        "not announced: GET_VOLUME_HEALTH of the node",
    ),
];
const CLONES: &str = "not announced: CLONE_VOLUME";
const MODIFY: &str = "not announced: MODIFY_VOLUME";
const NOT_ATTACHED: &str = "nothing is attached: volumes are on their nodes";
const SNAPSHOTS: &str = "not announced: CREATE_DELETE_SNAPSHOT, LIST_SNAPSHOTS, GET_SNAPSHOT";

/// All specs of csi-sanity 5.6.0; one of them is switched off in csi-sanity itself.
const SPECS: usize = 103;

#[tokio::test]
async fn every_spec_for_what_is_announced_passes_with_thin_volumes() {
    check("thin", "ext4").await;
}

#[tokio::test]
async fn every_spec_for_what_is_announced_passes_with_thick_volumes_of_xfs() {
    check("thick", "xfs").await;
}

async fn check(provisioning: &str, filesystem: &str) {
    let pool = format!("sanity-{provisioning}");
    // Of its own: csi-sanity counts all volumes that there are.
    let control_plane = ControlPlane::start().await;
    let driver = Driver::start(&control_plane, &format!("node-{pool}")).await;
    driver.add_image_pool(&pool, Bytes::gib(4)).await;

    let specs = run_csi_sanity(&driver, &pool, provisioning, filesystem).await;

    assert_eq!(specs.len(), SPECS, "csi-sanity has another set of specs");
    let failed: Vec<&Spec> = specs
        .iter()
        .filter(|spec| !["passed", "skipped", "pending"].contains(&spec.state.as_str()))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let mut unused: BTreeSet<&str> = SKIPPED.iter().map(|(beginning, _)| *beginning).collect();
    for spec in specs.iter().filter(|spec| spec.state == "skipped") {
        let entry = SKIPPED
            .iter()
            .find(|(beginning, _)| spec.name.starts_with(beginning));
        let (beginning, _) = entry.unwrap_or_else(|| panic!("no reason is known to skip {spec:?}"));
        unused.remove(beginning);
    }
    assert_eq!(unused, BTreeSet::new(), "these are not skipped any more");
    driver.finish().await;
}

#[derive(Debug)]
struct Spec {
    name: String,
    state: String,
    #[expect(dead_code, reason = "printed when it fails")]
    message: String,
}

async fn run_csi_sanity(
    driver: &Driver,
    pool: &str,
    provisioning: &str,
    filesystem: &str,
) -> Vec<Spec> {
    let folder = driver.kubelet_root();
    let (report, parameters) = (folder.join("report.json"), folder.join("parameters.yaml"));
    let content = format!(
        "pool: {pool}\nprovisioning: {provisioning}\ncsi.storage.k8s.io/fstype: {filesystem}\n"
    );
    fs::write(&parameters, content).unwrap();
    let mut command = driver.command_on_node(tool("csi-sanity").await);
    let unix = |path: &std::path::Path| format!("unix://{}", path.display());
    for (flag, value) in [
        ("csi.endpoint", unix(driver.node().socket())),
        ("csi.controllerendpoint", unix(driver.controller().socket())),
        ("csi.mountdir", folder.join("target").display().to_string()),
        (
            "csi.stagingdir",
            folder.join("staging").display().to_string(),
        ),
        ("csi.testvolumeparameters", parameters.display().to_string()),
        // The smallest that every filesystem can be made in.
        ("csi.testvolumesize", (300_u64 << 20).to_string()),
        ("ginkgo.json-report", report.display().to_string()),
        ("ginkgo.no-color", "true".to_owned()),
    ] {
        command.arg(format!("--{flag}={value}"));
    }
    let output = run(command, Duration::from_mins(5)).await;
    eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    let report = fs::read(&report).expect("csi-sanity has written its report");
    let report: Value = serde_json::from_slice(&report).unwrap();
    let specs = report[0]["SpecReports"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    specs
        .iter()
        .filter(|spec| spec["LeafNodeType"] == "It")
        .map(|spec| {
            let containers = spec["ContainerHierarchyTexts"].as_array();
            let mut words: Vec<String> = containers.into_iter().flatten().map(text).collect();
            words.push(text(&spec["LeafNodeText"]));
            Spec {
                name: words.join(" "),
                state: text(&spec["State"]),
                message: text(&spec["Failure"]["Message"]),
            }
        })
        .collect()
}
