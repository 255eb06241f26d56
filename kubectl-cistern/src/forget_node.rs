//! `forget-node`: gives up a node that is gone for good, or a pool on it whose disk is dead, with the
//! volumes and snapshots there.
//!
//! ```text
//! refuse if the node answers ─▶ list what is lost ─▶ its name is typed ─▶ refuse if it answers by now
//!     ─▶ release each object ─▶ the operator removes the StorageNode
//! ```
//!
//! *Invariant:* an object is released only while there is no Node of that name and no ready agent on
//! it, or the agent says that the pool cannot be used; and only if it was on the list that was
//! confirmed. `spec.deletionRequested` is never set here: if the disks do come back, the images on them
//! are orphans, and are kept.

mod loss;
mod release;

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

/// How often the StorageNode is looked for.
const INTERVAL: Duration = Duration::from_millis(300);

/// Why a node is not forgotten, or not as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is known of the node.
    #[error(
        "no StorageNode is called {node:?}, and no volume or snapshot is on a node of that name: \
         see `kubectl get storagenodes`"
    )]
    Unknown {
        /// Its name.
        node: String,
    },
    /// The node is in the cluster.
    #[error(
        "Node {node} exists: nothing was changed; if the machine is gone for good, delete it first: \
         kubectl delete node {node}"
    )]
    Exists {
        /// Its name.
        node: String,
    },
    /// The agent runs.
    #[error(
        "pod {pod} on {node} is ready, so the node answers: nothing was changed; if the machine is gone, \
         Kubernetes removes the pod within minutes, then repeat the command"
    )]
    Reports {
        /// Name of the node.
        node: String,
        /// Name of the agent's pod.
        pod: String,
    },
    /// The pool can be used, or nobody says that it cannot.
    #[error(
        "pool {pool} on {node} is not reported as unusable: nothing was changed; see `kubectl cistern pools`"
    )]
    Usable {
        /// Name of the node.
        node: String,
        /// Name of the pool.
        pool: String,
    },
    /// Nobody has typed the name.
    #[error("not confirmed: nothing was changed")]
    NotConfirmed,
    /// The answer cannot be read.
    #[error("the answer cannot be read: nothing was changed")]
    Answer(#[source] io::Error),
    /// Somebody was faster.
    #[error(
        "{kind} {name} was changed meanwhile and is not released: look whether the node has come back, and \
         repeat the command"
    )]
    Changed {
        /// Kind of the object.
        kind: String,
        /// Name of the object.
        name: String,
    },
    /// The operator does not follow.
    #[error(
        "what was listed is released, but StorageNode {node} is still there: the operator removes it once \
         nothing is left on the node; repeat the command, and see `kubectl cistern doctor`"
    )]
    Late {
        /// Name of the node.
        node: String,
    },
}

/// Runs the command.
pub async fn run(
    connection: &Connection,
    flags: &arguments::ForgetNode,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let (node, pool) = (flags.node.as_str(), flags.pool.as_deref());
    refuse(connection, node, pool).await?;
    let mut cluster = Cluster::with_users(connection).await?;
    let snapshots = VolumeSnapshots::read(connection, &mut cluster.unread).await?;
    crate::tell(&cluster.unread);
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
    Ok(Verdict::Well)
}

/// What can still be used is not given up.
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

/// A pool is given up only where its agent says that it cannot be used.
async fn refuse_if_usable(
    connection: &Connection,
    node: &str,
    pool: &str,
) -> Result<(), crate::Error> {
    let what = format!("cannot read StorageNode {node}");
    let nodes = connection.everywhere::<StorageNode>();
    let found = connection.ask(what, nodes.get_opt(node)).await?;
    if found.is_some_and(|found| is_unusable(&found, pool)) {
        return Ok(());
    }
    let (node, pool) = (node.to_owned(), pool.to_owned());
    Err(Error::Usable { node, pool }.into())
}

fn is_unusable(node: &StorageNode, pool: &str) -> bool {
    let mut pools = node.status.iter().flat_map(|status| &status.pools);
    let ready = pools
        .find(|status| status.name == pool)
        .and_then(|status| condition::find(&status.conditions, ConditionType::Ready));
    ready.is_some_and(|ready| {
        ready.status == ConditionStatus::False.as_str() && ready.reason != Reason::Retiring.as_str()
    })
}

/// A node that is in the cluster, or whose agent runs, has its data.
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
        Some(pod) => Err(Error::Reports {
            node: node.to_owned(),
            pod: pod.name_any(),
        }
        .into()),
        None => Ok(()),
    }
}

/// Says what is lost and waits for the name of it.
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

/// Waits until the operator has removed the StorageNode.
async fn await_removal(
    connection: &Connection,
    node: &str,
    patience: Duration,
) -> Result<(), crate::Error> {
    let deadline = Instant::now() + patience;
    let nodes = connection.everywhere::<StorageNode>();
    loop {
        let what = format!("cannot read StorageNode {node}");
        if connection.ask(what, nodes.get_opt(node)).await?.is_none() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let node = node.to_owned();
            return Err(Error::Late { node }.into());
        }
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cluster;

    #[test]
    fn only_the_name_of_the_node_is_a_yes() {
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
    fn a_pool_is_given_up_only_where_its_agent_says_that_it_cannot_be_used() {
        let nodes = cluster().nodes;
        assert!(!is_unusable(&nodes[0], "fast"));
        assert!(is_unusable(&nodes[1], "fast"));
        assert!(!is_unusable(&nodes[1], "unheard-of"));
    }
}
