//! Divides a walk into batches.
//!
//! *Invariant:* memory holds at most one batch and the result of one probe, however many ranges there
//! are and however slowly the caller reads.

use std::{collections::VecDeque, ops::Range};

use futures::{StreamExt as _, TryStreamExt as _, stream, stream::BoxStream};

use super::{Error, Walk};
use crate::blocking::on_host;

/// Number of probes of the image between two checks that the caller still reads. A probe takes less
/// than a millisecond.
const PROBES: usize = 32;

/// The ranges of a walk in batches of `most`. The last batch may be smaller, and no batch is empty. Each
/// is read on request, on a thread of its own.
pub fn stream(walk: Walk, most: usize) -> BoxStream<'static, Result<Vec<Range<u64>>, Error>> {
    let batches = Batches {
        walk,
        found: VecDeque::new(),
        most: most.max(1),
        has_ended: false,
    };
    let filled = stream::try_unfold(batches, async |mut batches| {
        let (batches, filled) = on_host((), move || {
            let filled = batches.fill();
            (batches, filled)
        })
        .await?;
        Ok(filled?.map(|batch| (batch, batches)))
    });
    filled
        .try_filter(|batch| std::future::ready(!batch.is_empty()))
        .boxed()
}

struct Batches {
    walk: Walk,
    found: VecDeque<Range<u64>>,
    most: usize,
    has_ended: bool,
}

impl Batches {
    /// Returns the next batch: empty if [`PROBES`] probes do not fill it, None at the end.
    fn fill(&mut self) -> Result<Option<Vec<Range<u64>>>, Error> {
        for _ in 0..PROBES {
            if self.has_ended || self.found.len() >= self.most {
                break;
            }
            match self.walk.next() {
                Some(ranges) => self.found.extend(ranges?),
                None => self.has_ended = true,
            }
        }
        if self.has_ended && self.found.is_empty() {
            return Ok(None);
        }
        let is_full = self.has_ended || self.found.len() >= self.most;
        let count = if is_full {
            self.most.min(self.found.len())
        } else {
            0
        };
        Ok(Some(self.found.drain(..count).collect()))
    }
}
