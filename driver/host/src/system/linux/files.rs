//! Files and directories, by openat2(2) and descriptors.

use std::{
    ffi::{OsStr, OsString},
    io,
    num::NonZeroU64,
    ops::Range,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::Path,
};

use rustix::{
    buffer::spare_capacity,
    fs::{
        Advice, AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags,
        RenameFlags, ResolveFlags, StatVfsMountFlags, XattrFlags, fadvise, fallocate, fgetxattr,
        flock, fremovexattr, fsetxattr, fstat, fstatvfs, fsync, ftruncate, ioctl_ficlone, mkdirat,
        openat2, renameat, renameat_with, unlinkat,
    },
    io::{Errno, pread, pwrite},
};

use super::{
    super::{Block, Extent, FileId, FileKind, Files, Space, Stat, sysfs},
    Linux,
};
use crate::ioctl;

/// Longer than any extended attribute of Cistern.
const ATTRIBUTE_LIMIT: usize = 4096;

impl Files for Linux {
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        open_at(CWD, path, flags, ResolveFlags::NO_SYMLINKS)
    }

    fn open_following(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        open_at(CWD, path, flags, ResolveFlags::empty())
    }

    fn open_beneath(
        &self,
        directory: BorrowedFd<'_>,
        path: &Path,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        open_at(directory, path, flags, resolve)
    }

    fn make_directory(&self, directory: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<()> {
        Ok(mkdirat(directory, name, Mode::from_raw_mode(mode))?)
    }

    fn remove_directory(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(directory, name, AtFlags::REMOVEDIR)?)
    }

    fn unlink(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(directory, name, AtFlags::empty())?)
    }

    fn rename(
        &self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        to: BorrowedFd<'_>,
        new_name: &OsStr,
    ) -> io::Result<()> {
        Ok(renameat_with(
            from,
            name,
            to,
            new_name,
            RenameFlags::NOREPLACE,
        )?)
    }

    fn replace(
        &self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        to: BorrowedFd<'_>,
        replaced: &OsStr,
    ) -> io::Result<()> {
        Ok(renameat(from, name, to, replaced)?)
    }

    fn list(&self, directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort();
        Ok(names)
    }

    fn stat(&self, file: BorrowedFd<'_>) -> io::Result<Stat> {
        let stat = fstat(file)?;
        let unsigned = |number: i64| u64::try_from(number).map_err(io::Error::other);
        Ok(Stat {
            id: FileId {
                device: sysfs::device_number(stat.st_dev),
                inode: stat.st_ino,
            },
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => FileKind::File,
                FileType::Directory => FileKind::Directory,
                FileType::Symlink => FileKind::SymbolicLink,
                FileType::BlockDevice => FileKind::BlockDevice,
                _ => FileKind::Other,
            },
            size: unsigned(stat.st_size)?,
            allocated: unsigned(stat.st_blocks)? * 512,
            node: sysfs::device_number(stat.st_rdev),
        })
    }

    fn space(&self, file: BorrowedFd<'_>) -> io::Result<Space> {
        let all = fstatvfs(file)?;
        Ok(Space {
            size: all.f_blocks * all.f_frsize,
            free: all.f_bfree * all.f_frsize,
            available: all.f_bavail * all.f_frsize,
            inodes: all.f_files,
            inodes_free: all.f_ffree,
            read_only: all.f_flag.contains(StatVfsMountFlags::RDONLY),
        })
    }

    fn read(&self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let done = bytes.len() as u64;
            match pread(file, spare_capacity(&mut bytes), offset + done) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The capacity may be larger than requested.
        bytes.truncate(length);
        Ok(bytes)
    }

    fn read_ahead(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        // No length means everything behind the offset.
        match NonZeroU64::new(part.end.saturating_sub(part.start)) {
            Some(length) => Ok(fadvise(file, part.start, Some(length), Advice::WillNeed)?),
            None => Ok(()),
        }
    }

    fn write_back(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        // No length means everything behind the offset.
        if part.is_empty() {
            return Ok(());
        }
        ioctl::write_back(file, part)
    }

    fn write(&self, file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match pwrite(file, rest, offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read_block(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<Box<Block>> {
        let mut block = Box::new(Block([0; Block::SIZE]));
        loop {
            match pread(file, &mut block.0, offset) {
                Ok(Block::SIZE) => return Ok(block),
                // Direct I/O could not read the rest of a partial block.
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_block(&self, file: BorrowedFd<'_>, offset: u64, block: &Block) -> io::Result<()> {
        loop {
            match pwrite(file, &block.0, offset) {
                Ok(Block::SIZE) => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn truncate(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        Ok(ftruncate(file, size)?)
    }

    fn extents(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<(Vec<Extent>, u64)> {
        if part.is_empty() {
            return Ok((Vec::new(), part.end));
        }
        let (extents, is_all) = ioctl::extents(file, part)?;
        let extents: Vec<_> = extents.into_iter().map(Extent::from).collect();
        match extents.last() {
            Some(last) if !is_all && last.logical.end <= part.start => Err(io::Error::other(
                "the filesystem returned extents outside of the requested range",
            )),
            Some(last) if !is_all => {
                let end = last.logical.end.min(part.end);
                Ok((extents, end))
            }
            _ => Ok((extents, part.end)),
        }
    }

    fn allocate(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        change_space(file, FallocateFlags::empty(), part)
    }

    fn punch(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        change_space(file, flags, part)
    }

    fn set_extent_size(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        let size = size.try_into().map_err(|_| io::Error::from(Errno::INVAL))?;
        ioctl::set_extent_size(file, size)
    }

    fn extent_count(&self, file: BorrowedFd<'_>) -> io::Result<u64> {
        ioctl::extent_count(file)
    }

    fn reflink(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        Ok(ioctl_ficlone(to, from)?)
    }

    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        Ok(fsync(file)?)
    }

    fn try_lock(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        try_lock(file, FlockOperation::NonBlockingLockExclusive)
    }

    fn try_lock_shared(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        try_lock(file, FlockOperation::NonBlockingLockShared)
    }

    fn attribute(&self, file: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; ATTRIBUTE_LIMIT];
        match fgetxattr(file, name, value.as_mut_slice()) {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            Err(Errno::NODATA) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn set_attribute(&self, file: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()> {
        Ok(fsetxattr(file, name, value, XattrFlags::CREATE)?)
    }

    fn replace_attribute(&self, file: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()> {
        Ok(fsetxattr(file, name, value, XattrFlags::REPLACE)?)
    }

    fn remove_attribute(&self, file: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        match fremovexattr(file, name) {
            Err(Errno::NODATA) => Ok(()),
            result => Ok(result?),
        }
    }
}

fn try_lock(file: BorrowedFd<'_>, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Allocates or frees the space of a part of a file.
fn change_space(file: BorrowedFd<'_>, flags: FallocateFlags, part: &Range<u64>) -> io::Result<()> {
    let length = part.end.saturating_sub(part.start);
    loop {
        match fallocate(file, flags, part.start, length) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Opens a path. A new file is accessible only to its owner. No magic link of /proc is followed.
fn open_at(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::RUSR | Mode::WUSR
    } else {
        Mode::empty()
    };
    let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(
        directory,
        path,
        flags | OFlags::CLOEXEC,
        mode,
        resolve,
    )?)
}
