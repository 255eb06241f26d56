//! The kernel calls that rustix does not have: loop devices, block devices, growing filesystems,
//! `mount_setattr`.
//!
//! *Invariant:* this is the only module of the workspace with `unsafe` code, and nothing here
//! decides anything: one function is one call.

#![expect(
    unsafe_code,
    reason = "each call hands the kernel a structure whose layout the tests below fix"
)]

use std::{
    io,
    ops::Range,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use rustix::{
    ioctl::{self, Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, Updater},
    mount::MountAttrFlags,
};

// linux/loop.h
const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
// linux/fs.h: _IO(0x12, 93) and _IOR(0x12, 114, size_t)
const BLKROSET: Opcode = ioctl::opcode::none(0x12, 93);
const BLKGETSIZE64: Opcode = ioctl::opcode::read::<u64>(0x12, 114);
// linux/fs.h: _IOR('X', 31, struct fsxattr)
const FS_IOC_FSGETXATTR: Opcode = ioctl::opcode::read::<FileAttributes>(b'X', 31);
// linux/fiemap.h: _IOWR('f', 11, struct fiemap)
const FS_IOC_FIEMAP: Opcode = ioctl::opcode::read_write::<FiemapHead>(b'f', 11);
// linux/fs.h: _IOWR('X', 119, int) and _IOWR('X', 120, int)
const FIFREEZE: Opcode = ioctl::opcode::read_write::<i32>(b'X', 119);
const FITHAW: Opcode = ioctl::opcode::read_write::<i32>(b'X', 120);
// xfs/xfs_fs.h: _IOR('X', 126, struct xfs_fsop_geom) and _IOW('X', 110, struct xfs_growfs_data)
const XFS_IOC_FSGEOMETRY: Opcode = ioctl::opcode::read::<XfsGeometry>(b'X', 126);
const XFS_IOC_FSGROWFSDATA: Opcode = ioctl::opcode::write::<XfsGrow>(b'X', 110);
// xfs/xfs_fs.h: _IOWR('X', 61, struct xfs_ag_geometry)
const XFS_IOC_AG_GEOMETRY: Opcode = ioctl::opcode::read_write::<XfsGroup>(b'X', 61);
// fs/ext4/ext4.h: _IOW('f', 16, __u64)
const EXT4_IOC_RESIZE_FS: Opcode = ioctl::opcode::write::<u64>(b'f', 16);
// linux/btrfs.h: _IOW(0x94, 3, struct btrfs_ioctl_vol_args)
const BTRFS_IOC_RESIZE: Opcode = ioctl::opcode::write::<BtrfsArguments>(0x94, 3);

/// The device cannot be written to.
pub(crate) const LO_FLAGS_READ_ONLY: u32 = 1;
/// The device lets go of its file when its last user closes it.
pub(crate) const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// The device reads and writes its file past the page cache.
pub(crate) const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LoopInfo {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    pub(crate) number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    pub(crate) flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct xfs_fsop_geom`: the shape of a mounted XFS.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct XfsGeometry {
    pub(crate) block_size: u32,
    rt_extent_size: u32,
    ag_blocks: u32,
    /// Allocation groups that it is divided into.
    pub(crate) ag_count: u32,
    log_blocks: u32,
    pub(crate) sector_size: u32,
    inode_size: u32,
    /// Share of the space that inodes may take, in hundredths.
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
    /// A bit for each part that concerns all of it and is known to be damaged.
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

/// `struct fsxattr`: what XFS knows of a file beside what stat(2) tells.
#[repr(C)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    clone_extent_size: u32,
    reserved: [u8; 8],
}

/// `struct fiemap` without its extents.
#[repr(C)]
#[derive(Clone, Copy)]
struct FiemapHead {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
}

/// `struct fiemap_extent`: a part of a file that has space on the disk.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    reserved: [u64; 2],
    pub(crate) flags: u32,
    reserved_too: [u32; 3],
}

impl Extent {
    pub(crate) const fn new(logical: Range<u64>, physical: u64, flags: u32) -> Self {
        Self {
            logical: logical.start,
            physical,
            length: logical.end - logical.start,
            reserved: [0; 2],
            flags,
            reserved_too: [0; 3],
        }
    }
}

/// How many extents one call tells of.
const EXTENTS: u32 = 256;

/// `struct fiemap`.
#[repr(C)]
struct Fiemap {
    head: FiemapHead,
    extents: [Extent; EXTENTS as usize],
}

/// `struct xfs_growfs_data`.
#[repr(C)]
struct XfsGrow {
    blocks: u64,
    inode_percent: u32,
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct BtrfsArguments {
    fd: i64,
    name: [u8; 4088],
}

/// `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

struct GetFree;

// SAFETY: LOOP_CTL_GET_FREE takes no argument and answers with its return value.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        number: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<u32> {
        u32::try_from(number).map_err(|_| rustix::io::Errno::RANGE)
    }
}

/// The number of a loop device that is free, made if there was none.
pub(crate) fn loop_free(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: see the implementation of Ioctl.
    Ok(unsafe { ioctl::ioctl(control, GetFree) }?)
}

/// Binds a loop device to a file and sets all it has in one call.
pub(crate) fn loop_configure(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    block_size: u32,
    flags: u32,
) -> io::Result<()> {
    let fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = LoopConfig {
        fd,
        block_size,
        info,
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads a struct loop_config.
    Ok(unsafe { ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }?)
}

/// What a loop device is bound to; `ENXIO` when to nothing.
pub(crate) fn loop_status(device: BorrowedFd<'_>) -> io::Result<LoopInfo> {
    // SAFETY: LOOP_GET_STATUS64 fills a struct loop_info64.
    Ok(unsafe { ioctl::ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }?)
}

/// Sets what may be set of a loop device that is bound: of its flags, `LO_FLAGS_AUTOCLEAR`.
pub(crate) fn loop_set_status(device: BorrowedFd<'_>, info: LoopInfo) -> io::Result<()> {
    // SAFETY: LOOP_SET_STATUS64 reads a struct loop_info64.
    Ok(unsafe { ioctl::ioctl(device, Setter::<LOOP_SET_STATUS64, LoopInfo>::new(info)) }?)
}

/// Has a loop device let go of its file when its last user closes it.
pub(crate) fn loop_clear(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    Ok(unsafe { ioctl::ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }?)
}

/// Makes a block device read-only, or writable again.
pub(crate) fn block_device_set_read_only(
    device: BorrowedFd<'_>,
    read_only: bool,
) -> io::Result<()> {
    // SAFETY: BLKROSET reads an int.
    Ok(unsafe { ioctl::ioctl(device, Setter::<BLKROSET, i32>::new(read_only.into())) }?)
}

/// Makes a loop device as large as its file has become.
pub(crate) fn loop_set_capacity(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    Ok(unsafe { ioctl::ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }?)
}

/// Bytes of a block device.
pub(crate) fn block_device_size(device: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: BLKGETSIZE64 fills a u64.
    Ok(unsafe { ioctl::ioctl(device, Getter::<BLKGETSIZE64, u64>::new()) }?)
}

// linux/fiemap.h
/// What is only in memory yet gets its place first.
const FIEMAP_FLAG_SYNC: u32 = 1;
/// The filesystem does not say where an extent lies.
pub(crate) const EXTENT_UNKNOWN: u32 = 0x2;
/// An extent has no place yet.
pub(crate) const EXTENT_DELALLOC: u32 = 0x4;
/// What lies there is not the file's bytes as they are, but compressed, say.
pub(crate) const EXTENT_ENCODED: u32 = 0x8;
/// What lies there is encrypted.
pub(crate) const EXTENT_DATA_ENCRYPTED: u32 = 0x80;
/// An extent does not begin or end with a block.
pub(crate) const EXTENT_NOT_ALIGNED: u32 = 0x100;
/// An extent lies among the filesystem's own data.
pub(crate) const EXTENT_DATA_INLINE: u32 = 0x200;
/// An extent lies in a block with other files' data.
pub(crate) const EXTENT_DATA_TAIL: u32 = 0x400;
/// An extent was never written.
pub(crate) const EXTENT_UNWRITTEN: u32 = 0x800;

/// How many extents a file on XFS has, unwritten ones too: a number that its inode keeps. (FIEMAP
/// would look up for each whether it is shared, and so hold up whoever clones or frees blocks.)
pub(crate) fn extent_count(file: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: FS_IOC_FSGETXATTR fills a struct fsxattr.
    let attributes =
        unsafe { ioctl::ioctl(file, Getter::<FS_IOC_FSGETXATTR, FileAttributes>::new()) }?;
    Ok(attributes.extents.into())
}

/// The first extents of a part of a file, unwritten ones too, and whether they are all.
pub(crate) fn extents(file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<(Vec<Extent>, bool)> {
    let none = Extent::new(0..0, 0, 0);
    let mut map = Box::new(Fiemap {
        head: FiemapHead {
            start: part.start,
            length: part.end - part.start,
            flags: FIEMAP_FLAG_SYNC,
            mapped: 0,
            room: EXTENTS,
            reserved: 0,
        },
        extents: [none; EXTENTS as usize],
    });
    // SAFETY: FS_IOC_FIEMAP fills a struct fiemap and as many extents as its head has room for.
    unsafe { ioctl::ioctl(file, Updater::<FS_IOC_FIEMAP, Fiemap>::new(&mut map)) }?;
    let mapped = usize::try_from(map.head.mapped).map_err(io::Error::other)?;
    let extents = map.extents.into_iter().take(mapped).collect();
    Ok((extents, map.head.mapped < EXTENTS))
}

/// Freezes the filesystem that holds an open file; `EBUSY` when it is frozen already.
pub(crate) fn freeze(inside: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: FIFREEZE does not look at its argument.
    Ok(unsafe { ioctl::ioctl(inside, NoArg::<FIFREEZE>::new()) }?)
}

/// Thaws the filesystem that holds an open file; `EINVAL` when it is not frozen.
pub(crate) fn thaw(inside: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: FITHAW does not look at its argument.
    Ok(unsafe { ioctl::ioctl(inside, NoArg::<FITHAW>::new()) }?)
}

/// Shape and identity of the XFS that holds an open file; `ENOTTY` on any other filesystem.
pub(crate) fn xfs_geometry(inside: BorrowedFd<'_>) -> io::Result<XfsGeometry> {
    // SAFETY: XFS_IOC_FSGEOMETRY fills a struct xfs_fsop_geom.
    Ok(unsafe { ioctl::ioctl(inside, Getter::<XFS_IOC_FSGEOMETRY, XfsGeometry>::new()) }?)
}

/// A bit for each part of an allocation group that the XFS that holds an open file knows to be
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

/// Grows the XFS that holds an open file to a number of its blocks.
pub(crate) fn xfs_grow(inside: BorrowedFd<'_>, blocks: u64, inode_percent: u32) -> io::Result<()> {
    let grow = XfsGrow {
        blocks,
        inode_percent,
    };
    // SAFETY: XFS_IOC_FSGROWFSDATA reads a struct xfs_growfs_data.
    Ok(unsafe { ioctl::ioctl(inside, Setter::<XFS_IOC_FSGROWFSDATA, XfsGrow>::new(grow)) }?)
}

/// Grows the mounted ext4 that holds an open file to a number of its blocks. `EPERM` without
/// `CAP_SYS_RESOURCE`.
pub(crate) fn ext4_grow(inside: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
    // SAFETY: EXT4_IOC_RESIZE_FS reads a u64.
    Ok(unsafe { ioctl::ioctl(inside, Setter::<EXT4_IOC_RESIZE_FS, u64>::new(blocks)) }?)
}

/// Grows the mounted btrfs that holds an open file to the whole of its one device.
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

/// Sets and clears attributes of one mount, attached or not.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    set: MountAttrFlags,
    clear: MountAttrFlags,
) -> io::Result<()> {
    let attributes = MountAttr {
        set: set.bits().into(),
        clear: clear.bits().into(),
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is a C string, the structure is a struct mount_attr of the size given, and
    // the kernel keeps neither.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_structures_have_the_kernels_layout() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(offset_of!(LoopInfo, flags), 52);
        assert_eq!(offset_of!(LoopInfo, init), 216);
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(offset_of!(LoopConfig, info), 8);
        assert_eq!(size_of::<XfsGeometry>(), 256);
        assert_eq!(offset_of!(XfsGeometry, data_blocks), 32);
        assert_eq!(offset_of!(XfsGeometry, uuid), 64);
        assert_eq!(offset_of!(XfsGeometry, flags), 92);
        assert_eq!(offset_of!(XfsGeometry, sick), 112);
        assert_eq!(size_of::<XfsGroup>(), 128);
        assert_eq!(offset_of!(XfsGroup, sick), 20);
        assert_eq!(size_of::<FileAttributes>(), 28);
        assert_eq!(offset_of!(FileAttributes, extents), 8);
        assert_eq!(size_of::<FiemapHead>(), 32);
        assert_eq!(size_of::<Extent>(), 56);
        assert_eq!(offset_of!(Extent, flags), 40);
        assert_eq!(offset_of!(Fiemap, extents), 32);
        assert_eq!(size_of::<XfsGrow>(), 16);
        assert_eq!(size_of::<BtrfsArguments>(), 4096);
        assert_eq!(size_of::<MountAttr>(), 32);
    }

    #[test]
    fn the_numbers_are_the_kernels() {
        assert_eq!(BLKROSET, 0x125d);
        assert_eq!(BLKGETSIZE64, 0x8008_1272);
        assert_eq!(FS_IOC_FIEMAP, 0xc020_660b);
        assert_eq!(FIFREEZE, 0xc004_5877);
        assert_eq!(FITHAW, 0xc004_5878);
        assert_eq!(XFS_IOC_FSGEOMETRY, 0x8100_587e);
        assert_eq!(XFS_IOC_FSGROWFSDATA, 0x4010_586e);
        assert_eq!(XFS_IOC_AG_GEOMETRY, 0xc080_583d);
        assert_eq!(EXT4_IOC_RESIZE_FS, 0x4008_6610);
        assert_eq!(BTRFS_IOC_RESIZE, 0x5000_9403);
    }
}
