//! The processes of a control plane on this machine.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use serde_json::json;

use super::free_addresses;
use crate::{
    Folder, Process,
    process::{dying_with_us, tool},
};

const TOKEN: &str = "admin-of-the-test";
/// Lets Go programs collect garbage at five times the live heap instead of twice: a small machine has memory to
/// spare, but little CPU time.
const GARBAGE: (&str, &str) = ("GOGC", "400");

#[derive(Debug)]
pub(super) struct Processes {
    pub(super) etcd_address: SocketAddr,
    // Dropped in this order: the folder is removed when no process writes there any more.
    pub(super) apiserver: Process,
    pub(super) etcd: Process,
    pub(super) folder: Folder,
}

impl Processes {
    /// Starts them. The API server is not ready yet.
    pub(super) async fn start(feature_gates: &[&str]) -> Self {
        let (etcd, apiserver) = (tool("etcd").await, tool("kube-apiserver").await);
        let folder = Folder::new();
        let [client, peer, secure] = free_addresses();
        let etcd = etcd_command(etcd, &folder, client, peer);
        let etcd = Process::start("etcd", &folder.join("etcd.log"), etcd);
        let mut apiserver = apiserver_command(apiserver, &folder, client, secure);
        apiserver.args(
            feature_gates
                .iter()
                .map(|gate| format!("--feature-gates={gate}=true")),
        );
        let log = folder.join("kube-apiserver.log");
        let apiserver = Process::start("kube-apiserver", &log, apiserver);
        let this = Self {
            etcd_address: client,
            apiserver,
            etcd,
            folder,
        };
        this.write_kubeconfig(secure);
        this
    }

    /// Returns the path of a kubeconfig with all permissions.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// # Panics
    /// When the API server has ended.
    pub(super) fn check_apiserver(&mut self) {
        if let Some(status) = self.apiserver.exited() {
            panic!("kube-apiserver has ended: {status}");
        }
    }

    fn write_kubeconfig(&self, secure: SocketAddr) {
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://{secure}"),
                "certificate-authority": certificates(&self.folder).join("apiserver.crt"),
            }}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
        });
        std::fs::write(self.kubeconfig(), content.to_string()).expect("the folder is ours");
    }
}

fn certificates(folder: &Folder) -> PathBuf {
    folder.join("certificates")
}

fn etcd_command(etcd: PathBuf, folder: &Folder, client: SocketAddr, peer: SocketAddr) -> Command {
    let url = format!("http://{client}");
    let mut command = dying_with_us(etcd);
    command
        .arg(format!("--data-dir={}", folder.join("etcd").display()))
        .arg(format!("--listen-client-urls={url}"))
        .arg(format!("--advertise-client-urls={url}"))
        .arg(format!("--listen-peer-urls=http://{peer}"))
        .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
        .arg(format!("--initial-cluster=default=http://{peer}"))
        .args(["--unsafe-no-fsync", "--log-level=warn"])
        .env(GARBAGE.0, GARBAGE.1);
    command
}

fn apiserver_command(
    apiserver: PathBuf,
    folder: &Folder,
    etcd: SocketAddr,
    secure: SocketAddr,
) -> Command {
    let tokens = folder.join("tokens.csv");
    std::fs::write(&tokens, format!("{TOKEN},admin,admin,system:masters\n"))
        .expect("the folder is ours");
    // The API server creates its certificates here before it reads the service account key, so its own key also serves
    // as that key.
    let certificates = certificates(folder);
    let own_key = certificates.join("apiserver.key");
    let own_key = own_key.display();
    let mut command = dying_with_us(apiserver);
    command
        .arg(format!("--etcd-servers=http://{etcd}"))
        .arg(format!("--cert-dir={}", certificates.display()))
        .arg(format!("--bind-address={}", secure.ip()))
        .arg(format!("--advertise-address={}", secure.ip()))
        .arg(format!("--secure-port={}", secure.port()))
        .arg(format!("--token-auth-file={}", tokens.display()))
        .arg(format!("--service-account-key-file={own_key}"))
        .arg(format!("--service-account-signing-key-file={own_key}"))
        .args([
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            // No controller creates the service account that this plugin requires for every pod.
            "--disable-admission-plugins=ServiceAccount",
        ])
        .env(GARBAGE.0, GARBAGE.1);
    command
}
