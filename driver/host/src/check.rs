//! Checking an ext4 before it is mounted.
//!
//! The kernel mounts an ext4 that was found damaged, and would go on writing to it. (XFS and btrfs
//! refuse by themselves. All three replay their logs when they are mounted.)
//!
//! *Invariant:* only what e2fsck holds for safe is done to the data; what needs the judgement of a
//! person is left to one, and the filesystem is not mounted.

use std::{cell::Cell, fmt, os::fd::BorrowedFd, time::Duration};

use cistern_crds::Bytes;

use crate::{
    cause::Cause,
    command::{Command, Limits, STDIN},
    system::System,
};

/// A check reads every inode of a filesystem that may have terabytes.
const DEADLINE: Duration = Duration::from_hours(6);
/// What a check or a growth takes of the node at most. How much it wants is up to the tenant who wrote
/// the filesystem. Two at a time leave room for the agent in the memory that its manifest grants.
pub(crate) const LIMITS: Limits = Limits {
    address_space: Bytes::mib(192),
    cpu: Duration::from_hours(1),
};
/// Where each pass of e2fsck begins, in percent of the whole: as e2fsck itself draws it.
const PASSES: [u64; 6] = [0, 70, 90, 92, 95, 100];

/// What is told how far a check is, in percent.
pub type Progress<'a> = &'a dyn Fn(u8);

/// Whether a call may check a whole filesystem, and grow one that is not mounted: both can take hours.
#[derive(Clone, Copy)]
pub enum Checking<'a> {
    /// Yes; and who is told how far it is.
    Now(Progress<'a>),
    /// No. What needs it fails with [`crate::image::Error::CheckNeeded`], and nothing was done.
    Later,
    /// No. What has to be checked fails in the same way, and what is to grow does not.
    Without,
}

impl Checking<'static> {
    /// In this call, and nobody is told how far it is.
    pub const UNSEEN: Self = Self::Now(&|_| {});
}

impl fmt::Debug for Checking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Now(_) => "Now",
            Self::Later => "Later",
            Self::Without => "Without",
        })
    }
}

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What the filesystem says is needed: all of it when it was found damaged, or else its journal.
    AsNeeded,
    /// All of it.
    Full,
}

/// Why a filesystem is not fit to be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It has damage that e2fsck does not mend by itself.
    #[error("{report}")]
    Damaged {
        /// What e2fsck says.
        report: String,
    },
    /// Checking or growing it takes more memory or processor time than it may have here.
    #[error("{report}")]
    TooLarge {
        /// What the tool says.
        report: String,
    },
    /// It could not be checked.
    #[error(transparent)]
    Failed(#[from] Cause),
}

/// Checks the ext4 in a file or device that nobody uses, and mends what can be mended safely.
pub(crate) fn ext4(
    system: &dyn System,
    file: BorrowedFd<'_>,
    extent: Extent,
    progress: Progress<'_>,
) -> Result<(), Error> {
    run(system, file, &command(extent).limited(LIMITS), progress)
}

fn run(
    system: &dyn System,
    file: BorrowedFd<'_>,
    command: &Command,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let told = Cell::new(None);
    let watch = |line: &str| {
        let percent = percent(line);
        if percent.is_some() && percent != told.replace(percent.max(told.get())) {
            told.get().map(progress);
        }
        percent.is_some()
    };
    let output = system
        .run_watched(command, file, &watch)
        .map_err(Cause::from)?;
    let report = output
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let report = report.replace(&format!("{STDIN}: "), "");
    match output.exit {
        Some(0) => Ok(()),
        // 1: something was mended; 2: and it was the root filesystem, which it is not.
        Some(1 | 2) => {
            tracing::warn!(report, "a filesystem was mended before it is mounted");
            system.sync(file).map_err(Cause::from)?;
            Ok(())
        }
        Some(4) => Err(Error::Damaged { report }),
        _ if output.has_reached_limit() => Err(Error::TooLarge {
            report: format!("{report} {}", command.failed(&output)),
        }),
        _ => Err(Cause::from(command.failed(&output)).into()),
    }
}

/// How far a check is that says `pass current maximum device`; none where the line says something
/// else.
fn percent(line: &str) -> Option<u8> {
    let mut words = line.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (pass, current, maximum) = (usize::try_from(number()?).ok()?, number()?, number()?);
    let (begin, end) = (PASSES.get(pass.checked_sub(1)?)?, PASSES.get(pass)?);
    let share = (end - begin).saturating_mul(current.min(maximum));
    u8::try_from(begin + share.checked_div(maximum).unwrap_or(0)).ok()
}

fn command(extent: Extent) -> Command {
    // -C 2: how far it is, on standard error.
    let command = Command::new("e2fsck", DEADLINE).arg("-p").option("-C", "2");
    match extent {
        Extent::AsNeeded => command,
        Extent::Full => command.arg("-f"),
    }
    .operand(STDIN)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, fs::File, os::fd::AsFd as _};

    use super::*;
    use crate::system::Linux;

    #[test]
    fn a_line_of_progress_is_a_percentage_of_the_whole_and_any_other_line_is_none() {
        assert_eq!(percent("1 0 100 /proc/self/fd/0"), Some(0));
        assert_eq!(percent("1 50 100 /proc/self/fd/0"), Some(35));
        assert_eq!(percent("2 1 2 /proc/self/fd/0"), Some(80));
        assert_eq!(percent("5 7 7 /proc/self/fd/0"), Some(100));
        assert_eq!(percent("5 9 7 /proc/self/fd/0"), Some(100));
        assert_eq!(percent("5 0 0 /proc/self/fd/0"), Some(95));
        for other in ["", "e2fsck: aborted", "6 1 2 x", "0 1 2 x", "1 2"] {
            assert_eq!(percent(other), None, "{other}");
        }
    }

    /// An empty ext4 in a file.
    fn made(folder: &tempfile::TempDir, size: u64, options: &[&str]) -> File {
        let path = folder.path().join("image");
        let file = File::create_new(&path).unwrap();
        file.set_len(size).unwrap();
        let mkfs = Command::new("mkfs.ext4", DEADLINE).arg("-q").arg("-F");
        let mkfs = options.iter().fold(mkfs, |mkfs, option| mkfs.arg(*option));
        let made = mkfs.operand(path).run(None, &|_| false).unwrap();
        assert_eq!(made.exit, Some(0), "{made:?}");
        file
    }

    #[test]
    fn a_check_tells_how_far_it_is_and_never_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let (file, system) = (made(&folder, 64 << 20, &[]), Linux::new(folder.path()));
        let told = RefCell::new(Vec::new());
        let progress = |percent| told.borrow_mut().push(percent);
        ext4(&system, file.as_fd(), Extent::Full, &progress).unwrap();
        let told = told.into_inner();
        assert!(told.is_sorted() && told.len() > 2, "{told:?}");
        assert_eq!(told.last(), Some(&100));
    }

    #[test]
    fn a_filesystem_whose_check_takes_more_memory_than_it_may_have_is_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let options = ["-N2000000", "-Elazy_itable_init=1", "-Jsize=4"];
        let (file, system) = (made(&folder, 4 << 30, &options), Linux::new(folder.path()));
        let mut is_too_large = false;
        // How much e2fsck itself takes depends on its libraries.
        for address_space in (3 << 20..64 << 20).step_by(128 << 10).map(Bytes) {
            let limits = Limits {
                address_space,
                ..LIMITS
            };
            let command = command(Extent::Full).limited(limits);
            match run(&system, file.as_fd(), &command, &|_| {}) {
                Ok(()) => break,
                Err(Error::TooLarge { .. }) => is_too_large = true,
                // It could not even be started.
                Err(error) => assert!(!is_too_large, "{error:?}"),
            }
        }
        assert!(is_too_large);
        // Nothing was done to it.
        ext4(&system, file.as_fd(), Extent::Full, &|_| {}).unwrap();
    }
}
