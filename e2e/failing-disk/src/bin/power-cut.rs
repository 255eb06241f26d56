//! Makes what a power cut leaves of a disk: `power-cut DISK JOURNAL SEED`.
//!
//! `DISK` is a file with what the disk held before it recorded the journal. All that was flushed gets there, and of what was
//! written after that nothing, a beginning or a random part, as the seed has it.

#![expect(clippy::print_stdout, reason = "stdout is for whoever starts it")]

use std::{env, fs::File, io, path::PathBuf};

use failing_disk::{Change, Rest, flushed};

fn main() -> io::Result<()> {
    let mut arguments = env::args_os().skip(1);
    let mut next = || arguments.next().ok_or(io::ErrorKind::InvalidInput);
    let (disk, journal) = (PathBuf::from(next()?), PathBuf::from(next()?));
    let seed = next()?.to_str().and_then(|seed| seed.parse().ok());
    let mut random = fastrand::Rng::with_seed(seed.ok_or(io::ErrorKind::InvalidInput)?);
    let disk = File::options().write(true).open(disk)?;
    let changes = Change::read_all(&journal)?;
    let (durable, others) = changes.split_at(flushed(&changes));
    durable.iter().try_for_each(|change| change.apply(&disk))?;
    let rest = match random.usize(..3) {
        0 => Rest::None,
        1 => Rest::Beginning,
        _ => Rest::Part,
    };
    rest.apply(others, &disk, 0, |below| random.usize(..below))?;
    disk.sync_all()?;
    println!(
        "{} changes were flushed, and {} were not. Of those, the disk has: {rest:?}",
        durable.len(),
        others.len()
    );
    Ok(())
}
