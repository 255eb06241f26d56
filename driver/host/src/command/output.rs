//! What a tool has written.
//!
//! *Invariant:* it takes no memory for more than is kept.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    process::Signal,
};

/// Bytes of a tool's output that are kept.
pub(super) const OUTPUT_LIMIT: u64 = 64 << 10;
/// The file of a tool's output has a multiple of this size in bytes, because the kernel refuses a write to a part of a page.
pub(super) const PAGE: u64 = 4096;
/// Messages of tools that were denied memory. Tools have no exit code for it.
const OUT_OF_MEMORY: [&str; 4] = [
    "Can't allocate",
    "Cannot allocate memory",
    "Memory allocation failed",
    // A thread could not be started.
    "Resource temporarily unavailable",
];

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

impl Output {
    /// Whether a tool failed because it reached one of its limits.
    pub(crate) fn has_reached_limit(&self) -> bool {
        let says = |text: &&str| self.stdout.contains(*text) || self.stderr.contains(*text);
        self.signal == Some(Signal::XCPU.as_raw()) || OUT_OF_MEMORY.iter().any(says)
    }
}

/// Makes the standard output of a tool, which takes about as many bytes as are kept. The tool gets an error for what it
/// writes after that.
///
/// A file in memory instead of a pipe: it need not be read while the tool runs, and a grandchild that keeps it open does not
/// block the reader.
pub(super) fn output_file(limit: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create(c"stdout", flags)?);
    // A part that was never written takes no memory.
    file.set_len(limit.next_multiple_of(PAGE))?;
    fcntl_add_seals(&file, SealFlags::GROW)?;
    Ok(file)
}

/// Returns what a tool has written to its standard output.
pub(super) fn read(file: &mut File, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    // Where the tool has stopped to write: both have the same position.
    let written = file.stream_position()?;
    file.rewind()?;
    file.take(limit.min(written)).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
