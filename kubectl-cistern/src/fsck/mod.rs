//! `fsck`: lets each agent compare its node with the custom resources, and shows the findings.
//!
//! ```text
//! pods of the agents ─▶ proxy of the API server ─▶ /fsck ─▶ report (pure)
//! ```
//!
//! *Invariant:* nothing is changed, and each selected node is in the report, also one that could not
//! be asked.

pub mod report;

use std::collections::{BTreeMap, BTreeSet};

use cistern_client::{Chain, Rejection};
use cistern_crds::StorageNode;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt, api::ListParams, core::DeserializeGuard};

use self::report::{NodeReport, NotAsked, Report};
use crate::{
    Connection, Error, Printer, Verdict,
    agents::{self, AT_ONCE, Agent},
    arguments,
    unreadable::may_have_pools,
};

/// Asks the selected agents, prints the report and returns its verdict. Fails if the nodes cannot
/// be listed, if access to the agents is denied, or if the output cannot be written.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Fsck,
    printer: Printer,
) -> Result<Verdict, Error> {
    let report = read(connection, flags).await?;
    printer.print(&report, flags.output.format)?;
    Ok(report.verdict())
}

/// Asks the selected agents. Fails if the nodes cannot be listed, or if access to the agents is
/// denied.
pub async fn read(connection: &Connection, flags: &arguments::Fsck) -> Result<Report, Error> {
    let agents = agents::running(connection).await?;
    let nodes = selected(connection, flags, &agents).await?;
    let answers = stream::iter(nodes)
        .map(|node| {
            let agent = agents.get(&node);
            async move {
                let answer = match agent {
                    Some(agent) => ask(connection, &node, &agent.address).await,
                    None => Ok(Err(no_agent(connection))),
                };
                (node, answer)
            }
        })
        .buffered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let (mut items, mut not_asked) = (Vec::new(), Vec::new());
    for (node, answer) in answers {
        match answer? {
            Ok(report) => items.push(report),
            Err(message) => not_asked.push(NotAsked { node, message }),
        }
    }
    Ok(Report { items, not_asked })
}

fn no_agent(connection: &Connection) -> String {
    let namespace = &connection.system_namespace;
    format!("no agent is running there: see `kubectl get pods --namespace {namespace} -o wide`")
}

/// Returns the nodes to ask: those with pools or an agent that the flags select, or the one that the
/// flags name.
async fn selected(
    connection: &Connection,
    flags: &arguments::Fsck,
    agents: &BTreeMap<String, Agent>,
) -> Result<BTreeSet<String>, Error> {
    if let Some(node) = &flags.node {
        return Ok([node.clone()].into());
    }
    let storage_nodes = connection.own::<StorageNode>().await?;
    let mut nodes = with_pools_or_agent(&storage_nodes, agents);
    if let Some(selector) = &flags.selector {
        let parameters = ListParams::default().labels_from(selector);
        let labelled = connection.list(connection.everywhere::<Node>(), parameters);
        let labelled: BTreeSet<String> =
            labelled.await?.iter().map(ResourceExt::name_any).collect();
        nodes.retain(|node| labelled.contains(node));
    }
    Ok(nodes)
}

/// Returns the nodes with pools, or with an agent. A node whose StorageNode cannot be parsed may have pools.
fn with_pools_or_agent(
    storage_nodes: &[DeserializeGuard<StorageNode>],
    agents: &BTreeMap<String, Agent>,
) -> BTreeSet<String> {
    let nodes = storage_nodes.iter().filter(|it| may_have_pools(it));
    let nodes = nodes.map(ResourceExt::name_any);
    nodes.chain(agents.keys().cloned()).collect()
}

/// Asks one agent; returns its report, or why there is none. Fails if access is denied, because
/// requests to the other agents are denied as well.
async fn ask(
    connection: &Connection,
    node: &str,
    address: &str,
) -> Result<Result<NodeReport, String>, Error> {
    let what = format!("cannot ask the agent on {node}");
    match agents::get(connection, address, "fsck", &what).await {
        Ok(text) => Ok(serde_json::from_str(&text).map_err(|error| {
            format!("its agent answers with something else than a report: {error}")
        })),
        Err(error @ Error::Denied { .. }) => Err(error),
        Err(error) if error.rejection() == Some(Rejection::NotFound) => Ok(Err(
            "its agent has gone, or is too old to be asked".to_owned(),
        )),
        Err(error) => Ok(Err(Chain(&error).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        Bytes,
        testing::{image_source, node_pool},
    };
    use serde_json::json;

    use super::*;
    use crate::testing::object;

    #[test]
    fn a_node_without_pools_and_agent_is_not_asked() {
        let entry = node_pool("fast", "u", image_source(Bytes::gib(1)));
        let storage_nodes = [
            json!({"metadata": {"name": "carries"}, "spec": {"topology": {}, "pools": [entry]}}),
            json!({"metadata": {"name": "reports"}, "spec": {"topology": {}},
                "status": {"pools": [{"name": "fast", "uid": "u"}]}}),
            json!({"metadata": {"name": "unreadable"}, "spec": {"topology": 7}}),
            json!({"metadata": {"name": "without"}, "spec": {"topology": {}, "pools": []}}),
        ];
        let storage_nodes: [DeserializeGuard<StorageNode>; 4] = storage_nodes.map(object);
        let agent = Agent {
            address: "agent:9808".to_owned(),
            is_ready: true,
        };
        let agents = BTreeMap::from([("with-agent".to_owned(), agent)]);
        let asked = with_pools_or_agent(&storage_nodes, &agents);
        let expected = ["carries", "reports", "unreadable", "with-agent"];
        assert_eq!(asked, BTreeSet::from(expected.map(str::to_owned)));
    }
}
