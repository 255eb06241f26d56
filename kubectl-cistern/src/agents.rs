//! The agents' pods, and requests to their HTTP port through the proxy of the API server.
//!
//! *Invariant:* requests are `GET`. They need the right `get` of `pods/proxy` in Cistern's namespace.

use std::{collections::BTreeMap, time::Duration};

use cistern_crds::{
    names::{COMPONENT_LABEL, NODE_COMPONENT},
    pod::is_ready,
};
use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::ListParams};

use crate::{Connection, Error};

/// Maximum number of agents that are asked at the same time.
pub const AT_ONCE: usize = 32;
/// Name of the port in the agent's pod.
const PORT: &str = "metrics";
/// Timeout of a request for the metrics of an agent whose pod is not ready.
const TIMEOUT_OF_UNREADY: Duration = Duration::from_secs(3);

/// A running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Its pod and port, as `POD:PORT`.
    pub address: String,
    /// Whether its pod is ready. The pod of a lost node stays running and is not ready.
    pub is_ready: bool,
}

/// Lists the running agents, by node. Fails if the request fails.
pub async fn running(connection: &Connection) -> Result<BTreeMap<String, Agent>, Error> {
    let agents = ListParams::default().labels(&format!("{COMPONENT_LABEL}={NODE_COMPONENT}"));
    let agents = connection.list(connection.in_system::<Pod>(), agents);
    Ok(by_node(agents.await?))
}

/// Returns the running agents, by node.
fn by_node(mut agents: Vec<Pod>) -> BTreeMap<String, Agent> {
    // While an agent is replaced, the node has two. The one that stays is the last of these.
    agents.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_none());
    agents.iter().filter_map(agent).collect()
}

/// Returns an agent with its node; `None` if the agent is not running or has no such port.
fn agent(pod: &Pod) -> Option<(String, Agent)> {
    let spec = pod.spec.as_ref()?;
    let mut ports = spec
        .containers
        .iter()
        .flat_map(|it| it.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(PORT))?;
    let is_running = pod.status.as_ref()?.phase.as_deref() == Some("Running");
    let node = spec.node_name.clone().filter(|_| is_running)?;
    let agent = Agent {
        address: format!("{}:{}", pod.name_any(), port.container_port),
        is_ready: is_ready(pod),
    };
    Some((node, agent))
}

/// Asks the agent at `address`, its `POD:PORT`, for `path`. `what` describes the request. Fails if
/// the request fails.
pub async fn get(
    connection: &Connection,
    address: &str,
    path: &str,
    what: &str,
) -> Result<String, Error> {
    let namespace = &connection.system_namespace;
    let what = format!("{what} (the right `get` of `pods/proxy` in namespace {namespace})");
    let path = format!("/api/v1/namespaces/{namespace}/pods/{address}/proxy/{path}");
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError);
    let client = connection.proxy_client();
    let text = async { client.request_text(request?).await };
    connection.ask(what, text).await
}

/// Asks the agent of `node` for its metrics. Fails if the request fails, or if the agent's pod is not
/// ready and it does not answer within 3 s.
pub async fn metrics(connection: &Connection, node: &str, agent: &Agent) -> Result<String, Error> {
    let what = format!("cannot read the metrics of the agent on {node}");
    let answer = get(connection, &agent.address, "metrics", &what);
    if agent.is_ready {
        return answer.await;
    }
    let after = TIMEOUT_OF_UNREADY;
    let answer = tokio::time::timeout(after, answer).await;
    answer.unwrap_or_else(|_| Err(Error::NotReady { what, after }))
}

/// Asks agents for their metrics, by node. The answers come in the order of the nodes.
pub fn metrics_of_all(
    connection: &Connection,
    agents: BTreeMap<String, Agent>,
) -> impl Stream<Item = (String, Result<String, Error>)> {
    stream::iter(agents)
        .map(async move |(node, agent)| {
            let metrics = metrics(connection, &node, &agent).await;
            (node, metrics)
        })
        .buffered(AT_ONCE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::object;

    fn pod(node: &str, phase: &str, port: &str, ready: &str) -> Pod {
        object(json!({
            "metadata": {"name": format!("agent-{node}")},
            "spec": {"nodeName": node, "containers": [
                {"name": "driver", "ports": [{"name": port, "containerPort": 9808}]},
            ]},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        }))
    }

    #[test]
    fn only_a_running_agent_with_the_port_has_an_address() {
        let found = agent(&pod("n", "Running", "metrics", "True"));
        let (node, found) = found.unwrap();
        assert_eq!((&*node, &*found.address), ("n", "agent-n:9808"));
        assert_eq!(agent(&pod("n", "Pending", "metrics", "True")), None);
        assert_eq!(agent(&pod("n", "Running", "other", "True")), None);
    }

    #[test]
    fn the_agent_of_a_lost_node_is_running_and_not_ready() {
        let pods = vec![
            pod("here", "Running", "metrics", "True"),
            pod("lost", "Running", "metrics", "Unknown"),
        ];
        let agents = by_node(pods);
        assert!(agents["here"].is_ready);
        assert!(!agents["lost"].is_ready);
    }
}
