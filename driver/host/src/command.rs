//! The only module that starts processes: `mkfs.*`, `blkid`, and the tools that check and grow
//! filesystems.
//!
//! *Invariants:* no shell, no inherited environment, operands after `--`; every call returns by the
//! tool's deadline. A tool that reads a tenant's data has limits of memory and processor time. No tool takes memory for more
//! output than is kept.

mod build;
mod error;
mod limits;
mod output;
mod stderr;
#[cfg(test)]
mod tests;
mod tools;

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
    process::{Child, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

pub use self::{
    build::Command,
    error::Error,
    output::Output,
    tools::{MissingTool, check_tools},
};
pub(crate) use self::{limits::ResourceLimits, tools::is_installed};
use self::{
    output::{output_file, read},
    stderr::Stderr,
};

/// The name under which a tool can open its own standard input.
pub(crate) const STDIN: &str = "/proc/self/fd/0";
/// Search path of the tools.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// How long to wait for a killed process to exit: longer means that it is stuck in the kernel.
const REAP_TIME: Duration = Duration::from_secs(5);

/// Tools that were left to themselves, and have not ended yet.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// A tool that was left to itself.
struct Left {
    /// Of its name no other tool is started.
    name: String,
    pid: u32,
    /// Program and arguments.
    command: String,
}

impl Command {
    /// Runs the tool to completion. The file, if given, is its standard input, which it can reopen
    /// as `/proc/self/fd/0`. Each line of its standard error is passed to `watch` as it arrives,
    /// and kept unless `watch` returns true.
    pub(crate) fn run(
        &self,
        input: Option<BorrowedFd<'_>>,
        watch: &dyn Fn(&str) -> bool,
    ) -> Result<Output, Error> {
        if let Some(name) = &self.left_as {
            self.refuse_another(name)?;
        }
        let (mut child, mut stdout, pipe) = self.start(input).map_err(|e| self.not_started(e))?;
        let mut stderr = Stderr::new(pipe, watch);
        let ended = wait(&mut child, self.deadline, Some(&mut stderr));
        let Some(status) = ended.map_err(|e| self.not_started(e))? else {
            return Err(match &self.left_as {
                None => self.kill(&mut child),
                Some(name) => self.leave(child, name),
            });
        };
        Ok(Output {
            exit: status.code(),
            signal: status.signal(),
            stdout: read(&mut stdout, self.output_limit).map_err(|e| self.not_started(e))?,
            stderr: stderr.finish(),
        })
    }

    /// Returns the error for an unexpected exit status.
    pub fn failed(&self, output: &Output) -> Error {
        let exit = output
            .exit
            .map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
        Error::Failed {
            command: self.to_string(),
            exit,
            stderr: output.stderr.trim().replace('\n', "; "),
        }
    }

    /// Fails while an earlier tool of a name runs that was left to itself.
    fn refuse_another(&self, name: &str) -> Result<(), Error> {
        match LEFT.lock().iter().find(|left| left.name == name) {
            None => Ok(()),
            Some(left) => Err(Error::StillRuns {
                command: left.command.clone(),
                deadline: self.deadline,
            }),
        }
    }

    fn start(&self, input: Option<BorrowedFd<'_>>) -> io::Result<(Child, File, io::PipeReader)> {
        let stdout = output_file(self.output_limit)?;
        let (reader, writer) = io::pipe()?;
        let stdin = match input {
            Some(file) => Stdio::from(file.try_clone_to_owned()?),
            None => Stdio::null(),
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the only place that starts processes"
        )]
        let mut command = match self.limits {
            None => std::process::Command::new(self.program),
            Some(limits) => {
                let mut command = std::process::Command::new("prlimit");
                command.args(limits.options()).arg(self.program);
                command
            }
        };
        command.env_clear().env("PATH", PATH).env("LC_ALL", "C");
        if self.limits.is_some() {
            // A heap per thread would take address space that is not used.
            command.env("MALLOC_ARENA_MAX", "1");
        }
        let child = command
            .args(&self.args)
            .arg("--")
            .args(&self.operands)
            .stdin(stdin)
            .stdout(stdout.try_clone()?)
            .stderr(writer)
            .spawn()?;
        Ok((child, stdout, reader))
    }

    fn kill(&self, child: &mut Child) -> Error {
        let reaped = child.kill().and_then(|()| wait(child, REAP_TIME, None));
        if !matches!(reaped, Ok(Some(_))) {
            tracing::warn!(command = %self, pid = child.id(), "a killed tool does not exit");
        }
        Error::Deadline {
            command: self.to_string(),
            deadline: self.deadline,
        }
    }

    /// Lets a tool end by itself, and waits for it in a thread so that it does not stay a zombie.
    fn leave(&self, mut child: Child, name: &str) -> Error {
        let pid = child.id();
        LEFT.lock().push(Left {
            name: name.to_owned(),
            pid,
            command: self.to_string(),
        });
        let forget = move || LEFT.lock().retain(|left| left.pid != pid);
        let wait = move || {
            _ = child.wait();
            forget();
        };
        if let Err(error) = thread::Builder::new().name("tool".to_owned()).spawn(wait) {
            forget();
            tracing::warn!(command = %self, pid, %error, "nothing waits for a tool that still runs");
        }
        Error::StillRuns {
            command: self.to_string(),
            deadline: self.deadline,
        }
    }

    fn not_started(&self, source: io::Error) -> Error {
        Error::Start {
            command: self.to_string(),
            source,
        }
    }
}

/// Waits for a child and reads its standard error in the meantime; none when the limit expires
/// first.
fn wait(
    child: &mut Child,
    limit: Duration,
    mut stderr: Option<&mut Stderr<'_>>,
) -> io::Result<Option<ExitStatus>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let ended: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let speaks = is_ready(ended.as_fd(), stderr.as_deref(), left)? && !left.is_zero();
        if let Some(stderr) = stderr.as_deref_mut().filter(|_| speaks) {
            stderr.read()?;
        } else {
            // Does not block, whether the child has exited or not.
            return child.try_wait();
        }
    }
}

/// Waits until a process has exited or has written to its standard error, at most `limit`, and
/// returns whether it has written.
fn is_ready(
    ended: BorrowedFd<'_>,
    stderr: Option<&Stderr<'_>>,
    limit: Duration,
) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let pipe = stderr.and_then(Stderr::pipe);
    let mut events = vec![PollFd::from_borrowed_fd(ended, PollFlags::IN)];
    events.extend(pipe.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)));
    while let Err(error) = poll(&mut events, Some(&limit)) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    Ok(events
        .get(1)
        .is_some_and(|event| !event.revents().is_empty()))
}
