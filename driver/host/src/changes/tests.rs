//! Tests the comparison of two images against a model of a disk on which extents move.

use std::{io, ops::Range};

use proptest::prelude::*;

use super::{Side, compare, map::Map};
use crate::system::{Extent, Placement};

const BLOCKS: usize = 24;
const BLOCK: u64 = 4096;

/// One block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Hole,
    Unwritten,
    /// In this block of the disk.
    At(u64),
    /// Data at a location that the filesystem does not report.
    Unknown,
}

impl Block {
    fn is_zeros(self) -> bool {
        matches!(self, Self::Hole | Self::Unwritten)
    }

    fn is_surely(self, other: Self) -> bool {
        match (self, other) {
            (Self::At(one), Self::At(other)) => one == other,
            (one, other) => one.is_zeros() && other.is_zeros(),
        }
    }
}

fn range(block: usize) -> Range<u64> {
    let start = block as u64 * BLOCK;
    start..start + BLOCK
}

/// The extents of a file; a cut before a block splits a contiguous extent there.
fn extents(file: &[Block], splits: &[bool]) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    for (index, block) in file.iter().enumerate() {
        let placement = match *block {
            Block::Hole => continue,
            Block::Unwritten => Placement::Unwritten,
            Block::At(place) => Placement::At(place * BLOCK),
            Block::Unknown => Placement::Unknown,
        };
        let goes_on = |last: &Extent| {
            let length = last.logical.end - last.logical.start;
            let next = match last.placement {
                Placement::At(place) => Placement::At(place + length),
                same => same,
            };
            last.logical.end == range(index).start && next == placement && !splits[index]
        };
        match all.last_mut() {
            Some(last) if goes_on(last) => last.logical.end = range(index).end,
            _ => all.push(Extent {
                logical: range(index),
                placement,
            }),
        }
    }
    all
}

/// Whether each block is in a range; no block may be covered in part.
fn covered(ranges: &[Range<u64>]) -> Vec<bool> {
    let holds = |block: Range<u64>| {
        let in_it = |range: &Range<u64>| range.start <= block.start && block.end <= range.end;
        let beside = |range: &Range<u64>| range.end <= block.start || block.end <= range.start;
        assert!(ranges.iter().all(|range| in_it(range) || beside(range)));
        ranges.iter().any(in_it)
    };
    (0..BLOCKS).map(range).map(holds).collect()
}

fn whole() -> Range<u64> {
    0..BLOCKS as u64 * BLOCK
}

fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        2 => Just(Block::Hole),
        1 => Just(Block::Unwritten),
        1 => Just(Block::Unknown),
        // Few locations, so that both files often share one.
        4 => (100..140_u64).prop_map(Block::At),
    ]
}

/// A file whose blocks are often contiguous.
fn file() -> impl Strategy<Value = Vec<Block>> {
    let run = (block(), 1..6_usize).prop_map(|(first, length)| {
        let of = move |index| match first {
            Block::At(place) => Block::At(place + index as u64),
            same => same,
        };
        (0..length).map(of).collect::<Vec<_>>()
    });
    prop::collection::vec(run, BLOCKS)
        .prop_map(|runs| runs.into_iter().flatten().take(BLOCKS).collect())
}

/// A file, and another that differs in some blocks.
fn files() -> impl Strategy<Value = (Vec<Block>, Vec<Block>)> {
    let other = prop::collection::vec(prop::option::weighted(0.2, block()), BLOCKS);
    (file(), other).prop_map(|(base, other)| {
        let both = base.iter().zip(other);
        let target = both.map(|(base, other)| other.unwrap_or(*base)).collect();
        (base, target)
    })
}

fn splits() -> impl Strategy<Value = Vec<bool>> {
    prop::collection::vec(any::<bool>(), BLOCKS)
}

/// Moves a block of the base or the target to a location on the disk, if that is free.
type Move = (bool, usize, u64);

/// The blocks of two files on one disk.
#[derive(Clone, Debug)]
struct Disk {
    base: Vec<Block>,
    target: Vec<Block>,
}

impl Disk {
    /// Moves one block. A block shared with the other file stays in that file.
    fn apply(&mut self, (of_base, index, place): Move) {
        let is_free = !self
            .base
            .iter()
            .chain(&self.target)
            .any(|block| *block == Block::At(place));
        let file = if of_base {
            &mut self.base
        } else {
            &mut self.target
        };
        if let Block::At(_) = file[index]
            && is_free
        {
            file[index] = Block::At(place);
        }
    }

    /// Answers like FIEMAP.
    fn read(&self, side: Side, part: Range<u64>, most: usize) -> Map {
        let file = match side {
            Side::Base => &self.base,
            Side::Target => &self.target,
        };
        let mut all = extents(file, &[false; BLOCKS]);
        all.retain(|extent| extent.logical.start < part.end && part.start < extent.logical.end);
        let is_all = all.len() < most;
        all.truncate(most);
        let end = all
            .last()
            .filter(|_| !is_all)
            .map_or(part.end, |last| last.logical.end);
        Map::new(all, part.start..end.min(part.end))
    }
}

/// Walks through both files, and moves one block before each read.
fn walk(mut disk: Disk, most: usize, moves: Vec<Move>) -> io::Result<Vec<Range<u64>>> {
    let mut moves = moves.into_iter();
    let mut all = Vec::new();
    let mut cursor = 0;
    while cursor < whole().end {
        let (ranges, end) = compare(cursor..whole().end, |side, part| {
            if let Some(next) = moves.next() {
                disk.apply(next);
            }
            Ok(disk.read(side, part, most))
        })?;
        assert!(end > cursor, "the walk does not advance");
        assert!(
            ranges
                .iter()
                .all(|range| cursor <= range.start && range.end <= end)
        );
        all.extend(ranges);
        cursor = end;
    }
    Ok(all)
}

proptest! {
    #[test]
    fn r11_two_maps_differ_where_their_blocks_do(
        (one, other) in files(),
        (splits, other_splits) in (splits(), splits()),
    ) {
        let one_map = Map::new(extents(&one, &splits), whole());
        let other_map = Map::new(extents(&other, &other_splits), whole());
        let pairs = || one.iter().zip(&other);
        let differ: Vec<bool> = pairs().map(|(one, other)| !one.is_surely(*other)).collect();
        prop_assert_eq!(covered(&one_map.differences(&other_map)), differ);
        let either: Vec<bool> =
            pairs().map(|(one, other)| !(one.is_zeros() && other.is_zeros())).collect();
        prop_assert_eq!(covered(&one_map.either(&other_map)), either);
    }

    #[test]
    fn maps_are_equal_however_the_kernel_splits_the_extents(
        file in file(),
        splits in splits(),
        (start, end) in (0..BLOCKS, 0..BLOCKS),
    ) {
        let part = range(start.min(end)).start..range(start.max(end)).end;
        let unsplit = Map::new(extents(&file, &[false; BLOCKS]), whole());
        let split = Map::new(extents(&file, &splits), whole());
        prop_assert_eq!(&unsplit, &split);
        prop_assert_eq!(unsplit.within(&part), Map::new(extents(&file, &splits), part));
    }

    #[test]
    fn r11_a_walk_with_any_batch_size_finds_exactly_the_differences(
        (base, target) in files(),
        most in 1..8_usize,
    ) {
        let differ: Vec<bool> =
            base.iter().zip(&target).map(|(base, target)| !base.is_surely(*target)).collect();
        let ranges = walk(Disk { base, target }, most, Vec::new()).unwrap();
        prop_assert_eq!(covered(&ranges), differ);
    }

    /// The other file may reuse a block immediately, so that a block has another content before and
    /// after a read.
    #[test]
    fn r11_what_differs_is_found_while_extents_move(
        (base, target) in files(),
        most in 1..8_usize,
        moves in prop::collection::vec((any::<bool>(), 0..BLOCKS, 100..150_u64), 0..64),
    ) {
        let surely: Vec<bool> =
            base.iter().zip(&target).map(|(base, target)| base.is_surely(*target)).collect();
        let ranges = walk(Disk { base, target }, most, moves).unwrap();
        for (reported, same) in covered(&ranges).into_iter().zip(surely) {
            prop_assert!(reported || same);
        }
    }
}
