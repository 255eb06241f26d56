//! What a test changes on the nodes, and how it is undone after the test.

use std::{collections::BTreeSet, sync::MutexGuard};

use super::{Harness, Test, test::also};

/// What a test has changed on nodes and not yet undone.
#[derive(Default)]
pub(super) struct ChangedNodes {
    scripts: Vec<Afterwards>,
    cordoned: BTreeSet<String>,
    stopped: Vec<(Harness, String)>,
}

/// A shell script that runs on a node after the test.
struct Afterwards {
    harness: Harness,
    node: String,
    script: String,
    /// Whether it runs after a failed test; otherwise it runs after a successful one.
    failed: bool,
}

impl Afterwards {
    async fn run(&self) {
        self.harness.shell(&self.node, &self.script).await;
    }
}

impl Test {
    fn changed_nodes(&self) -> MutexGuard<'_, ChangedNodes> {
        self.changed_nodes
            .lock()
            .expect("no holder of the lock panics")
    }

    /// Runs a shell script on a node after the test has passed and its pools are deleted.
    pub fn afterwards(&self, harness: Harness, node: &str, script: &str) {
        self.remember(harness, node, script, false);
    }

    /// Runs a shell script on a node after the test has failed: objects that are kept for inspection must not
    /// hang and must be removable.
    pub fn if_it_fails(&self, harness: Harness, node: &str, script: &str) {
        self.remember(harness, node, script, true);
    }

    fn remember(&self, harness: Harness, node: &str, script: &str, failed: bool) {
        self.changed_nodes().scripts.push(Afterwards {
            harness,
            node: node.to_owned(),
            script: script.to_owned(),
            failed,
        });
    }

    /// Runs the scripts that follow a test that has passed.
    pub(super) async fn tidy_nodes(&self) {
        for last in self.last_scripts(false) {
            last.run().await;
        }
    }

    /// Runs the scripts that follow a failed test, each even if another one fails.
    pub(super) async fn tidy_nodes_after_failure(&self) {
        for last in self.last_scripts(true) {
            also(&format!("tidying {}", last.node), last.run()).await;
        }
    }

    fn last_scripts(&self, failed: bool) -> Vec<Afterwards> {
        let mut changed = self.changed_nodes();
        let scripts = std::mem::take(&mut changed.scripts);
        let (now, others) = scripts.into_iter().partition(|last| last.failed == failed);
        changed.scripts = others;
        now
    }

    /// Shuts down a node until [`Test::start_node`]. A failed test starts it too, because the tests after it need all
    /// nodes.
    pub async fn stop_node(&self, harness: Harness, node: &str) {
        let stopped = (harness, node.to_owned());
        self.changed_nodes().stopped.push(stopped);
        harness.stop(node).await;
    }

    /// Starts a node that [`Test::stop_node`] has shut down and waits until it is Ready.
    pub async fn start_node(&self, harness: Harness, node: &str) {
        harness.start(node).await;
        self.changed_nodes()
            .stopped
            .retain(|(_, stopped)| stopped != node);
    }

    /// Starts the nodes that a failed test left stopped, and waits until Cistern runs on them.
    pub(super) async fn start_stopped_nodes(&self) {
        let stopped = std::mem::take(&mut self.changed_nodes().stopped);
        if stopped.is_empty() {
            return;
        }
        for (harness, node) in stopped {
            also(&format!("starting {node}"), harness.start(&node)).await;
        }
        let runs = self.cluster.wait_until_installed();
        also("waiting for Cistern on the started nodes", runs).await;
    }

    /// Keeps new pods off a node until [`Test::uncordon`] or the end of the test.
    pub async fn cordon(&self, node: &str) {
        self.changed_nodes().cordoned.insert(node.to_owned());
        self.cluster.kubectl(["cordon", node]).await;
    }

    /// Allows new pods on the node again.
    pub async fn uncordon(&self, node: &str) {
        self.cluster.kubectl(["uncordon", node]).await;
    }

    pub(super) async fn uncordon_all(&self) {
        let cordoned = std::mem::take(&mut self.changed_nodes().cordoned);
        for node in cordoned {
            self.uncordon(&node).await;
        }
    }
}
