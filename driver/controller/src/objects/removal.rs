//! Removing an object, and the image that it stands for.
//!
//! *Invariant:* the next step follows from the object alone ([`cistern_crds::removal`]), so that
//! whoever comes next resumes. A volume that is in use is left as it was before: its deletion is not
//! desired any more when the caller hears of it.

use std::time::Duration;

use cistern_crds::{
    Condition, ConditionStatus, ConditionType, Reason, Stored, condition,
    names::FINALIZER,
    removal::{self, Step},
};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::{Error, Kind, Objects, attendance::Attention, named};

/// How long an object that is in use is waited to be let go: kubelet unstages a volume a moment after
/// its pod is gone, and DeleteVolume comes as soon as the pod is gone.
const LET_GO: Duration = Duration::from_secs(5);

impl<K: Kind + Stored> Objects<K> {
    /// Has the data destroyed and the object removed. One that is not there is fine (DV-03, DS-03),
    /// and one that was half removed is removed (DV-08).
    pub async fn remove(&self, attention: &mut Attention<K>) -> Result<(), Error> {
        let mut current = self.find(attention.name()).await?;
        // Until when an object in use is waited for, once it was seen to be.
        let mut patience = None;
        while let Some(object) = current {
            current = match removal::next(&object) {
                Step::Await => {
                    self.await_reclaim(&object, &mut patience, attention)
                        .await?
                }
                Step::Held => None,
                step @ (Step::Ask | Step::Delete | Step::Release) => {
                    self.advance(&object, step).await?
                }
            };
        }
        Ok(())
    }

    /// Waits until an object that is to go has changed, and gives it as it is then. One that stays in
    /// use is an error.
    async fn await_reclaim(
        &self,
        object: &K,
        patience: &mut Option<Instant>,
        attention: &mut Attention<K>,
    ) -> Result<Option<K>, Error> {
        attention.note(self.reclaiming(object));
        let change = self.change(object, attention);
        let change = match in_use(object) {
            None => change.await?,
            Some(in_use) => {
                let until = *patience.get_or_insert_with(|| Instant::now() + LET_GO);
                match timeout_at(until, change).await {
                    Ok(change) => change?,
                    Err(_) => return self.give_up(object, in_use).await,
                }
            }
        };
        match change {
            Some(changed) => Ok(Some(changed)),
            None => self.find_again(object).await,
        }
    }

    /// Takes the desired deletion of an object in use back and answers that it is in use. Gives the
    /// object where somebody was faster, perhaps its agent: look again.
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

    /// Removes an object that no agent has admitted. False if one has by now, or if the object is
    /// held by somebody else: look again.
    pub async fn withdraw(&self, object: K) -> Result<bool, Error> {
        let mut current = Some(object);
        while let Some(object) = current {
            current = match removal::next(&object) {
                _ if object.reserved().is_some() => return Ok(false),
                Step::Await | Step::Held => return Ok(false),
                step @ (Step::Ask | Step::Delete | Step::Release) => {
                    self.advance(&object, step).await?
                }
            };
        }
        Ok(true)
    }

    /// Brings to an end what began to remove an object whose name is wanted again; or says what
    /// that waits for.
    pub async fn see_off(&self, object: K, attention: &mut Attention<K>) -> Result<(), Error> {
        match removal::next(&object) {
            Step::Await => {
                attention.note(format!(
                    "its deletion, which waits for {}",
                    self.reclaiming(&object)
                ));
                Err(attention.pending())
            }
            Step::Held => {
                let finalizers = object.finalizers().join(", ");
                attention.note(format!(
                    "the finalizers {finalizers} to be taken off an old object"
                ));
                Err(attention.pending())
            }
            Step::Ask | Step::Delete | Step::Release => self.withdraw(object).await.map(drop),
        }
    }

    /// What the removal of an admitted object waits for.
    fn reclaiming(&self, object: &K) -> String {
        let node = object.node_name();
        let said = reclaimed(object).map_or("", |condition| condition.message.as_str());
        match self.nodes.unfit(node, object.pool_name()) {
            Some(unfit) => format!("node {node} to remove its data, which {unfit}"),
            None => format!("node {node} to remove its data: {said}"),
        }
    }
}

impl<K: Kind> Objects<K> {
    /// Does one step and gives the object as it is then: none when it is gone, and read anew when
    /// somebody else changed it.
    pub async fn advance(&self, object: &K, step: Step) -> Result<Option<K>, Error> {
        let change = match step {
            Step::Ask => json!({"spec": {"deletionRequested": true}}),
            Step::Release => {
                let rest: Vec<&String> = object
                    .finalizers()
                    .iter()
                    .filter(|name| *name != FINALIZER)
                    .collect();
                json!({"metadata": {"finalizers": rest}})
            }
            Step::Delete => return self.delete(object).await,
            Step::Await | Step::Held => return Ok(Some(object.clone())),
        };
        self.patch("remove", object, change).await
    }
}

fn reclaimed<K: Stored>(object: &K) -> Option<&Condition> {
    condition::find(object.conditions(), ConditionType::Reclaimed)
}

/// The error for an object that its agent finds in use, where that was said of its desired deletion
/// as it stands now.
fn in_use<K: Kind + Stored>(object: &K) -> Option<Error> {
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
    use cistern_crds::{PoolVolume, condition::Finding};

    use super::*;
    use crate::testing::{at, ready_volume};

    #[test]
    fn dv_04_in_use_counts_for_the_deletion_that_it_was_said_of() {
        let said = |reason, generation| -> PoolVolume {
            let mut volume = ready_volume();
            volume.spec.deletion_requested = true;
            volume.metadata.generation = Some(4);
            let finding = Finding::new(ConditionType::Reclaimed, false, reason, "it is staged");
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
