//! Filesystems that are damaged, or have to be checked.

use cistern_crds::{Bytes, ConditionType, ContentSource, PoolVolume, SourceKind, condition};
use kube::ResourceExt as _;
use tonic::Code;

use crate::{
    Fixture,
    node_service::{Place, text},
    said,
};

#[tokio::test]
async fn what_only_a_person_can_mend_is_refused_and_a_condition_says_so_until_it_is_mounted() {
    let node = Fixture::start("agent-damaged").await;
    let place = Place::new(&node).await;
    let (volume, staging) = (place.volume.clone(), text(&place.staging));
    let uid = node.get(&volume).await.uid().unwrap();
    place.stage(&[]).await.unwrap();
    node.shell("mkdir $1/folder", &[&staging]).await;
    place.unstage().await.unwrap();

    let debugfs = "debugfs -w -R \"$2\" $0/$1";
    let change = async |request: &str| {
        node.shell(debugfs, &[&uid, request]).await;
    };
    change("set_inode_field folder mode 0100644").await;
    change("set_super_value state 2").await;
    let refused = place.stage(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("e2fsck"), "{refused}");
    let damaged = || said(ConditionType::Ready, "False", "FilesystemDamaged");
    node.until(&volume, "to be damaged", damaged()).await;

    change("set_inode_field folder mode 040755").await;
    place.stage(&[]).await.unwrap();
    let ready = said(ConditionType::Ready, "True", "AsDesired");
    node.until(&volume, "to be ready again", ready).await;
    node.shell("test -d $1/folder", &[&staging]).await;
    place.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn a_volume_that_has_to_be_checked_or_to_grow_is_staged_after_that_in_one_call() {
    let node = Fixture::start("agent-checked").await;
    let place = Place::new(&node).await;
    let (volume, staging) = (place.volume.clone(), text(&place.staging));
    let uid = node.get(&volume).await.uid().unwrap();
    let damage = "debugfs -w -R 'set_super_value state 2' $0/$1";
    node.shell(damage, &[&uid]).await;
    place.stage(&[]).await.unwrap();
    let is_not_checking = |object: &PoolVolume| {
        let checking = crate::status(object).conditions;
        let checking = condition::find(&checking, ConditionType::Checking).cloned();
        checking.is_some_and(|it| it.status == "False" && it.reason == "NotChecking")
    };
    node.until(&volume, "to be checked no longer", is_not_checking)
        .await;
    place.unstage().await.unwrap();

    let larger = serde_json::json!({"spec": {"size": "128Mi"}});
    node.patch(&volume, larger).await;
    let grown = |object: &PoolVolume| crate::status(object).size == Some(Bytes::mib(128));
    node.until(&volume, "to grow", grown).await;
    place.stage(&[]).await.unwrap();
    let blocks = node.shell("stat -f -c %b $1", &[&staging]).await;
    let blocks: u64 = blocks.trim().parse().unwrap();
    assert!(blocks * 4096 > Bytes::mib(100).0, "{blocks}");

    // So is a copy that is larger than its source.
    let mut copy = node.wish("copy", Bytes::mib(256));
    copy.spec.content_source = Some(ContentSource {
        kind: SourceKind::Volume,
        name: volume.clone(),
        image: uid,
    });
    let copy = node.made(&copy).await;
    assert!(is_not_checking(&copy), "{copy:?}");
    place.unstage().await.unwrap();
    node.finish().await;
}
