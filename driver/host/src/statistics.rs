//! The space of a volume, asked under a deadline.
//!
//! *Invariant:* a filesystem that hangs costs one thread, however often it is asked for.

use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, mpsc},
    thread,
    time::Duration,
};

use cistern_crds::Bytes;

use crate::{
    id::Uid,
    loopdev,
    place::Place,
    root::Root,
    system::{BoundLoop, Space, System},
};

/// Numbers of a volume's filesystem, as statvfs(3) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeStatistics {
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
            Some(Ok(Some(space))) => Ok(numbers(&space)),
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

    /// Asks in a thread of its own; none when there is no answer by the deadline, or none yet to
    /// an earlier question about the same path.
    fn ask_within<T: Send + 'static>(
        &self,
        path: &Path,
        deadline: Duration,
        ask: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Option<io::Result<T>> {
        if !self.begin(path) {
            return None;
        }
        let (sender, receiver) = mpsc::channel();
        let (root, path_asked) = (self.clone(), path.to_owned());
        let thread = move || {
            let answer = ask();
            root.end(&path_asked);
            // Nobody listens any more if the deadline has passed.
            let _ = sender.send(answer);
        };
        if let Err(error) = thread::Builder::new()
            .name("statfs".to_owned())
            .spawn(thread)
        {
            self.end(path);
            return Some(Err(error));
        }
        receiver.recv_timeout(deadline).ok()
    }

    /// Notes that a path is being asked; false when it has not answered an earlier call yet.
    fn begin(&self, path: &Path) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert(path.to_owned())
    }

    fn end(&self, path: &Path) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.remove(path);
    }
}

/// Asks the filesystem at a path; none when the volume is not mounted there.
fn ask(system: &dyn System, image: &Uid, path: &Path) -> io::Result<Option<Space>> {
    let place = match Place::open(system, path) {
        Ok(place) => place,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(number) = place.mounted()?.and_then(|mount| mount.device.as_loop()) else {
        return Ok(None);
    };
    let is_it = system.backing_file(number)?.is_some_and(|backing_file| {
        let bound = BoundLoop {
            number,
            backing_file,
        };
        loopdev::has_name(&bound, image.as_ref())
    });
    match place.look()? {
        Some(file) if is_it => system.space(file.as_fd()).map(Some),
        _ => Ok(None),
    }
}

fn numbers(space: &Space) -> VolumeStatistics {
    VolumeStatistics {
        total: Bytes(space.size),
        used: Bytes(space.size.saturating_sub(space.free)),
        available: Bytes(space.available),
        inodes: space.inodes,
        inodes_used: space.inodes.saturating_sub(space.inodes_free),
        inodes_free: space.inodes_free,
    }
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
        assert!(root.ask_within(path, long, || Ok(())).is_none());
        assert!(
            root.ask_within(Path::new("/other"), long, || Ok(()))
                .is_some()
        );
        hangs.wait();
        let begin = std::time::Instant::now();
        while root.ask_within(path, long, || Ok(())).is_none() {
            assert!(begin.elapsed() < long, "the path is never asked again");
            thread::yield_now();
        }
    }
}
