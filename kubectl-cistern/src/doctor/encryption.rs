//! Checks that the nodes of classes with `encryption` can have encrypted volumes. Pure.

use std::collections::BTreeMap;

use cistern_crds::{Parameters, StorageNode, enumeration::first_names, names::DRIVER};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{ResourceExt as _, core::DeserializeGuard};

use super::{facts::Facts, report::Check};

const ENCRYPTION: &str = "encryption";
/// Maximum number of nodes that a message names.
const NAMED: usize = 3;

/// Checks each class that encrypts its volumes. Without one, names the nodes that cannot have encrypted volumes.
pub fn examine(facts: &Facts) -> Vec<Check> {
    match (&facts.classes, &facts.storage_nodes) {
        (Ok(classes), Ok(nodes)) => judge(classes, &readable(nodes)),
        (Err(error), _) | (_, Err(error)) => vec![Check::unread(ENCRYPTION, error)],
    }
}

/// The check of the objects names those that cannot be parsed.
fn readable(nodes: &[DeserializeGuard<StorageNode>]) -> Vec<&StorageNode> {
    nodes.iter().filter_map(|it| it.0.as_ref().ok()).collect()
}

fn judge(classes: &[StorageClass], nodes: &[&StorageNode]) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut names = Vec::new();
    for (name, parameters) in classes.iter().filter_map(encrypting) {
        let has_pool = |node: &&&StorageNode| {
            let mut pools = node.spec.pools.iter();
            pools.any(|pool| parameters.pools.contains(&pool.name))
        };
        let of_class: Vec<&StorageNode> = nodes.iter().filter(has_pool).copied().collect();
        checks.extend(lacking(&name, &of_class));
        names.push(name);
    }
    match (names.is_empty(), checks.is_empty()) {
        (true, _) => vec![unused(nodes)],
        (false, true) => {
            let message = format!("every node can have volumes of {}", names.join(", "));
            vec![Check::ok(ENCRYPTION, message)]
        }
        (false, false) => checks,
    }
}

/// Returns the name and the parameters of a class of Cistern that encrypts. The check of the classes names those with
/// wrong parameters.
fn encrypting(class: &StorageClass) -> Option<(String, Parameters)> {
    if class.provisioner != DRIVER {
        return None;
    }
    let parameters = Parameters::of_class(class.parameters.as_ref()?).ok()?;
    let encrypts = parameters.encryption.is_some();
    encrypts.then(|| (class.name_any(), parameters))
}

/// A check for each thing that nodes with the pools of a class lack. The class fails if no node has everything.
fn lacking(class: &str, nodes: &[&StorageNode]) -> Vec<Check> {
    let mut of_lack: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes {
        if let Some(lack) = node.lack_for_encryption() {
            of_lack.entry(lack).or_default().push(node.name_any());
        }
    }
    let lacking: usize = of_lack.values().map(Vec::len).sum();
    let check = if lacking < nodes.len() {
        Check::warn
    } else {
        Check::fail
    };
    let checks = of_lack.iter().map(|(lack, names)| {
        let names = first_names(names.iter(), NAMED);
        let message = format!("{class}: no volume can be on {names}: {lack}");
        let action = "load dm_crypt on the node, or upgrade its agent: docs/encryption.md";
        check(ENCRYPTION, message, action)
    });
    checks.collect()
}

fn unused(nodes: &[&StorageNode]) -> Check {
    let lacking = nodes.iter().filter(|it| it.lack_for_encryption().is_some());
    let lacking: Vec<String> = lacking.map(|it| it.name_any()).collect();
    let message = match &lacking[..] {
        [] => "every node can have encrypted volumes, and no class has them".to_owned(),
        names => format!(
            "no class has encrypted volumes, and {} cannot have them",
            first_names(names.iter(), NAMED)
        ),
    };
    Check::ok(ENCRYPTION, message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{doctor::report::CheckOutcome, testing::object};

    const OLD: Value = Value::Null;

    fn class(name: &str, pools: &str, encryption: &str) -> StorageClass {
        let parameters = json!({"pool": pools, "encryption": encryption});
        object(json!({"metadata": {"name": name}, "provisioner": DRIVER, "parameters": parameters}))
    }

    fn node(name: &str, pool: &str, encryption: &Value) -> StorageNode {
        let pool = json!({"name": pool, "uid": "uid", "source": {"image": {"size": "1Gi"}},
            "overcommitPercent": 100, "reservedPercent": 5});
        object(json!({
            "metadata": {"name": name}, "spec": {"topology": {}, "pools": [pool]},
            "status": {"encryption": encryption},
        }))
    }

    fn judged(classes: &[StorageClass], nodes: &[StorageNode]) -> Vec<(CheckOutcome, String)> {
        let checks = judge(classes, &nodes.iter().collect::<Vec<_>>());
        let checks = checks.into_iter();
        checks.map(|it| (it.outcome, it.message)).collect()
    }

    #[test]
    fn a_class_is_judged_by_the_nodes_of_its_pools() {
        let lacks = json!({"unavailable": "cryptsetup is missing"});
        let nodes = [
            node("a", "fast", &json!({})),
            node("b", "fast", &lacks),
            node("c", "slow", &OLD),
        ];
        let classes = [
            class("both", "fast,slow", "luks2"),
            class("one", "slow", "luks2"),
            class("wrong", "slow", "yes"),
        ];
        let expected = [
            (
                CheckOutcome::Warn,
                "both: no volume can be on b: cryptsetup is missing",
            ),
            (
                CheckOutcome::Warn,
                "both: no volume can be on c: its agent does not report encryption support: upgrade the \
                 node plugin",
            ),
            (
                CheckOutcome::Fail,
                "one: no volume can be on c: its agent does not report encryption support: upgrade the \
                 node plugin",
            ),
        ];
        let expected = expected.map(|(outcome, message)| (outcome, message.to_owned()));
        assert_eq!(judged(&classes, &nodes), expected);
        let able = [node("a", "fast", &json!({})), node("c", "other", &OLD)];
        assert_eq!(
            judged(&[class("both", "fast,slow", "luks2")], &able),
            [(
                CheckOutcome::Ok,
                "every node can have volumes of both".to_owned()
            )]
        );
    }

    #[test]
    fn nodes_that_no_encrypted_class_needs_are_named_and_are_no_warning() {
        let nodes = [node("a", "fast", &json!({})), node("b", "fast", &OLD)];
        let mut foreign = class("foreign", "fast", "luks2");
        foreign.provisioner = "other".to_owned();
        let message = "no class has encrypted volumes, and b cannot have them";
        assert_eq!(
            judged(&[foreign], &nodes),
            [(CheckOutcome::Ok, message.to_owned())]
        );
        let message = "every node can have encrypted volumes, and no class has them";
        assert_eq!(
            judged(&[], &nodes[..1]),
            [(CheckOutcome::Ok, message.to_owned())]
        );
    }

    #[test]
    fn nodes_that_lack_the_same_share_a_check_that_names_some_of_them() {
        let nodes = ["a", "b", "c", "d", "e"].map(|name| node(name, "fast", &OLD));
        let found = judged(&[class("one", "fast", "luks2")], &nodes);
        assert_eq!(found.len(), 1);
        assert!(found[0].1.contains("on a, b, c and 2 more: "), "{found:?}");
    }
}
