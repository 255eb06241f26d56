//! Reads the data of a snapshot.

use std::ops::Range;

use super::{CHUNK, Chunk, Original};
use crate::{
    changes::Changes,
    id::Uid,
    image::{Error, failed},
    pool::Pool,
};

/// Iterates over the data of a snapshot. The snapshot cannot be removed while this value lives.
///
/// An item is empty when a part without data was passed, so that the caller can stop in between. After an
/// error the iterator ends.
#[derive(Debug)]
pub struct Outgoing {
    original: Original,
    /// None after the end.
    changes: Option<Changes>,
    /// What was found and is not read yet, in descending order.
    found: Vec<Range<u64>>,
}

impl Pool {
    /// Opens a snapshot to send its data from an offset on. Fails if the image is missing, cannot be
    /// read, or is not that of a snapshot.
    pub fn send(&self, snapshot: &Uid, from: u64) -> Result<Outgoing, Error> {
        let changes = self.allocated(snapshot, from)?;
        let image = changes.image();
        let identity = image
            .identity
            .clone()
            .ok_or_else(|| self.missing(snapshot))?;
        Ok(Outgoing {
            original: Original {
                identity,
                size: image.size,
            },
            changes: Some(changes),
            found: Vec::new(),
        })
    }
}

impl Outgoing {
    /// Returns what the copy is of.
    pub fn original(&self) -> &Original {
        &self.original
    }
}

impl Iterator for Outgoing {
    type Item = Result<Option<Chunk>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let changes = self.changes.as_mut()?;
        let Some(range) = self.found.pop() else {
            match changes.next() {
                Some(Ok(found)) => self.found.extend(found.into_iter().rev()),
                ended => {
                    self.changes = None;
                    return ended.map(|error| error.map(|_| None));
                }
            }
            return Some(Ok(None));
        };
        let end = range.end.min(range.start + CHUNK as u64);
        if end < range.end {
            self.found.push(end..range.end);
        }
        let read = changes.read(&(range.start..end));
        if read.is_err() {
            self.changes = None;
        }
        Some(read.map(|data| {
            Some(Chunk {
                offset: range.start,
                data,
            })
        }))
    }
}

impl Changes {
    /// Reads a part of the snapshot.
    fn read(&self, part: &Range<u64>) -> Result<Vec<u8>, Error> {
        let (system, file) = self.target();
        let length = usize::try_from(part.end - part.start).unwrap_or(CHUNK);
        let uid = &self.image().uid;
        let data = system
            .read(file, part.start, length)
            .map_err(failed("read the data", uid))?;
        if data.len() == length {
            return Ok(data);
        }
        let short = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        Err(failed("read the data", uid)(short))
    }
}
