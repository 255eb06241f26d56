//! Reads the data of a snapshot or of a closed volume.

use std::{io, ops::Range};

use super::{CHUNK, Chunk, Original};
use crate::{
    changes::Changes,
    id::Uid,
    image::{Error, IdentityConflict, failed, read::Reading},
    pool::Pool,
};

/// Iterates over the data of an image. It is neither removed nor opened again while this value lives.
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
    /// Opens a snapshot or a closed volume to send its data from an offset on. Fails if the image is missing
    /// or cannot be read, or is that of a volume that is not closed.
    pub fn send(&self, image: &Uid, from: u64) -> Result<Outgoing, Error> {
        let (source, closed_for) = self.read_unchanging(image)?;
        let changes = self.data_of(source, from);
        let image = changes.image();
        let identity = image
            .identity
            .clone()
            .ok_or_else(|| self.missing(&image.uid))?;
        Ok(Outgoing {
            original: Original {
                identity,
                size: image.size,
                closed_for,
            },
            changes: Some(changes),
            found: Vec::new(),
        })
    }

    /// Opens an image that never changes, and returns the UID of the move that it is closed for, if it is.
    fn read_unchanging(&self, uid: &Uid) -> Result<(Reading, Option<Uid>), Error> {
        let Some(reading) = self.read_image(uid)? else {
            let closed = self.read_closed(uid)?;
            let (reading, by) = closed.ok_or_else(|| self.missing(uid))?;
            return Ok((reading, Some(by)));
        };
        let identity = reading.image.identity.as_ref();
        if identity.is_some_and(|identity| identity.owner.snapshot().is_some()) {
            return Ok((reading, None));
        }
        let (uid, why) = (uid.clone(), IdentityConflict::MayChange);
        Err(Error::IdentityConflict { uid, why })
    }
}

impl Outgoing {
    /// Returns what the copy is of.
    pub fn original(&self) -> &Original {
        &self.original
    }

    /// Returns the UID of the move that the volume is closed for; none for a snapshot.
    pub fn closed_for(&self) -> Option<&Uid> {
        self.original.closed_for.as_ref()
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
        let end = first_chunk(&range).end;
        if end < range.end {
            self.found.push(end..range.end);
        }
        let next = self.found.last().map(first_chunk);
        let read = changes.read(&(range.start..end), next);
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

/// What is read at a time.
fn first_chunk(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min(range.start + CHUNK as u64)
}

impl Changes {
    /// Reads a part of the image. The disk reads the next one while this one is sent.
    fn read(&self, part: &Range<u64>, next: Option<Range<u64>>) -> Result<Vec<u8>, Error> {
        let (system, file) = self.target();
        let length = usize::try_from(part.end - part.start).unwrap_or(CHUNK);
        let read = || -> io::Result<Vec<u8>> {
            let data = system.read(file, part.start, length)?;
            if data.len() < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(next) = next {
                system.read_ahead(file, &next)?;
            }
            Ok(data)
        };
        read().map_err(failed("read the data", &self.image().uid))
    }
}
