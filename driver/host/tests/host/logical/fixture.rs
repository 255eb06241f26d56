//! A volume group on disks of its own, and the volumes of tests.

use std::{fs::File, os::unix::fs::FileExt as _};

use cistern_host::{
    Engine, Expectation, Image, ImageRequest, Root, Stoppable, Uid,
    image::Error,
    logical::{self, GroupSource, Unfit, VolumeGroup},
    pool::{self, PoolClaim},
};
use cistern_types::{Bytes, Encryption, FilesystemType, Provisioning};

use crate::{
    device::Disk,
    harness::{Machine, image_pool, must, request, run},
};

pub(super) const DISK: u64 = 400 << 20;
/// What the disks had before.
pub(super) const REMAINS: u8 = 0xa5;

/// LVM as a test calls it, without udev and files of the machine.
pub(super) const CONFIG: &str = "devices { use_devicesfile=0 hints=\"none\" scan_lvs=0 } \
    activation { udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0 } backup { backup=0 archive=0 }";

/// A volume group of one or more disks, which ends with the test.
pub(crate) struct Group {
    pub(super) name: String,
    pub(super) disks: Vec<Disk>,
}

impl Group {
    /// A group on disks that had other data.
    pub(super) fn new(machine: &Machine, disks: usize) -> Self {
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

    pub(super) fn on(machine: &Machine, disks: usize, prepare: impl Fn(&Disk)) -> Self {
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
    pub(super) fn devices(&self) -> String {
        let paths: Vec<&str> = self.disks.iter().map(Disk::path).collect();
        paths.join(",")
    }

    pub(super) fn lvm(&self, verb: &str, args: &[&str]) -> String {
        let devices = self.devices();
        let own = [verb, "--config", CONFIG, "--devices", &devices];
        run("lvm", &[&own[..], args].concat())
    }

    pub(super) fn open(
        &self,
        machine: &Machine,
        expectation: Expectation,
    ) -> Result<VolumeGroup, pool::Error> {
        self.open_by(&machine.root(), expectation)
    }

    pub(super) fn open_by(
        &self,
        root: &Root,
        expectation: Expectation,
    ) -> Result<VolumeGroup, pool::Error> {
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

    pub(super) fn source(&self) -> GroupSource {
        GroupSource::Named(self.name.clone())
    }

    pub(super) fn pool(&self, machine: &Machine) -> VolumeGroup {
        must(self.open(machine, Expectation::New))
    }

    /// The names of all logical volumes of the group.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.lvm("lvs", &["--noheadings", "--options", "lv_name", &self.name]);
        names.split_whitespace().map(str::to_owned).collect()
    }

    #[track_caller]
    pub(super) fn is_unfit(&self, machine: &Machine, expected: &Unfit) {
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

pub(super) fn volume(
    machine: &Machine,
    name: &str,
    filesystem: Option<FilesystemType>,
) -> ImageRequest {
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

pub(super) fn block(machine: &Machine, name: &str) -> ImageRequest {
    ImageRequest {
        size: Bytes::mib(30),
        ..volume(machine, name, None)
    }
}

/// A raw block volume that is encrypted.
pub(super) fn encrypted(machine: &Machine, name: &str) -> ImageRequest {
    ImageRequest {
        size: Bytes::mib(4),
        encryption: Some(Encryption::Luks2),
        ..block(machine, name)
    }
}

/// Opens the device of a volume.
pub(super) fn open(group: &VolumeGroup, request: &ImageRequest) -> File {
    let (device, _) = must(group.open_volume(&request.uid));
    File::from(device.as_fd().try_clone_to_owned().unwrap())
}

#[track_caller]
pub(super) fn reads_zero(file: &File, size: Bytes) {
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
