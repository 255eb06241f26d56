//! The node's side of a group of snapshots across nodes: takes its part in the steps that the controller asks for.
//!
//! *Invariant:* the work ends with the call. A controller that is gone, or that does not ask for the next step in time,
//! leaves nothing frozen.

use std::{
    fmt,
    sync::{Arc, mpsc as blocking},
    time::Duration,
};

use chrono::{DateTime, Utc};
use cistern_host::snapshot::{Barrier, FREEZE_LIMIT, Stopped};
use cistern_node::agent::{
    Agent,
    snapshot::take::part::{Part, Refused, take_part},
};
use cistern_proto::group::v1alpha1::{
    Refusal, Step, TakeRequest, TakeResponse, group_snapshots_server::GroupSnapshots,
};
use futures::{StreamExt as _, stream};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

/// How long the other nodes may take to prepare, while the volumes of this part are locked.
const PREPARING: Duration = Duration::from_secs(30);
/// Answers that wait to be sent: each step waits for the next request.
const ANSWERS: usize = 1;

/// Takes the parts of groups on this node.
#[derive(Clone)]
pub struct GroupParts {
    agent: Arc<Agent>,
}

impl GroupParts {
    /// Takes the parts that the agent has.
    pub fn new(agent: Arc<Agent>) -> Self {
        Self { agent }
    }
}

impl fmt::Debug for GroupParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupParts").finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl GroupSnapshots for GroupParts {
    async fn take(
        &self,
        request: Request<Streaming<TakeRequest>>,
    ) -> Result<Response<BoxStream<TakeResponse>>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?.unwrap_or_default();
        if first.step() != Step::Prepare || first.snapshots.is_empty() {
            return Err(Status::invalid_argument(
                "the first step is to prepare snapshots",
            ));
        }
        let part = Part {
            group: first.group,
            attempt: first.attempt,
            snapshots: first.snapshots,
        };
        let (answers, answered) = mpsc::channel(ANSWERS);
        let (steps, asked) = blocking::channel();
        let barrier = Steps {
            answers: answers.clone(),
            asked,
        };
        let agent = Arc::clone(&self.agent);
        // Ends by itself: each wait for a step has a limit.
        tokio::spawn(async move {
            let passing_on = async {
                while let Ok(Some(request)) = requests.message().await {
                    if steps.send(request).is_err() {
                        break;
                    }
                }
                drop(steps);
                std::future::pending().await
            };
            let answer = tokio::select! {
                taken = take_part(&agent, &part, barrier) => answer(taken),
                answer = passing_on => answer,
            };
            // The controller may be gone. Then the group is not taken.
            let _ = answers.send(answer).await;
        });
        let answers = stream::unfold(answered, async |mut answered| {
            let answer = answered.recv().await?;
            Some((Ok(answer), answered))
        });
        Ok(Response::new(answers.boxed()))
    }
}

/// The last answer of a call.
fn answer(taken: Result<(), Refused>) -> TakeResponse {
    match taken {
        Ok(()) => done(Step::Commit, 0),
        Err(Refused { why, is_final }) => TakeResponse {
            refusal: Some(Refusal {
                reason: why.reason.to_string(),
                message: why.message,
                is_final,
            }),
            ..TakeResponse::default()
        },
    }
}

fn done(step: Step, unfrozen: usize) -> TakeResponse {
    TakeResponse {
        done: step.into(),
        unfrozen: unfrozen.try_into().unwrap_or(u32::MAX),
        refusal: None,
    }
}

/// The steps of a call, on the thread that works on the disk.
struct Steps {
    answers: mpsc::Sender<TakeResponse>,
    asked: blocking::Receiver<TakeRequest>,
}

impl Steps {
    /// Answers that a step is done, and waits for the next one.
    fn next(
        &self,
        answer: TakeResponse,
        next: Step,
        limit: Duration,
    ) -> Result<TakeRequest, Stopped> {
        let gone = || Stopped("the controller has ended the attempt".to_owned());
        self.answers.blocking_send(answer).map_err(|_| gone())?;
        match self.asked.recv_timeout(limit) {
            Ok(request) if request.step() == next => Ok(request),
            Ok(request) => {
                let (asked, next) = (request.step().as_str_name(), next.as_str_name());
                Err(Stopped(format!(
                    "the controller asks for {asked}, not {next}"
                )))
            }
            Err(blocking::RecvTimeoutError::Timeout) => {
                Err(Stopped(format!("they were not ready within {limit:?}")))
            }
            Err(blocking::RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

impl Barrier for Steps {
    fn prepared(&mut self, unfrozen: usize) -> Result<(), Stopped> {
        let prepared = done(Step::Prepare, unfrozen);
        self.next(prepared, Step::Freeze, PREPARING).map(drop)
    }

    fn frozen(&mut self) -> Result<DateTime<Utc>, Stopped> {
        let request = self.next(done(Step::Freeze, 0), Step::Clone, FREEZE_LIMIT)?;
        let time = DateTime::from_timestamp(request.seconds, request.nanoseconds);
        time.ok_or_else(|| Stopped("the controller has sent no time".to_owned()))
    }

    fn cloned(&mut self) -> Result<(), Stopped> {
        self.next(done(Step::Clone, 0), Step::Commit, FREEZE_LIMIT)
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> (
        Steps,
        mpsc::Receiver<TakeResponse>,
        blocking::Sender<TakeRequest>,
    ) {
        let (answers, answered) = mpsc::channel(9);
        let (steps, asked) = blocking::channel();
        (Steps { answers, asked }, answered, steps)
    }

    fn ask(step: Step) -> TakeRequest {
        TakeRequest {
            step: step.into(),
            seconds: 7,
            nanoseconds: 5000,
            ..TakeRequest::default()
        }
    }

    #[test]
    fn each_step_is_answered_before_the_next_one_is_awaited() {
        let (mut barrier, mut answered, steps) = call();
        for step in [Step::Freeze, Step::Clone, Step::Commit] {
            steps.send(ask(step)).unwrap();
        }
        barrier.prepared(1).unwrap();
        let time = barrier.frozen().unwrap();
        assert_eq!(time, DateTime::from_timestamp(7, 5000).unwrap());
        barrier.cloned().unwrap();
        let answers: Vec<_> = std::iter::from_fn(|| answered.try_recv().ok()).collect();
        assert_eq!(
            answers,
            [
                done(Step::Prepare, 1),
                done(Step::Freeze, 0),
                done(Step::Clone, 0)
            ]
        );
    }

    #[test]
    fn a_controller_that_is_gone_or_asks_for_another_step_ends_the_attempt() {
        let (mut barrier, answered, steps) = call();
        steps.send(ask(Step::Commit)).unwrap();
        let stopped = barrier.frozen().unwrap_err().to_string();
        assert!(stopped.contains("COMMIT, not CLONE"), "{stopped}");
        drop(steps);
        let stopped = barrier.cloned().unwrap_err().to_string();
        assert!(stopped.contains("has ended"), "{stopped}");
        drop(answered);
        assert!(barrier.prepared(0).is_err());
    }
}
