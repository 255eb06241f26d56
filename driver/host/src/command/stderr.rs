//! Reads the standard error of a tool while it runs.
//!
//! *Invariant:* memory is bounded, however much a tool writes and however long its lines are.

use std::{
    io::{self, Read as _},
    os::fd::{AsFd as _, BorrowedFd},
};

use super::output::OUTPUT_LIMIT;

/// The standard error of one process.
pub(super) struct Stderr<'a> {
    /// None once the process has closed it.
    pipe: Option<io::PipeReader>,
    /// An incomplete line.
    line: Vec<u8>,
    kept: Vec<u8>,
    watch: &'a dyn Fn(&str) -> bool,
}

impl<'a> Stderr<'a> {
    /// Reads the pipe of a new process. Every line is passed to `watch`, and kept unless that
    /// returns true.
    pub(super) fn new(pipe: io::PipeReader, watch: &'a dyn Fn(&str) -> bool) -> Self {
        Self {
            pipe: Some(pipe),
            line: Vec::new(),
            kept: Vec::new(),
            watch,
        }
    }

    /// Returns the pipe to poll; none at its end.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(|pipe| pipe.as_fd())
    }

    /// Reads available bytes. Does not block when the pipe is readable or its other end is closed.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let mut bytes = [0; 4096];
        let read = match pipe.read(&mut bytes) {
            Ok(0) => {
                self.pipe = None;
                return Ok(());
            }
            Ok(count) => bytes.get(..count).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        for part in read.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || is_full(&self.line) {
                self.end_line();
            }
        }
        Ok(())
    }

    /// Returns the kept lines, truncated at 64 KiB.
    pub(super) fn finish(mut self) -> String {
        if !self.line.is_empty() {
            self.end_line();
        }
        String::from_utf8_lossy(&self.kept).into_owned()
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let is_consumed = (self.watch)(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        let room = usize::try_from(OUTPUT_LIMIT)
            .unwrap_or(usize::MAX)
            .saturating_sub(self.kept.len());
        if !is_consumed {
            self.kept.extend(line.into_iter().take(room));
        }
    }
}

fn is_full(line: &[u8]) -> bool {
    line.len() as u64 >= OUTPUT_LIMIT
}
