//! Reconciles an object that represents one image: the parts that volumes and snapshots share.
//!
//! ```text
//! observe (custom resource, pool) → plan (pure) → execute (read or change the disk) → status (pure)
//! ```
//!
//! Each reconcile starts from the observed state, so it does not matter where the last one stopped.
//! The agent writes the status even when a step failed, so that users see the reason.

pub mod progress;
mod reclaim;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{ConditionType, Explanation, Reason, condition};
use cistern_host::Engine;
use kube::{ResourceExt as _, core::object::HasStatus, runtime::controller::Action};
use tokio::time::timeout;

use super::{
    Agent,
    kind::named,
    outcome::ImageOutcome,
    pools::{Permit, PoolState, Unavailable, Usable},
    report,
    work::{Error, Reconcile},
};
use crate::{
    blocking::{self, on_host},
    image::{self, Image, ImageObject},
};

/// How often a healthy image is reconciled: blocks that fstrim punched out of a thick volume are
/// allocated again, and a missing image is detected.
const PERIOD: Duration = Duration::from_mins(10);
/// How long the agent waits, before it writes a refusal, until the room of the pools is published.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(5);
/// When to retry while another operation holds the volume.
pub(super) const LOCKED: Duration = Duration::from_millis(500);

/// Conditions whose change to true is logged.
const FINISHED: [ConditionType; 5] = [
    ConditionType::Admitted,
    ConditionType::Ready,
    ConditionType::Expanded,
    ConditionType::AttributesApplied,
    ConditionType::Reclaimed,
];

/// A custom resource whose image the agent reconciles.
pub trait ReconciledImage: Reconcile + ImageObject + HasStatus<Status: PartialEq> {
    /// Outcomes that only this kind has.
    type Own: Clone + fmt::Debug + Send + Sync;

    /// The status after a step. Equal to the present one if nothing changed.
    fn status_after(&self, outcome: &ImageOutcome<Self::Own>, now: DateTime<Utc>) -> Self::Status;

    /// Why an outcome that only this kind has did not succeed; None if it did.
    fn failure_of(_own: &Self::Own) -> Option<Explanation> {
        None
    }

    /// The object with its status after a step.
    #[must_use]
    fn after(&self, outcome: &ImageOutcome<Self::Own>, now: DateTime<Utc>) -> Self {
        let mut after = self.clone();
        *after.status_mut() = Some(self.status_after(outcome, now));
        after
    }
}

/// One reconcile of one object, as it was at the start.
#[derive(Debug)]
pub struct Reconciliation<'a, K> {
    pub(super) agent: &'a Agent,
    pub(super) object: &'a K,
    pub(super) name: String,
    began: Instant,
}

impl<'a, K: ReconciledImage> Reconciliation<'a, K> {
    pub(super) fn of(agent: &'a Agent, object: &'a K) -> Self {
        let name = object.name_any();
        Self {
            agent,
            object,
            name,
            began: Instant::now(),
        }
    }

    /// The pool of the object. Fails with the reason if it cannot be used.
    pub(super) fn pool(&self) -> Result<(Arc<PoolState>, Usable), Explanation> {
        let node = &self.agent.node.name;
        let found = self.agent.pools.usable(self.object.pool_name());
        found.map_err(|unavailable| match unavailable {
            Unavailable::Unknown { pool } => {
                let message = format!("node {node} does not carry pool {pool}");
                Explanation::new(Reason::PoolUnknown, message)
            }
            Unavailable::Unusable { pool, why } => {
                let message = format!("pool {pool} on node {node} cannot be used: {why}");
                Explanation::new(Reason::PoolNotReady, message)
            }
        })
    }

    /// A permit to work in the pool of the object.
    pub(super) async fn permit(&self) -> Option<Permit> {
        self.agent.pools.permit(self.object.pool_name()).await
    }

    /// Finds the image of a predecessor with the same name and another UID.
    pub(super) async fn find_own_image(
        &self,
        usable: &Usable,
    ) -> Result<Result<Option<Image>, image::Error>, Error> {
        let (object, now) = (self.object.clone(), (self.agent.node.now)());
        let search = move |pool: &dyn Engine| image::find_adoptable(pool, &object, now);
        self.search(usable, search).await
    }

    /// Runs a search for the image of a predecessor, as one piece of work on the host.
    pub(super) async fn search(
        &self,
        usable: &Usable,
        search: impl FnOnce(&dyn Engine) -> Result<Option<Image>, image::Error> + Send + 'static,
    ) -> Result<Result<Option<Image>, image::Error>, Error> {
        let pool = Arc::clone(&usable.pool);
        let permit = self.permit().await;
        let work = on_host(permit, move || search(&*pool));
        let found = work.await.map_err(|source| self.broken(source))?;
        if let Ok(Some(image)) = &found {
            let (kind, name, image) = (K::NOUN, &self.name, &image.image.uid);
            tracing::info!(kind, name, image, "adopted an existing image");
        }
        Ok(found)
    }

    /// Writes a reservation to the status. Returns None when another write came first, perhaps an
    /// earlier write of the agent that seemed to fail: the reservation remains until the watch
    /// shows the object.
    pub(super) async fn write_reservation(
        &self,
        reservation: &ImageOutcome<K::Own>,
    ) -> Result<Option<K>, Error> {
        let written = self.write(reservation).await;
        match &written {
            Ok(Some(_)) => self.agent.report.request(),
            Err(error) if error.was_refused() => {
                self.agent.admission.withdraw(self.object);
                self.agent.report.request();
            }
            Ok(None) | Err(_) => {}
        }
        written
    }

    pub(super) async fn refuse(&self, refusal: ImageOutcome<K::Own>) -> Result<Action, Error> {
        publish_before_refusal(self.agent).await;
        self.log_refusal(&refusal);
        self.end(refusal).await
    }

    fn log_refusal(&self, refusal: &ImageOutcome<K::Own>) {
        let (kind, name, pool) = (K::NOUN, &self.name, self.object.pool_name());
        let why = refusal.failure(K::failure_of);
        let (reason, error) = logged(why.as_ref());
        tracing::info!(kind, name, pool, reason, error, "refused the object");
    }

    /// Writes the outcome to the status and returns when to reconcile again.
    pub(super) async fn end(&self, outcome: ImageOutcome<K::Own>) -> Result<Action, Error> {
        let was_written = self.write(&outcome).await?.is_some();
        // The watch may show more than the last report, for example a growth that was detected
        // after a restart.
        self.agent.report.request();
        let retries = &K::work(self.agent).retries;
        let action = match &outcome {
            // The object has changed, and that change triggers the next reconcile.
            _ if !was_written => Action::await_change(),
            ImageOutcome::NotReady(_) | ImageOutcome::NotReclaimed(_) => {
                return Ok(self.retry_later(&outcome));
            }
            ImageOutcome::Ready(_) => Action::requeue(PERIOD),
            ImageOutcome::Rested
            | ImageOutcome::Admitted { .. }
            | ImageOutcome::Refused(_)
            | ImageOutcome::DeletionCommitted
            | ImageOutcome::Reclaimed
            | ImageOutcome::Own(_) => Action::await_change(),
        };
        retries.forget(&self.name);
        Ok(action)
    }

    /// Logs the failure and returns when to retry.
    pub(super) fn retry_later(&self, failure: &ImageOutcome<K::Own>) -> Action {
        let wait = K::work(self.agent).retries.failed(self.name.clone());
        let (kind, name, pool) = (K::NOUN, &self.name, self.object.pool_name());
        let why = failure.failure(K::failure_of);
        let (reason, error) = logged(why.as_ref());
        tracing::warn!(
            kind,
            name,
            pool,
            reason,
            error,
            ?wait,
            "the object does not match its spec, retrying"
        );
        Action::requeue(wait)
    }

    /// Writes the status if it changed. Returns None when the object has changed since: the write
    /// is guarded by its resource version.
    pub(super) async fn write(&self, outcome: &ImageOutcome<K::Own>) -> Result<Option<K>, Error> {
        let after = self.object.after(outcome, (self.agent.node.now)());
        if self.object.status() == after.status() {
            return Ok(Some(after));
        }
        let written = K::work(self.agent).write(&after).await?;
        if written.is_some() {
            self.log_finished(&after);
        }
        Ok(written)
    }

    /// Logs each condition that this reconcile made true.
    fn log_finished(&self, after: &K) {
        let holds = |object: &K, kind| condition::holds(object.conditions(), kind);
        let (kind, name, volume) = (K::NOUN, &self.name, self.object.volume());
        let (pool, node) = (self.object.pool_name(), &self.agent.node.name);
        let elapsed_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        for condition in FINISHED {
            if holds(after, condition) && !holds(self.object, condition) {
                tracing::info!(kind, name, volume, pool, node, %condition, elapsed_ms, "condition became true");
            }
        }
    }

    pub(super) fn broken(&self, source: blocking::Broken) -> Error {
        Error::Broken {
            object: named(self.object),
            source,
        }
    }
}

/// The reason and the message of a failure, as fields of a log line.
fn logged(why: Option<&Explanation>) -> (Option<&str>, Option<&str>) {
    why.map(|why| (why.reason.as_str(), why.message.as_str()))
        .unzip()
}

/// Publishes the room of the pools before the agent refuses an object for lack of it.
///
/// The scheduler then looks for another node. By then the published room must show the reason for the
/// refusal, or the same node is chosen again.
async fn publish_before_refusal(agent: &Agent) {
    match timeout(PUBLISH_PATIENCE, report::publish(agent)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(error = %Chain(&error), "cannot publish the room of the pools before a refusal");
        }
        Err(_) => {
            tracing::warn!("the room of the pools is not published in time for a refusal");
        }
    }
}
