//! An API server with Cistern's manifests, and the operator's process with the permissions from them.

use std::{path::PathBuf, process::Command, time::Duration};

use cistern_e2e::{
    ControlPlane, Folder, Plugin,
    control_plane::free_addresses,
    plugin::end,
    process::{binary, command, dying_with_us, output, tool, workspace},
    service::Service,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::objects::Objects;

/// The operator's namespace.
pub(crate) const SYSTEM: &str = "cistern-system";
/// The namespace of claims.
pub(crate) const DEFAULT: &str = "default";
/// Timeout of each step.
pub(crate) const SOON: Duration = Duration::from_mins(2);

/// The API server and the operator.
pub(crate) struct Cluster {
    pub(crate) operator: Service,
    pub(crate) control_plane: ControlPlane,
    kubeconfig: PathBuf,
    http: std::net::SocketAddr,
    // Dropped, and so removed, after the processes that write into it.
    folder: Folder,
}

impl Cluster {
    /// Returns the cluster that most tests share. Each test uses object names of its own.
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    /// Starts a new cluster.
    pub(crate) async fn start() -> Self {
        Self::start_on(ControlPlane::start().await).await
    }

    /// Installs the manifests on this control plane, and starts the operator.
    pub(crate) async fn start_on(control_plane: ControlPlane) -> Self {
        let mut apply = command(tool("kubectl").await);
        apply
            .arg("--kubeconfig")
            .arg(control_plane.kubeconfig())
            .args(["apply", "-k"])
            .arg(workspace().join("manifests"));
        output(apply, Duration::from_mins(5)).await;
        let folder = Folder::new();
        let kubeconfig = operators_kubeconfig(&control_plane, &folder).await;
        let [http] = free_addresses();
        let command = operator_command(&kubeconfig, http, "the-operator");
        let operator = Service::start("operator", folder.path(), http, command).await;
        Self {
            operator,
            control_plane,
            kubeconfig,
            http,
            folder,
        }
    }

    /// Returns the command that restarts the operator.
    pub(crate) fn operator_command(&self) -> Command {
        operator_command(&self.kubeconfig, self.http, "the-operator")
    }

    /// Starts another replica of the operator with this pod name.
    pub(crate) async fn another_operator(&self, pod: &str) -> Service {
        let [http] = free_addresses();
        let command = operator_command(&self.kubeconfig, http, pod);
        Service::start(pod, self.folder.path(), http, command).await
    }

    /// Returns access to all objects with an administrator's permissions.
    pub(crate) fn api(&self) -> Objects {
        Objects {
            client: self.control_plane.client(),
        }
    }
}

/// Writes a kubeconfig with a token of the operator's service account.
async fn operators_kubeconfig(control_plane: &ControlPlane, folder: &Folder) -> PathBuf {
    let path = "/api/v1/namespaces/cistern-system/serviceaccounts/cistern-operator/token";
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(b"{}".to_vec())
        .unwrap();
    let answer: Value = control_plane.client().request(request).await.unwrap();
    let text = std::fs::read_to_string(control_plane.kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"] = json!({"token": answer["status"]["token"]});
    let kubeconfig = folder.join("operator.kubeconfig");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    kubeconfig
}

/// Returns the command that starts the operator as its Deployment does, with this pod name.
pub(crate) fn operator_command(
    kubeconfig: &std::path::Path,
    http: std::net::SocketAddr,
    pod: &str,
) -> Command {
    let mut command = dying_with_us(binary("cistern-operator"));
    command
        .env("KUBECONFIG", kubeconfig)
        .env("NAMESPACE", SYSTEM)
        .env("POD_NAME", pod)
        .env("HTTP_ADDRESS", http.to_string())
        // Short, so that a test can wait until an object that must not be reported would have been.
        .env("UNCLAIMED_AFTER_SECONDS", "3")
        .env("LOG_LEVEL", "info,cistern_operator=debug");
    command
}

/// Runs `kubectl cistern` with an answer to its prompt. Returns exit code and output.
pub(crate) async fn plugin(cluster: &Cluster, words: &[&str], answer: &str) -> (i32, String) {
    let plugin = Plugin::of(&cluster.control_plane);
    let ended = end(plugin.start(words, answer)).await;
    (ended.code, ended.stdout + ended.stderr.as_str())
}
