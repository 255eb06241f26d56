//! Lists the allocated and the changed ranges of a large fragmented volume at the CSI socket, as a backup does,
//! beside the kernel's own count of the extents.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cistern_crds::PoolSnapshot;
use cistern_e2e::{
    ControlPlane, Driver,
    measure::{milliseconds, percentile},
    process::{command, output},
};
use cistern_proto::csi::v1::{GetMetadataAllocatedRequest, GetMetadataDeltaRequest};
use kube::{Api, ResourceExt as _};

use crate::{Figure, snapshots, snapshots::Image, staging};

/// Size of the volume in gibibytes, and number of extents of its data.
const IMAGE: (u64, u64) = (1024, 100_000);
/// One of this many extents is written between two snapshots.
const CHANGED: u64 = 2;
const ROUNDS: usize = 5;

/// Measures the milliseconds until all ranges are listed.
pub(crate) async fn figures(
    control_plane: &ControlPlane,
    driver: &Driver,
    pool: &Path,
) -> [Figure; 2] {
    let image = Image::new(control_plane, driver, pool, IMAGE).await;
    let base = snapshots::snapshot(driver, &image.volume, "changes-base").await;
    image.write_pieces(driver, CHANGED).await;
    let target = snapshots::snapshot(driver, &image.volume, "changes-target").await;
    staging::unmount(driver, &image.volume).await;

    let files = [
        file(control_plane, pool, &base).await,
        file(control_plane, pool, &target).await,
    ];
    let [mut delta, mut allocated, mut both, mut one] = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        both.push(count(&files).await);
        delta.push(changes(driver, &base, &target).await);
        one.push(count(&files[1..]).await);
        allocated.push(holds(driver, &target).await);
    }
    let figure = |what: &str, aim, ours: Vec<f64>, beside: Vec<f64>| {
        let (ours, beside) = (percentile(&ours, 50), percentile(&beside, 50));
        Figure {
            what: format!("{what}, {image}"),
            ours: format!("{ours:.0} ms"),
            beside: format!("filefrag of the same {beside:.0} ms"),
            ratio: Some(ours / beside),
            aim,
        }
    };
    [
        figure("GetMetadataDelta", "<= 1000 ms", delta, both),
        figure("GetMetadataAllocated", "", allocated, one),
    ]
}

async fn changes(driver: &Driver, base: &str, target: &str) -> f64 {
    let request = GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        ..GetMetadataDeltaRequest::default()
    };
    let mut client = driver.metadata_client().await;
    let started = Instant::now();
    let answer = client.get_metadata_delta(request).await;
    let mut messages = answer.expect("both are there").into_inner();
    let mut listed = 0;
    while let Some(message) = messages.message().await.expect("nothing breaks off") {
        listed += message.block_metadata.len();
    }
    let elapsed = milliseconds(started);
    assert_eq!(listed as u64, IMAGE.1 / CHANGED);
    elapsed
}

async fn holds(driver: &Driver, snapshot: &str) -> f64 {
    let request = GetMetadataAllocatedRequest {
        snapshot_id: snapshot.to_owned(),
        ..GetMetadataAllocatedRequest::default()
    };
    let mut client = driver.metadata_client().await;
    let started = Instant::now();
    let answer = client.get_metadata_allocated(request).await;
    let mut messages = answer.expect("it is there").into_inner();
    let mut listed = 0;
    while let Some(message) = messages.message().await.expect("nothing breaks off") {
        listed += message.block_metadata.len();
    }
    let elapsed = milliseconds(started);
    assert_eq!(listed as u64, IMAGE.1);
    elapsed
}

/// Lets the kernel read the extents of files.
async fn count(files: &[PathBuf]) -> f64 {
    let mut filefrag = command("filefrag");
    filefrag.args(files);
    let started = Instant::now();
    output(filefrag, Duration::from_mins(1)).await;
    milliseconds(started)
}

/// Returns the path of a snapshot's image.
async fn file(control_plane: &ControlPlane, pool: &Path, snapshot: &str) -> PathBuf {
    let snapshots: Api<PoolSnapshot> = Api::all(control_plane.client());
    let found = snapshots.get(snapshot).await.expect("it was cut");
    pool.join("images").join(found.uid().expect("it has one"))
}
