//! ioctls for the extents of a file.

use std::{io, ops::Range, os::fd::BorrowedFd};

use rustix::ioctl::{self, Getter, Opcode, Setter, Updater};

// linux/fs.h: _IOR('X', 31, struct fsxattr)
const FS_IOC_FSGETXATTR: Opcode = ioctl::opcode::read::<FileAttributes>(b'X', 31);
// linux/fs.h: _IOW('X', 32, struct fsxattr)
const FS_IOC_FSSETXATTR: Opcode = ioctl::opcode::write::<FileAttributes>(b'X', 32);
/// `extent_size` is set.
const FS_XFLAG_EXTSIZE: u32 = 0x800;
// linux/fiemap.h: _IOWR('f', 11, struct fiemap)
const FS_IOC_FIEMAP: Opcode = ioctl::opcode::read_write::<FiemapHead>(b'f', 11);

/// `struct fsxattr`: attributes of a file on XFS that stat(2) does not return.
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

/// `struct fiemap_extent`: an allocated part of a file.
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

/// Maximum number of extents that one call returns.
const EXTENTS: u32 = 256;

/// `struct fiemap`.
#[repr(C)]
struct Fiemap {
    head: FiemapHead,
    extents: [Extent; EXTENTS as usize],
}

// linux/fiemap.h
/// Syncs the file first, so that dirty pages get a location.
const FIEMAP_FLAG_SYNC: u32 = 1;
/// The filesystem does not report the location of the extent.
pub(crate) const EXTENT_UNKNOWN: u32 = 0x2;
/// The extent has no location yet (delayed allocation).
pub(crate) const EXTENT_DELALLOC: u32 = 0x4;
/// The data is encoded, for example compressed.
pub(crate) const EXTENT_ENCODED: u32 = 0x8;
/// The data is encrypted.
pub(crate) const EXTENT_DATA_ENCRYPTED: u32 = 0x80;
/// The extent is not aligned to blocks.
pub(crate) const EXTENT_NOT_ALIGNED: u32 = 0x100;
/// The data is stored inline in metadata.
pub(crate) const EXTENT_DATA_INLINE: u32 = 0x200;
/// The extent shares a block with data of other files.
pub(crate) const EXTENT_DATA_TAIL: u32 = 0x400;
/// The extent is allocated but never written.
pub(crate) const EXTENT_UNWRITTEN: u32 = 0x800;

/// Counts the extents of a file on XFS, including unwritten ones, from its inode. (FIEMAP would
/// look up whether each is shared, and block other callers that clone or free blocks.)
pub(crate) fn extent_count(file: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(attributes(file)?.extents.into())
}

/// Sets the extent size hint of a file on XFS, in bytes. Fails with `EINVAL` if the file has extents.
pub(crate) fn set_extent_size(file: BorrowedFd<'_>, size: u32) -> io::Result<()> {
    let mut attributes = attributes(file)?;
    attributes.flags |= FS_XFLAG_EXTSIZE;
    attributes.extent_size = size;
    // SAFETY: FS_IOC_FSSETXATTR reads a struct fsxattr.
    Ok(unsafe {
        ioctl::ioctl(
            file,
            Setter::<FS_IOC_FSSETXATTR, FileAttributes>::new(attributes),
        )
    }?)
}

fn attributes(file: BorrowedFd<'_>) -> io::Result<FileAttributes> {
    // SAFETY: FS_IOC_FSGETXATTR fills a struct fsxattr.
    Ok(unsafe { ioctl::ioctl(file, Getter::<FS_IOC_FSGETXATTR, FileAttributes>::new()) }?)
}

/// Returns the first extents of a part of a file, including unwritten ones, and whether they are
/// all.
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

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_structures_match_the_kernel_layout() {
        assert_eq!(size_of::<FileAttributes>(), 28);
        assert_eq!(offset_of!(FileAttributes, extents), 8);
        assert_eq!(size_of::<FiemapHead>(), 32);
        assert_eq!(size_of::<Extent>(), 56);
        assert_eq!(offset_of!(Extent, flags), 40);
        assert_eq!(offset_of!(Fiemap, extents), 32);
    }

    #[test]
    fn the_ioctl_numbers_match_the_kernel() {
        assert_eq!(FS_IOC_FIEMAP, 0xc020_660b);
        assert_eq!(FS_IOC_FSGETXATTR, 0x801c_581f);
        assert_eq!(FS_IOC_FSSETXATTR, 0x401c_5820);
    }
}
