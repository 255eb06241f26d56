//! A walk in batches.
//!
//! *Invariant:* no more is in memory than one batch and what one look finds, however many ranges
//! there are and however slowly they are taken.

use std::{collections::VecDeque, ops::Range};

use futures::{StreamExt as _, TryStreamExt as _, stream, stream::BoxStream};

use super::{Error, Walk};
use crate::agent::blocking::on_host;

/// After how many looks it is seen again whether anybody still wants to know. One takes less than a
/// millisecond.
const LOOKS: usize = 32;

/// The ranges of a walk in batches of `most`; the last has fewer, and none is empty. Each is made
/// when it is asked for, on a thread of its own.
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
    /// The next batch, empty when it takes longer; none at the end.
    fn fill(&mut self) -> Result<Option<Vec<Range<u64>>>, Error> {
        for _ in 0..LOOKS {
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
