//! Changes the spec of a volume, and waits until its agent has made the change or refuses it.
//!
//! ```text
//! spec changed ─▶ agent admits ─▶ agent makes the change: done
//!                 agent refuses ─▶ spec restored: not possible
//! ```
//!
//! *Invariant:* a refusal is answered only after the spec is restored, so that no agent makes the change later when there
//! is room. What is admitted is never restored.

use std::fmt::Display;

use cistern_crds::PoolVolume;
use kube::ResourceExt as _;
use serde_json::Value;
use tokio::time::Instant;

use super::{Error, Volumes};
use crate::objects::{in_flight::Operation, nodes::Nodes, not_found};

/// A change that is requested of a volume.
pub(super) trait Change {
    /// The value of the field.
    type Desired: Copy + Display;
    /// The result of the change.
    type Made;

    /// The field of the spec.
    const FIELD: &'static str;
    /// What the API server is to do at first.
    const ASK: &'static str;
    /// What the API server is to do after a refusal.
    const RESTORE: &'static str;
    /// What the node is to do.
    const MAKE: &'static str;

    /// The next step. Fails if the change is never possible.
    fn next(&self, volume: &PoolVolume) -> Result<Step<Self::Desired, Self::Made>, Error>;

    /// Fails if the pool of the volume never takes the value.
    fn check(&self, nodes: &Nodes, volume: &PoolVolume, to: Self::Desired) -> Result<(), Error>;

    /// The value in the spec.
    fn current(volume: &PoolVolume) -> Self::Desired;

    /// The value in a merge patch.
    fn patch(to: Self::Desired) -> Value;
}

/// The next step of a change.
#[derive(Debug)]
pub(super) enum Step<D, M> {
    /// The change is made.
    Done(M),
    /// Deletion of the volume is requested.
    Leaving,
    /// The spec does not request this value, or it was restored.
    Ask(D),
    /// The agent refuses the value in the spec.
    Restore {
        /// The value that stays in force.
        to: D,
        /// The error, if the refused value is the requested one.
        refusal: Option<Error>,
    },
    /// The agent has not answered yet, or is making the change; its message.
    Wait(String),
}

impl Volumes {
    /// Ensures that a change of a volume is made.
    ///
    /// Fails if the change is not possible, if the agent is silent, if the volume is gone, or if a request to the API
    /// server fails. Also fails at the deadline: the state stays as it is, and a repeated call resumes.
    pub(super) async fn change<C: Change>(
        &self,
        volume: PoolVolume,
        change: &C,
        deadline: Instant,
    ) -> Result<C::Made, Error> {
        let id = volume.name_any();
        let changing = async |operation: &mut _| self.make(volume, change, operation).await;
        self.objects.run_exclusive(&id, deadline, changing).await
    }

    async fn make<C: Change>(
        &self,
        mut volume: PoolVolume,
        change: &C,
        operation: &mut Operation<PoolVolume>,
    ) -> Result<C::Made, Error> {
        // What the agent wrote before this operation began is not delivered to it.
        volume = self.read_again(&volume).await?;
        // A refusal from before this call may be stale: ask once more.
        let (mut asked, mut refused) = (false, None);
        loop {
            let next = match change.next(&volume)? {
                Step::Done(made) => return Ok(made),
                Step::Leaving => return Err(not_found::<PoolVolume>(operation.name()).into()),
                Step::Ask(to) => {
                    if let Some(refusal) = refused.take() {
                        return Err(refusal);
                    }
                    change.check(self.objects.nodes(), &volume, to)?;
                    asked = true;
                    operation.note(C::ASK);
                    self.set::<C>(&volume, to).await?
                }
                Step::Restore { to, refusal } => {
                    refused = refusal.filter(|_| asked);
                    operation.note(C::RESTORE);
                    self.set::<C>(&volume, to).await?
                }
                Step::Wait(message) => {
                    asked = true;
                    operation.note(self.waiting_for_node(&volume, C::MAKE, &message));
                    match self.objects.change(&volume, operation).await? {
                        Some(newer) => Some(newer),
                        None => self.objects.find_again(&volume).await?,
                    }
                }
            };
            volume = next.ok_or_else(|| not_found::<PoolVolume>(operation.name()))?;
        }
    }

    /// Changes the field of the spec and returns the object, also after a conflicting write.
    async fn set<C: Change>(
        &self,
        volume: &PoolVolume,
        to: C::Desired,
    ) -> Result<Option<PoolVolume>, Error> {
        let (name, from, field) = (volume.name_any(), C::current(volume), C::FIELD);
        tracing::info!(volume = name, %from, %to, "changing spec.{field} of the volume");
        let (action, patch) = (format!("change the {field} of"), C::patch(to));
        Ok(self.objects.patch(&action, volume, patch).await?)
    }

    /// What a change of a volume waits for.
    fn waiting_for_node(&self, volume: &PoolVolume, change: &str, message: &str) -> String {
        let (node, pool) = (&volume.spec.node_name, &volume.spec.pool_name);
        match self.objects.nodes().unavailable(node, pool) {
            Some(unavailable) => format!("node {node} to {change}: {unavailable}"),
            None => format!("node {node} to {change}: {message}"),
        }
    }
}
