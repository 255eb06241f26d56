//! Removing a volume.
//!
//! ```text
//!          Ask                  Await                 Delete             Release
//! spec ─▶ deletionRequested ─▶ agent reclaims ─▶ deletionTimestamp ─▶ finalizer off ─▶ gone
//!                              (only if admitted)
//! ```
//!
//! *Invariant:* the next step follows from the object alone, so that whoever comes next resumes. The
//! object goes only when no bytes are reserved for it and none will be: the agent admits nothing
//! whose deletion is asked for.

use std::time::Duration;

use cistern_client::{Rejection, writes};
use cistern_crds::{
    ConditionStatus, ConditionType, PoolVolume, Reason, condition,
    names::{CONTROLLER_MANAGER, FINALIZER},
};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Error, Volumes, ensure::pending, failed, watch::Attention};

/// How long that a volume is in use, as it was said to an earlier call, is waited to be taken back:
/// the agent looks again when the volume is unstaged, and the call may come just then.
const SECOND_LOOK: Duration = Duration::from_secs(3);

impl Volumes {
    /// Has the volume's data destroyed and its object removed. A volume that is not there is fine
    /// (DV-03), and one that was half removed is removed (DV-08).
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn delete(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        let mut attention = self.attend(id)?;
        attention.note("the API server to answer");
        match timeout_at(deadline, self.remove(&mut attention)).await {
            Ok(result) => result,
            Err(_) => Err(pending(&attention)),
        }
    }

    async fn remove(&self, attention: &mut Attention) -> Result<(), Error> {
        let mut current = self.find(attention.name()).await?;
        let mut is_news = false;
        while let Some(volume) = current {
            current = match step(&volume) {
                Step::Await => {
                    attention.note(self.reclaiming(&volume));
                    let change = attention.change(&volume);
                    let change = match refuse_in_use(&volume) {
                        Ok(()) => change.await,
                        Err(in_use) if is_news => return Err(in_use),
                        Err(in_use) => timeout(SECOND_LOOK, change).await.map_err(|_| in_use)?,
                    };
                    let version = |volume: &PoolVolume| volume.resource_version();
                    is_news |= change.as_ref().map(version) != Some(version(&volume));
                    match change {
                        Some(changed) => Some(changed),
                        None => self.find_again(&volume).await?,
                    }
                }
                Step::Held => None,
                step @ (Step::Ask | Step::Delete | Step::Release) => {
                    self.advance(&volume, step).await?
                }
            };
        }
        self.until_shown(attention.name(), false).await;
        Ok(())
    }

    /// Removes an object that no agent has admitted. False if one has by now, or if the object is
    /// held by somebody else: look again.
    pub(super) async fn withdraw(&self, volume: PoolVolume) -> Result<bool, Error> {
        let mut current = Some(volume);
        while let Some(volume) = current {
            current = match step(&volume) {
                _ if is_admitted(&volume) => return Ok(false),
                Step::Await | Step::Held => return Ok(false),
                step @ (Step::Ask | Step::Delete | Step::Release) => {
                    self.advance(&volume, step).await?
                }
            };
        }
        Ok(true)
    }

    /// Brings to an end what began to remove an object whose name is wanted again; or says what
    /// that waits for.
    pub(super) async fn see_off(
        &self,
        volume: PoolVolume,
        attention: &mut Attention,
    ) -> Result<(), Error> {
        match step(&volume) {
            Step::Await => {
                attention.note(format!(
                    "its deletion, which waits for {}",
                    self.reclaiming(&volume)
                ));
                Err(pending(attention))
            }
            Step::Held => {
                let finalizers = volume.finalizers().join(", ");
                attention.note(format!(
                    "the finalizers {finalizers} to be taken off an old object"
                ));
                Err(pending(attention))
            }
            Step::Ask | Step::Delete | Step::Release => self.withdraw(volume).await.map(drop),
        }
    }

    /// Does one step and gives the object as it is then: none when it is gone, and read anew when
    /// somebody else changed it.
    async fn advance(&self, volume: &PoolVolume, step: Step) -> Result<Option<PoolVolume>, Error> {
        let change = match step {
            Step::Ask => json!({"spec": {"deletionRequested": true}}),
            Step::Release => {
                let rest: Vec<&String> = volume
                    .finalizers()
                    .iter()
                    .filter(|name| *name != FINALIZER)
                    .collect();
                json!({"metadata": {"finalizers": rest}})
            }
            Step::Delete => {
                let deleted = writes::delete_exactly(&self.api, volume).await;
                return self.unless_conflict("remove", volume, deleted).await;
            }
            Step::Await | Step::Held => return Ok(Some(volume.clone())),
        };
        let patched = writes::patch_guarded(&self.api, volume, CONTROLLER_MANAGER, change).await;
        let patched = match patched {
            // The last finalizer: what comes back is the object as it went.
            Ok(last) if is_gone(&last) => Ok(None),
            Ok(changed) => Ok(Some(changed)),
            Err(error) if Rejection::from(&error) == Rejection::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        self.unless_conflict("remove", volume, patched).await
    }

    /// The object after a write, or as it is where somebody else was faster.
    pub(super) async fn unless_conflict(
        &self,
        action: &str,
        volume: &PoolVolume,
        result: Result<Option<PoolVolume>, kube::Error>,
    ) -> Result<Option<PoolVolume>, Error> {
        match result {
            Err(error) if Rejection::from(&error) == Rejection::Conflict => {
                self.find_again(volume).await
            }
            result => result.map_err(failed(|| {
                format!("{action} PoolVolume {}", volume.name_any())
            })),
        }
    }

    /// The same object as it is now; none when it is gone, also if a successor has its name.
    pub(super) async fn find_again(
        &self,
        volume: &PoolVolume,
    ) -> Result<Option<PoolVolume>, Error> {
        let found = self.find(&volume.name_any()).await?;
        Ok(found.filter(|found| found.metadata.uid == volume.metadata.uid))
    }

    /// What the removal of an admitted volume waits for.
    fn reclaiming(&self, volume: &PoolVolume) -> String {
        let node = &volume.spec.node_name;
        let said = reclaimed(volume).map_or("", |condition| condition.message.as_str());
        match self.nodes.unfit(node, &volume.spec.pool_name) {
            Some(unfit) => format!("node {node} to remove its data, which {unfit}"),
            None => format!("node {node} to remove its data: {said}"),
        }
    }
}

/// What is to be done next to remove a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Write the wish. From then on nothing is admitted.
    Ask,
    /// The agent has bytes reserved for it and removes its data.
    Await,
    /// Delete the object.
    Delete,
    /// Take our finalizer off.
    Release,
    /// Only finalizers of others hold the object; there is nothing of ours in it.
    Held,
}

fn step(volume: &PoolVolume) -> Step {
    if !volume.spec.deletion_requested {
        Step::Ask
    } else if is_admitted(volume) {
        Step::Await
    } else if volume.metadata.deletion_timestamp.is_none() {
        Step::Delete
    } else if volume.finalizers().iter().any(|name| name == FINALIZER) {
        Step::Release
    } else {
        Step::Held
    }
}

/// Whether the ledger of its node holds bytes for it, so that there may be an image.
fn is_admitted(volume: &PoolVolume) -> bool {
    let status = volume.status.as_ref();
    status.is_some_and(|status| status.reserved.is_some())
}

fn is_gone(patched: &PoolVolume) -> bool {
    patched.metadata.deletion_timestamp.is_some() && patched.finalizers().is_empty()
}

fn reclaimed(volume: &PoolVolume) -> Option<&cistern_crds::Condition> {
    let status = volume.status.as_ref()?;
    condition::find(&status.conditions, ConditionType::Reclaimed)
}

fn refuse_in_use(volume: &PoolVolume) -> Result<(), Error> {
    match reclaimed(volume) {
        Some(condition)
            if condition.status == ConditionStatus::False.as_str()
                && condition.reason == Reason::InUse.as_str() =>
        {
            Err(Error::InUse {
                volume: volume.name_any(),
                node: volume.spec.node_name.clone(),
                message: condition.message.clone(),
            })
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, PoolVolumeStatus};
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use crate::volumes::request::tests::wanted;

    #[test]
    fn dv_08_the_next_step_follows_from_the_object_alone() {
        let mut volume = wanted("v").on_node("n1");
        volume.status = Some(PoolVolumeStatus {
            reserved: Some(Bytes::gib(1)),
            ..PoolVolumeStatus::default()
        });
        assert_eq!(step(&volume), Step::Ask);
        volume.spec.deletion_requested = true;
        assert_eq!(step(&volume), Step::Await);
        volume.status = Some(PoolVolumeStatus::default());
        assert_eq!(step(&volume), Step::Delete);
        volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(step(&volume), Step::Release);
        volume.metadata.finalizers = Some(vec!["somebody/else".to_owned()]);
        assert_eq!(step(&volume), Step::Held);
    }

    #[test]
    fn a_deletion_by_hand_does_not_skip_the_wish_or_the_agent() {
        let mut volume = wanted("v").on_node("n1");
        volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        volume.status = Some(PoolVolumeStatus {
            reserved: Some(Bytes::gib(1)),
            ..PoolVolumeStatus::default()
        });
        assert_eq!(step(&volume), Step::Ask);
        volume.spec.deletion_requested = true;
        assert_eq!(step(&volume), Step::Await);
    }
}
