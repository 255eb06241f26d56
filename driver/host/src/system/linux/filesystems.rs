//! Mounts, by the mount API of Linux 5.2 and later, and ioctls of filesystems.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::OsStr,
    fs, io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::syncfs,
    io::{Errno, read},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
        open_tree, unmount,
    },
};

use super::{
    super::{
        DeviceNumber, Devices as _, Filesystems, Mount, Parameter, XfsGeometry, mountinfo, sysfs,
    },
    Linux,
};
use crate::{id::Uuid, ioctl};

/// `XFS_FSOP_GEOM_FLAGS_REFLINK`.
const XFS_GEOMETRY_REFLINK: u32 = 1 << 20;
/// Maximum number of allocation groups of an XFS that are checked for damage. One that has grown a
/// lot has more, and each costs two disk reads the first time.
const XFS_GROUPS: u32 = 64;
/// The attributes that [`Filesystems::set_mount_attributes`] sets or clears.
const ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_NODIRATIME)
    .union(MountAttrFlags::MOUNT_ATTR__ATIME);

impl Filesystems for Linux {
    fn mounts(&self) -> io::Result<Vec<Mount>> {
        // Of this thread: a mount namespace is a property of a thread.
        let text = fs::read("/proc/thread-self/mountinfo")?;
        let mut mounts = mountinfo::parse(&text).map_err(io::Error::other)?;
        let mut known = HashMap::new();
        for mount in &mut mounts {
            let named = (mount.filesystem == "btrfs").then(|| mountinfo::node(&mount.source));
            let device = named.flatten().unwrap_or(mount.device);
            let beneath = match known.entry(device) {
                Entry::Occupied(found) => *found.get(),
                Entry::Vacant(unknown) => *unknown.insert(self.beneath(device)?),
            };
            // The kernel may name a foreign device like a node of Cistern.
            if beneath != mount.device
                && (beneath.as_loop().is_some() || self.mapping_of(beneath)?.is_some())
            {
                mount.device = beneath;
            }
        }
        Ok(mounts)
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
        // umount2(2) takes no directory descriptor. This path is equivalent, and its last part, the
        // only one that a pod could replace, is not followed. (A descriptor of the mount itself
        // would keep it busy.)
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

    fn ext4_errors(&self, device: DeviceNumber) -> io::Result<Option<u64>> {
        sysfs::ext4_errors(device)
    }

    fn btrfs_errors(&self, uuid: Uuid) -> io::Result<Option<u64>> {
        sysfs::btrfs_errors(uuid)
    }

    fn free_preallocations(&self, inside: BorrowedFd<'_>) -> io::Result<()> {
        ioctl::xfs_free_preallocations(inside)
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
}

/// Adds the kernel's messages from the context of the filesystem to an error of the mount API.
fn with_messages(error: Errno, context: &OwnedFd) -> io::Error {
    let mut messages = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = read(context, &mut buffer) {
        // `e text` is an error; warnings and notes are skipped.
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

/// An error with messages of the kernel.
#[derive(Debug, thiserror::Error)]
#[error("{error}: {messages}")]
struct Explained {
    error: io::Error,
    messages: String,
}

/// Whether the kernel refused to mount a damaged filesystem: `EUCLEAN`, or `EBADMSG` for a
/// checksum.
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
