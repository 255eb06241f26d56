//! Pools on block devices. Loop devices over files stand for disks.

use std::{
    fs,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt as _, symlink},
    },
    path::PathBuf,
};

use crate::{
    harness::{Machine, allocated, device_pool, eventually, known, must, request, run, unmount},
    scenario::Volumes as _,
};
use cistern_host::{Expectation, pool::Error};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::fs::{Mode, OFlags};

pub(crate) const SIZE: u64 = 320 << 20;
/// Length of what labels a disk as one of a volume group, with the metadata of the group.
const LABEL: usize = 1 << 20;

/// A disk of a test: a loop device over a file. It is detached when this is dropped, also if the test is
/// killed, and when its last mount ends.
pub(crate) struct Disk {
    pub(crate) device: PathBuf,
    file: PathBuf,
    _open: fs::File,
}

/// What a write to a disk changes: its allocated size, and the bytes at its start and end.
#[derive(PartialEq)]
struct Content(u64, Vec<u8>, Vec<u8>);

impl Disk {
    pub(crate) fn new(machine: &Machine, name: &str) -> Self {
        Self::of_size(machine, name, SIZE)
    }

    pub(crate) fn of_size(machine: &Machine, name: &str, size: u64) -> Self {
        let file = machine.path(name);
        fs::File::create(&file).unwrap().set_len(size).unwrap();
        Self::attach(file)
    }

    /// Binds the disk to the free device with the lowest number.
    pub(crate) fn attach(file: PathBuf) -> Self {
        let device = run("losetup", &["-f", "--show", file.to_str().unwrap()]);
        let device = PathBuf::from(device.trim());
        let open = fs::File::open(&device).unwrap();
        // An open device is detached when its last user closes it.
        run("losetup", &["-d", device.to_str().unwrap()]);
        Self {
            device,
            file,
            _open: open,
        }
    }

    /// Detaches the disk. Its file keeps the data.
    pub(crate) fn detach(self) -> PathBuf {
        self.file.clone()
    }

    pub(crate) fn path(&self) -> &str {
        self.device.to_str().unwrap()
    }

    fn content(&self) -> Content {
        run("sync", &[self.path()]);
        let disk = fs::File::open(&self.device).unwrap();
        let part = |offset| {
            let mut bytes = vec![0; 2 << 20];
            disk.read_exact_at(&mut bytes, offset).unwrap();
            bytes
        };
        Content(allocated(&self.file), part(0), part(SIZE - (2 << 20)))
    }

    pub(crate) fn is_blank(&self) -> bool {
        allocated(&self.file) == 0
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let disk = fs::OpenOptions::new().write(true).open(&self.device);
        let disk = disk.unwrap();
        disk.write_all_at(bytes, offset).unwrap();
        disk.sync_all().unwrap();
    }

    /// Opens the disk exclusively. A mount in the namespace of another process, of a test that was killed
    /// or of a tool that another test starts, ends a moment after it.
    pub(crate) fn hold(&self) -> OwnedFd {
        let mut held = None;
        eventually("the end of every mount of the disk", || {
            let flags = OFlags::RDONLY | OFlags::EXCL;
            held = rustix::fs::open(&self.device, flags, Mode::empty()).ok();
            held.is_some()
        });
        held.unwrap()
    }

    /// Fills the disk with zeros.
    pub(crate) fn clear(&self) {
        drop(self.hold());
        run("blkdiscard", &["-f", self.path()]);
        assert!(self.is_blank());
    }

    /// Reads what labels the disk as one of a volume group.
    pub(crate) fn label(&self) -> Vec<u8> {
        let mut label = vec![0; LABEL];
        let disk = fs::File::open(&self.device).unwrap();
        disk.read_exact_at(&mut label, 0).unwrap();
        label
    }

    /// Overwrites what labels the disk as one of a volume group.
    pub(crate) fn clear_label(&self) {
        self.write(0, &vec![0; LABEL]);
    }

    fn partition(&self, script: &str) {
        use std::{io::Write as _, process::Stdio};
        #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
        let mut child = std::process::Command::new("sfdisk")
            .args(["-q", "--no-reread", "--no-tell-kernel", self.path()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(script.as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }
}

fn leave(machine: &Machine) {
    unmount(&machine.mount_point(&device_pool([])));
}

#[test]
fn the_first_blank_device_is_used_and_found_again_under_another_name() {
    let machine = Machine::new();
    let (first, second) = (Disk::new(&machine, "first"), Disk::new(&machine, "second"));
    run("mkfs.ext4", &["-q", first.path()]);
    let link = machine.path("by-id");
    symlink(&second.device, &link).unwrap();
    let paths = [machine.path("missing"), first.device.clone(), link.clone()];
    let declaration = device_pool(paths);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    assert_eq!(pool.device(), second.device);
    must(pool.check());
    let size = Bytes::mib(64);
    let image = request("a", size, FilesystemType::Ext4, Provisioning::Thick);
    let image = must(pool.new_image(&image));
    let expectation = known(&pool);
    // A mounted pool is adopted by an agent that has no record of it.
    drop(pool);
    drop(must(
        machine.root().open_pool(&declaration, Expectation::New),
    ));
    leave(&machine);

    // The disk returns with another number, and another disk has its former number.
    let file = second.detach();
    let third = Disk::new(&machine, "third");
    let again = Disk::attach(file);
    fs::remove_file(&link).unwrap();
    symlink(&again.device, &link).unwrap();
    let pool = must(machine.root().open_pool(&declaration, expectation));
    assert_eq!(must(pool.images()), std::slice::from_ref(&image));
    must(pool.remove_image(&image.uid));
    drop(pool);
    assert!(third.is_blank());

    // The removal of the pool does not change its device.
    must(machine.root().remove_pool(&declaration, expectation));
    assert_eq!(machine.mounts().len(), 1, "{:?}", machine.mounts());
    let declaration = device_pool([again.device.clone()]);
    drop(must(machine.root().open_pool(&declaration, expectation)));
    leave(&machine);
}

#[test]
fn a_known_pool_whose_device_is_missing_is_not_created_on_another() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let expectation = Expectation::Known {
        filesystem_uuid: "11111111-2222-4333-8444-555555555555".parse().unwrap(),
    };
    let declaration = device_pool([disk.device.clone()]);
    let error = machine
        .root()
        .open_pool(&declaration, expectation)
        .unwrap_err();
    assert!(matches!(error, Error::BackingMissing { .. }), "{error}");
    assert!(disk.is_blank());
    must(machine.root().remove_pool(&declaration, expectation));
}

#[test]
fn a_device_with_content_is_refused_with_that_content_named_and_left_unchanged() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let declaration = device_pool([disk.device.clone()]);
    let refused = |what: &str, expected: &str| {
        let before = disk.content();
        let error = machine
            .root()
            .open_pool(&declaration, Expectation::New)
            .unwrap_err();
        assert!(
            matches!(error, Error::NoUsableDevice { .. }),
            "{what}: {error}"
        );
        assert!(error.to_string().contains(expected), "{what}: {error}");
        assert!(disk.content() == before, "{what}: the device was written");
        disk.clear();
    };

    for label in ["gpt", "dos"] {
        disk.partition(&format!("label: {label}\n,\n"));
        refused(label, label);
    }
    for filesystem in ["ext4", "xfs"] {
        run(&format!("mkfs.{filesystem}"), &["-q", disk.path()]);
        refused(filesystem, filesystem);
    }
    run("mkswap", &[disk.path()]);
    refused("swap", "it holds swap");

    // A physical volume of LVM: its label in the second sector, with its checksum.
    disk.write(512, &lvm_label());
    refused("LVM", "it holds LVM2_member");

    // Data that blkid does not recognize is not blank.
    disk.write(700_000, b"x");
    refused("something near the start", "its first MiB is not zeros");
    disk.write(SIZE - 5, b"x");
    refused("something at the end", "its last MiB is not zeros");

    // A blank device is used.
    drop(must(
        machine.root().open_pool(&declaration, Expectation::New),
    ));
    leave(&machine);
}

#[test]
fn a_path_that_is_a_device_in_use_or_no_device_is_refused() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let at = machine.staging("held");
    run("mkfs.ext4", &["-q", disk.path()]);
    run("mount", &[disk.path(), at.to_str().unwrap()]);
    let file = machine.path("file");
    fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
    for (path, expected) in [
        (disk.device.clone(), "something else holds it"),
        (file, "not a block device"),
        (machine.path("missing"), "it does not exist"),
    ] {
        let declaration = device_pool([path]);
        let error = machine
            .root()
            .open_pool(&declaration, Expectation::New)
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    unmount(&at);
}

#[test]
fn an_xfs_of_a_pool_that_mkfs_did_not_finish_is_made_again() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let declaration = device_pool([disk.device.clone()]);
    let label: String = declaration.uid.as_str().replace('-', "");
    run("mkfs.xfs", &["-q", "-L", &label[..12], disk.path()]);
    // sb_inprogress
    disk.write(126, &[1]);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    must(pool.check());
    drop(pool);
    leave(&machine);

    // The unfinished filesystem of another pool is not used.
    run("mkfs.xfs", &["-q", "-f", "-L", "other", disk.path()]);
    disk.write(126, &[1]);
    let error = machine
        .root()
        .open_pool(&declaration, Expectation::New)
        .unwrap_err();
    assert!(matches!(error, Error::NoUsableDevice { .. }), "{error}");
}

/// `struct label_header` and `struct pv_header` of LVM2, as pvcreate writes them.
fn lvm_label() -> [u8; 512] {
    let mut label = [0_u8; 512];
    label[..8].copy_from_slice(b"LABELONE");
    label[8..16].copy_from_slice(&1_u64.to_le_bytes());
    label[20..24].copy_from_slice(&32_u32.to_le_bytes());
    label[24..32].copy_from_slice(b"LVM2 001");
    label[32..64].copy_from_slice(b"abcdefghijklmnopqrstuvwxyz012345");
    // CRC-32, without the final inversion, of the rest of the sector.
    let checksum = label[20..].iter().fold(0xf597_a6cf_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
        })
    });
    label[16..20].copy_from_slice(&checksum.to_le_bytes());
    label
}
