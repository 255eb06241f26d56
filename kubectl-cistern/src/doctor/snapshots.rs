//! Checks the optional components for snapshots. Pure.

use cistern_crds::{SnapshotParameters, names::DRIVER, snapshot_parameters::DELETION_POLICY};
use kube::{ResourceExt as _, api::DynamicObject};
use std::collections::BTreeMap;

use super::{facts::Facts, report::Check, workloads};

const SNAPSHOTS: &str = "snapshots";
const CLASSES: &str = "snapshot classes";
/// Snapshot kinds of Kubernetes that csi-snapshotter and users need.
const KINDS: [&str; 3] = [
    "volumesnapshots",
    "volumesnapshotcontents",
    "volumesnapshotclasses",
];
const GROUP: &str = "snapshot.storage.k8s.io";
const HOW: &str =
    "install Kubernetes' snapshot definitions and snapshot-controller: see the README";

/// Checks CRDs, csi-snapshotter, snapshot-controller and VolumeSnapshotClasses.
pub fn examine(facts: &Facts) -> Vec<Check> {
    let (definitions, deployments) = match (&facts.definitions, &facts.deployments) {
        (Ok(definitions), Ok(deployments)) => (definitions, deployments),
        (Err(error), _) | (_, Err(error)) => {
            return vec![Check::unread(SNAPSHOTS, error)];
        }
    };
    let controller = workloads::find(
        deployments,
        &facts.namespace,
        workloads::CONTROLLER_COMPONENT,
    );
    let takes = controller.is_some_and(|it| workloads::running(it, "csi-snapshotter").is_some());
    let is_served = |kind: &&str| {
        let name = format!("{kind}.{GROUP}");
        definitions
            .iter()
            .any(|definition| definition.name_any() == name)
    };
    let missing: Vec<&str> = KINDS.into_iter().filter(|kind| !is_served(kind)).collect();
    let is_run = deployments
        .iter()
        .any(|it| workloads::running(it, "snapshot-controller").is_some());
    let mut checks = vec![judge(takes, &missing, is_run)];
    if takes && missing.is_empty() {
        checks.extend(match &facts.snapshot_classes {
            Ok(all) => classes(all),
            Err(error) => vec![Check::unread(CLASSES, error)],
        });
    }
    checks
}

fn judge(takes: bool, missing: &[&str], is_run: bool) -> Check {
    match (takes, missing) {
        (true, []) if is_run => Check::ok(SNAPSHOTS, "all components run"),
        (true, []) => Check::warn(
            SNAPSHOTS,
            "no Deployment runs snapshot-controller: VolumeSnapshots stay pending without it",
            HOW,
        ),
        (true, [first, ..]) => Check::fail(
            SNAPSHOTS,
            format!("csi-snapshotter runs, but the cluster has no {first}"),
            HOW,
        ),
        (false, []) => Check::warn(
            SNAPSHOTS,
            "the snapshot CRDs are installed, but csi-snapshotter does not run with the controller",
            "kubectl apply -k manifests/snapshots, if you want snapshots",
        ),
        (false, [..]) => Check::ok(SNAPSHOTS, "not installed (optional)"),
    }
}

fn classes(all: &[DynamicObject]) -> Vec<Check> {
    let text = |object: &DynamicObject, field: &str| {
        object
            .data
            .get(field)
            .and_then(|value| value.as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let ours: Vec<&DynamicObject> = all
        .iter()
        .filter(|it| text(it, "driver") == DRIVER)
        .collect();
    if ours.is_empty() {
        let message = format!("no VolumeSnapshotClass has the driver {DRIVER}");
        let action = "kubectl apply -f manifests/examples/snapshots/class.yaml";
        return vec![Check::warn(CLASSES, message, action)];
    }
    let wrong = ours.iter().filter_map(|class| {
        let parameters = class.data.get("parameters").cloned().unwrap_or_default();
        let parameters: BTreeMap<String, String> =
            serde_json::from_value(parameters).unwrap_or_default();
        let stated = parameters.get(DELETION_POLICY);
        let policy = text(class, DELETION_POLICY);
        let error = match SnapshotParameters::parse(&parameters) {
            Err(error) => error.to_string(),
            Ok(_) if stated.is_some_and(|it| *it != policy) => {
                format!("parameter \"{DELETION_POLICY}\" has no effect, and differs from the class's own field {policy:?}")
            }
            Ok(_) => return None,
        };
        let name = class.name_any();
        let action = format!("kubectl delete volumesnapshotclass {name}, then recreate it");
        Some(Check::fail(CLASSES, format!("{name}: {error}"), action))
    });
    let wrong: Vec<Check> = wrong.collect();
    if wrong.is_empty() {
        let names: Vec<String> = ours.iter().map(|class| class.name_any()).collect();
        return vec![Check::ok(CLASSES, names.join(", "))];
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{doctor::report::CheckOutcome, testing::object};

    #[test]
    fn snapshots_need_definitions_snapshotter_and_controller() {
        assert_eq!(judge(true, &[], true).outcome, CheckOutcome::Ok);
        assert_eq!(judge(true, &[], false).outcome, CheckOutcome::Warn);
        assert_eq!(
            judge(true, &["volumesnapshots"], true).outcome,
            CheckOutcome::Fail
        );
        assert_eq!(judge(false, &[], true).outcome, CheckOutcome::Warn);
        assert_eq!(
            judge(false, &["volumesnapshots"], false).outcome,
            CheckOutcome::Ok
        );
    }

    fn class(driver: &str, parameters: &Value) -> DynamicObject {
        object(
            json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": "c"}, "driver": driver, "deletionPolicy": "Delete", "parameters": parameters}),
        )
    }

    #[test]
    fn a_snapshot_class_needs_known_parameters() {
        let judged = |classes_: &[DynamicObject]| classes(classes_)[0].outcome;
        assert_eq!(
            judged(&[class(DRIVER, &json!({"consistency": "filesystem"}))]),
            CheckOutcome::Ok
        );
        assert_eq!(judged(&[class(DRIVER, &Value::Null)]), CheckOutcome::Ok);
        assert_eq!(
            judged(&[class(DRIVER, &json!({"consistency": "best"}))]),
            CheckOutcome::Fail
        );
        let same = class(DRIVER, &json!({"deletionPolicy": "Delete"}));
        assert_eq!(judged(&[same]), CheckOutcome::Ok);
        let another = class(DRIVER, &json!({"deletionPolicy": "Retain"}));
        assert_eq!(judged(&[another]), CheckOutcome::Fail);
        assert_eq!(judged(&[class("other", &Value::Null)]), CheckOutcome::Warn);
    }
}
