//! Processes that tests start.
//!
//! *Invariant:* a process started here does not outlive this process, even if this process is killed: the kernel
//! ends it (`PR_SET_PDEATHSIG`).

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{LazyLock, mpsc},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{eventually, patience};

/// A background process. It is killed when dropped; if the test has failed, the end of its log is then shown.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command with its output appended to the file `log`.
    pub fn start(name: &str, log: &Path, mut command: Command) -> Self {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a file is cloned"))
            .stderr(file);
        let child = spawn(command).unwrap_or_else(|error| panic!("starting {name}: {error}"));
        Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        }
    }

    /// Returns its process id. Programs started through [`dying_with_us`] keep it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its exit status, or none while it runs.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Kills it with SIGKILL and waits until it has ended.
    pub fn kill(&mut self) {
        // An error means that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it with SIGTERM and returns its exit status.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let what = format!("{} to end after SIGTERM", self.name);
        eventually(&what, Duration::from_mins(2), async || {
            self.exited().ok_or_else(|| "it still runs".to_owned())
        })
        .await
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .unwrap_or_else(|error| panic!("signalling {}: {error}", self.name));
    }

    /// Returns its complete output.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns the last lines of its output.
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let start = lines.len().saturating_sub(40);
        lines.get(start..).unwrap_or_default().join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let tail = self.tail();
        if std::thread::panicking() && !tail.is_empty() {
            eprintln!("--- the end of {}'s log:\n{tail}\n---", self.name);
        }
    }
}

/// Creates a command. All commands are created here.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place of the tests where processes begin"
)]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// Returns a command whose process the kernel kills when this process ends.
pub fn dying_with_us(program: impl AsRef<OsStr>) -> Command {
    let mut command = command("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Runs a command to its end.
///
/// # Panics
/// When it takes longer than the deadline, times the patience of this machine.
pub async fn run(command: Command, deadline: Duration) -> Output {
    let line = format!("{command:?}");
    let deadline = deadline * patience();
    let mut command = tokio::process::Command::from(command);
    command.stdin(Stdio::null()).kill_on_drop(true);
    tokio::time::timeout(deadline, command.output())
        .await
        .unwrap_or_else(|_| panic!("{line} took longer than {} s", deadline.as_secs()))
        .unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Runs a command to its end and returns its standard output.
///
/// # Panics
/// When it fails or takes longer than the deadline.
pub async fn output(command: Command, deadline: Duration) -> String {
    let line = format!("{command:?}");
    let output = run(command, deadline).await;
    checked(&line, &output)
}

/// Returns the standard output of a command that has ended. `line` is the command as a message shows it.
///
/// # Panics
/// When the command has failed.
pub fn checked(line: &str, output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{line}: {}\n{stdout}{stderr}",
        output.status
    );
    stdout
}

/// Returns the path of one of Cistern's programs, as cargo has built it beside this test.
///
/// # Panics
/// When it has not been built: cargo builds only what the test's own crate depends on.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("/proc is mounted");
    let path = test
        .ancestors()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    path.unwrap_or_else(|| panic!("{name} is not built: run cargo build --bin {name}"))
}

/// Returns the folder of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the path of a program, which the harness builds if it does not exist.
pub async fn tool(name: &str) -> PathBuf {
    let mut tool = command(workspace().join("e2e/cluster/tool"));
    tool.arg(name);
    // A first build of kube-apiserver takes minutes.
    let path = output(tool, Duration::from_mins(30)).await;
    PathBuf::from(path.trim_end())
}

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// The thread that starts processes. `PR_SET_PDEATHSIG` applies to the thread that started a process, and a
/// test's own thread may end while other tests still use the process.
static STARTER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
    let (sender, jobs) = mpsc::channel::<Job>();
    std::thread::spawn(move || {
        for (mut command, answer) in jobs {
            // The receiver is gone only if the requesting thread has ended.
            let _ = answer.send(command.spawn());
        }
    });
    sender
});

fn spawn(command: Command) -> io::Result<Child> {
    let (sender, answer) = mpsc::channel();
    STARTER
        .send((command, sender))
        .expect("the thread never ends");
    answer.recv().expect("the thread answers")
}
