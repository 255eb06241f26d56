//! The nodes of a PersistentVolume. Pure.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PersistentVolume};

use crate::names;

/// The nodes in the node affinity of a PersistentVolume, by our topology key: values of
/// [`names::topology_value`].
pub fn nodes_of(volume: &PersistentVolume) -> Vec<&str> {
    let affinity = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    let terms = required.map_or(&[][..], |required| &required.node_selector_terms);
    let expressions = terms
        .iter()
        .flat_map(|term| term.match_expressions.iter().flatten());
    expressions
        .filter(|it| names_nodes(it))
        .flat_map(|it| it.values.iter().flatten())
        .map(String::as_str)
        .collect()
}

/// Whether a requirement of a node affinity names the nodes of a volume.
pub fn names_nodes(requirement: &NodeSelectorRequirement) -> bool {
    requirement.key == names::TOPOLOGY_KEY && requirement.operator == "In"
}
