//! Orphaned images that are adopted or reclaimed.
//!
//! While the agent is stopped, the tests write the orphans that it would report.

use std::process::Child;

use cistern_crds::{
    HasImage, PoolSnapshot, PoolVolume, StorageNode, VolumeMove, names::AGENT_MANAGER,
};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{Answer, Node, end};

/// An orphan of 64 MiB, as the agent reports it.
fn orphan(image: &str, identity: &Value) -> Value {
    let mut all = json!({"volumeSize": "64Mi", "accessType": "Filesystem", "filesystem": "ext4",
        "provisioning": "Thin"});
    for (key, value) in identity.as_object().unwrap() {
        all[key] = value.clone();
    }
    json!({"image": image, "size": "64Mi", "since": "2026-01-01T00:00:00Z", "identity": all})
}

/// Reports orphans with the agent's field manager, which owns the field.
async fn report_orphans(node: &Node, orphans: &[Value]) {
    let status = node.driver.storage_node().await.status;
    let mut status = serde_json::to_value(status.unwrap()).unwrap();
    status["pools"][0]["orphans"] = json!(orphans);
    // The operator owns the conditions.
    status.as_object_mut().unwrap().remove("conditions");
    let applied = Patch::Apply(json!({
        "apiVersion": "cistern.storage/v1alpha1",
        "kind": "StorageNode",
        "status": status,
    }));
    let nodes = node.all::<StorageNode>();
    let parameters = PatchParams::apply(AGENT_MANAGER);
    let written = nodes.patch_status(&node.name, &parameters, &applied);
    written.await.unwrap();
}

/// Deletes the object of a volume, stops the agent, and reports the image as an orphan. Returns the name of
/// the image.
async fn orphaned(node: &mut Node, volume: &PoolVolume) -> String {
    let image = volume.uid().unwrap();
    node.forget(volume).await;
    node.driver.kill_node();
    let identity = json!({"kind": "Volume", "name": volume.spec.requested_name});
    report_orphans(node, &[orphan(&image, &identity)]).await;
    image
}

/// Waits until the program has created the object, starts the agent, and waits until the program exits.
async fn answered<K>(node: &mut Node, name: &str, child: Child) -> Answer
where
    K: HasImage + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api = node.all::<K>();
    cistern_e2e::eventually(
        &format!("{name} to be created"),
        crate::SOON,
        async || match api.get_opt(name).await.unwrap() {
            Some(_) => Ok(()),
            None => Err("nothing".to_owned()),
        },
    )
    .await;
    node.driver.start_node().await;
    end(child).await
}

#[tokio::test]
async fn a_volume_whose_object_is_lost_is_adopted_with_its_data() {
    let mut node = Node::start("plugin-adopt").await;
    let volume = node.volume("adopt-one", None).await;
    let filesystem = volume.status.as_ref().unwrap().filesystem.clone().unwrap();
    let image = orphaned(&mut node, &volume).await;
    let text = node
        .plugin
        .text(&["orphans", "--node", "plugin-adopt"])
        .await;
    assert!(text.contains("volume adopt-one"), "{text}");

    let words = [
        "orphans",
        "adopt",
        "adopt-one",
        "--persistent-volume",
        "create",
        "--claim",
        "default/adopt-one",
    ];
    let child = node.plugin.start(&words, "");
    let answer = answered::<PoolVolume>(&mut node, "adopt-one", child).await;
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    assert!(
        answer.stderr.contains("is adopted as PoolVolume adopt-one"),
        "{}",
        answer.stderr
    );
    // The plugin ends when the image is adopted; what is in it, the agent writes next.
    let adopted: PoolVolume = node.ready("adopt-one").await;
    assert_ne!(adopted.uid().unwrap(), image);
    assert_eq!(adopted.image().unwrap().uid, image);
    let now = adopted
        .status
        .as_ref()
        .unwrap()
        .filesystem
        .as_ref()
        .unwrap();
    assert_eq!(now.uuid, filesystem.uuid);
    let object: PersistentVolume = node.all().get("adopt-one").await.unwrap();
    let spec = object.spec.unwrap();
    assert_eq!(
        spec.persistent_volume_reclaim_policy.as_deref(),
        Some("Retain")
    );
    assert_eq!(spec.csi.unwrap().volume_handle, "adopt-one");
    node.remove(&adopted).await;
    node.driver.finish().await;
}

#[tokio::test]
async fn an_image_with_another_identity_is_not_adopted_and_leaves_no_object() {
    let mut node = Node::start("plugin-refused").await;
    let volume = node.volume("refused-one", None).await;
    let image = volume.uid().unwrap();
    node.forget(&volume).await;
    node.driver.kill_node();
    let mut other = orphan(&image, &json!({"kind": "Volume", "name": "refused-one"}));
    other["identity"]["filesystem"] = json!("xfs");
    report_orphans(&node, &[other]).await;
    let child = node.plugin.start(&["orphans", "adopt", &image], "");
    let answer = answered::<PoolVolume>(&mut node, "refused-one", child).await;
    assert_eq!(answer.code, 3, "{}", answer.stderr);
    assert!(
        answer.stderr.contains("is not adopted"),
        "{}",
        answer.stderr
    );
    let left = node
        .all::<PoolVolume>()
        .get_opt("refused-one")
        .await
        .unwrap();
    assert!(left.is_none(), "{left:?}");
    assert!(node.has_image(&image).await);
    let again = node.volume("refused-one", None).await;
    assert_eq!(again.image().unwrap().uid, image);
    node.remove(&again).await;
    node.driver.finish().await;
}

/// Writes the status of the volume in the agent's place after the program has created it. Returns the output
/// of the program and the resulting volume.
async fn admitted(node: &Node, name: &str, status: Value, child: Child) -> (Answer, PoolVolume) {
    let api = node.all::<PoolVolume>();
    let what = format!("{name} to be created");
    cistern_e2e::eventually(&what, crate::SOON, async || {
        let found = api.get_opt(name).await.unwrap();
        found.map(drop).ok_or_else(|| "nothing".to_owned())
    })
    .await;
    let patch = Patch::Merge(json!({"status": status}));
    let parameters = PatchParams::default();
    let written = api.patch_status(name, &parameters, &patch);
    written.await.unwrap();
    let answer = end(child).await;
    (answer, api.get(name).await.unwrap())
}

#[tokio::test]
async fn r07_a_volume_that_its_agent_has_admitted_is_kept_however_its_adoption_ends() {
    let mut node = Node::start("plugin-kept").await;
    let volume = node.volume("kept-one", None).await;
    let image = orphaned(&mut node, &volume).await;
    let other = json!({"uid": "other", "poolUuid": "11111111-1111-4111-8111-111111111111",
        "sectorSize": 4096});
    for (status, words) in [
        // The agent does not report an image in time.
        (json!({"reserved": "64Mi"}), "is admitted and kept"),
        // The image was gone, and the agent has found or created another.
        (
            json!({"reserved": "64Mi", "size": "64Mi", "image": other}),
            "has image other, and is kept",
        ),
    ] {
        let child = node
            .plugin
            .start(&["orphans", "adopt", &image, "--timeout", "15s"], "");
        let (answer, left) = admitted(&node, "kept-one", status, child).await;
        assert_eq!(answer.code, 3, "{}", answer.stderr);
        assert!(answer.stderr.contains(words), "{}", answer.stderr);
        assert!(!left.spec.deletion_requested);
        assert_eq!(left.metadata.deletion_timestamp, None);
        node.forget(&left).await;
    }
    node.driver.start_node().await;
    let again = node.volume("kept-one", None).await;
    assert_eq!(again.image().unwrap().uid, image);
    node.remove(&again).await;
    node.driver.finish().await;
}

#[tokio::test]
async fn r07_an_orphan_is_removed_only_after_its_name_is_typed() {
    let mut node = Node::start("plugin-reclaim").await;
    let volume = node.volume("reclaim-one", None).await;
    let snapshot = node.snapshot("reclaim-snap", &volume).await;
    let (image, of_snapshot) = (volume.uid().unwrap(), snapshot.uid().unwrap());
    node.forget(&snapshot).await;
    node.forget(&volume).await;
    node.driver.kill_node();
    let orphans = [
        orphan(&image, &json!({"kind": "Volume", "name": "reclaim-one"})),
        orphan(
            &of_snapshot,
            &json!({"kind": "Snapshot", "name": "reclaim-snap",
            "sourceVolume": "reclaim-one", "sourceImage": image}),
        ),
    ];
    report_orphans(&node, &orphans).await;
    let no = end(node
        .plugin
        .start(&["orphans", "reclaim", "reclaim-one"], "yes\n"))
    .await;
    assert_eq!(no.code, 3);
    assert!(no.stderr.contains("nothing was changed"), "{}", no.stderr);
    assert!(node.has_image(&image).await);

    let child = node
        .plugin
        .start(&["orphans", "reclaim", "reclaim-one"], "reclaim-one\n");
    let yes = answered::<PoolVolume>(&mut node, "reclaim-one", child).await;
    assert_eq!(yes.code, 0, "{}", yes.stderr);
    assert!(!node.has_image(&image).await);
    let left = node
        .all::<PoolVolume>()
        .get_opt("reclaim-one")
        .await
        .unwrap();
    assert!(left.is_none(), "{left:?}");

    // The snapshot is independent of the volume; it is selected by its image and removed without a prompt.
    assert!(node.has_image(&of_snapshot).await);
    node.driver.kill_node();
    report_orphans(&node, &orphans[1..]).await;
    let child = node
        .plugin
        .start(&["orphans", "reclaim", "--yes", &of_snapshot], "");
    let yes = answered::<PoolSnapshot>(&mut node, "reclaim-snap", child).await;
    assert_eq!(yes.code, 0, "{}", yes.stderr);
    assert!(!node.has_image(&of_snapshot).await);
    let left = node
        .all::<PoolSnapshot>()
        .get_opt("reclaim-snap")
        .await
        .unwrap();
    assert!(left.is_none(), "{left:?}");
    node.driver.finish().await;
}

#[tokio::test]
async fn an_unclaimed_volume_is_removed_by_name_and_a_claimed_one_is_not() {
    let node = Node::start("plugin-unclaimed").await;
    let volume = node.volume("unclaimed-one", None).await;
    let image = volume.uid().unwrap();
    // The user first keeps the volume with a PersistentVolume, and later deletes that.
    let words = ["orphans", "adopt", "unclaimed-one"];
    let create = ["--persistent-volume", "create"];
    node.plugin.text(&[&words[..], &create].concat()).await;
    let objects = node.all::<PersistentVolume>();
    let object = objects.get("unclaimed-one").await.unwrap();
    assert_eq!(
        object.spec.unwrap().csi.unwrap().volume_handle,
        "unclaimed-one"
    );
    let words = ["orphans", "reclaim", "unclaimed-one", "--yes"];
    let refused = node.plugin.run(&words).await;
    assert_eq!(refused.code, 3, "{}", refused.stdout);
    assert!(
        refused.stderr.contains("is not an orphan"),
        "{}",
        refused.stderr
    );
    assert!(node.has_image(&image).await);

    let released = json!({"metadata": {"finalizers": null}});
    cistern_e2e::objects::change(&objects, "unclaimed-one", released).await;
    let parameters = kube::api::DeleteParams::default();
    objects.delete("unclaimed-one", &parameters).await.unwrap();
    // A move deletes the PersistentVolume and creates it again.
    let moves = node.all::<VolumeMove>();
    let spec = json!({"volumeName": "unclaimed-one"});
    let replaces = json!({"metadata": {"name": "unclaimed-one"}, "spec": spec});
    crate::create(&moves, replaces).await;
    let refused = node.plugin.run(&words).await;
    assert_eq!(refused.code, 3, "{}", refused.stdout);
    let says = "a VolumeMove moves it";
    assert!(refused.stderr.contains(says), "{}", refused.stderr);
    assert!(node.has_image(&image).await);
    moves.delete("unclaimed-one", &parameters).await.unwrap();
    let no = end(node.plugin.start(&words[..3], "yes\n")).await;
    assert_eq!(no.code, 3);
    assert!(node.has_image(&image).await);
    let text = node.plugin.text(&words).await;
    assert!(text.contains("PoolVolume unclaimed-one"), "{text}");
    assert!(!node.has_image(&image).await);
    let left = node.all::<PoolVolume>().get_opt("unclaimed-one").await;
    assert!(left.unwrap().is_none());
    node.driver.finish().await;
}
