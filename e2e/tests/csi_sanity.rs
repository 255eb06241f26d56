//! csi-sanity, the conformance tests of the CSI community, against the real controller and node
//! processes.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::{fs, time::Duration};

use cistern_crds::Bytes;
use cistern_e2e::{
    ControlPlane, Driver,
    process::{run, tool},
};
use serde_json::Value;

/// What csi-sanity skips, by the beginning of the specs' names, and why that is right. `docs/csi.md`
/// has it, too.
const SKIPPED: &[(&str, &str)] = &[
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
        "CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements",
        FAULTY,
    ),
];
/// Go's reflection tells two equal messages apart once one of them was sent.
const FAULTY: &str = "a fault of csi-sanity: it fails for every driver that reports the topology of a snapshot; Cistern's own tests cover it";
const NOT_ATTACHED: &str = "nothing is attached: volumes are on their nodes";

/// All specs of csi-sanity 5.6.0; one of them is switched off in csi-sanity itself.
const SPECS: usize = 103;

#[tokio::test]
async fn every_spec_for_what_is_announced_passes_with_thin_volumes() {
    check("thin", "thin", "ext4").await;
}

#[tokio::test]
async fn every_spec_for_what_is_announced_passes_with_thick_volumes_of_xfs() {
    check("thick", "thick", "xfs").await;
}

#[tokio::test]
async fn every_spec_for_what_is_announced_passes_with_volumes_of_btrfs() {
    check("btrfs", "thin", "btrfs").await;
}

#[tokio::test]
async fn every_spec_for_what_is_announced_passes_with_raw_block_volumes() {
    check("block", "thin", "").await;
}

/// Runs all specs with volumes of a kind: a filesystem, or none for devices.
async fn check(name: &str, provisioning: &str, filesystem: &str) {
    let pool = format!("sanity-{name}");
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
    assert_eq!(table_of_skipped(&specs), documented());
    driver.finish().await;
}

/// A row for each entry of [`SKIPPED`]: how the names of the specs begin, how many they are, and why.
fn table_of_skipped(specs: &[Spec]) -> Vec<String> {
    let mut counts = vec![0; SKIPPED.len()];
    for spec in specs.iter().filter(|spec| spec.state == "skipped") {
        let mut entries = SKIPPED.iter();
        let entry = entries.position(|(beginning, _)| spec.name.starts_with(beginning));
        counts[entry.unwrap_or_else(|| panic!("no reason is known to skip {spec:?}"))] += 1;
    }
    let rows = SKIPPED.iter().zip(counts);
    rows.map(|((beginning, reason), count)| {
        assert_ne!(count, 0, "{beginning} is not skipped any more");
        let beginning = beginning.trim_start_matches("Controller Service ");
        let beginning = beginning.replace("[Controller Server] ", "");
        format!("| {beginning} | {count} | {reason} |")
    })
    .collect()
}

/// The names of the specs that no driver of our kind could pass, for ginkgo to leave out.
fn faulty() -> String {
    let faulty = SKIPPED.iter().filter(|(_, reason)| *reason == FAULTY);
    let names: Vec<String> = faulty
        .map(|(name, _)| name.replace('[', "\\[").replace(']', "\\]"))
        .collect();
    names.join("|")
}

/// The rows of the table of what is skipped.
fn documented() -> Vec<String> {
    let page = include_str!("../../docs/csi.md");
    let (_, section) = page.split_once("\n## csi-sanity\n").unwrap();
    let lines = section.lines().take_while(|line| !line.starts_with("## "));
    let rows = lines.filter(|line| line.starts_with("| "));
    // The first is the heading.
    rows.skip(1).map(str::to_owned).collect()
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
    let mutable = folder.join("mutable-parameters.yaml");
    fs::write(&mutable, format!("provisioning: {provisioning}\n")).unwrap();
    let content = format!(
        "pool: {pool}\nprovisioning: {provisioning}\ncsi.storage.k8s.io/fstype: {filesystem}\n"
    );
    fs::write(&parameters, content).unwrap();
    let access_type = if filesystem.is_empty() {
        "block"
    } else {
        "mount"
    };
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
        (
            "csi.testvolumemutableparameters",
            mutable.display().to_string(),
        ),
        // The smallest that every filesystem can be made in.
        ("csi.testvolumesize", (300_u64 << 20).to_string()),
        ("csi.testvolumeaccesstype", access_type.to_owned()),
        ("ginkgo.skip", faulty()),
        ("ginkgo.json-report", report.display().to_string()),
        ("ginkgo.no-color", "true".to_owned()),
    ] {
        command.arg(format!("--{flag}={value}"));
    }
    let output = run(command, Duration::from_mins(20)).await;
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
