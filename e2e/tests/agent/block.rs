//! Raw block volumes through the CSI socket of the node.

use cistern_crds::{Bytes, ConditionType};
use cistern_proto::csi::v1::volume_capability::access_mode::Mode;
use kube::ResourceExt as _;
use serde_json::json;
use tonic::Code;

use crate::{
    Fixture, has_condition,
    node_service::{KubeletVolume, capability, code, text},
};

const SIZE: Bytes = Bytes::mib(16);
/// Writes one sector at the start of the device with direct I/O, as databases do.
const WRITE: &str =
    "printf %4096s $2 | dd of=$1 bs=4096 count=1 oflag=direct conv=notrunc status=none";
const READ: &str = "dd if=$1 bs=4096 count=1 iflag=direct status=none | tr -d ' '";

// Shows: CV-21, NGS-06, NGS-10, NPV-07, NPV-10, NSV-05, NSV-06, NSV-08, NSV-13, NUP-04, NUS-04.
#[tokio::test]
async fn npv_06_npv_11_npv_13_a_raw_block_volume_is_a_device_at_every_target() {
    // NSV-05, NSV-06, NSV-08, NSV-13, NPV-07, NPV-10, NUP-04, NUS-04.
    let mut node = Fixture::start("agent-block").await;
    let object = node.block_volume("one", SIZE).await;
    assert_eq!(object.status.as_ref().unwrap().filesystem, None);
    {
        let kubelet = KubeletVolume::of(&node, &object);
        let wrong = kubelet.stage_as(capability(&[])).await;
        assert_eq!(code(wrong), Code::FailedPrecondition);
        let early = kubelet.publish("a", &[], false).await;
        assert_eq!(code(early), Code::FailedPrecondition);
        kubelet.stage(&[]).await.unwrap();
        let other = kubelet.stage_as(capability(&[])).await;
        assert_eq!(code(other), Code::AlreadyExists);
        kubelet.publish("a", &[], false).await.unwrap();
        let target = text(&kubelet.target("a"));
        node.shell(WRITE, &[&target, "data"]).await;
        let script = "test -b $1 && blockdev --getsize64 $1";
        let size = node.shell(script, &[&target]).await;
        assert_eq!(size.trim(), SIZE.0.to_string(), "CV-21");
        let usage = kubelet.statistics(&kubelet.target("a")).await.unwrap();
        let [bytes] = &usage[..] else {
            panic!("NGS-06: {usage:?}");
        };
        assert_eq!((bytes.total, bytes.used), (SIZE.to_i64(), 0), "NGS-10");
        assert_eq!(kubelet.statistics(&kubelet.staging).await.unwrap(), usage);
    }

    // The pod keeps running while the driver is replaced, and kubelet's repeated calls succeed.
    node.driver.restart_node().await;
    node.driver.fsck().await;
    let kubelet = KubeletVolume::of(&node, &object);
    let (a, b) = (text(&kubelet.target("a")), text(&kubelet.target("b")));
    assert_eq!(node.shell(READ, &[&a]).await, "data");
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    assert_eq!(
        code(kubelet.publish("a", &[], true).await),
        Code::AlreadyExists
    );
    let shared = Mode::SingleNodeMultiWriter;
    let alone = kubelet.publish("b", &[], false).await;
    assert_eq!(code(alone), Code::FailedPrecondition);
    let reader = kubelet.publish_in("b", shared, true).await;
    assert_eq!(
        code(reader),
        Code::FailedPrecondition,
        "all pods share one device"
    );
    kubelet.publish_in("b", shared, false).await.unwrap();
    assert_eq!(node.shell(READ, &[&b]).await, "data");
    assert_eq!(code(kubelet.unstage().await), Code::FailedPrecondition);
    kubelet.unpublish("a").await.unwrap();
    kubelet.unpublish("b").await.unwrap();

    kubelet.publish_in("b", shared, true).await.unwrap();
    let refused = format!("! {WRITE} 2>/dev/null");
    node.shell(&refused, &[&b, "more"]).await;
    assert_eq!(node.shell(READ, &[&b]).await, "data");
    for _ in 0..2 {
        kubelet.unpublish("b").await.unwrap();
        kubelet.unstage().await.unwrap();
    }
    assert_eq!(std::fs::read_dir(&kubelet.staging).unwrap().count(), 0);
    node.finish().await;
}

#[tokio::test]
async fn dv_04_the_data_of_a_published_device_is_not_destroyed() {
    let node = Fixture::start("agent-block-in-use").await;
    let object = node.block_volume("one", SIZE).await;
    let (name, uid) = (object.name_any(), object.uid().unwrap());
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    node.patch(&name, json!({"spec": {"deletionRequested": true}}))
        .await;
    let in_use = has_condition(ConditionType::Reclaimed, "False", "InUse");
    node.until(&name, "to be in use", in_use).await;
    let target = text(&kubelet.target("a"));
    node.shell(WRITE, &[&target, "data"]).await;
    node.shell("test -f $0/$1", &[&uid]).await;
    kubelet.unpublish("a").await.unwrap();
    kubelet.unstage().await.unwrap();
    let reclaimed = has_condition(ConditionType::Reclaimed, "True", "Reconciled");
    node.until(&name, "to be reclaimed", reclaimed).await;
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.patch(&name, json!({"metadata": {"finalizers": []}}))
        .await;
    node.finish().await;
}
