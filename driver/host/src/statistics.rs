//! The space of a volume, asked under a deadline.
//!
//! *Invariant:* a filesystem that hangs costs one thread, however often it is asked for; whoever
//! asks waits no longer than the deadline.

use std::{
    collections::BTreeSet,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use cistern_crds::Bytes;
use rustix::io::Errno;

use crate::{
    id::Uid,
    loopdev,
    place::Place,
    root::Root,
    system::{DeviceNumber, Space, System},
};

/// Numbers of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeStatistics {
    /// Of its filesystem.
    Filesystem(FilesystemStatistics),
    /// Of its device, of which nobody knows what is used.
    Block {
        /// Size of the device.
        total: Bytes,
    },
}

/// Numbers of a volume's filesystem, as statvfs(3) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesystemStatistics {
    /// Size of the filesystem.
    pub total: Bytes,
    /// What is used.
    pub used: Bytes,
    /// What a pod can still write.
    pub available: Bytes,
    /// Inodes.
    pub inodes: u64,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// Why there are no numbers.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The volume is not mounted at the path.
    #[error("volume {image} is not mounted at {path}")]
    NotThere {
        /// Name of the image.
        image: Uid,
        /// The path.
        path: PathBuf,
    },
    /// The filesystem does not answer.
    #[error("the filesystem at {path} did not answer within {deadline:?}")]
    Hung {
        /// The path.
        path: PathBuf,
        /// How long it had.
        deadline: Duration,
    },
    /// The filesystem answered with an error.
    #[error("could not ask the filesystem at {path}")]
    Failed {
        /// The path.
        path: PathBuf,
        /// What it answered.
        #[source]
        source: io::Error,
    },
}

impl Root {
    /// The space of a volume at a path where it is staged or published.
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

    /// Asks a filesystem in a thread of its own, once earlier questions about the same path, or the
    /// same name of what is asked, are answered; none when there is no answer by the deadline.
    pub(crate) fn ask_within<T: Send + 'static>(
        &self,
        path: &Path,
        deadline: Duration,
        ask: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Option<io::Result<T>> {
        let asked_at = Instant::now();
        if !self.asked.begin(path, deadline) {
            return None;
        }
        let (sender, receiver) = mpsc::channel();
        let (root, path_asked) = (self.clone(), path.to_owned());
        let thread = move || {
            let answer = ask();
            root.asked.end(&path_asked);
            // Nobody listens any more if the deadline has passed.
            let _ = sender.send(answer);
        };
        if let Err(error) = thread::Builder::new().name("ask".to_owned()).spawn(thread) {
            self.asked.end(path);
            return Some(Err(error));
        }
        let rest = deadline.saturating_sub(asked_at.elapsed());
        receiver.recv_timeout(rest).ok()
    }
}

/// Paths that are being asked, each by one thread.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    paths: Mutex<BTreeSet<PathBuf>>,
    answered: Condvar,
}

impl Asked {
    /// Waits for its turn at a path; false when an earlier question has no answer by the deadline.
    fn begin(&self, path: &Path, deadline: Duration) -> bool {
        let paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asked = |paths: &mut BTreeSet<PathBuf>| paths.contains(path);
        let waited = self.answered.wait_timeout_while(paths, deadline, is_asked);
        let (mut paths, _) = waited.unwrap_or_else(PoisonError::into_inner);
        paths.insert(path.to_owned())
    }

    fn end(&self, path: &Path) {
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.remove(path);
        self.answered.notify_all();
    }
}

/// Asks the filesystem or device at a path; none when the volume is not there.
fn ask(system: &dyn System, image: &Uid, path: &Path) -> io::Result<Option<VolumeStatistics>> {
    let Some(place) = open(system, path)? else {
        return Ok(None);
    };
    let Some(mount) = place.mounted()? else {
        // Of a raw block volume, the node of its device stands below the staging path.
        return match open(system, &path.join(image.as_str()))? {
            Some(node) if node.mounted()?.is_some() => ask_device(system, image, &node),
            Some(_) | None => Ok(None),
        };
    };
    match mount.device.as_loop() {
        Some(number) if loopdev::has_image(system, number, image)? => match place.look()? {
            Some(file) => Ok(Some(numbers(&system.space(file.as_fd())?))),
            None => Ok(None),
        },
        Some(_) => Ok(None),
        None => ask_device(system, image, &place),
    }
}

/// The place at a path, if its directory is there.
fn open<'a>(system: &'a dyn System, path: &Path) -> io::Result<Option<Place<'a>>> {
    let place = Place::open(system, path);
    // A last part that the kernel does not take shows only now.
    let seen = place.and_then(|place| place.look().map(|_| place));
    match seen {
        Ok(place) => Ok(Some(place)),
        Err(error) if is_nowhere(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether nothing can be mounted at a path, because there is no such path or we would not use it.
fn is_nowhere(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename
    ) || Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Asks the device whose node is bound at a place.
fn ask_device(
    system: &dyn System,
    image: &Uid,
    place: &Place<'_>,
) -> io::Result<Option<VolumeStatistics>> {
    let Some(number) = place.device()?.and_then(DeviceNumber::as_loop) else {
        return Ok(None);
    };
    let device = loopdev::open_bound(system, number)?;
    match device {
        Some(device) if loopdev::has_image(system, number, image)? => {
            let total = Bytes(system.device_size(device.as_fd())?);
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
        // Not asked a second time, and nobody else is kept waiting.
        assert!(root.ask_within(path, short, || Ok(())).is_none());
        assert!(
            root.ask_within(Path::new("/other"), long, || Ok(()))
                .is_some()
        );
        // Whoever asks again waits until it answers.
        let asked = thread::spawn({
            let (root, path) = (root.clone(), path.to_owned());
            move || root.ask_within(&path, long, || Ok(())).is_some()
        });
        hangs.wait();
        assert!(asked.join().unwrap());
    }
}
