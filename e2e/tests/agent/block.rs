//! Raw block volumes over the socket of the node.

use cistern_crds::{Bytes, ConditionType};
use cistern_proto::csi::v1::volume_capability::access_mode::Mode;
use kube::ResourceExt as _;
use serde_json::json;
use tonic::Code;

use crate::{
    Fixture,
    node_service::{Place, capability, code, text},
    said,
};

const SIZE: Bytes = Bytes::mib(16);
/// One sector at the start of the device: direct I/O, as databases do it.
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
        let place = Place::of(&node, &object);
        let wrong = place.stage_as(capability(&[])).await;
        assert_eq!(code(wrong), Code::FailedPrecondition);
        let early = place.publish("a", &[], false).await;
        assert_eq!(code(early), Code::FailedPrecondition);
        place.stage(&[]).await.unwrap();
        let other = place.stage_as(capability(&[])).await;
        assert_eq!(code(other), Code::AlreadyExists);
        place.publish("a", &[], false).await.unwrap();
        let target = text(&place.target("a"));
        node.shell(WRITE, &[&target, "data"]).await;
        let script = "test -b $1 && blockdev --getsize64 $1";
        let size = node.shell(script, &[&target]).await;
        assert_eq!(size.trim(), SIZE.0.to_string(), "CV-21");
        let usage = place.statistics(&place.target("a")).await.unwrap();
        let [bytes] = &usage[..] else {
            panic!("NGS-06: {usage:?}");
        };
        assert_eq!((bytes.total, bytes.used), (SIZE.to_i64(), 0), "NGS-10");
        assert_eq!(place.statistics(&place.staging).await.unwrap(), usage);
    }

    // The pod goes on while the driver is replaced, and kubelet's repeats find all as it is.
    node.driver.restart_node().await;
    node.driver.fsck().await;
    let place = Place::of(&node, &object);
    let (a, b) = (text(&place.target("a")), text(&place.target("b")));
    assert_eq!(node.shell(READ, &[&a]).await, "data");
    place.stage(&[]).await.unwrap();
    place.publish("a", &[], false).await.unwrap();
    assert_eq!(
        code(place.publish("a", &[], true).await),
        Code::AlreadyExists
    );
    let shared = Mode::SingleNodeMultiWriter;
    let alone = place.publish("b", &[], false).await;
    assert_eq!(code(alone), Code::FailedPrecondition);
    let reader = place.publish_in("b", shared, true).await;
    assert_eq!(code(reader), Code::FailedPrecondition, "one device for all");
    place.publish_in("b", shared, false).await.unwrap();
    assert_eq!(node.shell(READ, &[&b]).await, "data");
    assert_eq!(code(place.unstage().await), Code::FailedPrecondition);
    place.unpublish("a").await.unwrap();
    place.unpublish("b").await.unwrap();

    place.publish_in("b", shared, true).await.unwrap();
    let refused = format!("! {WRITE} 2>/dev/null");
    node.shell(&refused, &[&b, "more"]).await;
    assert_eq!(node.shell(READ, &[&b]).await, "data");
    for _ in 0..2 {
        place.unpublish("b").await.unwrap();
        place.unstage().await.unwrap();
    }
    assert_eq!(std::fs::read_dir(&place.staging).unwrap().count(), 0);
    node.finish().await;
}

#[tokio::test]
async fn dv_04_the_data_of_a_device_that_a_pod_has_is_not_destroyed() {
    let node = Fixture::start("agent-block-in-use").await;
    let object = node.block_volume("one", SIZE).await;
    let (name, uid) = (object.name_any(), object.uid().unwrap());
    let place = Place::of(&node, &object);
    place.stage(&[]).await.unwrap();
    place.publish("a", &[], false).await.unwrap();
    node.patch(&name, json!({"spec": {"deletionRequested": true}}))
        .await;
    let in_use = said(ConditionType::Reclaimed, "False", "InUse");
    node.until(&name, "to be in use", in_use).await;
    let target = text(&place.target("a"));
    node.shell(WRITE, &[&target, "data"]).await;
    node.shell("test -f $0/$1", &[&uid]).await;
    place.unpublish("a").await.unwrap();
    place.unstage().await.unwrap();
    let reclaimed = said(ConditionType::Reclaimed, "True", "AsDesired");
    node.until(&name, "to be reclaimed", reclaimed).await;
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.patch(&name, json!({"metadata": {"finalizers": []}}))
        .await;
    node.finish().await;
}
