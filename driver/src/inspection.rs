//! `/fsck` of the node plugin: the report of `cistern-driver fsck`, for those who reach the port of
//! its metrics.
//!
//! *Invariant:* it changes nothing, and asks the API server nothing: it compares the node with what the watches of the
//! agent show. One comparison runs at a time, and its result is repeated for [`YOUNG`], so that the number of callers
//! does not load the disk.

use std::{fmt, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use cistern_client::Chain;
use cistern_node::{agent::Agent, blocking::to_its_end, fsck};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

/// How long a result is repeated.
const YOUNG: Duration = Duration::from_secs(5);
/// How long a caller waits. The connection of a caller ends soon after.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum number of findings in a report.
const LISTED: usize = 500;

/// A report as JSON, or why there is none.
type Outcome = Result<String, String>;

/// The comparison of one node with its custom resources, on request.
pub struct Inspection {
    agent: Arc<Agent>,
    last: Arc<Mutex<Option<(Instant, Outcome)>>>,
}

impl fmt::Debug for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inspection of {}", self.agent.node().name)
    }
}

impl Inspection {
    /// An inspection of the node of an agent.
    pub fn new(agent: Arc<Agent>) -> Self {
        Self {
            agent,
            last: Arc::default(),
        }
    }

    /// The path that answers with the report.
    pub fn routes(self) -> Router {
        Router::new().route("/fsck", get(report).with_state(Arc::new(self)))
    }

    async fn outcome(&self) -> Outcome {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((at, outcome)) = &*last
            && at.elapsed() < YOUNG
        {
            return outcome.clone();
        }
        let agent = Arc::clone(&self.agent);
        // Goes on without its caller and keeps its turn: on a disk that hangs, there is one at most.
        let comparison = to_its_end(async move {
            let outcome = compare(&agent).await;
            *last = Some((Instant::now(), outcome.clone()));
            outcome
        });
        let broken = |error| Err(Chain(&error).to_string());
        comparison.await.unwrap_or_else(broken)
    }
}

async fn report(State(inspection): State<Arc<Inspection>>) -> Response {
    let outcome = timeout(PATIENCE, inspection.outcome()).await;
    let outcome = outcome.unwrap_or_else(|_| {
        let seconds = PATIENCE.as_secs();
        Err(format!(
            "the comparison of the node did not end within {seconds} s: a disk may hang"
        ))
    });
    match outcome {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn compare(agent: &Agent) -> Outcome {
    let report = fsck::check_watched(agent).await;
    let mut report = report.map_err(|error| Chain(&error).to_string())?;
    report.shorten(LISTED);
    serde_json::to_string(&report).map_err(|error| error.to_string())
}
