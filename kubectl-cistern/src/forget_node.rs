//! `forget-node`: releases the volumes and snapshots of a node that is permanently lost, or of one pool on
//! it whose disk has failed.
//!
//! ```text
//! refuse if the node answers ─▶ list what is lost ─▶ confirm by name ─▶ refuse if the node answers now
//!     ─▶ release each object ─▶ the operator removes the StorageNode
//! ```
//!
//! *Invariant:* an object is released only if it was in the confirmed list, and only while the Node does
//! not exist and no agent on it is ready, or the agent reports that the pool is unusable. The command never
//! sets `spec.deletionRequested`: if the disks come back, the images on them are orphans and are kept.

pub(crate) mod loss;
pub(crate) mod release;

use std::{
    io::{self, BufRead, Write},
    time::Duration,
};

use cistern_crds::{ConditionStatus, ConditionType, Reason, StorageNode, condition, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{ResourceExt as _, api::ListParams};
use tokio::time::{Instant, sleep};

use self::loss::Loss;
use crate::{
    Connection, Printer, Verdict, arguments,
    cluster::{Cluster, VolumeSnapshots},
    confirm::is_typed,
    doctor::workloads::is_ready,
    output::Terminal,
};

/// Interval at which the StorageNode is polled.
const INTERVAL: Duration = Duration::from_millis(300);

/// Error of `forget-node`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no StorageNode and no object on a node of this name.
    #[error(
        "no StorageNode is called {node:?}, and no volume or snapshot is on a node of that name: \
         see `kubectl get storagenodes`"
    )]
    Unknown {
        /// Name of the node.
        node: String,
    },
    /// The Node exists.
    #[error(
        "Node {node} exists: nothing was changed; if the machine is permanently lost, delete the Node first: \
        kubectl delete node {node}"
    )]
    Exists {
        /// Name of the node.
        node: String,
    },
    /// The agent on the node is ready.
    #[error(
        "pod {pod} on {node} is ready, so the node answers: nothing was changed; if the machine is lost, \
        Kubernetes removes the pod within minutes; then repeat the command"
    )]
    Answers {
        /// Name of the node.
        node: String,
        /// Name of the agent's pod.
        pod: String,
    },
    /// The agent does not report that the pool is unusable.
    #[error(
        "pool {pool} on {node} is not reported as unusable: nothing was changed; see `kubectl cistern pools`"
    )]
    Usable {
        /// Name of the node.
        node: String,
        /// Name of the pool.
        pool: String,
    },
    /// The user did not type the name.
    #[error("not confirmed: nothing was changed")]
    NotConfirmed,
    /// Reading from standard input failed.
    #[error("the answer cannot be read: nothing was changed")]
    Answer(#[source] io::Error),
    /// Another client changed the object.
    #[error(
        "{kind} {name} has changed and is not released: check whether the node has come back, and repeat the \
        command"
    )]
    Changed {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
    },
    /// The operator did not remove the StorageNode before the timeout.
    #[error(
        "the listed objects are released, but StorageNode {node} still exists: the operator removes it once \
        no object is left on the node; repeat the command, and see `kubectl cistern doctor`"
    )]
    TimedOut {
        /// Name of the node.
        node: String,
    },
}

/// Releases the volumes and snapshots of the node or pool, after confirmation. Fails if the node
/// answers or the pool is usable, if the user does not confirm, if another client changes an
/// object, if the operator does not remove the StorageNode before the timeout, or if a request
/// fails.
pub async fn run(
    connection: &Connection,
    flags: &arguments::ForgetNode,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let (node, pool) = (flags.node.as_str(), flags.pool.as_deref());
    refuse(connection, node, pool).await?;
    let mut cluster = Cluster::with_users(connection).await?;
    cluster.require_all_data()?;
    cluster.unreadable.refuse::<StorageNode>(Some(node))?;
    let snapshots = VolumeSnapshots::read(connection, &mut cluster.unread).await?;
    crate::print_notes(&cluster.unread);
    let loss = Loss::of(&cluster, &snapshots, node, pool);
    if loss.is_empty() && !cluster.nodes.iter().any(|known| known.name_any() == node) {
        let node = node.to_owned();
        return Err(Error::Unknown { node }.into());
    }
    confirm(&loss, &mut io::stdin().lock(), &mut Terminal::stderr())?;
    refuse(connection, node, pool).await?;
    release::release(connection, &loss).await?;
    if pool.is_none() {
        await_removal(connection, node, flags.timeout).await?;
    }
    printer.write(&format!("{}\n", loss.forgotten()))?;
    Ok(Verdict::Ok)
}

/// Fails if the node, or the pool on it if one is named, can still be used.
async fn refuse(
    connection: &Connection,
    node: &str,
    pool: Option<&str>,
) -> Result<(), crate::Error> {
    match pool {
        None => refuse_if_it_answers(connection, node).await,
        Some(pool) => refuse_if_usable(connection, node, pool).await,
    }
}

/// Fails unless the agent reports that the pool is unusable.
async fn refuse_if_usable(
    connection: &Connection,
    node: &str,
    pool: &str,
) -> Result<(), crate::Error> {
    let found = connection.find::<StorageNode>(node).await?;
    if found.is_some_and(|found| is_unusable(&found, pool)) {
        return Ok(());
    }
    let (node, pool) = (node.to_owned(), pool.to_owned());
    Err(Error::Usable { node, pool }.into())
}

/// Whether the agent reports that the pool is unusable.
pub(crate) fn is_unusable(node: &StorageNode, pool: &str) -> bool {
    let mut pools = node.status.iter().flat_map(|status| &status.pools);
    let ready = pools
        .find(|status| status.name == pool)
        .and_then(|status| condition::find(&status.conditions, ConditionType::Ready));
    ready.is_some_and(|ready| {
        ready.status == ConditionStatus::False.as_str() && ready.reason != Reason::Retiring.as_str()
    })
}

/// Fails if the Node exists or its agent is ready, because its data is not lost.
async fn refuse_if_it_answers(connection: &Connection, node: &str) -> Result<(), crate::Error> {
    let what = format!("cannot read Node {node}");
    let nodes = connection.everywhere::<Node>();
    if connection.ask(what, nodes.get_opt(node)).await?.is_some() {
        let node = node.to_owned();
        return Err(Error::Exists { node }.into());
    }
    let agents = ListParams::default()
        .labels(&format!(
            "{}={}",
            names::COMPONENT_LABEL,
            names::NODE_COMPONENT
        ))
        .fields(&format!("spec.nodeName={node}"));
    let agents = connection
        .list(connection.in_system::<Pod>(), agents)
        .await?;
    let ready = agents
        .iter()
        .find(|pod| pod.metadata.deletion_timestamp.is_none() && is_ready(pod));
    match ready {
        Some(pod) => Err(Error::Answers {
            node: node.to_owned(),
            pod: pod.name_any(),
        }
        .into()),
        None => Ok(()),
    }
}

/// Prints what is lost and asks the user to type its name. Fails if the answer is not that name, or
/// if it cannot be read.
fn confirm(
    loss: &Loss,
    answers: &mut impl BufRead,
    questions: &mut impl Write,
) -> Result<(), Error> {
    let answer = is_typed(&loss.to_string(), &loss.name(), answers, questions);
    if answer.map_err(Error::Answer)? {
        Ok(())
    } else {
        Err(Error::NotConfirmed)
    }
}

/// Waits until the operator has removed the StorageNode. Fails if it still exists after `timeout`.
async fn await_removal(
    connection: &Connection,
    node: &str,
    timeout: Duration,
) -> Result<(), crate::Error> {
    let deadline = Instant::now() + timeout;
    let nodes = connection.everywhere::<StorageNode>();
    loop {
        let what = format!("cannot read StorageNode {node}");
        if connection.ask(what, nodes.get_opt(node)).await?.is_none() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let node = node.to_owned();
            return Err(Error::TimedOut { node }.into());
        }
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cluster;

    #[test]
    fn only_the_name_of_the_node_confirms() {
        let loss = Loss::of(&cluster(), &VolumeSnapshots::default(), "worker-1", None);
        let answer = |text: &str| {
            let mut asked = Vec::new();
            let said = confirm(&loss, &mut text.as_bytes(), &mut asked);
            let asked = String::from_utf8(asked).unwrap();
            assert!(
                asked.contains("shop/data") && asked.contains("snap-1"),
                "{asked}"
            );
            said.is_ok()
        };
        assert!(answer("worker-1\n"));
        for no in ["", "y\n", "yes\n", "worker\n", "worker-2\n"] {
            assert!(!answer(no), "{no:?}");
        }
    }

    #[test]
    fn a_pool_is_released_only_if_its_agent_reports_it_as_unusable() {
        let nodes = cluster().nodes;
        assert!(!is_unusable(&nodes[0], "fast"));
        assert!(is_unusable(&nodes[1], "fast"));
        assert!(!is_unusable(&nodes[1], "unheard-of"));
    }
}
