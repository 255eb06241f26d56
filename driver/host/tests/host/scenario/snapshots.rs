//! Steps of snapshots, and of volumes that are restored from one.

use std::{error::Error, path::Path};

use chrono::Utc;
use cistern_host::{ImageRequest, Pool, Root, SourceImage, copy::CopyRequest};
use cistern_types::{Consistency, ExtentLimits};

use super::{
    GROWN, Step, Volumes as _, device, online_volume, snapshot_member, stage_block, uid, volume,
};

/// A larger volume that is restored from a snapshot of the volume with XFS.
fn restored() -> ImageRequest {
    ImageRequest {
        volume: "pvc-d".to_owned(),
        uid: uid("uid-d"),
        size: GROWN,
        source: Some(SourceImage {
            uid: uid("uid-s"),
            extent_limits: ExtentLimits::number(u64::MAX),
        }),
        ..online_volume()
    }
}

/// Takes a step of snapshots.
pub(super) fn take(
    step: Step,
    root: &Root,
    pool: &Pool,
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    let (group, staging) = (device(folder), folder.join("kubelet/device"));
    match step {
        Step::SnapshotFrozen => {
            let member = snapshot_member(pool, &volume(), "s");
            root.take_snapshots(&[member], Consistency::Filesystem, Utc::now)?;
        }
        Step::PrepareGroup => {
            pool.new_image(&group)?;
            stage_block(pool, &group, &staging)?;
        }
        Step::DismissGroup => {
            root.unstage(&staging)?;
            pool.remove_image(&group.uid)?;
        }
        Step::RemoveSnapshots => {
            pool.remove_image(&uid("uid-s"))?;
            pool.remove_image(&uid("uid-t"))?;
        }
        _ => {
            let members = [
                snapshot_member(pool, &volume(), "s"),
                snapshot_member(pool, &group, "t"),
            ];
            root.take_snapshots(&members, Consistency::Crash, Utc::now)?;
        }
    }
    Ok(())
}

/// Takes a step of a restore.
pub(super) fn restore(step: Step, root: &Root, pool: &Pool) -> Result<(), Box<dyn Error>> {
    match step {
        Step::Restore => drop(pool.new_image(&restored())?),
        Step::Receive => receive(pool)?,
        Step::RemoveRestored => pool.remove_image(&restored().uid)?,
        Step::RemoveSource => {
            pool.remove_image(&online_volume().uid)?;
            pool.remove_image(&uid("uid-s"))?;
        }
        _ => {
            pool.new_image(&online_volume())?;
            let member = snapshot_member(pool, &online_volume(), "s");
            root.take_snapshots(&[member], Consistency::Crash, Utc::now)?;
        }
    }
    Ok(())
}

/// Receives a copy of the snapshot, synced after each chunk, and creates the volume from it.
fn receive(pool: &Pool) -> Result<(), Box<dyn Error>> {
    let request = CopyRequest {
        volume: restored().uid,
        original: pool.send(&uid("uid-s"), 0)?.original().clone(),
        extent_size: None,
        point_for: None,
        base: None,
    };
    let mut incoming = pool.receive(&request)?;
    for chunk in pool.send(&uid("uid-s"), incoming.written().0)? {
        if let Some(chunk) = chunk? {
            incoming.write(&chunk)?;
            incoming.sync()?;
        }
    }
    incoming.complete()?;
    pool.new_image(&restored())?;
    Ok(())
}
