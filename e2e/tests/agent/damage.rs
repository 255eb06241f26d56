//! Filesystems that are damaged.

use cistern_crds::ConditionType;
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
