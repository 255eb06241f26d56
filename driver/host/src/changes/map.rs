//! Maps a part of a file to its location on the disk, and compares two such maps.
//!
//! *Invariant:* pure: no I/O.

use std::{cmp::Ordering, ops::Range};

use crate::system::{Extent, Placement};

/// The locations of a part of a file. Two maps of the same part are equal when all of it has the
/// same location, however the kernel split it into extents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Map {
    part: Range<u64>,
    /// The ranges that hold data: ascending, within the part; contiguous ones are merged.
    segments: Vec<Segment>,
}

/// A range that holds data.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Segment {
    range: Range<u64>,
    /// Location of the first byte; none when the kernel does not report it.
    location: Option<u64>,
}

/// The content at one offset.
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
    /// Maps a part of a file from all extents in it. Unwritten extents read as zeros.
    pub(super) fn new(extents: impl IntoIterator<Item = Extent>, part: Range<u64>) -> Self {
        let mut map = Self {
            part,
            segments: Vec::new(),
        };
        for Extent { logical, placement } in extents {
            let location = match placement {
                Placement::Unwritten => continue,
                Placement::At(location) => Some(location),
                Placement::Unknown => None,
            };
            map.push(Segment {
                range: logical,
                location,
            });
        }
        map
    }

    /// Returns the part of the file.
    pub(super) fn part(&self) -> Range<u64> {
        self.part.clone()
    }

    /// Returns the map of a smaller part.
    pub(super) fn within(&self, part: &Range<u64>) -> Self {
        let mut map = Self::new([], part.clone());
        self.segments
            .iter()
            .cloned()
            .for_each(|next| map.push(next));
        map
    }

    /// Returns the ranges in which another file may differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<Range<u64>> {
        self.ranges(other, |one, other| !one.is_surely(other))
    }

    /// Returns the ranges in which at least one of the files may differ from zeros.
    pub(super) fn either(&self, other: &Self) -> Vec<Range<u64>> {
        self.ranges(other, |one, other| {
            !(one.is_surely_zeros() && other.is_surely_zeros())
        })
    }

    /// Returns the ranges in which a predicate holds for the contents of both files.
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

    /// Appends a segment behind all others, clipped to the part.
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
            Some(last) if last.is_continued_by(&next) => last.range.end = next.range.end,
            _ => self.segments.push(next),
        }
    }
}

impl Segment {
    /// Drops everything before an offset; none when nothing is left.
    fn from(self, offset: u64) -> Option<Self> {
        let dropped = offset.saturating_sub(self.range.start);
        let range = self.range.start + dropped..self.range.end;
        let location = self.location.map(|location| location + dropped);
        (!range.is_empty()).then_some(Self { range, location })
    }

    fn is_continued_by(&self, next: &Self) -> bool {
        let length = self.range.end - self.range.start;
        self.range.end == next.range.start
            && self.location.map(|start| start + length) == next.location
    }
}

/// The segments that the walk has not passed yet.
struct Walk<'a>(&'a [Segment]);

impl Walk<'_> {
    /// Returns the content at an offset and the end of its run. Offsets must ascend.
    fn step(&mut self, offset: u64) -> (Content, u64) {
        while let Some((first, rest)) = self.0.split_first() {
            match (first.range.start.cmp(&offset), first.range.end > offset) {
                (_, false) => self.0 = rest,
                (Ordering::Greater, true) => return (Content::Zeros, first.range.start),
                (Ordering::Less | Ordering::Equal, true) => {
                    let block = |start| Content::Block(start + (offset - first.range.start));
                    let content = first.location.map_or(Content::Unknown, block);
                    return (content, first.range.end);
                }
            }
        }
        (Content::Zeros, u64::MAX)
    }
}
