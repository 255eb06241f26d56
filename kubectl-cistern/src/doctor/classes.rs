//! Checks that StorageClasses have valid parameters and an existing pool. Pure.

use std::collections::BTreeMap;

use cistern_crds::{Parameters, PoolSource, StoragePool, names::DRIVER};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{ResourceExt, core::DeserializeGuard};

use super::{facts::Facts, report::Check};

const CLASSES: &str = "storage classes";
const DEFAULT: &str = "default class";
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// The sources of all pools by their names; None for a pool that cannot be parsed.
type Sources = BTreeMap<String, Option<PoolSource>>;

/// Checks Cistern's StorageClasses and the default StorageClass.
pub fn examine(facts: &Facts) -> Vec<Check> {
    match (&facts.classes, &facts.pools) {
        (Ok(classes), Ok(pools)) => {
            let source = |pool: &StoragePool| pool.spec.source.clone();
            let named = |pool: &DeserializeGuard<StoragePool>| {
                (pool.name_any(), pool.0.as_ref().ok().map(source))
            };
            let pools = pools.iter().map(named).collect();
            let mut checks = ours(classes, &pools);
            checks.push(default(classes));
            checks
        }
        (Err(error), _) | (_, Err(error)) => {
            vec![Check::unread(CLASSES, error)]
        }
    }
}

/// Checks Cistern's classes.
fn ours(classes: &[StorageClass], pools: &Sources) -> Vec<Check> {
    let ours: Vec<&StorageClass> = classes
        .iter()
        .filter(|it| it.provisioner == DRIVER)
        .collect();
    if ours.is_empty() {
        let message = format!("none has the provisioner {DRIVER}");
        let action = "create one: manifests/examples/quickstart/class.yaml";
        return vec![Check::warn(CLASSES, message, action)];
    }
    let checks: Vec<Check> = ours
        .iter()
        .filter_map(|class| judge(class, pools))
        .collect();
    if checks.is_empty() {
        let names: Vec<String> = ours.iter().map(|class| class.name_any()).collect();
        return vec![Check::ok(CLASSES, names.join(", "))];
    }
    checks
}

/// Checks one class. Parameters of a class are immutable, so the fix is to recreate it.
fn judge(class: &StorageClass, pools: &Sources) -> Option<Check> {
    let name = class.name_any();
    let none = BTreeMap::new();
    let parameters = match Parameters::of_class(class.parameters.as_ref().unwrap_or(&none)) {
        Ok(parameters) => parameters,
        Err(error) => {
            let action = format!(
                "kubectl delete storageclass {name}, then recreate it; its volumes are kept"
            );
            return Some(Check::fail(CLASSES, format!("{name}: {error}"), action));
        }
    };
    let exists = |name: &&str| pools.contains_key(*name);
    let missing: Vec<&str> = parameters.pools.iter().filter(|it| !exists(it)).collect();
    if !missing.is_empty() {
        let message = format!("{name}: there is no StoragePool {}", missing.join(", "));
        let action = "create the pool, or recreate the class";
        // Volumes still come from the others.
        return Some(if missing.len() < parameters.pools.count() {
            Check::warn(CLASSES, message, action)
        } else {
            Check::fail(CLASSES, message, action)
        });
    }
    if let Some(check) = in_volume_groups(&name, &parameters, pools) {
        return Some(check);
    }
    if class.allow_volume_expansion != Some(true) {
        let message = format!("{name}: its volumes cannot be expanded");
        let action =
            format!("kubectl patch storageclass {name} -p '{{\"allowVolumeExpansion\":true}}'");
        return Some(Check::warn(CLASSES, message, action));
    }
    None
}

/// Checks that the pools of a class hold its volumes: a volume group holds only some.
fn in_volume_groups(class: &str, parameters: &Parameters, pools: &Sources) -> Option<Check> {
    let kind = parameters.attributes.provisioning;
    let refused = parameters.pools.iter().filter_map(|pool| {
        let source = pools.get(pool)?.as_ref()?;
        let holds = source.holds(pool, kind);
        holds.err().map(|why| why.message)
    });
    let refused: Vec<String> = refused.collect();
    let message = format!("{class}: {}", refused.first()?);
    let action =
        format!("kubectl delete storageclass {class}, then recreate it; its volumes are kept");
    // Volumes still come from the others.
    Some(if refused.len() < parameters.pools.count() {
        Check::warn(CLASSES, message, action)
    } else {
        Check::fail(CLASSES, message, action)
    })
}

fn default(classes: &[StorageClass]) -> Check {
    let is_default = |class: &&StorageClass| {
        class
            .annotations()
            .get(IS_DEFAULT)
            .is_some_and(|value| value == "true")
    };
    let defaults: Vec<&StorageClass> = classes.iter().filter(is_default).collect();
    match defaults[..] {
        [one] if one.provisioner == DRIVER => Check::ok(DEFAULT, one.name_any()),
        [one] => Check::ok(
            DEFAULT,
            format!("{}, which is not Cistern's", one.name_any()),
        ),
        [] => Check::ok(DEFAULT, "none: every claim must name its class"),
        _ => {
            let names: Vec<String> = defaults.iter().map(|class| class.name_any()).collect();
            Check::warn(
                DEFAULT,
                format!(
                    "there are several, and Kubernetes uses the newest: {}",
                    names.join(", ")
                ),
                format!("remove the annotation {IS_DEFAULT} from all but one"),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{doctor::report::CheckOutcome, testing::object};

    fn class(name: &str, parameters: &Value, default: bool) -> StorageClass {
        object(json!({
            "metadata": {"name": name, "annotations": {IS_DEFAULT: default.to_string()}},
            "provisioner": DRIVER, "parameters": parameters, "allowVolumeExpansion": true,
        }))
    }

    fn judged(classes: &[StorageClass]) -> Vec<(CheckOutcome, String)> {
        let group = object(json!({"volumeGroup": {"name": "vg-data"}}));
        let pools = [("fast".to_owned(), None), ("group".to_owned(), Some(group))];
        let checks = ours(classes, &pools.into()).into_iter();
        checks.map(|check| (check.outcome, check.message)).collect()
    }

    #[test]
    fn a_class_needs_known_parameters_and_an_existing_pool() {
        let well = class("fast", &json!({"pool": "fast"}), false);
        assert_eq!(
            judged(std::slice::from_ref(&well)),
            [(CheckOutcome::Ok, "fast".to_owned())]
        );
        let typo = class(
            "typo",
            &json!({"pool": "fast", "provisionning": "thin"}),
            false,
        );
        let lost = class("lost", &json!({"pool": "slow"}), false);
        let mut small = class("small", &json!({"pool": "fast"}), false);
        small.allow_volume_expansion = None;
        let messages = judged(&[well, typo, lost, small]);
        assert_eq!(messages.len(), 3);
        assert!(
            messages[0].1.contains("\"provisionning\" is unknown"),
            "{messages:?}"
        );
        assert_eq!(
            messages[1],
            (
                CheckOutcome::Fail,
                "lost: there is no StoragePool slow".to_owned()
            )
        );
        assert_eq!(
            messages[2],
            (
                CheckOutcome::Warn,
                "small: its volumes cannot be expanded".to_owned()
            )
        );
        assert_eq!(judged(&[])[0].0, CheckOutcome::Warn);
    }

    #[test]
    fn a_class_of_several_pools_of_which_one_is_missing_is_a_warning() {
        let some = class("some", &json!({"pool": "slow,fast"}), false);
        let none = class("none", &json!({"pool": "slow,slower"}), false);
        assert_eq!(
            judged(&[some, none]),
            [
                (
                    CheckOutcome::Warn,
                    "some: there is no StoragePool slow".to_owned()
                ),
                (
                    CheckOutcome::Fail,
                    "none: there is no StoragePool slow, slower".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn a_class_needs_a_pool_that_holds_its_volumes() {
        let of = |name, pool: &str, provisioning: &str| {
            let parameters = json!({"pool": pool, "provisioning": provisioning});
            class(name, &parameters, false)
        };
        let thick = of("thick", "group", "thick");
        assert_eq!(
            judged(std::slice::from_ref(&thick)),
            [(CheckOutcome::Ok, "thick".to_owned())]
        );
        let found = judged(&[
            thick,
            of("thin", "group", "thin"),
            of("some", "fast,group", "thin"),
        ]);
        let outcomes: Vec<CheckOutcome> = found.iter().map(|it| it.0).collect();
        assert_eq!(outcomes, [CheckOutcome::Fail, CheckOutcome::Warn]);
        assert!(
            found[0]
                .1
                .contains("thin: pool group is a volume group, which holds thick volumes only"),
            "{found:?}"
        );
    }

    #[test]
    fn two_default_classes_are_a_warning() {
        let named = |name, default| class(name, &json!({"pool": "fast"}), default);
        assert_eq!(default(&[named("a", true), named("b", false)]).message, "a");
        assert_eq!(default(&[named("a", false)]).outcome, CheckOutcome::Ok);
        let two = default(&[named("a", true), named("b", true)]);
        assert_eq!(two.outcome, CheckOutcome::Warn);
        assert!(two.message.ends_with("a, b"), "{}", two.message);
    }
}
