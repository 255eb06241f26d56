//! Volume groups of LVM as pools. A group is on disks of its own, which had other data before.

mod dependents;
mod disks;
mod extents;
mod hung;
mod others;
mod power;

use std::{
    fs::{self, File},
    ops::ControlFlow,
    os::unix::fs::FileExt as _,
};

use cistern_host::{
    BlockStageRequest, EncryptionState, Engine, Expectation, Image, ImageRequest, Root, Stoppable,
    UNSTOPPED, Uid, Uuid,
    encryption::HeaderConflict,
    image::{Content, Error},
    inventory::LogicalInventory,
    logical::{self, GroupSource, Unfit, VolumeGroup},
    pool::{self, Owner, PoolClaim},
};
use cistern_types::{Bytes, Encryption, FilesystemType, Provisioning};

use crate::{
    device::Disk,
    encryption::{keys, unlock},
    harness::{Machine, Volume, image_pool, must, request, run, sampled},
    scenario::Volumes as _,
};

const DISK: u64 = 400 << 20;
/// What the disks had before.
const REMAINS: u8 = 0xa5;

/// LVM as a test calls it, without udev and files of the machine.
const CONFIG: &str = "devices { use_devicesfile=0 hints=\"none\" scan_lvs=0 } \
    activation { udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0 } backup { backup=0 archive=0 }";

/// A volume group of one or more disks, which ends with the test.
pub(crate) struct Group {
    name: String,
    disks: Vec<Disk>,
}

impl Group {
    /// A group on disks that had other data.
    fn new(machine: &Machine, disks: usize) -> Self {
        Self::on(machine, disks, |disk| {
            let remains = vec![REMAINS; 1 << 20];
            for offset in (0..DISK).step_by(remains.len()) {
                disk.write(offset, &remains);
            }
        })
    }

    /// A group on blank disks.
    pub(crate) fn blank(machine: &Machine, disks: usize) -> Self {
        Self::on(machine, disks, |_| {})
    }

    fn on(machine: &Machine, disks: usize, prepare: impl Fn(&Disk)) -> Self {
        let disk = |index| {
            let disk = Disk::of_size(machine, &format!("disk-{index}"), DISK);
            prepare(&disk);
            disk
        };
        let name = machine.uid("group").to_string();
        let group = Self {
            name,
            disks: (0..disks).map(disk).collect(),
        };
        let paths: Vec<&str> = group.disks.iter().map(Disk::path).collect();
        for path in &paths {
            group.lvm("pvcreate", &["--yes", "--zero", "y", path]);
        }
        let args = [&["--yes", group.name.as_str()][..], &paths].concat();
        group.lvm("vgcreate", &args);
        group
    }

    /// The devices of its disks, separated by commas.
    fn devices(&self) -> String {
        let paths: Vec<&str> = self.disks.iter().map(Disk::path).collect();
        paths.join(",")
    }

    fn lvm(&self, verb: &str, args: &[&str]) -> String {
        let devices = self.devices();
        let own = [verb, "--config", CONFIG, "--devices", &devices];
        run("lvm", &[&own[..], args].concat())
    }

    fn open(
        &self,
        machine: &Machine,
        expectation: Expectation,
    ) -> Result<VolumeGroup, pool::Error> {
        self.open_by(&machine.root(), expectation)
    }

    fn open_by(&self, root: &Root, expectation: Expectation) -> Result<VolumeGroup, pool::Error> {
        self.open_as(root, &claim(), expectation)
    }

    pub(crate) fn open_as(
        &self,
        root: &Root,
        claim: &PoolClaim,
        expectation: Expectation,
    ) -> Result<VolumeGroup, pool::Error> {
        VolumeGroup::open(root, &self.source(), claim, expectation)
    }

    fn source(&self) -> GroupSource {
        GroupSource::Named(self.name.clone())
    }

    fn pool(&self, machine: &Machine) -> VolumeGroup {
        must(self.open(machine, Expectation::New))
    }

    /// The names of all logical volumes of the group.
    fn names(&self) -> Vec<String> {
        let names = self.lvm("lvs", &["--noheadings", "--options", "lv_name", &self.name]);
        names.split_whitespace().map(str::to_owned).collect()
    }

    #[track_caller]
    fn is_unfit(&self, machine: &Machine, expected: &Unfit) {
        for expectation in [Expectation::New, Expectation::Made] {
            match self.open(machine, expectation) {
                Err(pool::Error::Group(logical::Error::Unfit { why, .. })) => {
                    assert_eq!(&why, expected);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // In the virtual machine everything ends with it. A test that fails shows its own message.
        if !std::thread::panicking() {
            self.lvm("vgremove", &["--yes", "--force", &self.name]);
        }
    }
}

pub(crate) fn claim() -> PoolClaim {
    image_pool(Bytes::ZERO).claim()
}

fn volume(machine: &Machine, name: &str, filesystem: Option<FilesystemType>) -> ImageRequest {
    ImageRequest {
        uid: machine.uid(name),
        filesystem,
        ..request(
            name,
            Bytes::mib(340),
            FilesystemType::Ext4,
            Provisioning::Thick,
        )
    }
}

fn block(machine: &Machine, name: &str) -> ImageRequest {
    ImageRequest {
        size: Bytes::mib(30),
        ..volume(machine, name, None)
    }
}

/// Opens the device of a volume.
fn open(group: &VolumeGroup, request: &ImageRequest) -> File {
    let (device, _) = must(group.open_volume(&request.uid));
    File::from(device.as_fd().try_clone_to_owned().unwrap())
}

#[track_caller]
fn reads_zero(file: &File, size: Bytes) {
    let mut bytes = vec![0; 1 << 20];
    for offset in (0..size.0).step_by(bytes.len()) {
        file.read_exact_at(&mut bytes, offset).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "at {offset}");
    }
}

/// Both parts of a growth.
pub(crate) trait Grow {
    fn grow(&self, uid: &Uid, size: Bytes, progress: Stoppable<'_>) -> Result<Image, Error>;
}

impl<E: Engine + ?Sized> Grow for E {
    fn grow(&self, uid: &Uid, size: Bytes, progress: Stoppable<'_>) -> Result<Image, Error> {
        let growth = self.prepare_growth(uid, size, progress)?;
        self.finish_growth(uid, size, growth)
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_of_a_group_has_what_was_requested_and_is_found_again() {
    let machine = Machine::new();
    let group = Group::new(&machine, 3);
    let pool = group.pool(&machine);
    let requests = [
        volume(&machine, "ext4", Some(FilesystemType::Ext4)),
        volume(&machine, "xfs", Some(FilesystemType::Xfs)),
        block(&machine, "raw"),
    ];
    for request in &requests {
        let made = must(pool.create(request, UNSTOPPED));
        // A whole number of extents of 4 MiB.
        assert!(
            made.size >= request.size && made.size < request.size.saturating_add(Bytes::mib(4))
        );
        assert_eq!(must(pool.create(request, UNSTOPPED)), made);
        let content = made.identity.unwrap().content;
        assert_eq!(content.filesystem(), request.filesystem);
        if let Content::Filesystem { uuid, .. } = content {
            let device = must(pool.open_volume(&request.uid)).0.number();
            let path = format!("/dev/dm-{}", device.minor);
            let found = run("blkid", &["-p", "-o", "value", "-s", "UUID", &path]);
            assert_eq!(found.trim(), uuid.to_string());
        }
    }
    let known = Expectation::Known {
        filesystem_uuid: pool.pool_uuid(),
    };
    let again = must(group.open(&machine, known));
    assert_eq!(must(again.volumes()).len(), requests.len());
    assert_eq!(must(again.sweep()), 0);
    let other = ImageRequest {
        volume: "pvc-other".to_owned(),
        ..requests[0].clone()
    };
    let error = again.create(&other, UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    let before = must(again.statistics());
    for request in &requests {
        must(again.remove(&request.uid));
        must(again.remove(&request.uid));
        assert_eq!(must(again.volume(&request.uid)), None);
    }
    let after = must(again.statistics());
    assert_eq!((after.empty, after.size), (before.empty, before.size));
    assert_eq!(after.available, after.empty);
    assert!(after.available > before.available);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_of_a_group_has_the_sectors_of_the_disks() {
    for sectors in ["512", "4096"] {
        let machine = Machine::new();
        let group = Group::on(&machine, 1, |disk| {
            run("losetup", &["--sector-size", sectors, disk.path()]);
        });
        let pool = group.pool(&machine);
        let request = block(&machine, "raw");
        let made = must(pool.create(&request, UNSTOPPED));
        assert_eq!(made.sector_size.to_string(), sectors);
        let device = must(pool.open_volume(&request.uid)).0.number();
        let path = format!("/dev/dm-{}", device.minor);
        assert_eq!(run("blockdev", &["--getss", &path]).trim(), sectors);
        let groups = [(claim().uid, Some(group.name.clone()))];
        let found = must(machine.root().inventory(&groups));
        assert_eq!(found.pools[0].images, [made]);
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn the_inventory_has_the_devices_and_mounts_of_the_volumes_of_a_group() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let engine: &dyn Engine = &pool;
    let groups = [(claim().uid, Some(group.name.clone()))];
    let files = ImageRequest {
        size: Bytes::mib(48),
        ..volume(&machine, "ext4", Some(FilesystemType::Ext4))
    };
    let raw = block(&machine, "raw");
    let image = must(pool.create(&files, UNSTOPPED));
    let size = must(pool.create(&raw, UNSTOPPED)).size;
    let (at, raw_at) = (machine.staging("files"), machine.staging("raw"));
    must(engine.stage(&Volume::new(&image).stage(&at)));
    must(engine.stage_block(&BlockStageRequest {
        unlock: None,
        image: &raw.uid,
        volume: &raw.volume,
        size,
        staging: &raw_at,
    }));
    let [files, raw] = [&files, &raw].map(|request| LogicalInventory {
        device: must(pool.open_volume(&request.uid)).0.number(),
        image: request.uid.clone(),
        is_mapped: false,
    });
    let look = || must(machine.root().inventory(&groups));
    let found = look();
    let logical = &found.pools[0].logical;
    assert!(
        logical.contains(&files) && logical.contains(&raw),
        "{logical:?}"
    );
    let mounts = found.mounts.iter().map(|it| (it.device, &it.mount_point));
    assert_eq!(mounts.collect::<Vec<_>>(), [(files.device, &at)]);
    let nodes = found.nodes.iter();
    let nodes = nodes.map(|it| (it.device, it.mount.mount_point.clone()));
    let node = raw_at.join(raw.image.as_str());
    assert_eq!(nodes.collect::<Vec<_>>(), [(raw.device, node)]);
    for staging in [&at, &raw_at] {
        must(machine.root().unstage(staging));
    }
    // They stay active.
    let found = look();
    assert_eq!((found.mounts.len(), found.nodes.len()), (0, 0));
    assert_eq!(found.pools[0].logical.len(), 2);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn every_byte_of_a_new_volume_reads_zero_whatever_the_disks_had() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let mut percents = Vec::new();
    for name in ["first", "second"] {
        let request = block(&machine, name);
        let seen = std::cell::RefCell::new(&mut percents);
        let progress = |percent| {
            seen.borrow_mut().push(percent);
            ControlFlow::Continue(())
        };
        let made = must(pool.create(&request, &progress));
        let device = open(&pool, &request);
        reads_zero(&device, made.size);
        // The next one lies where this one was.
        device.write_all_at(&vec![REMAINS; 1 << 20], 0).unwrap();
        device.sync_all().unwrap();
        drop(device);
        must(pool.remove(&request.uid));
    }
    assert_eq!(percents, [100, 100]);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn logical_volumes_of_others_are_counted_and_never_touched() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let request = block(&machine, "own");
    // The first has the name of a volume, and no tags.
    let names = [format!("cistern-{}", request.uid), "data".to_owned()];
    for name in &names {
        group.lvm(
            "lvcreate",
            &["--yes", "-Wn", "-Zn", "-l", "10", "-n", name, &group.name],
        );
    }
    let pool = group.pool(&machine);
    let before = must(pool.statistics());
    assert_eq!(before.size.saturating_sub(before.empty), Bytes::mib(80));
    assert_eq!(must(pool.volumes()), []);
    assert_eq!(must(pool.sweep()), 0);
    must(pool.remove(&request.uid));
    pool.create(&request, UNSTOPPED).unwrap_err();
    assert_eq!(group.names(), names);
    assert_eq!(must(pool.statistics()), before);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_in_use_is_not_removed_and_the_error_names_its_device() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "used");
    must(pool.create(&request, UNSTOPPED));
    let used = open(&pool, &request);
    for _ in 0..2 {
        let error = pool.remove(&request.uid).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        assert!(error.to_string().contains("block device 25"), "{error}");
        pool.check_unused(&request.uid).unwrap_err();
    }
    reads_zero(&used, request.size);
    drop(used);
    must(pool.check_unused(&request.uid));
    must(pool.remove(&request.uid));
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_grows_where_nothing_of_the_disks_can_be_read_and_a_full_group_says_so() {
    let machine = Machine::new();
    let group = Group::new(&machine, 2);
    let pool = group.pool(&machine);
    let (mut files, raw) = (
        volume(&machine, "files", Some(FilesystemType::Ext4)),
        block(&machine, "raw"),
    );
    files.size = Bytes::mib(300);
    must(pool.create(&files, UNSTOPPED));
    must(pool.create(&raw, UNSTOPPED));
    let grown = must(pool.grow(&files.uid, Bytes::mib(340), UNSTOPPED));
    assert_eq!(grown.size, Bytes::mib(340));
    assert_eq!(
        must(pool.grow(&files.uid, Bytes::mib(300), UNSTOPPED)).size,
        Bytes::mib(340)
    );
    let error = pool.grow(&raw.uid, Bytes::gib(2), UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    let error = pool.grow(&files.uid, Bytes::gib(2), UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    let large = ImageRequest {
        size: Bytes::gib(2),
        ..block(&machine, "large")
    };
    let error = pool.create(&large, UNSTOPPED).unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    let thin = ImageRequest {
        provisioning: Provisioning::Thin,
        ..block(&machine, "thin")
    };
    let error = pool.create(&thin, UNSTOPPED).unwrap_err();
    assert!(error.to_string().contains("thin volumes"), "{error}");
    assert_eq!(must(pool.volumes()).len(), 2);
    assert_eq!(group.names().len(), 2);
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_raw_block_volume_grows_by_zeros_whatever_the_disks_had() {
    let machine = Machine::new();
    let group = Group::new(&machine, 2);
    let pool = group.pool(&machine);
    let request = block(&machine, "raw");
    must(pool.create(&request, UNSTOPPED));
    // The free extents are in several pieces.
    let others: Vec<String> = (0..8).map(|index| format!("other-{index}")).collect();
    for name in &others {
        let args = ["--yes", "-Wn", "-Zn", "-l", "10", "-n", name, &group.name];
        group.lvm("lvcreate", &args);
    }
    for name in others.iter().step_by(2) {
        let name = format!("{}/{name}", group.name);
        group.lvm("lvremove", &["--yes", &name]);
    }
    let free = must(pool.statistics()).available;
    let all = request.size.saturating_add(free);
    let grown = must(pool.grow(&request.uid, all, UNSTOPPED));
    assert_eq!(must(pool.statistics()).available, Bytes::ZERO);
    reads_zero(&open(&pool, &request), grown.size);
    let name = format!("{}/cistern-{}", group.name, request.uid);
    let segments = group.lvm("lvs", &["--noheadings", "--options", "seg_count", &name]);
    assert!(segments.trim().parse::<u32>().unwrap() > 2, "{segments}");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r15_an_error_at_any_call_that_grows_a_raw_block_volume_shows_no_byte_of_the_disks() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let (system, faulty) = machine.faulty();
    let faulty = must(group.open_by(&faulty, Expectation::Made));
    let request = block(&machine, "raw");
    let mut size = must(pool.create(&request, UNSTOPPED)).size;
    for at in sampled(3, 400) {
        size = size.saturating_add(Bytes::mib(4));
        system.fail_in(at);
        let grown = faulty.grow(&request.uid, size, UNSTOPPED);
        let is_over = !system.has_failed();
        assert!(!is_over || grown.is_ok(), "{grown:?}");
        assert_eq!(must(pool.grow(&request.uid, size, UNSTOPPED)).size, size);
        must(pool.sweep());
        assert_eq!(group.names().len(), 1);
        let device = open(&pool, &request);
        let mut new = vec![REMAINS; 4 << 20];
        device.read_exact_at(&mut new, size.0 - (4 << 20)).unwrap();
        assert!(new.iter().all(|byte| *byte == 0), "call {at}");
        if is_over {
            assert!(at > 20, "{at} calls");
            return;
        }
    }
    panic!("too many calls");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_that_cannot_be_a_pool_is_refused_with_what_is_in_the_way() {
    let machine = Machine::new();
    let group = Group::new(&machine, 2);
    let missing = GroupSource::Named("no-such-group".to_owned());
    let error =
        VolumeGroup::open(&machine.root(), &missing, &claim(), Expectation::New).unwrap_err();
    assert!(error.to_string().contains("no-such-group"), "{error}");
    let error = group.open(&machine, Expectation::Made).unwrap_err();
    assert!(
        matches!(
            error,
            pool::Error::Group(logical::Error::Unfit {
                why: Unfit::NoPool(_),
                ..
            })
        ),
        "{error}"
    );
    group.lvm("vgexport", &[&group.name]);
    group.is_unfit(&machine, &Unfit::Exported);
    group.lvm("vgimport", &[&group.name]);
    group.lvm(
        "vgchange",
        &["--yes", "--systemid", "another-machine", &group.name],
    );
    group.is_unfit(&machine, &Unfit::OtherSystem);
    let of_that = format!(
        "{CONFIG} global {{ system_id_source=lvmlocal }} local {{ system_id=another-machine }}"
    );
    let devices = group.devices();
    let own = ["--config", &of_that, "--devices", &devices];
    let change = [
        &["vgchange", "--yes", "--systemid", ""][..],
        &own,
        &[&group.name],
    ]
    .concat();
    run("lvm", &change);
    // Another group gets its name, while the disks of this one are away.
    let other = Disk::of_size(&machine, "other", DISK);
    let own = ["--config", CONFIG, "--devices", other.path()];
    run(
        "lvm",
        &[&["pvcreate", "--yes"][..], &own, &[other.path()]].concat(),
    );
    let twice = [
        &["vgcreate", "--yes"][..],
        &own,
        &[&group.name, other.path()],
    ]
    .concat();
    run("lvm", &twice);
    for expectation in [Expectation::New, Expectation::Made] {
        let error = group.open(&machine, expectation).unwrap_err();
        assert!(
            matches!(error, pool::Error::Group(logical::Error::Ambiguous { .. })),
            "{error}"
        );
    }
    other.clear();
    let pool = group.pool(&machine);
    must(pool.check());
    let other = PoolClaim {
        name: "other".to_owned(),
        uid: machine.uid("other-pool"),
        ..claim()
    };
    for expectation in [Expectation::New, Expectation::Made] {
        let error = group
            .open_as(&machine.root(), &other, expectation)
            .unwrap_err();
        assert!(
            error.to_string().contains("pool fast of node w1"),
            "{error}"
        );
    }
    // The label of one of its two disks is lost.
    group.disks[1].clear_label();
    let error = pool.check().unwrap_err();
    assert!(
        error.to_string().contains("1 of its physical volumes"),
        "{error}"
    );
    group.is_unfit(&machine, &Unfit::MissingDisks(1));
    group.lvm("vgreduce", &["--removemissing", &group.name]);
    must(pool.check());
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_follows_its_pool_to_a_restored_cluster_and_by_a_grant_to_another_node() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "kept");
    let made = must(pool.create(&request, UNSTOPPED));
    let known = Expectation::Known {
        filesystem_uuid: pool.pool_uuid(),
    };
    let open = |claim: &PoolClaim, expectation| group.open_as(&machine.root(), claim, expectation);
    // The cluster was restored: the StoragePool is another object of the same name.
    let restored = PoolClaim {
        uid: machine.uid("restored"),
        ..claim()
    };
    let is_another_pools = PoolClaim {
        others: vec![claim().uid],
        ..restored.clone()
    };
    let error = open(&is_another_pools, Expectation::New).unwrap_err();
    assert!(error.to_string().contains("pool fast"), "{error}");
    let adopted = must(open(&restored, Expectation::New));
    assert_eq!(adopted.pool_uuid(), pool.pool_uuid());
    pool.check().unwrap_err();
    // Its disks are in another machine.
    let elsewhere = PoolClaim {
        node: Owner {
            node: "w2".to_owned(),
            machine: None,
        },
        ..restored
    };
    let error = open(&elsewhere, known).unwrap_err();
    let pool::Error::OtherNode { foreign, .. } = error else {
        panic!("{error}");
    };
    let granted = PoolClaim {
        take_over: Some(*foreign),
        ..elsewhere
    };
    let taken = must(open(&granted, known));
    assert_eq!(taken.takeovers(), 1);
    adopted.check().unwrap_err();
    assert_eq!(must(taken.volumes()), [made]);
    // The pool leaves the group when it is empty, and nothing of it stays.
    let release = || VolumeGroup::release(&machine.root(), &group.source(), &granted, known);
    let error = release().unwrap_err();
    assert!(error.to_string().contains("1 volumes"), "{error}");
    must(taken.remove(&request.uid));
    must(release());
    must(release());
    let tags = group.lvm(
        "vgs",
        &["--noheadings", "--options", "vg_tags", &group.name],
    );
    assert_eq!(tags.trim(), "");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r15_an_error_at_any_call_that_makes_or_removes_a_logical_volume_is_recovered_by_the_next_attempt()
 {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "volume");
    let (system, faulty) = machine.faulty();
    let faulty = must(group.open_by(&faulty, Expectation::Made));
    for at in sampled(3, 200) {
        system.fail_in(at);
        let made = faulty.create(&request, UNSTOPPED);
        let is_over = !system.has_failed();
        assert!(!is_over || made.is_ok(), "{made:?}");
        // What is not whole is removed, or continued.
        let swept = if at % 2 == 0 { must(pool.sweep()) } else { 0 };
        assert!(swept <= 1);
        let made = must(pool.create(&request, UNSTOPPED));
        reads_zero(&open(&pool, &request), made.size);
        assert_eq!(group.names().len(), 1);
        system.fail_in(if is_over { u64::MAX / 2 } else { at });
        let removed = faulty.remove(&request.uid);
        assert!(removed.is_ok() || system.has_failed(), "{removed:?}");
        must(pool.remove(&request.uid));
        assert_eq!(group.names(), Vec::<String>::new());
        if is_over {
            assert!(at > 10, "{at} calls");
            return;
        }
    }
    panic!("too many calls");
}

/// A raw block volume that is encrypted.
fn encrypted(machine: &Machine, name: &str) -> ImageRequest {
    ImageRequest {
        size: Bytes::mib(4),
        encryption: Some(Encryption::Luks2),
        ..block(machine, name)
    }
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn r02_an_error_at_any_call_of_a_first_stage_formats_nothing_twice() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let (request, keys) = (encrypted(&machine, "secret"), keys(b'k'));
    let (system, faulty) = machine.faulty();
    let faulty = must(group.open_by(&faulty, Expectation::Made));
    let complete =
        |by: &VolumeGroup| by.complete_encrypted(&request.uid, &request.volume, unlock(&keys));
    let header = || {
        let mut bytes = vec![0; 1 << 20];
        open(&pool, &request).read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let made = must(pool.create(&request, UNSTOPPED));
    assert_eq!(made.encryption(), Some(EncryptionState::Unformatted));
    assert_eq!(made.size, request.size);
    for at in sampled(4, 200) {
        system.fail_in(at);
        let completed = complete(&faulty);
        let is_over = !system.has_failed();
        assert!(!is_over || completed.is_ok(), "{completed:?}");
        let found = must(pool.volume(&request.uid)).unwrap();
        let was_complete = found.encryption() == Some(EncryptionState::Complete);
        let before = header();
        must(complete(&pool));
        let after = header();
        assert!(after.starts_with(b"LUKS"));
        assert!(!was_complete || before == after, "formatted again at {at}");
        if is_over {
            must(complete(&pool));
            assert_eq!(header(), after);
            assert!(at > 10, "{at} calls");
            return;
        }
        // As it was when it was made.
        open(&pool, &request)
            .write_all_at(&vec![0; 16 << 20], 0)
            .unwrap();
        let tag = |state| format!("cistern.state={state}");
        let (complete, unformatted) = (tag("Complete"), tag("Unformatted"));
        let name = format!("{}/cistern-{}", group.name, request.uid);
        group.lvm(
            "lvchange",
            &["--deltag", &complete, "--addtag", &unformatted, &name],
        );
    }
    panic!("too many calls");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn an_encrypted_volume_that_was_written_to_before_its_first_stage_is_not_formatted() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let (request, keys) = (encrypted(&machine, "secret"), keys(b'k'));
    must(pool.create(&request, UNSTOPPED));
    let device = open(&pool, &request);
    device.write_all_at(b"data", 8 << 20).unwrap();
    device.sync_all().unwrap();
    drop(device);
    let error = pool
        .complete_encrypted(&request.uid, &request.volume, unlock(&keys))
        .unwrap_err();
    let is_not_blank = matches!(
        error,
        Error::EncryptionConflict {
            why: HeaderConflict::NotBlank,
            ..
        }
    );
    assert!(is_not_blank, "{error}");
    let mut found = [0; 4];
    open(&pool, &request)
        .read_exact_at(&mut found, 8 << 20)
        .unwrap();
    assert_eq!(&found, b"data");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_that_is_not_active_is_activated_when_it_is_used() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "kept");
    must(pool.create(&request, UNSTOPPED));
    open(&pool, &request).write_all_at(b"data", 0).unwrap();
    // As after a reboot: the host does not activate the volumes of Cistern.
    let name = format!("{}/cistern-{}", group.name, request.uid);
    group.lvm("lvchange", &["--activate", "n", &name]);
    must(pool.check_unused(&request.uid));
    let mut found = [0; 4];
    open(&pool, &request).read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"data");
}

#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_volume_that_came_with_another_group_is_not_removed() {
    let machine = Machine::new();
    let group = Group::blank(&machine, 1);
    let pool = group.pool(&machine);
    let request = block(&machine, "merged");
    must(pool.create(&request, UNSTOPPED));
    let tag = |uuid| format!("cistern.poolUuid={uuid}");
    let name = format!("{}/cistern-{}", group.name, request.uid);
    let (own, other) = (tag(pool.pool_uuid()), tag(Uuid::new_v4()));
    group.lvm("lvchange", &["--deltag", &own, "--addtag", &other, &name]);
    let error = pool.remove(&request.uid).unwrap_err();
    assert!(matches!(error, Error::IdentityConflict { .. }), "{error}");
    assert_eq!(group.names().len(), 1);
    group.lvm("lvchange", &["--deltag", &other, "--addtag", &own, &name]);
    must(pool.remove(&request.uid));
}

/// A pod could write the label of another group with the same name.
#[test]
#[ignore = "needs device-mapper, which the virtual machine has"]
fn a_group_in_a_raw_block_volume_is_not_seen() {
    let machine = Machine::new();
    let group = Group::new(&machine, 1);
    let label = |path: &str, name: &str| {
        let own = ["--config", CONFIG, "--devices", path];
        for (verb, args) in [
            ("pvcreate", &["--yes", path][..]),
            ("vgcreate", &["--yes", name, path][..]),
        ] {
            run("lvm", &[&[verb][..], &own, args].concat());
        }
    };
    let images = crate::harness::open_new(&machine);
    let raw = block(&machine, "raw");
    must(images.new_image(&raw));
    let attached = Disk::attach(crate::harness::image_path(&machine, &raw.uid));
    label(attached.path(), &group.name);
    let pool = group.pool(&machine);
    assert!(must(pool.statistics()).size > Bytes::mib(300));
    // The device of a volume that is published: a logical volume, and kubelet's loop device over its node.
    let raw = block(&machine, "published");
    must(pool.create(&raw, UNSTOPPED));
    let number = must(pool.open_volume(&raw.uid)).0.number();
    let node = machine.path("kubelet/volumeDevices");
    fs::write(&node, "").unwrap();
    let device = format!("/dev/dm-{}", number.minor);
    run("mount", &["--bind", &device, node.to_str().unwrap()]);
    let kubelets = Disk::attach(node);
    let name = machine.uid("hidden").to_string();
    label(kubelets.path(), &name);
    let hidden = GroupSource::Named(name);
    let error = VolumeGroup::open(&machine.root(), &hidden, &claim(), Expectation::New);
    let error = error.unwrap_err();
    assert!(
        matches!(error, pool::Error::Group(logical::Error::Missing { .. })),
        "{error}"
    );
    must(pool.check());
    kubelets.clear_label();
    assert!(fs::exists(attached.path()).unwrap());
}
