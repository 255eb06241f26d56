//! Loop devices: binding a file to one, and finding the one that a file is bound to.
//!
//! *Invariants:* sectors have 4096 bytes and I/O is direct, or the device is not used; a file is
//! never bound twice; every device lets go of its file with its last user, so that a crash at any
//! point leaves none behind, unless it is told to keep it (`attach/block.rs`).

mod free;

use std::{
    ffi::OsStr,
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use crate::{
    id::Uid,
    pool,
    system::{BoundLoop, DeviceNumber, FileId, LoopSettings, LoopStatus, OFlags, System},
};

/// How the kernel marks a backing file that has no name any more.
pub(crate) const DELETED: &str = " (deleted)";
/// What every loop device of ours must be like.
const SETTINGS: LoopSettings = LoopSettings {
    direct_io: true,
    sector_size: 4096,
};

/// A loop device that is bound to a file, and stays so while this value lives.
#[derive(Debug)]
pub(crate) struct Loop {
    /// Which one.
    pub(crate) number: u32,
    /// Where its node is.
    pub(crate) path: PathBuf,
    device: OwnedFd,
}

/// Why a file has no loop device that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device of ours is not like [`SETTINGS`].
    #[error(
        "loop device {number} does not do what a volume needs ({found}): its file lies where direct I/O with 4096-byte sectors is not possible, or somebody changed it"
    )]
    Unfit {
        /// Number of the loop device.
        number: u32,
        /// What it is like.
        found: String,
    },
    /// Others took every device that was free.
    #[error("no loop device was free in {} attempts", free::ATTEMPTS)]
    Exhausted,
    /// A step failed.
    #[error("could not {operation}")]
    Failed {
        /// What was tried.
        operation: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Whether the file behind a device does not say what it is: its filesystem has shut itself down.
    pub(crate) fn is_of_file(&self) -> bool {
        match self {
            Self::Failed { source, .. } => Errno::from_io_error(source) == Some(Errno::IO),
            Self::Unfit { .. } | Self::Exhausted => false,
        }
    }
}

fn failed(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let operation = operation.into();
    |source| Error::Failed { operation, source }
}

impl Loop {
    /// Its device number.
    pub(crate) fn device(&self) -> DeviceNumber {
        DeviceNumber::of_loop(self.number)
    }

    /// The device, open for reading.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Has it keep its file when its last user is gone.
    pub(crate) fn keep(&self, system: &dyn System) -> io::Result<()> {
        system.keep_loop(self.device.as_fd())
    }

    /// Has it let go of its file with its last user.
    pub(crate) fn let_go(self, system: &dyn System) -> io::Result<()> {
        system.let_go_of_loop(self.device.as_fd())
    }

    /// Makes it as large as its file. Does nothing when it is.
    pub(crate) fn fit(&self, system: &dyn System, size: u64) -> io::Result<()> {
        if system.device_size(self.device.as_fd())? < size {
            system.resize_loop(self.device.as_fd())?;
        }
        Ok(())
    }
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/dev/loop{}", self.number)
    }
}

/// The loop device that is bound to a file, a new one if there is none. `name` is the file's.
pub(crate) fn attach(
    system: &dyn System,
    file: BorrowedFd<'_>,
    name: &OsStr,
) -> Result<Loop, Error> {
    let id = system.stat(file).map_err(failed("look at the file"))?.id;
    match find(system, id, name)? {
        Some(bound) => verify(system, bound),
        None => bind(system, file),
    }
}

/// Binds a file that is not bound to a loop device.
pub(crate) fn bind(system: &dyn System, file: BorrowedFd<'_>) -> Result<Loop, Error> {
    // The kernel writes the file out while it holds the device, and where the disk does not answer,
    // whoever asks for a free device waits for that one. What waits here is in nobody's way.
    system.sync(file).map_err(failed("write the file out"))?;
    verify(system, free::bind(system, file)?)
}

/// Verifies that a device does what a volume needs.
pub(crate) fn verify(system: &dyn System, bound: Loop) -> Result<Loop, Error> {
    let settings = system
        .loop_settings(bound.number)
        .map_err(failed(format!("read the settings of {bound}")))?;
    if settings != SETTINGS {
        // Dropping the device unbinds it if nobody else uses it.
        return Err(Error::Unfit {
            number: bound.number,
            found: format!(
                "direct I/O {}, sectors of {} bytes",
                if settings.direct_io { "on" } else { "off" },
                settings.sector_size
            ),
        });
    }
    Ok(bound)
}

/// The loop device that is bound to a file, whoever bound it. `name` is the file's.
pub(crate) fn find(system: &dyn System, file: FileId, name: &OsStr) -> Result<Option<Loop>, Error> {
    let all = system
        .bound_loops()
        .map_err(failed("list the loop devices"))?;
    for candidate in all.iter().filter(|bound| has_name(bound, name)) {
        let Some(bound) = open(system, candidate.number, OFlags::RDONLY)? else {
            continue;
        };
        let status = system
            .loop_status(bound.device.as_fd())
            .map_err(failed(format!("ask what {bound} is bound to")))?;
        if status.is_some_and(|status| status.file == file) {
            return Ok(Some(bound));
        }
    }
    Ok(None)
}

/// What a loop device is bound to, if it is there and bound.
pub(crate) fn status(system: &dyn System, number: u32) -> Result<Option<LoopStatus>, Error> {
    let Some(device) = open(system, number, OFlags::RDONLY)? else {
        return Ok(None);
    };
    system
        .loop_status(device.device.as_fd())
        .map_err(failed(format!("ask what {device} is bound to")))
}

/// The image that a loop device is bound to, or was when it was removed: told by the file's name.
/// Nothing else on a machine has a folder `images` with files that are named by UIDs of objects.
pub(crate) fn image_of(backing_file: &Path) -> Option<Uid> {
    let path = backing_file.to_str()?;
    let path = Path::new(path.strip_suffix(DELETED).unwrap_or(path));
    if path.parent()?.file_name()? != pool::IMAGES {
        return None;
    }
    path.file_name()?.to_str()?.parse().ok()
}

/// Whether the file behind a loop device is an image of a pool, to judge by its path.
pub(crate) fn is_in_pool(backing_file: &Path, pool: &Uid) -> bool {
    let folder = backing_file.parent().and_then(Path::parent);
    image_of(backing_file).is_some() && folder.and_then(Path::file_name) == Some(pool.as_ref())
}

/// Whether a loop device is bound to an image.
pub(crate) fn has_image(system: &dyn System, number: u32, image: &Uid) -> io::Result<bool> {
    let backing_file = system.backing_file(number)?;
    Ok(backing_file.is_some_and(|file| image_of(&file).as_ref() == Some(image)))
}

/// The number of the loop device whose node has this name, in `/dev` or in a folder of our own.
pub(crate) fn number_of_node(name: &str) -> Option<u32> {
    let number = name
        .strip_prefix("loop")
        .or_else(|| name.strip_prefix("7-"))?;
    number.parse().ok()
}

/// Whether the file behind a loop device has no name any more.
pub(crate) fn is_deleted(bound: &BoundLoop) -> bool {
    let name = bound.backing_file.as_os_str().as_encoded_bytes();
    name.ends_with(DELETED.as_bytes())
}

/// Opens a loop device that is bound; none when it is not there.
pub(crate) fn open_bound(system: &dyn System, number: u32) -> io::Result<Option<Loop>> {
    open(system, number, OFlags::RDONLY).map_err(io::Error::other)
}

/// Whether the file behind a loop device has a name, or had it when it was removed.
pub(crate) fn has_name(bound: &BoundLoop, name: &OsStr) -> bool {
    let found = bound.backing_file.as_os_str().as_encoded_bytes();
    let found = found.strip_suffix(DELETED.as_bytes()).unwrap_or(found);
    found
        .strip_suffix(name.as_encoded_bytes())
        .is_some_and(|before| before.ends_with(b"/"))
}

/// Opens a loop device; none when it went away meanwhile.
fn open(system: &dyn System, number: u32, flags: OFlags) -> Result<Option<Loop>, Error> {
    let name = format!("loop{number}");
    let path = system
        .device_path(&name, DeviceNumber::of_loop(number))
        .map_err(failed(format!("make a node for /dev/{name}")))?;
    match system.open(&path, flags) {
        Ok(device) => Ok(Some(Loop {
            number,
            path,
            device,
        })),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(failed(format!("open {}", path.display()))(error)),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NXIO | Errno::NODEV | Errno::NOENT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_recognised_by_its_folder_and_a_name_that_is_a_uid() {
        let image = |path: &str| image_of(Path::new(path)).map(|uid| uid.to_string());
        for yes in [
            "/var/lib/cistern/pools/p/images/uid-1",
            "/images/uid-1 (deleted)",
        ] {
            assert_eq!(image(yes).as_deref(), Some("uid-1"), "{yes}");
        }
        // What kubelet binds for a pod with a raw block volume is named by the pod's UID.
        for no in [
            "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/uid-1",
            "/pools/p/tmp/uid-1",
            "/images/a_b",
            "/images",
            "uid-1",
        ] {
            assert_eq!(image(no), None, "{no}");
        }
    }

    #[test]
    fn a_backing_file_is_recognised_by_its_last_part_alone() {
        let bound = |path: &str| BoundLoop {
            number: 1,
            backing_file: path.into(),
        };
        for yes in ["/var/a", "/a", "/x/a (deleted)"] {
            assert!(has_name(&bound(yes), OsStr::new("a")), "{yes}");
        }
        for no in ["/var/ba", "/a/b", "/a.img", ""] {
            assert!(!has_name(&bound(no), OsStr::new("a")), "{no}");
        }
    }
}
