//! `kubectl cistern`, as tests run it.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::{
    ControlPlane,
    process::{binary, command, run},
};

/// Timeout of a run.
const SOON: Duration = Duration::from_mins(2);

/// The program with the kubeconfig of one cluster.
#[derive(Clone, Debug)]
pub struct Plugin {
    kubeconfig: PathBuf,
}

/// Output and exit code of the program.
#[derive(Debug)]
pub struct Answer {
    /// The exit code.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Plugin {
    /// Returns the program with an administrator's permissions.
    pub fn of(control_plane: &ControlPlane) -> Self {
        Self::with(control_plane.kubeconfig())
    }

    /// Returns the program with this kubeconfig.
    pub fn with(kubeconfig: &Path) -> Self {
        Self {
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    /// Returns the command that runs the program.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = command(binary("kubectl-cistern"));
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(words);
        command
    }

    /// Runs the program without input.
    pub async fn run(&self, words: &[&str]) -> Answer {
        Answer::from(run(self.command(words), SOON).await)
    }

    /// Starts the program with `answer` on standard input.
    pub fn start(&self, words: &[&str], answer: &str) -> Child {
        let mut command = self.command(words);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A program that refuses does not read its standard input.
        let _ = stdin.write_all(answer.as_bytes());
        child
    }

    /// Runs the program, asserts success, and returns its standard output.
    pub async fn text(&self, words: &[&str]) -> String {
        let answer = self.run(words).await;
        assert_eq!(
            answer.code, 0,
            "{words:?}: {}{}",
            answer.stdout, answer.stderr
        );
        answer.stdout
    }

    /// Runs the program, asserts success, and returns its output in JSON.
    pub async fn json(&self, words: &[&str]) -> Value {
        let text = self.text(&[words, &["-o", "json"]].concat()).await;
        serde_json::from_str(&text).unwrap()
    }
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

/// Waits until a started program exits.
pub async fn end(child: Child) -> Answer {
    let ended = tokio::task::spawn_blocking(|| child.wait_with_output());
    Answer::from(ended.await.unwrap().unwrap())
}
