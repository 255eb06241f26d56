//! The only module that starts processes: `mkfs.*`, `blkid`, and the tools that check and grow
//! filesystems.
//!
//! *Invariants:* no shell, no inherited environment, operands after `--`; every call returns by the
//! tool's deadline. A tool that reads a tenant's data has limits of memory and processor time. No tool takes memory for more
//! output than is kept.

mod stderr;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read as _, Seek as _},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
    path::Path,
    process::{Child, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use cistern_types::Bytes;
use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    process::{Pid, PidfdFlags, Signal, pidfd_open},
};

use self::stderr::Stderr;

/// The name under which a tool can open its own standard input.
pub(crate) const STDIN: &str = "/proc/self/fd/0";
/// Search path of the tools.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes of a tool's output that are kept.
const OUTPUT_LIMIT: u64 = 64 << 10;
/// The file of a tool's output has a multiple of this size in bytes, because the kernel refuses a write to a part of a page.
const PAGE: u64 = 4096;
/// How long to wait for a killed process to exit: longer means that it is stuck in the kernel.
const REAP_TIME: Duration = Duration::from_secs(5);

/// Messages of tools that were denied memory. Tools have no exit code for it.
const OUT_OF_MEMORY: [&str; 4] = [
    "Can't allocate",
    "Cannot allocate memory",
    "Memory allocation failed",
    // A thread could not be started.
    "Resource temporarily unavailable",
];
/// Stack size of each thread of a limited tool, which counts against its address space; e2fsprogs
/// starts one thread per processor.
const STACK: Bytes = Bytes(512 << 10);
/// Processor time after SIGXCPU until the kernel kills a limited tool.
const CPU_GRACE: Duration = Duration::from_secs(5);

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

/// Resource limits of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceLimits {
    /// Address space of its process in bytes.
    pub address_space: Bytes,
    /// Processor time of its process, in whole seconds.
    pub cpu: Duration,
}

impl ResourceLimits {
    /// Options of prlimit(1), which sets the limits before it executes the tool.
    fn options(self) -> [String; 4] {
        let cpu = self.cpu.as_secs();
        [
            format!("--as={}", self.address_space.0),
            format!("--cpu={cpu}:{}", cpu + CPU_GRACE.as_secs()),
            format!("--stack={}", STACK.0),
            // A program that takes core dumps would get one at a limit of 0.
            "--core=1".to_owned(),
        ]
    }
}

/// A tool with its arguments, deadline and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    program: &'static str,
    args: Vec<OsString>,
    operands: Vec<OsString>,
    deadline: Duration,
    limits: Option<ResourceLimits>,
    /// Under which name the tool is left to itself when its deadline passes; none if it is killed then.
    left_as: Option<String>,
    /// Bytes of its standard output that are kept.
    output_limit: u64,
}

/// Exit status and output of a tool that exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit code; none when a signal killed it.
    pub exit: Option<i32>,
    /// The signal that killed it; none otherwise.
    pub signal: Option<i32>,
    /// Standard output, truncated at 64 KiB unless the command has another limit.
    pub stdout: String,
    /// Standard error, truncated at 64 KiB.
    pub stderr: String,
}

/// Why a tool failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started or waited for.
    #[error("{command} could not be run: is the package that provides it installed")]
    Start {
        /// Program and arguments.
        command: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// It exited with a code other than zero.
    #[error("{command} failed with {exit}: {stderr}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Exit code or signal.
        exit: String,
        /// Its standard error.
        stderr: String,
    },
    /// It was killed because it took too long.
    #[error("{command} was killed because it took longer than {deadline:?}")]
    Deadline {
        /// Program and arguments.
        command: String,
        /// Deadline of the tool.
        deadline: Duration,
    },
    /// It takes long, and is left to end by itself. Or an earlier tool of its name does, and it was not started.
    #[error("{command} still runs after {deadline:?}, and is not interrupted")]
    StillRuns {
        /// Program and arguments of the tool that runs.
        command: String,
        /// How long it was waited for.
        deadline: Duration,
    },
}

/// All tools that this crate starts, without that of encrypted volumes, which a node may lack.
const TOOLS: [&str; 8] = [
    "mkfs.ext4",
    "mkfs.xfs",
    "mkfs.btrfs",
    "blkid",
    "e2fsck",
    "resize2fs",
    "xfs_db",
    "prlimit",
];

/// A tool is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tool} is missing: install its package")]
pub struct MissingTool {
    /// Name of the program.
    pub tool: &'static str,
}

/// Fails if a tool is not installed. Checks file names only.
pub fn check_tools() -> Result<(), MissingTool> {
    match TOOLS.into_iter().find(|tool| !is_installed(tool)) {
        Some(tool) => Err(MissingTool { tool }),
        None => Ok(()),
    }
}

/// Whether a tool is installed, by the name of its file.
pub(crate) fn is_installed(tool: &str) -> bool {
    let mut folders = PATH.split(':').map(Path::new);
    folders.any(|folder| folder.join(tool).is_file())
}

impl Command {
    /// Creates a command with a deadline.
    pub fn new(program: &'static str, deadline: Duration) -> Self {
        Self {
            program,
            args: Vec::new(),
            operands: Vec::new(),
            deadline,
            limits: None,
            left_as: None,
            output_limit: OUTPUT_LIMIT,
        }
    }

    /// Leaves the tool to itself when its deadline passes, instead of killing it. Until it has ended, no other tool of this name
    /// is started: it would wait for the same.
    #[must_use]
    pub(crate) fn never_killed(mut self, name: &str) -> Self {
        self.left_as = Some(name.to_owned());
        self
    }

    /// Sets how much of the standard output is kept.
    #[must_use]
    pub(crate) fn keeping(mut self, output: Bytes) -> Self {
        self.output_limit = output.0;
        self
    }

    /// Sets resource limits.
    #[must_use]
    pub(crate) fn limited(mut self, limits: ResourceLimits) -> Self {
        self.limits = Some(limits);
        self
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

    /// Adds an operand. It follows `--`, so that it is never parsed as an option.
    #[must_use]
    pub fn operand(mut self, operand: impl Into<OsString>) -> Self {
        self.operands.push(operand.into());
        self
    }

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

impl Output {
    /// Whether a tool failed because it reached one of its limits.
    pub(crate) fn has_reached_limit(&self) -> bool {
        let says = |text: &&str| self.stdout.contains(*text) || self.stderr.contains(*text);
        self.signal == Some(Signal::XCPU.as_raw()) || OUT_OF_MEMORY.iter().any(says)
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

/// Makes the standard output of a tool, which takes about as many bytes as are kept. The tool gets an error for what it writes
/// after that.
///
/// A file in memory instead of a pipe: it need not be read while the tool runs, and a grandchild that keeps it open does not
/// block the reader.
fn output_file(limit: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create(c"stdout", flags)?);
    // A part that was never written takes no memory.
    file.set_len(limit.next_multiple_of(PAGE))?;
    fcntl_add_seals(&file, SealFlags::GROW)?;
    Ok(file)
}

fn read(file: &mut File, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    // Where the tool has stopped to write: both have the same position.
    let written = file.stream_position()?;
    file.rewind()?;
    file.take(limit.min(written)).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::patience::until_within;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn the_output_of_a_tool_is_kept_and_operands_are_never_options() {
        let output = Command::new("echo", SOON)
            .arg("-n")
            .operand("-e")
            .run(None, &|_| false)
            .unwrap();
        assert_eq!((output.exit, output.stdout.as_str()), (Some(0), "-- -e"));
    }

    #[test]
    fn a_failure_names_program_arguments_exit_and_what_was_written() {
        let command = Command::new("cat", SOON).operand("/does/not/exist");
        let output = command.run(None, &|_| false).unwrap();
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
            .run(None, &|_| false)
            .unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(begin.elapsed() < SOON);
    }

    #[test]
    fn a_tool_that_must_not_be_killed_ends_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ended");
        let script = format!("sleep 1; touch {}", file.display());
        let error = Command::new("sh", Duration::from_millis(50))
            .option("-c", script)
            .never_killed("a tool that ends")
            .run(None, &|_| false)
            .unwrap_err();
        assert!(matches!(error, Error::StillRuns { .. }), "{error}");
        assert!(until_within(SOON, || file.exists(), |exists| *exists));
    }

    #[test]
    fn until_a_tool_that_was_left_has_ended_no_other_one_of_its_name_is_started() {
        let folder = tempfile::tempdir().unwrap();
        let (begun, end) = (folder.path().join("begun"), folder.path().join("end"));
        let script = format!(
            "echo >>{}; until [ -e {} ]; do sleep 0.1; done",
            begun.display(),
            end.display()
        );
        let run = |name: &str, deadline| {
            let tool = Command::new("sh", deadline).option("-c", &script);
            tool.never_killed(name).run(None, &|_| false)
        };
        let begun_are = |count: usize| {
            let is_it = |text: &String| text.lines().count() == count;
            let text = || std::fs::read_to_string(&begun).unwrap_or_default();
            assert!(is_it(&until_within(SOON, text, is_it)), "{}", text());
        };
        for (name, count) in [("one", 1), ("one", 1), ("one", 1), ("other", 2)] {
            let error = run(name, Duration::from_secs(1)).unwrap_err();
            assert!(matches!(error, Error::StillRuns { .. }), "{error}");
            assert!(error.to_string().contains("echo >>"), "{error}");
            begun_are(count);
        }
        std::fs::write(&end, "").unwrap();
        let ended = until_within(SOON, || run("one", SOON), Result::is_ok);
        assert_eq!(ended.unwrap().exit, Some(0));
        begun_are(3);
    }

    #[test]
    fn no_more_output_is_kept_than_the_command_has_room_for() {
        let echo = Command::new("echo", SOON).arg("-n").operand("text");
        let kept = |limit| {
            let output = echo.clone().keeping(Bytes(limit)).run(None, &|_| false);
            output.unwrap().stdout
        };
        assert_eq!((kept(4).as_str(), kept(64).as_str()), ("-- t", "-- text"));
    }

    #[test]
    fn a_tool_that_writes_more_than_is_kept_gets_an_error_and_takes_no_memory_for_it() {
        let zeros = Command::new("dd", SOON)
            .operand("if=/dev/zero")
            .operand("bs=64K")
            .operand("count=1024");
        let output = zeros.run(None, &|_| false).unwrap();
        assert_eq!(output.exit, Some(1), "{}", output.stderr);
        assert_eq!(output.stdout.len() as u64, OUTPUT_LIMIT);
        let file = output_file(1).unwrap();
        assert_eq!(file.metadata().unwrap().len(), PAGE);
        let grown = file.set_len(PAGE + 1).unwrap_err();
        assert_eq!(grown.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_missing_tool_is_an_error_that_says_so() {
        let command = Command::new("no-such-tool", SOON);
        let error = command.run(None, &|_| false).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("no-such-tool could not be run")
        );
    }

    #[test]
    fn output_larger_than_a_pipe_is_read_completely_and_watched_line_by_line() {
        let lines = std::cell::Cell::new(0_u32);
        let watch = |line: &str| {
            lines.set(lines.get() + 1);
            line.ends_with("even")
        };
        let script = "BEGIN { for (i = 0; i < 20000; i++) print i, i % 2 ? \"odd\" : \"even\" > \"/dev/stderr\" }";
        let awk = Command::new("awk", SOON).operand(script);
        let output = awk.run(None, &watch).unwrap();
        assert_eq!((output.exit, lines.get()), (Some(0), 20000));
        assert!(output.stderr.starts_with("1 odd\n3 odd\n"));
        assert!(!output.stderr.contains("even"));
        assert_eq!(output.stderr.len() as u64, OUTPUT_LIMIT);
    }

    const LIMITS: ResourceLimits = ResourceLimits {
        address_space: Bytes::mib(512),
        cpu: Duration::from_secs(1),
    };

    #[test]
    fn a_tool_that_computes_for_longer_than_it_may_is_ended_before_its_deadline() {
        let endless = Command::new("sha256sum", Duration::from_mins(5)).operand("/dev/zero");
        let output = endless.limited(LIMITS).run(None, &|_| false).unwrap();
        assert_eq!(output.exit, None);
        assert!(output.has_reached_limit(), "{output:?}");
    }

    #[test]
    fn a_tool_gets_no_more_memory_than_it_may_have() {
        let limits = ResourceLimits {
            address_space: Bytes::mib(64),
            ..LIMITS
        };
        // One block of this size is one allocation.
        let greedy = Command::new("dd", SOON)
            .operand("bs=256M")
            .operand("if=/dev/zero");
        let output = greedy
            .clone()
            .limited(limits)
            .run(None, &|_| false)
            .unwrap();
        assert_eq!(output.exit, Some(1));
        assert!(greedy.failed(&output).to_string().starts_with("dd bs=256M"));
    }
}
