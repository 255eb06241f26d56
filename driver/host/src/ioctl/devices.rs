//! ioctls of loop devices and other block devices.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use rustix::ioctl::{self, Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter};

// linux/loop.h
const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_ADD: Opcode = 0x4C80;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
// linux/fs.h: _IO(0x12, 93) and _IOR(0x12, 114, size_t)
const BLKROSET: Opcode = ioctl::opcode::none(0x12, 93);
// linux/fs.h: _IO(0x12, 127)
const BLKZEROOUT: Opcode = ioctl::opcode::none(0x12, 127);
const BLKGETSIZE64: Opcode = ioctl::opcode::read::<u64>(0x12, 114);

/// The device cannot be written to.
pub(crate) const LO_FLAGS_READ_ONLY: u32 = 1;
/// The device detaches from its file when its last user closes it.
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

/// A request to the control device, which returns the number of a loop device.
struct Control<const OPCODE: Opcode>(isize);

// SAFETY: LOOP_CTL_ADD takes a number by value and LOOP_CTL_GET_FREE ignores its argument; both
// return the number as their result.
unsafe impl<const OPCODE: Opcode> Ioctl for Control<OPCODE> {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        std::ptr::without_provenance_mut(self.0.cast_unsigned())
    }

    unsafe fn output_from_ptr(
        number: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<u32> {
        u32::try_from(number).map_err(|_| rustix::io::Errno::RANGE)
    }
}

/// Returns the number of a free loop device; adds one if none is free.
pub(crate) fn loop_free(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: see the implementation of Ioctl.
    Ok(unsafe { ioctl::ioctl(control, Control::<LOOP_CTL_GET_FREE>(0)) }?)
}

/// Adds a loop device with the lowest unused number.
pub(crate) fn loop_add(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: see the implementation of Ioctl.
    Ok(unsafe { ioctl::ioctl(control, Control::<LOOP_CTL_ADD>(-1)) }?)
}

/// Binds a loop device to a file and configures it in one call.
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

/// Returns the status of a loop device; `ENXIO` when it is not bound.
pub(crate) fn loop_status(device: BorrowedFd<'_>) -> io::Result<LoopInfo> {
    // SAFETY: LOOP_GET_STATUS64 fills a struct loop_info64.
    Ok(unsafe { ioctl::ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }?)
}

/// Changes the settable flags of a bound loop device; `LO_FLAGS_AUTOCLEAR` is the one in use.
pub(crate) fn loop_set_status(device: BorrowedFd<'_>, info: LoopInfo) -> io::Result<()> {
    // SAFETY: LOOP_SET_STATUS64 reads a struct loop_info64.
    Ok(unsafe { ioctl::ioctl(device, Setter::<LOOP_SET_STATUS64, LoopInfo>::new(info)) }?)
}

/// Detaches a loop device from its file when its last user closes it.
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

/// Writes zeros to a range of a block device, given by its start and length in bytes.
pub(crate) fn block_device_zero(device: BorrowedFd<'_>, range: [u64; 2]) -> io::Result<()> {
    // SAFETY: BLKZEROOUT reads two u64.
    Ok(unsafe { ioctl::ioctl(device, Setter::<BLKZEROOUT, [u64; 2]>::new(range)) }?)
}

/// Updates the size of a loop device to that of its file.
pub(crate) fn loop_set_capacity(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    Ok(unsafe { ioctl::ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }?)
}

/// Returns the size of a block device in bytes.
pub(crate) fn block_device_size(device: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: BLKGETSIZE64 fills a u64.
    Ok(unsafe { ioctl::ioctl(device, Getter::<BLKGETSIZE64, u64>::new()) }?)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_structures_match_the_kernel_layout() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(offset_of!(LoopInfo, flags), 52);
        assert_eq!(offset_of!(LoopInfo, init), 216);
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(offset_of!(LoopConfig, info), 8);
    }

    #[test]
    fn the_ioctl_numbers_match_the_kernel() {
        assert_eq!(BLKROSET, 0x125d);
        assert_eq!(BLKGETSIZE64, 0x8008_1272);
        assert_eq!(BLKZEROOUT, 0x127f);
    }
}
