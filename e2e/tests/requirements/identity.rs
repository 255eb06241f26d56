//! GPI, GPC, PRB: the Identity service, at both sockets.

use std::path::{Path, PathBuf};

use cistern_e2e::{Driver, process::output};
use cistern_proto::csi::v1::{GetPluginInfoRequest, GetPluginInfoResponse, ProbeRequest};
use futures::future::try_join_all;
use tonic::Code;

use crate::{shared, start};

async fn infos(driver: &Driver) -> Vec<GetPluginInfoResponse> {
    let mut infos = Vec::new();
    for mut client in driver.identity_clients().await {
        let answer = client.get_plugin_info(GetPluginInfoRequest {}).await;
        infos.push(answer.unwrap().into_inner());
    }
    infos
}

// Shows: GPI-02, GPI-03, GPI-04, GPI-07, GPI-08, FLD-06, K8S-07.
#[tokio::test]
async fn gpi_01_gpi_06_both_processes_have_one_legal_name_and_version_also_after_a_restart() {
    let mut driver = start("node-of-names", "names").await;
    let before = infos(&driver).await;
    assert_eq!(before[0], before[1]);
    let GetPluginInfoResponse {
        name,
        vendor_version,
        manifest,
    } = &before[0];
    assert_eq!(name, "csi.cistern.storage");
    assert!(!vendor_version.is_empty() && vendor_version.len() <= 128);
    assert!(
        manifest
            .iter()
            .map(|(k, v)| k.len() + v.len())
            .sum::<usize>()
            <= 4096
    );
    driver.restart_node().await;
    driver.restart_controller().await;
    assert_eq!(infos(&driver).await, before);
    driver.finish().await;
}

// Shows: PRB-01, PRB-05, LIF-01, SAN-02.
// Shows: PRB-08: docs/csi.md says that Probe may be called as often as a caller likes.
#[tokio::test]
async fn prb_07_a_thousand_probes_are_answered_by_the_same_process_and_change_nothing() {
    let driver = shared().await;
    let processes = [driver.controller(), driver.node()].map(|s| s.process().id());
    for client in driver.identity_clients().await {
        let probes = (0..1000).map(|_| {
            let mut client = client.clone();
            async move { client.probe(ProbeRequest {}).await }
        });
        for answer in try_join_all(probes).await.unwrap() {
            assert_eq!(answer.into_inner().ready, Some(true));
        }
    }
    let now = [driver.controller(), driver.node()].map(|s| s.process().id());
    assert_eq!(processes, now);
}

// Shows: PRB-03.
#[tokio::test]
async fn prb_02_a_node_without_a_required_tool_is_unhealthy_until_the_tool_is_back() {
    let driver = start("node-of-tools", "tools").await;
    let [_, mut identity] = driver.identity_clients().await;
    let folders = ["/usr/sbin", "/sbin", "/usr/bin"].map(Path::new);
    let mut tools = folders.iter().map(|folder| folder.join("mkfs.xfs"));
    let tool = tools.find(|tool| tool.exists()).unwrap();
    let tool = tool.canonicalize().unwrap();
    mount(&driver, "mount", &["--bind", "/dev/null"], &tool).await;
    let status = identity.probe(ProbeRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("mkfs.xfs"), "{status}");
    mount(&driver, "umount", &[], &tool).await;
    identity.probe(ProbeRequest {}).await.unwrap();
    driver.finish().await;
}

async fn mount(driver: &Driver, program: &str, arguments: &[&str], target: &PathBuf) {
    let mut command = driver.command_on_node(program);
    command.args(arguments).arg(target);
    output(command, std::time::Duration::from_mins(2)).await;
}
