//! Filesystems that are damaged or need a check.

use cistern_crds::{Bytes, ConditionType, ContentSource, PoolVolume, SourceKind, condition};
use kube::ResourceExt as _;
use tonic::Code;

use crate::{
    Fixture, has_condition,
    node_service::{KubeletVolume, text},
};

#[tokio::test]
async fn damage_that_needs_manual_repair_is_refused_and_reported_until_the_volume_is_mounted() {
    let node = Fixture::start("agent-damaged").await;
    let kubelet = KubeletVolume::new(&node).await;
    let (volume, staging) = (kubelet.volume.clone(), text(&kubelet.staging));
    let uid = node.get(&volume).await.uid().unwrap();
    kubelet.stage(&[]).await.unwrap();
    node.shell("mkdir $1/folder", &[&staging]).await;
    kubelet.unstage().await.unwrap();

    let debugfs = "debugfs -w -R \"$2\" $0/$1";
    let change = async |request: &str| {
        node.shell(debugfs, &[&uid, request]).await;
    };
    change("set_inode_field folder mode 0100644").await;
    change("set_super_value state 2").await;
    let refused = kubelet.stage(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("e2fsck"), "{refused}");
    let damaged = || has_condition(ConditionType::Ready, "False", "FilesystemDamaged");
    node.until(&volume, "to be damaged", damaged()).await;

    change("set_inode_field folder mode 040755").await;
    kubelet.stage(&[]).await.unwrap();
    let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
    node.until(&volume, "to be ready again", ready).await;
    node.shell("test -d $1/folder", &[&staging]).await;
    kubelet.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn one_stage_call_checks_or_grows_a_volume_and_mounts_it() {
    let node = Fixture::start("agent-checked").await;
    let kubelet = KubeletVolume::new(&node).await;
    let (volume, staging) = (kubelet.volume.clone(), text(&kubelet.staging));
    let uid = node.get(&volume).await.uid().unwrap();
    let damage = "debugfs -w -R 'set_super_value state 2' $0/$1";
    node.shell(damage, &[&uid]).await;
    kubelet.stage(&[]).await.unwrap();
    let is_not_checking = |object: &PoolVolume| {
        let checking = crate::status(object).conditions;
        let checking = condition::find(&checking, ConditionType::Checking).cloned();
        checking.is_some_and(|it| it.status == "False" && it.reason == "NotChecking")
    };
    node.until(&volume, "to finish its check", is_not_checking)
        .await;
    kubelet.unstage().await.unwrap();

    let larger = serde_json::json!({"spec": {"size": "128Mi"}});
    node.patch(&volume, larger).await;
    let grown = |object: &PoolVolume| crate::status(object).size == Some(Bytes::mib(128));
    node.until(&volume, "to grow", grown).await;
    kubelet.stage(&[]).await.unwrap();
    let blocks = node.shell("stat -f -c %b $1", &[&staging]).await;
    let blocks: u64 = blocks.trim().parse().unwrap();
    assert!(blocks * 4096 > Bytes::mib(100).0, "{blocks}");

    // A copy that is larger than its source grows in the same way.
    let mut copy = node.desired_volume("copy", Bytes::mib(256));
    copy.spec.content_source = Some(ContentSource {
        kind: SourceKind::Volume,
        name: volume.clone(),
        image: uid,
        node_name: None,
        snapshot_name: None,
    });
    let copy = node.create_ready(&copy).await;
    assert!(is_not_checking(&copy), "{copy:?}");
    kubelet.unstage().await.unwrap();
    node.finish().await;
}
