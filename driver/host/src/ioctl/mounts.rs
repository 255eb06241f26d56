//! Changes the attributes of a mount.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use rustix::mount::MountAttrFlags;

/// `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
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
    use super::*;

    #[test]
    fn the_structures_match_the_kernel_layout() {
        assert_eq!(size_of::<MountAttr>(), 32);
    }
}
