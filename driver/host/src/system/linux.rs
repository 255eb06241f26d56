//! [`Linux`]: the one implementation of [`System`].

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    ops::Range,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags,
        ResolveFlags, StatVfsMountFlags, XattrFlags, fallocate, fgetxattr, flock, fsetxattr, fstat,
        fstatvfs, fsync, ftruncate, ioctl_ficlone, mkdirat, openat2, renameat, renameat_with,
        syncfs, unlinkat,
    },
    io::{Errno, pread, pwrite, read},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
        open_tree, unmount,
    },
};

use super::{
    Block, BoundLoop, DeviceNumber, Extent, FileId, FileKind, LoopSettings, LoopStatus, Parameter,
    Space, Stat, System, XfsGeometry, sysfs,
};
use crate::{
    command::{self, Command},
    id::Uuid,
    ioctl,
    mountinfo::{self, Mount},
};

/// Sectors of every loop device: never derived from the file, whose alignment for direct I/O grows
/// from 512 to 4096 with its first reflink.
const SECTOR_SIZE: u32 = 4096;
/// Longer than any extended attribute of ours.
const ATTRIBUTE_LIMIT: usize = 4096;
/// `XFS_FSOP_GEOM_FLAGS_REFLINK`.
const XFS_GEOMETRY_REFLINK: u32 = 1 << 20;
/// Allocation groups of an XFS that are asked for damage. One that was grown a lot has more, and each
/// takes two reads of the disk the first time.
const XFS_GROUPS: u32 = 64;
/// All that [`System::set_mount_attributes`] decides on.
const ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_NODIRATIME)
    .union(MountAttrFlags::MOUNT_ATTR__ATIME);

/// The machine that this process runs on.
#[derive(Debug)]
pub struct Linux {
    nodes: PathBuf,
}

impl Linux {
    /// The machine. Device nodes that `/dev` lacks (a container has a copy of it) are made in a
    /// directory of our own, which must not lie on a filesystem mounted with `nodev`.
    pub fn new(nodes: impl Into<PathBuf>) -> Self {
        Self {
            nodes: nodes.into(),
        }
    }
}

impl System for Linux {
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(
            CWD,
            path,
            flags | OFlags::CLOEXEC,
            creation_mode(flags),
            resolve,
        )?)
    }

    fn open_following(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(
            CWD,
            path,
            flags | OFlags::CLOEXEC,
            creation_mode(flags),
            resolve,
        )?)
    }

    fn open_beneath(
        &self,
        directory: BorrowedFd<'_>,
        path: &Path,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(
            directory,
            path,
            flags | OFlags::CLOEXEC,
            creation_mode(flags),
            resolve,
        )?)
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

    fn replace(&self, directory: BorrowedFd<'_>, name: &OsStr, replaced: &OsStr) -> io::Result<()> {
        Ok(renameat(directory, name, directory, replaced)?)
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
        let mut bytes = vec![0; length];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match pread(file, rest, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
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
                // The rest of a block that was cut short could not be read past the page cache.
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
                "the filesystem tells of extents outside of what it was asked",
            )),
            Some(last) if !is_all => {
                let end = last.logical.end.min(part.end);
                Ok((extents, end))
            }
            _ => Ok((extents, part.end)),
        }
    }

    fn allocate(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        let length = part.end.saturating_sub(part.start);
        loop {
            match fallocate(file, FallocateFlags::empty(), part.start, length) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
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

    fn block_devices(&self) -> io::Result<Vec<(String, DeviceNumber)>> {
        sysfs::block_devices()
    }

    fn device_path(&self, name: &str, device: DeviceNumber) -> io::Result<PathBuf> {
        sysfs::device_path(&self.nodes, name, device)
    }

    fn device_size(&self, device: BorrowedFd<'_>) -> io::Result<u64> {
        ioctl::block_device_size(device)
    }

    fn set_read_only(&self, device: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
        ioctl::block_device_set_read_only(device, read_only)
    }

    fn is_read_only(&self, device: DeviceNumber) -> io::Result<bool> {
        sysfs::is_read_only(device)
    }

    fn device_errors(&self, device: DeviceNumber) -> io::Result<Option<u64>> {
        sysfs::device_errors(device)
    }

    fn has_partitions(&self, device: DeviceNumber) -> io::Result<bool> {
        sysfs::has_partitions(device)
    }

    fn bound_loops(&self) -> io::Result<Vec<BoundLoop>> {
        sysfs::bound_loops()
    }

    fn backing_file(&self, number: u32) -> io::Result<Option<PathBuf>> {
        sysfs::backing_file(number)
    }

    fn free_loop(&self) -> io::Result<u32> {
        let control = self.open_following(Path::new("/dev/loop-control"), OFlags::RDWR)?;
        ioctl::loop_free(control.as_fd())
    }

    fn bind_loop(&self, device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
        let flags = ioctl::LO_FLAGS_DIRECT_IO | ioctl::LO_FLAGS_AUTOCLEAR;
        ioctl::loop_configure(device, file, SECTOR_SIZE, flags)
    }

    fn loop_status(&self, device: BorrowedFd<'_>) -> io::Result<Option<LoopStatus>> {
        match ioctl::loop_status(device) {
            Ok(info) => Ok(Some(LoopStatus {
                file: FileId {
                    device: sysfs::device_number(info.device),
                    inode: info.inode,
                },
                read_only: info.flags & ioctl::LO_FLAGS_READ_ONLY != 0,
            })),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_kept(&self, number: u32) -> io::Result<bool> {
        sysfs::is_kept(number)
    }

    fn loop_settings(&self, number: u32) -> io::Result<LoopSettings> {
        sysfs::loop_settings(number)
    }

    fn keep_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        let mut info = ioctl::loop_status(device)?;
        info.flags &= !ioctl::LO_FLAGS_AUTOCLEAR;
        ioctl::loop_set_status(device, info)
    }

    fn let_go_of_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        ioctl::loop_clear(device)
    }

    fn resize_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        ioctl::loop_set_capacity(device)
    }

    fn mounts(&self) -> io::Result<Vec<Mount>> {
        // Of this thread: a mount namespace belongs to a thread, not to a process.
        let text = fs::read("/proc/thread-self/mountinfo")?;
        mountinfo::parse(&text).map_err(io::Error::other)
    }

    fn mount_id(&self, file: BorrowedFd<'_>) -> io::Result<u64> {
        let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd()))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let id = id.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        id.trim().parse().map_err(io::Error::other)
    }

    fn mount_filesystem(
        &self,
        filesystem: &str,
        device: &Path,
        parameters: &[Parameter<'_>],
        attributes: MountAttrFlags,
    ) -> io::Result<OwnedFd> {
        let context = fsopen(filesystem, FsOpenFlags::FSOPEN_CLOEXEC)?;
        let configure = || {
            fsconfig_set_string(&context, "source", device)?;
            for (key, value) in parameters {
                match value {
                    Some(value) => fsconfig_set_string(&context, *key, *value)?,
                    None => fsconfig_set_flag(&context, *key)?,
                }
            }
            fsconfig_create(&context)?;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        configure().map_err(|error| with_messages(error, &context))
    }

    fn clone_mount(&self, file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(open_tree(file, c"", flags)?)
    }

    fn set_mount_attributes(
        &self,
        mount: BorrowedFd<'_>,
        attributes: MountAttrFlags,
    ) -> io::Result<()> {
        ioctl::mount_setattr(mount, attributes, ATTRIBUTES)
    }

    fn attach_mount(&self, mount: BorrowedFd<'_>, onto: BorrowedFd<'_>) -> io::Result<()> {
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(mount, c"", onto, c"", flags)?)
    }

    fn unmount(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        // umount2(2) takes no directory descriptor; this is the same, and its last part, the only
        // one that a pod could replace, is not followed. (A descriptor of the mount itself would
        // keep it busy.)
        let parent = format!("/proc/thread-self/fd/{}", directory.as_raw_fd());
        Ok(unmount(
            Path::new(&parent).join(name),
            UnmountFlags::NOFOLLOW,
        )?)
    }

    fn sync_filesystem(&self, inside: BorrowedFd<'_>) -> io::Result<()> {
        Ok(syncfs(inside)?)
    }

    fn freeze(&self, inside: BorrowedFd<'_>) -> io::Result<()> {
        ioctl::freeze(inside)
    }

    fn thaw(&self, inside: BorrowedFd<'_>) -> io::Result<bool> {
        match ioctl::thaw(inside) {
            Ok(()) => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn xfs_geometry(&self, inside: BorrowedFd<'_>) -> io::Result<Option<XfsGeometry>> {
        match ioctl::xfs_geometry(inside) {
            Ok(geometry) => Ok(Some(XfsGeometry {
                uuid: geometry.uuid,
                block_size: geometry.block_size,
                blocks: geometry.data_blocks,
                inode_percent: geometry.inode_percent,
                reflink: geometry.flags & XFS_GEOMETRY_REFLINK != 0,
            })),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn xfs_damage(&self, inside: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        let geometry = match ioctl::xfs_geometry(inside) {
            Ok(geometry) => geometry,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTTY) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut damaged = u64::from(geometry.sick.count_ones());
        for group in 0..geometry.ag_count.min(XFS_GROUPS) {
            damaged += u64::from(ioctl::xfs_group_sick(inside, group)?.count_ones());
        }
        Ok(Some(damaged))
    }

    fn ext4_errors(&self, number: u32) -> io::Result<Option<u64>> {
        sysfs::ext4_errors(number)
    }

    fn btrfs_errors(&self, uuid: Uuid) -> io::Result<Option<u64>> {
        sysfs::btrfs_errors(uuid)
    }

    fn grow_xfs(&self, inside: BorrowedFd<'_>, blocks: u64, inode_percent: u32) -> io::Result<()> {
        ioctl::xfs_grow(inside, blocks, inode_percent)
    }

    fn grow_ext4(&self, inside: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
        ioctl::ext4_grow(inside, blocks)
    }

    fn grow_btrfs(&self, inside: BorrowedFd<'_>) -> io::Result<()> {
        ioctl::btrfs_grow(inside)
    }

    fn run(
        &self,
        command: &Command,
        input: BorrowedFd<'_>,
    ) -> Result<command::Output, command::Error> {
        command.run(Some(input))
    }
}

fn try_lock(file: BorrowedFd<'_>, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn creation_mode(flags: OFlags) -> Mode {
    if flags.contains(OFlags::CREATE) {
        Mode::RUSR | Mode::WUSR
    } else {
        Mode::empty()
    }
}

/// An error of the mount API, with what the kernel wrote into the context of the filesystem.
fn with_messages(error: Errno, context: &OwnedFd) -> io::Error {
    let mut messages = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = read(context, &mut buffer) {
        // `e text`: an error; warnings and notes are left out.
        let message = buffer.get(..count).unwrap_or_default();
        if let Some(text) = message.strip_prefix(b"e ") {
            messages.push(String::from_utf8_lossy(text).trim().to_owned());
        }
    }
    let error = io::Error::from(error);
    if messages.is_empty() {
        return error;
    }
    io::Error::new(
        error.kind(),
        Explained {
            error,
            messages: messages.join("; "),
        },
    )
}

/// An error with what the kernel said besides.
#[derive(Debug, thiserror::Error)]
#[error("{error}: {messages}")]
struct Explained {
    error: io::Error,
    messages: String,
}

/// Whether the kernel did not mount a filesystem because it is damaged: `EUCLEAN`, or `EBADMSG` for
/// a checksum.
pub(crate) fn is_damage(error: &io::Error) -> bool {
    let explained = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Explained>());
    let error = explained.map_or(error, |explained| &explained.error);
    matches!(
        Errno::from_io_error(error),
        Some(Errno::UCLEAN | Errno::BADMSG)
    )
}
