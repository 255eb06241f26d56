//! Replaces agents as an upgrade does, and removes them from nodes.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::DeleteParams};
use serde_json::{Value, json};

use super::{Cluster, NAMESPACE, PATIENCE};
use crate::eventually;

impl Cluster {
    /// Replaces the pod of every agent, as an upgrade does, and waits until all agents run.
    pub async fn replace_agents(&self) {
        self.kubectl([
            "--namespace",
            NAMESPACE,
            "rollout",
            "restart",
            "daemonset/cistern-node",
        ])
        .await;
        self.wait_until_installed().await;
    }

    /// Deletes the pod of a node's agent and waits for its replacement.
    pub async fn replace_agent(&self, node: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client(), NAMESPACE);
        let old = self.component("node").await[node].name_any();
        pods.delete(&old, &DeleteParams::default())
            .await
            .expect("pods can be deleted");
        let what = format!("another agent on {node}");
        eventually(&what, PATIENCE, async || {
            match self.component("node").await.get(node) {
                Some(pod) if pod.name_any() != old && is_ready(pod) => Ok(()),
                other => Err(format!("{:?}", other.map(|pod| &pod.status))),
            }
        })
        .await;
    }

    /// Removes the agent from a node while `body` runs, and restores it whether or not `body` succeeds.
    pub async fn without_agent_on(&self, node: &str, body: impl AsyncFnOnce()) {
        let elsewhere =
            json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]});
        let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]});
        let affinity =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        // Prevents the replacement of other agents.
        let on_delete = json!({"type": "OnDelete", "rollingUpdate": null});
        self.patch_agents(&on_delete, &affinity).await;
        let silent = async {
            let what = format!("the agent of {node} to be gone");
            eventually(&what, PATIENCE, async || {
                match self.component("node").await.get(node) {
                    None => Ok(()),
                    Some(pod) => Err(format!("{:?}", pod.status)),
                }
            })
            .await;
            body().await;
        };
        then(silent, self.return_agents()).await;
    }

    /// Limits what each agent sends to other nodes, in bytes per second, while `body` runs.
    pub async fn with_transfer_rate(&self, rate: u64, body: impl AsyncFnOnce()) {
        let limited = async {
            let limit = format!("TRANSFER_BYTES_PER_SECOND={rate}");
            self.set_environment(&limit).await;
            body().await;
        };
        let unlimited = self.set_environment("TRANSFER_BYTES_PER_SECOND-");
        then(limited, unlimited).await;
    }

    /// Changes an environment variable of the agents, and waits until all agents run with it.
    async fn set_environment(&self, change: &str) {
        self.kubectl([
            "--namespace",
            NAMESPACE,
            "set",
            "env",
            "daemonset/cistern-node",
            "--containers=driver",
            change,
        ])
        .await;
        self.wait_until_installed().await;
    }

    /// Lets agents run on every node again.
    pub(super) async fn return_agents(&self) {
        let rolling = json!({"type": "RollingUpdate"});
        self.patch_agents(&rolling, &Value::Null).await;
        self.apply().await;
        self.wait_until_installed().await;
    }

    async fn patch_agents(&self, update_strategy: &Value, affinity: &Value) {
        let patch = json!({"spec": {
            "updateStrategy": update_strategy,
            "template": {"spec": {"affinity": affinity}},
        }});
        self.kubectl([
            "--namespace",
            NAMESPACE,
            "patch",
            "daemonset/cistern-node",
            "--type=merge",
            "--patch",
            &patch.to_string(),
        ])
        .await;
    }
}

/// Runs `body`, and then `undo` whether or not `body` succeeds.
async fn then(body: impl Future<Output = ()>, undo: impl Future<Output = ()>) {
    let ended = AssertUnwindSafe(body).catch_unwind().await;
    undo.await;
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
