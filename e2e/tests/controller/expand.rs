//! ControllerExpandVolume.

use std::time::Duration;

use cistern_crds::{Bytes, PoolVolume, Reason};
use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1::{
    self,
    volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tonic::Code;

use crate::{
    Client,
    cluster::{Cluster, PATIENCE, SHORT, aborted},
    create, expand, expand_as,
    history::History,
    request,
};

const ONE: Bytes = Bytes::gib(1);
const TWO: Bytes = Bytes::gib(2);

/// Creates a ready volume of 1 GiB with the name of the pool on node `a`.
async fn create_ready(cluster: &Cluster, client: Client) -> PoolVolume {
    let name = &cluster.pool;
    let asked = tokio::spawn(create(client, request(name, name), PATIENCE));
    let volume = cluster.make(name, "a").await;
    asked.await.unwrap().unwrap();
    volume
}

/// Calls ControllerExpandVolume for 2 GiB in the background.
async fn ask(
    replica: &Replica,
    name: &str,
    timeout: Duration,
) -> tokio::task::JoinHandle<Result<v1::ControllerExpandVolumeResponse, tonic::Status>> {
    let (client, name) = (replica.client().await, name.to_owned());
    tokio::spawn(async move { expand(client, &name, TWO, timeout).await })
}

// Shows: CEV-13, CEV-14.
#[tokio::test]
async fn cev_08_cev_09_cev_10_cev_11_cev_12_a_growth_takes_three_writes_and_a_repeat_none() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "grows", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    let history = History::of(&cluster.volumes, "grows").await;

    let asked = ask(&replica, "grows", PATIENCE).await;
    let expanding = cluster.with_size("grows", TWO).await;
    let admitted = cluster.admit(&expanding).await.unwrap();
    cluster.finish(&admitted).await.unwrap();
    let expected = v1::ControllerExpandVolumeResponse {
        capacity_bytes: TWO.to_i64(),
        node_expansion_required: true,
    };
    assert_eq!(asked.await.unwrap().unwrap(), expected);
    // CEV-13, CEV-14: the volume is large enough for smaller and equal sizes.
    for size in [TWO, ONE, Bytes::mib(1), Bytes::mib(1500)] {
        let again = expand(replica.client().await, "grows", size, PATIENCE).await;
        assert_eq!(again.unwrap(), expected);
    }
    assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
    // CreateVolume still returns the volume.
    let again = create(replica.client().await, request("grows", "grows"), PATIENCE).await;
    assert_eq!(again.unwrap().capacity_bytes, TWO.to_i64());
}

// Shows: CEV-03, CEV-04, CEV-05, CEV-13, CV-24.
#[tokio::test]
async fn cev_02_to_cev_07_and_gap_12_an_invalid_request_is_refused_with_its_code_and_changes_nothing()
 {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "cev-codes", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let before = create_ready(&cluster, replica.client().await).await;

    let good = v1::ControllerExpandVolumeRequest {
        volume_id: "cev-codes".to_owned(),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: TWO.to_i64(),
            limit_bytes: 0,
        }),
        ..v1::ControllerExpandVolumeRequest::default()
    };
    let with_range = |required_bytes, limit_bytes| v1::ControllerExpandVolumeRequest {
        capacity_range: Some(v1::CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        ..good.clone()
    };
    let with_id = |id: &str| v1::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        ..good.clone()
    };
    let with_type = |access_type, mode: Mode| v1::ControllerExpandVolumeRequest {
        volume_capability: Some(v1::VolumeCapability {
            access_type,
            access_mode: Some(AccessMode { mode: mode.into() }),
        }),
        ..good.clone()
    };
    let xfs = AccessType::Mount(MountVolume {
        fs_type: "xfs".to_owned(),
        ..MountVolume::default()
    });
    let mount = AccessType::Mount(MountVolume::default());
    let no_range = v1::ControllerExpandVolumeRequest {
        capacity_range: None,
        ..good.clone()
    };
    let one = ONE.to_i64();
    for (row, request, code) in [
        ("CEV-02", with_id(""), Code::InvalidArgument),
        ("CEV-03", no_range, Code::InvalidArgument),
        ("GAP-12", with_range(0, 0), Code::InvalidArgument),
        ("negative", with_range(-1, 0), Code::InvalidArgument),
        ("CV-24", with_range(2 * one, one), Code::InvalidArgument),
        ("CEV-04", with_id("unknown"), Code::NotFound),
        ("CEV-04", with_id("../nodes/a"), Code::NotFound),
        (
            "CEV-05: block",
            with_type(
                Some(AccessType::Block(BlockVolume {})),
                Mode::SingleNodeWriter,
            ),
            Code::InvalidArgument,
        ),
        (
            "CEV-05: another filesystem",
            with_type(Some(xfs), Mode::SingleNodeWriter),
            Code::InvalidArgument,
        ),
        (
            "CEV-05: many nodes",
            with_type(Some(mount), Mode::MultiNodeMultiWriter),
            Code::InvalidArgument,
        ),
        (
            "CEV-07: nothing in the range",
            with_range(one + 1, one + 2),
            Code::OutOfRange,
        ),
        (
            "CEV-07: overflow",
            with_range(i64::MAX, 0),
            Code::OutOfRange,
        ),
        ("CEV-13: smaller", with_range(0, one / 2), Code::OutOfRange),
    ] {
        let status = expand_as(replica.client().await, request, PATIENCE)
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{row}: {status}");
        assert!(status.details().is_empty() && !status.message().is_empty());
    }
    let enough = expand_as(replica.client().await, with_range(0, one), PATIENCE).await;
    assert_eq!(enough.unwrap().capacity_bytes, one);
    let now = cluster.placed("cev-codes", "a").await;
    assert_eq!(
        now.metadata.resource_version,
        before.metadata.resource_version
    );
}

#[tokio::test]
async fn cev_07_a_refused_growth_names_what_would_fit_and_leaves_nothing_behind() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "refused", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    for reason in [Reason::NoSpace, Reason::TooLarge, Reason::PoolClosed] {
        let asked = ask(&replica, "refused", PATIENCE).await;
        let expanding = cluster.with_size("refused", TWO).await;
        cluster.refuse_growth(&expanding, reason).await;
        let status = asked.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        assert!(status.message().contains("can grow to 1536Mi"), "{status}");
        let now = cluster.placed("refused", "a").await;
        let held = now.status.unwrap();
        assert_eq!(
            (now.spec.size, held.reserved, held.size),
            (ONE, Some(ONE), Some(ONE))
        );
    }
    // A size that fits succeeds.
    let client = replica.client().await;
    let fits = Bytes::mib(1536);
    let asked = tokio::spawn(async move { expand(client, "refused", fits, PATIENCE).await });
    let expanding = cluster.with_size("refused", fits).await;
    cluster.finish(&expanding).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap().capacity_bytes, fits.to_i64());
}

#[tokio::test]
async fn r02_a_refused_size_that_a_killed_controller_left_behind_is_reset_and_requested_again() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "left-behind", &[("a", 5)]).await;
    let (mut first, second) = (
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    );
    create_ready(&cluster, second.client().await).await;
    let asked = ask(&first, "left-behind", PATIENCE).await;
    let expanding = cluster.with_size("left-behind", TWO).await;
    first.service().kill();
    asked.await.unwrap().unwrap_err();
    cluster.refuse_growth(&expanding, Reason::NoSpace).await;

    // The volume now fits.
    let history = History::of(&cluster.volumes, "left-behind").await;
    let asked = ask(&second, "left-behind", PATIENCE).await;
    let again = cistern_e2e::eventually("the size to be requested again", PATIENCE, async || {
        let found = cluster.with_size("left-behind", TWO).await;
        if found.metadata.generation > expanding.metadata.generation {
            Ok(found)
        } else {
            Err(format!("{:?}", found.metadata))
        }
    })
    .await;
    cluster.finish(&again).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap().capacity_bytes, TWO.to_i64());
    // The size is reset, requested again, and reached.
    assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
}

#[tokio::test]
async fn con_05_a_growth_waits_for_a_slow_agent_and_another_replica_continues_it() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "slow-growth", &[("a", 5)]).await;
    let (mut first, second) = (
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    );
    create_ready(&cluster, first.client().await).await;
    aborted("to make it larger", async || {
        expand(first.client().await, "slow-growth", TWO, SHORT).await
    })
    .await;
    let expanding = cluster.with_size("slow-growth", TWO).await;
    first.service().kill();

    let history = History::of(&cluster.volumes, "slow-growth").await;
    let admitted = cluster.admit(&expanding).await.unwrap();
    let asked = ask(&second, "slow-growth", PATIENCE).await;
    cluster.finish(&admitted).await.unwrap();
    assert_eq!(asked.await.unwrap().unwrap().capacity_bytes, TWO.to_i64());
    assert_eq!(history.writes(|states| states.len() >= 2).await, 2);
}

#[tokio::test]
async fn a_growth_on_a_silent_node_is_answered_immediately_and_continues_when_the_node_is_back() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "silent-growth", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    let asked = ask(&replica, "silent-growth", Duration::from_hours(1)).await;
    let expanding = cluster.with_size("silent-growth", TWO).await;
    cluster.silence("a").await;
    cluster.assert_silent("a", asked.await.unwrap());

    cluster.wake("a").await;
    let admitted = cluster.admit(&expanding).await.unwrap();
    cluster.finish(&admitted).await.unwrap();
    let asked = ask(&replica, "silent-growth", PATIENCE).await;
    assert_eq!(asked.await.unwrap().unwrap().capacity_bytes, TWO.to_i64());
}

#[tokio::test]
async fn a_growth_in_a_pool_that_is_not_ready_is_answered_soon_and_continues_when_it_is_back() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "dead-growth", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    let asked = ask(&replica, "dead-growth", Duration::from_hours(1)).await;
    let expanding = cluster.with_size("dead-growth", TWO).await;
    cluster.report_broken("a", "dead-growth", &[]).await;
    cluster.assert_not_ready("a", asked.await.unwrap());

    cluster.set_room("a", 5).await;
    let admitted = cluster.admit(&expanding).await.unwrap();
    cluster.finish(&admitted).await.unwrap();
    let asked = ask(&replica, "dead-growth", PATIENCE).await;
    assert_eq!(asked.await.unwrap().unwrap().capacity_bytes, TWO.to_i64());
}

#[tokio::test]
async fn a_growth_that_ends_while_a_call_for_it_begins_is_answered_without_another_change() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "ends-early", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    for round in 1..=16 {
        // As another replica leaves it.
        let size = ONE.saturating_add(Bytes::mib(round));
        let patch = Patch::Merge(json!({"spec": {"size": size}}));
        let parameters = PatchParams::default();
        let patched = cluster.volumes.patch("ends-early", &parameters, &patch);
        let admitted = cluster.admit(&patched.await.unwrap()).await.unwrap();
        let client = replica.client().await;
        let asked = tokio::spawn(async move { expand(client, "ends-early", size, PATIENCE).await });
        // The delay changes with the rounds, so that the growth ends at each step of the call.
        tokio::time::sleep(Duration::from_micros(round * 500)).await;
        cluster.finish(&admitted).await.unwrap();
        assert_eq!(asked.await.unwrap().unwrap().capacity_bytes, size.to_i64());
    }
}

#[tokio::test]
async fn con_06_r13_many_calls_at_two_replicas_make_one_growth() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "growing-crowd", &[("a", 5)]).await;
    let replicas = [
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    ];
    create_ready(&cluster, replicas[0].client().await).await;
    let history = History::of(&cluster.volumes, "growing-crowd").await;
    let mut calls = Vec::new();
    for number in 0..16 {
        calls.push(ask(&replicas[number % 2], "growing-crowd", PATIENCE).await);
    }
    let expanding = cluster.with_size("growing-crowd", TWO).await;
    let admitted = cluster.admit(&expanding).await.unwrap();
    cluster.finish(&admitted).await.unwrap();
    let mut grown = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(answer) => {
                assert_eq!(answer.capacity_bytes, TWO.to_i64());
                grown += 1;
            }
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    assert!(grown >= 1);
    assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
}

#[tokio::test]
async fn two_replicas_that_are_refused_together_both_return_the_error_and_the_size_is_reset() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "twice-refused", &[("a", 5)]).await;
    let replicas = [
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    ];
    create_ready(&cluster, replicas[0].client().await).await;
    let mut calls = Vec::new();
    for replica in &replicas {
        calls.push(ask(replica, "twice-refused", PATIENCE).await);
    }
    // Refuses each request until both replicas have returned the error.
    let refusing = async {
        loop {
            let expanding = cluster.with_size("twice-refused", TWO).await;
            if expanding.refused_growth().is_none() {
                cluster.refuse_growth(&expanding, Reason::NoSpace).await;
            }
        }
    };
    let answers = async {
        for call in calls {
            let status = call.await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::OutOfRange, "{status}");
        }
    };
    tokio::select! {
        () = refusing => {}
        () = answers => {}
    }
    assert_eq!(cluster.placed("twice-refused", "a").await.spec.size, ONE);
}

#[tokio::test]
async fn a_volume_that_is_being_deleted_does_not_grow() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "ending", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    let deletion = Patch::Merge(json!({"spec": {"deletionRequested": true}}));
    let parameters = PatchParams::default();
    let patched = cluster.volumes.patch("ending", &parameters, &deletion);
    patched.await.unwrap();
    let status = expand(replica.client().await, "ending", TWO, PATIENCE)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    assert_eq!(cluster.unwanted("ending").await.spec.size, ONE);
}

#[tokio::test]
async fn a_size_is_reset_to_the_reserved_size_and_no_further() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "floor", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    let set = async |size: &str| {
        let patch = Patch::Merge(json!({"spec": {"size": size}}));
        let parameters = PatchParams::default();
        cluster.volumes.patch("floor", &parameters, &patch).await
    };
    for size in ["3Gi", "2Gi", "1Gi", "3Gi"] {
        set(size).await.unwrap();
    }
    let error = set("1023Mi").await.unwrap_err();
    assert!(
        error.to_string().contains("smaller than its reservation"),
        "{error}"
    );
    let now = cluster.placed("floor", "a").await;
    cluster.admit(&now).await.unwrap();
    let error = set("2Gi").await.unwrap_err();
    assert!(
        error.to_string().contains("smaller than its reservation"),
        "{error}"
    );
}
