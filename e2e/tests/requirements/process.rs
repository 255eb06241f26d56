//! PRT, ENV, LIF, LOG: the processes and their configuration.

use std::{fs, net::SocketAddr, time::Duration};

use cistern_e2e::{
    ControlPlane, Folder, Process,
    control_plane::free_addresses,
    eventually,
    process::{binary, dying_with_us, run},
    service::{Service, socket},
};
use cistern_proto::csi::v1::{
    GetCapacityRequest, ListVolumesRequest, ProbeRequest, controller_client::ControllerClient,
    identity_client::IdentityClient,
};
use rustix::process::Signal;
use tonic::{Code, transport::Endpoint};

use crate::{code, create_request, shared};

// Shows: ENV-01, FLD-03, LIF-02, PRT-03, PRT-04.
#[tokio::test]
async fn lif_06_a_wrong_configuration_ends_the_process_with_an_error_that_explains_it() {
    let long = format!("--node-name={}", "n".repeat(257));
    let rows: &[(&str, &[&str], &str)] = &[
        ("ENV-01", &["controller"], "--endpoint"),
        ("ENV-01", &["controller", "--endpoint="], "unix:///"),
        (
            "PRT-03",
            &["controller", "--endpoint=tcp://127.0.0.1:1"],
            "unix:///",
        ),
        (
            "PRT-03",
            &["controller", "--endpoint=unix://csi.sock"],
            "absolute",
        ),
        (
            "PRT-04",
            &["controller", "--endpoint=unix:///tmp/csi"],
            ".sock",
        ),
        (
            "FLD-03",
            &["node", "--endpoint=unix:///tmp/csi.sock", &long],
            "1 to 256 bytes",
        ),
        ("LIF-02", &[], "controller"),
        (
            "LIF-06",
            &[
                "controller",
                "--endpoint=unix:///tmp/x.sock",
                "--http=nowhere",
            ],
            "--http",
        ),
        (
            "LIF-06",
            &["controller", "--endpoint=unix:///no/such/folder/x.sock"],
            "/no/such/folder",
        ),
    ];
    for (ids, arguments, expected) in rows {
        let mut command = dying_with_us(binary("cistern-driver"));
        command
            .args(*arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        command.env("KUBECONFIG", ControlPlane::shared().await.kubeconfig());
        let output = run(command, Duration::from_mins(2)).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{ids}");
        assert!(stderr.contains(expected), "{ids}: {stderr}");
    }
}

// Shows: GEN-09, PRB-04, PRB-06, LV-01, K8S-05.
#[tokio::test]
async fn gc_09_without_the_api_server_a_controller_is_not_ready_and_its_calls_are_unavailable() {
    let folder = Folder::new();
    let [http, unused] = free_addresses();
    let kubeconfig = folder.join("kubeconfig");
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": format!("http://{unused}")}}],
        "users": [{"name": "x", "user": {}}],
    });
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let mut command = dying_with_us(binary("cistern-driver"));
    let endpoint = format!("unix://{}", folder.join("csi.sock").display());
    command
        .args([
            "controller",
            &format!("--endpoint={endpoint}"),
            &format!("--http={http}"),
        ])
        .env("KUBECONFIG", &kubeconfig);
    let _process = Process::start("controller", &folder.join("log"), command);
    let channel = eventually("the socket", Duration::from_mins(2), async || {
        let endpoint = Endpoint::from_shared(endpoint.clone()).unwrap();
        endpoint.connect().await.map_err(|error| error.to_string())
    })
    .await;
    let mut identity = IdentityClient::new(channel.clone());
    let answer = identity.probe(ProbeRequest {}).await.unwrap();
    assert_eq!(answer.into_inner().ready, Some(false));
    let mut controller = ControllerClient::new(channel);
    let codes = [
        code(&controller.get_capacity(GetCapacityRequest::default()).await),
        code(&controller.list_volumes(ListVolumesRequest::default()).await),
        code(&controller.create_volume(create_request("too-early")).await),
    ];
    assert_eq!(codes, [Code::Unavailable; 3]);
}

// Shows: PRT-02.
#[tokio::test]
async fn env_03_the_endpoint_and_the_api_server_are_a_sufficient_environment() {
    let folder = Folder::new();
    let [http] = free_addresses();
    let mut command = dying_with_us(binary("cistern-driver"));
    let socket = folder.join("controller.sock");
    command
        .arg("controller")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("CSI_ENDPOINT", format!("unix://{}", socket.display()))
        .env("HTTP_ADDRESS", http.to_string())
        .env("KUBECONFIG", ControlPlane::shared().await.kubeconfig());
    let mut service = Service::start("controller", folder.path(), http, command).await;
    let mut identity = IdentityClient::new(service.channel().await);
    identity.probe(ProbeRequest {}).await.unwrap();
    service.stop().await;
}

#[tokio::test]
async fn prt_07_a_process_that_hangs_loses_its_socket_and_one_that_answers_keeps_it() {
    let folder = Folder::new();
    let [first, second, third] = free_addresses();
    let kubeconfig = ControlPlane::shared().await.kubeconfig();
    let command = |http: SocketAddr| {
        let mut command = dying_with_us(binary("cistern-driver"));
        let socket = socket(folder.path(), "controller");
        command
            .arg("controller")
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!("--http={http}"))
            .env("KUBECONFIG", kubeconfig);
        command
    };
    let mut hung = Service::start("controller", folder.path(), first, command(first)).await;
    let refused = run(command(third), Duration::from_mins(2)).await;
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("another process serves on"), "{stderr}");

    // Like a process that waits for a disk: it has its socket, even after SIGKILL, and does nothing.
    hung.process().signal(Signal::STOP);
    let mut next = Service::start("controller", folder.path(), second, command(second)).await;
    hung.process().signal(Signal::CONT);
    hung.stop().await;
    // The end of the first process does not affect the second.
    let mut identity = IdentityClient::new(next.channel().await);
    let answer = identity.probe(ProbeRequest {}).await.unwrap();
    assert_eq!(answer.into_inner().ready, Some(true));
    next.stop().await;
}

#[tokio::test]
async fn log_02_no_process_writes_a_file_other_than_its_output() {
    let driver = shared().await;
    for service in [driver.controller(), driver.node()] {
        let process = format!("/proc/{}", service.process().id());
        let program = fs::read_link(format!("{process}/exe")).unwrap();
        assert!(program.ends_with("cistern-driver"), "{}", program.display());
        let output = fs::read_link(format!("{process}/fd/1")).unwrap();
        for entry in fs::read_dir(format!("{process}/fd")).unwrap() {
            let path = entry.unwrap().path();
            // A file that was just closed is no log.
            let Ok(target) = fs::read_link(&path) else {
                continue;
            };
            let Ok(info) = fs::read_to_string(format!(
                "{process}/fdinfo/{}",
                path.file_name().unwrap().to_str().unwrap()
            )) else {
                continue;
            };
            let flags = info
                .lines()
                .find_map(|line| line.strip_prefix("flags:"))
                .unwrap();
            let writable = u32::from_str_radix(flags.trim(), 8).unwrap() & 3 != 0;
            if writable && target.is_file() {
                assert_eq!(target, output);
            }
        }
    }
}
