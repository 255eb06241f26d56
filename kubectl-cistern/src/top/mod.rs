//! `top`: space and I/O of pools and volumes, from the metrics of the agents.
//!
//! ```text
//! pods of the agents ─▶ proxy of the API server ─▶ /metrics, twice ─▶ rates ─▶ views (pure)
//! ```
//!
//! *Invariant:* `top` only reads. It reads metrics because the status of the objects has no rates
//! and only rounded sizes: each change of a status is a write to the API server.

pub mod exposition;
pub mod pools;
pub mod rates;
#[cfg(test)]
pub(crate) mod testing;
pub mod volumes;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use cistern_client::Chain;
use cistern_crds::{Bytes, StoragePool};
use futures::{StreamExt as _, stream};
use kube::{
    Resource, ResourceExt as _,
    api::ListParams,
    core::{DeserializeGuard, Selector},
};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use self::{
    exposition::Exposition,
    pools::TopPools,
    rates::{NodeMetrics, Rates},
    volumes::{TopVolumes, Wanted},
};
use crate::{
    Connection, Error, Printer, Verdict,
    agents::{self, AT_ONCE, Agent},
    arguments::{self, TopSubject},
    cluster::claim_reference,
    list::new_notes,
    output::{Cell, human},
    print_notes,
    screen::Screen,
};

/// Error of `top`.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// None of the agents answers.
    #[error("no agent answers: {why}")]
    NoAnswer {
        /// Error message of one of the agents.
        why: String,
    },
    /// No agent is running, or none on the selected node.
    #[error(
        "there is no running agent in namespace {namespace}: is Cistern installed there (--system-namespace)?"
    )]
    NoAgents {
        /// Namespace in which Cistern is expected.
        namespace: String,
    },
}

/// The metrics of the agents at one time.
struct Sample {
    /// The metrics of each agent that answered, by node.
    nodes: BTreeMap<String, NodeMetrics>,
    /// A note about each agent that did not answer.
    notes: Vec<String>,
}

/// Samples the metrics twice and prints a view with the rates. With `--watch`, repeats this until
/// the process is interrupted; a later sample that fails is noted and skipped. Fails if no agent
/// answers, if a request is denied, if a list request fails, or if standard output cannot be
/// written.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Top,
    printer: Printer,
) -> Result<Verdict, Error> {
    let first = sample(connection, flags.node()).await?;
    print_notes(&first.notes);
    let (mut before, mut known) = (first.nodes, first.notes);
    let mut screen = printer.screen(flags.output());
    loop {
        sleep(flags.interval).await;
        let notes = match show_next(connection, flags, &before, &mut screen).await {
            Ok((after, is_cleared)) => {
                // On a terminal, the view has replaced the notes.
                if is_cleared {
                    known.clear();
                }
                before = after.nodes;
                after.notes
            }
            Err(error) if flags.output().watch && may_pass(&error) => {
                vec![Chain(&error).to_string()]
            }
            Err(error) => return Err(error),
        };
        print_notes(&new_notes(&mut known, notes));
        if !flags.output().watch {
            return Ok(Verdict::Ok);
        }
    }
}

/// Returns whether a later sample may succeed after this error.
const fn may_pass(error: &Error) -> bool {
    !matches!(
        error,
        Error::Denied { .. } | Error::Output(_) | Error::Rendering(_)
    )
}

/// Takes a sample and shows the rates since `before`. Returns the sample, and whether the view has
/// cleared the terminal. Fails as [`run`] does.
async fn show_next(
    connection: &Connection,
    flags: &arguments::Top,
    before: &BTreeMap<String, NodeMetrics>,
    screen: &mut Screen,
) -> Result<(Sample, bool), Error> {
    let after = sample(connection, flags.node()).await?;
    let is_cleared = match &flags.subject {
        TopSubject::Pools(subject) => {
            // Also of one that cannot be parsed, only the name is needed.
            let name = |pool: &DeserializeGuard<StoragePool>| pool.name_any();
            let pools = selected(connection, subject.selector.as_ref(), name).await?;
            let (only, pools) = (&subject.only, pools.as_ref());
            let view = TopPools::of(before, &after.nodes, only, pools, flags.sort);
            screen.show(&view)?
        }
        TopSubject::Volumes(subject) => {
            let selector = subject.selector.as_ref();
            let wanted = Wanted {
                only: subject.only.clone(),
                namespace: subject.namespace.as_deref(),
                claims: selected(connection, selector, claim_reference).await?,
            };
            let view = TopVolumes::of(before, &after.nodes, &wanted, flags.sort);
            screen.show(&view)?
        }
    };
    Ok((after, is_cleared))
}

/// Lists the objects that a label selector selects, and returns what `key` makes of each; `None`
/// without a selector. Fails if the list request fails.
async fn selected<K, T: Ord>(
    connection: &Connection,
    selector: Option<&Selector>,
    key: impl Fn(&K) -> T,
) -> Result<Option<BTreeSet<T>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let Some(selector) = selector else {
        return Ok(None);
    };
    let parameters = ListParams::default().labels_from(selector);
    let all = connection
        .list(connection.everywhere::<K>(), parameters)
        .await?;
    Ok(Some(all.iter().map(key).collect()))
}

/// Reads the metrics of all agents, or of the agent on the node `only`. Fails if no agent runs, if
/// none answers, or if access is denied.
async fn sample(connection: &Connection, only: Option<&str>) -> Result<Sample, Error> {
    let mut asked = agents::running(connection).await?;
    asked.retain(|node, _| only.is_none_or(|only| only == node));
    if asked.is_empty() {
        let namespace = connection.system_namespace.clone();
        return Err(TopError::NoAgents { namespace }.into());
    }
    let answers = stream::iter(asked)
        .map(|(node, agent)| async move {
            let metrics = read(connection, &node, &agent).await;
            metrics.map(|metrics| NodeMetrics {
                node,
                at: Instant::now(),
                metrics,
            })
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let (mut answered, mut notes) = (BTreeMap::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(answer) => _ = answered.insert(answer.node.clone(), answer),
            // Requests to the other agents are denied as well.
            Err(error @ Error::Denied { .. }) => return Err(error),
            Err(error) => notes.push(Chain(&error).to_string()),
        }
    }
    notes.sort_unstable();
    match notes.first() {
        Some(why) if answered.is_empty() => Err(TopError::NoAnswer { why: why.clone() }.into()),
        _ => Ok(Sample {
            nodes: answered,
            notes,
        }),
    }
}

/// Reads the metrics of one agent through the API server. Fails if the request fails.
async fn read(connection: &Connection, node: &str, agent: &Agent) -> Result<Exposition, Error> {
    let text = agents::metrics(connection, node, agent).await?;
    Ok(Exposition::parse(&text))
}

/// Returns the cells of the rates; empty if there are none, because the volume is not attached.
fn rate_cells(rates: Option<Rates>) -> [Cell; 4] {
    let Some(rates) = rates else {
        return Default::default();
    };
    let size = |bytes: f64| Cell::from(human(Bytes(whole(bytes))));
    [
        whole(rates.reads_per_second).to_string().into(),
        whole(rates.writes_per_second).to_string().into(),
        size(rates.read_bytes_per_second),
        size(rates.written_bytes_per_second),
    ]
}

/// Rounds a rate to a whole number. A rate is never negative.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is positive and far below the largest number"
)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}
