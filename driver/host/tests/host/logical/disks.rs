//! Volume groups that Cistern makes of blank disks.

use std::{
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
    thread,
};

use cistern_host::{
    Expectation, ImageRequest, Root, UNSTOPPED,
    logical::{GroupSource, VolumeGroup},
    pool::{self, Owner, PoolClaim},
    system::OFlags,
};
use cistern_types::Bytes;

use super::{CONFIG, Grow as _, REMAINS, block, claim, open, reads_zero};
use crate::{
    device::{Disk, SIZE},
    harness::{Machine, must, run, sampled},
};

/// Disks of a pool of a test's own. Its groups end with the test.
struct Disks {
    claim: PoolClaim,
    all: Vec<Disk>,
    stripes: u32,
}

impl Disks {
    fn new(machine: &Machine, count: usize, stripes: u32) -> Self {
        let disk = |index| Disk::new(machine, &format!("disk-{index}"));
        Self {
            claim: own_claim(machine),
            all: (0..count).map(disk).collect(),
            stripes,
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.all.iter().map(|disk| disk.device.clone()).collect()
    }

    fn source(&self) -> GroupSource {
        GroupSource::Disks {
            paths: self.paths(),
            stripes: self.stripes,
        }
    }

    /// Opens the pool as one that lists only some of the disks.
    fn open_of(
        &self,
        paths: &[PathBuf],
        root: &Root,
        expectation: Expectation,
    ) -> Result<VolumeGroup, pool::Error> {
        let source = GroupSource::Disks {
            paths: paths.to_vec(),
            stripes: self.stripes,
        };
        VolumeGroup::open(root, &source, &self.claim, expectation)
    }

    fn open(&self, root: &Root, expectation: Expectation) -> Result<VolumeGroup, pool::Error> {
        VolumeGroup::open(root, &self.source(), &self.claim, expectation)
    }

    fn pool(&self, machine: &Machine) -> VolumeGroup {
        must(self.open(&machine.root(), Expectation::New))
    }

    /// Runs a tool of LVM for all disks.
    fn lvm(&self, verb: &str, args: &[&str]) -> String {
        let paths: Vec<&str> = self.all.iter().map(Disk::path).collect();
        let devices = paths.join(",");
        let own = [verb, "--config", CONFIG, "--devices", &devices];
        run("lvm", &[&own[..], args].concat())
    }

    /// One field of each row of a report, without the blanks around it.
    fn report(&self, verb: &str, field: &str) -> Vec<String> {
        let text = self.lvm(verb, &["--noheadings", "--options", field]);
        let mut lines: Vec<String> = text.lines().map(|it| it.trim().to_owned()).collect();
        lines.sort();
        lines
    }

    /// Ends the groups, and makes all disks blank.
    fn end(&self) {
        for name in self.report("vgs", "vg_name") {
            self.lvm("vgremove", &["--yes", "--force", &name]);
        }
        for disk in &self.all {
            disk.clear();
        }
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        // In the virtual machine everything ends with it. A test that fails shows its own message.
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// The claim of a pool of a test's own.
pub(super) fn own_claim(machine: &Machine) -> PoolClaim {
    let uid = machine.uid("pool");
    PoolClaim {
        name: format!("pool-{uid}"),
        uid,
        ..claim()
    }
}

pub(super) fn known(pool: &VolumeGroup) -> Expectation {
    Expectation::Known {
        filesystem_uuid: pool.pool_uuid(),
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_is_made_of_all_blank_disks_and_those_with_data_are_left_alone() {
    let machine = Machine::new();
    let disks = Disks::new(&machine, 4, 1);
    disks.all[1].write(4096, &[REMAINS]);
    run("mkfs.ext4", &["-q", disks.all[2].path()]);
    let pool = disks.pool(&machine);
    assert_eq!(disks.report("pvs", "pv_name").len(), 2);
    assert_eq!(disks.report("vgs", "vg_name"), [pool.name()]);
    assert_eq!(
        disks.report("vgs", "vg_extent_size,vg_autoactivation"),
        ["1.00m"]
    );
    assert_eq!(pool.unit(), Bytes::mib(1));
    // Each disk has 17 MiB of metadata and labels.
    assert!(must(pool.statistics()).empty >= Bytes(2 * SIZE).saturating_sub(Bytes::mib(40)));
    let request = block(&machine, "raw");
    let made = must(pool.create(&request, UNSTOPPED));
    assert_eq!(made.size, request.size);
    reads_zero(&open(&pool, &request), made.size);
    // The list has another order, and a disk that is gone.
    let mut moved = disks.paths();
    moved.reverse();
    moved.push(PathBuf::from("/dev/no-such-disk"));
    let source = GroupSource::Disks {
        paths: moved,
        stripes: 1,
    };
    for expectation in [Expectation::New, Expectation::Made, known(&pool)] {
        let again = VolumeGroup::open(&machine.root(), &source, &disks.claim, expectation);
        let again = must(again);
        assert_eq!(again.pool_uuid(), pool.pool_uuid());
        assert_eq!(must(again.volumes()), std::slice::from_ref(&made));
    }
    let mut byte = [0];
    let disk = std::fs::File::open(disks.all[1].path()).unwrap();
    disk.read_exact_at(&mut byte, 4096).unwrap();
    assert_eq!(byte, [REMAINS]);
    let format = ["-p", "-o", "value", "-s", "TYPE", disks.all[2].path()];
    assert_eq!(run("blkid", &format).trim(), "ext4");
    let found = machine.root().group_inventory(&disks.claim.uid, None);
    assert_eq!(found.unwrap().images, [made]);
    let other = machine.root().group_inventory(&machine.uid("other"), None);
    assert_eq!(other, None);
    must(pool.remove(&request.uid));
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_disk_that_becomes_blank_joins_the_group_and_the_volumes_stay() {
    let machine = Machine::new();
    let disks = Disks::new(&machine, 2, 1);
    disks.all[1].write(0, &[REMAINS; 512]);
    let pool = disks.pool(&machine);
    let request = block(&machine, "raw");
    let made = must(pool.create(&request, UNSTOPPED));
    let before = must(pool.statistics());
    let added = must(pool.add_disks(&disks.paths()));
    let expected = format!(
        "1 of its disks is not in its volume group: {}: its first MiB is not zeros: if nothing on it is needed, overwrite that \
         with zeros",
        disks.all[1].path()
    );
    assert_eq!((added.count, added.left_out.to_string()), (0, expected));
    assert!(added.left_out.failed().is_empty());
    assert_eq!(must(pool.statistics()), before);
    // While it is not listed, the group lacks nothing.
    let added = must(pool.add_disks(&disks.paths()[..1]));
    assert_eq!((added.count, added.left_out.is_empty()), (0, true));
    disks.all[1].clear();
    for count in [1, 0] {
        let added = must(pool.add_disks(&disks.paths()));
        assert!(added.left_out.is_empty(), "{}", added.left_out);
        assert_eq!(added.count, count);
    }
    let larger = must(disks.open(&machine.root(), known(&pool)));
    let after = must(larger.statistics());
    assert_eq!(after.size.0, 2 * before.size.0);
    assert_eq!(must(larger.volumes()), [made]);
    must(larger.remove(&request.uid));
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_disk_that_something_else_holds_is_named_and_the_disks_after_it_join() {
    let machine = Machine::new();
    let disks = Disks::new(&machine, 3, 1);
    let (first, others) = (&disks.paths()[..1], &disks.paths()[1..]);
    let pool = must(disks.open_of(first, &machine.root(), Expectation::New));
    let exclusively = OFlags::EXCL.bits().cast_signed();
    let mut options = std::fs::OpenOptions::new();
    let holder = options
        .read(true)
        .custom_flags(exclusively)
        .open(disks.all[1].path());
    let added = must(pool.add_disks(others));
    let expected = format!(
        "1 of its disks is not in its volume group: {}: something else holds it",
        disks.all[1].path()
    );
    assert_eq!((added.count, added.left_out.to_string()), (1, expected));
    drop(holder.unwrap());
    let added = must(pool.add_disks(others));
    assert_eq!((added.count, added.left_out.is_empty()), (1, true));
    assert_eq!(disks.report("pvs", "pv_name").len(), 3);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r15_an_error_at_any_call_that_adds_a_disk_is_recovered_by_the_next_attempt() {
    let machine = Machine::new();
    let disks = Disks::new(&machine, 2, 1);
    let (first, second) = (&disks.paths()[..1], &disks.paths()[1..]);
    let (system, faulty) = machine.faulty();
    let pool = must(disks.open_of(first, &faulty, Expectation::New));
    let sound = must(disks.open_of(first, &machine.root(), known(&pool)));
    for at in sampled(4, 400) {
        system.fail_in(at);
        let added = pool.add_disks(second);
        let is_over = !system.has_failed();
        match &added {
            Ok(added) => assert_eq!(added.left_out.is_empty(), added.count == 1),
            Err(error) => assert!(!is_over, "{error}"),
        }
        must(sound.check());
        let again = must(sound.add_disks(second));
        assert!(again.left_out.is_empty(), "{}", again.left_out);
        assert_eq!(disks.report("vgs", "pv_count"), ["2"]);
        if is_over {
            assert!(at > 10, "{at} calls");
            return;
        }
        disks.lvm("vgreduce", &[pool.name(), disks.all[1].path()]);
        disks.all[1].clear();
    }
    panic!("too many calls");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r12_of_two_pools_that_take_the_same_disks_at_the_same_time_one_gets_them() {
    let machine = Machine::new();
    let disks = Disks::new(&machine, 2, 1);
    let other = PoolClaim {
        uid: machine.uid("other-pool"),
        name: "other".to_owned(),
        ..claim()
    };
    let claims = [&disks.claim, &other];
    let opened = thread::scope(|scope| {
        let open = |claim| {
            let (root, source) = (machine.root(), disks.source());
            scope.spawn(move || VolumeGroup::open(&root, &source, claim, Expectation::New))
        };
        claims.map(open).map(|it| it.join().unwrap())
    });
    let mut made = Vec::new();
    for (claim, opened) in claims.into_iter().zip(opened) {
        match opened {
            Ok(pool) => made.push((claim, pool)),
            Err(pool::Error::NoUsableDevice { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let [(claim, pool)] = &made[..] else {
        panic!("{made:?}");
    };
    assert_eq!(disks.report("vgs", "pv_count"), ["2"]);
    let again = VolumeGroup::open(&machine.root(), &disks.source(), claim, known(pool));
    assert_eq!(must(again).uid(), &claim.uid);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r15_an_error_at_any_call_that_makes_a_group_is_recovered_by_the_next_attempt() {
    let machine = Machine::new();
    let disks = Disks::new(&machine, 2, 1);
    let (system, faulty) = machine.faulty();
    for at in sampled(3, 400) {
        system.fail_in(at);
        let made = disks.open(&faulty, Expectation::New);
        let is_over = !system.has_failed();
        assert!(!is_over || made.is_ok(), "{made:?}");
        let before = made.ok().map(|pool| pool.pool_uuid());
        let pool = disks.pool(&machine);
        assert!(before.is_none_or(|uuid| uuid == pool.pool_uuid()));
        must(pool.add_disks(&disks.paths()));
        assert_eq!(disks.report("vgs", "pv_count"), ["2"]);
        must(pool.check());
        disks.end();
        if is_over {
            assert!(at > 10, "{at} calls");
            return;
        }
    }
    panic!("too many calls");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_that_was_made_before_is_never_made_again_and_stays_when_the_pool_leaves() {
    let machine = Machine::new();
    let disks = Disks::new(&machine, 1, 1);
    let pool = disks.pool(&machine);
    let before = known(&pool);
    // The pool leaves the node, and comes back.
    let release = || VolumeGroup::release(&machine.root(), &disks.source(), &disks.claim, before);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    let error = release().unwrap_err();
    assert!(error.to_string().contains("1 volumes"), "{error}");
    must(pool.remove(&request.uid));
    must(release());
    let recreated = PoolClaim {
        uid: machine.uid("recreated"),
        ..disks.claim.clone()
    };
    let open = |claim: &PoolClaim, expectation| {
        VolumeGroup::open(&machine.root(), &disks.source(), claim, expectation)
    };
    let adopted = must(open(&recreated, Expectation::New));
    assert_eq!(adopted.pool_uuid(), pool.pool_uuid());
    // Its disk is in another machine.
    let elsewhere = PoolClaim {
        node: Owner {
            node: "w2".to_owned(),
            machine: None,
        },
        ..recreated
    };
    let error = open(&elsewhere, Expectation::New).unwrap_err();
    assert!(matches!(error, pool::Error::OtherNode { .. }), "{error}");
    disks.end();
    for expectation in [before, Expectation::Made] {
        let error = disks.open(&machine.root(), expectation).unwrap_err();
        assert!(
            matches!(error, pool::Error::BackingMissing { .. }),
            "{error}"
        );
    }
    assert!(disks.all[0].is_blank());
    must(release());
    assert!(disks.all[0].is_blank());
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_striped_volume_lies_on_as_many_disks_and_grows_so() {
    let machine = Machine::new();
    let mut disks = Disks::new(&machine, 2, 3);
    let error = disks.open(&machine.root(), Expectation::New).unwrap_err();
    assert!(
        error.to_string().starts_with(
            "the volumes are striped over 3 devices, and only 2 of those listed are blank: /dev/loop"
        ),
        "{error}"
    );
    assert!(disks.all.iter().all(Disk::is_blank));
    disks.stripes = 2;
    let pool = disks.pool(&machine);
    assert_eq!(pool.unit(), Bytes::mib(2));
    let request = ImageRequest {
        size: Bytes::mib(31),
        ..block(&machine, "raw")
    };
    let made = must(pool.create(&request, UNSTOPPED));
    assert_eq!(made.size, Bytes::mib(32));
    let grown = must(pool.grow(&request.uid, Bytes::mib(61), UNSTOPPED));
    assert_eq!(grown.size, Bytes::mib(62));
    reads_zero(&open(&pool, &request), grown.size);
    let stripes = disks.report("lvs", "stripes");
    assert!(stripes.iter().all(|it| it == "2"), "{stripes:?}");
    // Nothing is left on one of the disks but what no stripe can take.
    let free = must(pool.statistics()).available;
    assert_eq!(free.0 % Bytes::mib(2).0, 0);
    let rest = ImageRequest {
        size: free,
        ..block(&machine, "rest")
    };
    must(pool.create(&rest, UNSTOPPED));
    assert_eq!(must(pool.statistics()).available, Bytes::ZERO);
    must(pool.remove(&rest.uid));
    must(pool.remove(&request.uid));
}
