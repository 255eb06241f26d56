//! Finds the parts of an image that hold data, and the parts in which it differs from another
//! image.
//!
//! Both are computed from the locations of extents (FIEMAP), never from data, so that the time
//! depends on the number of extents and not on the size of the images.
//!
//! ```text
//!          cursor            end
//! base   ──┤■■■■■   ■■■■■■■■■■├──────   read, and read again behind the target
//! target ──┤■■■■■   ■■□□□■■■■■├──────   read in between
//! answer           ├───┤
//! ```
//!
//! *Invariants:* two parts that are not reported as different lie in the same blocks of one
//! filesystem, or both read as zeros; everything else is reported, whether or not its bytes differ.
//! The content of both files is constant: snapshots and closed images are never written. Only the location of their
//! extents may change, when an administrator defragments the pool. So the base is read before and
//! after the target, and an extent at the same location both times was there in between. (It would
//! have less than a millisecond to move away and back.) Memory does not grow with the number of
//! extents.

mod map;
#[cfg(test)]
mod tests;

use std::{io, ops::Range, os::fd::BorrowedFd, sync::Arc};

use cistern_types::Bytes;

use self::map::Map;
use crate::{
    id::Uid,
    image::{self, IdentityConflict, Image, failed, read::Reading},
    pool::Pool,
    system::System,
};

/// Alignment of the reported ranges in bytes: the sector size of every volume.
const SECTOR: u64 = 4096;
/// Number of attempts to read a part whose extents move meanwhile. After the last attempt, all data
/// of the part is reported as different.
const TRIES: usize = 3;

/// Iterates over the byte ranges in which a snapshot's image differs from zeros or from another
/// image. Neither image can be removed while this value lives.
///
/// Each item is the result of reading some hundreds of extents, often empty, so that the caller can
/// stop in between. Ranges ascend, do not touch each other, are multiples of 4096 bytes,
/// and end with the image. After an error the iterator ends.
#[derive(Debug)]
pub struct Changes {
    system: Arc<dyn System>,
    /// None to compare with zeros.
    base: Option<Reading>,
    target: Reading,
    size: u64,
    /// Where the data begins that the ranges are of: behind the header of an encrypted image, or at its start.
    begin: u64,
    /// Offset up to which both were compared.
    cursor: u64,
    /// The last range found: the next one may extend it.
    last: Option<Range<u64>>,
}

impl Pool {
    /// Returns the parts of a snapshot's image that hold data, from the sector of an offset on. All
    /// other parts are zeros. Fails if the image is missing, cannot be read, or is not that of a
    /// snapshot.
    pub fn allocated(&self, snapshot: &Uid, from: u64) -> Result<Changes, image::Error> {
        self.walk(None, snapshot, from)
    }

    /// Returns the parts in which a snapshot's image differs from a base, from the sector of an
    /// offset on. The base counts as zeros beyond its end. Fails if either image is missing, cannot
    /// be read, or is not that of a snapshot.
    pub fn changes(&self, base: &Uid, snapshot: &Uid, from: u64) -> Result<Changes, image::Error> {
        self.walk(Some(base), snapshot, from)
    }

    fn walk(&self, base: Option<&Uid>, target: &Uid, from: u64) -> Result<Changes, image::Error> {
        let target = self.read_snapshot(target)?;
        let base = base.map(|base| self.read_snapshot(base)).transpose()?;
        // A volume from the snapshot does not show the header.
        let begin = target.image.header().0;
        let changes = self.changes_of(target, base, begin.saturating_add(from));
        Ok(Changes { begin, ..changes })
    }

    /// Returns the parts in which the file of an image differs from that of a base, or from zeros. The content of both is
    /// constant.
    pub(crate) fn changes_of(&self, target: Reading, base: Option<Reading>, from: u64) -> Changes {
        Changes {
            system: Arc::clone(&self.system),
            base,
            size: target.image.file_size().0,
            target,
            begin: 0,
            cursor: from - from % SECTOR,
            last: None,
        }
    }

    /// Opens the image of a snapshot.
    fn read_snapshot(&self, uid: &Uid) -> Result<Reading, image::Error> {
        let reading = self.read_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let identity = reading.image.identity.as_ref();
        let is_snapshot = identity.is_some_and(|identity| identity.owner.snapshot().is_some());
        if is_snapshot {
            return Ok(reading);
        }
        Err(image::Error::IdentityConflict {
            uid: uid.clone(),
            why: IdentityConflict::NotSnapshot,
        })
    }
}

impl Changes {
    /// Returns the size of the data in bytes.
    pub fn size(&self) -> Bytes {
        Bytes(self.size - self.begin)
    }

    /// The image of the snapshot.
    pub(crate) fn image(&self) -> &Image {
        &self.target.image
    }

    /// Its file, open for reading.
    pub(crate) fn target(&self) -> (&dyn System, BorrowedFd<'_>) {
        (&*self.system, self.target.as_fd())
    }

    /// Returns the parts of a part of the image that hold data, as far as one read covers it, and the end of
    /// that.
    pub(crate) fn data_within(&self, part: Range<u64>) -> io::Result<(Vec<Range<u64>>, u64)> {
        let found = read(&*self.system, self.target.as_fd(), part)?;
        let zeros = Map::new([], found.part());
        Ok((zeros.differences(&found), found.part().end))
    }

    /// Compares the next part, and returns its differences and its end.
    fn compare_next(&self) -> io::Result<(Vec<Range<u64>>, u64)> {
        let rest = self.cursor..self.size;
        let Some(base) = &self.base else {
            return self.data_within(rest);
        };
        let read = |image: &Reading, part| read(&*self.system, image.as_fd(), part);
        compare(rest, |side, part| match side {
            Side::Base => read(base, part),
            Side::Target => read(&self.target, part),
        })
    }

    /// Merges new ranges with the last one, and returns those that are complete.
    fn merge(&mut self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let mut done = Vec::new();
        for range in ranges {
            let end = range.end.next_multiple_of(SECTOR).min(self.size);
            let range = range.start - range.start % SECTOR..end;
            match &mut self.last {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                last => done.extend(last.replace(range)),
            }
        }
        done
    }
}

impl Iterator for Changes {
    type Item = Result<Vec<Range<u64>>, image::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let begin = self.begin;
        let of_data = |range: Range<u64>| range.start - begin..range.end - begin;
        if self.cursor >= self.size {
            return self.last.take().map(|last| Ok(vec![of_data(last)]));
        }
        match self.compare_next() {
            Ok((ranges, end)) => {
                self.cursor = end;
                let done = self.merge(ranges).into_iter();
                Some(Ok(done.map(of_data).collect()))
            }
            Err(error) => {
                (self.cursor, self.last) = (self.size, None);
                Some(Err(failed("read the extents", &self.target.image.uid)(
                    error,
                )))
            }
        }
    }
}

/// One of the two images.
#[derive(Clone, Copy, Debug)]
enum Side {
    Base,
    Target,
}

/// Compares the first part of `rest`: as much as one read of each image covers. `read` maps the
/// first extents of one image. Returns the differences and the end of that part.
fn compare(
    rest: Range<u64>,
    mut read: impl FnMut(Side, Range<u64>) -> io::Result<Map>,
) -> io::Result<(Vec<Range<u64>>, u64)> {
    let mut tries = 0;
    loop {
        tries += 1;
        let before = read(Side::Base, rest.clone())?;
        let target = read(Side::Target, before.part())?;
        let after = read(Side::Base, target.part())?;
        if before.within(&target.part()) == after {
            return Ok((after.differences(&target), target.part().end));
        }
        if tries == TRIES {
            // Extents that move hold data: where neither image has any, both are zeros.
            let part = after.part();
            return Ok((after.either(&target.within(&part)), part.end));
        }
    }
}

/// Maps the first extents of a part of a file, as far as one call returns them.
fn read(system: &dyn System, file: BorrowedFd<'_>, part: Range<u64>) -> io::Result<Map> {
    let (extents, end) = system.extents(file, &part)?;
    Ok(Map::new(extents, part.start..end))
}
