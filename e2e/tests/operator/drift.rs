//! The operator publishes events about drift and orphans on a node: once, and again for new findings.

use cistern_crds::names;
use cistern_e2e::eventually;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, SOON},
    objects::Objects,
};

/// Returns a finding about a loop device that was first seen `seconds` ago.
fn unused_loop(number: u32, seconds: i64) -> Value {
    json!({
        "kind": "LoopWithoutUse",
        "object": format!("/dev/loop{number}"),
        "message": "nothing uses it: detach it",
        "since": ago(seconds),
    })
}

/// Returns an image that has been an orphan for `seconds`.
fn orphan(image: &str, seconds: i64) -> Value {
    json!({"image": image, "size": "1Gi", "since": ago(seconds)})
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}

/// Writes the agent's part of the node's status.
async fn report(api: &Objects, node: &str, status: Value) {
    let body = json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "StorageNode",
        "metadata": {"name": node},
        "status": status,
    });
    let parameters = PatchParams::apply(names::AGENT_MANAGER);
    let (nodes, patch) = (api.storage_nodes(), Patch::Apply(body));
    let written = nodes.patch_status(node, &parameters, &patch).await;
    written.unwrap();
}

/// Waits until an object has exactly `count` events with this reason, and returns their notes.
async fn notes(api: &Objects, uid: &str, reason: &str, count: usize) -> Vec<String> {
    let what = format!("{count} events {reason}");
    eventually(&what, SOON, async || {
        let events = api.events(uid).await.into_iter();
        let of_kind = events.filter(|(seen, _)| seen == reason);
        let notes: Vec<_> = of_kind.map(|(_, note)| note).collect();
        if notes.len() == count {
            return Ok(notes);
        }
        Err(format!("{notes:?}"))
    })
    .await
}

#[tokio::test]
async fn findings_are_reported_on_their_node_and_again_only_with_a_new_finding() {
    let api = Cluster::shared().await.api();
    api.add_node("drift-1", &[("drift", "yes")]).await;
    api.add_pool("drift", &[("drift", "yes")]).await;
    api.carried("drift-1", "drift").await;
    let node = api.storage_nodes().get("drift-1").await.unwrap();
    let uid = node.uid().unwrap();

    let first = unused_loop(7, 60);
    report(&api, "drift-1", json!({"drift": [first]})).await;
    let notes_seen = notes(&api, &uid, "DriftDetected", 1).await;
    assert_eq!(
        notes_seen,
        ["on node drift-1, /dev/loop7 (LoopWithoutUse): nothing uses it: detach it"]
    );

    let stray = json!({
        "kind": "Stray", "object": "/x", "message": "not ours: remove it", "since": ago(30),
    });
    // A finding of a second kind causes an event, which does not repeat the first.
    report(&api, "drift-1", json!({"drift": [first, stray]})).await;
    notes(&api, &uid, "DriftDetected", 2).await;
    let more = [first, stray, unused_loop(8, 0)];
    report(&api, "drift-1", json!({"drift": more})).await;
    let notes_seen = notes(&api, &uid, "DriftDetected", 3).await;
    assert!(
        notes_seen[2].contains("/dev/loop8 and 1 more"),
        "{notes_seen:?}"
    );
}

#[tokio::test]
async fn orphaned_images_are_reported_on_node_and_pool_with_the_remedy() {
    let api = Cluster::shared().await.api();
    api.add_node("orphans-1", &[("orphans", "yes")]).await;
    let pool = api.add_pool("orphans", &[("orphans", "yes")]).await;
    let entry = api.carried("orphans-1", "orphans").await;
    let node = api.storage_nodes().get("orphans-1").await.unwrap();
    let pools = |orphans: &[Value]| {
        json!({"pools": [{
            "name": "orphans", "uid": entry.uid, "size": "10Gi", "usable": "9Gi",
            "thinRoom": "9Gi", "thickRoom": "9Gi", "orphans": orphans,
        }]})
    };
    let first = orphan("a-1", 60);
    report(&api, "orphans-1", pools(std::slice::from_ref(&first))).await;
    for uid in [node.uid().unwrap(), pool.uid().unwrap()] {
        let notes_seen = notes(&api, &uid, "ImagesWithoutOwner", 1).await;
        for part in [
            "a-1",
            "pool orphans on node orphans-1",
            "reclaimOrphansAfterHours",
        ] {
            assert!(notes_seen[0].contains(part), "{notes_seen:?}");
        }
    }
    report(&api, "orphans-1", pools(&[first, orphan("a-2", 0)])).await;
    for uid in [node.uid().unwrap(), pool.uid().unwrap()] {
        let notes_seen = notes(&api, &uid, "ImagesWithoutOwner", 2).await;
        assert!(notes_seen[1].contains("a-2"), "{notes_seen:?}");
    }
}
