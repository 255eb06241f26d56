//! The space of a volume, queried with a deadline.
//!
//! *Invariant:* a filesystem that hangs blocks one thread, however many queries are made, and no caller
//! waits longer than the deadline.

use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use cistern_types::Bytes;
use rustix::io::Errno;

use crate::{
    attached::Attached,
    id::Uid,
    mount_target::MountTarget,
    root::Root,
    system::{Space, System},
    volume_device,
};

/// Space of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeStatistics {
    /// Space of its filesystem.
    Filesystem(FilesystemStatistics),
    /// Size of its device; the used space is unknown.
    Block {
        /// Size of the device.
        total: Bytes,
    },
}

/// Space and inodes of a volume's filesystem, as in statvfs(3); sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesystemStatistics {
    /// Size of the filesystem.
    pub total: Bytes,
    /// Space that is not free. What is free for root alone is neither used nor available.
    pub used: Bytes,
    /// Space that a pod can still write.
    pub available: Bytes,
    /// Number of inodes, used and free; 0 on btrfs, which does not count them.
    pub inodes: u64,
    /// Number of inodes in use.
    pub inodes_used: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
}

/// Why the space is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The volume is not mounted at the path.
    #[error("volume {image} is not mounted at {path}")]
    NotThere {
        /// Name of the image.
        image: Uid,
        /// Staging or target path of the query.
        path: PathBuf,
    },
    /// The filesystem does not answer.
    #[error("the filesystem at {path} did not answer within {deadline:?}")]
    Hung {
        /// Staging or target path of the query.
        path: PathBuf,
        /// The deadline that has passed.
        deadline: Duration,
    },
    /// The filesystem answered with an error.
    #[error("could not query the filesystem at {path}")]
    Failed {
        /// Staging or target path of the query.
        path: PathBuf,
        /// Error of the filesystem.
        #[source]
        source: io::Error,
    },
}

impl Root {
    /// Reads the space of a volume at its staging or target path. Fails if the volume is not
    /// mounted there, or if its filesystem does not answer by the deadline or answers with an
    /// error.
    pub fn statistics_of(
        &self,
        image: &Uid,
        path: &Path,
        deadline: Duration,
    ) -> Result<VolumeStatistics, Error> {
        let hung = || Error::Hung {
            path: path.to_owned(),
            deadline,
        };
        let (system, image_asked, path_asked) =
            (Arc::clone(&self.system), image.clone(), path.to_owned());
        let ask = move || ask(&*system, &image_asked, &path_asked);
        match self.ask_within(path, deadline, ask) {
            None => Err(hung()),
            Some(Ok(Some(found))) => Ok(found),
            Some(Ok(None)) => Err(Error::NotThere {
                image: image.clone(),
                path: path.to_owned(),
            }),
            Some(Err(source)) => Err(Error::Failed {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Queries a filesystem in a thread of its own, after earlier queries of the same path have ended.
    /// None if there is no answer by the deadline.
    pub(crate) fn ask_within<T: Send + 'static>(
        &self,
        path: &Path,
        deadline: Duration,
        ask: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Option<io::Result<T>> {
        let asked_at = Instant::now();
        let answer = self.begin_to_ask(path, deadline, ask)?;
        let rest = deadline.saturating_sub(asked_at.elapsed());
        answer.recv_timeout(rest).ok()
    }

    /// Begins a query in a thread of its own, after earlier queries of the same path have ended. None if they have not
    /// by the deadline.
    pub(crate) fn begin_to_ask<T: Send + 'static>(
        &self,
        path: &Path,
        deadline: Duration,
        ask: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Option<Receiver<io::Result<T>>> {
        let pending = self.pending_paths.begin(path, deadline)?;
        let (sender, answer) = mpsc::channel();
        let not_started = sender.clone();
        let thread = move || {
            let answer = ask();
            // Also if the query panics. The next one need not wait for the caller.
            drop(pending);
            // The receiver is gone if the deadline has passed.
            let _ = sender.send(answer);
        };
        if let Err(error) = thread::Builder::new().name("ask".to_owned()).spawn(thread) {
            let _ = not_started.send(Err(error));
        }
        Some(answer)
    }
}

/// Queries the filesystem or device at a path; None if the volume is not mounted there.
fn ask(system: &dyn System, image: &Uid, path: &Path) -> io::Result<Option<VolumeStatistics>> {
    let Some(place) = open(system, path)? else {
        return Ok(None);
    };
    let Some(mount) = place.mounted()? else {
        // For a raw block volume, the device node is below the staging path.
        return match open(system, &path.join(image.as_str()))? {
            Some(node) if node.mounted()?.is_some() => ask_device(system, image, &node),
            Some(_) | None => Ok(None),
        };
    };
    if !volume_device::is_possible(system, mount.device)? {
        return ask_device(system, image, &place);
    }
    match place.find()? {
        Some(file) if volume_device::belongs_to(system, mount.device, image)? => {
            Ok(Some(numbers(&system.space(file.as_fd())?)))
        }
        Some(_) | None => Ok(None),
    }
}

/// The place at a path, if its directory exists.
fn open<'a>(system: &'a dyn System, path: &Path) -> io::Result<Option<MountTarget<'a>>> {
    let place = MountTarget::open(system, path);
    // An invalid last component fails only here.
    let seen = place.and_then(|place| place.find().map(|_| place));
    match seen {
        Ok(place) => Ok(Some(place)),
        Err(error) if is_nowhere(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error means that nothing is mounted at a path: the path does not exist or is unusable.
fn is_nowhere(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename
    ) || Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Queries the device whose node is bound at a place.
fn ask_device(
    system: &dyn System,
    image: &Uid,
    place: &MountTarget<'_>,
) -> io::Result<Option<VolumeStatistics>> {
    let Some(number) = place.device()? else {
        return Ok(None);
    };
    match Attached::open(system, number, image)? {
        Some(attached) if volume_device::belongs_to(system, number, image)? => {
            let total = Bytes(system.device_size(attached.as_fd())?);
            Ok(Some(VolumeStatistics::Block { total }))
        }
        Some(_) | None => Ok(None),
    }
}

fn numbers(space: &Space) -> VolumeStatistics {
    VolumeStatistics::Filesystem(FilesystemStatistics {
        total: Bytes(space.size),
        used: Bytes(space.size.saturating_sub(space.free)),
        available: Bytes(space.available),
        inodes: space.inodes,
        inodes_used: space.inodes.saturating_sub(space.inodes_free),
        inodes_free: space.inodes_free,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::system::Linux;

    #[test]
    fn ngs_11_what_hangs_is_given_up_at_the_deadline_and_costs_one_thread() {
        let root = Root::new("/", Arc::new(Linux::new("/")));
        let path = Path::new("/hung");
        let (long, short) = (Duration::from_mins(1), Duration::from_millis(20));
        let hangs = Arc::new(Barrier::new(2));
        let inside = Arc::clone(&hangs);
        let hung = root.ask_within(path, short, move || Ok(inside.wait().is_leader()));
        assert!(hung.is_none());
        // The path is not queried a second time, and other callers do not wait.
        assert!(root.ask_within(path, short, || Ok(())).is_none());
        assert!(
            root.ask_within(Path::new("/other"), long, || Ok(()))
                .is_some()
        );
        // The next query waits until the first is answered.
        let asked = thread::spawn({
            let (root, path) = (root.clone(), path.to_owned());
            move || root.ask_within(&path, long, || Ok(())).is_some()
        });
        hangs.wait();
        assert!(asked.join().unwrap());
    }

    #[test]
    fn a_query_that_panics_has_no_answer_and_the_next_one_has() {
        let root = Root::new("/", Arc::new(Linux::new("/")));
        let (path, long) = (Path::new("/broken"), Duration::from_mins(1));
        let asked_at = Instant::now();
        let broken: Option<io::Result<()>> = root.ask_within(path, long, || panic!("on purpose"));
        assert!(broken.is_none());
        assert!(root.ask_within(path, long, || Ok(())).is_some());
        assert!(asked_at.elapsed() < long);
    }
}
