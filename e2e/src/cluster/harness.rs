//! Reboots, stops and accesses nodes through the harness that created the cluster.

use std::{
    ffi::OsStr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_crds::names::DRIVER;
use kube::ResourceExt as _;
use tonic::transport::{Channel, Endpoint};

use super::{Cluster, skipped, variable};
use crate::{
    Folder, Frozen,
    process::{command, output, workspace},
};

/// The time limit for what the harness does with a node. A busy machine needs minutes until a started node is Ready.
const DEADLINE: Duration = Duration::from_mins(10);
/// The time limit for thawing, in seconds.
const THAW: &str = "600";

/// The harness' own cluster.
#[derive(Clone, Copy, Debug)]
pub struct Harness(());

impl Harness {
    /// Returns whether the harness created the cluster.
    pub fn is_there() -> bool {
        variable("CISTERN_HARNESS_CLUSTER").is_some()
    }

    /// Returns the harness. On any other cluster, prints that `what` is skipped.
    pub fn or_skip(what: &str) -> Option<Self> {
        if Self::is_there() {
            return Some(Self(()));
        }
        skipped(what, "the cluster is not the harness' own");
        None
    }

    /// Ends all processes of the node and starts it again; waits until it is Ready.
    pub async fn reboot(self, node: &str) {
        self.node(&["reboot", node]).await;
    }

    /// Shuts down the node.
    pub(super) async fn stop(self, node: &str) {
        self.node(&["stop", node]).await;
    }

    /// Starts a stopped node; waits until it is Ready.
    pub(super) async fn start(self, node: &str) {
        self.node(&["start", node]).await;
    }

    /// Restarts kubelet; waits until the node is Ready.
    pub async fn restart_kubelet(self, node: &str) {
        self.node(&["restart-kubelet", node]).await;
    }

    /// Runs a shell script on the node and returns its output.
    pub async fn shell(self, node: &str, script: &str) -> String {
        self.node(&["exec", node, "sh", "-euc", script]).await
    }

    /// Runs the shell script `freeze` on the node, and the script `thaw` once the guard is dropped.
    pub async fn freeze(self, node: &str, freeze: &str, thaw: &str) -> Frozen {
        let mut thawing = command("timeout");
        thawing
            .args([OsStr::new(THAW), script().as_os_str()])
            .args(["exec", node, "sh", "-euc", thaw]);
        let frozen = Frozen::until_dropped(thawing);
        self.shell(node, freeze).await;
        frozen
    }

    /// Copies a program to the node.
    pub async fn copy(self, node: &str, program: &Path, to: &str) {
        let program = program.to_str().expect("our own paths are text");
        self.node(&["copy", node, program, to]).await;
    }

    /// Connects to the driver's socket on the node, at kubelet's path.
    pub async fn csi(self, node: &str) -> Result<Channel, String> {
        self.csi_in(node, &format!("plugins/{DRIVER}")).await
    }

    /// Connects to the socket of a controller, as the sidecars in its pod do.
    pub async fn csi_of_controller(self, cluster: &Cluster) -> Result<Channel, String> {
        let pods = cluster.component("controller").await;
        let (node, pod) = pods.iter().next().ok_or("no controller is on any node")?;
        let uid = pod.uid().expect("it has been made");
        let folder = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/socket");
        self.csi_in(node, &folder).await
    }

    /// Connects to the socket in a folder of kubelet.
    async fn csi_in(self, node: &str, folder: &str) -> Result<Channel, String> {
        let process = self.node(&["process", node]).await;
        let folder = format!("/proc/{}/root/var/lib/kubelet/{folder}", process.trim());
        // A socket path has at most 107 bytes.
        let short = Folder::new();
        let link = short.join("csi");
        symlink(folder, &link).expect("the folder is ours");
        let socket = format!("unix://{}/csi.sock", link.display());
        let endpoint = Endpoint::from_shared(socket).expect("a path makes a URL");
        endpoint.connect().await.map_err(|error| error.to_string())
    }

    async fn node(self, arguments: &[&str]) -> String {
        let mut node = command(script());
        node.args(arguments);
        output(node, DEADLINE).await
    }
}

/// The script of the harness that does something with a node.
fn script() -> PathBuf {
    workspace().join("e2e/cluster/node")
}
