//! ioctls of mounted filesystems: freeze, thaw, geometry, growth.

use std::{io, os::fd::BorrowedFd};

use rustix::ioctl::{self, Getter, NoArg, Opcode, Setter, Updater};

// linux/fs.h: _IOWR('X', 119, int) and _IOWR('X', 120, int)
const FIFREEZE: Opcode = ioctl::opcode::read_write::<i32>(b'X', 119);
const FITHAW: Opcode = ioctl::opcode::read_write::<i32>(b'X', 120);
// xfs/xfs_fs.h: _IOR('X', 126, struct xfs_fsop_geom) and _IOW('X', 110, struct xfs_growfs_data)
const XFS_IOC_FSGEOMETRY: Opcode = ioctl::opcode::read::<XfsGeometry>(b'X', 126);
const XFS_IOC_FSGROWFSDATA: Opcode = ioctl::opcode::write::<XfsGrow>(b'X', 110);
// xfs/xfs_fs.h: _IOR('X', 58, struct xfs_fs_eofblocks), which the kernel reads
const XFS_IOC_FREE_EOFBLOCKS: Opcode = ioctl::opcode::read::<XfsPreallocations>(b'X', 58);
// xfs/xfs_fs.h: XFS_EOF_FLAGS_SYNC: wait, and do not skip files that are in use
const XFS_EOF_FLAGS_SYNC: u32 = 1;
// xfs/xfs_fs.h: _IOWR('X', 61, struct xfs_ag_geometry)
const XFS_IOC_AG_GEOMETRY: Opcode = ioctl::opcode::read_write::<XfsGroup>(b'X', 61);
// fs/ext4/ext4.h: _IOW('f', 16, __u64)
const EXT4_IOC_RESIZE_FS: Opcode = ioctl::opcode::write::<u64>(b'f', 16);
// linux/btrfs.h: _IOW(0x94, 3, struct btrfs_ioctl_vol_args)
const BTRFS_IOC_RESIZE: Opcode = ioctl::opcode::write::<BtrfsArguments>(0x94, 3);

/// `struct xfs_fsop_geom`: the shape of a mounted XFS.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct XfsGeometry {
    pub(crate) block_size: u32,
    rt_extent_size: u32,
    ag_blocks: u32,
    /// Number of allocation groups.
    pub(crate) ag_count: u32,
    log_blocks: u32,
    pub(crate) sector_size: u32,
    inode_size: u32,
    /// Maximum share of the space for inodes, in percent.
    pub(crate) inode_percent: u32,
    pub(crate) data_blocks: u64,
    rt_blocks: u64,
    rt_extents: u64,
    log_start: u64,
    pub(crate) uuid: [u8; 16],
    sunit: u32,
    swidth: u32,
    version: i32,
    pub(crate) flags: u32,
    log_sector_size: u32,
    rt_sector_size: u32,
    directory_block_size: u32,
    log_sunit: u32,
    /// Bit mask of the parts outside of allocation groups that are known to be damaged.
    pub(crate) sick: u32,
    checked: u32,
    reserved: [u64; 17],
}

/// `struct xfs_ag_geometry`: one allocation group of a mounted XFS.
#[repr(C)]
#[derive(Clone, Copy)]
struct XfsGroup {
    number: u32,
    length: u32,
    free_blocks: u32,
    inodes: u32,
    free_inodes: u32,
    sick: u32,
    checked: u32,
    flags: u32,
    reserved: [u64; 12],
}

/// `struct xfs_growfs_data`.
#[repr(C)]
struct XfsGrow {
    blocks: u64,
    inode_percent: u32,
}

/// `struct xfs_fs_eofblocks`: which preallocations to free.
#[repr(C)]
#[derive(Clone, Copy)]
struct XfsPreallocations {
    version: u32,
    flags: u32,
    uid: u32,
    gid: u32,
    project: u32,
    padding: u32,
    minimum_file_size: u64,
    reserved: [u64; 12],
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct BtrfsArguments {
    fd: i64,
    name: [u8; 4088],
}

/// Freezes the filesystem of an open file; `EBUSY` when it is frozen already.
pub(crate) fn freeze(inside: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: FIFREEZE ignores its argument.
    Ok(unsafe { ioctl::ioctl(inside, NoArg::<FIFREEZE>::new()) }?)
}

/// Thaws the filesystem of an open file; `EINVAL` when it is not frozen.
pub(crate) fn thaw(inside: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: FITHAW ignores its argument.
    Ok(unsafe { ioctl::ioctl(inside, NoArg::<FITHAW>::new()) }?)
}

/// Returns the geometry of the XFS of an open file; `ENOTTY` on any other filesystem.
pub(crate) fn xfs_geometry(inside: BorrowedFd<'_>) -> io::Result<XfsGeometry> {
    // SAFETY: XFS_IOC_FSGEOMETRY fills a struct xfs_fsop_geom.
    Ok(unsafe { ioctl::ioctl(inside, Getter::<XFS_IOC_FSGEOMETRY, XfsGeometry>::new()) }?)
}

/// Returns a bit mask of the parts of an allocation group that the XFS of an open file knows to be
/// damaged.
pub(crate) fn xfs_group_sick(inside: BorrowedFd<'_>, group: u32) -> io::Result<u32> {
    let mut group = XfsGroup {
        number: group,
        length: 0,
        free_blocks: 0,
        inodes: 0,
        free_inodes: 0,
        sick: 0,
        checked: 0,
        flags: 0,
        reserved: [0; 12],
    };
    // SAFETY: XFS_IOC_AG_GEOMETRY reads and fills a struct xfs_ag_geometry.
    unsafe {
        ioctl::ioctl(
            inside,
            Updater::<XFS_IOC_AG_GEOMETRY, XfsGroup>::new(&mut group),
        )
    }?;
    Ok(group.sick)
}

/// Frees the blocks that the XFS of an open file has preallocated, beyond the end of files and for
/// copy-on-write.
pub(crate) fn xfs_free_preallocations(inside: BorrowedFd<'_>) -> io::Result<()> {
    let mut all = XfsPreallocations {
        version: 1,
        flags: XFS_EOF_FLAGS_SYNC,
        uid: 0,
        gid: 0,
        project: 0,
        padding: 0,
        minimum_file_size: 0,
        reserved: [0; 12],
    };
    // SAFETY: XFS_IOC_FREE_EOFBLOCKS reads a struct xfs_fs_eofblocks.
    Ok(unsafe {
        ioctl::ioctl(
            inside,
            Updater::<XFS_IOC_FREE_EOFBLOCKS, XfsPreallocations>::new(&mut all),
        )
    }?)
}

/// Grows the XFS of an open file to this number of blocks.
pub(crate) fn xfs_grow(inside: BorrowedFd<'_>, blocks: u64, inode_percent: u32) -> io::Result<()> {
    let grow = XfsGrow {
        blocks,
        inode_percent,
    };
    // SAFETY: XFS_IOC_FSGROWFSDATA reads a struct xfs_growfs_data.
    Ok(unsafe { ioctl::ioctl(inside, Setter::<XFS_IOC_FSGROWFSDATA, XfsGrow>::new(grow)) }?)
}

/// Grows the mounted ext4 of an open file to this number of blocks. `EPERM` without
/// `CAP_SYS_RESOURCE`.
pub(crate) fn ext4_grow(inside: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
    // SAFETY: EXT4_IOC_RESIZE_FS reads a u64.
    Ok(unsafe { ioctl::ioctl(inside, Setter::<EXT4_IOC_RESIZE_FS, u64>::new(blocks)) }?)
}

/// Grows the mounted btrfs of an open file to the size of its only device.
pub(crate) fn btrfs_grow(inside: BorrowedFd<'_>) -> io::Result<()> {
    let mut name = [0; 4088];
    for (to, from) in name.iter_mut().zip(b"max") {
        *to = *from;
    }
    let arguments = BtrfsArguments { fd: 0, name };
    // SAFETY: BTRFS_IOC_RESIZE reads a struct btrfs_ioctl_vol_args whose name ends in a NUL.
    Ok(unsafe {
        ioctl::ioctl(
            inside,
            Setter::<BTRFS_IOC_RESIZE, BtrfsArguments>::new(arguments),
        )
    }?)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_structures_match_the_kernel_layout() {
        assert_eq!(size_of::<XfsGeometry>(), 256);
        assert_eq!(offset_of!(XfsGeometry, data_blocks), 32);
        assert_eq!(offset_of!(XfsGeometry, uuid), 64);
        assert_eq!(offset_of!(XfsGeometry, flags), 92);
        assert_eq!(offset_of!(XfsGeometry, sick), 112);
        assert_eq!(size_of::<XfsGroup>(), 128);
        assert_eq!(offset_of!(XfsGroup, sick), 20);
        assert_eq!(size_of::<XfsPreallocations>(), 128);
        assert_eq!(offset_of!(XfsPreallocations, minimum_file_size), 24);
        assert_eq!(size_of::<XfsGrow>(), 16);
        assert_eq!(size_of::<BtrfsArguments>(), 4096);
    }

    #[test]
    fn the_ioctl_numbers_match_the_kernel() {
        assert_eq!(FIFREEZE, 0xc004_5877);
        assert_eq!(FITHAW, 0xc004_5878);
        assert_eq!(XFS_IOC_FSGEOMETRY, 0x8100_587e);
        assert_eq!(XFS_IOC_FSGROWFSDATA, 0x4010_586e);
        assert_eq!(XFS_IOC_AG_GEOMETRY, 0xc080_583d);
        assert_eq!(XFS_IOC_FREE_EOFBLOCKS, 0x8080_583a);
        assert_eq!(EXT4_IOC_RESIZE_FS, 0x4008_6610);
        assert_eq!(BTRFS_IOC_RESIZE, 0x5000_9403);
    }
}
