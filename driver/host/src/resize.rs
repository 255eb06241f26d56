//! Sizes of filesystems: whether one covers its device, and growing it.

pub(crate) mod detached;
pub(crate) mod ext4;

use std::{io, os::fd::BorrowedFd};

use cistern_types::{Bytes, FilesystemType};

use crate::system::System;

/// Whether a mounted filesystem covers this size of its device.
pub(crate) fn is_full(
    system: &dyn System,
    inside: BorrowedFd<'_>,
    device: BorrowedFd<'_>,
    filesystem: FilesystemType,
    size: Bytes,
) -> io::Result<bool> {
    match filesystem {
        // Reads through the device return the superblock in memory.
        FilesystemType::Ext4 => ext4::is_full(system, device, size),
        FilesystemType::Xfs => {
            let geometry = system.xfs_geometry(inside)?;
            Ok(geometry.is_some_and(|found| found.blocks >= size.0 / u64::from(found.block_size)))
        }
        FilesystemType::Btrfs => Ok(system.space(inside)?.size >= size.0),
    }
}

/// Grows a mounted XFS to a size.
pub(crate) fn grow_xfs(system: &dyn System, inside: BorrowedFd<'_>, size: Bytes) -> io::Result<()> {
    let geometry = system.xfs_geometry(inside)?;
    let geometry = geometry.ok_or(io::ErrorKind::Unsupported)?;
    let blocks = size.0 / u64::from(geometry.block_size);
    system.grow_xfs(inside, blocks, geometry.inode_percent)
}
