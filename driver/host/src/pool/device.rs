//! The device of a device pool: found by the UUID inside, or made on the first that is blank.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use cistern_crds::FilesystemType;

use super::{Backing, Error, Expectation, blank, failed};
use crate::{
    cause::Cause,
    id::{Uid, Uuid},
    mkfs,
    mountinfo::Mount,
    superblock::{self, Superblock},
    system::{DeviceNumber, FileKind, OFlags, System},
};

/// Drivers whose devices are not opened to be looked at: floppy disks and CD-ROMs.
const REMOVABLE: [u32; 2] = [2, 11];

/// What a listed device is.
enum Finding {
    /// The pool's own, complete.
    Own,
    /// The pool's own, but mkfs did not come to its end.
    Unfinished,
    /// Blank.
    Blank,
    /// Neither, and why.
    Unusable(String),
}

/// The device that is mounted already.
pub(super) fn of_mount(system: &dyn System, mount: &Mount) -> Result<Backing, Error> {
    let read = failed(format!("open {}", mount.source.display()));
    let all = system
        .block_devices()
        .map_err(failed("list the block devices"))?;
    let name = all.into_iter().find(|(_, number)| *number == mount.device);
    let Some((name, number)) = name else {
        return Err(Error::BackingMissing {
            what: format!("the mounted device {}", mount.device),
        });
    };
    let open = || -> io::Result<(PathBuf, u64)> {
        let path = system.device_path(&name, number)?;
        let device = system.open(&path, OFlags::RDONLY)?;
        Ok((path, system.device_size(device.as_fd())?))
    };
    let (path, size) = open().map_err(read)?;
    Ok(Backing {
        number,
        path,
        size,
        file: None,
        _bound: None,
    })
}

/// What becomes of a blank device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blank {
    Taken,
    Left,
}

/// Finds the pool's device, or makes the pool on the first that is blank.
pub(super) fn open(
    system: &dyn System,
    uid: &Uid,
    paths: &[PathBuf],
    expectation: Expectation,
) -> Result<Backing, Error> {
    match expectation {
        Expectation::Known { filesystem_uuid } => find(system, paths, filesystem_uuid),
        Expectation::Made => choose(system, uid, paths, Blank::Left),
        Expectation::New => choose(system, uid, paths, Blank::Taken),
    }
}

/// The device that holds a filesystem: a listed one, or any other, as numbers and names change
/// from boot to boot.
fn find(system: &dyn System, paths: &[PathBuf], uuid: Uuid) -> Result<Backing, Error> {
    let others = system
        .block_devices()
        .map_err(failed("list the block devices"))?
        .into_iter()
        .filter(|(_, number)| !REMOVABLE.contains(&number.major))
        .filter_map(|(name, number)| system.device_path(&name, number).ok());
    for path in paths.iter().cloned().chain(others) {
        // Many devices cannot be opened, and it is not said that it is one of them.
        let Ok((device, _)) = open_device(system, &path, OFlags::RDONLY) else {
            continue;
        };
        let found = superblock::read(system, device.as_fd()).ok().flatten();
        if found.is_some_and(|found| found.uuid == uuid && found.complete) {
            drop(device);
            return exclusive(system, &path);
        }
    }
    Err(Error::BackingMissing {
        what: format!(
            "a device with the filesystem {uuid} (listed: {})",
            join(paths)
        ),
    })
}

/// The first device that is the pool's own already, or else the first that is blank.
fn choose(
    system: &dyn System,
    uid: &Uid,
    paths: &[PathBuf],
    blank_device: Blank,
) -> Result<Backing, Error> {
    let mut devices = Vec::new();
    let mut blank = None;
    for path in paths {
        match examine(system, uid, path) {
            Ok(Finding::Own) => return exclusive(system, path),
            Ok(found @ (Finding::Unfinished | Finding::Blank)) => {
                blank.get_or_insert((path, matches!(found, Finding::Unfinished)));
            }
            Ok(Finding::Unusable(why)) => devices.push((path.clone(), why)),
            Err(cause) => devices.push((path.clone(), describe(&cause))),
        }
    }
    let Some((path, unfinished)) = blank else {
        return Err(Error::NoUsableDevice { devices });
    };
    if blank_device == Blank::Left {
        let what = format!("a device of the pool (listed: {})", join(paths));
        return Err(Error::BackingMissing { what });
    }
    make(system, uid, path, unfinished)
        .map_err(failed(format!("make the pool on {}", path.display())))?;
    exclusive(system, path)
}

fn examine(system: &dyn System, uid: &Uid, path: &Path) -> Result<Finding, Cause> {
    let (device, number) = open_device(system, path, OFlags::RDONLY | OFlags::EXCL)?;
    if let Some(found) = superblock::read(system, device.as_fd())? {
        return Ok(judge(uid, &found));
    }
    Ok(match blank::objection(system, device.as_fd(), number)? {
        None => Finding::Blank,
        Some(why) => Finding::Unusable(why),
    })
}

/// What a device with a filesystem on it is. The marker within is read once it is mounted.
fn judge(uid: &Uid, found: &Superblock) -> Finding {
    if found.kind != FilesystemType::Xfs || found.label != uid.label() {
        return Finding::Unusable(format!("it holds {} ({:?})", found.kind, found.label));
    }
    if found.complete {
        Finding::Own
    } else {
        Finding::Unfinished
    }
}

fn make(system: &dyn System, uid: &Uid, path: &Path, unfinished: bool) -> Result<(), Cause> {
    // Not exclusively, as mkfs.xfs opens it so itself; it is proved blank once more right before.
    let (device, _) = open_device(system, path, OFlags::RDWR)?;
    let still = matches!(
        (examine(system, uid, path)?, unfinished),
        (Finding::Blank, false) | (Finding::Unfinished, true)
    );
    if !still {
        return Err(io::Error::from(io::ErrorKind::ResourceBusy).into());
    }
    let filesystem_uuid = Uuid::random()?;
    mkfs::pool_device(
        system,
        device.as_fd(),
        filesystem_uuid,
        &uid.label(),
        unfinished,
    )?;
    system.sync(device.as_fd())?;
    tracing::info!(pool = %uid, device = %path.display(), "made the pool's filesystem");
    Ok(())
}

/// Opens a device that nobody else may hold.
fn exclusive(system: &dyn System, path: &Path) -> Result<Backing, Error> {
    let open = || -> io::Result<Backing> {
        let (device, number) = open_device(system, path, OFlags::RDONLY | OFlags::EXCL)?;
        Ok(Backing {
            number,
            path: path.to_owned(),
            size: system.device_size(device.as_fd())?,
            file: None,
            _bound: None,
        })
    };
    open().map_err(failed(format!("open {}", path.display())))
}

fn open_device(
    system: &dyn System,
    path: &Path,
    flags: OFlags,
) -> io::Result<(OwnedFd, DeviceNumber)> {
    let device = system.open_following(path, flags | OFlags::NONBLOCK)?;
    let stat = system.stat(device.as_fd())?;
    if stat.kind != FileKind::BlockDevice {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a block device",
        ));
    }
    Ok((device, stat.node))
}

fn describe(cause: &Cause) -> String {
    match cause {
        Cause::Io(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            "something else holds it".to_owned()
        }
        Cause::Io(error) if error.kind() == io::ErrorKind::NotFound => "it is not there".to_owned(),
        Cause::Io(_) | Cause::Command(_) | Cause::Loop(_) => cause.to_string(),
    }
}

fn join(paths: &[PathBuf]) -> String {
    let text = |path: &PathBuf| path.display().to_string();
    paths.iter().map(text).collect::<Vec<_>>().join(", ")
}
