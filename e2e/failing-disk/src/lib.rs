//! A disk of the tests that fails on demand: one file, served through FUSE by the program of this
//! crate, that a loop device is bound to.
//!
//! ```text
//! <folder>/disk             what the disk holds: sparse, on a filesystem that is well
//! <folder>/disk.mode        how it behaves: see Mode
//! <folder>/disk.journal     what it was asked to write while it recorded: see Change
//! <folder>/mount/disk       the disk
//! ```
//!
//! *Invariant:* nothing hangs for longer than the program runs. When it ends, however it does, the
//! kernel aborts its connection, as by `/sys/fs/fuse/connections/<minor>/abort` (which needs fusectl
//! to be mounted): whoever waits for the disk gets an error, and all can be unmounted.

mod cut;
mod journal;

use std::{
    env, fmt, fs,
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
};

use rustix::mount::{UnmountFlags, unmount};

pub use self::{
    cut::{Rest, flushed},
    journal::{Change, journal_file},
};

/// Name of the one file that is served.
pub const NAME: &str = "disk";
/// What the program prints once the disk is there.
pub const MOUNTED: &str = "mounted";

/// How the disk behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is well.
    Ok,
    /// It is well, and records what it is asked to write.
    Record,
    /// Everything fails with `EIO`.
    Eio,
    /// Writing fails with `EIO`; what was written before can be read.
    EioWrite,
    /// It says that it has written, and has not.
    Lose,
    /// Nothing is answered until the mode is another.
    Hang,
    /// It is well, but what changes this byte or a later one is not answered until the mode is another.
    HangFrom(u64),
}

/// How [`Mode::HangFrom`] begins.
const HANG_FROM: &str = "hang-from-";

/// A word that is no mode.
#[derive(Debug)]
pub struct UnknownMode;

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        match word {
            "ok" => Ok(Self::Ok),
            "record" => Ok(Self::Record),
            "eio" => Ok(Self::Eio),
            "eio-write" => Ok(Self::EioWrite),
            "lose" => Ok(Self::Lose),
            "hang" => Ok(Self::Hang),
            _ => {
                let first = word.strip_prefix(HANG_FROM).ok_or(UnknownMode)?;
                first.parse().map(Self::HangFrom).map_err(|_| UnknownMode)
            }
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Ok => "ok",
            Self::Record => "record",
            Self::Eio => "eio",
            Self::EioWrite => "eio-write",
            Self::Lose => "lose",
            Self::Hang => "hang",
            Self::HangFrom(first) => return write!(f, "{HANG_FROM}{first}"),
        };
        f.write_str(word)
    }
}

/// The file that says how the disk over a file behaves. Where there is none, it is well.
pub fn control_file(backing: &Path) -> PathBuf {
    let mut path = backing.as_os_str().to_owned();
    path.push(".mode");
    path.into()
}

/// Where cargo has put the program: beside the test that runs.
pub fn program() -> io::Result<PathBuf> {
    let test = env::current_exe()?;
    let found = test
        .ancestors()
        .map(|folder| folder.join("failing-disk"))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        let how = "failing-disk is not built: run cargo build --package failing-disk";
        io::Error::new(io::ErrorKind::NotFound, how)
    })
}

/// A disk of a test. It ends with this value.
#[derive(Debug)]
pub struct FailingDisk {
    server: Child,
    folder: PathBuf,
}

impl FailingDisk {
    /// Starts the program, as `command` has it be started (in a mount namespace, say), and returns
    /// when the disk is there. The folder exists; what a disk held there before, it holds again.
    pub fn start(mut command: Command, folder: &Path, size: u64) -> io::Result<Self> {
        let mount_point = folder.join("mount");
        fs::create_dir_all(&mount_point)?;
        command
            .args([&mount_point, &folder.join(NAME)])
            .arg(size.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut disk = Self {
            server: command.spawn()?,
            folder: folder.to_owned(),
        };
        let mut line = String::new();
        if let Some(output) = disk.server.stdout.take() {
            // It ends at once when it cannot mount, and then there is no line.
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.trim_end() == MOUNTED {
            Ok(disk)
        } else {
            Err(io::Error::other("failing-disk did not mount the disk"))
        }
    }

    /// The file that a loop device is to be bound to.
    pub fn path(&self) -> PathBuf {
        self.folder.join("mount").join(NAME)
    }

    /// The file with what the disk holds.
    pub fn backing(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    /// What the disk was asked to write since it records.
    pub fn recorded(&self) -> io::Result<Vec<Change>> {
        Change::read_all(&journal_file(&self.backing()))
    }

    /// Sets how the disk behaves, from its next request on.
    pub fn set(&self, mode: Mode) -> io::Result<()> {
        fs::write(control_file(&self.backing()), format!("{mode}\n"))
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.server.kill();
        let _ = self.server.wait();
        // Of another namespace, it goes with that.
        let _ = unmount(self.folder.join("mount"), UnmountFlags::DETACH);
    }
}
