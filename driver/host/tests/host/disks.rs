//! The disks that an agent reports. Loop devices with names in `/dev/disk/by-id` stand for disks.

use std::{
    fs,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use crate::{
    device::{Disk, SIZE},
    failing::FailingDevice,
    harness::{Machine, device_pool, must, run},
};
use cistern_host::{Expectation, Root, pool::Error, system};
use cistern_types::{Bytes, FilesystemType};
use failing_disk::Mode;
use rustix::fs::OFlags;

/// Path of a disk by its name.
fn by_id(name: &str) -> PathBuf {
    Path::new("/dev/disk/by-id").join(name)
}

/// The disk of the name.
fn listed(root: &Root, name: &str) -> system::Disk {
    let path = Some(by_id(name));
    let disks = root.disks().unwrap().into_iter();
    let mut found = disks.filter(|disk| disk.path == path);
    found.next().unwrap_or_else(|| panic!("{name} is listed"))
}

/// Why no pool can be created on the disk of the name.
fn objection(root: &Root, name: &str) -> Option<String> {
    let objection = root.objection_to(&listed(root, name), &[]);
    objection.map(|why| why.to_string())
}

#[test]
fn a_blank_disk_with_a_stable_name_is_usable_and_each_other_says_why_not() {
    let machine = Machine::new();
    let root = machine.root();
    let new = |name: &str| Disk::new(&machine, name);
    let [blank, ext4, table, noise] = ["blank", "ext4", "table", "noise"].map(new);
    run("mkfs.ext4", &["-q", "-L", "mine", ext4.path()]);
    // The signature of a DOS partition table.
    table.write(510, &[0x55, 0xaa]);
    noise.write(4096 * 3, b"x");
    Machine::name_by_id(&[
        ("wwn-blank", &blank.device),
        ("ata-blank-serial", &blank.device),
        ("wwn-ext4", &ext4.device),
        ("wwn-table", &table.device),
        ("wwn-noise", &noise.device),
    ]);
    assert_eq!(objection(&root, "wwn-blank"), None);
    let says = |name: &str, what: &str| {
        let objection = objection(&root, name).unwrap();
        assert!(objection.contains(what), "{name}: {objection}");
    };
    says("wwn-ext4", "it holds ext4 (\"mine\")");
    says("wwn-table", "it holds dos");
    says("wwn-noise", "its first MiB is not zeros");
    run("blockdev", &["--setro", blank.path()]);
    says("wwn-blank", "it is read-only");
    run("blockdev", &["--setrw", blank.path()]);
    assert_eq!(objection(&root, "wwn-blank"), None);
    assert!(blank.is_blank());
}

#[test]
fn a_blank_disk_is_usable_from_the_size_on_that_a_pool_can_be_created_on() {
    let machine = Machine::new();
    let root = machine.root();
    let least = FilesystemType::Xfs.minimum_size().0;
    let small = Disk::of_size(&machine, "small", least - (1 << 20));
    let fits = Disk::of_size(&machine, "fits", least);
    Machine::name_by_id(&[("wwn-small", &small.device), ("wwn-fits", &fits.device)]);
    let said = objection(&root, "wwn-small").unwrap();
    assert_eq!(said, "it is smaller than 300Mi, the minimum of a pool");
    assert_eq!(objection(&root, "wwn-fits"), None);
    let pool = root.open_pool(&device_pool([by_id("wwn-small")]), Expectation::New);
    let refused = pool.unwrap_err().to_string();
    assert!(refused.contains("smaller than 300Mi"), "{refused}");
    assert!(small.is_blank());
    must(root.open_pool(&device_pool([by_id("wwn-fits")]), Expectation::New));
}

#[test]
fn a_device_is_a_disk_by_its_hardware_or_by_its_name() {
    let machine = Machine::new();
    let root = machine.root();
    let [disk, made, nameless] = ["a", "b", "c"].map(|name| Disk::new(&machine, name));
    Machine::name_by_id(&[
        ("wwn-of-a", &disk.device),
        ("dm-name-of-b", &made.device),
        ("lvm-pv-uuid-of-b", &made.device),
        ("md-uuid-of-b", &made.device),
    ]);
    let disks = root.disks().unwrap();
    let find = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        disks.iter().find(|disk| disk.name == name)
    };
    assert_eq!(find(&made.device), None);
    assert_eq!(find(&nameless.device), None);
    let found = find(&disk.device).unwrap();
    assert_eq!(found.path, Some(by_id("wwn-of-a")));
    assert_eq!(found.size, Bytes(SIZE));
    assert!(!found.removable);
    // A disk whose link is gone is not opened by another name.
    let mut unnamed = found.clone();
    unnamed.path = None;
    let objection = root.objection_to(&unnamed, &[]).unwrap().to_string();
    assert!(objection.contains("no name in /dev/disk/by-id"));
    let mut removable = found.clone();
    removable.removable = true;
    let objection = root.objection_to(&removable, &[]).unwrap().to_string();
    assert!(objection.contains("it is removable"));
}

#[test]
fn a_blank_disk_that_something_holds_is_not_usable_and_is_left_to_its_holder() {
    let machine = Machine::new();
    let root = machine.root();
    let disk = Disk::new(&machine, "disk");
    Machine::name_by_id(&[("wwn-disk", &disk.device)]);
    let mut exclusively = fs::OpenOptions::new();
    exclusively
        .read(true)
        .write(true)
        .custom_flags(OFlags::EXCL.bits().cast_signed());
    let held = exclusively.open(&disk.device).unwrap();
    let said = objection(&root, "wwn-disk").unwrap();
    assert!(said.contains("something else holds it"), "{said}");
    drop(held);
    assert_eq!(objection(&root, "wwn-disk"), None);
    // It is free again at once.
    drop(exclusively.open(&disk.device).unwrap());
}

#[test]
fn a_path_that_leads_to_another_device_since_the_list_was_made_is_not_judged() {
    let machine = Machine::new();
    let root = machine.root();
    let [one, other] = ["one", "other"].map(|name| Disk::new(&machine, name));
    Machine::name_by_id(&[("wwn-disk", &one.device)]);
    let before = listed(&root, "wwn-disk");
    fs::remove_file(by_id("wwn-disk")).unwrap();
    Machine::name_by_id(&[("wwn-disk", &other.device)]);
    let said = root.objection_to(&before, &[]).unwrap().to_string();
    assert!(said.contains("leads to another device now"), "{said}");
    fs::remove_file(by_id("wwn-disk")).unwrap();
    let said = root.objection_to(&before, &[]).unwrap().to_string();
    assert!(said.contains("it does not exist"), "{said}");
}

#[test]
fn the_disk_of_an_open_pool_is_not_usable_and_a_look_at_it_does_not_disturb_the_pool() {
    let machine = Machine::new();
    let root = machine.root();
    let disk = Disk::new(&machine, "disk");
    Machine::name_by_id(&[("wwn-disk", &disk.device)]);
    let declaration = device_pool([by_id("wwn-disk")]);
    let pool = root.open_pool(&declaration, Expectation::New).unwrap();
    assert_eq!(pool.device_number(), listed(&root, "wwn-disk").number);
    let said = objection(&root, "wwn-disk").unwrap();
    assert!(said.contains("it holds xfs"), "{said}");
    pool.check().unwrap();
}

/// Opens a pool on the disks of the size of a test, and returns the device that it uses.
fn open_on_matching(root: &Root, except: &[PathBuf]) -> Result<PathBuf, Error> {
    let paths = root.matching_disks(|disk| disk.size == Bytes(SIZE), except);
    let declaration = device_pool(paths.unwrap());
    let pool = root.open_pool(&declaration, Expectation::New)?;
    Ok(pool.device().to_owned())
}

#[test]
fn a_pool_takes_the_first_blank_disk_that_matches_and_that_no_other_pool_lists() {
    let machine = Machine::new();
    let root = machine.root();
    let new = |name: &str| Disk::new(&machine, name);
    let [foreign, listed, free, later] = ["foreign", "listed", "free", "later"].map(new);
    run("mkfs.ext4", &["-q", foreign.path()]);
    Machine::name_by_id(&[
        ("wwn-1", &foreign.device),
        ("wwn-2", &listed.device),
        ("wwn-3", &free.device),
        ("wwn-4", &later.device),
        ("ata-listed", &listed.device),
    ]);
    // The other pool lists the disk by another of its names, and one that is not there.
    let except = [by_id("ata-listed"), by_id("ata-not-here")];
    let any = root.matching_disks(|_| true, &except).unwrap();
    assert_eq!(any, ["wwn-1", "wwn-3", "wwn-4"].map(by_id));
    assert_eq!(
        root.matching_disks(|disk| disk.size > Bytes(SIZE), &[])
            .unwrap(),
        [""; 0].map(by_id)
    );
    assert_eq!(open_on_matching(&root, &except).unwrap(), free.device);
    assert!(listed.is_blank() && later.is_blank());
}

#[test]
fn no_pool_is_created_while_a_disk_that_matches_cannot_be_read() {
    let machine = Machine::new();
    let root = machine.root();
    let blank = Disk::new(&machine, "blank");
    let failing = FailingDevice::new(&machine);
    Machine::name_by_id(&[("wwn-1", &blank.device), ("wwn-2", &failing.path)]);
    failing.set(Mode::Eio);
    match open_on_matching(&root, &[]) {
        Err(Error::Ambiguous { found, .. }) => assert_eq!(found[0].0, by_id("wwn-2")),
        other => panic!("{other:?}"),
    }
    assert!(blank.is_blank());
    failing.set(Mode::Ok);
    assert_eq!(open_on_matching(&root, &[]).unwrap(), blank.device);
}

#[test]
fn a_pool_that_matches_no_disk_says_so() {
    let machine = Machine::new();
    let root = machine.root();
    Machine::name_by_id(&[]);
    let said = open_on_matching(&root, &[]).unwrap_err().to_string();
    assert!(said.contains("the node has no disk that matches"), "{said}");
}
