//! The one place that starts processes: the tools that own a format (`mkfs.*`, `blkid`, those that
//! check and grow).
//!
//! *Invariant:* no shell, no inherited environment, operands after `--`, and no tool outlives its
//! deadline unanswered.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read as _, Seek as _},
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    process::{Child, ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// The name under which a tool can open its own standard input.
pub(crate) const STDIN: &str = "/proc/self/fd/0";
/// Where the tools are looked for.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// How much of what a tool says is kept.
const OUTPUT_LIMIT: u64 = 64 << 10;
/// How long a killed process may take to go: longer means that the kernel cannot let go of it.
const REAP_TIME: Duration = Duration::from_secs(5);

/// A tool to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    program: &'static str,
    args: Vec<OsString>,
    operands: Vec<OsString>,
    deadline: Duration,
}

/// What a tool that ended had to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit code; none when a signal ended it.
    pub exit: Option<i32>,
    /// Standard output, cut at 64 KiB.
    pub stdout: String,
    /// Standard error, cut at 64 KiB.
    pub stderr: String,
}

/// Why a tool did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started or waited for.
    #[error("{command} could not be run: is the package that brings it installed")]
    Start {
        /// Program and arguments.
        command: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// It ended with another code than zero.
    #[error("{command} failed with {exit}: {stderr}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Exit code or signal.
        exit: String,
        /// What it wrote.
        stderr: String,
    },
    /// It was killed because it took too long.
    #[error("{command} was killed because it took longer than {deadline:?}")]
    Deadline {
        /// Program and arguments.
        command: String,
        /// How long it had.
        deadline: Duration,
    },
}

/// Every tool that is started somewhere in this crate.
const TOOLS: [&str; 7] = [
    "mkfs.ext4",
    "mkfs.xfs",
    "mkfs.btrfs",
    "blkid",
    "e2fsck",
    "resize2fs",
    "xfs_db",
];

/// The first tool that is not installed, if one is missing. Looks at file names only.
pub fn missing_tool() -> Option<&'static str> {
    let is_installed = |tool: &&str| {
        let mut folders = PATH.split(':').map(Path::new);
        folders.any(|folder| folder.join(tool).is_file())
    };
    TOOLS.into_iter().find(|tool| !is_installed(tool))
}

impl Command {
    /// A tool with a deadline.
    pub fn new(program: &'static str, deadline: Duration) -> Self {
        Self {
            program,
            args: Vec::new(),
            operands: Vec::new(),
            deadline,
        }
    }

    /// Adds an option.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds an option and its value.
    #[must_use]
    pub fn option(self, option: &str, value: impl Into<OsString>) -> Self {
        self.arg(option).arg(value)
    }

    /// Adds an operand: it stands behind `--`, so that it is never read as an option.
    #[must_use]
    pub fn operand(mut self, operand: impl Into<OsString>) -> Self {
        self.operands.push(operand.into());
        self
    }

    /// Runs the tool to its end. The file, if there is one, is its standard input, which it can
    /// open again by the name `/proc/self/fd/0`.
    pub(crate) fn run(&self, input: Option<BorrowedFd<'_>>) -> Result<Output, Error> {
        let (mut child, mut stdout, mut stderr) =
            self.start(input).map_err(|e| self.not_started(e))?;
        let ended = wait(&mut child, self.deadline).map_err(|e| self.not_started(e))?;
        let Some(status) = ended else {
            return Err(self.kill(&mut child));
        };
        Ok(Output {
            exit: status.code(),
            stdout: read(&mut stdout).map_err(|e| self.not_started(e))?,
            stderr: read(&mut stderr).map_err(|e| self.not_started(e))?,
        })
    }

    /// The error for an ending that was not asked for.
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

    fn start(&self, input: Option<BorrowedFd<'_>>) -> io::Result<(Child, File, File)> {
        // Files in memory instead of pipes: nobody has to read while the tool runs, and a
        // grandchild that keeps them open holds nobody up.
        let stdout = File::from(memfd_create(c"stdout", MemfdFlags::CLOEXEC)?);
        let stderr = File::from(memfd_create(c"stderr", MemfdFlags::CLOEXEC)?);
        let stdin = match input {
            Some(file) => Stdio::from(file.try_clone_to_owned()?),
            None => Stdio::null(),
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that starts processes"
        )]
        let child = std::process::Command::new(self.program)
            .args(&self.args)
            .arg("--")
            .args(&self.operands)
            .env_clear()
            .env("PATH", PATH)
            .env("LC_ALL", "C")
            .stdin(stdin)
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .spawn()?;
        Ok((child, stdout, stderr))
    }

    fn kill(&self, child: &mut Child) -> Error {
        let reaped = child.kill().and_then(|()| wait(child, REAP_TIME));
        if !matches!(reaped, Ok(Some(_))) {
            tracing::warn!(command = %self, pid = child.id(), "the killed process does not end");
        }
        Error::Deadline {
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

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.program)?;
        for arg in self.args.iter().chain(&self.operands) {
            write!(f, " {}", arg.display())?;
        }
        Ok(())
    }
}

/// Waits for a child; none when the time is over first.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let ended: OwnedFd = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut events = [PollFd::new(&ended, PollFlags::IN)];
    while let Err(error) = poll(&mut events, Some(&limit)) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    // Ended or not: this does not block.
    child.try_wait()
}

fn read(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn what_a_tool_says_is_kept_and_operands_are_never_options() {
        let output = Command::new("echo", SOON)
            .arg("-n")
            .operand("-e")
            .run(None)
            .unwrap();
        assert_eq!((output.exit, output.stdout.as_str()), (Some(0), "-- -e"));
    }

    #[test]
    fn a_failure_names_program_arguments_exit_and_what_was_written() {
        let command = Command::new("cat", SOON).operand("/does/not/exist");
        let output = command.run(None).unwrap();
        let text = command.failed(&output).to_string();
        assert!(
            text.starts_with("cat /does/not/exist failed with exit code 1: cat:"),
            "{text}"
        );
    }

    #[test]
    fn a_tool_that_hangs_is_killed_and_reaped() {
        let begin = Instant::now();
        let error = Command::new("sleep", Duration::from_millis(50))
            .operand("60")
            .run(None)
            .unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(begin.elapsed() < SOON);
    }

    #[test]
    fn a_missing_tool_is_an_error_that_says_so() {
        let error = Command::new("no-such-tool", SOON).run(None).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no-such-tool could not be run")
        );
    }
}
