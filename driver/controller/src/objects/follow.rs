//! Waiting until the agent has made what an object asks for, or will not.
//!
//! *Invariant:* what an agent has admitted is waited for and never given up.

use cistern_crds::{ConditionStatus, ConditionType, Reason, Stored, condition};
use kube::Resource as _;

use super::{
    Error, Kind, Objects, attendance::Attention, listing::Listed, nodes::Unfit, silence::silent,
};

/// How following an object ended.
#[derive(Debug)]
pub enum Outcome<L: Listed> {
    /// It was made.
    Ready(L),
    /// The object is not what it was: look again.
    Changed,
    /// No agent has admitted it, and its node will not: why, where that is the node's doing.
    Withdraw(Box<L::Object>, Option<Refusal>),
}

/// A node that would not make what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its name.
    pub node: String,
    /// Why, for programs; none where the agent did not answer.
    pub reason: Option<Reason>,
    /// Why, for people.
    pub message: String,
}

impl<K: Kind + Stored> Objects<K> {
    /// Follows an object until it was made, will not be, or is not what it was. An error where the
    /// agent that has admitted it is silent.
    pub async fn follow<L: Listed<Object = K>>(
        &self,
        mut object: K,
        attention: &mut Attention<K>,
    ) -> Result<Outcome<L>, Error> {
        let mut nodes = self.nodes.subscribe();
        loop {
            let unfit = |object: &K| self.nodes.unfit(object.node_name(), object.pool_name());
            match progress(&object, unfit) {
                Progress::Ready(made) => return Ok(Outcome::Ready(made)),
                Progress::Withdraw(refusal) => {
                    return Ok(Outcome::Withdraw(Box::new(object), refusal));
                }
                Progress::Leaving => return Ok(Outcome::Changed),
                Progress::Waits(waits_for) => attention.note(waits_for),
            }
            if let Some(silence) = self.nodes.silence(object.node_name()) {
                return Err(silent(&object, silence));
            }
            tokio::select! {
                change = attention.change(&object) => match change {
                    Some(changed) => object = changed,
                    None => return Ok(Outcome::Changed),
                },
                // The sender lives as long as `self`.
                _ = nodes.changed() => {}
            }
        }
    }
}

/// Where an object stands on its way to be used.
#[derive(Debug, PartialEq, Eq)]
enum Progress<L> {
    Ready(L),
    /// Its deletion is asked for.
    Leaving,
    /// No agent has admitted it and this node will not: its node, and why, where that is the
    /// node's doing.
    Withdraw(Option<Refusal>),
    /// It waits for this.
    Waits(String),
}

fn progress<L: Listed>(
    object: &L::Object,
    unfit: impl FnOnce(&L::Object) -> Option<Unfit>,
) -> Progress<L> {
    let node = object.node_name();
    let refusal = |reason, message: String| {
        let node = node.to_owned();
        Progress::Withdraw(Some(Refusal {
            node,
            reason,
            message,
        }))
    };
    if object.deletion_requested() {
        return Progress::Leaving;
    }
    // It was made, whatever has happened since.
    if let Some(made) = L::of(object) {
        return Progress::Ready(made);
    }
    if object.reserved().is_some() {
        let ready = condition::find(object.conditions(), ConditionType::Ready);
        let message = ready.map_or("", |ready| ready.message.as_str());
        return Progress::Waits(format!("node {node} to make it: {message}"));
    }
    // Somebody deleted the object by hand: no agent admits it any more.
    if object.meta().deletion_timestamp.is_some() {
        return Progress::Withdraw(None);
    }
    let admitted = condition::find(object.conditions(), ConditionType::Admitted);
    if let Some(admitted) = admitted
        && admitted.status == ConditionStatus::False.as_str()
    {
        return refusal(Reason::parse(&admitted.reason), admitted.message.clone());
    }
    match unfit(object) {
        Some(unfit) => refusal(None, unfit.to_string()),
        None => Progress::Waits(format!("the agent of node {node} to admit it")),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use cistern_crds::{Bytes, PoolVolume, PoolVolumeStatus, condition::Finding};
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;
    use crate::{testing::wanted_volume, volumes::ListedVolume};

    fn volume(change: impl FnOnce(&mut PoolVolume, &mut PoolVolumeStatus)) -> PoolVolume {
        let mut volume = wanted_volume();
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

    fn progress(
        volume: &PoolVolume,
        unfit: impl FnOnce(&PoolVolume) -> Option<Unfit>,
    ) -> Progress<ListedVolume> {
        super::progress(volume, unfit)
    }

    fn withdraws(progress: &Progress<ListedVolume>) -> bool {
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
                node: "node-1".to_owned(),
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
        let unseen = wanted_volume();
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
