//! The superblocks of ext4, XFS and btrfs: which filesystem a file or device contains.
//!
//! *Invariant:* nothing is written. A device without a known superblock is not necessarily blank:
//! `pool/blank.rs` decides that.

use std::{io, os::fd::BorrowedFd};

use cistern_types::{Bytes, FilesystemType};

use crate::{id::Uuid, system::System};

/// Bytes to read: those at the start hold the superblocks of ext4 and XFS, those at
/// [`BTRFS_OFFSET`] that of btrfs.
const LENGTH: usize = 4096;
/// Where the superblock of ext4 begins.
const EXT4_OFFSET: usize = 1024;
/// Where the superblock of btrfs begins.
const BTRFS_OFFSET: u64 = 64 << 10;
/// `INCOMPAT_64BIT`: the count of blocks has an upper half.
const EXT4_64BIT: u32 = 0x80;
/// `INCOMPAT_RECOVER`: the journal must be replayed, and may contain an error.
const EXT4_RECOVER: u32 = 0x4;
/// `s_state` of an unmounted filesystem without errors.
const EXT4_CLEAN: u16 = 1;

/// The contents of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Type of the filesystem.
    pub kind: FilesystemType,
    /// UUID of the filesystem.
    pub uuid: Uuid,
    /// Label of the filesystem.
    pub label: String,
    /// Size in bytes.
    pub size: Bytes,
    /// Size of a block in bytes.
    pub block_size: u64,
    /// Whether mkfs completed. (ext4 and btrfs write their superblock last.)
    pub complete: bool,
    /// Whether it must be checked before it is mounted: it was found damaged, or was not unmounted.
    /// (XFS and btrfs handle that themselves.)
    pub wants_check: bool,
    /// Whether a full check is required, which can take hours, instead of a replay of its journal.
    pub wants_full_check: bool,
}

/// Reads the superblock of a file or device; None if it is of no known filesystem.
pub(crate) fn read(system: &dyn System, file: BorrowedFd<'_>) -> io::Result<Option<Superblock>> {
    match parse(&system.read(file, 0, LENGTH)?) {
        Some(found) => Ok(Some(found)),
        None => Ok(parse_btrfs(&system.read(file, BTRFS_OFFSET, LENGTH)?)),
    }
}

fn parse(bytes: &[u8]) -> Option<Superblock> {
    parse_xfs(bytes).or_else(|| parse_ext4(bytes.get(EXT4_OFFSET..)?))
}

/// `struct xfs_dsb`: big-endian.
fn parse_xfs(bytes: &[u8]) -> Option<Superblock> {
    if field(bytes, 0)? != *b"XFSB" {
        return None;
    }
    let block_size = u64::from(u32::from_be_bytes(field(bytes, 4)?));
    let blocks = u64::from_be_bytes(field(bytes, 8)?);
    Some(Superblock {
        kind: FilesystemType::Xfs,
        uuid: Uuid::from_bytes(field(bytes, 32)?),
        label: label(&field::<12>(bytes, 108)?),
        size: Bytes(blocks.checked_mul(block_size)?),
        block_size,
        complete: field(bytes, 126)? == [0],
        wants_check: false,
        wants_full_check: false,
    })
}

/// `struct ext4_super_block`: little-endian.
fn parse_ext4(bytes: &[u8]) -> Option<Superblock> {
    if field(bytes, 56)? != 0xef53_u16.to_le_bytes() {
        return None;
    }
    let block_size = 1024_u64.checked_shl(u32::from_le_bytes(field(bytes, 24)?))?;
    let features = u32::from_le_bytes(field(bytes, 96)?);
    let upper_half = if features & EXT4_64BIT != 0 {
        u64::from(u32::from_le_bytes(field(bytes, 336)?)) << 32
    } else {
        0
    };
    let blocks = upper_half | u64::from(u32::from_le_bytes(field(bytes, 4)?));
    let wants_full_check = u16::from_le_bytes(field(bytes, 58)?) != EXT4_CLEAN;
    Some(Superblock {
        kind: FilesystemType::Ext4,
        uuid: Uuid::from_bytes(field(bytes, 104)?),
        label: label(&field::<16>(bytes, 120)?),
        size: Bytes(blocks.checked_mul(block_size)?),
        block_size,
        complete: true,
        wants_check: wants_full_check || features & EXT4_RECOVER != 0,
        wants_full_check,
    })
}

/// `struct btrfs_super_block`: little-endian.
fn parse_btrfs(bytes: &[u8]) -> Option<Superblock> {
    if field(bytes, 64)? != *b"_BHRfS_M" {
        return None;
    }
    Some(Superblock {
        kind: FilesystemType::Btrfs,
        uuid: Uuid::from_bytes(field(bytes, 32)?),
        label: label(&field::<256>(bytes, 299)?),
        size: Bytes(u64::from_le_bytes(field(bytes, 112)?)),
        block_size: u64::from(u32::from_le_bytes(field(bytes, 144)?)),
        complete: true,
        wants_check: false,
        wants_full_check: false,
    })
}

fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

fn label(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_xfs_that_mkfs_did_not_finish_is_not_complete() {
        let mut bytes = vec![0; LENGTH];
        bytes[..4].copy_from_slice(b"XFSB");
        bytes[4..8].copy_from_slice(&4096_u32.to_be_bytes());
        bytes[8..16].copy_from_slice(&256_u64.to_be_bytes());
        bytes[108..113].copy_from_slice(b"label");
        bytes[126] = 1;
        let found = parse(&bytes).unwrap();
        assert_eq!((found.size, found.complete), (Bytes::mib(1), false));
        assert_eq!(found.label, "label");
        bytes[126] = 0;
        assert!(parse(&bytes).unwrap().complete);
    }

    #[test]
    fn zeros_and_a_short_file_are_nothing() {
        assert_eq!(parse(&[0; LENGTH]), None);
        assert_eq!(parse(b"XFSB"), None);
        assert_eq!(parse_btrfs(&[0; LENGTH]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..LENGTH)) {
            for (at, magic) in [(0, &b"XFSB"[..]), (1080, b"\x53\xef"), (64, b"_BHRfS_M")] {
                let mut bytes = bytes.clone();
                if let Some(place) = bytes.get_mut(at..at + magic.len()) {
                    place.copy_from_slice(magic);
                }
                let _ = (parse(&bytes), parse_btrfs(&bytes));
            }
        }
    }
}
