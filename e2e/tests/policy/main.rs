//! The permissions of each account, with RBAC and admission policies from `manifests`, tested against
//! a real API server. Each row is a request and its verdict.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, and JSON that lacks a field gives null"
)]

mod installed;
mod locations;
mod network;
mod storage_nodes;

use std::time::Duration;

use cistern_crds::{StorageNodeStatus, bounds};
use cistern_e2e::eventually;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::installed::{Installed, ask, group, node, pool, snapshot, volume};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/cistern-system/leases";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const ATTRIBUTES_CLASSES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";

/// Verdicts: empty for an allowed request, or part of the error.
const ALLOWED: &str = "";
const NO_RIGHT: &str = "cannot ";
const FOREIGN: &str = "belongs to node";
const ONLY_STATUS: &str = "writes the status of its objects and nothing else";
const NO_NODE: &str = "does not say which node";
const NO_METADATA: &str = "changes no metadata";
/// The schema refuses a change of the node.
const STAYS: &str = "nodeName cannot be changed";
const NO_MOVE: &str = "a volume moves to another node than its own";
const KEPT: &str = "cannot be taken back";
/// Allowed, but the kind does not exist: Kubernetes' snapshot definitions are not installed.
const ABSENT: &str = "page not found";
/// The API server refuses the precondition of an eviction.
const OTHER_POD: &str = "the UID in the precondition";
/// The schema refuses a time.
const TOO_LONG: &str = "may not be more than 40 bytes";

/// Method, path, body and verdict.
type Row<'a> = (&'static str, &'a str, &'a Value, &'static str);

#[tokio::test]
async fn a_nodes_token_writes_the_status_of_its_own_objects_and_nothing_else() {
    let cluster = Installed::start().await;
    let node_a = &cluster.agent_on("a").await;
    await_node_policy(node_a).await;

    let none = &Value::Null;
    let status = &json!({"status": {"reserved": "1Gi"}});
    let room = &json!({"status": {"pools": [{"name": "p", "uid": "u", "thinRoom": "1Pi"}]}});
    let finalizers = &json!({"metadata": {"finalizers": null}});
    let label = &json!({"metadata": {"labels": {"x": "y"}}});
    let deletion = &json!({"spec": {"deletionRequested": true}});
    let (made, taken, together) = (
        &volume("made-by-a", "a"),
        &snapshot("made-by-a", "a"),
        &group("made-by-a", "a"),
    );
    let moment = &json!({"status": {"creationTime": "2026-01-01T00:00:00Z"}});
    let rows: &[Row<'_>] = &[
        ("GET", "poolvolumes", none, ALLOWED),
        ("GET", "storagenodes/b", none, ALLOWED),
        // Read to find out whether an orphaned image belongs to another node.
        ("GET", "poolvolumes/on-b", none, ALLOWED),
        ("GET", "poolsnapshots/on-b", none, ALLOWED),
        ("PATCH", "poolvolumes/on-a/status", status, ALLOWED),
        ("PATCH", "storagenodes/a/status", room, ALLOWED),
        ("APPLY", "storagenodes/a/status", room, ALLOWED),
        // No writes to the volumes, snapshots or capacity of node B.
        ("PATCH", "poolvolumes/on-b/status", status, FOREIGN),
        ("APPLY", "poolvolumes/on-b/status", status, FOREIGN),
        ("GET", "poolsnapshots", none, ALLOWED),
        ("PATCH", "poolsnapshots/on-a/status", status, ALLOWED),
        ("PATCH", "poolsnapshots/on-b/status", status, FOREIGN),
        ("APPLY", "poolsnapshots/on-b/status", status, FOREIGN),
        ("GET", "poolsnapshotgroups", none, ALLOWED),
        ("PATCH", "poolsnapshotgroups/on-a/status", moment, ALLOWED),
        ("PATCH", "poolsnapshotgroups/on-b/status", moment, FOREIGN),
        ("APPLY", "poolsnapshotgroups/on-b/status", moment, FOREIGN),
        ("PATCH", "storagenodes/b/status", room, FOREIGN),
        ("APPLY", "storagenodes/b/status", room, FOREIGN),
        // No writes to spec or metadata, no creation and no deletion of objects.
        ("PATCH", "poolvolumes/on-a", deletion, NO_RIGHT),
        ("PATCH", "poolvolumes/on-a", finalizers, NO_RIGHT),
        ("PATCH", "storagenodes/a", finalizers, NO_RIGHT),
        ("POST", "poolvolumes", made, NO_RIGHT),
        ("DELETE", "poolvolumes/on-a", none, NO_RIGHT),
        ("DELETE", "poolvolumes", none, NO_RIGHT),
        ("PATCH", "poolsnapshots/on-a", deletion, NO_RIGHT),
        ("PATCH", "poolsnapshots/on-a", finalizers, NO_RIGHT),
        ("POST", "poolsnapshots", taken, NO_RIGHT),
        ("DELETE", "poolsnapshots/on-a", none, NO_RIGHT),
        ("DELETE", "poolsnapshots", none, NO_RIGHT),
        ("PATCH", "poolsnapshotgroups/on-a", deletion, NO_RIGHT),
        ("POST", "poolsnapshotgroups", together, NO_RIGHT),
        ("DELETE", "poolsnapshotgroups/on-a", none, NO_RIGHT),
        ("DELETE", "storagenodes/a", none, NO_RIGHT),
        ("PATCH", "storagepools/p", label, NO_RIGHT),
        ("PATCH", "storagepools/p/status", label, NO_RIGHT),
        // No other objects of the cluster.
        ("GET", "/api/v1/secrets", none, NO_RIGHT),
        (
            "GET",
            "/api/v1/namespaces/cistern-system/secrets/x",
            none,
            NO_RIGHT,
        ),
        ("GET", "/api/v1/pods", none, NO_RIGHT),
        ("PATCH", "/api/v1/nodes/a", label, NO_RIGHT),
        ("PATCH", "/api/v1/persistentvolumes/x", label, NO_RIGHT),
        ("DELETE", "/api/v1/persistentvolumes/x", none, NO_RIGHT),
        (
            "PATCH",
            "/api/v1/namespaces/default/persistentvolumeclaims/x",
            label,
            NO_RIGHT,
        ),
        (
            "GET",
            "/apis/storage.k8s.io/v1/csistoragecapacities",
            none,
            NO_RIGHT,
        ),
        (
            "POST",
            "/api/v1/namespaces/cistern-system/serviceaccounts/x/token",
            none,
            NO_RIGHT,
        ),
        ("DELETE", DEFINITIONS, none, NO_RIGHT),
    ];
    check(node_a, rows).await;
}

#[tokio::test]
async fn a_write_to_the_status_leaves_metadata_and_spec_as_they_are() {
    let cluster = Installed::start().await;
    let all = json!({
        "metadata": {"labels": {"x": "y"}, "annotations": {"x": "y"}, "finalizers": ["x.y/z"]},
        "spec": {"deletionRequested": true},
        "status": {"reserved": "2Gi"},
    });
    let node_a = cluster.agent_on("a").await;
    for path in ["poolvolumes/on-a/status", "poolsnapshots/on-a/status"] {
        let written = ask(&node_a, "PATCH", path, &all).await.unwrap();
        assert_eq!(written["status"]["reserved"], "2Gi");
        assert_eq!(written["spec"]["deletionRequested"], false);
        for field in ["labels", "annotations", "finalizers"] {
            assert_eq!(written["metadata"][field], Value::Null, "{path}: {field}");
        }
    }
}

#[tokio::test]
async fn the_policy_restricts_a_nodes_token_regardless_of_rbac() {
    let cluster = Installed::start().await;
    let (node_a, nowhere) = (&cluster.agent_on("a").await, &cluster.agent_nowhere().await);
    let account = json!({
        "kind": "ServiceAccount",
        "name": "cistern-node",
        "namespace": "cistern-system",
    });
    cluster.bind("cluster-admin", &account).await;
    eventually(
        "the role to take effect",
        Duration::from_mins(2),
        async || {
            let secrets = ask(node_a, "GET", "/api/v1/secrets", &Value::Null).await;
            secrets.map_err(|status| status.message)
        },
    )
    .await;
    await_node_policy(node_a).await;

    let none = &Value::Null;
    let status = &json!({"status": {"reserved": "1Gi"}});
    let finalizers = &json!({"metadata": {"finalizers": null}});
    let deletion = &json!({"spec": {"deletionRequested": true}});
    let moment = &json!({"status": {"creationTime": "2026-01-01T00:00:00Z"}});
    let rows: &[Row<'_>] = &[
        ("PATCH", "poolvolumes/on-a/status", status, ALLOWED),
        ("PATCH", "poolvolumes/on-b/status", status, FOREIGN),
        ("PATCH", "poolvolumes/on-a", deletion, ONLY_STATUS),
        ("PATCH", "poolvolumes/on-a", finalizers, ONLY_STATUS),
        (
            "POST",
            "poolvolumes",
            &volume("made-by-a", "a"),
            ONLY_STATUS,
        ),
        ("DELETE", "poolvolumes/on-a", none, ONLY_STATUS),
        ("DELETE", "poolvolumes", none, ONLY_STATUS),
        ("PATCH", "poolsnapshots/on-a/status", status, ALLOWED),
        ("PATCH", "poolsnapshots/on-b/status", status, FOREIGN),
        ("PATCH", "poolsnapshots/on-a", deletion, ONLY_STATUS),
        ("DELETE", "poolsnapshots", none, ONLY_STATUS),
        ("PATCH", "poolsnapshotgroups/on-b/status", moment, FOREIGN),
        ("PATCH", "poolsnapshotgroups/on-a", deletion, ONLY_STATUS),
        ("DELETE", "poolsnapshotgroups/on-a", none, ONLY_STATUS),
        ("DELETE", "storagenodes/b", none, ONLY_STATUS),
        ("POST", "storagepools", &pool("made-by-a"), ONLY_STATUS),
    ];
    check(node_a, rows).await;
    let rows: &[Row<'_>] = &[("PATCH", "poolvolumes/on-a/status", status, NO_NODE)];
    check(nowhere, rows).await;
}

#[tokio::test]
async fn the_policy_restricts_a_nodes_token_in_any_namespace() {
    let cluster = Installed::start_in("storage").await;
    let node_a = &cluster.agent_on("a").await;
    await_node_policy(node_a).await;
    let status = &json!({"status": {"reserved": "1Gi"}});
    let rows: &[Row<'_>] = &[
        ("PATCH", "poolvolumes/on-a/status", status, ALLOWED),
        ("PATCH", "poolvolumes/on-b/status", status, FOREIGN),
        ("PATCH", "poolsnapshots/on-b/status", status, FOREIGN),
    ];
    check(node_a, rows).await;

    // An account with the same name in another namespace has no permissions and gains none.
    let elsewhere = "system:serviceaccount:elsewhere:cistern-node";
    let stranger = &cluster.user(elsewhere);
    let rows: &[Row<'_>] = &[("PATCH", "poolvolumes/on-a/status", status, NO_RIGHT)];
    check(stranger, rows).await;
    let account =
        json!({"kind": "ServiceAccount", "name": "cistern-node", "namespace": "elsewhere"});
    cluster.bind("cistern-node", &account).await;
    eventually(
        "the role to take effect",
        Duration::from_mins(2),
        async || {
            let volumes = ask(stranger, "GET", "poolvolumes", &Value::Null).await;
            volumes.map_err(|status| status.message)
        },
    )
    .await;
    let rows: &[Row<'_>] = &[("PATCH", "poolvolumes/on-a/status", status, NO_NODE)];
    check(stranger, rows).await;
}

#[tokio::test]
async fn a_nodes_token_cannot_write_oversized_statuses() {
    let cluster = Installed::start().await;
    let node_a = &cluster.agent_on("a").await;
    await_node_policy(node_a).await;
    // Each `ü` has two bytes.
    let status = |conditions: usize, condition: usize, problem: usize| {
        let long = |characters: usize| "ü".repeat(characters);
        let conditions = (0..conditions).map(|index| {
            json!({"type": format!("Type{index}"), "status": "True", "reason": "Reconciled",
                "message": long(condition), "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let problems = (0..bounds::PROBLEMS).map(|index| {
            json!({"severity": "Degraded", "reason": format!("Reason{index}"),
                "message": long(problem), "since": "2026-01-01T00:00:00Z"})
        });
        let (conditions, problems): (Vec<_>, Vec<_>) = (conditions.collect(), problems.collect());
        json!({"status": {"conditions": conditions, "problems": problems}})
    };
    let (all, message, problem) = (bounds::CONDITIONS, bounds::MESSAGE, bounds::PROBLEM);
    let write = async |status: &Value| {
        let answer = ask(node_a, "PATCH", "poolvolumes/on-a/status", status).await;
        answer
            .map_err(|status| (status.code, status.message))
            .map(drop)
    };
    // The largest status that the agent writes.
    assert_eq!(write(&status(all, message / 2, problem / 2)).await, Ok(()));
    for (padded, code, words) in [
        (status(all, message, problem), 403, "13312 bytes at most"),
        (status(all + 1, 1, 1), 422, "must have at most 9 items"),
        (status(1, message + 1, 1), 422, "may not be more than"),
        (status(1, 1, problem + 1), 422, "may not be more than"),
    ] {
        let (refused, message) = write(&padded).await.unwrap_err();
        assert!(
            refused == code && message.contains(words),
            "{refused}: {message}"
        );
    }

    let applied = json!({"status": {"reserved": "1Gi"}});
    let mut refused = None;
    for manager in 0..40 {
        let method = format!("APPLY as m{manager}");
        if let Err(status) = ask(node_a, &method, "poolvolumes/on-a/status", &applied).await {
            refused = Some((manager, status.message));
            break;
        }
    }
    let (managers, message) = refused.unwrap();
    assert!(
        managers <= 16 && message.contains("16 field managers"),
        "{managers}: {message}"
    );
    // A field manager that already wrote can still write.
    let rows: &[Row<'_>] = &[("APPLY as m0", "poolvolumes/on-a/status", &applied, ALLOWED)];
    check(node_a, rows).await;
}

#[tokio::test]
async fn a_nodes_token_cannot_write_an_oversized_storage_node() {
    let cluster = Installed::start().await;
    let node_a = &cluster.agent_on("a").await;
    await_node_policy(node_a).await;
    let write = async |status: &StorageNodeStatus| {
        let status = &json!({"status": status});
        let answer = ask(node_a, "PATCH", "storagenodes/a/status", status).await;
        answer
            .map_err(|status| (status.code, status.message))
            .map(drop)
    };
    let too_large = "counts 16384 bytes at most, and 5120 more for each further pool";
    let padded = [1, 2].map(storage_nodes::padded);
    for status in &padded {
        // Exactly as much as is permitted.
        assert_eq!(write(status).await, Ok(()));
        let larger = storage_nodes::each_with_one_byte_more(status);
        for (place, larger) in &larger {
            let too_large = if place.starts_with("disk") {
                "the disks in the status of a StorageNode count 10240 bytes at most"
            } else {
                too_large
            };
            let (code, message) = write(larger).await.expect_err(place);
            assert!(
                code == 403 && message.contains(too_large),
                "{place}: {message}"
            );
        }
        // What the agent writes in place of a larger status.
        for (place, mut larger) in larger {
            larger.shorten();
            assert_eq!(write(&larger).await, Ok(()), "{place}");
        }
    }
    let (code, message) = write(&storage_nodes::padded(3)).await.unwrap_err();
    let unassigned = "reports no more pools than its spec lists";
    assert!(code == 403 && message.contains(unassigned), "{message}");

    // A time has as many digits as it likes for the API server.
    let since = format!("2026-01-01T00:00:00.{}Z", "0".repeat(100_000));
    let drift = json!([{"kind": "Stray", "object": "x", "message": "x", "since": since}]);
    let condition = json!([{"type": "Ready", "status": "True", "reason": "Reconciled",
        "message": "x", "lastTransitionTime": since}]);
    let drift = &json!({"status": {"drift": drift}});
    let condition = &json!({"status": {"conditions": condition}});
    let rows: &[Row<'_>] = &[
        ("PATCH", "storagenodes/a/status", drift, TOO_LONG),
        ("PATCH", "storagenodes/a/status", condition, TOO_LONG),
        ("PATCH", "poolvolumes/on-a/status", condition, TOO_LONG),
        ("PATCH", "poolsnapshots/on-a/status", condition, TOO_LONG),
    ];
    check(node_a, rows).await;
}

#[tokio::test]
async fn every_account_has_the_permissions_that_it_needs_and_no_more() {
    let cluster = Installed::start().await;
    let none = &Value::Null;
    let status = &json!({"status": {"reserved": "1Gi"}});
    let label = &json!({"metadata": {"labels": {"x": "y"}}});

    let operator = cluster.user("system:serviceaccount:cistern-system:cistern-operator");
    let lease = &json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "cistern-operator"},
    });
    locations::await_policy(&operator).await;
    let [its_lease, another] =
        ["cistern-operator", "csi-cistern-storage"].map(|name| format!("{LEASES}/{name}"));
    let rows: &[Row<'_>] = &[
        ("PATCH", "storagepools/p", label, ALLOWED),
        ("POST", "storagenodes", &node("c"), ALLOWED),
        ("PATCH", "poolvolumes/on-a", label, NO_METADATA),
        ("PATCH", "poolvolumes/on-a/status", status, NO_RIGHT),
        ("DELETE", "poolvolumes/on-a", none, NO_RIGHT),
        ("GET", "poolsnapshots", none, ALLOWED),
        ("PATCH", "poolsnapshots/on-a", label, NO_METADATA),
        ("PATCH", "poolsnapshots/on-a/status", status, NO_RIGHT),
        ("DELETE", "poolsnapshotgroups/on-a", none, NO_RIGHT),
        ("GET", "/api/v1/secrets", none, NO_RIGHT),
        // Its own Lease and no other.
        ("POST", LEASES, lease, ALLOWED),
        ("PATCH", &its_lease, label, ALLOWED),
        ("GET", &its_lease, none, ALLOWED),
        ("DELETE", &its_lease, none, NO_RIGHT),
        ("PATCH", &another, label, NO_RIGHT),
        // Lists the pods that use a claim, and changes none; locations.rs says which it deletes.
        ("GET", "/api/v1/namespaces/default/pods", none, ALLOWED),
        ("GET", "/api/v1/namespaces/default/pods/x", none, NO_RIGHT),
        (
            "GET",
            "/api/v1/namespaces/default/pods/x/log",
            none,
            NO_RIGHT,
        ),
        (
            "PATCH",
            "/api/v1/namespaces/default/pods/x",
            label,
            NO_RIGHT,
        ),
        ("DELETE", "/api/v1/namespaces/default/pods", none, NO_RIGHT),
        ("PATCH", "/api/v1/nodes/a", label, NO_RIGHT),
        ("GET", "/api/v1/persistentvolumes", none, ALLOWED),
        // Wakes the claims of volumes that have moved; locations.rs says how.
        ("GET", CLAIMS, none, ALLOWED),
        ("POST", CLAIMS, none, NO_RIGHT),
        ("DELETE", CLAIMS, none, NO_RIGHT),
        ("GET", CONTENTS, none, ABSENT),
        ("DELETE", CONTENTS, none, NO_RIGHT),
        ("PATCH", "poolreplicas/x/status", status, NO_RIGHT),
    ];
    check(&operator, rows).await;

    let controller = cluster.user("system:serviceaccount:cistern-system:cistern-controller");
    let rows: &[Row<'_>] = &[
        ("POST", "poolvolumes", &volume("made", "a"), ALLOWED),
        ("PATCH", "poolvolumes/on-a", label, ALLOWED),
        ("PATCH", "poolvolumes/on-a/status", status, NO_RIGHT),
        ("POST", "poolsnapshots", &snapshot("made", "a"), ALLOWED),
        ("PATCH", "poolsnapshots/on-a", label, ALLOWED),
        ("PATCH", "poolsnapshots/on-a/status", status, NO_RIGHT),
        ("POST", "poolsnapshotgroups", &group("made", "a"), ALLOWED),
        ("DELETE", "poolsnapshotgroups/made", none, ALLOWED),
        ("PATCH", "poolsnapshotgroups/on-a/status", status, NO_RIGHT),
        ("PATCH", "storagenodes/a", label, NO_RIGHT),
        ("PATCH", "storagenodes/a/status", label, NO_RIGHT),
        ("PATCH", "storagepools/p", label, NO_RIGHT),
        ("GET", "/api/v1/secrets", none, NO_RIGHT),
        ("GET", "/api/v1/pods", none, NO_RIGHT),
        ("PATCH", "/api/v1/nodes/a", label, NO_RIGHT),
        // Reads the classes of modified volumes, without writes.
        ("GET", ATTRIBUTES_CLASSES, none, ALLOWED),
        ("POST", ATTRIBUTES_CLASSES, none, NO_RIGHT),
    ];
    check(&controller, rows).await;
}

#[tokio::test]
async fn the_snapshotter_writes_contents_and_never_the_objects_of_users() {
    const ONE: &str = "/apis/snapshot.storage.k8s.io/v1";
    const MANY: &str = "/apis/groupsnapshot.storage.k8s.io/v1";
    let cluster = Installed::start().await;
    let none = &Value::Null;
    let label = &json!({"metadata": {"labels": {"x": "y"}}});
    let controller = cluster.user("system:serviceaccount:cistern-system:cistern-controller");
    for (method, path, verdict) in [
        ("PATCH", format!("{ONE}/volumesnapshotcontents/x"), ABSENT),
        (
            "PATCH",
            format!("{ONE}/volumesnapshotcontents/x/status"),
            ABSENT,
        ),
        ("POST", format!("{ONE}/volumesnapshotcontents"), NO_RIGHT),
        (
            "DELETE",
            format!("{ONE}/volumesnapshotcontents/x"),
            NO_RIGHT,
        ),
        ("GET", format!("{ONE}/volumesnapshotclasses"), ABSENT),
        ("PATCH", format!("{ONE}/volumesnapshotclasses/x"), NO_RIGHT),
        // For the finalizer while a volume is created from the snapshot.
        (
            "PUT",
            format!("{ONE}/namespaces/default/volumesnapshots/x"),
            ABSENT,
        ),
        (
            "PUT",
            format!("{ONE}/namespaces/default/volumesnapshots/x/status"),
            NO_RIGHT,
        ),
        (
            "POST",
            format!("{ONE}/namespaces/default/volumesnapshots"),
            NO_RIGHT,
        ),
        (
            "DELETE",
            format!("{ONE}/namespaces/default/volumesnapshots/x"),
            NO_RIGHT,
        ),
        (
            "PATCH",
            format!("{MANY}/volumegroupsnapshotcontents/x"),
            ABSENT,
        ),
        (
            "PATCH",
            format!("{MANY}/volumegroupsnapshotcontents/x/status"),
            ABSENT,
        ),
        (
            "DELETE",
            format!("{MANY}/volumegroupsnapshotcontents/x"),
            NO_RIGHT,
        ),
        ("GET", format!("{MANY}/volumegroupsnapshotclasses"), ABSENT),
        (
            "GET",
            format!("{MANY}/namespaces/default/volumegroupsnapshots/x"),
            NO_RIGHT,
        ),
        ("GET", "/api/v1/secrets".to_owned(), NO_RIGHT),
        (
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/cistern-system/leases/another".to_owned(),
            NO_RIGHT,
        ),
    ] {
        let body = if method == "GET" { none } else { label };
        check(&controller, &[(method, &path, body, verdict)]).await;
    }
}

#[tokio::test]
async fn users_write_pools_and_read_the_rest() {
    let cluster = Installed::start().await;
    let none = &Value::Null;
    let label = &json!({"metadata": {"labels": {"x": "y"}}});
    for (role, reads, writes_pools) in [
        ("cistern-view", ALLOWED, NO_RIGHT),
        ("cistern-edit", NO_RIGHT, ALLOWED),
    ] {
        let subject = json!({"kind": "User", "name": role});
        cluster.bind(role, &subject).await;
        let user = cluster.user(role);
        // Kubernetes adds the permission to read to its aggregated edit role.
        let (method, path, body) = match role {
            "cistern-view" => ("GET", "poolvolumes", none),
            _ => ("POST", "storagepools", &pool("first")),
        };
        eventually(
            "the role to take effect",
            Duration::from_mins(2),
            async || {
                let answer = ask(&user, method, path, body).await;
                answer.map_err(|status| status.message)
            },
        )
        .await;
        let rows: &[Row<'_>] = &[
            ("POST", "storagepools", &pool("second"), writes_pools),
            ("PATCH", "storagepools/p", label, writes_pools),
            (
                "POST",
                "poolvolumes",
                &volume("made-by-hand", "a"),
                NO_RIGHT,
            ),
            ("PATCH", "poolvolumes/on-a", label, NO_RIGHT),
            ("DELETE", "poolvolumes/on-a", none, NO_RIGHT),
            ("GET", "poolsnapshots", none, reads),
            ("POST", "poolsnapshots", &snapshot("by-hand", "a"), NO_RIGHT),
            ("DELETE", "poolsnapshots/on-a", none, NO_RIGHT),
            ("GET", "poolsnapshotgroups", none, reads),
            ("PATCH", "poolsnapshotgroups/on-a", label, NO_RIGHT),
            ("PATCH", "storagenodes/a", label, NO_RIGHT),
        ];
        check(&user, rows).await;
    }
}

#[tokio::test]
async fn deleting_a_definition_requires_an_annotation() {
    let cluster = Installed::start().await;
    let admin = &cluster.admin();
    let definitions = cistern_crds::definitions();
    let path = |kind: &CustomResourceDefinition| format!("{DEFINITIONS}/{}", kind.name_any());
    let paths: Vec<String> = definitions.iter().map(path).collect();
    let first = format!("{}?dryRun=All", paths[0]);
    eventually(
        "the policy to take effect",
        Duration::from_mins(2),
        async || match ask(admin, "DELETE", &first, &Value::Null).await {
            Err(status) if status.message.contains(KEPT) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    let annotated =
        json!({"metadata": {"annotations": {"cistern.storage/allow-deletion": "true"}}});
    check(admin, &[("DELETE", DEFINITIONS, &Value::Null, KEPT)]).await;
    for path in &paths {
        let rows: &[Row<'_>] = &[
            ("DELETE", path, &Value::Null, KEPT),
            ("PATCH", path, &annotated, ALLOWED),
            ("DELETE", path, &Value::Null, ALLOWED),
        ];
        check(admin, rows).await;
    }
}

/// Sends all requests, and fails with a list of those with another verdict.
async fn check(client: &kube::Client, rows: &[Row<'_>]) {
    let mut wrong = Vec::new();
    for (method, path, body, verdict) in rows {
        let (right, answer) = match ask(client, method, path, body).await {
            Ok(_) => (*verdict == ALLOWED, "allowed".to_owned()),
            Err(status) => {
                let code = match *verdict {
                    ABSENT => 404,
                    OTHER_POD => 409,
                    TOO_LONG | STAYS | NO_MOVE => 422,
                    _ => 403,
                };
                let refused = status.code == code && status.message.contains(verdict);
                (*verdict != ALLOWED && refused, status.message)
            }
        };
        if !right {
            wrong.push(format!(
                "{method} {path}: expected {verdict:?}, got: {answer}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Waits until the policy is enforced, which is a moment after its creation. Until then RBAC alone applies.
async fn await_node_policy(node_a: &kube::Client) {
    let nothing = json!({"status": {}});
    eventually(
        "the policy to take effect",
        Duration::from_mins(2),
        async || match ask(node_a, "PATCH", "storagenodes/b/status", &nothing).await {
            Err(status) if status.message.contains(FOREIGN) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
}
