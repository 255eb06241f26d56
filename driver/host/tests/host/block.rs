//! Raw block volumes: staging, publishing, and undoing both.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use cistern_host::{
    BlockPublishRequest, BlockStageRequest, Image, ImageRequest, Pool, VolumeStatistics, image,
    mounting::Error, statistics,
};
use cistern_types::{Bytes, FilesystemType, Provisioning};
use rustix::{
    fs::{Mode, OFlags, major, minor},
    mount::{UnmountFlags, mount_bind},
};

use crate::{
    harness::{Machine, Volume, has_loops, image_path, image_pool, must, open_new, request, run},
    scenario::Volumes as _,
};

const SIZE: Bytes = Bytes::mib(16);

/// A raw block volume and the paths that kubelet has for it.
struct Device<'a> {
    machine: &'a Machine,
    pool: &'a Pool,
    image: Image,
    staging: PathBuf,
}

impl<'a> Device<'a> {
    fn new(machine: &'a Machine, pool: &'a Pool, name: &str) -> Self {
        let request = ImageRequest {
            filesystem: None,
            uid: machine.uid(name),
            ..request(name, SIZE, FilesystemType::Ext4, Provisioning::Thin)
        };
        Self {
            machine,
            pool,
            image: must(pool.new_image(&request)),
            staging: machine.staging(name),
        }
    }

    fn stage(&self) -> Result<(), Error> {
        let identity = self.image.identity.as_ref().unwrap();
        let volume = identity.owner.volume().unwrap();
        let staged = self.pool.stage_block(&BlockStageRequest {
            unlock: None,
            image: &self.image.uid,
            volume,
            size: SIZE,
            staging: &self.staging,
        });
        staged.map(drop)
    }

    fn is_staged(&self) -> bool {
        let root = self.machine.root();
        must(root.is_block_staged(&self.image.uid, &self.staging))
    }

    fn publish(&self, target: &Path, read_only: bool) -> Result<(), Error> {
        self.machine.root().publish_block(&BlockPublishRequest {
            image: &self.image.uid,
            read_only,
            staging: &self.staging,
            target,
        })
    }

    fn unpublish(&self, target: &Path) -> Result<(), Error> {
        self.machine.root().unpublish(target)
    }

    fn unstage(&self) -> Result<(), Error> {
        self.machine.root().unstage(&self.staging)
    }
}

/// kubelet's part of a raw block volume.
pub(crate) struct Mapped {
    path: PathBuf,
    /// The loop device.
    pub(crate) lock: String,
}

impl Mapped {
    /// What kubelet does with a published device: one more bind mount, and a loop device as a lock.
    pub(crate) fn new(machine: &Machine, target: &Path) -> Self {
        let folder = machine.path("kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-of-pod/dev");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("uid-of-pod");
        fs::write(&path, "").unwrap();
        mount_bind(target, &path).unwrap();
        let lock = run("losetup", &["--show", "-f", path.to_str().unwrap()]);
        Self {
            path,
            lock: lock.trim().to_owned(),
        }
    }

    pub(crate) fn end(self) {
        run("losetup", &["-d", &self.lock]);
        rustix::mount::unmount(&self.path, UnmountFlags::empty()).unwrap();
        fs::remove_file(&self.path).unwrap();
    }
}

/// Writes past the page cache, in sectors of the device.
fn write(path: &Path, byte: u8) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    file.write_all_at(&[byte; 4096], 4096)?;
    file.sync_all()
}

fn read(path: &Path) -> u8 {
    let mut bytes = [0; 1];
    let file = fs::File::open(path).unwrap();
    file.read_exact_at(&mut bytes, 4096).unwrap();
    bytes[0]
}

fn loop_of(path: &Path) -> String {
    let node = fs::metadata(path).unwrap();
    assert!(node.file_type().is_block_device());
    assert_eq!(major(node.rdev()), 7);
    format!("loop{}", minor(node.rdev()))
}

fn attribute(device: &str, name: &str) -> String {
    let text = fs::read_to_string(format!("/sys/block/{device}/{name}")).unwrap();
    text.trim().to_owned()
}

// Shows: CV-21, NPV-06, NPV-10, NSV-05, NSV-13, NUP-04, NUP-05, NUS-04, NUS-05.
#[test]
fn npv_11_a_raw_block_volume_is_staged_published_and_removed_without_leftovers() {
    // CV-21, NSV-05, NSV-13, NPV-06, NPV-10, NUP-04, NUP-05, NUS-04, NUS-05.
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    let target = machine.path("kubelet/target");
    for round in 1..3 {
        for _ in 0..3 {
            must(volume.stage());
            must(volume.publish(&target, false));
        }
        assert!(volume.staging.is_dir() && volume.is_staged());
        let device = loop_of(&target);
        assert_eq!(attribute(&device, "loop/dio"), "1");
        assert_eq!(attribute(&device, "loop/autoclear"), "0");
        assert_eq!(attribute(&device, "queue/logical_block_size"), "4096");
        assert_eq!(attribute(&device, "size"), (SIZE.0 / 512).to_string());
        write(&target, round).unwrap();
        assert_eq!(read(&target), round);
        let all = machine.inventory();
        assert_eq!(all.nodes.len(), 2, "staged and published: {:?}", all.nodes);
        assert_eq!(all.loops.len(), 2, "the pool and the volume");
        let error = pool.remove_image(&volume.image.uid).unwrap_err();
        assert!(matches!(error, image::Error::InUse { .. }), "{error}");
        for _ in 0..2 {
            must(volume.unpublish(&target));
        }
        assert!(!target.exists() && volume.is_staged());
        for _ in 0..2 {
            must(volume.unstage());
        }
        assert_eq!(fs::read_dir(&volume.staging).unwrap().count(), 0);
        has_loops(&machine, 1);
        // The image has the written data.
        assert_eq!(read(&image_path(&machine, &volume.image.uid)), round);
    }
    must(pool.remove_image(&volume.image.uid));
}

#[test]
fn kubelets_own_loop_device_on_a_published_volume_is_ignored() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    let target = machine.path("kubelet/target");
    must(volume.stage());
    must(volume.publish(&target, false));
    let mapped = Mapped::new(&machine, &target);
    let inventory = machine.inventory();
    assert_eq!(inventory.loops.len(), 2, "{:?}", inventory.loops);
    assert_eq!(inventory.nodes.len(), 3, "kubelet's bind mount is one more");
    // kubelet starts again and repeats the calls for its pod.
    must(volume.stage());
    must(volume.publish(&target, false));
    let VolumeStatistics::Block { total } = must(machine.root().statistics_of(
        &volume.image.uid,
        &mapped.path,
        std::time::Duration::from_mins(1),
    )) else {
        panic!("it has no filesystem");
    };
    assert_eq!(total, SIZE, "ngs_10");
    // After an early unstage the pod keeps its device.
    let error = volume.unstage().unwrap_err();
    assert!(matches!(error, Error::StillPublished { .. }), "{error}");
    write(&target, 7).unwrap();
    mapped.end();
    must(volume.unpublish(&target));
    must(volume.unstage());
    must(pool.remove_image(&volume.image.uid));
}

// Shows: NPV-07.
#[test]
fn npv_13_a_device_that_is_published_read_only_cannot_be_written_and_is_writable_afterwards() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    let (one, two) = (machine.path("kubelet/one"), machine.path("kubelet/two"));
    must(volume.stage());
    must(volume.publish(&one, true));
    must(volume.publish(&two, true));
    for target in [&one, &two] {
        let error = write(target, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert_eq!(read(target), 0);
    }
    // NPV-07.
    let error = volume.publish(&one, false).unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    // All pods share the device: a reader keeps a read-only device, and a writer a writable one.
    let three = machine.path("kubelet/three");
    let error = volume.publish(&three, false).unwrap_err();
    assert!(matches!(error, Error::Writability { .. }), "{error}");
    assert!(!three.exists());
    must(volume.unpublish(&one));
    must(volume.unpublish(&two));
    must(volume.publish(&three, false));
    write(&three, 1).unwrap();
    let error = volume.publish(&one, true).unwrap_err();
    assert!(matches!(error, Error::Writability { .. }), "{error}");
    must(volume.unpublish(&three));
    // The next user of the device number gets a writable device.
    must(volume.publish(&one, true));
    let device = loop_of(&one);
    must(volume.unpublish(&one));
    must(volume.unstage());
    assert_eq!(attribute(&device, "ro"), "0");
}

// Shows: NPV-19, NPV-22, NSV-16.
#[test]
fn nsv_08_a_volume_is_staged_only_with_its_own_access_type() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    let with_filesystem = must(pool.new_image(&request(
        "b",
        Bytes::mib(64),
        FilesystemType::Ext4,
        Provisioning::Thin,
    )));
    let other = Device {
        image: with_filesystem,
        staging: machine.staging("b"),
        machine: &machine,
        pool: &pool,
    };
    let error = other.stage().unwrap_err();
    assert!(error.to_string().contains("Filesystem"), "{error}");
    assert_eq!(fs::read_dir(&other.staging).unwrap().count(), 0, "NSV-16");
    // A filesystem is mounted at the staging path: nothing is written into it.
    must(pool.stage(&Volume::new(&other.image).stage(&other.staging)));
    let confused = Device {
        staging: other.staging.clone(),
        ..Device::new(&machine, &pool, "c")
    };
    let error = confused.stage().unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert!(!other.staging.join(confused.image.uid.as_str()).exists());
    must(machine.root().unstage(&other.staging));
    // Not staged, not published (NPV-19), and no file is left (NPV-22).
    let target = machine.path("kubelet/target");
    let error = volume.publish(&target, false).unwrap_err();
    assert!(matches!(error, Error::NotStaged { .. }), "{error}");
    assert!(!target.exists());
}

#[test]
fn an_empty_target_file_is_used_and_any_other_is_left_alone() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    let target = machine.path("kubelet/target");
    must(volume.stage());
    fs::File::create(&target)
        .unwrap()
        .write_all(b"data")
        .unwrap();
    volume.publish(&target, false).unwrap_err();
    assert_eq!(fs::read(&target).unwrap(), b"data");
    volume.unpublish(&target).unwrap_err();
    fs::remove_file(&target).unwrap();
    fs::create_dir(&target).unwrap();
    volume.publish(&target, false).unwrap_err();
    must(volume.unpublish(&target));
    // An interrupted publish has left its file.
    fs::File::create(&target).unwrap();
    must(volume.publish(&target, false));
    must(volume.unpublish(&target));
    assert!(!target.exists());
    must(volume.unstage());
}

#[test]
fn nus_07_removing_a_device_needs_neither_pool_nor_image() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    let target = machine.path("kubelet/target");
    must(volume.stage());
    must(volume.publish(&target, false));
    fs::remove_file(image_path(&machine, &volume.image.uid)).unwrap();
    let at = machine.mount_point(&image_pool(Bytes::ZERO));
    rustix::mount::unmount(at, UnmountFlags::DETACH).unwrap();
    // kubelet repeats its calls for the running pod.
    assert!(volume.is_staged());
    must(volume.publish(&target, false));
    for _ in 0..2 {
        must(volume.unpublish(&target));
        must(volume.unstage());
    }
    assert!(!volume.is_staged());
    drop(volume);
    drop(pool);
    has_loops(&machine, 0);
}

#[test]
fn a_device_that_is_staged_at_two_paths_is_detached_with_the_last() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    let second = Device {
        machine: &machine,
        pool: &pool,
        image: volume.image.clone(),
        staging: machine.staging("second"),
    };
    let target = machine.path("kubelet/target");
    must(volume.stage());
    must(second.stage());
    must(second.publish(&target, true));
    assert_eq!(machine.inventory().loops.len(), 2, "one for both");
    must(volume.unstage());
    assert!(!volume.is_staged() && second.is_staged());
    assert_eq!(read(&target), 0);
    assert!(write(&target, 1).is_err());
    second.unstage().unwrap_err();
    must(second.unpublish(&target));
    must(second.unstage());
    must(pool.remove_image(&second.image.uid));
}

/// In a container `/dev` is a copy that was made when it started.
#[test]
fn a_device_without_a_node_in_dev_is_published() {
    let machine = Machine::new();
    Machine::forget_device_nodes();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    let target = machine.path("kubelet/target");
    for _ in 0..2 {
        must(volume.stage());
        must(volume.publish(&target, false));
    }
    write(&target, 3).unwrap();
    assert_eq!(read(&target), 3);
    assert_eq!(machine.inventory().nodes.len(), 2);
    let error = volume.unstage().unwrap_err();
    assert!(matches!(error, Error::StillPublished { .. }), "{error}");
    must(volume.unpublish(&target));
    must(volume.unstage());
    must(pool.remove_image(&volume.image.uid));
    rustix::mount::unmount("/dev", UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_device_of_a_forgotten_stage_does_not_keep_its_image_in_use() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let volume = Device::new(&machine, &pool, "a");
    must(volume.stage());
    // kubelet's directory is removed, as by `kubeadm reset`.
    rustix::mount::unmount(
        volume.staging.join(volume.image.uid.as_str()),
        UnmountFlags::empty(),
    )
    .unwrap();
    fs::remove_dir_all(&volume.staging).unwrap();
    assert_eq!(machine.inventory().loops.len(), 2, "it is still bound");
    must(pool.remove_image(&volume.image.uid));
    has_loops(&machine, 1);
}

#[test]
fn a_node_whose_device_now_serves_another_image_is_unmounted_and_the_device_is_left_alone() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (volume, other) = (
        Device::new(&machine, &pool, "a"),
        Device::new(&machine, &pool, "b"),
    );
    must(other.stage());
    // The device of `a` was detached by hand, and `b` has its number.
    let node = volume.staging.join(volume.image.uid.as_str());
    fs::File::create(&node).unwrap();
    mount_bind(other.staging.join(other.image.uid.as_str()), &node).unwrap();
    assert!(!volume.is_staged());
    let target = machine.path("kubelet/target");
    let error = volume.publish(&target, false).unwrap_err();
    assert!(matches!(error, Error::NotStaged { .. }), "{error}");
    must(volume.unstage());
    assert!(other.is_staged());
    must(other.publish(&target, false));
    write(&target, 1).unwrap();
    fs::File::create(&node).unwrap();
    mount_bind(&target, &node).unwrap();
    must(volume.stage());
    assert!(volume.is_staged());
    assert_ne!(loop_of(&node), loop_of(&target));
    assert_eq!(read(&node), 0);
}

#[test]
fn ngs_05_ngs_10_every_path_of_a_device_reports_its_size_and_no_other_path_does() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (volume, other) = (
        Device::new(&machine, &pool, "a"),
        Device::new(&machine, &pool, "b"),
    );
    let target = machine.path("kubelet/target");
    must(volume.stage());
    must(volume.publish(&target, true));
    let root = machine.root();
    let ask = |device: &Device<'_>, path: &Path| {
        let deadline = std::time::Duration::from_mins(1);
        root.statistics_of(&device.image.uid, path, deadline)
    };
    for path in [&volume.staging, &target] {
        let expected = VolumeStatistics::Block { total: SIZE };
        assert_eq!(must(ask(&volume, path)), expected);
        let error = ask(&other, path).unwrap_err();
        assert!(matches!(error, statistics::Error::NotThere { .. }));
    }
    must(volume.unpublish(&target));
    must(volume.unstage());
    for path in [&volume.staging, &target] {
        let error = ask(&volume, path).unwrap_err();
        assert!(matches!(error, statistics::Error::NotThere { .. }));
    }
}
