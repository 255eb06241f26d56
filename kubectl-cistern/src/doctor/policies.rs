//! Checks that Cistern's admission policies match this version and are enforced. Pure.
//!
//! *Invariant:* a policy passes only if its spec and the spec of a binding make the same decisions as those
//! in the manifests. A policy with only the right name protects nothing.

use cistern_crds::names::{COMPONENT_LABEL, GROUP, NODE_COMPONENT};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy as Policy, ValidatingAdmissionPolicyBinding as Binding,
    ValidatingAdmissionPolicyBindingSpec as BindingSpec,
    ValidatingAdmissionPolicySpec as PolicySpec,
};
use kube::ResourceExt as _;

use super::{
    facts::Facts,
    manifests,
    report::{APPLY, Check},
};

const NAME: &str = "policies";
/// Service account of the node plugin. The policy `nodes.cistern.storage` matches it by this name.
const NODE_ACCOUNT: &str = "cistern-node";

/// Checks the policies, their bindings, and the service account that a policy matches by name.
pub fn examine(facts: &Facts) -> Check {
    let (policies, bindings) = match (&facts.policies, &facts.policy_bindings) {
        (Ok(policies), Ok(bindings)) => (policies, bindings),
        (Err(error), _) | (_, Err(error)) => {
            return Check::unread(NAME, error);
        }
    };
    let judged = manifests::policies()
        .iter()
        .find_map(|wanted| trouble(wanted, policies, bindings));
    match judged.or_else(|| other_account(facts)) {
        None => Check::ok(
            NAME,
            format!("the policies of {GROUP} match this version and are enforced"),
        ),
        Some(message) => Check::fail(NAME, message, APPLY),
    }
}

/// Returns the first problem of a policy.
fn trouble(wanted: &Policy, policies: &[Policy], bindings: &[Binding]) -> Option<String> {
    let name = wanted.name_any();
    let danger = danger(&name);
    let Some(found) = policies.iter().find(|policy| policy.name_any() == name) else {
        return Some(format!("the policy {name} is missing: {danger}"));
    };
    if found.spec.as_ref().map(effective) != wanted.spec.as_ref().map(effective) {
        return Some(format!(
            "the policy {name} is not that of this version: {danger}"
        ));
    }
    let of_it = |binding: &&Binding| binding.spec.policy_name == name;
    let wanted = manifests::policy_bindings();
    let wanted = wanted.iter().find(of_it)?;
    let mut bound = bindings.iter().filter(of_it);
    if bound.any(|binding| enforces(&binding.spec, &wanted.spec)) {
        return None;
    }
    Some(format!(
        "the policy {name} has no binding that enforces it everywhere: {danger}"
    ))
}

/// Returns what can happen if a policy is not enforced.
fn danger(name: &str) -> &'static str {
    match name {
        "nodes.cistern.storage" => "the token of one node can speak for another",
        "persistentvolumes.cistern.storage" => {
            "the operator can write PersistentVolumes of other drivers"
        }
        "persistentvolumeclaims.cistern.storage" => "the operator can change every claim",
        "pods.cistern.storage" => "the operator can delete pods that run",
        "evictions.cistern.storage" => "the operator can evict a pod that it has not seen",
        "locations.cistern.storage" => {
            "the operator and the controller can change more of a volume than they need to"
        }
        _ => "deleting a definition by mistake marks every volume for deletion",
    }
}

/// Normalizes a policy: adds the defaults of the API server and removes messages.
fn effective(spec: &PolicySpec) -> PolicySpec {
    let mut spec = spec.clone();
    spec.failure_policy.get_or_insert_with(|| "Fail".to_owned());
    if let Some(constraints) = &mut spec.match_constraints {
        let equivalent = || "Equivalent".to_owned();
        constraints.match_policy.get_or_insert_with(equivalent);
        constraints.namespace_selector.get_or_insert_default();
        constraints.object_selector.get_or_insert_default();
        for rule in constraints.resource_rules.iter_mut().flatten() {
            rule.scope.get_or_insert_with(|| "*".to_owned());
        }
    }
    for validation in spec.validations.iter_mut().flatten() {
        validation.message = None;
        validation.message_expression = None;
    }
    spec
}

/// Returns whether a binding equals the wanted one, apart from additional actions such as Audit.
fn enforces(found: &BindingSpec, wanted: &BindingSpec) -> bool {
    let mut actions = wanted.validation_actions.iter();
    let everywhere = BindingSpec {
        validation_actions: wanted.validation_actions.clone(),
        ..found.clone()
    };
    actions.all(|action| found.validation_actions.contains(action)) && everywhere == *wanted
}

/// Returns a message if the node plugin runs as an account that the policy does not match.
fn other_account(facts: &Facts) -> Option<String> {
    let mut sets = facts.daemon_sets.iter().flatten();
    let plugin = sets.find(|set| {
        let component = set.labels().get(COMPONENT_LABEL);
        component.map(String::as_str) == Some(NODE_COMPONENT)
    })?;
    let pod = plugin.spec.template.spec.as_ref()?;
    let account = pod.service_account_name.as_deref().unwrap_or("default");
    (account != NODE_ACCOUNT).then(|| {
        format!(
            "the node plugin runs as {account}, but the policy nodes.cistern.storage applies only to the \
            account {NODE_ACCOUNT}"
        )
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::apps::v1::DaemonSet, apimachinery::pkg::apis::meta::v1::LabelSelector};
    use serde_json::json;

    use super::*;
    use crate::{doctor::report::CheckOutcome, testing::object};

    type Change = fn(&mut PolicySpec, &mut BindingSpec);

    /// Returns the problem that a change of the first policy and its binding causes.
    fn judged(change: Change) -> Option<String> {
        let (mut policies, mut bindings) = (manifests::policies(), manifests::policy_bindings());
        let wanted = policies[0].clone();
        change(policies[0].spec.as_mut().unwrap(), &mut bindings[0].spec);
        trouble(&wanted, &policies, &bindings)
    }

    #[test]
    fn defaults_of_the_api_server_and_additional_actions_are_accepted() {
        assert_eq!(judged(|_, _| {}), None);
        let with_defaults: Change = |policy, _| *policy = effective(policy);
        assert_eq!(judged(with_defaults), None);
        let audited: Change = |_, binding| binding.validation_actions.push("Audit".to_owned());
        assert_eq!(judged(audited), None);
    }

    #[test]
    fn a_policy_with_another_decision_fails() {
        let changes: [Change; 5] = [
            |policy, _| policy.failure_policy = Some("Ignore".to_owned()),
            |policy, _| {
                let conditions = policy.match_conditions.as_mut().unwrap();
                conditions[0].expression = "false".to_owned();
            },
            |policy, _| policy.validations.as_mut().unwrap()[2].expression = "true".to_owned(),
            |policy, _| policy.variables.as_mut().unwrap()[0].expression = "''".to_owned(),
            |policy, _| {
                let constraints = policy.match_constraints.as_mut().unwrap();
                constraints.resource_rules.as_mut().unwrap()[0].operations =
                    Some(vec!["CREATE".to_owned()]);
            },
        ];
        for change in changes {
            let message = judged(change).unwrap();
            assert!(message.contains("is not that of this version"), "{message}");
        }
    }

    #[test]
    fn a_binding_that_does_not_deny_everywhere_fails() {
        let changes: [Change; 3] = [
            |_, binding| binding.validation_actions = vec!["Audit".to_owned()],
            |_, binding| {
                let selector = LabelSelector {
                    match_labels: Some([("a".to_owned(), "b".to_owned())].into()),
                    ..LabelSelector::default()
                };
                binding
                    .match_resources
                    .get_or_insert_default()
                    .object_selector = Some(selector);
            },
            |_, binding| binding.policy_name = "another".to_owned(),
        ];
        for change in changes {
            let message = judged(change).unwrap();
            assert!(message.contains("no binding that enforces it"), "{message}");
        }
    }

    #[test]
    fn a_missing_policy_fails() {
        let wanted = &manifests::policies()[0];
        let message = trouble(wanted, &[], &manifests::policy_bindings()).unwrap();
        assert!(
            message.contains("nodes.cistern.storage is missing"),
            "{message}"
        );
    }

    /// Returns a DaemonSet of a component, whose pods run as a service account.
    fn daemon_set(component: &str, account: Option<&str>) -> DaemonSet {
        object(json!({
            "metadata": {"name": component, "labels": {COMPONENT_LABEL: component}},
            "spec": {"selector": {}, "template": {"spec": {
                "serviceAccountName": account, "containers": []}}},
        }))
    }

    /// Returns a cluster with the policies of this version and these DaemonSets.
    fn cluster(daemon_sets: Vec<DaemonSet>) -> Facts {
        Facts {
            server_version: "v1.33.2".to_owned(),
            namespace: "cistern-system".to_owned(),
            definitions: Ok(Vec::new()),
            policies: Ok(manifests::policies()),
            policy_bindings: Ok(manifests::policy_bindings()),
            drivers: Ok(Vec::new()),
            csi_nodes: Ok(Vec::new()),
            nodes: Ok(Vec::new()),
            deployments: Ok(Vec::new()),
            daemon_sets: Ok(daemon_sets),
            pods: Ok(Vec::new()),
            classes: Ok(Vec::new()),
            snapshot_classes: Ok(Vec::new()),
            pools: Ok(Vec::new()),
            storage_nodes: Ok(Vec::new()),
        }
    }

    #[test]
    fn a_node_plugin_with_a_renamed_account_fails_although_every_policy_is_enforced() {
        for (account, name) in [
            // As `namePrefix` and `nameSuffix` of kustomize rename it.
            (Some("team-a-cistern-node"), "team-a-cistern-node"),
            (Some("cistern-node-test"), "cistern-node-test"),
            (None, "default"),
        ] {
            let check = examine(&cluster(vec![daemon_set(NODE_COMPONENT, account)]));
            assert_eq!(check.outcome, CheckOutcome::Fail, "{name}");
            let expected = format!(
                "the node plugin runs as {name}, but the policy nodes.cistern.storage applies only to the \
                 account cistern-node"
            );
            assert_eq!(check.message, expected);
        }
    }

    #[test]
    fn only_the_account_of_the_node_plugin_is_compared() {
        let plugin = || daemon_set(NODE_COMPONENT, Some(NODE_ACCOUNT));
        let other = daemon_set("other", Some("team-a-other"));
        for sets in [vec![plugin()], vec![other, plugin()], Vec::new()] {
            assert_eq!(examine(&cluster(sets)).outcome, CheckOutcome::Ok);
        }
    }

    #[test]
    fn the_policy_of_the_nodes_matches_the_account_by_the_name_that_is_compared() {
        let policies = manifests::policies();
        let of_nodes = policies
            .iter()
            .find(|policy| policy.name_any() == "nodes.cistern.storage");
        let spec = of_nodes.unwrap().spec.as_ref().unwrap();
        let mut conditions = spec.match_conditions.iter().flatten();
        let account = format!(".endsWith(':{NODE_ACCOUNT}')");
        assert!(conditions.any(|it| it.expression.contains(&account)));
    }
}
