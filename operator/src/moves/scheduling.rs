//! Whether pods can be scheduled on a node with the volumes that they use. Pure.
//!
//! Only what is certain counts: the name, the labels, the taints and the state of the Node. Resources, and affinity
//! between pods, depend on what else runs there, and are left to the scheduler.

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, Pod, Taint,
};
use kube::ResourceExt as _;

use super::{pods::User, volume::pointed_at};
use crate::pods::uses;

/// Prefix of the taints that Kubernetes gives to a Node because of its state, which can change at any time.
const OF_STATE: &str = "node.kubernetes.io/";

/// What is to be scheduled on the node that volumes move to.
#[derive(Debug)]
pub(super) struct Workload {
    /// The PersistentVolumes of the volumes.
    persistent_volumes: Vec<PersistentVolume>,
    /// The pods that use them.
    pods: Vec<Pod>,
}

impl Workload {
    /// The PersistentVolumes, and those of the pods that use their claims and are made again once they have ended.
    /// Other pods say nothing about the next ones.
    pub(super) fn new(persistent_volumes: Vec<PersistentVolume>, mut pods: Vec<Pod>) -> Self {
        pods.retain(|pod| {
            let user = User::of(pod);
            let is_made_again = !user.is_ending && user.stays().is_none();
            is_made_again && persistent_volumes.iter().any(|it| uses_claim(pod, it))
        });
        Self {
            persistent_volumes,
            pods,
        }
    }

    /// The first requirement that a node does not meet. None if it meets all of them.
    pub(super) fn unmet_on(&self, node: &Node) -> Option<String> {
        let mut persistent_volumes = self.persistent_volumes.iter();
        let unmet = persistent_volumes.find_map(|it| unmet_by_volume(it, node));
        unmet.or_else(|| self.pods.iter().find_map(|pod| unmet_by_pod(pod, node)))
    }

    /// Why a node takes no pods as it is now. A taint counts unless there are pods and all of them tolerate it. None if
    /// it takes them.
    pub(super) fn closed_on(&self, node: &Node) -> Option<String> {
        let spec = node.spec.as_ref();
        if spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
            return Some("is cordoned".to_owned());
        }
        let status = node.status.iter();
        let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
        if conditions.any(|it| it.type_ == "Ready" && it.status != "True") {
            return Some("is not ready".to_owned());
        }
        let is_tolerated = |taint: &Taint| {
            !self.pods.is_empty() && self.pods.iter().all(|pod| tolerates(pod, taint))
        };
        let taint = taints(node).find(|taint| !is_tolerated(taint))?;
        Some(format!("has the taint {}", taint.key))
    }
}

/// Whether a pod uses the claim of a PersistentVolume.
fn uses_claim(pod: &Pod, volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
    claim.is_some_and(|claim| {
        let name = claim.name.as_deref();
        claim.namespace == pod.namespace() && name.is_some_and(|name| uses(pod, name))
    })
}

/// The requirement of a PersistentVolume that a node does not meet, once the PersistentVolume names that node.
fn unmet_by_volume(volume: &PersistentVolume, node: &Node) -> Option<String> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    let affinity = pointed_at(affinity, &node.name_any());
    let unmet = unmet_in(affinity.required.as_ref()?, node)?;
    let name = volume.name_any();
    Some(format!("does not match {unmet} of PersistentVolume {name}"))
}

/// The requirement of a pod that a node does not meet.
fn unmet_by_pod(pod: &Pod, node: &Node) -> Option<String> {
    let (spec, name) = (pod.spec.as_ref()?, User::of(pod).to_string());
    let mut labels = spec.node_selector.iter().flatten();
    let is_unmet = |(key, value): &(&String, &String)| node.labels().get(*key) != Some(*value);
    if let Some((key, value)) = labels.find(is_unmet) {
        return Some(format!(
            "does not match nodeSelector {key}={value} of pod {name}"
        ));
    }
    let affinity = spec.affinity.as_ref();
    let affinity = affinity.and_then(|it| it.node_affinity.as_ref());
    let required = affinity.and_then(|it| {
        it.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    if let Some(unmet) = required.and_then(|required| unmet_in(required, node)) {
        return Some(format!("does not match {unmet} of pod {name}"));
    }
    let mut lasting = taints(node).filter(|taint| !taint.key.starts_with(OF_STATE));
    let key = &lasting.find(|taint| !tolerates(pod, taint))?.key;
    Some(format!(
        "has the taint {key}, which pod {name} does not tolerate"
    ))
}

/// The requirements that a node does not meet, the first one of each term. None if it meets all of one term.
fn unmet_in(selector: &NodeSelector, node: &Node) -> Option<String> {
    let terms = selector.node_selector_terms.iter();
    let unmet: Option<Vec<String>> = terms.map(|term| unmet_in_term(term, node)).collect();
    Some(unmet?.join(" or "))
}

/// The first requirement of a term that a node does not meet. None if it meets all of them.
fn unmet_in_term(term: &NodeSelectorTerm, node: &Node) -> Option<String> {
    let labels = term.match_expressions.iter().flatten();
    let labels = labels.map(|it| (it, node.labels().get(&it.key)));
    // The name is the only field that Kubernetes matches.
    let fields = term.match_fields.iter().flatten();
    let fields = fields.map(|it| (it, node.metadata.name.as_ref()));
    let mut all = labels.chain(fields);
    let (unmet, _) = all.find(|(it, value)| !is_met(it, value.map(String::as_str)))?;
    let (key, operator) = (&unmet.key, &unmet.operator);
    Some(match &unmet.values {
        Some(values) => format!("{key} {operator} [{}]", values.join(", ")),
        None => format!("{key} {operator}"),
    })
}

/// Whether a label or a field with this value meets a requirement. Operators that are not known here count as met.
fn is_met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_among = || value.is_some_and(|value| values.iter().any(|it| it == value));
    let numbers = || -> Option<(i64, i64)> {
        let bound = values.first()?;
        Some((value?.parse().ok()?, bound.parse().ok()?))
    };
    match requirement.operator.as_str() {
        "In" => is_among(),
        "NotIn" => !is_among(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => true,
    }
}

/// The taints of a node that keep pods away.
fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let spec = node.spec.iter();
    let taints = spec.flat_map(|spec| spec.taints.iter().flatten());
    taints.filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
}

/// Whether a pod tolerates a taint. Operators that are not known here count as tolerating it.
fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    let spec = pod.spec.iter();
    let mut tolerations = spec.flat_map(|spec| spec.tolerations.iter().flatten());
    let selects =
        |wanted: Option<&str>, is: &str| wanted.is_none_or(|it| it.is_empty() || it == is);
    let value = taint.value.as_deref().unwrap_or_default();
    tolerations.any(|it| {
        let is_of_value = match it.operator.as_deref() {
            None | Some("" | "Equal") => it.value.as_deref().unwrap_or_default() == value,
            Some(_) => true,
        };
        selects(it.effect.as_deref(), &taint.effect)
            && selects(it.key.as_deref(), &taint.key)
            && is_of_value
    })
}

#[cfg(test)]
mod tests;
