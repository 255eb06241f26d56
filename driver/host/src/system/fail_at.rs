//! [`FailAt`]: the machine with one failing call.
//!
//! A test increments `n` from 1 until a run needs fewer than `n` calls: then every effect and every
//! read of that run has failed once, or the process was killed before it. A kill before call `n +
//! 1` is a kill right after call `n`.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fmt, io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rustix::process::{Signal, getpid, kill_process};

use super::{
    Block, BoundLoop, DeviceNumber, Devices, Disk, Extent, Files, Filesystems, Holder, IoCounters,
    LoopSettings, LoopStatus, MappedDevice, MappingName, Mount, MountAttrFlags, OFlags, Parameter,
    Space, StackedDevice, Stat, System, XfsGeometry,
};
use crate::{
    command::{self, Command},
    id::Uuid,
};

/// The fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call returns `EIO` without an effect.
    Error,
    /// The call returns `EBUSY` without an effect.
    Busy,
    /// The process kills itself instead of the call.
    Kill,
}

/// A [`System`] with one failing call.
#[derive(Debug)]
pub struct FailAt {
    system: Arc<dyn System>,
    fault: Fault,
    at: AtomicU64,
    calls: AtomicU64,
    meanwhile: Mutex<Option<Meanwhile>>,
}

/// What happens before a call.
struct Meanwhile {
    at: u64,
    run: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meanwhile")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl FailAt {
    /// Injects the fault at this call, counted from 1.
    pub fn new(system: Arc<dyn System>, fault: Fault, at: u64) -> Self {
        Self {
            system,
            fault,
            at: AtomicU64::new(at),
            calls: AtomicU64::new(0),
            meanwhile: Mutex::new(None),
        }
    }

    /// Runs something before this call from now on, counted from 1: what another thread may do at that moment.
    pub fn meanwhile_in(&self, calls: u64, run: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock() = Some(Meanwhile {
            at: self.calls() + calls,
            run: Box::new(run),
        });
    }

    /// Injects the fault at this call from now on, counted from 1, instead of the one that [`FailAt::new`] was given.
    pub fn fail_in(&self, calls: u64) {
        self.at.store(self.calls() + calls, Ordering::SeqCst);
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Whether the failing call has been reached.
    pub fn has_failed(&self) -> bool {
        self.calls() >= self.at.load(Ordering::SeqCst)
    }

    fn next(&self) -> io::Result<&dyn System> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let meanwhile = self.meanwhile.lock().take_if(|it| it.at == call);
        if let Some(meanwhile) = meanwhile {
            (meanwhile.run)();
        }
        if call != self.at.load(Ordering::SeqCst) {
            return Ok(&*self.system);
        }
        match self.fault {
            Fault::Error => {}
            Fault::Busy => return Err(rustix::io::Errno::BUSY.into()),
            Fault::Kill => kill_process(getpid(), Signal::KILL)?,
        }
        Err(rustix::io::Errno::IO.into())
    }
}

impl Files for FailAt {
    fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        self.next()?.open(path, flags)
    }

    fn open_following(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        self.next()?.open_following(path, flags)
    }

    fn open_beneath(
        &self,
        directory: BorrowedFd<'_>,
        path: &Path,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        self.next()?.open_beneath(directory, path, flags)
    }

    fn make_directory(&self, directory: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<()> {
        self.next()?.make_directory(directory, name, mode)
    }

    fn remove_directory(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        self.next()?.remove_directory(directory, name)
    }

    fn unlink(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        self.next()?.unlink(directory, name)
    }

    fn rename(
        &self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        to: BorrowedFd<'_>,
        new_name: &OsStr,
    ) -> io::Result<()> {
        self.next()?.rename(from, name, to, new_name)
    }

    fn replace(
        &self,
        from: BorrowedFd<'_>,
        name: &OsStr,
        to: BorrowedFd<'_>,
        replaced: &OsStr,
    ) -> io::Result<()> {
        self.next()?.replace(from, name, to, replaced)
    }

    fn list(&self, directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
        self.next()?.list(directory)
    }

    fn stat(&self, file: BorrowedFd<'_>) -> io::Result<Stat> {
        self.next()?.stat(file)
    }

    fn space(&self, file: BorrowedFd<'_>) -> io::Result<Space> {
        self.next()?.space(file)
    }

    fn read(&self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.next()?.read(file, offset, length)
    }

    fn write(&self, file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.next()?.write(file, offset, bytes)
    }

    fn read_ahead(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        self.next()?.read_ahead(file, part)
    }

    fn write_back(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        self.next()?.write_back(file, part)
    }

    fn read_block(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<Box<Block>> {
        self.next()?.read_block(file, offset)
    }

    fn write_block(&self, file: BorrowedFd<'_>, offset: u64, block: &Block) -> io::Result<()> {
        self.next()?.write_block(file, offset, block)
    }

    fn truncate(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        self.next()?.truncate(file, size)
    }

    fn extents(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<(Vec<Extent>, u64)> {
        self.next()?.extents(file, part)
    }

    fn allocate(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        self.next()?.allocate(file, part)
    }

    fn punch(&self, file: BorrowedFd<'_>, part: &Range<u64>) -> io::Result<()> {
        self.next()?.punch(file, part)
    }

    fn set_extent_size(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        self.next()?.set_extent_size(file, size)
    }

    fn extent_count(&self, file: BorrowedFd<'_>) -> io::Result<u64> {
        self.next()?.extent_count(file)
    }

    fn reflink(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.reflink(from, to)
    }

    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.sync(file)
    }

    fn try_lock(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        self.next()?.try_lock(file)
    }

    fn try_lock_shared(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        self.next()?.try_lock_shared(file)
    }

    fn attribute(&self, file: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.next()?.attribute(file, name)
    }

    fn set_attribute(&self, file: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()> {
        self.next()?.set_attribute(file, name, value)
    }

    fn replace_attribute(&self, file: BorrowedFd<'_>, name: &str, value: &[u8]) -> io::Result<()> {
        self.next()?.replace_attribute(file, name, value)
    }

    fn remove_attribute(&self, file: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        self.next()?.remove_attribute(file, name)
    }
}

impl Devices for FailAt {
    fn io_limits(&self, file: &Path) -> io::Result<String> {
        self.next()?.io_limits(file)
    }

    fn write_io_limits(&self, file: &Path, line: &str) -> io::Result<()> {
        self.next()?.write_io_limits(file, line)
    }

    fn block_devices(&self) -> io::Result<Vec<(String, DeviceNumber)>> {
        self.next()?.block_devices()
    }

    fn device_path(&self, name: &str, device: DeviceNumber) -> io::Result<PathBuf> {
        self.next()?.device_path(name, device)
    }

    fn device_size(&self, device: BorrowedFd<'_>) -> io::Result<u64> {
        self.next()?.device_size(device)
    }

    fn zero(&self, device: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
        self.next()?.zero(device, range)
    }

    fn stacked_devices(&self) -> io::Result<Vec<StackedDevice>> {
        self.next()?.stacked_devices()
    }

    fn mapped_devices(&self) -> io::Result<Vec<MappedDevice>> {
        self.next()?.mapped_devices()
    }

    fn set_read_only(&self, device: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
        self.next()?.set_read_only(device, read_only)
    }

    fn is_read_only(&self, device: DeviceNumber) -> io::Result<bool> {
        self.next()?.is_read_only(device)
    }

    fn device_errors(&self, device: DeviceNumber) -> io::Result<Option<u64>> {
        self.next()?.device_errors(device)
    }

    fn sector_size(&self, device: DeviceNumber) -> io::Result<Option<u32>> {
        self.next()?.sector_size(device)
    }

    fn holders(&self, device: DeviceNumber) -> io::Result<Vec<Holder>> {
        self.next()?.holders(device)
    }

    fn device_identity(&self, device: DeviceNumber) -> io::Result<Option<String>> {
        self.next()?.device_identity(device)
    }

    fn disks(&self) -> io::Result<Vec<Disk>> {
        self.next()?.disks()
    }

    fn has_partitions(&self, device: DeviceNumber) -> io::Result<bool> {
        self.next()?.has_partitions(device)
    }

    fn bound_loops(&self) -> io::Result<Vec<BoundLoop>> {
        self.next()?.bound_loops()
    }

    fn beneath(&self, device: DeviceNumber) -> io::Result<DeviceNumber> {
        self.next()?.beneath(device)
    }

    fn mapping_over(&self, device: DeviceNumber) -> io::Result<Option<DeviceNumber>> {
        self.next()?.mapping_over(device)
    }

    fn mapping_of(&self, device: DeviceNumber) -> io::Result<Option<MappingName>> {
        self.next()?.mapping_of(device)
    }

    fn backing_file(&self, number: u32) -> io::Result<Option<PathBuf>> {
        self.next()?.backing_file(number)
    }

    fn free_loop(&self, except: &BTreeSet<u32>) -> io::Result<u32> {
        self.next()?.free_loop(except)
    }

    fn bind_loop(&self, device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.bind_loop(device, file)
    }

    fn loop_status(&self, device: BorrowedFd<'_>) -> io::Result<Option<LoopStatus>> {
        self.next()?.loop_status(device)
    }

    fn is_kept(&self, number: u32) -> io::Result<bool> {
        self.next()?.is_kept(number)
    }

    fn io_counters(&self, device: DeviceNumber) -> io::Result<Option<IoCounters>> {
        self.next()?.io_counters(device)
    }

    fn loop_settings(&self, number: u32) -> io::Result<LoopSettings> {
        self.next()?.loop_settings(number)
    }

    fn keep_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.keep_loop(device)
    }

    fn detach_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.detach_loop(device)
    }

    fn resize_loop(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.resize_loop(device)
    }
}

impl Filesystems for FailAt {
    fn mounts(&self) -> io::Result<Vec<Mount>> {
        self.next()?.mounts()
    }

    fn mount_id(&self, file: BorrowedFd<'_>) -> io::Result<u64> {
        self.next()?.mount_id(file)
    }

    fn mount_filesystem(
        &self,
        filesystem: &str,
        device: &Path,
        parameters: &[Parameter<'_>],
        attributes: MountAttrFlags,
    ) -> io::Result<OwnedFd> {
        self.next()?
            .mount_filesystem(filesystem, device, parameters, attributes)
    }

    fn clone_mount(&self, file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.next()?.clone_mount(file)
    }

    fn set_mount_attributes(
        &self,
        mount: BorrowedFd<'_>,
        attributes: MountAttrFlags,
    ) -> io::Result<()> {
        self.next()?.set_mount_attributes(mount, attributes)
    }

    fn attach_mount(&self, mount: BorrowedFd<'_>, onto: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.attach_mount(mount, onto)
    }

    fn unmount(&self, directory: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
        self.next()?.unmount(directory, name)
    }

    fn sync_filesystem(&self, inside: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.sync_filesystem(inside)
    }

    fn freeze(&self, inside: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.freeze(inside)
    }

    fn thaw(&self, inside: BorrowedFd<'_>) -> io::Result<bool> {
        self.next()?.thaw(inside)
    }

    fn xfs_geometry(&self, inside: BorrowedFd<'_>) -> io::Result<Option<XfsGeometry>> {
        self.next()?.xfs_geometry(inside)
    }

    fn xfs_damage(&self, inside: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        self.next()?.xfs_damage(inside)
    }

    fn ext4_errors(&self, device: DeviceNumber) -> io::Result<Option<u64>> {
        self.next()?.ext4_errors(device)
    }

    fn btrfs_errors(&self, uuid: Uuid) -> io::Result<Option<u64>> {
        self.next()?.btrfs_errors(uuid)
    }

    fn free_preallocations(&self, inside: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.free_preallocations(inside)
    }

    fn grow_xfs(&self, inside: BorrowedFd<'_>, blocks: u64, inode_percent: u32) -> io::Result<()> {
        self.next()?.grow_xfs(inside, blocks, inode_percent)
    }

    fn grow_ext4(&self, inside: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
        self.next()?.grow_ext4(inside, blocks)
    }

    fn grow_btrfs(&self, inside: BorrowedFd<'_>) -> io::Result<()> {
        self.next()?.grow_btrfs(inside)
    }
}

impl System for FailAt {
    fn run_watched(
        &self,
        command: &Command,
        input: BorrowedFd<'_>,
        watch: &dyn Fn(&str) -> bool,
    ) -> Result<command::Output, command::Error> {
        match self.next() {
            Ok(system) => system.run_watched(command, input, watch),
            Err(source) => Err(command::Error::Start {
                command: command.to_string(),
                source,
            }),
        }
    }
}
