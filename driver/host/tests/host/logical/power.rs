//! Power cuts over a volume group. As for images, a disk records what it is asked to write, and each disk that a cut can leave
//! is compared with what was acknowledged before.

mod operations;

use std::{fs::File, os::unix::fs::FileExt as _, path::Path};

use cistern_host::{
    Expectation, UNSTOPPED,
    logical::{GroupSource, VolumeGroup},
    pool::{self, PoolClaim},
};

use self::operations::{Operation, Operations};
use super::{
    CONFIG, REMAINS, block,
    disks::{known, own_claim},
    open, reads_zero,
};
use crate::{
    device::Disk,
    failing::{FailingDevice, text},
    harness::{Machine, eventually, must, run},
    power::{cuts::Chance, recording::Recording},
};

/// Room for a volume with a filesystem, and some more.
const SIZE: u64 = 400 << 20;
/// Where the metadata of LVM ends.
const METADATA: u64 = 17 << 20;

/// A group of one disk, while that has power.
struct Powered<'a> {
    machine: &'a Machine,
    claim: PoolClaim,
    device: String,
}

impl<'a> Powered<'a> {
    fn new(machine: &'a Machine, device: &Path) -> Self {
        Self {
            machine,
            claim: own_claim(machine),
            device: text(device).to_owned(),
        }
    }

    fn open(&self, expectation: Expectation) -> Result<VolumeGroup, pool::Error> {
        let source = GroupSource::Disks {
            paths: vec![(&self.device).into()],
            stripes: 1,
        };
        VolumeGroup::open(&self.machine.root(), &source, &self.claim, expectation)
    }

    fn lvm(&self, verb: &str, args: &[&str]) -> String {
        let own = [verb, "--config", CONFIG, "--devices", &self.device];
        run("lvm", &[&own[..], args].concat())
    }

    /// Removes all devices of the group, as a reboot does.
    fn end(self) {
        self.lvm("vgchange", &["--activate", "n"]);
    }
}

/// Ends a disk. LVM would find its label again beside that of the next one.
fn detach(disk: Disk) {
    let name = disk.device.file_name().unwrap().to_owned();
    let bound = Path::new("/sys/block").join(name).join("loop");
    drop(disk);
    eventually("the end of the loop device", || !bound.exists());
}

/// A disk whose middle has data of others.
fn used_disk(machine: &Machine) -> FailingDevice {
    let device = FailingDevice::with_size(machine, SIZE);
    let disk = File::options().write(true).open(&device.path).unwrap();
    let remains = vec![REMAINS; 1 << 20];
    for offset in (16 << 20..96 << 20).step_by(remains.len()) {
        disk.write_all_at(&remains, offset).unwrap();
    }
    disk.sync_all().unwrap();
    device
}

/// Cuts power during all operations on an existing group, and compares what each cut leaves.
fn cut_power(all: &'static [Operation]) {
    let machine = Machine::new();
    let device = used_disk(&machine);
    let powered = Powered::new(&machine, &device.path);
    let pool = must(powered.open(Expectation::New));
    let expectation = known(&pool);
    let operations = Operations::new(&powered, pool, all);
    let recording = Recording::of(&machine, &device, all, |it| operations.run(it));
    drop(operations);
    powered.end();
    drop(device);
    // LVM flushes nothing between a text of the group and what says where that is, so a disk that changes their order can lose
    // the group.
    let chance = Chance {
        tries: 1,
        at_most: 4,
        ordered: METADATA,
    };
    recording.cut(&machine, chance, |disk, done| {
        let powered = Powered::new(&machine, &disk.device);
        let pool = must(powered.open(expectation));
        Operations::new(&powered, pool, all).compare(done);
        powered.end();
        detach(disk);
    });
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r02_a_group_is_made_in_full_after_a_power_cut() {
    let machine = Machine::new();
    let device = used_disk(&machine);
    let powered = Powered::new(&machine, &device.path);
    let make = |()| drop(must(powered.open(Expectation::New)));
    let recording = Recording::of(&machine, &device, &[()], make);
    powered.end();
    drop(device);
    let chance = Chance {
        tries: 2,
        at_most: usize::MAX,
        ordered: 0,
    };
    recording.cut(&machine, chance, |disk, done| {
        let powered = Powered::new(&machine, &disk.device);
        if done == 1 {
            must(powered.open(Expectation::Made));
        }
        let pool = must(powered.open(Expectation::New));
        let request = block(&machine, "raw");
        let volume = must(pool.create(&request, UNSTOPPED));
        reads_zero(&open(&pool, &request), volume.size);
        let again = must(powered.open(known(&pool)));
        assert_eq!(must(again.volumes()), [volume]);
        powered.end();
        detach(disk);
    });
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r02_raw_block_volumes_of_a_group_survive_power_cuts() {
    cut_power(&operations::BLOCK);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r02_filesystems_of_a_group_survive_power_cuts() {
    cut_power(&operations::FILES);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r02_an_encrypted_volume_of_a_group_is_formatted_once_whatever_a_power_cut_leaves() {
    cut_power(&operations::SECRET);
}
