//! Freezes filesystems while they are cloned.
//!
//! One thread per filesystem freezes it, waits, and thaws it when it is released or when the time
//! limit is reached. FIFREEZE cannot be cancelled: the caller stops waiting for a freeze that takes
//! too long, and the thread thaws the filesystem as soon as the call returns. A process that shuts
//! down waits for the thaw ([`Root::end_freezes`]); [`Root::thaw_left_frozen`] thaws the filesystems
//! that a killed process left frozen.
//!
//! *Invariants:* this module thaws what it freezes. [`Freeze::end`] succeeds only if all
//! filesystems were frozen from before [`Freeze::begin`] returned until `end` was called.
//!
//! [`Root::thaw_left_frozen`]: crate::Root::thaw_left_frozen
//! [`Root::end_freezes`]: crate::Root::end_freezes

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use super::{Error, NotFrozen};
use crate::{id::Uid, image::failed, mount_target::is_busy, patience, root::Root, system::System};

/// How long a filesystem is frozen at most, counted from the request to freeze it. A pod's writers
/// block for that time: by default kubelet runs a probe three times, 10 seconds apart, before it
/// acts on a failure, and the watchdogs of databases are no quicker.
pub const FREEZE_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for a thaw. It continues in its thread if it takes longer.
const THAW_LIMIT: Duration = Duration::from_secs(2);

/// Filesystems that are frozen together.
#[derive(Debug)]
pub(super) struct Freeze {
    /// Images whose thread has not ended.
    images: Vec<Uid>,
    /// Dropping a sender makes its thread thaw.
    release: Vec<Sender<()>>,
    reports: Receiver<(Uid, Report)>,
}

/// Message of a thread about its filesystem.
#[derive(Debug)]
enum Report {
    /// The filesystem is frozen.
    Frozen,
    /// The thread has ended. Ok when the filesystem was frozen until its release.
    Ended(Result<(), Error>),
}

impl Freeze {
    /// Freezes filesystems, each given by its image and an open file in it.
    pub(super) fn begin(root: &Root, filesystems: Vec<(Uid, OwnedFd)>) -> Result<Self, Error> {
        let until = Instant::now() + FREEZE_LIMIT;
        let (report, reports) = mpsc::channel();
        let mut freeze = Self {
            images: Vec::new(),
            release: Vec::new(),
            reports,
        };
        let started = filesystems
            .into_iter()
            .try_for_each(|(image, inside)| freeze.start(root, &image, inside, until, &report));
        match started.and_then(|()| freeze.wait(until)) {
            Ok(()) => Ok(freeze),
            Err(error) => {
                // Those that are frozen are thawed when this returns.
                let _ = freeze.end();
                Err(error)
            }
        }
    }

    /// Releases all filesystems, waits until they are thawed, and fails unless all stayed frozen.
    pub(super) fn end(mut self) -> Result<(), Error> {
        self.release.clear();
        let until = Instant::now() + THAW_LIMIT;
        let mut result = Ok(());
        while !self.images.is_empty() {
            let Ok((uid, report)) = self.reports.recv_timeout(left(until)) else {
                // The report of its thread is missing, so the freeze counts as too slow.
                let slow = self.images.first().map_or(Ok(()), |uid| Err(too_slow(uid)));
                return result.and(slow);
            };
            match report {
                Report::Frozen => {}
                Report::Ended(ended) => {
                    self.images.retain(|image| *image != uid);
                    result = result.and(ended);
                }
            }
        }
        result
    }

    fn start(
        &mut self,
        root: &Root,
        image: &Uid,
        inside: OwnedFd,
        until: Instant,
        report: &Sender<(Uid, Report)>,
    ) -> Result<(), Error> {
        let guard = root.freezes.begin(image).ok_or_else(|| {
            let why = "the process is shutting down: the next one tries again";
            failed("freeze the filesystem", image)(io::Error::other(why))
        })?;
        let (release, released) = mpsc::channel();
        let (system, report, uid) = (Arc::clone(&root.system), report.clone(), image.clone());
        let work = move || {
            let report_frozen = || {
                let _ = report.send((uid.clone(), Report::Frozen));
            };
            let ended = keep_frozen(&*system, &uid, inside, until, &released, report_frozen);
            drop(guard);
            if let Err(error) = &ended {
                tracing::warn!(image = %uid, %error, "the filesystem did not stay frozen");
            }
            let _ = report.send((uid.clone(), Report::Ended(ended)));
        };
        thread::Builder::new()
            .name("freeze".to_owned())
            .spawn(work)
            .map_err(failed("start a thread to freeze the filesystem", image))?;
        self.images.push(image.clone());
        self.release.push(release);
        Ok(())
    }

    /// Waits until all filesystems are frozen.
    fn wait(&mut self, until: Instant) -> Result<(), Error> {
        let mut others = self.images.clone();
        while let Some(next) = others.first() {
            let Ok((uid, report)) = self.reports.recv_timeout(left(until)) else {
                return Err(too_slow(next));
            };
            others.retain(|image| *image != uid);
            match report {
                Report::Frozen => {}
                Report::Ended(ended) => {
                    self.images.retain(|image| *image != uid);
                    return ended.and_then(|()| Err(too_slow(&uid)));
                }
            }
        }
        Ok(())
    }
}

/// Freezes a filesystem and thaws it when it is released or `until` is reached. Fails when it did
/// not stay frozen until its release.
fn keep_frozen(
    system: &dyn System,
    uid: &Uid,
    inside: OwnedFd,
    until: Instant,
    released: &Receiver<()>,
    report_frozen: impl FnOnce(),
) -> Result<(), Error> {
    let freeze_failed = |why| Error::FreezeFailed {
        uid: uid.clone(),
        why,
    };
    // Another snapshot of the volume may be in progress.
    let frozen = patience::until(|| system.freeze(inside.as_fd()), |frozen| !is_busy(frozen));
    match frozen {
        Ok(()) => report_frozen(),
        Err(_) if is_busy(&frozen) => return Err(freeze_failed(NotFrozen::FrozenByOther)),
        Err(error) => return Err(failed("freeze the filesystem", uid)(error).into()),
    }
    // No message is ever sent: the release drops the sender.
    let is_in_time = released.recv_timeout(left(until)) == Err(RecvTimeoutError::Disconnected);
    let thawed = patience::until(|| system.thaw(inside.as_fd()), Result::is_ok);
    // An open file would prevent unmounting.
    drop(inside);
    match thawed {
        Err(error) => Err(failed("thaw the filesystem", uid)(error).into()),
        Ok(false) => Err(freeze_failed(NotFrozen::ThawedByOther)),
        Ok(true) if is_in_time => Ok(()),
        Ok(true) => Err(too_slow(uid)),
    }
}

fn too_slow(uid: &Uid) -> Error {
    Error::FreezeFailed {
        uid: uid.clone(),
        why: NotFrozen::FreezeTooLong,
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
