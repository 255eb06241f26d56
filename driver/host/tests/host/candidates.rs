//! Selects the device of a pool: copies, arrays and Cistern's own loop devices show the same filesystem.

use std::{
    fs,
    path::{Path, PathBuf},
};

use cistern_host::{Expectation, Pool, PoolDeclaration, Source, pool::Error};
use failing_disk::Mode;
use rustix::mount::{MountFlags, UnmountFlags, mount};

use crate::{
    device::{Disk, SIZE},
    failing::FailingDevice,
    harness::{Machine, POOL_SIZE, device_pool, image_pool, known, must, run, uid, unmount},
};

/// Simulated sysfs attributes of a disk, in addition to those of its loop device. They are removed when
/// this is dropped, because another disk may get the number.
pub(crate) struct Attributes(PathBuf);

impl Attributes {
    pub(crate) fn of(device: &Path, serial: &str, holder: Option<&str>) -> Self {
        let name = device.file_name().unwrap();
        let folder = fs::canonicalize(Path::new("/sys/block").join(name)).unwrap();
        let copied = ["ro", "size", "loop/backing_file", "loop/dio"];
        let values = copied.map(|name| (name, fs::read(folder.join(name)).unwrap()));
        mount("none", &folder, "tmpfs", MountFlags::empty(), None).unwrap();
        for path in ["loop", "holders"] {
            fs::create_dir(folder.join(path)).unwrap();
        }
        for (name, value) in values {
            fs::write(folder.join(name), value).unwrap();
        }
        fs::write(folder.join("serial"), format!("{serial}\n")).unwrap();
        if let Some(holder) = holder {
            fs::create_dir(folder.join("holders").join(holder)).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Creates the pool on a disk and unmounts it. Returns the expectation with the UUID of its filesystem.
fn make(machine: &Machine, disk: &Disk) -> Expectation {
    let declaration = device_pool([disk.device.clone()]);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    let expectation = known(&pool);
    drop(pool);
    leave(machine);
    expectation
}

fn leave(machine: &Machine) {
    unmount(&machine.mount_point(&device_pool([])));
}

/// A copy of a disk with additional bytes at its end.
fn copy(machine: &Machine, disk: &Path, name: &str, more: u64) -> Disk {
    run("sync", &[disk.to_str().unwrap()]);
    let to = machine.path(name);
    let mut from = fs::File::open(disk).unwrap();
    let mut file = fs::File::create(&to).unwrap();
    std::io::copy(&mut from, &mut file).unwrap();
    file.set_len(SIZE + more).unwrap();
    file.sync_all().unwrap();
    Disk::attach(to)
}

fn open(machine: &Machine, paths: &[&Path], expectation: Expectation) -> Result<Pool, Error> {
    let declaration = device_pool(paths.iter().map(|path| path.to_path_buf()));
    machine.root().open_pool(&declaration, expectation)
}

fn with_identity(paths: &[&Path], text: &str) -> PoolDeclaration {
    PoolDeclaration {
        source: Source::Device {
            paths: paths.iter().map(|path| path.to_path_buf()).collect(),
            identity: Some(text.to_owned()),
        },
        ..device_pool([])
    }
}

/// Paths that an error names as possibly the pool.
#[track_caller]
fn ambiguous(result: Result<Pool, Error>) -> Vec<PathBuf> {
    match result {
        Err(Error::Ambiguous { name, found }) => {
            assert_eq!(name, "fast");
            found.into_iter().map(|(path, _)| path).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn missing(result: Result<Pool, Error>, why: &str) {
    match result {
        Err(error @ Error::BackingMissing { .. }) => {
            assert!(error.to_string().contains(why), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_is_not_used_while_the_disk_of_the_pool_cannot_be_read() {
    let machine = Machine::new();
    let disk = FailingDevice::new(&machine);
    let pool = must(open(&machine, &[&disk.path], Expectation::New));
    let expectation = known(&pool);
    drop(pool);
    leave(&machine);
    let twin = copy(&machine, &disk.path, "twin", 0);
    let paths: [&Path; 2] = [&disk.path, &twin.device];
    disk.set(Mode::Eio);
    for expectation in [expectation, Expectation::Made, Expectation::New] {
        assert!(ambiguous(open(&machine, &paths, expectation)).contains(&disk.path));
    }
    missing(
        open(&machine, &paths[..1], expectation),
        "Input/output error",
    );
    // The identity of the pool's disk leaves no doubt.
    let attributes = Attributes::of(&twin.device, "twin", None);
    let declaration = with_identity(&paths, "serial:twin");
    let pool = must(machine.root().open_pool(&declaration, expectation));
    assert_eq!(pool.device(), twin.device);
    drop(pool);
    leave(&machine);
    drop(attributes);
}

#[test]
fn no_pool_is_created_while_a_listed_disk_cannot_be_read() {
    let machine = Machine::new();
    let (disk, blank) = (FailingDevice::new(&machine), Disk::new(&machine, "blank"));
    disk.set(Mode::Eio);
    let paths: [&Path; 2] = [&disk.path, &blank.device];
    let refused = ambiguous(open(&machine, &paths, Expectation::New));
    assert_eq!(refused, std::slice::from_ref(&disk.path));
    assert!(blank.is_blank());
    disk.set(Mode::Ok);
    let pool = must(open(&machine, &paths, Expectation::New));
    assert_eq!(pool.device(), disk.path);
    drop(pool);
    leave(&machine);
}

#[test]
fn if_two_devices_have_the_filesystem_of_a_pool_neither_is_used_and_both_are_named() {
    let machine = Machine::new();
    let (blank, disk) = (Disk::new(&machine, "blank"), Disk::new(&machine, "disk"));
    let expectation = make(&machine, &disk);
    let twin = copy(&machine, &disk.device, "twin", 0);
    let paths: [&Path; 3] = [&blank.device, &disk.device, &twin.device];
    let both = [disk.device.clone(), twin.device.clone()];
    for expectation in [expectation, Expectation::Made, Expectation::New] {
        assert_eq!(ambiguous(open(&machine, &paths, expectation)), both);
    }
    // A device that another process holds is named as well: it may be the mounted one.
    let at = machine.staging("held");
    run(
        "mount",
        &["-o", "ro,nouuid", twin.path(), at.to_str().unwrap()],
    );
    for expectation in [expectation, Expectation::Made, Expectation::New] {
        assert_eq!(ambiguous(open(&machine, &paths, expectation)), both);
    }
    unmount(&at);
    assert!(blank.is_blank());

    // A second path of the same device is not a second device.
    let link = machine.path("by-id");
    std::os::unix::fs::symlink(&disk.device, &link).unwrap();
    for expectation in [expectation, Expectation::Made, Expectation::New] {
        let pool = must(open(&machine, &[&link, &disk.device], expectation));
        assert_eq!(pool.device(), disk.device);
        drop(pool);
        leave(&machine);
    }
}

#[test]
fn an_unlisted_device_is_probed_only_if_the_pool_was_on_that_disk() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let attributes = Attributes::of(&disk.device, "S1", None);
    let declaration = device_pool([disk.device.clone()]);
    let pool = must(machine.root().open_pool(&declaration, Expectation::New));
    let identity = pool.device_identity().unwrap().to_owned();
    assert_eq!(identity, "serial:S1");
    let expectation = known(&pool);
    drop(pool);
    leave(&machine);

    let away = machine.path("away");
    let declaration = with_identity(&[&away], &identity);
    let open = |declaration: &PoolDeclaration| machine.root().open_pool(declaration, expectation);
    let pool = must(open(&declaration));
    assert_eq!(pool.device(), disk.device);
    drop(pool);
    leave(&machine);
    missing(open(&device_pool([away.clone()])), "(listed: ");
    missing(open(&with_identity(&[&away], "serial:S2")), "(listed: ");

    // With a second path to the same disk, it is unknown which path works.
    let second = copy(&machine, &disk.device, "second", 0);
    let more_attributes = Attributes::of(&second.device, "S1", None);
    let listed = with_identity(&[&disk.device], &identity);
    assert_eq!(
        ambiguous(open(&listed)),
        [disk.device.clone(), second.device.clone()]
    );
    // A device that is built on both is used.
    drop((attributes, more_attributes));
    let _said = Attributes::of(&disk.device, "S1", Some("dm-0"));
    let _said_too = Attributes::of(&second.device, "S1", Some("dm-0"));
    missing(open(&listed), "dm-0 is made of it");
    let made_of_both = copy(&machine, &disk.device, "made-of-both", 0);
    let listed = with_identity(&[&disk.device, &made_of_both.device], &identity);
    let pool = must(open(&listed));
    assert_eq!(pool.device(), made_of_both.device);
    drop(pool);
    leave(&machine);
}

#[test]
fn a_device_that_backs_another_device_is_not_blank() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let _said = Attributes::of(&disk.device, "S1", Some("md0"));
    let error = open(&machine, &[&disk.device], Expectation::New).unwrap_err();
    assert!(matches!(error, Error::NoUsableDevice { .. }), "{error}");
    assert!(error.to_string().contains("md0 is made of it"), "{error}");
    assert!(disk.is_blank());
}

#[test]
fn the_device_of_a_pool_is_the_array_and_not_its_member() {
    const MORE: u64 = 1 << 20;
    let machine = Machine::new();
    let array = Disk::new(&machine, "array");
    let expectation = make(&machine, &array);
    let [md, drbd, older] =
        ["md", "drbd", "older"].map(|name| copy(&machine, &array.device, name, MORE));
    md.write(MD_END, &md_mark(MD_END));
    drbd.write(SIZE + MORE - 4096, &drbd_mark());
    // mdadm does not erase the superblock of the former filesystem.
    older.write(4096, &md_mark(4096));
    for (part, kind) in [
        (&md, "linux_raid_member"),
        (&drbd, "drbd"),
        (&older, "linux_raid_member"),
    ] {
        let alone = open(&machine, &[&part.device], expectation);
        missing(alone, &format!("it holds {kind}"));
        for expectation in [Expectation::Made, Expectation::New] {
            let error = open(&machine, &[&part.device], expectation).unwrap_err();
            assert!(matches!(error, Error::NoUsableDevice { .. }), "{error}");
        }
        // The search continues with the other devices.
        let pool = must(open(&machine, &[&part.device, &array.device], expectation));
        assert_eq!(pool.device(), array.device);
        drop(pool);
        leave(&machine);
    }
}

#[test]
fn volume_data_at_the_end_of_a_pool_is_not_taken_for_an_array_signature() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let expectation = make(&machine, &disk);
    let end = (SIZE - 16 * 512) & !4095;
    disk.write(end, &md_mark(end));
    assert!(run("blkid", &["-p", "-u", "raid", disk.path()]).contains("linux_raid_member"));
    drop(must(open(&machine, &[&disk.device], expectation)));
    leave(&machine);
}

#[test]
fn a_loop_device_over_an_image_is_never_the_device_of_a_pool() {
    let machine = Machine::new();
    let disk = Disk::new(&machine, "disk");
    let expectation = make(&machine, &disk);
    // A volume of another pool. Its user wrote the pool's filesystem into it, or nothing.
    let other = PoolDeclaration {
        uid: uid("0badcafe-0000-4000-8000-00000000beef"),
        name: "slow".to_owned(),
        ..image_pool(POOL_SIZE)
    };
    drop(must(machine.root().open_pool(&other, Expectation::New)));
    let images = machine.mount_point(&other).join("images");
    let (forged, empty) = (images.join("uid-forged"), images.join("uid-empty"));
    fs::copy(disk.detach(), &forged).unwrap();
    fs::File::create(&empty).unwrap().set_len(SIZE).unwrap();
    let [forged, empty] = [forged, empty].map(Disk::attach);
    let why = "which is a pool's";
    missing(open(&machine, &[&forged.device], expectation), why);
    for disk in [&forged, &empty] {
        let error = open(&machine, &[&disk.device], Expectation::New).unwrap_err();
        assert!(matches!(error, Error::NoUsableDevice { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    assert!(empty.is_blank());
}

/// Offset of the md signature on a device of this size, with metadata 1.0.
const MD_END: u64 = (SIZE + (1 << 20) - 16 * 512) & !4095;

/// `struct mdp_superblock_1` for an offset, as mdadm writes it.
fn md_mark(offset: u64) -> [u8; 256] {
    let mut mark = [0_u8; 256];
    mark[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    mark[4..8].copy_from_slice(&1_u32.to_le_bytes());
    mark[16..32].copy_from_slice(b"abcdefghijklmnop");
    mark[72..76].copy_from_slice(&1_u32.to_le_bytes());
    mark[92..96].copy_from_slice(&2_u32.to_le_bytes());
    mark[144..152].copy_from_slice(&(offset / 512).to_le_bytes());
    let words = mark.chunks_exact(4);
    let sum: u64 = words
        .map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())))
        .sum();
    let sum = u32::try_from((sum & 0xffff_ffff) + (sum >> 32)).unwrap();
    mark[216..220].copy_from_slice(&sum.to_le_bytes());
    mark
}

/// `struct meta_data_on_disk` of DRBD 8.4, as drbdmeta writes it to the last 4 KiB.
fn drbd_mark() -> [u8; 128] {
    let mut mark = [0_u8; 128];
    mark[..8].copy_from_slice(&(SIZE / 512).to_be_bytes());
    mark[40..48].copy_from_slice(b"abcdefgh");
    mark[60..64].copy_from_slice(&0x8374_026b_u32.to_be_bytes());
    mark
}
