//! A real cluster that runs Cistern.
//!
//! `KUBECONFIG` names the cluster; there is no default. On the harness' own cluster (`CISTERN_HARNESS_CLUSTER`),
//! Cistern is first installed from this checkout, and tests may reboot, stop or restart nodes.
//!
//! *Invariant:* tests run in parallel, except those that disturb other tests, which run alone. Each test removes
//! the objects it creates, or keeps them for inspection when it fails.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, Config, ResourceExt as _, api::ListParams};
use tokio::sync::OnceCell;

use crate::{
    Plugin,
    environment::variable,
    process::{checked, command, run, tool, workspace},
};

pub mod agents;
pub mod calls;
pub mod disk;
pub mod exec;
pub mod failed;
pub mod fsck;
pub mod harness;
pub mod metrics;
pub mod nodes;
pub mod objects;
pub mod snapshots;
pub mod test;

pub use disk::Disk;
pub use harness::Harness;
pub use test::Test;

/// The namespace of Cistern.
pub const NAMESPACE: &str = "cistern-system";
/// The label on every object that a test creates; the value is the test's name.
pub const TEST_LABEL: &str = "e2e.cistern.storage/test";

/// The time limit for the slowest ordinary operations on a busy machine, such as unpacking an image, starting a
/// pod or deleting an object. kubelet alone may wait two minutes before it repeats a failed operation on a volume.
pub const PATIENCE: Duration = Duration::from_mins(5);
/// The time limit for Kubernetes to forget the pods of a deleted Node. Its garbage collector needs up to a minute for that on an
/// idle machine, and other steps of a test wait for it.
pub const PODS_FORGOTTEN: Duration = Duration::from_mins(10);

/// How often kubectl tries to reach the API server.
const CONNECTIONS: u32 = 5;

/// A connection to the cluster. It belongs to the runtime of the test that created it.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Cluster {
    client: Client,
    kubectl: PathBuf,
}

impl Cluster {
    /// Connects. On the harness' cluster, the first test of a run also installs Cistern and removes what earlier
    /// runs have kept.
    ///
    /// # Panics
    /// When `KUBECONFIG` is not set or Cistern is not installed. If the first test cannot install it, the others fail
    /// at once: each would wait as long for the same failure.
    pub async fn connect() -> Self {
        static PREPARED: OnceCell<bool> = OnceCell::const_new();
        assert!(
            variable("KUBECONFIG").is_some(),
            "KUBECONFIG is not set: tests never guess a cluster"
        );
        let config = Config::infer().await.expect("KUBECONFIG can be read");
        let this = Self {
            client: Client::try_from(config).expect("KUBECONFIG makes a client"),
            kubectl: tool("kubectl").await,
        };
        let prepare = || AssertUnwindSafe(this.prepare()).catch_unwind();
        let prepared = PREPARED.get_or_init(|| prepare().map(|ended| ended.is_ok()));
        assert!(
            *prepared.await,
            "the cluster could not be prepared, as the test that failed first says"
        );
        this
    }

    /// Returns the Kubernetes client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs kubectl and returns its output. Runs it again if it did not reach the API server, which may take long to answer on
    /// a machine whose processors are busy: then it has changed nothing.
    pub async fn kubectl<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> String {
        let arguments: Vec<I> = arguments.into_iter().collect();
        let line = format!(
            "kubectl {:?}",
            arguments.iter().map(AsRef::as_ref).collect::<Vec<_>>()
        );
        let mut attempt = 1;
        loop {
            let ended = run(self.kubectl_command(&arguments), 3 * PATIENCE).await;
            let is_unreached = ended.stderr.starts_with(b"Unable to connect to the server");
            if !is_unreached || attempt == CONNECTIONS {
                return checked(&line, &ended);
            }
            attempt += 1;
        }
    }

    /// Returns a kubectl command for this cluster.
    pub fn kubectl_command<I: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = I>,
    ) -> Command {
        let mut command = command(&self.kubectl);
        command.args(arguments);
        command
    }

    /// Returns `kubectl cistern` for this cluster.
    pub fn plugin(&self) -> Plugin {
        let kubeconfig = variable("KUBECONFIG").expect("it was set when the test connected");
        Plugin::with(Path::new(&kubeconfig))
    }

    /// The manifests that are installed in a cluster of the harness.
    pub fn manifests() -> PathBuf {
        workspace().join("manifests/kind-snapshots")
    }

    /// Installs or reinstalls Cistern and waits until all of it runs.
    pub async fn install(&self) {
        self.apply().await;
        self.wait_until_installed().await;
    }

    async fn apply(&self) {
        let manifests = Self::manifests();
        let arguments = ["apply", "--server-side", "--force-conflicts", "--kustomize"];
        self.kubectl(
            arguments
                .iter()
                .map(OsStr::new)
                .chain([manifests.as_os_str()]),
        )
        .await;
    }

    /// Waits until every part of Cistern runs and is ready. The agents are replaced one after the other.
    pub async fn wait_until_installed(&self) {
        let timeout = format!("--timeout={}s", (2 * PATIENCE).as_secs());
        for workload in [
            "daemonset/cistern-node",
            "deployment/cistern-controller",
            "deployment/cistern-operator",
        ] {
            self.kubectl([
                "--namespace",
                NAMESPACE,
                "rollout",
                "status",
                timeout.as_str(),
                workload,
            ])
            .await;
        }
    }

    /// Returns the names of the nodes that accept ordinary pods.
    ///
    /// # Panics
    /// When there are fewer than three, because the tests need three.
    pub async fn workers(&self) -> [String; 3] {
        let nodes: Api<Node> = Api::all(self.client());
        let nodes = nodes
            .list(&ListParams::default())
            .await
            .expect("nodes can be listed");
        let takes_pods = |node: &Node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            taints.is_none_or(|taints| {
                taints
                    .iter()
                    .all(|taint| taint.effect == "PreferNoSchedule")
            })
        };
        let mut names: Vec<String> = nodes
            .iter()
            .filter(|n| takes_pods(n))
            .map(Node::name_any)
            .collect();
        names.sort_unstable();
        names.truncate(3);
        names
            .try_into()
            .unwrap_or_else(|found| panic!("the tests need three workers, not {found:?}"))
    }

    /// Returns the pods of one component of Cistern by node name.
    pub async fn component(&self, component: &str) -> BTreeMap<String, Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client(), NAMESPACE);
        let selector = format!("{}={component}", cistern_crds::names::COMPONENT_LABEL);
        let pods = pods
            .list(&ListParams::default().labels(&selector))
            .await
            .expect("pods can be listed");
        let node = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
        pods.into_iter()
            .filter_map(|pod| Some((node(&pod)?, pod)))
            .collect()
    }

    async fn prepare(&self) {
        if Harness::is_there() {
            let running = !self.component("node").await.is_empty();
            self.apply().await;
            if running {
                // A test that was killed may have removed an agent.
                self.return_agents().await;
                // The images may be new under the same names, and the old ones may fail to run.
                self.kubectl([
                    "--namespace",
                    NAMESPACE,
                    "rollout",
                    "restart",
                    "daemonset,deployment",
                ])
                .await;
            }
            self.wait_until_installed().await;
        } else {
            let pods = self.component("node").await;
            assert!(
                !pods.is_empty(),
                "Cistern is not installed: kubectl apply -k manifests"
            );
        }
        test::remove_leftovers(self).await;
    }
}

/// Prints that a part of the tests is skipped. Bypasses the test runner, which would hide the output.
///
/// # Panics
/// On the harness' own cluster, which has all that the tests need: a skipped test would pass there without
/// testing anything.
pub fn skipped(what: &str, reason: &str) {
    use std::io::Write as _;

    static COUNT: AtomicU32 = AtomicU32::new(0);
    assert!(
        !Harness::is_there(),
        "{what} has to be tested on the harness' own cluster: {reason}"
    );
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    // A closed standard error cannot be handled.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED {what}: {reason} ({count} skipped so far)"
    );
}

/// Returns whether the test of the documents writes the output that it sees into them (`CISTERN_WRITE_SAMPLES`).
pub fn writes_samples() -> bool {
    variable("CISTERN_WRITE_SAMPLES").is_some()
}
