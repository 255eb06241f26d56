//! Calls to a pool whose disk does not answer.

use std::{path::PathBuf, time::Duration};

use cistern_crds::{Bytes, ConditionType, NodePoolStatus};
use cistern_e2e::{eventually, requests::create_volume};
use cistern_proto::csi::v1::{
    CreateSnapshotRequest, DeleteVolumeRequest, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse,
};
use failing_disk::Mode;
use kube::ResourceExt as _;
use tonic::{Code, Request, Status};

use super::{disk::Disk, is_healthy, is_unreachable};
use crate::{
    Fixture, SOON, has_condition,
    node_service::{KubeletVolume, code, text},
};

/// How long the callers wait for an answer.
const DEADLINE: Duration = Duration::from_secs(4);

/// A request with the deadline [`DEADLINE`].
fn with_deadline<T>(request: T) -> Request<T> {
    let mut request = Request::new(request);
    request.set_timeout(DEADLINE);
    request
}

impl Fixture {
    async fn statistics_of(
        &self,
        kubelet: &KubeletVolume<'_>,
    ) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: kubelet.volume.clone(),
            volume_path: text(&kubelet.staging),
            ..NodeGetVolumeStatsRequest::default()
        };
        let mut client = self.driver.node_client().await;
        let answer = client.node_get_volume_stats(request).await;
        answer.map(tonic::Response::into_inner)
    }

    async fn create_in(&self, pool: &str, name: &str) -> Result<(), Status> {
        let request = create_volume(name, pool, Bytes::mib(64));
        let mut client = self.driver.controller_client().await;
        client.create_volume(with_deadline(request)).await.map(drop)
    }

    async fn snapshot_of(&self, volume: &str) -> Result<(), Status> {
        let request = CreateSnapshotRequest {
            name: format!("of-{volume}"),
            source_volume_id: volume.to_owned(),
            ..CreateSnapshotRequest::default()
        };
        let mut client = self.driver.controller_client().await;
        client
            .create_snapshot(with_deadline(request))
            .await
            .map(drop)
    }

    async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = DeleteVolumeRequest {
            volume_id: volume.to_owned(),
            ..DeleteVolumeRequest::default()
        };
        let mut client = self.driver.controller_client().await;
        client.delete_volume(with_deadline(request)).await.map(drop)
    }
}

// Shows: NGS-07: also for a volume whose disk does not answer.
#[tokio::test]
async fn con_08_gen_09_calls_to_a_disk_that_hangs_fail_while_another_pool_serves_and_succeed_once_it_recovers()
 {
    let node = Fixture::probing_often("agent-hanging-calls").await;
    let disk = Disk::attach(&node).await;
    let staged = disk.volume(&node, "staged").await;
    let unstaged = disk.volume(&node, "unstaged").await;
    let staged = KubeletVolume::at(&node, &staged, "of-staged");
    let unstaged = KubeletVolume::at(&node, &unstaged, "of-unstaged");
    staged.stage(&[]).await.unwrap();
    let leaving = disk.volume(&node, "leaving").await;
    let leaving = KubeletVolume::at(&node, &leaving, "of-leaving");
    leaving.stage(&[]).await.unwrap();
    leaving.publish("pod", &[], false).await.unwrap();
    let other = node.volume("other", Bytes::mib(64)).await;
    let other = KubeletVolume::at(&node, &other, "of-other");

    disk.set(Mode::Hang);
    // The call that waits for the disk does not block calls for the other pool.
    let hung = unstaged.stage_within(DEADLINE);
    let free = async {
        other.stage(&[]).await.unwrap();
        other.publish("target", &[], false).await.unwrap();
        other.unpublish("target").await.unwrap();
        other.unstage().await.unwrap();
    };
    let (hung, ()) = tokio::join!(hung, free);
    assert_ne!(hung.map_err(|status| status.code()), Ok(()));
    let hangs = |pool: &NodePoolStatus| is_unreachable(pool, "ProbeTimedOut");
    disk.pool_until(&node, "to be unreachable", hangs).await;
    for (what, answer) in [
        (
            "CreateVolume",
            node.create_in(disk.pool(), "too-early").await,
        ),
        ("CreateSnapshot", node.snapshot_of(&staged.volume).await),
        ("DeleteVolume", node.delete(&unstaged.volume).await),
    ] {
        assert_ne!(code(answer), Code::Ok, "{what}");
    }
    let not_ready = has_condition(ConditionType::Healthy, "False", "PoolNotReady");
    node.until(&staged.volume, "to be inaccessible", not_ready)
        .await;
    let answer = node.statistics_of(&staged).await.unwrap();
    assert!(answer.volume_condition.unwrap().abnormal);
    // The unmount waits for the disk. The caller has no deadline here, so the driver's own ends the call.
    leaving.unpublish("pod").await.unwrap();
    let unfinished = leaving.unstage_once().await.unwrap_err();
    assert_eq!(unfinished.code(), Code::DeadlineExceeded, "{unfinished}");
    let says_why = unfinished.message().contains("has not ended after");
    assert!(says_why, "{unfinished}");

    disk.set(Mode::Ok);
    // The repeat waits for the end of that unmount.
    leaving.unstage().await.unwrap();
    let mounts = node.driver.mounts_below(&leaving.staging);
    assert_eq!(mounts, Vec::<PathBuf>::new());
    disk.pool_until(&node, "to recover", is_healthy).await;
    eventually("the volume to be created", SOON, async || {
        let created = node.create_in(disk.pool(), "too-early").await;
        created.map_err(|status| status.to_string())
    })
    .await;
    eventually("the snapshot to be taken", SOON, async || {
        let created = node.snapshot_of(&staged.volume).await;
        created.map_err(|status| status.to_string())
    })
    .await;
    staged.unstage().await.unwrap();
    unstaged.unstage().await.unwrap();
    eventually("the volume to be deleted", SOON, async || {
        let deleted = node.delete(&unstaged.volume).await;
        deleted.map_err(|status| status.to_string())
    })
    .await;
    let left = node.volumes.get_opt(&unstaged.volume).await.unwrap();
    assert_eq!(left.map(|object| object.name_any()), None);
    node.remove_snapshots().await;
    disk.detach(&node).await;
    node.finish().await;
}
