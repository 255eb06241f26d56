//! Which account changes the node of a volume, snapshot or group, and of a PersistentVolume.

use std::{cell::Cell, time::Duration};

use cistern_crds::names::MOVE_ANNOTATION;
use cistern_e2e::eventually;
use serde_json::{Value, json};

use crate::{
    ALLOWED, CLAIMS, NO_METADATA, NO_MOVE, NO_RIGHT, OTHER_POD, Row, STAYS, check,
    installed::{Installed, ask, snapshot},
};

const ONLY_LOCATION: &str = "and nothing else of its spec";
const ONLY_OURS: &str = "PersistentVolumes of csi.cistern.storage only";
const ONLY_NODE: &str = "the node and the reclaim policy";
const ONLY_MARK: &str = "changes the mark of a PersistentVolume";
const ONLY_AGAIN: &str = "only with the mark of a move, with the policy Retain";
const ONLY_RETAINED: &str = "is Retain while the operator has marked it";
const ONLY_MARKED: &str = "deletes only PersistentVolumes that it has marked";
const ONLY_CONDITIONS: &str = "the conditions of a StorageNode, and nothing else of its status";
const ONLY_SELECTED: &str = "the selected node of a claim that has a PersistentVolume";
const ONLY_LEFT: &str = "bound to a node and have not started";
const ONLY_OF_MOVES: &str = "snapshots of volumes that move only";
const NOT_OF_MOVES: &str = "no snapshot of a volume that moves";
const ONLY_SEEN: &str = "only pods whose UID it names";
const NO_LOCATION: &str = "does not change the node";

#[tokio::test]
async fn a_volume_moves_only_by_the_operator_and_only_with_a_later_takeover_and_the_next_epoch() {
    let cluster = Installed::start().await;
    let (admin, account) = (
        &cluster.admin(),
        "system:serviceaccount:cistern-system:cistern-",
    );
    let operator = &cluster.user(&format!("{account}operator"));
    let controller = &cluster.user(&format!("{account}controller"));
    let to = |node: &str, epoch: u32, takeovers: u32| json!({"spec": {"nodeName": node, "epoch": epoch, "takeovers": takeovers}});
    let deletion = &json!({"spec": {"deletionRequested": true}});
    let finalizers = &json!({"metadata": {"finalizers": ["x.y/z"]}});
    await_policy(operator).await;
    for path in ["poolvolumes/on-a", "poolsnapshots/on-a"] {
        let status = &format!("{path}/status");
        // An agent has verified the image after the second takeover.
        let verified = &json!({"status": {"takeovers": 2}});
        let rows: &[Row<'_>] = &[
            ("PATCH", path, &json!({"spec": {"nodeName": "b"}}), STAYS),
            ("PATCH", path, &to("b", 1, 0), STAYS),
            ("PATCH", path, &to("b", 2, 1), STAYS),
            ("PATCH", path, &to("a", 1, 1), STAYS),
            ("PATCH", status, verified, ALLOWED),
            ("PATCH", path, &to("b", 1, 2), STAYS),
        ];
        check(admin, rows).await;
        check(controller, &[("PATCH", path, &to("b", 1, 3), NO_LOCATION)]).await;
        let rows: &[Row<'_>] = &[
            ("PATCH", path, deletion, ONLY_LOCATION),
            ("PATCH", path, finalizers, NO_METADATA),
            ("PATCH", path, &to("b", 1, 3), ALLOWED),
            // A late operator repeats an earlier decision.
            ("PATCH", path, &to("c", 1, 3), STAYS),
            ("PATCH", path, &to("c", 2, 3), STAYS),
            ("PATCH", path, &to("a", 2, 4), ALLOWED),
        ];
        check(operator, rows).await;
        check(controller, &[("PATCH", path, deletion, ALLOWED)]).await;
    }
    let path = "poolsnapshotgroups/on-a";
    let group_to = |node: &str, epoch: u32| json!({"spec": {"nodeName": node, "epoch": epoch}});
    check(
        controller,
        &[("PATCH", path, &group_to("b", 1), NO_LOCATION)],
    )
    .await;
    let rows: &[Row<'_>] = &[
        ("PATCH", path, &json!({"spec": {"nodeName": "b"}}), STAYS),
        ("PATCH", path, &group_to("a", 1), STAYS),
        ("PATCH", path, &group_to("b", 1), ALLOWED),
    ];
    check(operator, rows).await;
}

#[tokio::test]
async fn a_volume_moves_to_its_target_only_when_closed_for_that_move_and_is_undone_in_place() {
    let cluster = Installed::start().await;
    let account = "system:serviceaccount:cistern-system:cistern-";
    let (admin, operator) = (
        &cluster.admin(),
        &cluster.user(&format!("{account}operator")),
    );
    let controller = &cluster.user(&format!("{account}controller"));
    let (path, status) = ("poolvolumes/on-a", "poolvolumes/on-a/status");
    await_policy(operator).await;
    let target =
        |node: &str, by: &str| json!({"spec": {"target": {"nodeName": node, "moveUID": by}}});
    let end = |node: &str, epoch: u32| json!({"spec": {"nodeName": node, "epoch": epoch, "target": null}});
    let fence = |epoch: u32, state: &str, by: &str| json!({"status": {"epoch": epoch, "fence": {"state": state, "moveUID": by}}});
    let deleted = |is: bool| json!({"spec": {"deletionRequested": is}});

    check(
        controller,
        &[("PATCH", path, &target("b", "m-1"), NO_LOCATION)],
    )
    .await;
    check(admin, &[("PATCH", path, &deleted(true), ALLOWED)]).await;
    check(operator, &[("PATCH", path, &target("b", "m-1"), NO_MOVE)]).await;
    check(admin, &[("PATCH", path, &deleted(false), ALLOWED)]).await;
    let rows: &[Row<'_>] = &[
        // Undone or committed, without a target.
        ("PATCH", path, &end("a", 1), STAYS),
        ("PATCH", path, &end("b", 1), STAYS),
        ("PATCH", path, &target("a", "m-1"), NO_MOVE),
        ("PATCH", path, &target("b", "m-1"), ALLOWED),
        ("PATCH", path, &target("c", "m-1"), STAYS),
        ("PATCH", path, &target("b", "m-2"), STAYS),
        ("PATCH", path, &json!({"spec": {"target": null}}), STAYS),
        ("PATCH", path, &json!({"spec": {"takeovers": 1}}), STAYS),
        ("PATCH", path, &end("b", 1), STAYS),
    ];
    check(operator, rows).await;
    for (reported, is) in [
        (fence(0, "Closing", "m-1"), STAYS),
        (fence(0, "Closed", "m-0"), STAYS),
        // Of another epoch.
        (fence(7, "Closed", "m-1"), STAYS),
        (fence(0, "Closed", "m-1"), ALLOWED),
    ] {
        check(admin, &[("PATCH", status, &reported, ALLOWED)]).await;
        if is == STAYS {
            check(operator, &[("PATCH", path, &end("b", 1), STAYS)]).await;
        }
    }
    let rows: &[Row<'_>] = &[
        ("PATCH", path, &end("b", 2), STAYS),
        ("PATCH", path, &end("c", 1), STAYS),
        ("PATCH", path, &end("b", 1), ALLOWED),
        // It cannot be undone any more.
        ("PATCH", path, &end("a", 2), STAYS),
        // The next move is undone: the fence is of an earlier epoch.
        ("PATCH", path, &target("a", "m-1"), ALLOWED),
        ("PATCH", path, &end("a", 2), STAYS),
        ("PATCH", path, &end("b", 2), ALLOWED),
    ];
    check(operator, rows).await;
}

#[tokio::test]
async fn a_standby_copy_is_promoted_without_a_fence_to_its_declared_target_only() {
    let cluster = Installed::start().await;
    let account = "system:serviceaccount:cistern-system:cistern-";
    let operator = &cluster.user(&format!("{account}operator"));
    let controller = &cluster.user(&format!("{account}controller"));
    let path = "poolvolumes/on-a";
    await_policy(operator).await;
    let target = &target_of("b", "m-1");
    let promote = |node: &str, epoch: u32, by: &str| {
        json!({"spec": {
            "nodeName": node, "epoch": epoch, "target": null, "promotedMoveUID": by,
        }})
    };
    let rows: &[Row<'_>] = &[
        ("PATCH", path, &promote("b", 1, "m-1"), STAYS),
        ("PATCH", path, target, ALLOWED),
        ("PATCH", path, &promote("b", 1, "m-0"), STAYS),
        ("PATCH", path, &promote("c", 1, "m-1"), STAYS),
        ("PATCH", path, &promote("b", 2, "m-1"), STAYS),
    ];
    check(operator, rows).await;
    let by_another = &promote("b", 1, "m-1");
    check(controller, &[("PATCH", path, by_another, NO_LOCATION)]).await;
    let rows: &[Row<'_>] = &[
        ("PATCH", path, &promote("b", 1, "m-1"), ALLOWED),
        // The name of an earlier promotion permits nothing.
        ("PATCH", path, &target_of("c", "m-2"), ALLOWED),
        ("PATCH", path, &promote("c", 2, "m-1"), STAYS),
        (
            "PATCH",
            path,
            &json!({"spec": {"nodeName": "c", "epoch": 2, "target": null}}),
            STAYS,
        ),
    ];
    check(operator, rows).await;
}

fn target_of(node: &str, by: &str) -> Value {
    json!({"spec": {"target": {"nodeName": node, "moveUID": by}}})
}

#[tokio::test]
async fn the_operator_replaces_persistent_volumes_of_this_driver_only() {
    let cluster = Installed::start().await;
    let admin = &cluster.admin();
    let operator = &cluster.user("system:serviceaccount:cistern-system:cistern-operator");
    let volumes = "/api/v1/persistentvolumes";
    let [ours, others] = ["ours", "others"].map(|name| format!("{volumes}/{name}"));
    let retain = &json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    // A write that changes nothing is always allowed.
    let sizes = Cell::new(1024);
    let other = &persistent_volume("others", "csi.example.com");
    check(admin, &[("POST", volumes, other, ALLOWED)]).await;
    eventually(
        "the policy to be enforced",
        Duration::from_mins(2),
        async || {
            sizes.set(sizes.get() + 1);
            let size = format!("{}Mi", sizes.get());
            let other = json!({"spec": {"capacity": {"storage": size}}});
            match ask(operator, "PATCH", &others, &other).await {
                Err(status) if status.message.contains(ONLY_OURS) => Ok(()),
                answer => Err(format!("{answer:?}")),
            }
        },
    )
    .await;
    let none = &Value::Null;
    let rows: &[Row<'_>] = &[
        (
            "POST",
            volumes,
            &persistent_volume("new", "csi.example.com"),
            ONLY_OURS,
        ),
        ("PATCH", &others, retain, ONLY_OURS),
        ("DELETE", &others, none, ONLY_OURS),
    ];
    check(operator, rows).await;

    // One that an administrator keeps is not made to be deleted.
    let kept = &persistent_volume("ours", "csi.cistern.storage");
    check(admin, &[("POST", volumes, kept, ALLOWED)]).await;
    let delete = &json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    let mark = &marked(Some("move-1"), "Retain");
    let rows: &[Row<'_>] = &[
        ("PATCH", &ours, delete, ONLY_RETAINED),
        ("PATCH", &ours, &marked(Some("m"), "Delete"), ONLY_RETAINED),
        ("DELETE", &ours, none, ONLY_MARKED),
        ("PATCH", &ours, mark, ALLOWED),
        // It is not bound.
        ("PATCH", &ours, &marked(None, "Delete"), ONLY_RETAINED),
        ("PATCH", &ours, &marked(Some("m"), "Delete"), ONLY_RETAINED),
    ];
    check(operator, rows).await;
}

#[tokio::test]
async fn the_operator_deletes_a_persistent_volume_and_creates_it_again_without_a_risk_for_its_data()
{
    let cluster = Installed::start().await;
    let admin = &cluster.admin();
    let operator = &cluster.user("system:serviceaccount:cistern-system:cistern-operator");
    let volumes = "/api/v1/persistentvolumes";
    let ours = &format!("{volumes}/ours");
    let status = &format!("{ours}/status");
    let replacement = |change: fn(&mut Value)| {
        let mut again = persistent_volume("ours", "csi.cistern.storage");
        again["metadata"]["annotations"] = json!({(MOVE_ANNOTATION): "move-1"});
        change(&mut again);
        again
    };
    let again = &replacement(|_| {});
    let unmarked = &replacement(|it| it["metadata"]["annotations"] = Value::Null);
    let deleting = &replacement(|it| it["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into());
    let for_any = &replacement(|it| it["spec"]["claimRef"]["uid"] = Value::Null);
    eventually(
        "the policy to be enforced",
        Duration::from_mins(2),
        async || {
            let unwritten = format!("{volumes}?dryRun=All");
            match ask(operator, "POST", &unwritten, unmarked).await {
                Err(status) if status.message.contains(ONLY_AGAIN) => Ok(()),
                answer => Err(format!("{answer:?}")),
            }
        },
    )
    .await;
    let none = &Value::Null;
    let larger = &json!({"spec": {"capacity": {"storage": "2Gi"}}});
    let label = &json!({"metadata": {"labels": {"x": "y"}}});
    let annotation = &json!({"metadata": {"annotations": {"x": "y"}}});
    let unprotected = &json!({"metadata": {"finalizers": null}});
    let restored = &marked(None, "Delete");
    let rows: &[Row<'_>] = &[
        ("POST", volumes, unmarked, ONLY_AGAIN),
        ("POST", volumes, deleting, ONLY_AGAIN),
        ("POST", volumes, for_any, ONLY_AGAIN),
        ("POST", volumes, again, ALLOWED),
        ("PATCH", ours, restored, ONLY_RETAINED),
        ("PATCH", ours, larger, ONLY_NODE),
        ("PATCH", ours, label, ONLY_MARK),
        ("PATCH", ours, annotation, ONLY_MARK),
        ("PATCH", ours, unprotected, ONLY_MARK),
    ];
    check(operator, rows).await;
    for (phase, verdict) in [("Released", ONLY_RETAINED), ("Bound", ALLOWED)] {
        let phase = &json!({"status": {"phase": phase}});
        check(admin, &[("PATCH", status, phase, ALLOWED)]).await;
        check(operator, &[("PATCH", ours, restored, verdict)]).await;
    }
    // The next move.
    let rows: &[Row<'_>] = &[
        ("DELETE", ours, none, ONLY_MARKED),
        ("PATCH", ours, &marked(Some("move-2"), "Retain"), ALLOWED),
        ("DELETE", ours, none, ALLOWED),
        ("PATCH", ours, unprotected, ALLOWED),
        ("POST", volumes, again, ALLOWED),
    ];
    check(operator, rows).await;
}

/// A PersistentVolume of a driver that was bound to a claim, and whose data is kept.
fn persistent_volume(name: &str, driver: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": driver, "volumeHandle": name},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
                "name": name, "uid": format!("uid-of-{name}"),
            },
        },
    })
}

/// A change of the mark and the reclaim policy of a PersistentVolume.
fn marked(mark: Option<&str>, policy: &str) -> Value {
    json!({
        "metadata": {"annotations": {(MOVE_ANNOTATION): mark}},
        "spec": {"persistentVolumeReclaimPolicy": policy},
    })
}

#[tokio::test]
async fn the_operator_writes_the_spec_of_storage_nodes_and_of_their_status_only_the_conditions() {
    let cluster = Installed::start().await;
    let node_a = &cluster.agent_on("a").await;
    let operator = &cluster.user("system:serviceaccount:cistern-system:cistern-operator");
    await_policy(operator).await;
    let (path, status) = ("storagenodes/a", "storagenodes/a/status");
    let pools = |room: &str| {
        let pool = json!({"name": "p", "uid": "u", "thinRoom": room});
        json!({"status": {"pools": [pool], "transferKey": "key"}})
    };
    // The largest number of takeovers that a marker on a disk can have.
    let taken = &json!({"status": {"pools": [{"name": "p", "uid": "u", "takeovers": u32::MAX}]}});
    let reported = &pools("1Gi");
    let rows: &[Row<'_>] = &[
        ("PATCH", status, taken, ALLOWED),
        ("PATCH", status, reported, ALLOWED),
    ];
    check(node_a, rows).await;
    let conditions = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "Reconciled", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let spec = &json!({"spec": {"transferEndpoint": "10.0.0.7:9812"}});
    let finalizers = &json!({"metadata": {"finalizers": ["cistern.storage/data"]}});
    let key = &json!({"status": {"transferKey": "another"}});
    let (room, without) = (&pools("1Pi"), &json!({"status": {"pools": null}}));
    let rows: &[Row<'_>] = &[
        ("PATCH", path, spec, ALLOWED),
        ("PATCH", path, finalizers, ALLOWED),
        ("APPLY", status, &conditions, ALLOWED),
        ("PATCH", status, &conditions, ALLOWED),
        ("PATCH", status, key, ONLY_CONDITIONS),
        ("APPLY", status, key, ONLY_CONDITIONS),
        ("PATCH", status, room, ONLY_CONDITIONS),
        ("PATCH", status, without, ONLY_CONDITIONS),
    ];
    check(operator, rows).await;
    // What an agent sends beside its status is not taken.
    let all = json!({
        "metadata": {"labels": {"x": "y"}, "annotations": {"x": "y"}, "finalizers": ["x.y/z"]},
        "spec": {"transferEndpoint": "10.0.0.8:9812"},
        "status": {"transferKey": "key-2"},
    });
    let written = ask(node_a, "PATCH", status, &all).await.unwrap();
    assert_eq!(written["status"]["transferKey"], "key-2");
    assert_eq!(written["spec"]["transferEndpoint"], "10.0.0.7:9812");
    let metadata = &written["metadata"];
    assert_eq!(metadata["finalizers"], json!(["cistern.storage/data"]));
    for field in ["labels", "annotations"] {
        assert_eq!(metadata[field], Value::Null, "{field}");
    }
    let rows: &[Row<'_>] = &[
        ("PATCH", path, spec, NO_RIGHT),
        ("PATCH", path, finalizers, NO_RIGHT),
        ("PATCH", "storagenodes/b", spec, NO_RIGHT),
    ];
    check(node_a, rows).await;
}

#[tokio::test]
async fn the_operator_changes_only_the_selected_node_of_claims_that_have_a_persistent_volume() {
    let cluster = Installed::start().await;
    let admin = &cluster.admin();
    let operator = &cluster.user("system:serviceaccount:cistern-system:cistern-operator");
    for (name, volume) in [("bound", Some("pv")), ("pending", None)] {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                "resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume,
            },
        });
        check(admin, &[("POST", CLAIMS, &claim, ALLOWED)]).await;
    }
    let [bound, pending] = ["bound", "pending"].map(|name| format!("{CLAIMS}/{name}"));
    let status = &format!("{bound}/status");
    let phase = &json!({"status": {"phase": "Bound"}});
    check(admin, &[("PATCH", status, phase, ALLOWED)]).await;
    let annotated = |key: &str| json!({"metadata": {"annotations": {key: "b"}}});
    let selected = &annotated("volume.kubernetes.io/selected-node");
    let unwritten = format!("{pending}?dryRun=All");
    eventually(
        "the policy to refuse",
        Duration::from_mins(2),
        async || match ask(operator, "PATCH", &unwritten, selected).await {
            Err(status) if status.message.contains(ONLY_SELECTED) => Ok(()),
            answer => Err(format!("{answer:?}")),
        },
    )
    .await;
    let label = &json!({"metadata": {"labels": {"x": "y"}}});
    let unprotected = &json!({"metadata": {"finalizers": null}});
    let modified = &json!({"spec": {"volumeAttributesClassName": "fast"}});
    let rows: &[Row<'_>] = &[
        ("PATCH", &pending, selected, ONLY_SELECTED),
        ("PATCH", &bound, selected, ALLOWED),
        ("PATCH", &bound, &annotated("x"), ONLY_SELECTED),
        ("PATCH", &bound, label, ONLY_SELECTED),
        ("PATCH", &bound, unprotected, ONLY_SELECTED),
        ("PATCH", &bound, modified, ONLY_SELECTED),
        ("PATCH", status, phase, NO_RIGHT),
        ("DELETE", &bound, &Value::Null, NO_RIGHT),
    ];
    check(operator, rows).await;
}

#[tokio::test]
async fn the_operator_deletes_only_pods_with_claims_that_are_bound_and_have_not_started() {
    let cluster = Installed::start().await;
    let admin = &cluster.admin();
    let operator = &cluster.user("system:serviceaccount:cistern-system:cistern-operator");
    let pods = "/api/v1/namespaces/default/pods";
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
    let scratch = json!({"name": "data", "emptyDir": {}});
    let none = &Value::Null;
    for (name, node, volume, phase) in [
        ("running", "a", &claim, "Running"),
        ("unbound", "", &claim, "Pending"),
        ("without-claim", "a", &scratch, "Pending"),
        ("left", "a", &claim, "Pending"),
    ] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "nodeName": node, "volumes": [volume],
                "containers": [{"name": "c", "image": "x"}],
            },
        });
        let status = json!({"status": {"phase": phase}});
        let path = format!("{pods}/{name}/status");
        check(admin, &[("POST", pods, &pod, ALLOWED)]).await;
        check(admin, &[("PATCH", &path, &status, ALLOWED)]).await;
    }
    await_policy(operator).await;
    let path = |name: &str| format!("{pods}/{name}");
    for name in ["running", "unbound", "without-claim"] {
        let path = path(name);
        eventually(
            "the policy to refuse",
            Duration::from_mins(2),
            async || match ask(operator, "DELETE", &format!("{path}?dryRun=All"), none).await {
                Err(status) if status.message.contains(ONLY_LEFT) => Ok(()),
                answer => Err(format!("{answer:?}")),
            },
        )
        .await;
        check(operator, &[("DELETE", &path, none, ONLY_LEFT)]).await;
    }
    check(operator, &[("DELETE", &path("left"), none, ALLOWED)]).await;
}

#[tokio::test]
async fn the_operator_takes_and_removes_only_snapshots_of_volumes_that_move() {
    let cluster = Installed::start().await;
    let account = "system:serviceaccount:cistern-system:cistern-";
    let operator = &cluster.user(&format!("{account}operator"));
    let controller = &cluster.user(&format!("{account}controller"));
    await_policy(operator).await;
    let copied_for = |name: &str, volume: &str| {
        let mut taken = snapshot(name, "a");
        taken["spec"]["copiedFor"] = volume.into();
        taken
    };
    let (of_move, of_clone) = (
        &copied_for("of-move", "on-a"),
        &copied_for("of-clone", "clone"),
    );
    let requested = &snapshot("requested", "a");
    let (path, none) = ("poolsnapshots", &Value::Null);
    let deletion = &json!({"spec": {"deletionRequested": true}});
    let finalizers = &json!({"metadata": {"finalizers": null}});
    let rows: &[Row<'_>] = &[
        ("POST", path, of_move, NOT_OF_MOVES),
        ("POST", path, of_clone, ALLOWED),
        ("POST", path, requested, ALLOWED),
    ];
    check(controller, rows).await;
    let other = &json!({"metadata": {"labels": {"x": "y"}}});
    let rows: &[Row<'_>] = &[
        ("POST", path, &snapshot("by-hand", "a"), ONLY_OF_MOVES),
        ("POST", path, &copied_for("other", "other"), ONLY_OF_MOVES),
        ("PATCH", "poolsnapshots/of-clone", deletion, ONLY_LOCATION),
        ("PATCH", "poolsnapshots/of-clone", other, NO_METADATA),
        ("DELETE", "poolsnapshots/of-clone", none, ONLY_OF_MOVES),
        ("DELETE", "poolsnapshots/requested", none, ONLY_OF_MOVES),
        ("POST", path, of_move, ALLOWED),
        ("PATCH", "poolsnapshots/of-move", deletion, ALLOWED),
        ("PATCH", "poolsnapshots/of-move", finalizers, ALLOWED),
        ("DELETE", "poolsnapshots/of-move", none, ALLOWED),
    ];
    check(operator, rows).await;
}

#[tokio::test]
async fn the_operator_evicts_only_the_pod_that_it_has_seen() {
    let cluster = Installed::start().await;
    let account = "system:serviceaccount:cistern-system:cistern-";
    let admin = &cluster.admin();
    let operator = &cluster.user(&format!("{account}operator"));
    let controller = &cluster.user(&format!("{account}controller"));
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "evicted"},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    });
    let made = ask(admin, "POST", pods, &pod).await.unwrap();
    let eviction = |options: Value| {
        json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": "evicted", "namespace": "default"}, "deleteOptions": options,
        })
    };
    let path = &format!("{pods}/evicted/eviction");
    let any = &eviction(Value::Null);
    eventually(
        "the policy to refuse",
        Duration::from_mins(2),
        async || match ask(operator, "POST", &format!("{path}?dryRun=All"), any).await {
            Err(status) if status.message.contains(ONLY_SEEN) => Ok(()),
            answer => Err(format!("{answer:?}")),
        },
    )
    .await;
    let seen = |uid: &Value| eviction(json!({"preconditions": {"uid": uid}}));
    let of_seen = &seen(&made["metadata"]["uid"]);
    check(controller, &[("POST", path, of_seen, "cannot create")]).await;
    let rows: &[Row<'_>] = &[
        ("POST", path, any, ONLY_SEEN),
        ("POST", path, &seen(&"".into()), ONLY_SEEN),
        // Another pod has its name.
        ("POST", path, &seen(&"another".into()), OTHER_POD),
        ("POST", path, of_seen, ALLOWED),
    ];
    check(operator, rows).await;
}

/// Waits until the policy of the operator's changes is enforced.
pub(crate) async fn await_policy(operator: &kube::Client) {
    // A write that changes nothing is always allowed.
    let sizes = Cell::new(1024);
    eventually(
        "the policy to take effect",
        Duration::from_mins(2),
        async || {
            sizes.set(sizes.get() + 1);
            let size = json!({"spec": {"size": format!("{}Mi", sizes.get())}});
            match ask(operator, "PATCH", "poolvolumes/on-a", &size).await {
                Err(status) if status.message.contains(ONLY_LOCATION) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await;
}
