//! Kernel calls that rustix lacks: loop devices, block devices, extents, growing
//! filesystems, `mount_setattr`, `sync_file_range`.
//!
//! *Invariant:* this is the only module of the workspace with `unsafe` code, and it has no logic:
//! one function is one call.

#![expect(
    unsafe_code,
    reason = "each call passes the kernel a structure whose layout its tests verify"
)]

mod devices;
mod extents;
mod filesystems;
mod mounts;
mod write_back;

pub(crate) use self::{
    devices::{
        LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, block_device_set_read_only,
        block_device_size, block_device_zero, loop_add, loop_clear, loop_configure, loop_free,
        loop_set_capacity, loop_set_status, loop_status,
    },
    extents::{
        EXTENT_DATA_ENCRYPTED, EXTENT_DATA_INLINE, EXTENT_DATA_TAIL, EXTENT_DELALLOC,
        EXTENT_ENCODED, EXTENT_NOT_ALIGNED, EXTENT_UNKNOWN, EXTENT_UNWRITTEN, Extent, extent_count,
        extents, set_extent_size,
    },
    filesystems::{
        btrfs_grow, ext4_grow, freeze, thaw, xfs_free_preallocations, xfs_geometry, xfs_group_sick,
        xfs_grow,
    },
    mounts::mount_setattr,
    write_back::write_back,
};
