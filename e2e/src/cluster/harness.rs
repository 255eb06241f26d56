//! What happens to nodes in real life, done by the harness that made the cluster.

use std::{path::Path, time::Duration};

use cistern_crds::names::DRIVER;
use tonic::transport::{Channel, Endpoint};

use super::{skipped, variable};
use crate::process::{command, output, workspace};

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
        let process = self.node(&["process", node]).await;
        let root = format!("/proc/{}/root", process.trim());
        let socket = format!("unix://{root}/var/lib/kubelet/plugins/{DRIVER}/csi.sock");
        let endpoint = Endpoint::from_shared(socket).expect("a path makes a URL");
        endpoint.connect().await.map_err(|error| error.to_string())
    }

    async fn node(self, arguments: &[&str]) -> String {
        let mut node = command(workspace().join("e2e/cluster/node"));
        node.args(arguments);
        output(node, Duration::from_mins(5)).await
    }
}
