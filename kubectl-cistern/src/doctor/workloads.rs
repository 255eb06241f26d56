//! Checks that Cistern's pods run, and the versions of their sidecars. Pure.

use std::collections::BTreeMap;

use cistern_crds::{
    names::{COMPONENT_LABEL, NODE_COMPONENT},
    pod::is_ready,
};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Container, Pod},
};
use kube::ResourceExt as _;

use super::{
    facts::{Facts, ListResult},
    manifests::{self, Pinned},
    report::{APPLY, Check},
    versions::Version,
};

/// Returns the value of the component label of an object.
pub fn component<K: kube::Resource>(object: &K) -> Option<&str> {
    object.labels().get(COMPONENT_LABEL).map(String::as_str)
}

/// Value of the component label on the operator's pods and Deployment.
const OPERATOR_COMPONENT: &str = "operator";
/// Value of the component label on the controller's pods and Deployment.
pub const CONTROLLER_COMPONENT: &str = "controller";

/// Returns the command that prints the logs of the node plugin on a node.
pub fn node_logs(namespace: &str, node: &str) -> String {
    format!(
        "kubectl -n {namespace} logs --all-containers $(kubectl -n {namespace} get pod -o name \
        -l {COMPONENT_LABEL}={NODE_COMPONENT} --field-selector spec.nodeName={node})"
    )
}

/// Checks operator, controller, agents and sidecars.
pub fn examine(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    match &facts.deployments {
        Ok(all) => {
            for component in [OPERATOR_COMPONENT, CONTROLLER_COMPONENT] {
                let found = find(all, &facts.namespace, component);
                checks.push(deployment(component, found, &facts.namespace));
            }
        }
        Err(error) => checks.push(Check::unread("operator", error)),
    }
    checks.push(match &facts.daemon_sets {
        Ok(all) => agents(
            all.iter().find(|it| component(*it) == Some(NODE_COMPONENT)),
            &facts.pods,
            &facts.namespace,
        ),
        Err(error) => Check::unread("agents", error),
    });
    if let Ok(all) = &facts.deployments
        && let Some(controller) = find(all, &facts.namespace, CONTROLLER_COMPONENT)
    {
        checks.extend(sidecars(controller));
    }
    checks
}

/// Returns the Deployment of a component in a namespace.
pub fn find<'a>(all: &'a [Deployment], namespace: &str, part: &str) -> Option<&'a Deployment> {
    all.iter()
        .find(|it| it.namespace().as_deref() == Some(namespace) && component(*it) == Some(part))
}

fn deployment(name: &'static str, found: Option<&Deployment>, namespace: &str) -> Check {
    let Some(found) = found else {
        let message = format!("there is no Deployment with its label in namespace {namespace}");
        return Check::fail(name, message, format!("{APPLY}, or set --system-namespace"));
    };
    let wanted = found.spec.replicas.unwrap_or(1);
    let ready = found
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0);
    let message = format!("{ready} of {wanted} ready");
    let see = format!(
        "kubectl -n {namespace} describe deployment {}",
        found.name_any()
    );
    match (ready, wanted) {
        (0, _) => Check::fail(name, message, see),
        (ready, wanted) if ready < wanted => Check::warn(name, message, see),
        _ => Check::ok(name, message),
    }
}

fn agents(found: Option<&DaemonSet>, pods: &ListResult<Pod>, namespace: &str) -> Check {
    const NAME: &str = "agents";
    let Some(found) = found else {
        return Check::fail(NAME, "there is no DaemonSet of the node plugin", APPLY);
    };
    let status = found.status.as_ref();
    let wanted = status.map_or(0, |status| status.desired_number_scheduled);
    let ready = status.map_or(0, |status| status.number_ready);
    let message = format!("{ready} of {wanted} ready");
    if ready >= wanted && wanted > 0 {
        return Check::ok(NAME, message);
    }
    let nodes = silent(pods);
    match nodes.first() {
        Some(node) => Check::fail(
            NAME,
            format!("{message}; not on {}", nodes.join(", ")),
            node_logs(namespace, node),
        ),
        None => Check::fail(
            NAME,
            message,
            format!(
                "kubectl -n {} describe daemonset {}",
                found.namespace().unwrap_or_default(),
                found.name_any()
            ),
        ),
    }
}

/// Returns the nodes of the node plugin on which none of its pods is ready.
fn silent(pods: &ListResult<Pod>) -> Vec<&str> {
    let agents = pods.iter().flatten();
    // While an agent is replaced, its node has two pods.
    let mut answers = BTreeMap::new();
    for pod in agents.filter(|pod| component(*pod) == Some(NODE_COMPONENT)) {
        let spec = pod.spec.as_ref();
        if let Some(node) = spec.and_then(|spec| spec.node_name.as_deref()) {
            *answers.entry(node).or_insert(false) |= is_ready(pod);
        }
    }
    let silent = answers.into_iter().filter(|(_, answers)| !answers);
    silent.map(|(node, _)| node).collect()
}

/// Returns the containers in a Deployment's pod template.
pub fn containers(deployment: &Deployment) -> &[Container] {
    let pod = deployment.spec.template.spec.as_ref();
    pod.map_or(&[], |pod| &pod.containers)
}

/// Returns the container whose image has the name `program`.
pub fn running<'a>(deployment: &'a Deployment, program: &str) -> Option<&'a Container> {
    containers(deployment).iter().find(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        split(image).0.rsplit('/').next() == Some(program)
    })
}

/// Splits an image into name and tag. Ignores digests and the port of a registry.
pub fn split(image: &str) -> (&str, &str) {
    let name = image.split('@').next().unwrap_or_default();
    match name.rsplit_once(':') {
        Some((name, version)) if !version.contains('/') => (name, version),
        _ => (name, ""),
    }
}

fn sidecars(controller: &Deployment) -> Vec<Check> {
    let checks = manifests::sidecars().into_iter().filter_map(|pinned| {
        let container = running(controller, pinned.program());
        match container {
            Some(container) => {
                let image = container.image.as_deref().unwrap_or_default();
                Some(sidecar(&pinned, split(image).1))
            }
            // Snapshots are optional and have their own checks.
            None if pinned.program() == "csi-snapshotter" => None,
            None => Some(Check::fail(
                "sidecars",
                format!("{} is missing from the controller", pinned.program()),
                APPLY,
            )),
        }
    });
    checks.collect()
}

fn sidecar(pinned: &Pinned, version: &str) -> Check {
    const NAME: &str = "sidecars";
    let (program, tested) = (pinned.program(), &pinned.new_tag);
    match (Version::parse(version), Version::parse(tested)) {
        (found, wanted) if found.is_some() && found == wanted => {
            Check::ok(NAME, format!("{program} {version}"))
        }
        (Some(found), Some(wanted)) if found.0 == wanted.0 => Check::warn(
            NAME,
            format!("{program} is {version}, but the tested version is {tested}"),
            "plan a change to the version in the manifests",
        ),
        (Some(_), _) => Check::fail(
            NAME,
            format!(
                "{program} is {version}, but the tested version is {tested}, of another major version"
            ),
            "use the version in the manifests",
        ),
        (None, _) => Check::warn(
            NAME,
            format!("the image of {program} has no version tag"),
            format!("make sure that it is {tested}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{doctor::report::CheckOutcome, testing::object};

    fn controller(ready: i32, images: &[&str]) -> Deployment {
        let containers: Vec<_> = images
            .iter()
            .map(|image| json!({"name": "c", "image": image}))
            .collect();
        object(json!({
            "metadata": {"name": "cistern-controller", "namespace": "s", "labels": {COMPONENT_LABEL: "controller"}},
            "spec": {"replicas": 2, "selector": {}, "template": {"spec": {"containers": containers}}},
            "status": {"readyReplicas": ready},
        }))
    }

    #[test]
    fn a_deployment_passes_when_all_of_its_pods_are_ready() {
        let judge = |ready| deployment("controller", Some(&controller(ready, &[])), "s").outcome;
        assert_eq!(
            [judge(0), judge(1), judge(2)],
            [CheckOutcome::Fail, CheckOutcome::Warn, CheckOutcome::Ok]
        );
        assert_eq!(
            deployment("controller", None, "s").outcome,
            CheckOutcome::Fail
        );
        let all = [controller(1, &[])];
        assert!(find(&all, "s", "controller").is_some());
        assert!(find(&all, "elsewhere", "controller").is_none());
    }

    #[test]
    fn an_agent_that_is_not_ready_is_named_by_its_node() {
        let set: DaemonSet = object(json!({"metadata": {"name": "cistern-node"}, "status": {
            "desiredNumberScheduled": 2, "numberReady": 1, "currentNumberScheduled": 2, "numberMisscheduled": 0}}));
        let pod = |node: &str, ready: &str| -> Pod {
            object(
                json!({"metadata": {"labels": {COMPONENT_LABEL: NODE_COMPONENT}}, "spec": {"nodeName": node,
                "containers": []}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
            )
        };
        let check = agents(
            Some(&set),
            &Ok(vec![pod("a", "True"), pod("b", "False")]),
            "s",
        );
        assert_eq!(check.message, "1 of 2 ready; not on b");
        assert_eq!(check.action, node_logs("s", "b"));

        let leaving = |node: &str| {
            let mut pod = pod(node, "True");
            pod.metadata.deletion_timestamp = Some(object(json!("1970-01-01T00:00:00Z")));
            pod
        };
        let replaced = vec![leaving("a"), pod("a", "True"), leaving("b")];
        let check = agents(Some(&set), &Ok(replaced), "s");
        assert_eq!(check.message, "1 of 2 ready; not on b");
    }

    #[test]
    fn sidecars_are_compared_with_the_tested_versions() {
        let tested: Vec<String> = manifests::sidecars()
            .iter()
            .map(|it| {
                format!(
                    "mirror.example:5000/csi/{}:{}@sha256:0",
                    it.program(),
                    it.new_tag
                )
            })
            .collect();
        let all: Vec<&str> = tested.iter().map(String::as_str).collect();
        let judge = |images: &[&str]| -> Vec<CheckOutcome> {
            sidecars(&controller(2, images))
                .into_iter()
                .map(|check| check.outcome)
                .collect()
        };
        assert_eq!(judge(&all), [CheckOutcome::Ok; 3]);
        assert_eq!(judge(&all[..2]), [CheckOutcome::Ok; 2]);
        let old = ["x/csi-provisioner:v6.0.9", "x/csi-resizer:v1.9.0"];
        assert_eq!(judge(&old), [CheckOutcome::Warn, CheckOutcome::Fail]);
        assert_eq!(
            judge(&["x/csi-provisioner@sha256:1"]),
            [CheckOutcome::Warn, CheckOutcome::Fail]
        );
    }
}
