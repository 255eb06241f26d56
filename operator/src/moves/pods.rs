//! The pods that use a volume, as a move sees them. Pure.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

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
        }
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

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
