//! `forget-node`: releases the volumes and snapshots of a node that is permanently lost, or of one pool on
//! it whose disk has failed.
//!
//! ```text
//! refuse if the node answers ─▶ list what is lost ─▶ refuse while another node has a copy ─▶ confirm by name
//!     ─▶ refuse if the node answers now ─▶ uncordon the node ─▶ release each object ─▶ the operator removes the
//!     StorageNode
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

use cistern_crds::{
    ConditionStatus, ConditionType, PoolReplica, Reason, StorageNode, VolumeMove, condition, names,
    pod::is_ready,
};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{ResourceExt as _, api::ListParams};
use tokio::time::{Instant, sleep};

use self::loss::Loss;
use crate::{
    Connection, Printer, Verdict, arguments,
    cluster::{Cluster, VolumeSnapshots, notes_about},
    confirm::is_typed,
    cordon,
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
    /// The namespace has no node plugin, so it is not the one of Cistern.
    #[error(
        "namespace {namespace} has no node plugin, so it is not known whether {node} answers: nothing was changed; set \
        --system-namespace to the namespace of Cistern"
    )]
    NoNodePlugin {
        /// Name of the node.
        node: String,
        /// Name of the namespace.
        namespace: String,
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
    /// Other nodes have copies of the volumes, which become the volumes only before their objects are released.
    #[error(
        "another node has a copy of {copies}: nothing was changed, because a copy cannot be promoted after this command; \
        {first}; or give it up with --give-up-copies"
    )]
    Copied {
        /// The copies, as messages name them.
        copies: String,
        /// What to do before.
        first: String,
    },
    /// The user may not list VolumeMoves or PoolReplicas.
    #[error(
        "you may not list volumemoves or poolreplicas, so it is not known whether other nodes have copies of the \
        volumes: nothing was changed; use another --context, or give up all copies with --give-up-copies"
    )]
    CopiesUnknown,
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

/// Releases the volumes and snapshots of the node or pool, after confirmation. Uncordons a node in all pools, so that
/// another node of its name takes new volumes. Fails if the node answers or the pool is usable, if the user does not
/// confirm, if another client changes an object, if the operator does not remove the StorageNode before the timeout, or
/// if a request fails.
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
    cluster.read_replicas(connection).await?;
    let snapshots = VolumeSnapshots::read(connection, &mut cluster.unread).await?;
    crate::print_notes(&cluster.unread);
    let loss = Loss::of(&cluster, &snapshots, node, pool);
    if loss.is_empty() && !cluster.nodes.iter().any(|known| known.name_any() == node) {
        let node = node.to_owned();
        return Err(Error::Unknown { node }.into());
    }
    if !flags.give_up_copies {
        refuse_copied(&cluster, &loss)?;
    }
    confirm(&loss, &mut io::stdin().lock(), &mut Terminal::stderr())?;
    refuse(connection, node, pool).await?;
    if pool.is_none() {
        // Before the release: once nothing is left of the node, the command cannot be repeated.
        cordon::uncordon_in(connection, &cluster.pools, node, printer).await?;
    }
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

/// Fails if the Node exists or its agent is ready, because its data is not lost. Fails, too, if the namespace has no
/// node plugin, because nothing else tells whether the agent is ready.
async fn refuse_if_it_answers(connection: &Connection, node: &str) -> Result<(), crate::Error> {
    let what = format!("cannot read Node {node}");
    let nodes = connection.everywhere::<Node>();
    if connection.ask(what, nodes.get_opt(node)).await?.is_some() {
        let node = node.to_owned();
        return Err(Error::Exists { node }.into());
    }
    let plugin = format!("{}={}", names::COMPONENT_LABEL, names::NODE_COMPONENT);
    let plugin = ListParams::default().labels(&plugin);
    let agents: Vec<Pod> = connection
        .list(connection.in_system(), plugin.clone())
        .await?;
    // The lost node may have been the only one.
    if agents.is_empty() {
        let sets: Vec<DaemonSet> = connection.list(connection.in_system(), plugin).await?;
        if sets.is_empty() {
            return Err(Error::NoNodePlugin {
                node: node.to_owned(),
                namespace: connection.system_namespace.clone(),
            }
            .into());
        }
    }
    match ready_on(node, &agents) {
        Some(pod) => Err(Error::Answers {
            node: node.to_owned(),
            pod: pod.name_any(),
        }
        .into()),
        None => Ok(()),
    }
}

/// Returns the ready agent on a node; `None` if there is none.
fn ready_on<'a>(node: &str, agents: &'a [Pod]) -> Option<&'a Pod> {
    agents.iter().find(|pod| {
        let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        on == Some(node) && is_ready(pod)
    })
}

/// Fails if other nodes have copies of the volumes, or may have some: without its PoolVolume none can be promoted.
pub(crate) fn refuse_copied(cluster: &Cluster, loss: &Loss) -> Result<(), crate::Error> {
    let unreadable = &cluster.unreadable;
    for (volume, _) in &loss.volumes {
        let (name, epoch) = (volume.name_any(), volume.spec.epoch);
        unreadable.refuse::<VolumeMove>(Some(&name))?;
        // The copy of a move that was undone, and of one that goes on.
        for epoch in [epoch, epoch.saturating_add(1)] {
            unreadable.refuse::<PoolReplica>(Some(&PoolReplica::name_of(&name, epoch)))?;
        }
    }
    let unlisted = notes_about(&cluster.unread, &["volumemoves", "poolreplicas"]);
    if !loss.volumes.is_empty() && !unlisted.is_empty() {
        return Err(Error::CopiesUnknown.into());
    }
    if loss.copies.is_empty() {
        return Ok(());
    }
    let copies: Vec<String> = loss.copies.iter().map(ToString::to_string).collect();
    Err(Error::Copied {
        copies: copies.join(", "),
        first: loss.before_release(),
    }
    .into())
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
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, complete_copy, object};

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
    fn a_node_answers_if_the_agent_on_it_is_ready() {
        let agent = |node: &str, ready: &str| -> Pod {
            object(
                json!({"metadata": {"name": "agent"}, "spec": {"nodeName": node, "containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}}),
            )
        };
        let answers = |agents: &[Pod]| ready_on("worker-1", agents).is_some();
        assert!(answers(&[
            agent("worker-2", "True"),
            agent("worker-1", "True")
        ]));
        assert!(!answers(&[
            agent("worker-2", "True"),
            agent("worker-1", "False")
        ]));
        let mut ended = agent("worker-1", "True");
        ended.metadata.deletion_timestamp = Some(object(json!("1970-01-01T00:00:00Z")));
        assert!(!answers(&[ended]));
    }

    #[test]
    fn a_volume_with_a_copy_on_another_node_is_not_released_and_promote_is_suggested() {
        let mut cluster = cluster();
        let refused = |cluster: &Cluster, node: &str| {
            let loss = Loss::of(cluster, &VolumeSnapshots::default(), node, None);
            refuse_copied(cluster, &loss).map_err(|error| error.to_string())
        };
        assert_eq!(refused(&cluster, "worker-1"), Ok(()));
        let taken = "2026-01-01T00:00:00Z";
        cluster.moves = vec![object(
            json!({"metadata": {"name": "pvc-1"}, "spec": {"volumeName": "pvc-1", "cutover": "Never"},
            "status": {"plan": {"fromNode": "worker-1", "toNode": "worker-2", "epoch": 1},
                "prepared": {"number": 1, "snapshotName": "s", "image": "i", "taken": taken, "received": taken}}}),
        )];
        let message = refused(&cluster, "worker-1").unwrap_err();
        for part in [
            "a copy of shop/data (volume pvc-1) as of 2026-01-01 00:00:00 UTC on node worker-2",
            "nothing was changed",
            "kubectl cistern promote pvc-1",
            "--give-up-copies",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(refused(&cluster, "worker-2"), Ok(()));
        // It was closed for a move when its node was lost.
        cluster.replicas = vec![complete_copy("pvc-1", 1)];
        let message = refused(&cluster, "worker-1").unwrap_err();
        assert!(!message.contains("cistern promote"), "{message}");
        let says = "wait until the volume has moved to it: kubectl describe volumemove pvc-1";
        assert!(message.contains(says), "{message}");
        cluster.moves.clear();
        for kind in ["volumemoves", "poolreplicas"] {
            cluster.unread = vec![format!("{kind} are not shown: you may not list them")];
            let message = refused(&cluster, "worker-1").unwrap_err();
            assert!(message.contains("may not list volumemoves"), "{message}");
            assert_eq!(refused(&cluster, "worker-2"), Ok(()));
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
