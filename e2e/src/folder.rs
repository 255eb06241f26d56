//! Temporary folders that are removed after the test process, however it ends.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{LazyLock, Mutex},
};

use crate::process;

/// A temporary folder. Removed when dropped, or after the process if it is never dropped.
#[derive(Debug)]
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// Creates a folder on the filesystem of `/var/tmp`, which is a disk, not memory.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("cistern-e2e.")
            .tempdir_in("/var/tmp")
            .expect("no folder can be made in /var/tmp");
        let mut sweeper = SWEEPER.lock().expect("no holder of the lock panics");
        let names = sweeper.stdin.as_mut().expect("it is piped");
        writeln!(names, "{}", folder.path().display()).expect("the sweeper has ended");
        Self(folder)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of an entry in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

/// Removes the folders that are left when this process has ended, which closes its standard input.
static SWEEPER: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    use std::os::unix::process::CommandExt as _;

    let mut command = process::command(process::workspace().join("e2e/scripts/sweep-folders"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // An interrupt from the terminal ends the test, not the sweeper.
        .process_group(0);
    Mutex::new(command.spawn().expect("the sweeper cannot be started"))
});
