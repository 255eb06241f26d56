//! Making a volume, or finding it as it was made before.
//!
//! *Invariant:* an error that the caller takes for final leaves no object behind: one that no agent
//! has admitted is withdrawn first, and one that was admitted stays and the error says so
//! ([`Error::Pending`]).

use cistern_client::Rejection;
use cistern_crds::{
    ConditionStatus, ConditionType, PoolVolume, PoolVolumeSpec, Reason, condition,
    names::{CONTROLLER_MANAGER, SELECTED_NODE_ANNOTATION},
};
use kube::{ResourceExt as _, api::PostParams};
use tokio::time::{Instant, timeout_at};

use super::{
    Error, ListedVolume, NewVolume, Volumes, failed,
    nodes::Unfit,
    placement::{self, Refusal},
    watch::Attention,
};

/// Nodes that one call asks. The caller repeats, and by then the room that is published has changed.
const ATTEMPTS: usize = 5;

impl Volumes {
    /// Makes sure that the volume is there and can be used (CV-06, CV-29).
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn ensure(
        &self,
        wanted: &NewVolume,
        deadline: Instant,
    ) -> Result<ListedVolume, Error> {
        let mut attention = self.attend(&wanted.id())?;
        attention.note("the API server to answer");
        match timeout_at(deadline, self.settle(wanted, &mut attention)).await {
            Ok(result) => result,
            Err(_) => Err(pending(&attention)),
        }
    }

    /// Asks one node after another until one has made the volume.
    async fn settle(
        &self,
        wanted: &NewVolume,
        attention: &mut Attention,
    ) -> Result<ListedVolume, Error> {
        let mut refusals = Vec::new();
        loop {
            let found = match self.find(attention.name()).await? {
                Some(volume) => Some(volume),
                None => self.create(wanted, &refusals).await?,
            };
            // None: another replica was faster, so look again.
            let Some(volume) = found else { continue };
            if volume.spec.deletion_requested {
                self.see_off(volume, attention).await?;
                continue;
            }
            if let Some(difference) = wanted.difference(&volume) {
                let volume = attention.name().to_owned();
                return Err(Error::Different { volume, difference });
            }
            match self.follow(volume, attention).await {
                Outcome::Ready(volume) => {
                    self.until_shown(attention.name(), true).await;
                    return Ok(volume);
                }
                Outcome::Changed => {}
                Outcome::Withdraw(volume, refusal) => {
                    attention.note("the API server to forget a volume that no agent has admitted");
                    if self.withdraw(*volume).await? {
                        refusals.extend(refusal);
                    }
                }
            }
        }
    }

    /// Chooses a node and writes the wish. None when the object is there by now.
    async fn create(
        &self,
        wanted: &NewVolume,
        refusals: &[Refusal],
    ) -> Result<Option<PoolVolume>, Error> {
        let node = self.choose(wanted, refusals).await?;
        let object = wanted.on_node(&node);
        let parameters = PostParams {
            field_manager: Some(CONTROLLER_MANAGER.to_owned()),
            ..PostParams::default()
        };
        match self.api.create(&parameters, &object).await {
            Ok(volume) => {
                tracing::info!(volume = volume.name_any(), node, "volume placed");
                Ok(Some(volume))
            }
            Err(error) if Rejection::from(&error) == Rejection::AlreadyExists => Ok(None),
            Err(error) => Err(failed(|| format!("create PoolVolume {}", wanted.id()))(
                error,
            )),
        }
    }

    /// The first node with room; but where the scheduler has chosen the node of the pod, no other:
    /// it shall choose again, knowing the pod.
    async fn choose(&self, wanted: &NewVolume, refusals: &[Refusal]) -> Result<String, Error> {
        let no_room = |why: String| placement::Error::NoRoom {
            pool: wanted.pool.clone(),
            size: wanted.size.chosen,
            why,
        };
        if refusals.len() >= ATTEMPTS {
            let each: Vec<String> = refusals
                .iter()
                .map(|refusal| format!("{} refused: {}", refusal.node, refusal.message))
                .collect();
            return Err(no_room(each.join("; ")).into());
        }
        let nodes = self.nodes.all().ok_or(Error::Starting)?;
        let choice = placement::choose(wanted, &nodes, refusals)?;
        match choice.passed_over {
            Some(why) if self.scheduler_has_chosen(wanted).await? => {
                Err(no_room(format!("{why}, and the scheduler has chosen it")).into())
            }
            Some(_) | None => Ok(choice.node),
        }
    }

    async fn scheduler_has_chosen(&self, wanted: &NewVolume) -> Result<bool, Error> {
        let Some(claim) = &wanted.claim else {
            return Ok(false);
        };
        let found = self
            .claims(&claim.namespace)
            .get_metadata_opt(&claim.name)
            .await;
        let found = found.map_err(failed(|| {
            format!(
                "read PersistentVolumeClaim {}/{}",
                claim.namespace, claim.name
            )
        }))?;
        Ok(found.is_some_and(|claim| claim.annotations().contains_key(SELECTED_NODE_ANNOTATION)))
    }

    /// Waits until the agent has made the volume, or will not.
    async fn follow(&self, mut volume: PoolVolume, attention: &mut Attention) -> Outcome {
        let mut nodes = self.nodes.subscribe();
        loop {
            let unfit = |spec: &PoolVolumeSpec| self.nodes.unfit(&spec.node_name, &spec.pool_name);
            match progress(&volume, unfit) {
                Progress::Ready(volume) => return Outcome::Ready(volume),
                Progress::Withdraw(refusal) => {
                    return Outcome::Withdraw(Box::new(volume), refusal);
                }
                Progress::Leaving => return Outcome::Changed,
                Progress::Waits(waits_for) => attention.note(waits_for),
            }
            tokio::select! {
                change = attention.change(&volume) => match change {
                    Some(changed) => volume = changed,
                    None => return Outcome::Changed,
                },
                // The sender lives as long as `self`.
                _ = nodes.changed() => {}
            }
        }
    }
}

/// The error of a call whose time is up.
pub(super) fn pending(attention: &Attention) -> Error {
    Error::Pending {
        volume: attention.name().to_owned(),
        waits_for: attention.waits_for().to_owned(),
    }
}

/// How following a volume ended.
enum Outcome {
    Ready(ListedVolume),
    /// The object is not what it was: look again.
    Changed,
    Withdraw(Box<PoolVolume>, Option<Refusal>),
}

/// Where a volume stands on its way to be used.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Ready(ListedVolume),
    /// Its deletion is asked for.
    Leaving,
    /// No agent has admitted it and this node will not: its node, and why, where that is the
    /// node's doing.
    Withdraw(Option<Refusal>),
    /// It waits for this.
    Waits(String),
}

fn progress(volume: &PoolVolume, unfit: impl FnOnce(&PoolVolumeSpec) -> Option<Unfit>) -> Progress {
    let spec = &volume.spec;
    let status = volume.status.clone().unwrap_or_default();
    let refusal = |reason, message: String| {
        let node = spec.node_name.clone();
        Progress::Withdraw(Some(Refusal {
            node,
            reason,
            message,
        }))
    };
    if spec.deletion_requested {
        return Progress::Leaving;
    }
    // It was made, whatever has happened since.
    if let Some(made) = ListedVolume::of(volume) {
        return Progress::Ready(made);
    }
    if status.reserved.is_some() {
        let ready = condition::find(&status.conditions, ConditionType::Ready);
        let message = ready.map_or("", |ready| ready.message.as_str());
        return Progress::Waits(format!("node {} to make it: {message}", spec.node_name));
    }
    // Somebody deleted the object by hand: no agent admits it any more.
    if volume.metadata.deletion_timestamp.is_some() {
        return Progress::Withdraw(None);
    }
    let admitted = condition::find(&status.conditions, ConditionType::Admitted);
    if let Some(admitted) = admitted
        && admitted.status == ConditionStatus::False.as_str()
    {
        return refusal(Reason::parse(&admitted.reason), admitted.message.clone());
    }
    match unfit(spec) {
        Some(unfit) => refusal(None, unfit.to_string()),
        None => Progress::Waits(format!("the agent of node {} to admit it", spec.node_name)),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use cistern_crds::{Bytes, PoolVolumeStatus, condition::Finding};
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use crate::volumes::request::tests::wanted;

    fn volume(change: impl FnOnce(&mut PoolVolume, &mut PoolVolumeStatus)) -> PoolVolume {
        let mut volume = wanted("v").on_node("n1");
        let mut status = PoolVolumeStatus::default();
        change(&mut volume, &mut status);
        volume.status = Some(status);
        volume
    }

    fn admitted(status: &mut PoolVolumeStatus, holds: impl Into<ConditionStatus>, reason: Reason) {
        let finding = Finding::new(ConditionType::Admitted, holds, reason, "the agent's words");
        condition::set(&mut status.conditions, &finding, None, DateTime::default());
    }

    fn silent() -> Unfit {
        Unfit::Silent {
            message: "gone".to_owned(),
        }
    }

    fn withdraws(progress: &Progress) -> bool {
        matches!(progress, Progress::Withdraw(_))
    }

    #[test]
    fn a_volume_is_ready_once_it_was_made_whatever_happens_to_it_later() {
        let made = volume(|volume, status| {
            status.reserved = Some(Bytes::gib(1));
            status.size = Some(Bytes::gib(1));
            volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        });
        assert!(matches!(
            progress(&made, |_| Some(silent())),
            Progress::Ready(_)
        ));
    }

    #[test]
    fn what_is_admitted_is_never_withdrawn() {
        let admitted = volume(|volume, status| {
            status.reserved = Some(Bytes::gib(1));
            admitted(status, false, Reason::NoSpace);
            volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        });
        assert!(matches!(
            progress(&admitted, |_| Some(silent())),
            Progress::Waits(_)
        ));
    }

    #[test]
    fn a_refusal_carries_the_agents_reason_and_words() {
        for reason in [
            Reason::NoSpace,
            Reason::TooLarge,
            Reason::VolumeLimitReached,
            Reason::PoolUnknown,
            Reason::PoolNotReady,
        ] {
            let refused = volume(|_, status| admitted(status, false, reason));
            let expected = Refusal {
                node: "n1".to_owned(),
                reason: Some(reason),
                message: "the agent's words".to_owned(),
            };
            assert_eq!(
                progress(&refused, |_| None),
                Progress::Withdraw(Some(expected))
            );
        }
    }

    #[test]
    fn an_agent_that_has_not_looked_yet_is_waited_for_unless_it_is_silent() {
        let fresh = volume(|_, status| admitted(status, ConditionStatus::Unknown, Reason::Pending));
        assert!(matches!(progress(&fresh, |_| None), Progress::Waits(_)));
        assert!(withdraws(&progress(&fresh, |_| Some(silent()))));
        let unseen = wanted("v").on_node("n1");
        assert!(matches!(progress(&unseen, |_| None), Progress::Waits(_)));
        assert!(withdraws(&progress(&unseen, |_| Some(Unfit::Absent))));
    }

    #[test]
    fn an_object_that_somebody_deleted_is_made_anew_on_any_node() {
        let deleted = volume(|volume, _| {
            volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        });
        assert_eq!(progress(&deleted, |_| None), Progress::Withdraw(None));
    }

    #[test]
    fn a_volume_that_is_asked_to_go_is_not_found_ready() {
        let leaving = volume(|volume, status| {
            status.size = Some(Bytes::gib(1));
            volume.spec.deletion_requested = true;
        });
        assert_eq!(progress(&leaving, |_| None), Progress::Leaving);
    }
}
