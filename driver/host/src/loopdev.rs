//! Loop devices: binds files to them, and finds the device of a file.
//!
//! *Invariants:* a device is used only with sectors of 4096 bytes and direct I/O. A file is never
//! bound twice. Every device detaches from its file when its last user closes it (autoclear), so
//! that a crash at any point leaves none behind; raw block volumes disable that
//! (`mounting/block.rs`).

mod free;

use std::{
    ffi::OsStr,
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use crate::{
    id::{Uid, Uuid},
    layout,
    system::{
        BoundLoop, DeviceNumber, FileId, LoopSettings, LoopStatus, OFlags, SECTOR_SIZE, System,
    },
};

/// Suffix that the kernel adds to the name of a removed backing file.
const DELETED: &str = " (deleted)";
/// Required settings of every loop device of Cistern.
const SETTINGS: LoopSettings = LoopSettings {
    direct_io: true,
    sector_size: SECTOR_SIZE,
};

/// A loop device that stays bound to a file while this value lives.
#[derive(Debug)]
pub struct Loop {
    /// Number of the device.
    pub(crate) number: u32,
    /// Path of its device node.
    pub(crate) path: PathBuf,
    device: OwnedFd,
}

/// Why a file has no usable loop device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device does not have the required [`SETTINGS`].
    #[error(
        "loop device {number} lacks direct I/O with 4096-byte sectors ({found}): the filesystem that holds its file \
         does not support it, or its settings were changed"
    )]
    Unfit {
        /// Number of the loop device.
        number: u32,
        /// Its actual settings.
        found: LoopSettings,
    },
    /// Other processes bound every free device first.
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
    /// Whether the backing file cannot be read, because its filesystem has shut down.
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
    /// Returns its device number.
    pub(crate) fn device(&self) -> DeviceNumber {
        DeviceNumber::of_loop(self.number)
    }

    /// Returns the device, open for reading.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Keeps the device bound when its last user closes it.
    pub(crate) fn keep(&self, system: &dyn System) -> io::Result<()> {
        system.keep_loop(self.device.as_fd())
    }

    /// Detaches the device from its file when its last user closes it.
    pub(crate) fn detach(self, system: &dyn System) -> io::Result<()> {
        system.detach_loop(self.device.as_fd())
    }

    /// Grows the device to the size of its file. Does nothing when it has that size.
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

/// Returns the loop device that is bound to a file; binds a free one if there is none. `name` is
/// the name of the file.
pub(crate) fn attach(
    system: &dyn System,
    file: BorrowedFd<'_>,
    name: &OsStr,
) -> Result<Loop, Error> {
    let id = system.stat(file).map_err(failed("stat the file"))?.id;
    match find(system, id, name)? {
        Some(bound) => verify(system, bound),
        None => bind(system, file),
    }
}

/// Binds a free loop device to a file that has none.
pub(crate) fn bind(system: &dyn System, file: BorrowedFd<'_>) -> Result<Loop, Error> {
    // While it binds a device, the kernel locks it and syncs the file. If the disk hangs, every
    // request for a free device waits for that one. A sync beforehand blocks no other caller.
    system.sync(file).map_err(failed("sync the file"))?;
    verify(system, free::bind(system, file)?)
}

/// Verifies that a device has the required settings.
pub(crate) fn verify(system: &dyn System, bound: Loop) -> Result<Loop, Error> {
    let settings = system
        .loop_settings(bound.number)
        .map_err(failed(format!("read the settings of {bound}")))?;
    if settings != SETTINGS {
        // Dropping the device detaches it unless it has another user.
        return Err(Error::Unfit {
            number: bound.number,
            found: settings,
        });
    }
    Ok(bound)
}

/// Finds the loop device of a file, even if another process bound it. `name` is the name of the
/// file.
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
            .map_err(failed(format!("read the status of {bound}")))?;
        if status.is_some_and(|status| status.file == file) {
            return Ok(Some(bound));
        }
    }
    Ok(None)
}

/// Returns the status of a loop device; none when it does not exist or is not bound.
pub(crate) fn status(system: &dyn System, number: u32) -> Result<Option<LoopStatus>, Error> {
    let Some(device) = open(system, number, OFlags::RDONLY)? else {
        return Ok(None);
    };
    system
        .loop_status(device.device.as_fd())
        .map_err(failed(format!("read the status of {device}")))
}

/// Returns the image, possibly removed, that a loop device is bound to, judged by the path of the
/// file. Only pools have a directory `images` with files named by UIDs of objects. An image that is
/// closed for a move is none: Cistern does not attach it.
pub(crate) fn image_of(backing_file: &Path) -> Option<Uid> {
    named_in(backing_file, &[layout::IMAGES])
}

/// Like [`image_of`], but also for an image that is closed: an administrator may have attached it.
pub fn any_image_of(backing_file: &Path) -> Option<Uid> {
    named_in(backing_file, &[layout::IMAGES, layout::CLOSED])
}

fn named_in(backing_file: &Path, folders: &[&str]) -> Option<Uid> {
    let path = backing_file.to_str()?;
    let path = Path::new(path.strip_suffix(DELETED).unwrap_or(path));
    let folder = path.parent()?.file_name()?;
    if !folders.iter().any(|name| folder == *name) {
        return None;
    }
    path.file_name()?.to_str()?.parse().ok()
}

/// Whether the file behind a loop device is an image of a pool, open or closed, judged by its path.
pub(crate) fn is_in_pool(backing_file: &Path, pool: &Uid) -> bool {
    let folder = backing_file.parent().and_then(Path::parent);
    any_image_of(backing_file).is_some() && folder.and_then(Path::file_name) == Some(pool.as_ref())
}

/// The pool whose file, possibly removed, may be behind a loop device, judged by its name. The file of another program
/// can have such a name.
pub(crate) fn pool_of(backing_file: &Path) -> Option<Uid> {
    let path = backing_file.to_str()?;
    let path = Path::new(path.strip_suffix(DELETED).unwrap_or(path));
    layout::pool_of_file(path.file_name()?)
}

/// Whether the file behind a loop device, possibly removed, is that of a pool, judged by its name: the UUID
/// that is the UID of a StoragePool.
pub(crate) fn is_pool(backing_file: &Path) -> bool {
    pool_of(backing_file).is_some_and(|uid| uid.as_str().parse::<Uuid>().is_ok())
}

/// Whether a loop device is bound to an image.
pub(crate) fn has_image(system: &dyn System, number: u32, image: &Uid) -> io::Result<bool> {
    let backing_file = system.backing_file(number)?;
    Ok(backing_file.is_some_and(|file| image_of(&file).as_ref() == Some(image)))
}

/// Whether the file behind a loop device was removed.
pub(crate) fn is_deleted(bound: &BoundLoop) -> bool {
    let name = bound.backing_file.as_os_str().as_encoded_bytes();
    name.ends_with(DELETED.as_bytes())
}

/// Opens a loop device that is bound; none when it does not exist.
pub(crate) fn open_bound(system: &dyn System, number: u32) -> io::Result<Option<Loop>> {
    open(system, number, OFlags::RDONLY).map_err(io::Error::other)
}

/// Whether the file behind a loop device has this name, or had it when it was removed.
pub(crate) fn has_name(bound: &BoundLoop, name: &OsStr) -> bool {
    is_named(&bound.backing_file, name)
}

/// Whether a file behind a loop device has this name, or had it when it was removed.
pub(crate) fn is_named(backing_file: &Path, name: &OsStr) -> bool {
    let found = backing_file.as_os_str().as_encoded_bytes();
    let found = found.strip_suffix(DELETED.as_bytes()).unwrap_or(found);
    found
        .strip_suffix(name.as_encoded_bytes())
        .is_some_and(|before| before.ends_with(b"/"))
}

/// Opens a loop device; none when it has been removed since.
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

/// Whether an error of open(2) means that a device does not exist any more.
pub(crate) fn is_gone(error: &io::Error) -> bool {
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
        // kubelet names its own device files for raw block volumes by the UID of the pod.
        for no in [
            "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/uid-1",
            "/pools/p/tmp/uid-1",
            "/pools/p/closed/uid-1",
            "/images/a_b",
            "/images",
            "uid-1",
        ] {
            assert_eq!(image(no), None, "{no}");
        }
    }

    #[test]
    fn a_closed_image_is_recognised_only_among_all_images() {
        let image = |path: &str| any_image_of(Path::new(path)).map(|uid| uid.to_string());
        for yes in ["/pools/p/images/uid-1", "/pools/p/closed/uid-1 (deleted)"] {
            assert_eq!(image(yes).as_deref(), Some("uid-1"), "{yes}");
        }
        for no in ["/pools/p/tmp/uid-1", "/closed/a_b", "/closed"] {
            assert_eq!(image(no), None, "{no}");
        }
    }

    #[test]
    fn the_file_of_a_pool_is_recognised_by_its_name() {
        const UID: &str = "0badcafe-0000-4000-8000-00000000beef";
        let pool = |path: &str| pool_of(Path::new(path)).map(|uid| uid.to_string());
        for yes in [
            format!("/pools/{UID}.img"),
            format!("/srv/{UID}.img (deleted)"),
        ] {
            assert_eq!(pool(&yes).as_deref(), Some(UID), "{yes}");
            assert!(is_pool(Path::new(&yes)), "{yes}");
        }
        assert_eq!(pool("/srv/disk.img").as_deref(), Some("disk"));
        assert!(!is_pool(Path::new("/srv/disk.img")), "no UUID");
        for no in ["/pools/a_b.img", "/pools/uid-1", "/pools/uid-1.img.new"] {
            assert_eq!(pool(no), None, "{no}");
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
