//! Reads the data of a snapshot or of a closed volume.

use std::{io, ops::Range};

use super::{CHUNK, Chunk, Original};
use crate::{
    changes::Changes,
    id::Uid,
    image::{Error, IdentityConflict, Image, failed, read::Reading},
    pool::Pool,
};

/// Number of parts that the disk reads ahead. Differences are often small, and far from each other.
const AHEAD: usize = 64;

/// Iterates over the data of an image, or over its differences from a base. Neither is removed nor opened again while
/// this value lives.
///
/// An item is empty when a part without data was passed, so that the caller can stop in between. After an
/// error the iterator ends.
#[derive(Debug)]
pub struct Outgoing {
    original: Original,
    base: Option<Uid>,
    /// None after the end.
    changes: Option<Changes>,
    /// What was found and is not read yet, in descending order.
    found: Vec<Found>,
    /// Offset up to which the disk reads ahead.
    ahead: u64,
}

/// A part of an image that is to be sent.
#[derive(Clone, Debug)]
enum Found {
    /// It differs from the base. Where it holds data is not known yet.
    Changed(Range<u64>),
    Data(Range<u64>),
    Hole(Range<u64>),
}

impl Pool {
    /// Opens a snapshot or a closed volume to send its data from an offset on. Fails if the image is missing
    /// or cannot be read, or is that of a volume that is not closed.
    pub fn send(&self, image: &Uid, from: u64) -> Result<Outgoing, Error> {
        self.send_over(image, None, from)
    }

    /// Opens a snapshot or a closed volume to send only what differs from a base. The base is a snapshot of the same
    /// volume; without it, all data is sent ([`Outgoing::base`]). Fails as [`Self::send`] does.
    pub fn send_changes(&self, image: &Uid, base: &Uid, from: u64) -> Result<Outgoing, Error> {
        self.send_over(image, Some(base), from)
    }

    fn send_over(&self, image: &Uid, base: Option<&Uid>, from: u64) -> Result<Outgoing, Error> {
        let (source, closed_for) = self.read_unchanging(image)?;
        let base = match base {
            Some(base) => self.read_base(base, &source.image)?,
            None => None,
        };
        let base_uid = base.as_ref().map(|base| base.image.uid.clone());
        let changes = self.changes_of(source, base, from);
        let image = changes.image();
        let identity = image
            .identity
            .clone()
            .ok_or_else(|| self.missing(&image.uid))?;
        Ok(Outgoing {
            original: Original {
                identity,
                size: image.file_size(),
                closed_for,
            },
            base: base_uid,
            changes: Some(changes),
            found: Vec::new(),
            ahead: from,
        })
    }

    /// Opens the base of an image; none unless it is a snapshot of the same volume.
    fn read_base(&self, base: &Uid, image: &Image) -> Result<Option<Reading>, Error> {
        let volume = |image: &Image| {
            let owner = &image.identity.as_ref()?.owner;
            let record = owner.snapshot();
            Some(record.map_or_else(|| image.uid.clone(), |record| record.source.clone()))
        };
        let is_base = |found: &Reading| {
            let identity = found.image.identity.as_ref();
            identity.is_some_and(|it| it.owner.snapshot().is_some())
                && volume(&found.image) == volume(image)
        };
        Ok(self.read_image(base)?.filter(is_base))
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

    /// Returns the image that the differences are relative to; none if all data is sent.
    pub fn base(&self) -> Option<&Uid> {
        self.base.as_ref()
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
        let Some(found) = self.found.pop() else {
            match changes.next() {
                Some(Ok(found)) => {
                    let kind = if self.base.is_some() {
                        Found::Changed
                    } else {
                        Found::Data
                    };
                    self.found.extend(found.into_iter().rev().map(kind));
                }
                ended => {
                    self.changes = None;
                    return ended.map(|error| error.map(|_| None));
                }
            }
            return Some(Ok(None));
        };
        let sent = match found {
            Found::Changed(part) => self.split(part).map(|()| None),
            Found::Hole(part) => Ok(Some(Chunk {
                offset: part.start,
                data: Vec::new(),
                zeros: part.end - part.start,
            })),
            Found::Data(part) => self.read(part).map(Some),
        };
        if sent.is_err() {
            self.changes = None;
        }
        Some(sent)
    }
}

impl Outgoing {
    /// Finds out where a part that differs from the base holds data, as far as one read covers it.
    fn split(&mut self, part: Range<u64>) -> Result<(), Error> {
        let Some(changes) = &self.changes else {
            return Ok(());
        };
        let uid = &self.original.identity.uid;
        let split = changes.data_within(part.clone());
        let (data, end) = split.map_err(failed("read the extents", uid))?;
        let (mut parts, mut at) = (Vec::new(), part.start);
        for range in data {
            if at < range.start {
                parts.push(Found::Hole(at..range.start));
            }
            at = range.end;
            parts.push(Found::Data(range));
        }
        if at < end {
            parts.push(Found::Hole(at..end));
        }
        if end < part.end {
            parts.push(Found::Changed(end..part.end));
        }
        self.found.extend(parts.into_iter().rev());
        Ok(())
    }

    /// Reads the first chunk of a part that holds data.
    fn read(&mut self, part: Range<u64>) -> Result<Chunk, Error> {
        let first = first_chunk(&part);
        if first.end < part.end {
            self.found.push(Found::Data(first.end..part.end));
        }
        let data = match &self.changes {
            Some(changes) => changes.read(&first)?,
            None => Vec::new(),
        };
        self.read_ahead(first.end)?;
        Ok(Chunk {
            offset: first.start,
            data,
            zeros: 0,
        })
    }

    /// Lets the disk read the parts after an offset while what is before it is sent: no more than a chunk has.
    fn read_ahead(&mut self, from: u64) -> Result<(), Error> {
        let Some(changes) = &self.changes else {
            return Ok(());
        };
        let (mut ahead, mut left) = (self.ahead.max(from), CHUNK as u64);
        for found in self.found.iter().rev().take(AHEAD) {
            let (Found::Changed(part) | Found::Data(part)) = found else {
                continue;
            };
            let end = part.end.min(part.start + left);
            left -= end - part.start;
            if ahead < end && part.start < end {
                changes.read_ahead(ahead.max(part.start)..end)?;
                ahead = end;
            }
        }
        self.ahead = ahead;
        Ok(())
    }
}

/// What is read at a time.
fn first_chunk(range: &Range<u64>) -> Range<u64> {
    range.start..range.end.min(range.start + CHUNK as u64)
}

impl Changes {
    /// Reads a part of the image.
    fn read(&self, part: &Range<u64>) -> Result<Vec<u8>, Error> {
        let (system, file) = self.target();
        let length = usize::try_from(part.end - part.start).unwrap_or(CHUNK);
        let read = || -> io::Result<Vec<u8>> {
            let data = system.read(file, part.start, length)?;
            if data.len() < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(data)
        };
        read().map_err(failed("read the data", &self.image().uid))
    }

    /// Lets the disk read a part of the image.
    fn read_ahead(&self, part: Range<u64>) -> Result<(), Error> {
        let (system, file) = self.target();
        let begun = system.read_ahead(file, &part);
        begun.map_err(failed("read the data", &self.image().uid))
    }
}
