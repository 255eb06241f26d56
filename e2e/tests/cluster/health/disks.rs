//! Disks that are removed, that fail, and that hang.

use cistern_crds::Bytes;
use cistern_e2e::{Harness, Test, cluster::Disk};
use failing_disk::Mode;
use serde_json::json;

use super::{HEALTHY, Patient};

const DISK: Bytes = Bytes::gib(1);
/// Reasons for a failing disk: the probe fails immediately, the filesystem when it writes its log.
const FAILED: [&str; 2] = ["ProbeFailed", "FilesystemShutDown"];

/// A pod that writes to a volume of a pool on a disk.
async fn on_a_disk(test: &Test, harness: Harness, slot: u32) -> (Disk, Patient) {
    let [node, ..] = test.cluster.workers().await;
    let disk = Disk::plug_in(test, harness, &node, DISK, slot).await;
    let source = json!({"device": {"paths": disk.names()}});
    let patient = Patient::start(test, harness, &node, source).await;
    (disk, patient)
}

#[tokio::test]
async fn a_removed_disk_is_reported_and_has_all_data_after_it_is_reinserted() {
    let Some(harness) = Harness::or_skip("a disk that is pulled out") else {
        return;
    };
    Test::run("pulled", async |test| {
        let (disk, patient) = on_a_disk(test, harness, 0).await;
        let written = test.written("writer").await;
        disk.pull_out().await;
        patient.pool_is(test, &FAILED).await;
        patient
            .pool_is_reported(test, "PoolUnreachable", "unreachable")
            .await;
        patient.volume_is(test, "PoolNotReady").await;
        patient
            .volume_is_reported(test, "VolumeInaccessible", "inaccessible")
            .await;
        patient.neighbour_is_healthy(test, "another").await;
        patient.pod_goes(test).await;

        disk.put_back().await;
        patient.pool_is(test, &[HEALTHY]).await;
        patient.pod_comes_back(test, written).await;
        patient.volume_has_recovered(test).await;
    })
    .await;
}

#[tokio::test]
async fn a_failing_disk_is_reported_and_used_again_after_it_recovers() {
    let Some(harness) = Harness::or_skip("a disk that fails") else {
        return;
    };
    Test::run("failing", async |test| {
        let (disk, patient) = on_a_disk(test, harness, 1).await;
        let written = test.written("writer").await;
        disk.set(Mode::Eio).await;
        patient.pool_is(test, &FAILED).await;
        patient
            .pool_is_reported(test, "PoolUnreachable", "unreachable")
            .await;
        patient.volume_is(test, "PoolNotReady").await;
        patient
            .volume_is_reported(test, "VolumeInaccessible", "inaccessible")
            .await;
        patient.neighbour_is_healthy(test, "another").await;
        patient.pod_goes(test).await;

        disk.set(Mode::Ok).await;
        patient.pool_is(test, &[HEALTHY]).await;
        patient.pod_comes_back(test, written).await;
        patient.volume_has_recovered(test).await;
    })
    .await;
}

#[tokio::test]
async fn a_hanging_disk_does_not_block_other_pools_and_its_pod_continues_when_it_answers() {
    let Some(harness) = Harness::or_skip("a disk that hangs") else {
        return;
    };
    Test::run("hanging", async |test| {
        let (disk, patient) = on_a_disk(test, harness, 2).await;
        disk.set(Mode::Hang).await;
        patient.pool_is(test, &["ProbeTimedOut"]).await;
        patient
            .pool_is_reported(test, "PoolUnreachable", "unreachable")
            .await;
        patient.volume_is(test, "PoolNotReady").await;
        patient
            .volume_is_reported(test, "VolumeInaccessible", "inaccessible")
            .await;
        patient.neighbour_is_healthy(test, "another").await;

        disk.set(Mode::Ok).await;
        patient.pool_is(test, &[HEALTHY]).await;
        patient.volume_has_recovered(test).await;
        test.writes_go_on("writer").await;
    })
    .await;
}
