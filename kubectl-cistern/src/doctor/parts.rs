//! Checks the versions of Cistern's own parts. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use super::{
    facts::Facts,
    report::Check,
    workloads::{component, split},
};

/// Names of the containers that run Cistern's own programs, in the pods of operator, controller and
/// node plugin.
const OWN_CONTAINERS: [&str; 2] = ["operator", "driver"];

/// Checks that all of Cistern's pods have the same version. They differ during an upgrade.
pub fn versions(facts: &Facts) -> Check {
    match &facts.pods {
        Ok(pods) => one_version(pods),
        Err(error) => Check::unread(PARTS, error),
    }
}

const PARTS: &str = "versions";

fn one_version(pods: &[Pod]) -> Check {
    // The number of pods by component and version. Pods that are being deleted do not count,
    // because their successors do.
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    let running = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    for pod in running {
        if let Some((part, version)) = component(pod).zip(version_of(pod)) {
            *counts.entry(part).or_default().entry(version).or_default() += 1;
        }
    }
    let versions: BTreeSet<&str> = counts.values().flat_map(BTreeMap::keys).copied().collect();
    match versions.first() {
        None => Check::warn(
            PARTS,
            "no pod of Cistern has an image with a tag",
            "make sure that operator, controller and agents have one version",
        ),
        Some(only) if versions.len() == 1 => Check::ok(PARTS, format!("all parts are {only}")),
        Some(_) => Check::warn(
            PARTS,
            format!("the parts have different versions: {}", listed(&counts)),
            "complete the upgrade or the downgrade, as docs/upgrade.md describes",
        ),
    }
}

/// Returns the tag of the pod's image of Cistern; `None` if a digest alone identifies the image.
fn version_of(pod: &Pod) -> Option<&str> {
    let mut containers = pod.spec.as_ref()?.containers.iter();
    let own = containers.find(|it| OWN_CONTAINERS.contains(&it.name.as_str()))?;
    let (_, tag) = split(own.image.as_deref()?);
    (!tag.is_empty()).then_some(tag)
}

fn listed(counts: &BTreeMap<&str, BTreeMap<&str, usize>>) -> String {
    let part = |(part, versions): (&&str, &BTreeMap<&str, usize>)| {
        let versions: Vec<String> = versions
            .iter()
            .map(|(version, pods)| format!("{version} ({pods})"))
            .collect();
        format!("{part} {}", versions.join(" and "))
    };
    let parts: Vec<String> = counts.iter().map(part).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use cistern_crds::names::COMPONENT_LABEL;
    use serde_json::json;

    use super::*;
    use crate::{doctor::report::CheckOutcome, testing::object};

    fn pod(component: &str, container: &str, image: &str) -> Pod {
        object(json!({
            "metadata": {"labels": {COMPONENT_LABEL: component}},
            "spec": {"containers": [
                {"name": "provisioner", "image": "csi-provisioner:v6.3.0"},
                {"name": container, "image": image},
            ]},
        }))
    }

    #[test]
    fn parts_of_different_versions_are_a_warning_that_names_them() {
        let operator = pod(
            "operator",
            "operator",
            "mirror.example:5000/operator:v0.2.0",
        );
        let controller = pod("controller", "driver", "cistern/driver:v0.2.0@sha256:1");
        let agent = |version: &str| pod("node", "driver", &format!("cistern/driver:{version}"));
        let mut all = vec![operator, controller, agent("v0.2.0")];
        let check = one_version(&all);
        assert_eq!(
            (check.outcome, check.message.as_str()),
            (CheckOutcome::Ok, "all parts are v0.2.0")
        );

        all.push(agent("v0.1.0"));
        let check = one_version(&all);
        assert_eq!(check.outcome, CheckOutcome::Warn);
        assert_eq!(
            check.message,
            "the parts have different versions: controller v0.2.0 (1), node v0.1.0 (1) and v0.2.0 (1), operator v0.2.0 (1)"
        );

        // The old agent is being deleted.
        all.last_mut().unwrap().metadata.deletion_timestamp = object(json!("2026-01-01T00:00:00Z"));
        assert_eq!(one_version(&all).outcome, CheckOutcome::Ok);
    }

    #[test]
    fn images_without_a_tag_are_a_warning() {
        let agent = pod("node", "driver", "cistern/driver@sha256:1");
        assert_eq!(one_version(&[agent]).outcome, CheckOutcome::Warn);
        assert_eq!(one_version(&[]).outcome, CheckOutcome::Warn);
    }
}
