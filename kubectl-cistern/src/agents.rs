//! The agents' pods, and requests to their HTTP port through the proxy of the API server.
//!
//! *Invariant:* requests are `GET`. They need the right `get` of `pods/proxy` in Cistern's namespace.

use std::collections::BTreeMap;

use cistern_crds::names::{COMPONENT_LABEL, NODE_COMPONENT};
use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::ListParams};

use crate::{Connection, Error};

/// Maximum number of agents that are asked at the same time.
pub const AT_ONCE: usize = 32;
/// Name of the port in the agent's pod.
const PORT: &str = "metrics";

/// Lists the running agents: pod and port as `POD:PORT`, by node. Fails if the request fails.
pub async fn running(connection: &Connection) -> Result<BTreeMap<String, String>, Error> {
    let agents = ListParams::default().labels(&format!("{COMPONENT_LABEL}={NODE_COMPONENT}"));
    let mut agents = connection
        .list(connection.in_system::<Pod>(), agents)
        .await?;
    // While an agent is replaced, the node has two. The one that stays is the last of these.
    agents.sort_by_key(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(agents.iter().filter_map(address).collect())
}

/// Returns the node of an agent, and its pod and port as `POD:PORT`; `None` if the agent is not
/// running or has no such port.
fn address(pod: &Pod) -> Option<(String, String)> {
    let spec = pod.spec.as_ref()?;
    let mut ports = spec
        .containers
        .iter()
        .flat_map(|it| it.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(PORT))?;
    let is_running = pod.status.as_ref()?.phase.as_deref() == Some("Running");
    let node = spec.node_name.clone().filter(|_| is_running)?;
    Some((node, format!("{}:{}", pod.name_any(), port.container_port)))
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

/// Asks the agent of `node` at `address` for its metrics. Fails if the request fails.
pub async fn metrics(connection: &Connection, node: &str, address: &str) -> Result<String, Error> {
    let what = format!("cannot read the metrics of the agent on {node}");
    get(connection, address, "metrics", &what).await
}

/// Asks agents for their metrics, by node. The answers come in the order of the nodes.
pub fn metrics_of_all(
    connection: &Connection,
    agents: BTreeMap<String, String>,
) -> impl Stream<Item = (String, Result<String, Error>)> {
    stream::iter(agents)
        .map(async move |(node, address)| {
            let metrics = metrics(connection, &node, &address).await;
            (node, metrics)
        })
        .buffered(AT_ONCE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::object;

    #[test]
    fn only_a_running_agent_with_the_port_has_an_address() {
        let pod = |phase: &str, port: &str| -> Pod {
            object(json!({
                "metadata": {"name": "agent"},
                "spec": {"nodeName": "n", "containers": [
                    {"name": "driver", "ports": [{"name": port, "containerPort": 9808}]},
                ]},
                "status": {"phase": phase},
            }))
        };
        let found = address(&pod("Running", "metrics"));
        assert_eq!(found, Some(("n".to_owned(), "agent:9808".to_owned())));
        assert_eq!(address(&pod("Pending", "metrics")), None);
        assert_eq!(address(&pod("Running", "other")), None);
    }
}
