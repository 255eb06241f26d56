//! Checks the versions of Cistern's own parts. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Node, Pod};

use super::{
    facts::Facts,
    report::{Check, CheckOutcome},
    workloads::{component, split},
};

/// Names of the containers that run Cistern's own programs, in the pods of operator, controller and
/// node plugin.
const OWN_CONTAINERS: [&str; 2] = ["operator", "driver"];

/// Checks that all of Cistern's pods have the same version, and that pods with the same image run the same content. Versions
/// differ during an upgrade.
pub fn versions(facts: &Facts) -> Check {
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(error) => return Check::unread(PARTS, error),
    };
    let check = one_version(pods);
    if check.outcome != CheckOutcome::Ok {
        return check;
    }
    // The check of the nodes says that they cannot be read.
    let nodes = facts.nodes.as_deref().unwrap_or_default();
    several_builds(pods, nodes).unwrap_or(check)
}

const PARTS: &str = "versions";
/// Characters of a digest that a message shows: its algorithm and 12 digits.
const SHOWN: usize = 19;

/// Returns the pods that are not being deleted, because those have successors.
fn present(pods: &[Pod]) -> impl Iterator<Item = &Pod> {
    pods.iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
}

fn one_version(pods: &[Pod]) -> Check {
    // The number of pods by component and version.
    let mut counts: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for pod in present(pods) {
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

/// Warns if pods with the same image run different contents: the tag was pushed again, and a node that has it does not pull
/// it again. Compares nodes of the same architecture, because each architecture may have a digest of its own.
fn several_builds(pods: &[Pod], nodes: &[Node]) -> Option<Check> {
    // The number of pods by image and architecture, and then by digest.
    let mut counts: BTreeMap<(&str, &str), BTreeMap<&str, usize>> = BTreeMap::new();
    for pod in present(pods) {
        let image = own_container(pod).and_then(|it| it.image.as_deref());
        let image = image.zip(architecture_of(pod, nodes));
        if let Some((image, digest)) = image.zip(digest_of(pod)) {
            *counts.entry(image).or_default().entry(digest).or_default() += 1;
        }
    }
    let ((image, _), digests) = counts.iter().find(|(_, digests)| digests.len() > 1)?;
    let builds: Vec<String> = digests
        .iter()
        .map(|(digest, pods)| format!("{} ({pods})", digest.get(..SHOWN).unwrap_or(digest)))
        .collect();
    Some(Check::warn(
        PARTS,
        format!(
            "{image} is not the same image everywhere: {}",
            builds.join(" and ")
        ),
        "push each build under a tag of its own, as docs/install.md describes, and install the newest: a node does not \
        pull a tag again that it has",
    ))
}

/// Returns the container of the pod that runs Cistern's own program.
fn own_container(pod: &Pod) -> Option<&Container> {
    let mut containers = pod.spec.as_ref()?.containers.iter();
    containers.find(|it| OWN_CONTAINERS.contains(&it.name.as_str()))
}

/// Returns the tag of the pod's image of Cistern; `None` if a digest alone identifies the image.
fn version_of(pod: &Pod) -> Option<&str> {
    let (_, tag) = split(own_container(pod)?.image.as_deref()?);
    (!tag.is_empty()).then_some(tag)
}

/// Returns the digest of the image that the pod's own container runs; `None` until it has started.
fn digest_of(pod: &Pod) -> Option<&str> {
    let own = own_container(pod)?;
    let mut statuses = pod.status.as_ref()?.container_statuses.iter().flatten();
    let image = statuses.find(|it| it.name == own.name)?.image_id.as_str();
    let digest = image.rsplit('@').next()?;
    (!digest.is_empty()).then_some(digest)
}

/// Returns the architecture of the pod's node.
fn architecture_of<'a>(pod: &Pod, nodes: &'a [Node]) -> Option<&'a str> {
    let name = pod.spec.as_ref()?.node_name.as_ref()?;
    let node = nodes
        .iter()
        .find(|node| node.metadata.name.as_ref() == Some(name))?;
    let info = node.status.as_ref()?.node_info.as_ref()?;
    Some(info.architecture.as_str())
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
    use crate::testing::object;

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
    fn different_images_under_one_tag_are_a_warning_that_names_them() {
        let node = |name: &str, architecture: &str| -> Node {
            object(json!({
                "metadata": {"name": name},
                "status": {"nodeInfo": {"architecture": architecture}},
            }))
        };
        let nodes = [node("a", "amd64"), node("b", "amd64"), node("c", "arm64")];
        let agent = |node: &str, digest: &str| {
            let mut agent = pod("node", "driver", "registry.example/driver:v0.1.0");
            agent.spec.get_or_insert_default().node_name = Some(node.to_owned());
            agent.status = Some(object(json!({"containerStatuses": [
                {"name": "provisioner", "imageID": "csi-provisioner@sha256:9"},
                {"name": "driver", "imageID": digest},
            ]})));
            agent
        };
        let (old, new) = ("sha256:0123456789abcdef", "sha256:fedcba9876543210");
        let pulled = |digest: &str| format!("registry.example/driver@{digest}");
        // The name by which a runtime knows an image does not count, nor does the image of another architecture.
        let mut all = vec![
            agent("a", &pulled(old)),
            agent("b", &format!("import-2026@{old}")),
            agent("c", &pulled(new)),
            agent("b", ""),
            agent("gone", &pulled(new)),
        ];
        assert_eq!(several_builds(&all, &nodes), None);
        assert_eq!(several_builds(&all, &[]), None);

        all.push(agent("b", &pulled(new)));
        let check = several_builds(&all, &nodes).unwrap();
        assert_eq!(check.outcome, CheckOutcome::Warn);
        assert_eq!(
            check.message,
            "registry.example/driver:v0.1.0 is not the same image everywhere: sha256:0123456789ab (2) and \
            sha256:fedcba987654 (1)"
        );

        // The new agent is being deleted.
        all.last_mut().unwrap().metadata.deletion_timestamp = object(json!("2026-01-01T00:00:00Z"));
        assert_eq!(several_builds(&all, &nodes), None);
    }

    #[test]
    fn images_without_a_tag_are_a_warning() {
        let agent = pod("node", "driver", "cistern/driver@sha256:1");
        assert_eq!(one_version(&[agent]).outcome, CheckOutcome::Warn);
        assert_eq!(one_version(&[]).outcome, CheckOutcome::Warn);
    }
}
