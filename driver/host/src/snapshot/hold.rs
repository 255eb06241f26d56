//! Holding filesystems still while they are cloned.
//!
//! One thread for each freezes it, waits, and thaws it: when it is let go of, which also happens when
//! whoever holds it panics; or when the time is over, whatever the holder is doing. FIFREEZE cannot
//! be called off: one that takes too long is given up, and its thread thaws the filesystem the moment
//! it comes back. A process that is asked to end waits for the thaw ([`Root::end_freezes`]); what one
//! leaves frozen when it dies, [`Root::thaw_all`] thaws.
//!
//! *Invariants:* what is frozen here is thawed here; [`Hold::end`] says that all was held still only
//! if all was, from before [`Hold::begin`] returned until it was called itself.
//!
//! [`Root::thaw_all`]: crate::Root::thaw_all
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

use super::Error;
use crate::{id::Uid, image::failed, patience, place::is_busy, root::Root, system::System};

/// How long a filesystem is held at most, counted from when it is asked to come to rest. A pod's
/// writers wait meanwhile: by default kubelet asks a probe three times, 10 seconds apart, before it
/// acts on it, and a database's own watchdogs are no quicker.
pub const HOLD_LIMIT: Duration = Duration::from_secs(10);
/// How long a thaw is waited for. It goes on if it takes longer.
const THAW_LIMIT: Duration = Duration::from_secs(2);

/// Filesystems that are held.
#[derive(Debug)]
pub(super) struct Hold {
    /// Those whose thread has not ended.
    images: Vec<Uid>,
    /// Dropping them lets go.
    release: Vec<Sender<()>>,
    reports: Receiver<(Uid, Report)>,
}

/// What a thread says of its filesystem.
#[derive(Debug)]
enum Report {
    /// It is frozen.
    Frozen,
    /// It is not, or not any more; and if so, whether it was until it was let go of.
    Ended(Result<(), Error>),
}

impl Hold {
    /// Freezes filesystems, each given by its image and a file in it.
    pub(super) fn begin(root: &Root, filesystems: Vec<(Uid, OwnedFd)>) -> Result<Self, Error> {
        let until = Instant::now() + HOLD_LIMIT;
        let (report, reports) = mpsc::channel();
        let mut hold = Self {
            images: Vec::new(),
            release: Vec::new(),
            reports,
        };
        let started = filesystems
            .into_iter()
            .try_for_each(|(image, inside)| hold.start(root, &image, inside, until, &report));
        match started.and_then(|()| hold.wait(until)) {
            Ok(()) => Ok(hold),
            Err(error) => {
                // Those that are frozen are thawed when this returns.
                let _ = hold.end();
                Err(error)
            }
        }
    }

    /// Lets go of all, waits until they are thawed, and says whether all were held still.
    pub(super) fn end(mut self) -> Result<(), Error> {
        self.release.clear();
        let until = Instant::now() + THAW_LIMIT;
        let mut result = Ok(());
        while !self.images.is_empty() {
            let Ok((uid, report)) = self.reports.recv_timeout(left(until)) else {
                // Nobody knows what its thread has to say.
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
        let freeze = root.freezes.begin().ok_or_else(|| {
            let why = "the process that was to thaw it is about to end: the next one tries again";
            failed("freeze the filesystem", image)(io::Error::other(why))
        })?;
        let (release, released) = mpsc::channel();
        let (system, report, uid) = (Arc::clone(&root.system), report.clone(), image.clone());
        let work = move || {
            let tell_frozen = || {
                let _ = report.send((uid.clone(), Report::Frozen));
            };
            let ended = keep_frozen(&*system, &uid, inside, until, &released, tell_frozen);
            drop(freeze);
            if let Err(error) = &ended {
                tracing::warn!(image = %uid, %error, "a filesystem was not held still");
            }
            let _ = report.send((uid.clone(), Report::Ended(ended)));
        };
        thread::Builder::new()
            .name("hold".to_owned())
            .spawn(work)
            .map_err(failed("start a thread to freeze the filesystem", image))?;
        self.images.push(image.clone());
        self.release.push(release);
        Ok(())
    }

    /// Waits until all are frozen.
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

/// Freezes a filesystem and thaws it when it is let go of or the time is over. An error says that it
/// was not held still until it was let go of.
fn keep_frozen(
    system: &dyn System,
    uid: &Uid,
    inside: OwnedFd,
    until: Instant,
    released: &Receiver<()>,
    tell_frozen: impl FnOnce(),
) -> Result<(), Error> {
    let not_held = |why: &str| Error::NotHeldStill {
        uid: uid.clone(),
        why: why.to_owned(),
    };
    // Another snapshot of it may just be cut.
    let frozen = patience::until(|| system.freeze(inside.as_fd()), |frozen| !is_busy(frozen));
    match frozen {
        Ok(()) => tell_frozen(),
        Err(_) if is_busy(&frozen) => {
            return Err(not_held(
                "somebody else has frozen its filesystem: try again",
            ));
        }
        Err(error) => return Err(failed("freeze the filesystem", uid)(error).into()),
    }
    // Nothing is ever sent: the other end goes.
    let is_in_time = released.recv_timeout(left(until)) == Err(RecvTimeoutError::Disconnected);
    let thawed = patience::until(|| system.thaw(inside.as_fd()), Result::is_ok);
    // Nobody is kept from unmounting it any more.
    drop(inside);
    match thawed {
        Err(error) => Err(failed("thaw the filesystem", uid)(error).into()),
        Ok(false) => Err(not_held(
            "somebody else has thawed its filesystem: try again",
        )),
        Ok(true) if is_in_time => Ok(()),
        Ok(true) => Err(too_slow(uid)),
    }
}

fn too_slow(uid: &Uid) -> Error {
    Error::NotHeldStill {
        uid: uid.clone(),
        why: format!(
            "with its filesystem frozen it took longer than {HOLD_LIMIT:?}, for which its writers \
             can be held up: try again when less is written, or cut fewer volumes together"
        ),
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
