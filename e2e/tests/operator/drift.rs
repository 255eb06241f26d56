//! People are told what does not belong together on a node: once, and again when more of it comes.

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

/// A loop device that was seen first so many seconds ago.
fn unused_loop(number: u32, seconds: i64) -> Value {
    json!({
        "kind": "LoopWithoutUse",
        "object": format!("/dev/loop{number}"),
        "message": "nothing uses it: detach it",
        "since": ago(seconds),
    })
}

/// An image that nobody has claimed for so many seconds.
fn orphan(image: &str, seconds: i64) -> Value {
    json!({"image": image, "size": "1Gi", "since": ago(seconds)})
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::now() - SignedDuration::from_secs(seconds)
}

/// The agent tells what it has found on its node.
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

/// Waits until an object has just so many events of a kind, and gives their notes.
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
async fn findings_are_told_on_their_node_and_again_only_when_one_more_has_come() {
    let api = Cluster::shared().await.api();
    api.add_node("drift-1", &[("drift", "yes")]).await;
    api.add_pool("drift", &[("drift", "yes")]).await;
    api.carried("drift-1", "drift").await;
    let node = api.storage_nodes().get("drift-1").await.unwrap();
    let uid = node.uid().unwrap();

    let first = unused_loop(7, 60);
    report(&api, "drift-1", json!({"drift": [first]})).await;
    let told = notes(&api, &uid, "DoesNotBelongTogether", 1).await;
    assert_eq!(
        told,
        ["on node drift-1, /dev/loop7 (LoopWithoutUse): nothing uses it: detach it"]
    );

    let stray = json!({
        "kind": "Stray", "object": "/x", "message": "not ours: remove it", "since": ago(30),
    });
    // A second kind is news, and the first is not told again with it.
    report(&api, "drift-1", json!({"drift": [first, stray]})).await;
    notes(&api, &uid, "DoesNotBelongTogether", 2).await;
    let more = [first, stray, unused_loop(8, 0)];
    report(&api, "drift-1", json!({"drift": more})).await;
    let told = notes(&api, &uid, "DoesNotBelongTogether", 3).await;
    assert!(told[2].contains("/dev/loop8 and 1 more"), "{told:?}");
}

#[tokio::test]
async fn images_that_nobody_claims_are_told_on_node_and_pool_with_what_to_do() {
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
        let told = notes(&api, &uid, "ImagesWithoutOwner", 1).await;
        for part in [
            "a-1",
            "pool orphans on node orphans-1",
            "reclaimOrphansAfterHours",
        ] {
            assert!(told[0].contains(part), "{told:?}");
        }
    }
    report(&api, "orphans-1", pools(&[first, orphan("a-2", 0)])).await;
    for uid in [node.uid().unwrap(), pool.uid().unwrap()] {
        let told = notes(&api, &uid, "ImagesWithoutOwner", 2).await;
        assert!(told[1].contains("a-2"), "{told:?}");
    }
}
