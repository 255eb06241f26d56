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

/// Reads names of folders until this process has ended, and removes those that are left. It retries a few times,
/// because processes that are being killed may still write there.
///
/// The loop device of a raw block volume does not end with a mount, and keeps the pool with its image in use, so
/// a leftover device is detached. The sweep identifies it by the pool's device, whose file is in a folder.
const SWEEP: &str = r#"
while read -r folder; do set -- "$@" "$folder"; done
left() {
  losetup --noheadings --output NAME,MAJ:MIN,BACK-MAJ:MIN,BACK-FILE | awk -v folder="$1/" '
    { below[$1] = $3 }
    index($4, folder) == 1 { pools[$2] }
    END { for (name in below) if (below[name] in pools) print name }'
}
for folder; do left "$folder" | xargs --no-run-if-empty losetup --detach; done
for _ in 1 2 3 4 5 6 7 8 9 10; do
  rm -rf -- "$@" && exit
  sleep 0.2
done
"#;

/// Its standard input closes when this process ends.
static SWEEPER: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    use std::os::unix::process::CommandExt as _;

    let mut command = process::command("sh");
    command
        .args(["-c", SWEEP, "sweeper"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // An interrupt from the terminal ends the test, not the sweeper.
        .process_group(0);
    Mutex::new(command.spawn().expect("sh cannot be started"))
});
