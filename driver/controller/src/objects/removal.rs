//! Removes an object and its image.
//!
//! *Invariant:* the object alone determines the next step ([`cistern_crds::removal`]), so that the
//! next call resumes. A volume in use is unchanged: the call withdraws the request for its deletion
//! before it returns the error.

use std::time::Duration;

use cistern_crds::{
    Condition, ConditionStatus, ConditionType, HasImage, Reason, condition,
    names::FINALIZER,
    removal::{self, RemovalStep},
};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::{Error, ManagedObject, Objects, in_flight::Operation, named};

/// How long to wait until an object in use is released: kubelet unstages a volume a moment after
/// its pod is gone, and DeleteVolume comes as soon as the pod is gone.
const LET_GO: Duration = Duration::from_secs(5);
/// How long before its deadline a call stops waiting for an object in use: it still has to withdraw the deletion.
const WITHDRAWAL: Duration = Duration::from_secs(1);

impl<K: ManagedObject + HasImage> Objects<K> {
    /// Destroys the data and removes the object. Succeeds if the object does not exist (DV-03,
    /// DS-03), and finishes an interrupted removal (DV-08). Fails if the object stays in use, if
    /// its agent is silent, or if a request to the API server fails.
    pub async fn remove(&self, operation: &mut Operation<K>) -> Result<(), Error> {
        let mut current = self.find(operation.name()).await?;
        // Deadline for an object in use, from when it is first seen in use.
        let mut patience = None;
        while let Some(object) = current {
            current = match removal::next(&object) {
                RemovalStep::Await => {
                    self.await_reclaim(&object, &mut patience, operation)
                        .await?
                }
                RemovalStep::Held => None,
                step @ (RemovalStep::Ask | RemovalStep::Delete | RemovalStep::Release) => {
                    self.advance(&object, step).await?
                }
            };
        }
        Ok(())
    }

    /// Waits until an object under deletion has changed, and returns it. Fails if it stays in use.
    async fn await_reclaim(
        &self,
        object: &K,
        patience: &mut Option<Instant>,
        operation: &mut Operation<K>,
    ) -> Result<Option<K>, Error> {
        operation.note(self.reclaiming(object));
        let change = match in_use(object) {
            None => self.change(object, operation).await?,
            Some(in_use) => {
                let until = give_up_at(Instant::now(), operation.deadline());
                let until = *patience.get_or_insert(until);
                match timeout_at(until, self.change(object, operation)).await {
                    Err(_) | Ok(Err(Error::PoolNotReady { .. })) => {
                        return self.give_up(object, in_use).await;
                    }
                    Ok(change) => change?,
                }
            }
        };
        match change {
            Some(changed) => Ok(Some(changed)),
            None => self.find_again(object).await,
        }
    }

    /// Withdraws the deletion of an object in use and returns the in-use error. Returns the object
    /// after a conflicting write, perhaps by its agent: check again.
    async fn give_up(&self, object: &K, in_use: Error) -> Result<Option<K>, Error> {
        if object.deletion_committed() {
            return Err(in_use);
        }
        let keep = json!({"spec": {"deletionRequested": false}});
        match self.patch("keep", object, keep).await? {
            Some(kept) if !kept.deletion_requested() => Err(in_use),
            changed => Ok(changed),
        }
    }

    /// Removes an object that no agent has admitted. Returns false if one has admitted it
    /// meanwhile, or if foreign finalizers keep it: check again. Fails if a request to the API
    /// server fails.
    pub async fn withdraw(&self, object: K) -> Result<bool, Error> {
        let mut current = Some(object);
        while let Some(object) = current {
            current = match removal::next(&object) {
                _ if object.reserved().is_some() => return Ok(false),
                RemovalStep::Await | RemovalStep::Held => return Ok(false),
                step @ (RemovalStep::Ask | RemovalStep::Delete | RemovalStep::Release) => {
                    self.advance(&object, step).await?
                }
            };
        }
        Ok(true)
    }

    /// Finishes the removal of an object whose name is requested again. Fails with
    /// [`Error::Pending`] if the removal waits for the agent or for foreign finalizers, and if a
    /// request to the API server fails.
    pub async fn finish_removal(
        &self,
        object: K,
        operation: &mut Operation<K>,
    ) -> Result<(), Error> {
        match removal::next(&object) {
            RemovalStep::Await => {
                operation.note(format!(
                    "its deletion, which waits for {}",
                    self.reclaiming(&object)
                ));
                Err(operation.pending())
            }
            RemovalStep::Held => {
                let finalizers = object.finalizers().join(", ");
                operation.note(format!(
                    "the finalizers {finalizers} to be removed from an old object"
                ));
                Err(operation.pending())
            }
            RemovalStep::Ask | RemovalStep::Delete | RemovalStep::Release => {
                self.withdraw(object).await.map(drop)
            }
        }
    }

    /// What the removal of an admitted object waits for.
    fn reclaiming(&self, object: &K) -> String {
        let node = object.node_name();
        let said = reclaimed(object).map_or("", |condition| condition.message.as_str());
        match self.nodes.unavailable(node, object.pool_name()) {
            Some(unavailable) => format!("node {node} to remove its data: {unavailable}"),
            None => format!("node {node} to remove its data: {said}"),
        }
    }
}

impl<K: ManagedObject> Objects<K> {
    /// Performs one step and returns the object as it is now; None if it is gone. Fails if a
    /// request to the API server fails.
    pub async fn advance(&self, object: &K, step: RemovalStep) -> Result<Option<K>, Error> {
        let change = match step {
            RemovalStep::Ask => json!({"spec": {"deletionRequested": true}}),
            RemovalStep::Release => {
                let rest: Vec<&String> = object
                    .finalizers()
                    .iter()
                    .filter(|name| *name != FINALIZER)
                    .collect();
                json!({"metadata": {"finalizers": rest}})
            }
            RemovalStep::Delete => return self.delete(object).await,
            RemovalStep::Await | RemovalStep::Held => return Ok(Some(object.clone())),
        };
        self.patch("remove", object, change).await
    }
}

/// When a call with a deadline gives up on an object that is in use now.
fn give_up_at(now: Instant, deadline: Option<Instant>) -> Instant {
    let last = deadline.map(|deadline| deadline.checked_sub(WITHDRAWAL).unwrap_or(now));
    last.map_or(now + LET_GO, |last| last.min(now + LET_GO))
}

fn reclaimed<K: HasImage>(object: &K) -> Option<&Condition> {
    condition::find(object.conditions(), ConditionType::Reclaimed)
}

/// The error for an object that its agent reports in use for the current generation.
fn in_use<K: ManagedObject + HasImage>(object: &K) -> Option<Error> {
    let condition = reclaimed(object)?;
    let is_in_use = condition.status == ConditionStatus::False.as_str()
        && condition.reason == Reason::InUse.as_str()
        && condition.observed_generation == object.meta().generation;
    is_in_use.then(|| Error::InUse {
        object: named::<K>(&object.name_any()),
        node: object.node_name().to_owned(),
        message: condition.message.clone(),
    })
}

#[cfg(test)]
mod tests {
    use cistern_crds::{PoolVolume, condition::ConditionUpdate};

    use super::*;
    use crate::testing::{at, ready_volume};

    #[test]
    fn dv_04_a_call_leaves_time_before_its_deadline_to_withdraw_the_deletion() {
        let now = Instant::now();
        let waits = |millis: Option<u64>| {
            let deadline = millis.map(|millis| now + Duration::from_millis(millis));
            give_up_at(now, deadline).saturating_duration_since(now)
        };
        assert_eq!(waits(None), LET_GO);
        assert_eq!(waits(Some(58_000)), LET_GO);
        assert_eq!(waits(Some(6_000)), LET_GO);
        assert_eq!(waits(Some(2_000)), Duration::from_secs(1));
        assert_eq!(waits(Some(500)), Duration::ZERO);
    }

    #[test]
    fn dv_04_in_use_counts_for_the_deletion_that_it_was_said_of() {
        let said = |reason, generation| -> PoolVolume {
            let mut volume = ready_volume();
            volume.spec.deletion_requested = true;
            volume.metadata.generation = Some(4);
            let finding =
                ConditionUpdate::new(ConditionType::Reclaimed, false, reason, "it is staged");
            let conditions = &mut volume.status.as_mut().unwrap().conditions;
            condition::set(conditions, &finding, Some(generation), at(0));
            volume
        };
        let error = in_use(&said(Reason::InUse, 4)).unwrap().to_string();
        assert!(
            error.contains("volume pvc-1 is in use on node node-1"),
            "{error}"
        );
        assert!(
            in_use(&said(Reason::InUse, 2)).is_none(),
            "taken back since"
        );
        assert!(in_use(&said(Reason::ReclaimFailed, 4)).is_none());
        assert!(in_use(&ready_volume()).is_none());
    }
}
