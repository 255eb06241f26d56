//! Changes the UUID of a btrfs in its superblocks. All other blocks keep the UUID of its creation,
//! which the superblocks record as well (`METADATA_UUID`).
//!
//! btrfstune(8) does the same and commits a transaction. After that, the log of a live clone, with
//! all data synced since the last commit, no longer matches, and the kernel does not mount it. This
//! module changes only the UUID, and the first mount replays the log.

use std::{io, os::fd::BorrowedFd};

use blake2::{Blake2b, Digest as _, digest::consts::U32};
use sha2::Sha256;
use twox_hash::XxHash64;

use crate::{attached::size_of, id::Uuid, system::System};

/// Offsets of the superblocks of a btrfs, as far as they fit.
const SUPERBLOCKS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// Bytes of a superblock.
const LENGTH: usize = 4096;
/// Bytes of the checksum field, which comes first and covers the rest.
const CHECKSUM: usize = 32;
const FSID: usize = 32;
const MAGIC: usize = 64;
const INCOMPATIBLE_FEATURES: usize = 188;
const CHECKSUM_KIND: usize = 196;
const METADATA_UUID: usize = 571;
/// `BTRFS_FEATURE_INCOMPAT_METADATA_UUID`: all blocks but the superblocks have another UUID.
const FEATURE_METADATA_UUID: u64 = 1 << 10;

/// Changes the UUID of a btrfs clone before its first mount.
pub(crate) fn btrfs(system: &dyn System, file: BorrowedFd<'_>, uuid: Uuid) -> io::Result<()> {
    let size = size_of(system, file)?;
    let mut renewed = 0;
    for offset in SUPERBLOCKS {
        if offset + LENGTH as u64 > size {
            continue;
        }
        let bytes = system.read(file, offset, LENGTH)?;
        // An invalid copy stays as in the source.
        if let Some(bytes) = with_uuid(bytes, uuid) {
            system.write(file, offset, &bytes)?;
            renewed += 1;
        }
    }
    if renewed == 0 {
        return Err(io::Error::other("there is no btrfs"));
    }
    system.sync(file)
}

/// Returns a superblock with another UUID; none when it is invalid.
fn with_uuid(mut bytes: Vec<u8>, uuid: Uuid) -> Option<Vec<u8>> {
    let is_whole = field(&bytes, MAGIC)? == *b"_BHRfS_M" && field(&bytes, 0)? == checksum(&bytes)?;
    if !is_whole {
        return None;
    }
    let features = u64::from_le_bytes(field(&bytes, INCOMPATIBLE_FEATURES)?);
    if features & FEATURE_METADATA_UUID == 0 {
        let old: [u8; 16] = field(&bytes, FSID)?;
        put(&mut bytes, METADATA_UUID, &old)?;
        let features = features | FEATURE_METADATA_UUID;
        put(&mut bytes, INCOMPATIBLE_FEATURES, &features.to_le_bytes())?;
    }
    put(&mut bytes, FSID, uuid.as_bytes())?;
    let checksum = checksum(&bytes)?;
    put(&mut bytes, 0, &checksum)?;
    Some(bytes)
}

/// Computes the checksum field of a superblock; none for an unknown checksum type.
fn checksum(bytes: &[u8]) -> Option<[u8; CHECKSUM]> {
    let covered = bytes.get(CHECKSUM..LENGTH)?;
    let mut all = [0; CHECKSUM];
    match u16::from_le_bytes(field(bytes, CHECKSUM_KIND)?) {
        0 => put(&mut all, 0, &crc32c(covered).to_le_bytes())?,
        1 => put(&mut all, 0, &XxHash64::oneshot(0, covered).to_le_bytes())?,
        2 => all = Sha256::digest(covered).into(),
        3 => all = Blake2b::<U32>::digest(covered).into(),
        _ => return None,
    }
    Some(all)
}

fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

fn put(bytes: &mut [u8], offset: usize, value: &[u8]) -> Option<()> {
    bytes
        .get_mut(offset..offset + value.len())?
        .copy_from_slice(value);
    Some(())
}

/// CRC-32C (RFC 3720).
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
    let sum = bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc))
    });
    !sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_checksum_matches_the_standard() {
        // RFC 3720, B.4, and the check value of the catalogue of CRCs.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    fn superblock(kind: u8) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH];
        bytes[FSID..FSID + 16].fill(1);
        bytes[MAGIC..MAGIC + 8].copy_from_slice(b"_BHRfS_M");
        bytes[CHECKSUM_KIND] = kind;
        let checksum = checksum(&bytes).unwrap();
        bytes[..CHECKSUM].copy_from_slice(&checksum);
        bytes
    }

    #[test]
    fn the_metadata_uuid_stays_that_of_the_creation() {
        let renewed = |bytes, byte| with_uuid(bytes, Uuid::from_bytes([byte; 16])).unwrap();
        for kind in 0..4 {
            let second = renewed(renewed(superblock(kind), 2), 3);
            assert_eq!(second[FSID..FSID + 16], [3; 16]);
            assert_eq!(second[METADATA_UUID..METADATA_UUID + 16], [1; 16]);
            assert!(with_uuid(second, Uuid::from_bytes([4; 16])).is_some());
        }
    }

    #[test]
    fn a_superblock_that_is_not_whole_is_left_alone() {
        let uuid = Uuid::from_bytes([2; 16]);
        assert_eq!(with_uuid(vec![0; LENGTH], uuid), None);
        let mut torn = superblock(0);
        torn[4095] = 1;
        assert_eq!(with_uuid(torn, uuid), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..LENGTH)) {
            let _ = with_uuid(bytes, Uuid::from_bytes([2; 16]));
        }
    }
}
