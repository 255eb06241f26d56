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
use kube::{ResourceExt, api::ListParams};

use self::report::{NodeReport, NotAsked, Report};
use crate::{
    Connection, Error, Printer, Verdict,
    agents::{self, AT_ONCE},
    arguments,
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
            let address = agents.get(&node);
            async move {
                let answer = match address {
                    Some(address) => ask(connection, &node, address).await,
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

/// Returns the nodes to ask: those with a StorageNode or an agent that the flags select, and a node
/// that the flags name.
async fn selected(
    connection: &Connection,
    flags: &arguments::Fsck,
    agents: &BTreeMap<String, String>,
) -> Result<BTreeSet<String>, Error> {
    if let Some(node) = &flags.node {
        return Ok([node.clone()].into());
    }
    // Also one whose StorageNode cannot be parsed is asked.
    let storage_nodes = connection.own::<StorageNode>().await?;
    let mut nodes: BTreeSet<String> = storage_nodes.iter().map(ResourceExt::name_any).collect();
    nodes.extend(agents.keys().cloned());
    if let Some(selector) = &flags.selector {
        let parameters = ListParams::default().labels_from(selector);
        let labelled = connection.list(connection.everywhere::<Node>(), parameters);
        let labelled: BTreeSet<String> =
            labelled.await?.iter().map(ResourceExt::name_any).collect();
        nodes.retain(|node| labelled.contains(node));
    }
    Ok(nodes)
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
