//! What is known of the nodes' machines: system, kernel, and whether their agents report. Pure.
//!
//! Which filesystems a kernel has, the agent finds out when it makes a pool or a volume; a Node does
//! not tell.

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::ConditionType;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::{facts::Facts, report::Check, versions::Version};
use crate::truth::Truth;

const KERNEL: &str = "kernel";
const NODES: &str = "nodes";

/// Calls of the kernel without which nothing works: LOOP_CONFIGURE with a block size (5.8) is the
/// newest of them.
const NEEDED: Version = Version(5, 8);
/// The oldest kernel that the tests run on.
const TESTED: Version = Version(6, 1);

/// Kernels of the nodes that carry pools, and what their agents and kubelets say.
pub fn examine(facts: &Facts) -> Vec<Check> {
    let (nodes, carriers) = match (&facts.nodes, &facts.storage_nodes) {
        (Ok(nodes), Ok(carriers)) => (nodes, carriers),
        (Err(why), _) | (_, Err(why)) => {
            return vec![Check::warn(NODES, why, "ask somebody who may")];
        }
    };
    let names: BTreeSet<String> = carriers.iter().map(kube::ResourceExt::name_any).collect();
    let carrying: Vec<&Node> = nodes
        .iter()
        .filter(|node| names.contains(&node.name_any()))
        .collect();
    let mut checks = Vec::new();
    let mut silent = Vec::new();
    for carrier in carriers {
        let conditions = carrier
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        if Truth::of(conditions, ConditionType::AgentReporting) != Truth::True {
            silent.push(carrier.name_any());
        }
    }
    checks.push(match &silent[..] {
        [] if carriers.is_empty() => Check::warn(
            NODES,
            "no node carries a pool",
            "declare a StoragePool whose nodeSelector matches some",
        ),
        [] => Check::ok(
            NODES,
            format!("{} carry pools, and their agents report", carriers.len()),
        ),
        [first, ..] => Check::fail(
            NODES,
            format!("nobody hears from the agent of {}", silent.join(", ")),
            format!("kubectl cistern logs --node {first}"),
        ),
    });
    checks.extend(kernels(&carrying));
    checks
}

fn kernels(nodes: &[&Node]) -> Vec<Check> {
    let mut of_kernel: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in nodes {
        let info = node
            .status
            .as_ref()
            .and_then(|status| status.node_info.as_ref());
        let kernel = info
            .map(|info| info.kernel_version.clone())
            .unwrap_or_default();
        of_kernel.entry(kernel).or_default().push(node.name_any());
    }
    of_kernel
        .iter()
        .map(|(kernel, nodes)| judge(kernel, nodes))
        .collect()
}

fn judge(kernel: &str, nodes: &[String]) -> Check {
    let on = match nodes {
        [one] => one.clone(),
        several => format!("{} nodes", several.len()),
    };
    match Version::parse(kernel) {
        Some(version) if version >= TESTED => Check::ok(KERNEL, format!("{kernel} on {on}")),
        Some(version) if version >= NEEDED => Check::warn(
            KERNEL,
            format!("{kernel} on {on} is older than {TESTED}, the oldest that is tested"),
            "upgrade when there is time",
        ),
        Some(_) => Check::fail(
            KERNEL,
            format!(
                "{kernel} on {on} is older than {NEEDED}: its loop devices lack what volumes need"
            ),
            "upgrade the kernel",
        ),
        None => Check::warn(
            KERNEL,
            format!("the kernel {kernel:?} of {on} cannot be understood"),
            format!("make sure that it is {TESTED} or newer"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Outcome;

    #[test]
    fn kernels_are_told_once_for_all_nodes_that_have_them() {
        let nodes = ["a".to_owned(), "b".to_owned()];
        let of = |kernel: &str| judge(kernel, &nodes).outcome;
        assert_eq!(
            judge("6.12.41-generic", &nodes).message,
            "6.12.41-generic on 2 nodes"
        );
        assert_eq!(of("6.1.0-37-amd64"), Outcome::Ok);
        assert_eq!(of("5.15.0-1"), Outcome::Warn);
        assert_eq!(of("4.18.0-553.el8"), Outcome::Fail);
        assert_eq!(of(""), Outcome::Warn);
    }
}
