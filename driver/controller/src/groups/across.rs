//! Takes a group whose volumes are on several nodes, at one point in time.
//!
//! ```text
//! attempt + 1 ─▶ all prepare ─▶ all freeze ─▶ all clone ─▶ all thaw and commit ─▶ takenAt ─▶ takenAt of each snapshot
//! ```
//!
//! The filesystems of all nodes are frozen from before the first clone until after the last one, and each node verifies
//! that its own stayed frozen. A node that does not answer ends the calls to the others, and each of them thaws and
//! keeps nothing.
//!
//! *Invariants:* `spec.takenAt` alone decides that a group is taken. It is written once every snapshot is durable, and
//! only if the attempt is still the current one, so a controller that was replaced decides nothing. No attempt begins
//! after that.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, SubsecRound as _, Utc};
use cistern_client::Chain;
use cistern_crds::{Explanation, PoolSnapshot, PoolSnapshotGroup, Reason};
use cistern_proto::group::v1alpha1::{
    Refusal, Step, TakeRequest, TakeResponse, group_snapshots_client::GroupSnapshotsClient,
};
use futures::{future::try_join_all, stream};
use kube::ResourceExt as _;
use tokio::{sync::mpsc, time::timeout};
use tonic::{Code, Status, Streaming};

use crate::node_plugins::NodePlugins;

/// How long a node may take to prepare: it may have to write out gigabytes.
const PREPARING: Duration = Duration::from_secs(30);
/// How long a node may take for a step while filesystems are frozen. Each node thaws after 10 s by itself.
const FROZEN: Duration = Duration::from_secs(8);
/// How long a node may take to make its snapshots durable.
const COMMITTING: Duration = Duration::from_secs(30);

/// Why an attempt has not taken the group. Nothing is frozen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// A node refuses its part.
    Refused {
        /// Name of the node.
        node: String,
        /// Reason and message.
        why: Explanation,
    },
    /// Another attempt may succeed.
    Again(String),
}

/// The call to one node.
struct Part {
    node: String,
    requests: mpsc::Sender<TakeRequest>,
    answers: Streaming<TakeResponse>,
}

/// Takes the snapshots of a group in its current attempt. When it returns a time, all of them are durable.
pub(super) async fn take(
    plugins: &NodePlugins,
    group: &PoolSnapshotGroup,
    snapshots: &[PoolSnapshot],
) -> Result<DateTime<Utc>, NotTaken> {
    let mut by_node: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for snapshot in snapshots {
        let on_node = by_node.entry(&snapshot.spec.node_name).or_default();
        on_node.push(snapshot.name_any());
    }
    let opened = by_node
        .into_iter()
        .map(|(node, snapshots)| prepare(plugins, group, node, snapshots));
    let prepared = try_join_all(opened).await?;
    refuse_unfrozen(
        prepared
            .iter()
            .map(|(part, answer)| (&*part.node, answer.unfrozen)),
    )?;
    let mut parts: Vec<Part> = prepared.into_iter().map(|(part, _)| part).collect();
    all(&mut parts, &step(Step::Freeze), FROZEN).await?;
    // As precise as the API server and the identity of an image have it.
    let time = Utc::now().trunc_subsecs(6);
    let clone = TakeRequest {
        seconds: time.timestamp(),
        nanoseconds: time.timestamp_subsec_nanos(),
        ..step(Step::Clone)
    };
    all(&mut parts, &clone, FROZEN).await?;
    all(&mut parts, &step(Step::Commit), COMMITTING).await?;
    Ok(time)
}

/// Begins the call to a node, which prepares its part.
async fn prepare(
    plugins: &NodePlugins,
    group: &PoolSnapshotGroup,
    node: &str,
    snapshots: Vec<String>,
) -> Result<(Part, TakeResponse), NotTaken> {
    let again = |error: &(dyn std::error::Error + 'static)| {
        NotTaken::Again(format!("node {node}: {}", Chain(error)))
    };
    let channel = plugins.connect(node).await;
    let channel = channel.map_err(|error| NotTaken::Again(Chain(&error).to_string()))?;
    let (requests, asked) = mpsc::channel(1);
    let first = TakeRequest {
        group: group.name_any(),
        attempt: group.spec.attempt,
        snapshots,
        ..step(Step::Prepare)
    };
    requests.send(first).await.map_err(|error| again(&error))?;
    let asked = stream::unfold(asked, async |mut asked| Some((asked.recv().await?, asked)));
    let mut client = GroupSnapshotsClient::new(channel);
    let called = timeout(PREPARING, client.take(asked)).await;
    let called = called.map_err(|_| too_slow(node, PREPARING))?;
    let answers = called.map_err(|status| not_called(node, &status))?;
    let mut part = Part {
        node: node.to_owned(),
        requests,
        answers: answers.into_inner(),
    };
    let answer = part.answer(Step::Prepare, PREPARING).await?;
    Ok((part, answer))
}

/// Asks all nodes for a step, and waits until each has done it.
async fn all(parts: &mut [Part], request: &TakeRequest, limit: Duration) -> Result<(), NotTaken> {
    let asked = parts
        .iter_mut()
        .map(|part| part.ask(request.clone(), limit));
    try_join_all(asked).await.map(drop)
}

impl Part {
    async fn ask(&mut self, request: TakeRequest, limit: Duration) -> Result<(), NotTaken> {
        let expected = request.step();
        // The answer says why if the call has ended.
        let _ = self.requests.send(request).await;
        self.answer(expected, limit).await.map(drop)
    }

    /// The answer of the node that a step is done.
    async fn answer(&mut self, expected: Step, limit: Duration) -> Result<TakeResponse, NotTaken> {
        let node = &self.node;
        let answer = timeout(limit, self.answers.message()).await;
        let answer = answer.map_err(|_| too_slow(node, limit))?;
        let answer = answer.map_err(|status| not_called(node, &status))?;
        let answer = answer.ok_or_else(|| NotTaken::Again(format!("node {node} has stopped")))?;
        if let Some(refusal) = answer.refusal {
            return Err(refused(node, refusal));
        }
        if answer.done() != expected {
            let (done, expected) = (answer.done().as_str_name(), expected.as_str_name());
            let why = format!("node {node} has done {done}, not {expected}");
            return Err(NotTaken::Again(why));
        }
        Ok(answer)
    }
}

fn step(step: Step) -> TakeRequest {
    TakeRequest {
        step: step.into(),
        ..TakeRequest::default()
    }
}

fn too_slow(node: &str, limit: Duration) -> NotTaken {
    NotTaken::Again(format!("node {node} has not answered within {limit:?}"))
}

/// A call that was not answered.
fn not_called(node: &str, status: &Status) -> NotTaken {
    if status.code() == Code::Unimplemented {
        let message =
            format!("the node plugin of node {node} takes no groups across nodes: upgrade it");
        return NotTaken::Refused {
            node: node.to_owned(),
            why: Explanation::new(Reason::SnapshotFailed, message),
        };
    }
    NotTaken::Again(format!("node {node}: {}", status.message()))
}

fn refused(node: &str, refusal: Refusal) -> NotTaken {
    let Refusal {
        reason,
        message,
        is_final,
    } = refusal;
    if !is_final {
        return NotTaken::Again(format!("node {node}: {message}"));
    }
    let reason = Reason::parse(&reason).unwrap_or(Reason::SnapshotFailed);
    NotTaken::Refused {
        node: node.to_owned(),
        why: Explanation::new(reason, message),
    }
}

/// Refuses a group with several attached volumes whose writers nothing stops.
fn refuse_unfrozen<'a>(parts: impl Iterator<Item = (&'a str, u32)>) -> Result<(), NotTaken> {
    let mut with_one = parts.filter(|(_, unfrozen)| *unfrozen > 0);
    let (Some(_), Some((node, _))) = (with_one.next(), with_one.next()) else {
        return Ok(());
    };
    let message = "a group can have one attached volume whose writers cannot be stopped, and it has one on another node, \
                   too; nothing stops those of a raw block volume: snapshot it alone, or while no pod uses it";
    Err(NotTaken::Refused {
        node: node.to_owned(),
        why: Explanation::new(Reason::FreezeFailed, message),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_at_most_one_attached_volume_that_cannot_be_frozen() {
        refuse_unfrozen([("a", 0), ("b", 1), ("c", 0)].into_iter()).unwrap();
        let refused = refuse_unfrozen([("a", 1), ("b", 0), ("c", 1)].into_iter());
        let NotTaken::Refused { node, why } = refused.unwrap_err() else {
            panic!("it is final");
        };
        assert_eq!((node.as_str(), why.reason), ("c", Reason::FreezeFailed));
    }

    #[test]
    fn a_refusal_is_final_if_the_node_says_so_and_names_the_node() {
        let refusal = |is_final| Refusal {
            reason: "NoSpace".to_owned(),
            message: "volume pvc-1: full".to_owned(),
            is_final,
        };
        let why = Explanation::new(Reason::NoSpace, "volume pvc-1: full");
        let node = "w1".to_owned();
        assert_eq!(
            refused("w1", refusal(true)),
            NotTaken::Refused { node, why }
        );
        let again = NotTaken::Again("node w1: volume pvc-1: full".to_owned());
        assert_eq!(refused("w1", refusal(false)), again);
    }

    #[test]
    fn a_node_plugin_that_knows_no_groups_across_nodes_is_to_be_upgraded() {
        let old = not_called("w1", &Status::unimplemented(""));
        let NotTaken::Refused { why, .. } = old else {
            panic!("it is final");
        };
        assert!(why.message.contains("upgrade"), "{why:?}");
        let broken = not_called("w1", &Status::unavailable("reset"));
        assert_eq!(broken, NotTaken::Again("node w1: reset".to_owned()));
    }
}
