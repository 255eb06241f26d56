//! Reads the size of an ext4, computes how large it can be, and grows it while it is not in use.

use std::{io, os::fd::BorrowedFd, time::Duration};

use cistern_types::Bytes;

use crate::{
    attached::size_of,
    cause::Cause,
    check,
    command::{Command, STDIN},
    progress::Progress,
    system::System,
};

/// Block size of every ext4 that Cistern makes, in bytes.
const BLOCK: u64 = 4096;
/// Offset and length of the superblock in bytes.
const SUPERBLOCK: (u64, usize) = (1024, 1024);
/// `INCOMPAT_64BIT`: the block count has an upper half.
const FEATURE_64BIT: u32 = 0x80;
/// Data blocks that the last group must have.
const SPARE: u64 = 50;
/// Growing writes group descriptors and inode tables.
const GROW_DEADLINE: Duration = Duration::from_mins(30);

/// The fields of `struct ext4_super_block` that determine its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    blocks: u64,
    blocks_per_group: u64,
    /// Blocks that the last group must have; resize2fs drops a smaller one.
    overhead: u64,
}

/// Converts a size in bytes to blocks.
pub(crate) fn blocks(size: Bytes) -> u64 {
    size.0 / BLOCK
}

/// Whether the ext4 in a file or device covers this size, as far as it can.
pub(crate) fn is_full(system: &dyn System, file: BorrowedFd<'_>, size: Bytes) -> io::Result<bool> {
    let (offset, length) = SUPERBLOCK;
    let shape = Shape::parse(&system.read(file, offset, length)?);
    let shape = shape.ok_or_else(|| io::Error::other("there is no ext4"))?;
    Ok(shape.covers(blocks(size)))
}

/// Grows the ext4 in a file or device to its size. Does nothing when it already has that size.
///
/// resize2fs requires a full check just before.
pub(crate) fn grow_unmounted(
    system: &dyn System,
    file: BorrowedFd<'_>,
    progress: Progress<'_>,
) -> Result<(), check::Error> {
    let size = size_of(system, file).map_err(Cause::from)?;
    if is_full(system, file, Bytes(size)).map_err(Cause::from)? {
        return Ok(());
    }
    check::ext4(system, file, check::Extent::Full, progress)?;
    let grow = Command::new("resize2fs", GROW_DEADLINE).operand(STDIN);
    let grow = grow.limited(check::LIMITS);
    let output = system.run(&grow, file).map_err(Cause::from)?;
    if output.exit != Some(0) {
        let failed = grow.failed(&output);
        return Err(if output.has_reached_limit() {
            let report = failed.to_string();
            check::Error::TooLarge { report }
        } else {
            Cause::from(failed).into()
        });
    }
    Ok(system.sync(file).map_err(Cause::from)?)
}

impl Shape {
    fn parse(bytes: &[u8]) -> Option<Self> {
        if u16::from_le_bytes(field(bytes, 56)?) != 0xef53 {
            return None;
        }
        let number =
            |offset| field(bytes, offset).map(|field| u64::from(u32::from_le_bytes(field)));
        let short = |offset| field(bytes, offset).map(|field| u64::from(u16::from_le_bytes(field)));
        let has_upper_half = u32::from_le_bytes(field(bytes, 96)?) & FEATURE_64BIT != 0;
        let upper_half = if has_upper_half {
            number(336)? << 32
        } else {
            0
        };
        let blocks = upper_half | number(4)?;
        let blocks_per_group = number(32)?;
        let inode_table = number(40)?.saturating_mul(short(88)?).div_ceil(BLOCK);
        let groups = blocks.div_ceil(blocks_per_group.max(1)).saturating_add(1);
        let descriptors = groups.saturating_mul(short(254)?.max(32)).div_ceil(BLOCK);
        // Two bitmaps; superblock and descriptors. Only some groups hold copies of the latter two,
        // but every group counts them.
        let overhead = [inode_table, 2 + 1, descriptors, short(206)?, SPARE];
        let overhead = overhead.into_iter().fold(0, u64::saturating_add);
        Some(Self {
            blocks,
            blocks_per_group,
            overhead,
        })
    }

    /// Whether the blocks that are not covered are too few for another group.
    fn covers(self, available: u64) -> bool {
        let rest = available.checked_rem(self.blocks_per_group).unwrap_or(0);
        let dropped = if available > self.blocks_per_group && rest < self.overhead {
            rest
        } else {
            0
        };
        self.blocks >= available - dropped
    }
}

fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHAPE: Shape = Shape {
        blocks: 32768,
        blocks_per_group: 32768,
        overhead: 650,
    };

    #[test]
    fn a_remainder_too_small_for_another_group_counts_as_covered() {
        assert!(SHAPE.covers(32768));
        assert!(SHAPE.covers(32768 + 649));
        assert!(!SHAPE.covers(32768 + 650));
        assert!(!SHAPE.covers(65536));
        assert!(SHAPE.covers(16384));
        let small = Shape {
            blocks: 4096,
            ..SHAPE
        };
        assert!(!small.covers(4097), "the first group grows to any size");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 1024), available: u64) {
            bytes[56..58].copy_from_slice(&0xef53_u16.to_le_bytes());
            if let Some(shape) = Shape::parse(&bytes) {
                let _ = shape.covers(available);
            }
        }
    }
}
