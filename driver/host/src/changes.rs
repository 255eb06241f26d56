//! Which parts of an image hold data, and in which parts it differs from another.
//!
//! Both are read from where the images' extents lie (FIEMAP), never from their data, so that it takes
//! as long as there are extents, however large the images are.
//!
//! ```text
//!          cursor            end
//! base   ──┤■■■■■   ■■■■■■■■■■├──────   read, and read again behind the target
//! target ──┤■■■■■   ■■□□□■■■■■├──────   read in between
//! answer           ├───┤
//! ```
//!
//! *Invariants:* two parts that are not told apart lie in the same blocks of one filesystem, or read
//! as zeros both; everything else is told, whether or not its bytes differ. Neither file changes
//! while it is read: snapshots are never written. Only where their extents lie may change, when an
//! administrator defragments the pool; so the base is looked at before and after the target, and what
//! lay in the same place both times lay there in between. (To move away and back it has less than a
//! millisecond.) The memory that is taken does not grow with the number of extents.

mod map;
#[cfg(test)]
mod tests;

use std::{io, ops::Range, os::fd::BorrowedFd, sync::Arc};

use cistern_crds::Bytes;

use self::map::Map;
use crate::{
    id::Uid,
    image::{self, failed, read::Reading},
    pool::Pool,
    system::System,
};

/// What ranges are multiples of: the sector of every volume.
const SECTOR: u64 = 4096;
/// How often a part is looked at whose extents move meanwhile, before all of it that holds data is
/// told.
const TRIES: usize = 3;

/// Walks through a snapshot's image and tells the ranges of its bytes in which it differs: from zeros,
/// or from another. While this value lives, both images stay.
///
/// Each item is what came out of one look at some hundreds of extents, often nothing, so that the
/// caller can stop in between. Ranges ascend, do not touch each other, are multiples of 4096 bytes,
/// and end with the image. After an error there is nothing more.
#[derive(Debug)]
pub struct Changes {
    system: Arc<dyn System>,
    /// None stands for an image of zeros.
    base: Option<Reading>,
    target: Reading,
    size: u64,
    /// How far both were looked at.
    cursor: u64,
    /// What was found last: the next one may go on with it.
    last: Option<Range<u64>>,
}

impl Pool {
    /// The parts of a snapshot's image that hold data, from the sector of an offset on. All others
    /// are zeros.
    pub fn allocated(&self, snapshot: &Uid, from: u64) -> Result<Changes, image::Error> {
        self.walk(None, snapshot, from)
    }

    /// The parts in which a snapshot's image differs from another, from the sector of an offset on.
    /// Beyond the end of the other, that one counts as zeros.
    pub fn changes(&self, base: &Uid, snapshot: &Uid, from: u64) -> Result<Changes, image::Error> {
        self.walk(Some(base), snapshot, from)
    }

    fn walk(&self, base: Option<&Uid>, target: &Uid, from: u64) -> Result<Changes, image::Error> {
        let target = self.read_snapshot(target)?;
        Ok(Changes {
            system: Arc::clone(&self.system),
            base: base.map(|base| self.read_snapshot(base)).transpose()?,
            size: target.image.size.0,
            target,
            cursor: from - from % SECTOR,
            last: None,
        })
    }

    /// Opens an image that does not change.
    fn read_snapshot(&self, uid: &Uid) -> Result<Reading, image::Error> {
        let reading = self.read_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let identity = reading.image.identity.as_ref();
        let is_snapshot = identity.is_some_and(|identity| identity.owner.snapshot().is_some());
        if is_snapshot {
            return Ok(reading);
        }
        Err(image::Error::IdentityConflict {
            uid: uid.clone(),
            why: "it does not say that it holds a snapshot".to_owned(),
        })
    }
}

impl Changes {
    /// Size of the image.
    pub fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    /// Looks at the next part, and says up to where it did.
    fn look(&self) -> io::Result<(Vec<Range<u64>>, u64)> {
        let rest = self.cursor..self.size;
        let read = |image: &Reading, part| read(&*self.system, image.as_fd(), part);
        let Some(base) = &self.base else {
            let target = read(&self.target, rest)?;
            let zeros = Map::new([], target.part());
            return Ok((zeros.differences(&target), target.part().end));
        };
        compare(rest, |side, part| match side {
            Side::Base => read(base, part),
            Side::Target => read(&self.target, part),
        })
    }

    /// Takes what was found next, and gives what nothing can be added to any more.
    fn found(&mut self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
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
        if self.cursor >= self.size {
            return self.last.take().map(|last| Ok(vec![last]));
        }
        match self.look() {
            Ok((ranges, end)) => {
                self.cursor = end;
                Some(Ok(self.found(ranges)))
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

/// Which of two images.
#[derive(Clone, Copy, Debug)]
enum Side {
    Base,
    Target,
}

/// Looks at the first part of what two images may differ in; `read` gives a map of the first extents
/// of one. Answers what differs, and up to where it looked.
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
            // What moves holds data: where neither holds any, both are zeros.
            let part = after.part();
            return Ok((after.either(&target.within(&part)), part.end));
        }
    }
}

/// Where the first extents of a part of a file lie, as far as that was told.
fn read(system: &dyn System, file: BorrowedFd<'_>, part: Range<u64>) -> io::Result<Map> {
    let (extents, end) = system.extents(file, &part)?;
    Ok(Map::new(extents, part.start..end))
}
