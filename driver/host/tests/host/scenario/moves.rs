//! Steps of volumes that move, as if they were on another node.

use std::{error::Error, fs, os::unix::fs::FileExt as _, path::Path};

use chrono::Utc;
use cistern_host::{
    Pool, Root, Uid,
    copy::{CopyRequest, PromotedVolume},
};
use cistern_types::{Consistency, ExtentSize, Provisioning};

use super::{Step, Volumes as _, device, path_in, snapshot_member, uid, volume};

/// UID of the move.
const MOVE: &str = "a1b2c3d4-0000-4000-8000-000000000001";

/// The name of the copy of the volume that moves.
fn copied() -> Uid {
    uid("uid-copied")
}

/// Takes a step of a move of the volume.
pub(super) fn move_volume(step: Step, pool: &Pool) -> Result<(), Box<dyn Error>> {
    let (image, by) = (volume().uid, uid(MOVE));
    match step {
        Step::BeginClosing => pool.begin_closing(&image, &by)?,
        Step::Close => pool.close(&image, &by)?,
        Step::Reopen => pool.reopen(&image, &by)?,
        Step::RemoveClosed => pool.remove_closed(&image, &by)?,
        Step::OpenCopy => drop(pool.open_copy(&image, &volume().volume, &by)?),
        _ => {
            pool.begin_closing(&image, &by)?;
            pool.close(&image, &by)?;
            let sent = pool.send(&image, 0)?;
            let request = CopyRequest {
                volume: image.clone(),
                original: sent.original().clone(),
                extent_size: Some(ExtentSize::Mib1),
                point_for: None,
                base: None,
            };
            let chunks = sent.collect::<Result<Vec<_>, _>>()?;
            // The pool is that of the other node from now on.
            pool.remove_closed(&image, &by)?;
            let mut incoming = pool.receive(&request)?;
            for chunk in chunks.into_iter().flatten() {
                incoming.write(&chunk)?;
            }
            incoming.complete()?;
        }
    }
    Ok(())
}

/// Takes a step of a pass.
pub(super) fn pass(
    step: Step,
    root: &Root,
    pool: &Pool,
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    let (by, [first, second]) = (uid(MOVE), ["uid-p", "uid-q"].map(uid));
    match step {
        Step::DismissPass => {
            pool.remove_copy(&copied(), &by)?;
            pool.remove_image(&copied())?;
            pool.remove_image(&first)?;
            pool.remove_image(&second)?;
            pool.remove_image(&device(folder).uid)?;
        }
        Step::PreparePass => {
            pool.new_image(&device(folder))?;
            for (name, byte) in [("p", 1), ("q", 2)] {
                let path = path_in(folder, "images", device(folder).uid.as_str());
                let file = fs::File::options().write(true).open(path)?;
                let data = [byte; 8192];
                file.write_all_at(&data, u64::from(byte) << 20)?;
                file.write_all_at(&data, 4 << 20)?;
                file.sync_all()?;
                let member = snapshot_member(pool, &device(folder), name);
                root.take_snapshots(&[member], Consistency::Crash, Utc::now)?;
            }
            receive_pass(pool, &first, None)?;
        }
        Step::Promote => {
            let volume = PromotedVolume {
                uid: copied(),
                name: device(folder).volume,
                size: device(folder).size,
                provisioning: Provisioning::Thick,
                source: None,
            };
            pool.promote_point(&volume, &by)?;
            let image = fs::read(path_in(folder, "images", copied().as_str()))?;
            if image != fs::read(path_in(folder, "images", first.as_str()))? {
                return Err("the volume differs from the snapshot".into());
            }
        }
        _ => {
            if !pool.has_point(&copied(), &by, &second)? {
                receive_pass(pool, &second, Some(&first))?;
            }
            let point = fs::read(path_in(folder, "incoming", &format!("{}.point", copied())))?;
            if point != fs::read(path_in(folder, "images", second.as_str()))? {
                return Err("the point differs from the snapshot".into());
            }
        }
    }
    Ok(())
}

/// Copies a snapshot in a pass, synced after each chunk.
fn receive_pass(pool: &Pool, snapshot: &Uid, base: Option<&Uid>) -> Result<(), Box<dyn Error>> {
    let request = CopyRequest {
        volume: copied(),
        original: pool.send(snapshot, 0)?.original().clone(),
        extent_size: Some(ExtentSize::Mib1),
        point_for: Some(uid(MOVE)),
        base: base.cloned(),
    };
    let mut incoming = pool.receive(&request)?;
    let from = incoming.written().0;
    let chunks = match base {
        Some(base) => pool.send_changes(snapshot, base, from)?,
        None => pool.send(snapshot, from)?,
    };
    for chunk in chunks {
        if let Some(chunk) = chunk? {
            incoming.write(&chunk)?;
            incoming.sync()?;
        }
    }
    incoming.complete()?;
    Ok(())
}
