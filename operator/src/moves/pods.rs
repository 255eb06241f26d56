//! The pods that use a volume, as a move sees them. Pure.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};
use cistern_crds::time;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

/// How long a pod that has not started counts as one that does not have the volume. A pod that takes the place of
/// another one on a node that closes the volume can keep it from being unstaged.
const STARTING: TimeDelta = TimeDelta::seconds(5);

/// A pod that uses a volume and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The Node that the pod is bound to.
    pub(super) node: Option<String>,
    /// Whether its containers have been started.
    pub(super) has_started: bool,
    /// Whether it is being deleted.
    pub(super) is_ending: bool,
    /// When it was created.
    pub(super) created: Option<DateTime<Utc>>,
    /// Kind of the controller that makes another one in its place.
    pub(super) controller: Option<String>,
}

impl User {
    /// What a move sees of a pod.
    pub(super) fn of(pod: &Pod) -> Self {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            has_started: !matches!(phase, None | Some("Pending")),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            created: pod
                .metadata
                .creation_timestamp
                .as_ref()
                .map(time::from_kubernetes),
            controller: pod
                .owner_references()
                .iter()
                .find(|owner| owner.controller == Some(true))
                .map(|owner| owner.kind.clone()),
        }
    }

    /// Why no other pod takes its place on the new node if it is evicted. None if one does.
    pub(super) fn stays(&self) -> Option<&'static str> {
        match self.controller.as_deref() {
            None => Some("has no controller, so that nothing makes it again"),
            Some("DaemonSet") => Some("belongs to a DaemonSet, which makes it again on its node"),
            Some("Node") => Some("is a static pod of its node"),
            Some(_) => None,
        }
    }

    /// Whether it has to be evicted, so that its node can close the volume.
    pub(super) fn holds(&self, now: DateTime<Utc>) -> bool {
        let is_old = self.created.is_none_or(|created| now - created >= STARTING);
        self.is_bound() && !self.is_ending && (self.has_started || is_old)
    }

    /// Whether kubelet may give it the volume.
    pub(super) const fn is_bound(&self) -> bool {
        self.node.is_some()
    }

    /// Whether it runs on a node.
    pub(super) fn runs_on(&self, node: &str) -> bool {
        self.has_started && self.node.as_deref() == Some(node)
    }

    /// Whether it is bound to another node than the volume's, and so cannot start.
    pub(super) fn is_left(&self, node: &str) -> bool {
        !self.has_started && self.node.as_deref().is_some_and(|it| it != node)
    }
}

/// Which of these pods nothing makes again on the new node, and why; None if there are none.
pub(super) fn not_made_again<'a>(pods: impl IntoIterator<Item = &'a User>) -> Option<String> {
    let pods = pods.into_iter();
    let stays = pods.filter_map(|pod| Some(format!("{pod} {}", pod.stays()?)));
    let stays: Vec<String> = stays.collect();
    (!stays.is_empty()).then(|| stays.join(", "))
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
