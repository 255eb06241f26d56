//! Serves a file that fails on demand: `failing-disk MOUNTPOINT BACKING-FILE SIZE`.
//!
//! Prints `mounted` when `MOUNTPOINT/disk` is there, and runs until it is killed or unmounted. How the
//! disk behaves says `BACKING-FILE.mode`: `ok`, `record`, `eio`, `eio-write`, `lose`, `hang` or `hang-from-BYTE`. It is read at
//! each request, so that a mode holds from the moment in which it was written.
//!
//! *Invariant:* only the disk's data fails or hangs, never its name or size: whoever lists loop devices,
//! another test, say, is not held up.

#![expect(clippy::print_stdout, reason = "stdout is for whoever starts it")]

mod modes;

use std::{
    env,
    ffi::OsStr,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use failing_disk::{Change, MOUNTED, NAME};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, SessionACL, WriteFlags,
};

use crate::modes::{Access, Modes, Outcome};

/// The file's inode.
const FILE: INodeNo = INodeNo(2);
/// How long the kernel remembers names and attributes: they never change.
const ALWAYS: Duration = Duration::from_hours(24);

/// The filesystem: one file.
struct Disk {
    storage: Arc<Storage>,
    size: u64,
    modes: Arc<Modes>,
}

/// What the disk holds, and what it records.
struct Storage {
    file: File,
    journal: File,
}

impl Storage {
    /// Changes the disk as its mode has it.
    fn change(&self, change: &Change, outcome: Outcome) -> io::Result<()> {
        match outcome {
            Outcome::Done => change.apply(&self.file),
            Outcome::Recorded => {
                change.apply(&self.file)?;
                change.append(&self.journal)
            }
            Outcome::Lost => Ok(()),
        }
    }
}

fn main() -> io::Result<()> {
    let mut arguments = env::args_os().skip(1);
    let mut next = || arguments.next().ok_or(io::ErrorKind::InvalidInput);
    let (mount_point, backing) = (PathBuf::from(next()?), PathBuf::from(next()?));
    let size = next()?.to_str().and_then(|size| size.parse().ok());
    let size = size.ok_or(io::ErrorKind::InvalidInput)?;
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&backing)?;
    file.set_len(size)?;
    let journal = File::options()
        .append(true)
        .create(true)
        .open(failing_disk::journal_file(&backing))?;
    let disk = Disk {
        storage: Arc::new(Storage { file, journal }),
        size,
        modes: Modes::watch(failing_disk::control_file(&backing)),
    };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("failing-disk".to_owned())];
    config.acl = SessionACL::All;
    let session = Session::new(disk, mount_point, &config)?;
    println!("{MOUNTED}");
    session.run()
}

impl Disk {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, size, perm) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0, 0o700),
            FILE => (FileType::RegularFile, self.size, 0o600),
            _ => return None,
        };
        let time = SystemTime::UNIX_EPOCH;
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Disk {
    /// Answers a request that changes the disk without data of its own.
    fn change(&self, change: Change, reply: ReplyEmpty) {
        let storage = Arc::clone(&self.storage);
        let access = Access::Write { end: change.end() };
        self.modes.answer(access, move |permitted| {
            match permitted.and_then(|outcome| storage.change(&change, outcome)) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error.into()),
            }
        });
    }
}

impl Filesystem for Disk {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(found) if parent == INodeNo::ROOT && name == NAME => {
                reply.entry(&ALWAYS, &found, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(found) => reply.attr(&ALWAYS, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Past the page cache: it would answer for a disk that does not.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let storage = Arc::clone(&self.storage);
        let length = self.size.saturating_sub(offset).min(size.into());
        self.modes.answer(Access::Read, move |permitted| {
            let read = permitted.and_then(|_| {
                let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
                storage.file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            });
            match read {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (storage, length) = (Arc::clone(&self.storage), data.len());
        let change = Change::Write {
            offset,
            data: data.to_vec(),
        };
        let access = Access::Write { end: change.end() };
        self.modes.answer(access, move |permitted| {
            let written = permitted.and_then(|outcome| {
                storage.change(&change, outcome)?;
                u32::try_from(length).map_err(io::Error::other)
            });
            match written {
                Ok(length) => reply.written(length),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.change(
            Change::Allocate {
                flags: mode.cast_unsigned(),
                offset,
                length,
            },
            reply,
        );
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // What was written survives whatever a test does: it is in the page cache of a machine that
        // goes on.
        self.change(Change::Flush, reply);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
}
