//! Pools that are volume groups of LVM, and their volumes as kubelet uses them. The volumes need device-mapper, which the
//! virtual machine has.

mod disks;
mod encrypted;
mod life;
mod pools;

use std::{collections::BTreeSet, path::Path};

use cistern_crds::{
    Bytes, NodePool, NodePoolStatus, PoolVolume, Provisioning,
    testing::{node_pool, volume_group_source},
};
use cistern_e2e::{
    ControlPlane, Driver, Folder, LoopDevice,
    driver::Options,
    process::{checked, dying_with_us},
};
use failing_disk::{FailingDisk, Mode};
use kube::{Api, ResourceExt as _};

use crate::Fixture;

/// Size of each disk of a group.
const DISK: Bytes = Bytes::gib(1);
/// Size of the extents of a group: each logical volume has whole ones.
const EXTENT: Bytes = Bytes::mib(4);
/// LVM as a test calls it, without udev and files of the machine.
const CONFIG: &str = "devices { use_devicesfile=0 hints=\"none\" scan_lvs=0 } \
    activation { udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0 } backup { backup=0 archive=0 }";

/// A volume group of two disks, or of one that fails on demand, which ends with the test.
struct Group {
    name: String,
    disks: Vec<LoopDevice>,
    // Dropped after the device that holds it open.
    failing: Option<FailingDisk>,
    folder: Folder,
}

impl Group {
    /// Makes a group for the node of this name.
    fn new(node: &str) -> Self {
        let group = Self::of_disks(node);
        group.make();
        group
    }

    /// Makes a group of one disk that fails on demand.
    fn failing(node: &str) -> Self {
        let folder = Folder::new();
        let program = dying_with_us(failing_disk::program().unwrap());
        let disk = FailingDisk::start(program, folder.path(), DISK.0).unwrap();
        let group = Self {
            name: name_for(node),
            disks: vec![attach(&disk.path())],
            failing: Some(disk),
            folder,
        };
        group.make();
        group
    }

    /// The disks alone, without LVM's labels.
    fn of_disks(node: &str) -> Self {
        let folder = Folder::new();
        let disk = |index| {
            let file = folder.join(format!("disk-{index}"));
            let disk = std::fs::File::create(&file).unwrap();
            disk.set_len(DISK.0).unwrap();
            attach(&file)
        };
        Self {
            name: name_for(node),
            disks: (0..2).map(disk).collect(),
            failing: None,
            folder,
        }
    }

    fn make(&self) {
        let disks = self.paths();
        self.lvm("pvcreate", &[&["--yes"][..], &disks].concat());
        self.lvm("vgcreate", &[&[&*self.name][..], &disks].concat());
    }

    /// Sets how the disk behaves that fails on demand.
    fn set(&self, mode: Mode) {
        self.failing.as_ref().unwrap().set(mode).unwrap();
    }

    fn paths(&self) -> Vec<&str> {
        let disks = self.disks.iter();
        disks.map(|disk| disk.path().to_str().unwrap()).collect()
    }

    /// Runs a command of LVM that sees the disks of the group alone.
    fn lvm(&self, verb: &str, arguments: &[&str]) -> String {
        let devices = self.paths().join(",");
        let own = [verb, "--config", CONFIG, "--devices", &devices];
        run("lvm", &[&own[..], arguments].concat())
    }

    /// Runs a command of LVM on the group.
    fn change(&self, verb: &str, arguments: &[&str]) {
        self.lvm(verb, &[arguments, &[&*self.name]].concat());
    }

    /// Makes a logical volume of ten extents that is not Cistern's.
    fn add_foreign(&self, name: &str) {
        let size = ["--yes", "-Wn", "-Zn", "-l", "10", "-n", name];
        self.change("lvcreate", &size);
    }

    fn report(&self, verb: &str, field: &str) -> BTreeSet<String> {
        let options = ["--noheadings", "--options", field, &self.name];
        let words = self.lvm(verb, &options);
        words
            .split([' ', '\n', ','])
            .filter(|it| !it.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// The names of all logical volumes.
    fn names(&self) -> BTreeSet<String> {
        self.report("lvs", "lv_name")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // In the virtual machine everything ends with it. A test that fails shows its own message.
        if !std::thread::panicking() {
            self.change("vgremove", &["--yes", "--force"]);
        }
    }
}

/// Makes a loop device over a file.
fn attach(file: &Path) -> LoopDevice {
    let printed = run("losetup", &["--find", "--show", file.to_str().unwrap()]);
    LoopDevice::new(&printed)
}

/// The name of the group of a node.
fn name_for(node: &str) -> String {
    format!("vg-of-{node}")
}

/// The name of the logical volume of a volume.
fn logical_volume(volume: &PoolVolume) -> String {
    format!("cistern-{}", crate::status(volume).image.unwrap().uid)
}

fn names<const COUNT: usize>(names: [&str; COUNT]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = dying_with_us(program);
    let output = command.args(arguments).output().unwrap();
    checked(&format!("{command:?}"), &output)
}

impl Fixture {
    /// A node without pools. The pool that it gets has its name.
    async fn without_pools(name: &str) -> Self {
        Self::without_pools_as(name, Options::default()).await
    }

    async fn without_pools_as(name: &str, options: Options) -> Self {
        let control_plane = ControlPlane::shared().await;
        Self {
            driver: Driver::start_with(control_plane, name, options).await,
            volumes: Api::all(control_plane.client()),
            name: name.to_owned(),
        }
    }

    /// A node with a pool that is a volume group.
    async fn on_group(name: &str) -> (Self, Group) {
        let (node, group) = (Self::without_pools(name).await, Group::new(name));
        node.add_group().await;
        (node, group)
    }

    /// Adds the pool that is the volume group of the node.
    async fn add_group(&self) {
        self.add_pool(group_pool(&self.name)).await;
        self.driver.ready_pool(&self.name).await;
    }

    async fn add_pool(&self, pool: NodePool) {
        let mut pools = self.driver.storage_node().await.spec.pools;
        pools.push(pool);
        self.driver.set_pools(pools).await;
    }

    /// Makes the agent look at its pools, earlier than its period, by a change that does not matter to them.
    async fn look_again(&self) {
        let mut pools = self.driver.storage_node().await.spec.pools;
        for pool in &mut pools {
            pool.limits.snapshots += 1;
        }
        self.driver.set_pools(pools).await;
    }

    /// The object of a thick ext4 volume.
    fn thick_volume(&self, volume: &str, size: Bytes) -> PoolVolume {
        let mut desired = self.desired_volume(volume, size);
        desired.spec.attributes.provisioning = Provisioning::Thick;
        desired
    }

    /// Waits until the pool has this much reserved.
    async fn until_reserved(&self, reserved: Bytes) -> NodePoolStatus {
        let what = format!("to have reserved {reserved}");
        self.pool_until(&what, |pool| pool.reserved == reserved)
            .await
    }

    /// Waits until the pool has this much room.
    async fn until_room(&self, room: Bytes) {
        let what = format!("to have room for {room}");
        self.pool_until(&what, |pool| pool.thick_room == room).await;
    }

    /// Removes a volume, and checks that its logical volume is gone.
    async fn remove_from(&self, group: &Group, volume: &PoolVolume) {
        self.remove(&volume.name_any()).await;
        let left = group.names();
        assert!(!left.contains(&logical_volume(volume)), "{left:?}");
    }
}

/// The pool of a node that is its volume group.
fn group_pool(node: &str) -> NodePool {
    let source = volume_group_source(&name_for(node));
    node_pool(node, &format!("uid-of-{node}"), source)
}
