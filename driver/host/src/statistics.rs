//! The space of a volume, asked under a deadline.
//!
//! *Invariant:* a filesystem that hangs costs one thread, however often it is asked for.

use std::{
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{PoisonError, mpsc},
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
        let failed = |source: io::Error| Error::Failed {
            path: path.to_owned(),
            source,
        };
        if !self.begin(path) {
            return Err(hung());
        }
        let (sender, receiver) = mpsc::channel();
        let (root, image_asked, path_asked) = (self.clone(), image.clone(), path.to_owned());
        let ask = move || {
            let answer = ask(&*root.system, &image_asked, &path_asked);
            root.end(&path_asked);
            // Nobody listens any more if the deadline has passed.
            let _ = sender.send(answer);
        };
        if let Err(error) = thread::Builder::new().name("statfs".to_owned()).spawn(ask) {
            self.end(path);
            return Err(failed(error));
        }
        match receiver.recv_timeout(deadline) {
            Ok(Ok(Some(space))) => Ok(numbers(&space)),
            Ok(Ok(None)) => Err(Error::NotThere {
                image: image.clone(),
                path: path.to_owned(),
            }),
            Ok(Err(error)) => Err(failed(error)),
            Err(_) => Err(hung()),
        }
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
