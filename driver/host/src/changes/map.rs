//! Where a part of a file lies on the disk, and the parts in which two files differ.
//!
//! *Invariant:* pure.

use std::{cmp::Ordering, ops::Range};

use crate::system::{Extent, Placement};

/// Where a part of a file lies. Two of the same part are equal when all of it lies in the same
/// places, however the kernel had it cut up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map {
    part: Range<u64>,
    /// What holds data: ascending, within the part; neighbours that go on in the same place are one.
    segments: Vec<Segment>,
}

/// A range that holds data.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    range: Range<u64>,
    /// Where its first byte lies; none where the kernel does not say.
    place: Option<u64>,
}

/// What lies at one offset.
#[derive(Clone, Copy, Debug)]
enum Content {
    Zeros,
    Block(u64),
    Unknown,
}

impl Content {
    fn is_surely(self, other: Self) -> bool {
        match (self, other) {
            (Self::Zeros, Self::Zeros) => true,
            (Self::Block(one), Self::Block(other)) => one == other,
            (Self::Zeros | Self::Block(_) | Self::Unknown, _) => false,
        }
    }

    fn is_surely_zeros(self) -> bool {
        self.is_surely(Self::Zeros)
    }
}

impl Map {
    /// Of a part of a file, from all extents that lie in it. What was never written reads as zeros.
    pub(super) fn new(extents: impl IntoIterator<Item = Extent>, part: Range<u64>) -> Self {
        let mut map = Self {
            part,
            segments: Vec::new(),
        };
        for Extent { logical, placement } in extents {
            let place = match placement {
                Placement::Unwritten => continue,
                Placement::At(place) => Some(place),
                Placement::Unknown => None,
            };
            map.push(Segment {
                range: logical,
                place,
            });
        }
        map
    }

    /// The part that it is of.
    pub(super) fn part(&self) -> Range<u64> {
        self.part.clone()
    }

    /// The same of less.
    pub(super) fn within(&self, part: &Range<u64>) -> Self {
        let mut map = Self::new([], part.clone());
        self.segments
            .iter()
            .cloned()
            .for_each(|next| map.push(next));
        map
    }

    /// The ranges that are not surely the same in another file.
    pub(super) fn differences(&self, other: &Self) -> Vec<Range<u64>> {
        self.ranges(other, |one, other| !one.is_surely(other))
    }

    /// The ranges that are not surely zeros in both files.
    pub(super) fn either(&self, other: &Self) -> Vec<Range<u64>> {
        self.ranges(other, |one, other| {
            !(one.is_surely_zeros() && other.is_surely_zeros())
        })
    }

    /// The ranges for which something holds of what lies in both files.
    fn ranges(&self, other: &Self, holds: impl Fn(Content, Content) -> bool) -> Vec<Range<u64>> {
        let (mut one, mut other) = (Walk(&self.segments), Walk(&other.segments));
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut at = self.part.start;
        while at < self.part.end {
            let (content, until) = one.step(at);
            let (other_content, other_until) = other.step(at);
            let end = until.min(other_until).min(self.part.end);
            if holds(content, other_content) {
                match ranges.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => ranges.push(at..end),
                }
            }
            at = end;
        }
        ranges
    }

    /// Adds what lies behind all others, as far as it is in the part.
    fn push(&mut self, next: Segment) {
        let known = self
            .segments
            .last()
            .map_or(self.part.start, |last| last.range.end);
        let Some(next) = next
            .from(known)
            .filter(|next| next.range.start < self.part.end)
        else {
            return;
        };
        let next = Segment {
            range: next.range.start..next.range.end.min(self.part.end),
            ..next
        };
        match self.segments.last_mut() {
            Some(last) if last.goes_on_with(&next) => last.range.end = next.range.end,
            _ => self.segments.push(next),
        }
    }
}

impl Segment {
    /// Without what lies before an offset; none if that is all.
    fn from(self, offset: u64) -> Option<Self> {
        let cut = offset.saturating_sub(self.range.start);
        let range = self.range.start + cut..self.range.end;
        let place = self.place.map(|place| place + cut);
        (!range.is_empty()).then_some(Self { range, place })
    }

    fn goes_on_with(&self, next: &Self) -> bool {
        let length = self.range.end - self.range.start;
        self.range.end == next.range.start && self.place.map(|place| place + length) == next.place
    }
}

/// Segments that were not walked through yet.
struct Walk<'a>(&'a [Segment]);

impl Walk<'_> {
    /// What lies at an offset, and up to where it goes on like that. Offsets may only ascend.
    fn step(&mut self, offset: u64) -> (Content, u64) {
        while let Some((first, rest)) = self.0.split_first() {
            match (first.range.start.cmp(&offset), first.range.end > offset) {
                (_, false) => self.0 = rest,
                (Ordering::Greater, true) => return (Content::Zeros, first.range.start),
                (Ordering::Less | Ordering::Equal, true) => {
                    let block = |place| Content::Block(place + (offset - first.range.start));
                    let content = first.place.map_or(Content::Unknown, block);
                    return (content, first.range.end);
                }
            }
        }
        (Content::Zeros, u64::MAX)
    }
}
