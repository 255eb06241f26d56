//! How the disk behaves at each moment, and the requests that it does not answer yet.

use std::{
    fs, io, mem,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use failing_disk::Mode;

/// `EIO`, as <errno.h> has it.
const EIO: i32 = 5;
/// How often it is asked whether the disk still hangs.
const PAUSE: Duration = Duration::from_millis(10);

/// What a request does to the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// Changes bytes before this one.
    Write {
        end: u64,
    },
}

/// What is to become of a request that does not fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// It is done and recorded.
    Recorded,
    /// It is said to be done.
    Lost,
}

type Answer = Box<dyn FnOnce(io::Result<Outcome>) + Send>;

/// The control file, and the requests that wait for another mode.
pub(crate) struct Modes {
    control: PathBuf,
    last: Mutex<Mode>,
    held: Mutex<Vec<(Access, Answer)>>,
}

impl Modes {
    /// Follows a control file, in a thread that ends with the program.
    pub(crate) fn watch(control: PathBuf) -> Arc<Self> {
        let modes = Arc::new(Self {
            control,
            last: Mutex::new(Mode::Ok),
            held: Mutex::default(),
        });
        let watched = Arc::clone(&modes);
        thread::spawn(move || {
            loop {
                thread::sleep(PAUSE);
                let held =
                    mem::take(&mut *watched.held.lock().unwrap_or_else(PoisonError::into_inner));
                for (access, answer) in held {
                    watched.answer_boxed(access, answer);
                }
            }
        });
        modes
    }

    /// Has a request answered as the mode has it: at once, or when the disk does not hang any more.
    pub(crate) fn answer(
        &self,
        access: Access,
        answer: impl FnOnce(io::Result<Outcome>) + Send + 'static,
    ) {
        self.answer_boxed(access, Box::new(answer));
    }

    fn answer_boxed(&self, access: Access, answer: Answer) {
        match (self.now(), access) {
            (Mode::Ok, _)
            | (Mode::Record | Mode::EioWrite | Mode::Lose | Mode::HangFrom(_), Access::Read) => {
                answer(Ok(Outcome::Done));
            }
            (Mode::HangFrom(first), Access::Write { end }) if end <= first => {
                answer(Ok(Outcome::Done));
            }
            (Mode::Record, Access::Write { .. }) => answer(Ok(Outcome::Recorded)),
            (Mode::Lose, Access::Write { .. }) => answer(Ok(Outcome::Lost)),
            (Mode::Eio, _) | (Mode::EioWrite, Access::Write { .. }) => {
                answer(Err(io::Error::from_raw_os_error(EIO)));
            }
            (Mode::Hang, _) | (Mode::HangFrom(_), Access::Write { .. }) => {
                let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                held.push((access, answer));
            }
        }
    }

    /// The mode that the control file says; the last one where that cannot be read: it may just be
    /// written.
    fn now(&self) -> Mode {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let said = fs::read_to_string(&self.control).ok();
        if let Some(mode) = said.and_then(|text| text.trim().parse().ok()) {
            *last = mode;
        }
        *last
    }
}
