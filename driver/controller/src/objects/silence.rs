//! Nodes whose agent is silent: calls that wait for such a node fail immediately.
//!
//! *Invariant:* an agent is silent only if the operator's condition shows it, or if its node has no
//! StorageNode. The error reverts nothing: the spec is still set when the agent reports again.

use chrono::{DateTime, TimeDelta, Utc};
use cistern_crds::{
    Condition, ConditionStatus, ConditionType, HasImage, StorageNode, condition, time,
};
use kube::ResourceExt as _;

use super::{
    Error, ManagedObject, Objects, in_flight::Operation, named, nodes::Nodes, not_ready::not_ready,
};

/// An agent that does not report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent on {node} has been silent for {lasting}: {message}")]
pub struct Silence {
    /// The node of the agent.
    pub node: String,
    /// The duration as text, in its largest unit.
    pub lasting: String,
    /// The message of the operator.
    pub message: String,
}

impl Nodes {
    /// The silence of a node's agent; None while it reports, and before the first list is complete.
    pub fn silence(&self, node: &str) -> Option<Silence> {
        self.inspect(node, |found| match found {
            Some(found) => of_node(found, Utc::now()),
            None => Some(Silence {
                node: node.to_owned(),
                lasting: "an unknown time".to_owned(),
                message: "there is no StorageNode of this name".to_owned(),
            }),
        })?
    }

    /// The error for an object that waits for a silent agent: that of its node, or once it is admitted, that of the
    /// node from which it is copied. None while they report.
    pub fn silent_for<K: ManagedObject + HasImage>(&self, object: &K) -> Option<Error> {
        if let Some(silence) = self.silence(object.node_name()) {
            return Some(silent(object, silence));
        }
        let source = object.source_node()?;
        let silence = self
            .silence(source)
            .filter(|_| object.reserved().is_some())?;
        Some(Error::Silent {
            object: format!("the source of {}", named::<K>(&object.name_any())),
            silence,
        })
    }

    /// Waits until the agent of a node is silent.
    async fn until_silent(&self, node: &str) -> Silence {
        let mut changes = self.subscribe();
        loop {
            if let Some(silence) = self.silence(node) {
                return silence;
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }
}

impl<K: ManagedObject + HasImage> Objects<K> {
    /// Waits for the next change of the object, and returns the changed object; None if it seems to
    /// be gone. Fails if the agent of its node is or becomes silent, or if its pool stays not ready.
    pub async fn change(
        &self,
        object: &K,
        operation: &mut Operation<K>,
    ) -> Result<Option<K>, Error> {
        let pool = [(object.node_name(), object.pool_name())];
        tokio::select! {
            biased;
            change = operation.change(object) => Ok(change),
            silence = self.nodes().until_silent(object.node_name()) => Err(silent(object, silence)),
            pool = self.nodes().until_not_ready(&pool) => Err(not_ready(object, pool)),
        }
    }
}

/// The error of a call that waits for a silent agent.
pub fn silent<K: ManagedObject>(object: &K, silence: Silence) -> Error {
    Error::Silent {
        object: named::<K>(&object.name_any()),
        silence,
    }
}

/// The condition of a node whose agent does not report.
pub fn not_reporting(node: &StorageNode) -> Option<&Condition> {
    let conditions = node.status.as_ref().map(|status| &status.conditions[..]);
    let reporting = condition::find(
        conditions.unwrap_or_default(),
        ConditionType::AgentReporting,
    );
    reporting.filter(|reporting| reporting.status == ConditionStatus::False.as_str())
}

fn of_node(node: &StorageNode, now: DateTime<Utc>) -> Option<Silence> {
    let reporting = not_reporting(node)?;
    let since = time::from_kubernetes(&reporting.last_transition_time);
    Some(Silence {
        node: node.name_any(),
        lasting: lasting(now - since),
        message: reporting.message.clone(),
    })
}

/// A duration in its largest unit, because a message that changes with every call creates a new event
/// each time.
fn lasting(duration: TimeDelta) -> String {
    let (days, hours, minutes) = (
        duration.num_days(),
        duration.num_hours(),
        duration.num_minutes(),
    );
    match (days, hours, minutes) {
        (1.., _, _) => format!("{days} d"),
        (_, 1.., _) => format!("{hours} h"),
        (_, _, 1..) => format!("{minutes} min"),
        _ => "less than a minute".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, ContentSource, Reason, SourceKind, condition::ConditionUpdate};

    use super::*;
    use crate::{
        objects::nodes::tests::{node, view},
        testing::{at, ready_volume},
    };

    fn reporting(status: impl Into<ConditionStatus>) -> StorageNode {
        let mut node = node("n1", Bytes::gib(1), Bytes::gib(1));
        let finding = ConditionUpdate::new(
            ConditionType::AgentReporting,
            status,
            Reason::AgentNotReady,
            "pod x is not ready",
        );
        let conditions = &mut node.status.as_mut().unwrap().conditions;
        condition::set(conditions, &finding, None, at(0));
        node
    }

    #[test]
    fn an_agent_is_silent_while_the_operator_says_that_it_does_not_report() {
        let fresh = node("n1", Bytes::gib(1), Bytes::gib(1));
        assert_eq!(of_node(&fresh, at(60)), None);
        assert_eq!(of_node(&reporting(true), at(60)), None);
        assert_eq!(of_node(&reporting(ConditionStatus::Unknown), at(60)), None);
        let silence = of_node(&reporting(false), at(3 * 60)).unwrap();
        assert_eq!(
            silence.to_string(),
            "the agent on n1 has been silent for 3 min: pod x is not ready"
        );
    }

    #[test]
    fn an_admitted_copy_waits_for_a_silent_source_and_what_has_none_does_not() {
        let mut silent = reporting(false);
        silent.metadata.name = Some("source".to_owned());
        let mut volume = ready_volume();
        let own = node(&volume.spec.node_name, Bytes::gib(1), Bytes::gib(1));
        let nodes = view(vec![own, silent]);
        assert!(nodes.silent_for(&volume).is_none());
        volume.spec.content_source = Some(ContentSource {
            kind: SourceKind::Snapshot,
            name: "snap-1".to_owned(),
            image: "uid-of-snap-1".to_owned(),
            node_name: Some("source".to_owned()),
            snapshot_name: None,
        });
        let error = nodes.silent_for(&volume).unwrap().to_string();
        let expected = "the source of volume pvc-1 has to wait until its node is back: the agent on source has";
        assert!(error.starts_with(expected), "{error}");
        volume.status.as_mut().unwrap().reserved = None;
        assert!(nodes.silent_for(&volume).is_none(), "not admitted");
    }

    #[test]
    fn a_silence_is_reported_in_its_largest_unit() {
        for (seconds, expected) in [
            (-5, "less than a minute"),
            (59, "less than a minute"),
            (60, "1 min"),
            (59 * 60 + 59, "59 min"),
            (3 * 3600, "3 h"),
            (50 * 3600, "2 d"),
        ] {
            assert_eq!(lasting(TimeDelta::seconds(seconds)), expected, "{seconds}");
        }
    }
}
