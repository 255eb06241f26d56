//! Images beside a volume's own: the copy on the node that a volume moves to, and what the node keeps that it moves
//! away from.
//!
//! ```text
//! Incoming: reserve, and more when the volume grows
//!   ─▶ receive what an ImageTransfer permits: snapshots, in passes, and the closed volume ─▶ complete
//! Retained: reserve ─▶ close the image, if the volume was promoted elsewhere without that
//! deletion requested ─▶ ask the API server whether the volume needs the image ─▶ remove it
//! ```
//!
//! The copy becomes the volume's own when the volume names this node (`volume/moving.rs`).
//!
//! *Invariants:* a copy that was complete is never begun again. The status names no snapshot whose copy the pool has
//! lost. An image is removed only for `spec.deletionRequested`, and only while the volume does not need it, by the API
//! server and not by the watch.

mod point;
mod remove;
mod retain;
pub mod status;

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{
    Explanation, HasImage as _, PoolReplica, PoolReplicaStatus, Reason, ReceivedSnapshot,
    ReplicaPurpose,
};
use cistern_host::{Owner, Uid};
use kube::runtime::{controller::Action, reflector::ObjectRef};

use self::status::{Own, ReplicaOutcome};
use super::{
    Agent,
    desired::readable,
    kind::Kind as _,
    plan::{ObjectPhase, phase},
    reconcile::{LOCKED, ReconciledImage, Reconciliation, progress::ReportedProgress},
    work::{Error, Reconcile, Work},
};
use crate::{
    agent::transfers::{self, NotCopied, Received, Wanted},
    blocking::on_host,
    image::{Difference, Image, ImageObject},
};

/// How often a complete copy is looked for.
const PERIOD: Duration = Duration::from_mins(10);

impl Reconcile for PoolReplica {
    fn pool(&self) -> Option<&str> {
        Some(&self.spec.pool_name)
    }

    fn work(agent: &Agent) -> &Work<Self> {
        &agent.work.replicas
    }

    async fn reconcile(agent: &Agent, replica: &Self) -> Result<Action, Error> {
        let (reconciliation, phase) = (Reconciliation::of(agent, replica), phase(replica));
        let pool = &replica.spec.pool_name;
        tracing::debug!(replica = reconciliation.name, pool, ?phase, "reconciling");
        match phase {
            ObjectPhase::Rest => reconciliation.end(ReplicaOutcome::Rested).await,
            ObjectPhase::Admit => reconciliation.admit().await,
            ObjectPhase::Admitted if replica.reserved() < Some(replica.spec.size) => {
                reconciliation.grow().await
            }
            ObjectPhase::Admitted => match replica.spec.purpose {
                ReplicaPurpose::Retained => Box::pin(reconciliation.retain()).await,
                ReplicaPurpose::Incoming if replica.is_complete() => reconciliation.keep().await,
                ReplicaPurpose::Incoming => Box::pin(reconciliation.receive()).await,
            },
            ObjectPhase::Reclaim => reconciliation.remove().await,
        }
    }
}

impl ImageObject for PoolReplica {
    fn noun() -> &'static str {
        Self::NOUN
    }

    fn volume(&self) -> String {
        self.spec.volume_name.clone()
    }

    fn is_named(&self, owner: &Owner) -> bool {
        owner.volume() == Some(&self.spec.volume_name)
    }

    // The volume compares the image with its spec once it is its own.
    fn is_served_by(&self, _: &Image) -> Result<(), Difference> {
        Ok(())
    }
}

impl ReconciledImage for PoolReplica {
    type Own = Own;

    fn status_after(&self, outcome: &ReplicaOutcome, now: DateTime<Utc>) -> PoolReplicaStatus {
        status::after(self, outcome, now)
    }
}

impl ReportedProgress for PoolReplica {
    /// Writes how far the copy is.
    async fn report(reconciliation: &Reconciliation<'_, Self>, object: Self) -> Option<Self> {
        let agent = reconciliation.agent;
        let conditions = object.status.as_ref().map_or(&[][..], |it| &it.conditions);
        let volume = &object.spec.volume_name;
        let copies = &agent.transfers.copies;
        let Some(progress) = copies.unreported_progress(volume, conditions) else {
            return Some(object);
        };
        let reporting = Reconciliation::of(agent, &object);
        let copying = ReplicaOutcome::Own(Own::Copying(progress));
        let written = reporting.write(&copying).await;
        match written {
            Ok(written) => written,
            Err(error) => {
                let (replica, error) = (&reconciliation.name, Chain(&error));
                tracing::warn!(replica, %error, "cannot report the progress");
                Some(object)
            }
        }
    }
}

impl Reconciliation<'_, PoolReplica> {
    /// Reserves the bytes of the image, or refuses it.
    async fn admit(&self) -> Result<Action, Error> {
        let pool_state = match self.pool() {
            Ok((pool_state, _)) => pool_state,
            Err(why) => return self.refuse(ReplicaOutcome::Refused(why)).await,
        };
        let size = match self.agent.admission.replica(self.object, &pool_state) {
            Ok(size) => size,
            Err(why) => return self.refuse(ReplicaOutcome::Refused(why)).await,
        };
        // The watch shows the reservation and so triggers the next step.
        let admitted = ReplicaOutcome::Admitted { size, image: None };
        self.write_reservation(&admitted).await?;
        Ok(Action::await_change())
    }

    /// Reserves the bytes that the image needs since its volume has grown. What the node has stays if there is no room.
    async fn grow(&self) -> Result<Action, Error> {
        let pool_state = match self.pool() {
            Ok((pool_state, _)) => pool_state,
            Err(why) => return self.end(ReplicaOutcome::NotReady(why)).await,
        };
        let size = match self.agent.admission.replica(self.object, &pool_state) {
            Ok(size) => size,
            Err(why) => return self.end(ReplicaOutcome::NotReady(why)).await,
        };
        let admitted = ReplicaOutcome::Admitted { size, image: None };
        self.write_reservation(&admitted).await?;
        Ok(Action::await_change())
    }

    /// Receives the copy of the volume.
    async fn receive(&self) -> Result<Action, Error> {
        let usable = match self.pool() {
            Ok((_, usable)) => usable,
            Err(why) => return self.end(ReplicaOutcome::NotReady(why)).await,
        };
        let wanted = match Wanted::of_replica(self.object) {
            Ok(wanted) => wanted,
            Err(error) => return self.end(invalid(&error)).await,
        };
        let Some(guard) = self.agent.locks.try_lock(&self.object.spec.volume_name) else {
            return Ok(Action::requeue(LOCKED));
        };
        if let Some(action) = self.correct_snapshot(&usable.pool, &wanted).await? {
            return Ok(action);
        }
        let target = (Arc::clone(&usable.pool), guard);
        let receiving = transfers::receive(self.agent, &wanted, target);
        let receiving = self.report_while(Box::pin(receiving), Self::is_to_be_removed);
        let Some((received, object)) = receiving.await else {
            return Ok(Action::requeue(LOCKED));
        };
        let reported = Reconciliation::of(self.agent, &object);
        match received {
            Ok(Received::Complete) => reported.end(ReplicaOutcome::Own(Own::Complete)).await,
            Ok(Received::Snapshot { image, took }) => reported.passed(&image, took).await,
            // A copy of a move goes on once there is space. The operator decides whether the move waits for that.
            Err(NotCopied::Later(why) | NotCopied::Gone(why) | NotCopied::Full(why)) => {
                reported.wait(why).await
            }
        }
    }

    /// Reports why the copy waits, and returns when it goes on.
    async fn wait(&self, why: Explanation) -> Result<Action, Error> {
        if why.reason != Reason::Copying {
            tracing::info!(replica = self.name, %why, "the copy waits");
        }
        match self.write(&ReplicaOutcome::NotReady(why)).await? {
            Some(_) => Ok(Action::requeue(transfers::RETRY)),
            None => Ok(Action::await_change()),
        }
    }

    /// Reports that the node has a complete copy of a snapshot. The next pass begins once it is permitted.
    async fn passed(&self, image: &Uid, took: Option<Duration>) -> Result<Action, Error> {
        let seconds = took.map(|took| u32::try_from(took.as_millis().div_ceil(1000)));
        let received = ReceivedSnapshot {
            image: image.to_string(),
            received: (self.agent.node.now)(),
            seconds: seconds.map(|seconds| seconds.unwrap_or(u32::MAX)),
        };
        let reported = self.object.received_snapshot();
        if reported.is_none_or(|reported| reported.image != received.image) {
            let (replica, seconds) = (&self.name, received.seconds);
            tracing::info!(replica, %image, seconds, "a snapshot of the volume was copied");
            let passed = ReplicaOutcome::Own(Own::Passed(received));
            if self.write(&passed).await?.is_none() {
                return Ok(Action::await_change());
            }
        }
        Ok(Action::requeue(transfers::RETRY))
    }

    /// Whether the removal of the image is requested by now, or the object is gone: the copy ends. A source that hangs
    /// sends nothing, so that nothing is written which could show it.
    fn is_to_be_removed(&self) -> bool {
        let shown = self.agent.desired.replicas.get(&ObjectRef::new(&self.name));
        let is_requested = |replica: &PoolReplica| replica.spec.deletion_requested;
        shown.as_deref().and_then(readable).is_none_or(is_requested)
    }

    /// Looks for a complete copy. It is the volume's own image once the volume has moved.
    async fn keep(&self) -> Result<Action, Error> {
        let usable = match self.pool() {
            Ok((_, usable)) => usable,
            Err(why) => return self.end(ReplicaOutcome::NotReady(why)).await,
        };
        let wanted = match Wanted::of_replica(self.object) {
            Ok(wanted) => wanted,
            Err(error) => return self.end(invalid(&error)).await,
        };
        let permit = self.permit().await;
        let looking = on_host(permit, move || wanted.is_received(&*usable.pool));
        let found = looking.await.map_err(|source| self.broken(source))?;
        let outcome = match found {
            Ok(true) => ReplicaOutcome::Own(Own::Complete),
            Ok(false) => {
                let message = "the complete copy is missing in the pool";
                ReplicaOutcome::NotReady(Explanation::new(Reason::ImageMissing, message))
            }
            Err(error) => {
                let why = Chain(&error).to_string();
                ReplicaOutcome::NotReady(Explanation::new(error.reason(), why))
            }
        };
        let is_complete = matches!(outcome, ReplicaOutcome::Own(_));
        let action = self.end(outcome).await?;
        Ok(if is_complete {
            Action::requeue(PERIOD)
        } else {
            action
        })
    }
}

fn invalid(error: &cistern_host::InvalidUid) -> ReplicaOutcome {
    let why = Explanation::new(Reason::IdentityConflict, Chain(error).to_string());
    ReplicaOutcome::NotReady(why)
}
