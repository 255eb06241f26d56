//! Removing an object, and the image that it stands for.
//!
//! *Invariant:* the next step follows from the object alone ([`cistern_crds::removal`]), so that
//! whoever comes next resumes.

use std::time::Duration;

use cistern_crds::{
    Condition, ConditionStatus, ConditionType, Reason, Stored, condition,
    names::FINALIZER,
    removal::{self, Step},
};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::timeout;

use super::{Error, Kind, Objects, attendance::Attention, named};

/// How long that an object is in use, as it was said to an earlier call, is waited to be taken back:
/// the agent looks again when a volume is unstaged, and the call may come just then.
const SECOND_LOOK: Duration = Duration::from_secs(3);

impl<K: Kind + Stored> Objects<K> {
    /// Has the data destroyed and the object removed. One that is not there is fine (DV-03, DS-03),
    /// and one that was half removed is removed (DV-08).
    pub async fn remove(&self, attention: &mut Attention<K>) -> Result<(), Error> {
        let mut current = self.find(attention.name()).await?;
        let mut is_news = false;
        while let Some(object) = current {
            current = match removal::next(&object) {
                Step::Await => {
                    attention.note(self.reclaiming(&object));
                    let change = self.change(&object, attention);
                    let change = match refuse_in_use(&object) {
                        Ok(()) => change.await,
                        Err(in_use) if is_news => return Err(in_use),
                        Err(in_use) => timeout(SECOND_LOOK, change).await.map_err(|_| in_use)?,
                    }?;
                    let version = |object: &K| object.resource_version();
                    is_news |= change.as_ref().map(version) != Some(version(&object));
                    match change {
                        Some(changed) => Some(changed),
                        None => self.find_again(&object).await?,
                    }
                }
                Step::Held => None,
                step @ (Step::Ask | Step::Delete | Step::Release) => {
                    self.advance(&object, step).await?
                }
            };
        }
        Ok(())
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

fn refuse_in_use<K: Kind + Stored>(object: &K) -> Result<(), Error> {
    match reclaimed(object) {
        Some(condition)
            if condition.status == ConditionStatus::False.as_str()
                && condition.reason == Reason::InUse.as_str() =>
        {
            Err(Error::InUse {
                object: named::<K>(&object.name_any()),
                node: object.node_name().to_owned(),
                message: condition.message.clone(),
            })
        }
        Some(_) | None => Ok(()),
    }
}
