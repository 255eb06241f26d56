//! Pools and images that an administrator changed by mistake.

use cistern_e2e::{Harness, Test};
use serde_json::json;

use super::{HEALTHY, Patient};

async fn in_a_file(test: &Test, harness: Harness) -> Patient {
    let [node, ..] = test.cluster.workers().await;
    let source = json!({"image": {"size": "1Gi"}});
    Patient::start(test, harness, &node, source).await
}

#[tokio::test]
async fn a_pool_that_is_remounted_read_only_takes_nothing_new_until_it_can_be_written_again() {
    let Some(harness) = Harness::or_skip("a pool remounted read-only") else {
        return;
    };
    Test::run("pool-read-only", async |test| {
        let patient = in_a_file(test, harness).await;
        // A process with an image open for writing prevents the remount.
        let written = test.written("writer").await;
        patient.pod_goes(test).await;
        let folder = &patient.folder;
        // A process in the folder prevents a new mount.
        let stay = format!(
            "systemd-run --quiet --collect --unit=stays --working-directory={folder} sleep 1h
             for attempt in $(seq 3000); do
               ! mount -o remount,ro {folder} 2>/dev/null || exit 0; sleep 0.1
             done; exit 1"
        );
        let leave = "systemctl stop stays 2>/dev/null || true";
        test.if_it_fails(harness, &patient.node, leave);
        patient.shell(&stay).await;
        patient.pool_is(test, &["ReadOnly"]).await;
        patient
            .pool_is_reported(test, "PoolUnreachable", "unreachable")
            .await;
        patient.neighbour_is_healthy(test, "another").await;

        patient.shell(leave).await;
        patient.pool_is(test, &[HEALTHY]).await;
        patient.pod_comes_back(test, written).await;
        patient.volume_is(test, HEALTHY).await;
    })
    .await;
}

#[tokio::test]
async fn an_image_that_is_removed_under_its_pod_is_reported_while_it_can_be_recovered() {
    let Some(harness) = Harness::or_skip("an image that is removed") else {
        return;
    };
    Test::run("removed", async |test| {
        let patient = in_a_file(test, harness).await;
        let kept = format!("{}/kept", patient.folder);
        let remove = format!("ln {0} {kept}; rm {0}", patient.image);
        patient.shell(&remove).await;
        patient.volume_is(test, "ImageDeleted").await;
        patient
            .volume_is_reported(test, "VolumeDataLoss", "data_loss")
            .await;
        patient.pool_is(test, &[HEALTHY]).await;
        patient.neighbour_is_healthy(test, "another").await;
        let written = test.writes_go_on("writer").await;
        patient.pod_goes(test).await;
        patient.volume_is(test, "ImageMissing").await;

        patient.shell(&format!("mv {kept} {}", patient.image)).await;
        patient.volume_is(test, HEALTHY).await;
        patient.pod_comes_back(test, written).await;
        patient.volume_has_recovered(test).await;
    })
    .await;
}

#[tokio::test]
async fn a_truncated_image_is_reported_until_its_size_is_restored() {
    let Some(harness) = Harness::or_skip("an image of the wrong size") else {
        return;
    };
    Test::run("cut", async |test| {
        let patient = in_a_file(test, harness).await;
        // In a range that the filesystem does not use yet.
        let resize = async |change: &str| {
            let script = format!("truncate --size {change}4M {}", patient.image);
            patient.shell(&script).await;
        };
        resize("-").await;
        patient.volume_is(test, "ImageTooSmall").await;
        patient
            .volume_is_reported(test, "VolumeDataLoss", "data_loss")
            .await;
        patient.pool_is(test, &[HEALTHY]).await;
        patient.neighbour_is_healthy(test, "another").await;
        let written = test.written("writer").await;
        patient.pod_goes(test).await;

        resize("+").await;
        patient.volume_is(test, HEALTHY).await;
        patient.pod_comes_back(test, written).await;
    })
    .await;
}

#[tokio::test]
async fn a_filesystem_that_becomes_read_only_under_its_pod_is_reported_until_it_is_mounted_anew() {
    let Some(harness) = Harness::or_skip("a filesystem that becomes read-only") else {
        return;
    };
    Test::run("volume-read-only", async |test| {
        let patient = in_a_file(test, harness).await;
        // As the kernel does on write errors. A concurrent write prevents the remount.
        let remount = format!(
            "at=$(findmnt --noheadings --list --output TARGET \
                 | grep \"/$(printf {} | sha256sum | cut -d ' ' -f 1)/globalmount\")
             for attempt in $(seq 3000); do
               ! mount -o remount,ro $at 2>/dev/null || exit 0; sleep 0.1
             done; exit 1",
            patient.volume
        );
        let written = test.written("writer").await;
        patient.shell(&remount).await;
        patient.volume_is(test, "MountReadOnly").await;
        patient
            .volume_is_reported(test, "VolumeDegraded", "degraded")
            .await;
        patient.pool_is(test, &[HEALTHY]).await;
        patient.neighbour_is_healthy(test, "another").await;
        patient.pod_goes(test).await;

        patient.pod_comes_back(test, written).await;
        patient.volume_has_recovered(test).await;
    })
    .await;
}
