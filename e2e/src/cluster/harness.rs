//! What happens to nodes in real life, done by the harness that made the cluster.

use std::{os::unix::fs::symlink, path::Path, time::Duration};

use cistern_crds::names::DRIVER;
use kube::ResourceExt as _;
use tonic::transport::{Channel, Endpoint};

use super::{Cluster, skipped, variable};
use crate::{
    Folder,
    process::{command, output, workspace},
};

/// The harness' own cluster.
#[derive(Clone, Copy, Debug)]
pub struct Harness(());

impl Harness {
    /// Whether the cluster is the harness'.
    pub fn is_there() -> bool {
        variable("CISTERN_HARNESS_CLUSTER").is_some()
    }

    /// The harness, or a loud word about `what` is not tested on somebody else's cluster.
    pub fn or_skip(what: &str) -> Option<Self> {
        if Self::is_there() {
            return Some(Self(()));
        }
        skipped(what, "the cluster is not the harness' own");
        None
    }

    /// Ends everything on the node and starts it again; waits until it is Ready.
    pub async fn reboot(self, node: &str) {
        self.node(&["reboot", node]).await;
    }

    /// Shuts the node down.
    pub async fn stop(self, node: &str) {
        self.node(&["stop", node]).await;
    }

    /// Starts a node that was shut down; waits until it is Ready.
    pub async fn start(self, node: &str) {
        self.node(&["start", node]).await;
    }

    /// Restarts kubelet; waits until the node is Ready.
    pub async fn restart_kubelet(self, node: &str) {
        self.node(&["restart-kubelet", node]).await;
    }

    /// Runs a shell script on the node and gives what it printed.
    pub async fn shell(self, node: &str, script: &str) -> String {
        self.node(&["exec", node, "sh", "-euc", script]).await
    }

    /// Puts a program on the node.
    pub async fn copy(self, node: &str, program: &Path, to: &str) {
        let program = program.to_str().expect("our own paths are text");
        self.node(&["copy", node, program, to]).await;
    }

    /// A connection to the driver's socket on the node, as kubelet has it.
    pub async fn csi(self, node: &str) -> Result<Channel, String> {
        self.csi_in(node, &format!("plugins/{DRIVER}")).await
    }

    /// A connection to the socket of a controller, as the sidecars of its pod have it.
    pub async fn csi_of_controller(self, cluster: &Cluster) -> Result<Channel, String> {
        let pods = cluster.component("controller").await;
        let (node, pod) = pods.iter().next().ok_or("no controller is on any node")?;
        let uid = pod.uid().expect("it has been made");
        let folder = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/socket");
        self.csi_in(node, &folder).await
    }

    /// A connection to the socket in a folder of kubelet's.
    async fn csi_in(self, node: &str, folder: &str) -> Result<Channel, String> {
        let process = self.node(&["process", node]).await;
        let folder = format!("/proc/{}/root/var/lib/kubelet/{folder}", process.trim());
        // The name of a socket has at most 107 bytes.
        let short = Folder::new();
        let link = short.join("csi");
        symlink(folder, &link).expect("the folder is ours");
        let socket = format!("unix://{}/csi.sock", link.display());
        let endpoint = Endpoint::from_shared(socket).expect("a path makes a URL");
        endpoint.connect().await.map_err(|error| error.to_string())
    }

    async fn node(self, arguments: &[&str]) -> String {
        let mut node = command(workspace().join("e2e/cluster/node"));
        node.args(arguments);
        output(node, Duration::from_mins(5)).await
    }
}
