//! The documentation that the specification requires, and the packaging of the processes.

use crate::services;

const CSI: &str = include_str!("../../../docs/csi.md");

#[tokio::test]
async fn cgc_04_the_documentation_names_exactly_the_announced_capabilities_and_has_all_sections() {
    for heading in [
        "## Topology",
        "## Probe",
        "## Secrets",
        "## Logs",
        "## Environment",
    ] {
        assert!(CSI.contains(heading), "{heading}");
    }
    let mut documented: Vec<&str> = CSI
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(capability, _)| capability)
        .collect();
    documented.sort_unstable();
    let announced = services::announced().await;
    assert_eq!(
        documented,
        announced.iter().map(String::as_str).collect::<Vec<_>>()
    );
}

#[test]
fn the_manifests_run_the_node_plugin_from_an_image_on_every_node() {
    let node = include_str!("../../../manifests/base/node.yaml");
    assert!(node.contains("kind: DaemonSet") && node.contains("operator: Exists"));
    let image = include_str!("../../../Dockerfile");
    assert!(image.contains(" AS driver\n") && image.contains("ENTRYPOINT"));
}

#[test]
fn prt_08_gen_11_the_protocol_is_proto3_of_package_csi_v1() {
    let protocol = include_str!("../../../proto/csi.proto");
    assert!(protocol.contains("syntax = \"proto3\";") && protocol.contains("package csi.v1;"));
}
