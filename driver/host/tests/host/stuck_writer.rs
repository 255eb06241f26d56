//! A write that does not end: it waits for its data in a page that is never filled (userfaultfd(2)).

#![expect(
    unsafe_code,
    reason = "memory that is missing is had from the kernel alone"
)]

use std::{
    fs,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    path::Path,
    ptr, slice,
    thread::{self, JoinHandle},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    ioctl::{Updater, ioctl, opcode},
    mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd},
};

const PAGE: usize = 4096;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

const UFFDIO_API: rustix::ioctl::Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const UFFDIO_REGISTER: rustix::ioctl::Opcode = opcode::read_write::<Register>(0xaa, 0);
const MODE_MISSING: u64 = 1;

/// The write in progress.
pub(crate) struct StuckWriter {
    /// While it is open, the page is missing.
    missing: OwnedFd,
    writer: JoinHandle<()>,
}

impl StuckWriter {
    /// Begins to write a file, and returns when the kernel waits for the data.
    pub(crate) fn begin(path: &Path) -> Self {
        let file = fs::File::create(path).unwrap();
        // SAFETY: the mapping is new and has no other user.
        let page = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let page = page.unwrap();
        // SAFETY: the range is the mapping above; once it is closed, zeros are read there.
        let missing = unsafe {
            let missing = userfaultfd(UserfaultfdFlags::CLOEXEC).unwrap();
            let mut api = Api {
                version: 0xaa,
                features: 0,
                ioctls: 0,
            };
            ioctl(&missing, Updater::<UFFDIO_API, Api>::new(&mut api)).unwrap();
            let mut register = Register {
                start: page.addr() as u64,
                length: PAGE as u64,
                mode: MODE_MISSING,
                ioctls: 0,
            };
            ioctl(
                &missing,
                Updater::<UFFDIO_REGISTER, Register>::new(&mut register),
            )
            .unwrap();
            missing
        };
        // SAFETY: the mapping is never unmapped, and only the kernel reads its bytes.
        let bytes: &'static [u8] = unsafe { slice::from_raw_parts(page.cast(), PAGE) };
        let writer = thread::spawn(move || file.write_all_at(bytes, 0).unwrap());
        // The fault is reported when the kernel waits for the page.
        let mut events = [PollFd::new(&missing, PollFlags::IN)];
        assert_eq!(poll(&mut events, None).unwrap(), 1);
        Self { missing, writer }
    }

    /// Ends the write.
    pub(crate) fn end(self) {
        drop(self.missing);
        self.writer.join().unwrap();
    }
}
