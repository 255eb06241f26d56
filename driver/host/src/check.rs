//! Checks an ext4 before it is mounted.
//!
//! The kernel mounts an ext4 that was found damaged, and would continue to write to it. (It refuses
//! a damaged XFS or btrfs. All three replay their logs when they are mounted.)
//!
//! *Invariant:* only repairs that e2fsck considers safe are made. A filesystem that needs a manual
//! decision is not changed and not mounted.

use std::{cell::Cell, fmt, os::fd::BorrowedFd, time::Duration};

use cistern_types::Bytes;

use crate::{
    cause::Cause,
    command::{Command, ResourceLimits, STDIN},
    progress::{self, Progress},
    system::System,
};

/// Deadline of a check, which reads every inode: a filesystem can have terabytes.
const DEADLINE: Duration = Duration::from_hours(6);
/// Limits of a check or growth on the node. Its demand depends on the tenant who wrote the
/// filesystem. Two at a time leave enough of the memory limit in the manifest to the agent.
pub(crate) const LIMITS: ResourceLimits = ResourceLimits {
    address_space: Bytes::mib(192),
    cpu: Duration::from_hours(1),
};
/// Start of each pass of e2fsck in percent of the whole, as in its own progress bar.
const PASSES: [u64; 6] = [0, 70, 90, 92, 95, 100];

/// Whether a call may check a filesystem in full, and grow an unmounted one: both can take hours.
#[derive(Clone, Copy)]
pub enum Checking<'a> {
    /// Yes, and reports its progress.
    Now(Progress<'a>),
    /// No. A filesystem that needs either fails with an error that says so,
    /// unchanged.
    Later,
    /// No. A filesystem that needs a check fails in the same way; one that should grow stays
    /// smaller.
    Without,
}

impl Checking<'static> {
    /// Yes, without reports of progress.
    pub const UNSEEN: Self = Self::Now(progress::UNSEEN);
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

/// Extent of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// As the filesystem requests: in full when it was found damaged, otherwise its journal.
    AsNeeded,
    /// In full.
    Full,
}

/// Why a filesystem must not be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It has damage that e2fsck does not repair without a decision.
    #[error("{report}")]
    Damaged {
        /// Output of e2fsck.
        report: String,
    },
    /// Checking or growing it needs more memory or processor time than [`LIMITS`].
    #[error("{report}")]
    TooLarge {
        /// Output of the tool.
        report: String,
    },
    /// The check did not run.
    #[error(transparent)]
    Failed(#[from] Cause),
}

/// Checks the ext4 in a file or device that is not in use, and repairs what is safe to repair.
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
    let reported = Cell::new(None);
    let watch = |line: &str| {
        let percent = percent(line);
        if percent.is_some() && percent != reported.replace(percent.max(reported.get())) {
            reported.get().map(progress);
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
        // 1: errors were repaired; 2: the same, of the root filesystem, which this is not.
        Some(1 | 2) => {
            tracing::warn!(report, "e2fsck repaired a filesystem before it is mounted");
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

/// Parses a progress line, `pass current maximum device`, into percent; none for any other line.
fn percent(line: &str) -> Option<u8> {
    let mut words = line.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (pass, current, maximum) = (usize::try_from(number()?).ok()?, number()?, number()?);
    let (begin, end) = (PASSES.get(pass.checked_sub(1)?)?, PASSES.get(pass)?);
    let share = (end - begin).saturating_mul(current.min(maximum));
    u8::try_from(begin + share.checked_div(maximum).unwrap_or(0)).ok()
}

fn command(extent: Extent) -> Command {
    // -C 2: progress on standard error.
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
    fn a_check_reports_progress_that_never_decreases() {
        let folder = tempfile::tempdir().unwrap();
        let (file, system) = (made(&folder, 64 << 20, &[]), Linux::new(folder.path()));
        let reported = RefCell::new(Vec::new());
        let progress = |percent| reported.borrow_mut().push(percent);
        ext4(&system, file.as_fd(), Extent::Full, &progress).unwrap();
        let reported = reported.into_inner();
        assert!(reported.is_sorted() && reported.len() > 2, "{reported:?}");
        assert_eq!(reported.last(), Some(&100));
    }

    #[test]
    fn a_filesystem_whose_check_exceeds_its_memory_limit_is_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let options = ["-N2000000", "-Elazy_itable_init=1", "-Jsize=4"];
        let (file, system) = (made(&folder, 4 << 30, &options), Linux::new(folder.path()));
        let mut is_too_large = false;
        // The memory of e2fsck itself depends on its libraries.
        for address_space in (3 << 20..64 << 20).step_by(128 << 10).map(Bytes) {
            let limits = ResourceLimits {
                address_space,
                ..LIMITS
            };
            let command = command(Extent::Full).limited(limits);
            match run(&system, file.as_fd(), &command, &|_| {}) {
                Ok(()) => break,
                Err(Error::TooLarge { .. }) => is_too_large = true,
                // Too little memory to start e2fsck.
                Err(error) => assert!(!is_too_large, "{error:?}"),
            }
        }
        assert!(is_too_large);
        // The filesystem is unchanged.
        ext4(&system, file.as_fd(), Extent::Full, &|_| {}).unwrap();
    }
}
