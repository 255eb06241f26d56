//! Admission of volumes, and its cost in writes to the API server.

use cistern_crds::{Bytes, ConditionType, Consistency, PoolVolume, Provisioning, condition};
use cistern_e2e::{ControlPlane, control_plane::UNREADABLE_SIZE, objects};
use futures::{StreamExt as _, future::join_all};
use kube::{
    Api, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, WatchEvent,
        WatchParams,
    },
};

use crate::{Fixture, has_condition, node_service::KubeletVolume, status};

/// The agent's metric of its writes to the status of volumes and snapshots. It writes these by PUT, and that of its StorageNode
/// by PATCH.
const WRITES: &str = "cistern_api_request_duration_seconds_count{method=\"PUT\"";

/// The line of that metric after this many accepted writes.
fn accepted(writes: u32) -> String {
    format!("{WRITES},code=\"200\"}} {writes}")
}

impl Fixture {
    /// The lines of that metric: one for each code that the API server has answered.
    async fn writes(&self) -> Vec<String> {
        let metrics = self.driver.node().get("/metrics").await.unwrap();
        let counts = metrics.lines().filter(|line| line.starts_with(WRITES));
        counts.map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn r05_creation_and_reclaim_take_two_writes_each_and_no_write_follows() {
    let node = Fixture::start("agent-writes").await;
    let fields = format!("spec.nodeName={}", node.name);
    let everything = WatchParams::default().fields(&fields);
    let mut events = Box::pin(node.volumes.watch(&everything, "0").await.unwrap());
    let object = node.volume("one", Bytes::mib(64)).await;
    node.remove(&object.name_any()).await;

    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        match event.unwrap() {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let status = status(&object);
                let desired = object.spec.deletion_requested;
                let is_committed = status.deletion_committed;
                let (reserved, size) = (status.reserved.is_some(), status.size.is_some());
                seen.push((desired, is_committed, reserved, size));
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Deleted(_) => break,
            error @ WatchEvent::Error(_) => panic!("{error:?}"),
        }
    }
    let life = [
        (false, false, false, false), // created by the controller
        (false, false, true, false),  // admitted
        (false, false, true, true),   // ready
        (true, false, true, true),    // the controller requests the deletion
        (true, true, true, true),     // the agent commits to it
        (true, true, false, true),    // reclaimed
        (true, true, false, true),    // the finalizer is removed
    ];
    assert_eq!(seen, life);
    node.finish().await;
}

#[tokio::test]
async fn r05_a_pod_starts_and_ends_without_a_write_to_its_volume() {
    let node = Fixture::start("agent-pod-writes").await;
    // The blocks that a mount takes are too few of so many to be reported.
    let object = node.volume("one", Bytes::mib(512)).await;
    let kubelet = KubeletVolume::of(&node, &object);
    // The agent has its answer a moment after the volume is seen to be ready.
    node.driver.node().shows(&accepted(2)).await;

    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("target", &[], false).await.unwrap();
    assert_eq!(node.writes().await, [accepted(2)]);
    kubelet.unpublish("target").await.unwrap();
    kubelet.unstage().await.unwrap();
    let after = node.get(&object.name_any()).await;
    assert_eq!(after.resource_version(), object.resource_version());

    // What the calls have enqueued is reconciled before the deletion, which takes two writes.
    node.remove(&object.name_any()).await;
    node.driver.node().shows(&accepted(4)).await;
    assert_eq!(node.writes().await, [accepted(4)]);
    node.finish().await;
}

#[tokio::test]
async fn r05_what_the_agent_writes_never_conflicts_with_its_own_earlier_writes() {
    let node = Fixture::start("agent-own-writes").await;
    let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let volumes = names.iter().map(|name| node.volume(name, Bytes::mib(32)));
    let volumes = join_all(volumes).await;
    let snapshots = names.iter().zip(&volumes);
    join_all(snapshots.map(|(name, volume)| node.snapshot(name, volume))).await;
    let group = [&volumes[0], &volumes[1]];
    let group = node.create_group(&group, Consistency::Crash).await;
    node.ready_group(&group).await;

    let metrics = node.driver.node().get("/metrics").await.unwrap();
    let written = "cistern_api_request_duration_seconds_count{method=\"PUT\",code=\"200\"}";
    assert!(metrics.contains(written), "{metrics}");
    let log = node.driver.node().process().log();
    assert!(!metrics.contains("code=\"409\""), "{log}");
    node.remove_group(&group).await;
    node.finish().await;
}

#[tokio::test]
async fn r12_of_twenty_concurrent_volumes_as_many_are_admitted_as_fit() {
    let node = Fixture::start("agent-crowd").await;
    let room = node.pool().await.unwrap().thick_room;
    let size = Bytes(room.0 / 10).round_down_to_mib();
    let ask = |number: usize| {
        let mut desired = node.desired_volume(&number.to_string(), size);
        desired.spec.attributes.provisioning = Provisioning::Thick;
        let node = &node;
        async move {
            let object = node.create(&desired).await;
            let answered = |object: &cistern_crds::PoolVolume| {
                has_condition(ConditionType::Ready, "True", "Reconciled")(object)
                    || has_condition(ConditionType::Admitted, "False", "NoSpace")(object)
            };
            node.until(&object.name_any(), "to be answered", answered)
                .await
        }
    };
    let answers = join_all((0..20).map(ask)).await;
    let admitted = answers
        .iter()
        .filter(|object| status(object).reserved.is_some());
    assert_eq!(admitted.count(), 10);
    let expected = Bytes(size.0 * 10);
    let pool = node
        .pool_until("to publish its reservations", |pool| {
            pool.reserved == expected
        })
        .await;
    assert!(pool.thick_room < size && pool.volumes == 10, "{pool:?}");

    // The controller withdraws refused volumes. Here the test does.
    for object in answers
        .iter()
        .filter(|object| status(object).reserved.is_none())
    {
        node.force_delete(&object.name_any()).await;
    }
    node.finish().await;
}

#[tokio::test]
async fn r12_a_volume_that_a_pool_filled_by_others_cannot_make_is_refused_and_leaves_nothing() {
    let node = Fixture::start("agent-full-disk").await;
    node.fill().await;
    let mut desired = node.desired_volume("thick", Bytes::mib(512));
    desired.spec.attributes.provisioning = Provisioning::Thick;
    let object = node.create(&desired).await;
    let refused = has_condition(ConditionType::Admitted, "False", "NoSpace");
    let object = node
        .until(&object.name_any(), "to be refused", refused)
        .await;
    let found = status(&object);
    assert_eq!((found.reserved, found.size), (None, None));
    let ready = condition::find(&found.conditions, ConditionType::Ready).unwrap();
    assert!(ready.message.contains("no space left"), "{ready:?}");
    assert_eq!(node.shell("ls $0; ls $0/../tmp", &[]).await, "");
    node.force_delete(&object.name_any()).await;

    node.unfill().await;
    node.create_ready(&desired).await;
    node.finish().await;
}

#[tokio::test]
async fn a_refusal_names_the_size_and_reserves_nothing() {
    let node = Fixture::start("agent-refusal").await;
    let object = node
        .create(&node.desired_volume("huge", Bytes::gib(2)))
        .await;
    let refused = has_condition(ConditionType::Admitted, "False", "TooLarge");
    let object = node
        .until(&object.name_any(), "to be refused", refused)
        .await;
    let status = status(&object);
    assert!(status.conditions[0].message.contains("2Gi"), "{status:?}");
    assert_eq!((status.reserved, status.size), (None, None));
    node.force_delete(&object.name_any()).await;
    node.finish().await;
}

#[tokio::test]
async fn r22_an_unreadable_object_blocks_only_requests_for_space() {
    // A control plane of its own, which accepts such an object.
    let control_plane = ControlPlane::start().await;
    let node = Fixture::start_with(&control_plane, "agent-unreadable").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let mut odd = serde_json::to_value(node.desired_volume("odd", Bytes::mib(64))).unwrap();
    odd["spec"]["size"] = UNREADABLE_SIZE.into();
    let odd: DynamicObject = serde_json::from_value(odd).unwrap();
    let kind = ApiResource::erase::<PoolVolume>(&());
    let odds: Api<DynamicObject> = Api::all_with(node.volumes.clone().into_client(), &kind);
    control_plane.accept_each_size::<PoolVolume>().await;
    let parameters = PostParams::default();
    let created = objects::accepted(async || odds.create(&parameters, &odd).await).await;
    let name = created.name_any();

    let closed = |pool: &cistern_crds::NodePoolStatus| pool.thin_room == Bytes::ZERO;
    let pool = node.pool_until("to close", closed).await;
    assert!(
        pool.is_ready() && pool.conditions[0].message.contains(&name),
        "{pool:?}"
    );
    let late = node
        .create(&node.desired_volume("late", Bytes::mib(64)))
        .await;
    let refused = has_condition(ConditionType::Admitted, "False", "PoolNotReady");
    node.until(&late.name_any(), "to be refused", refused).await;
    node.force_delete(&late.name_any()).await;
    node.remove(&one.name_any()).await;

    let patch = serde_json::json!({"metadata": {"finalizers": []}});
    let patch = Patch::Merge(patch);
    odds.patch(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    odds.delete(&name, &DeleteParams::default()).await.unwrap();
    let open = |pool: &cistern_crds::NodePoolStatus| pool.thin_room > Bytes::ZERO;
    node.pool_until("to open", open).await;
    node.finish().await;
}
