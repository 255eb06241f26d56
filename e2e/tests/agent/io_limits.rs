//! Limits of the I/O of volumes: their admission, and what is reported where the node cannot enforce them.
//! The agent of these tests runs in no cgroup of pods, but for the one whose node has a kernel of its own: there
//! a limit holds.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use cistern_crds::{
    Bytes, ConditionType, IoLimits, PoolVolume, Reason, VolumeAttributes, condition,
};
use cistern_e2e::{ControlPlane, driver::Options, eventually};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{Fixture, SOON, has_condition, node_service::KubeletVolume, status};

fn reads(limit: u64) -> VolumeAttributes {
    VolumeAttributes {
        io_limits: IoLimits {
            read_iops: Some(limit),
            ..IoLimits::NONE
        },
        ..VolumeAttributes::default()
    }
}

fn writes(limit: Bytes) -> VolumeAttributes {
    VolumeAttributes {
        io_limits: IoLimits {
            write_bytes_per_second: Some(limit),
            ..IoLimits::NONE
        },
        ..VolumeAttributes::default()
    }
}

/// Requests attributes, as the controller does.
async fn request(node: &Fixture, volume: &str, attributes: VolumeAttributes) {
    node.patch(
        volume,
        json!({"spec": {"attributes": attributes.merge_patch()}}),
    )
    .await;
}

fn is_in_force(attributes: VolumeAttributes) -> impl Fn(&PoolVolume) -> bool {
    move |object| status(object).attributes == Some(attributes) && object.has_requested_attributes()
}

#[tokio::test]
async fn a_volume_whose_limits_the_node_cannot_enforce_works_and_reports_it_until_they_are_removed()
{
    let node = Fixture::start("agent-limits").await;
    let object = node.volume("limited", Bytes::mib(64)).await;
    let name = object.name_any();
    let unlimited = has_condition(ConditionType::LimitsEnforced, "True", "Reconciled");
    assert!(unlimited(&object), "{object:?}");

    request(&node, &name, reads(100)).await;
    let is_unlimited = has_condition(ConditionType::LimitsEnforced, "False", "LimitsUnavailable");
    let reported = node.until(&name, "to report it", &is_unlimited).await;
    let conditions = status(&reported).conditions;
    let enforced = condition::find(&conditions, ConditionType::LimitsEnforced);
    assert!(enforced.unwrap().message.contains("cgroup"), "{reported:?}");
    node.until(&name, "to have the limits", is_in_force(reads(100)))
        .await;
    let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
    node.until(&name, "to be ready", ready).await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    eventually("the metric", SOON, async || {
        let metrics = node.driver.node().get("/metrics").await.unwrap();
        let line =
            r#"cistern_volumes_not_limited{node="agent-limits",reason="LimitsUnavailable"} 1"#;
        metrics.contains(line).then_some(()).ok_or(metrics)
    })
    .await;
    kubelet.unstage().await.unwrap();

    request(&node, &name, VolumeAttributes::default()).await;
    node.until(&name, "to be unlimited", unlimited).await;
    node.finish().await;
}

#[tokio::test]
async fn a_limit_above_the_maximum_of_the_pool_is_refused_and_a_volume_without_one_gets_it() {
    let node = Fixture::start("agent-limits-pool").await;
    let object = node.volume("limited", Bytes::mib(64)).await;
    let name = object.name_any();
    let mut pools = node.driver.storage_node().await.spec.pools;
    pools[0].limits.volume_io = reads(500).io_limits;
    node.driver.set_pools(pools).await;
    // The maximum of the pool holds for the volume, and this node cannot enforce it.
    let is_unlimited = has_condition(ConditionType::LimitsEnforced, "False", "LimitsUnavailable");
    eventually("the maximum to be in force", SOON, async || {
        node.enqueue(&object).await;
        let found = node.volumes.get(&name).await.unwrap();
        is_unlimited(&found)
            .then_some(())
            .ok_or_else(|| format!("{found:?}"))
    })
    .await;

    request(&node, &name, reads(501)).await;
    let is_refused = |object: &PoolVolume| object.refused_modification().is_some();
    let refused = node.until(&name, "to be refused", is_refused).await;
    let why = refused.refused_modification().unwrap();
    assert_eq!(why.reason, Reason::LimitTooHigh);
    assert!(why.message.contains("readIOPS: 500"), "{why}");
    assert_eq!(
        status(&refused).attributes,
        Some(VolumeAttributes::default())
    );
    request(&node, &name, reads(500)).await;
    node.until(&name, "to have the limits", is_in_force(reads(500)))
        .await;
    node.finish().await;
}

/// The cgroup of all pods of a node, with that of the agent and that of another pod.
const PODS: &str = "/sys/fs/cgroup/agent-limits-enforced/kubepods";
const AGENT: &str = "/sys/fs/cgroup/agent-limits-enforced/kubepods/agent";
const POD: &str = "/sys/fs/cgroup/agent-limits-enforced/kubepods/pod";

fn create_pods() {
    for pod in [AGENT, POD] {
        fs::create_dir_all(pod).unwrap();
    }
    // A cgroup can pass a controller on if the one above it does.
    let parent = Path::new(PODS).parent().unwrap();
    for folder in [Path::new("/sys/fs/cgroup"), parent, Path::new(PODS)] {
        fs::write(folder.join("cgroup.subtree_control"), "+io +memory").unwrap();
    }
}

/// The limits of all pods: a line for each limited device.
fn io_max() -> String {
    fs::read_to_string(Path::new(PODS).join("io.max")).unwrap()
}

/// Writes 4 MiB in the cgroup of a pod, and returns how long it took.
async fn write(node: &Fixture, target: &Path) -> Duration {
    let script = "echo 0 >$1/cgroup.procs; dd if=/dev/zero of=$2/file bs=1M count=4 oflag=direct";
    let started = Instant::now();
    node.shell(script, &[POD, target.to_str().unwrap()]).await;
    started.elapsed()
}

#[tokio::test]
#[ignore = "needs cgroup v2, which the virtual machine has"]
async fn a_pod_writes_no_faster_than_the_limit_of_its_volume_until_the_limit_is_removed() {
    create_pods();
    let options = Options {
        cgroup: Some(AGENT),
        ..Options::default()
    };
    let node = Fixture::start_as(
        ControlPlane::shared().await,
        "agent-limits-enforced",
        options,
    )
    .await;
    let object = node.volume("limited", Bytes::mib(64)).await;
    let name = object.name_any();
    let limited = writes(Bytes::mib(1));
    request(&node, &name, limited).await;
    node.until(&name, "to have the limit", is_in_force(limited))
        .await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("pod", &[], false).await.unwrap();
    assert!(io_max().contains(" wbps=1048576 "), "{}", io_max());
    let target = kubelet.target("pod");
    // The kernel lets a part pass at once.
    let slow = write(&node, &target).await;
    assert!(slow > Duration::from_secs(2), "{slow:?}");
    let enforced = has_condition(ConditionType::LimitsEnforced, "True", "Reconciled");
    node.until(&name, "to report that it is limited", enforced)
        .await;

    request(&node, &name, VolumeAttributes::default()).await;
    eventually("the limit to be removed", SOON, async || {
        let limits = io_max();
        limits.is_empty().then_some(()).ok_or(limits)
    })
    .await;
    // Other tests use the disk, too.
    eventually("a write without the limit to be faster", SOON, async || {
        let fast = write(&node, &target).await;
        let is_faster = fast < slow;
        is_faster
            .then_some(())
            .ok_or_else(|| format!("{fast:?} without the limit, {slow:?} with it"))
    })
    .await;
    kubelet.unpublish("pod").await.unwrap();
    kubelet.unstage().await.unwrap();
    node.finish().await;
}
