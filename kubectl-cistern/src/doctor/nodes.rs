//! Checks the kernels of nodes, that their agents report, and that their hosts have the rule for udev. Pure.
//!
//! Supported filesystems are not checked: a Node does not list them. The agent detects them when it creates
//! a pool or a volume.

use std::collections::{BTreeMap, BTreeSet};

use cistern_crds::{ConditionType, StorageNode, enumeration::first_names, node::UdevRule};
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, core::DeserializeGuard};

use super::{facts::Facts, report::Check, versions::Version, workloads::node_logs};
use crate::{condition_state::ConditionState, unreadable::may_have_pools};

const KERNEL: &str = "kernel";
const NODES: &str = "nodes";
const UDEV: &str = "udev";
/// Nodes that a message names at most.
const NAMED: usize = 5;

/// Oldest kernel with all required system calls: LOOP_CONFIGURE with a block size needs 5.8.
const NEEDED: Version = Version(5, 8);
/// Oldest kernel on which the tests run.
const TESTED: Version = Version(6, 1);

/// Checks the kernels of nodes with pools, that their agents report, and that their hosts have the rule for udev.
pub fn examine(facts: &Facts) -> Vec<Check> {
    let (nodes, storage_nodes) = match (&facts.nodes, &facts.storage_nodes) {
        (Ok(nodes), Ok(storage_nodes)) => (nodes, storage_nodes),
        (Err(error), _) | (_, Err(error)) => {
            return vec![Check::unread(NODES, error)];
        }
    };
    let carriers = carriers(storage_nodes);
    let names: BTreeSet<String> = carriers.iter().map(|it| it.name_any()).collect();
    let carrying: Vec<&Node> = nodes
        .iter()
        .filter(|node| names.contains(&node.name_any()))
        .collect();
    let mut checks = vec![agents(&carriers, &facts.namespace)];
    checks.extend(kernels(&carrying));
    checks.extend(udev_rule(readable(&carriers)));
    checks
}

/// The StorageNodes with pools. One that cannot be parsed may have some.
fn carriers(nodes: &[DeserializeGuard<StorageNode>]) -> Vec<&DeserializeGuard<StorageNode>> {
    nodes.iter().filter(|it| may_have_pools(it)).collect()
}

/// Those that can be parsed. The check of the objects names the others.
fn readable<'a>(
    carriers: &[&'a DeserializeGuard<StorageNode>],
) -> impl Iterator<Item = &'a StorageNode> {
    carriers.iter().filter_map(|it| it.0.as_ref().ok())
}

/// Checks that the agents of nodes with pools report.
fn agents(carriers: &[&DeserializeGuard<StorageNode>], namespace: &str) -> Check {
    let mut silent = Vec::new();
    for carrier in readable(carriers) {
        let conditions = carrier
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.conditions);
        if ConditionState::of(conditions, ConditionType::AgentReporting) != ConditionState::True {
            silent.push(carrier.name_any());
        }
    }
    match &silent[..] {
        [] if carriers.is_empty() => Check::warn(
            NODES,
            "no node has a pool",
            "create a StoragePool whose nodeSelector matches nodes",
        ),
        [] => Check::ok(
            NODES,
            format!("{} have pools, and their agents report", carriers.len()),
        ),
        [first, ..] => Check::fail(
            NODES,
            format!("the agent does not report on {}", silent.join(", ")),
            node_logs(namespace, first),
        ),
    }
}

/// Checks the rule for udev; none if no node needs it.
fn udev_rule<'a>(nodes: impl Iterator<Item = &'a StorageNode>) -> Option<Check> {
    let (mut missing, mut installed) = (Vec::new(), 0);
    for node in nodes {
        match node.status.as_ref().and_then(|status| status.udev_rule) {
            Some(UdevRule::Missing) => missing.push(node.name_any()),
            Some(UdevRule::Installed) => installed += 1,
            None => {}
        }
    }
    if missing.is_empty() {
        let message = format!("the rule for udev is installed on {installed}");
        return (installed > 0).then(|| Check::ok(UDEV, message));
    }
    let names = first_names(missing.iter(), NAMED);
    Some(Check::warn(
        UDEV,
        format!(
            "udev runs without the rule on {names}: the host activates what pods write to raw block volumes"
        ),
        "install manifests/udev/12-cistern.rules there, as docs/udev.md says",
    ))
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
            "plan an upgrade of the kernel",
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
            format!("the kernel version {kernel:?} of {on} cannot be parsed"),
            format!("make sure that it is {TESTED} or newer"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::node::StorageNodeSpec;
    use serde_json::json;

    use super::*;
    use crate::{
        doctor::report::CheckOutcome,
        testing::{condition, object},
    };

    fn node(name: &str, pool: Option<&str>, reports: &str) -> DeserializeGuard<StorageNode> {
        let pools = pool.map(|pool| json!({"name": pool, "uid": "u"}));
        let reporting = condition("AgentReporting", reports, "AgentMissing", "");
        DeserializeGuard(Ok(object(json!({
            "metadata": {"name": name}, "spec": {"topology": {}},
            "status": {"pools": pools.as_slice(), "conditions": [reporting]},
        }))))
    }

    #[test]
    fn only_the_agents_of_nodes_with_pools_are_counted() {
        let of = |nodes: &[DeserializeGuard<StorageNode>]| agents(&carriers(nodes), "s");
        let bare = node("bare", None, "False");
        let none = of(std::slice::from_ref(&bare));
        assert_eq!(none.message, "no node has a pool");
        let reports = node("a", Some("fast"), "True");
        let one = of(&[bare.clone(), reports.clone()]);
        assert_eq!(one.message, "1 have pools, and their agents report");
        let silent = of(&[bare, reports, node("b", Some("fast"), "False")]);
        assert_eq!(silent.message, "the agent does not report on b");
    }

    #[test]
    fn nodes_with_the_same_kernel_share_one_check() {
        let nodes = ["a".to_owned(), "b".to_owned()];
        let of = |kernel: &str| judge(kernel, &nodes).outcome;
        assert_eq!(
            judge("6.12.41-generic", &nodes).message,
            "6.12.41-generic on 2 nodes"
        );
        assert_eq!(of("6.1.0-37-amd64"), CheckOutcome::Ok);
        assert_eq!(of("5.15.0-1"), CheckOutcome::Warn);
        assert_eq!(of("4.18.0-553.el8"), CheckOutcome::Fail);
        assert_eq!(of(""), CheckOutcome::Warn);
    }

    #[test]
    fn a_node_with_udev_and_without_the_rule_is_a_warning_that_names_it() {
        let node = |name: &str, rule: Option<UdevRule>| {
            let mut node = StorageNode::new(name, StorageNodeSpec::default());
            node.status.get_or_insert_default().udev_rule = rule;
            node
        };
        let (installed, missing) = (Some(UdevRule::Installed), Some(UdevRule::Missing));
        let of = |nodes: &[StorageNode]| udev_rule(nodes.iter());
        assert_eq!(
            of(&[
                node("a", None),
                StorageNode::new("b", StorageNodeSpec::default())
            ]),
            None
        );
        let good = of(&[node("a", installed), node("b", None)]).unwrap();
        assert_eq!(good.outcome, CheckOutcome::Ok);
        let bad = of(&[node("a", installed), node("b", missing), node("c", missing)]).unwrap();
        assert_eq!(bad.outcome, CheckOutcome::Warn);
        assert!(
            bad.message
                .starts_with("udev runs without the rule on b, c:"),
            "{}",
            bad.message
        );
        let many: Vec<_> = (1..8).map(|i| node(&format!("n{i}"), missing)).collect();
        let many = of(&many).unwrap().message;
        assert!(many.contains(" n1, n2, n3, n4, n5 and 2 more:"), "{many}");
    }
}
