//! The rules of the host: what a pod writes to a raw block volume must not make the host use the device.
//!
//! These tests run udev with the rules of Debian, which act on every device of the machine. So they run alone, in a
//! virtual machine of their own.

use std::{
    fs,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::PathBuf,
    process::{Child, Command},
    sync::{Mutex, MutexGuard, PoisonError},
};

use cistern_host::{
    Image,
    mounting::Error,
    udev::{HostRule, host_rule},
};
use cistern_types::Bytes;
use rustix::{
    fs::{major, minor},
    process::{Pid, Signal, kill_process},
};

use crate::{
    block::Mapped,
    engines::fixture::Fixture,
    harness::{eventually, has_loops, must, run},
};

/// What administrators copy to their nodes.
const RULE: &str = include_str!("../../../../manifests/udev/12-cistern.rules");
const PATH: &str = "/etc/udev/rules.d/12-cistern.rules";
/// LVM acts as on a machine without udev, so that the test alone writes the label.
const ALONE: &str =
    "activation { udev_sync=0 udev_rules=0 } devices { obtain_device_list_from_udev=0 }";
/// One after the other: udev acts on the devices of all.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// udev with the rules of Debian, and with that of Cistern or without it.
struct Udev {
    daemon: Child,
    _alone: MutexGuard<'static, ()>,
}

impl Udev {
    /// Starts it outside of the mount namespace of the test, as on a host.
    fn start() -> Self {
        let alone = ONE_AT_A_TIME.lock();
        run("modprobe", &["-a", "dm_mod", "raid1"]);
        fs::create_dir_all("/etc/udev/rules.d").unwrap();
        #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
        let daemon = Command::new("udevadm").arg0("systemd-udevd").spawn();
        let udev = Self {
            daemon: daemon.unwrap(),
            _alone: alone.unwrap_or_else(PoisonError::into_inner),
        };
        eventually("udev", is_running);
        udev
    }

    /// Sends it a signal. On a busy machine it loses commands: it ignores what is sent between its accept(2) of a connection and
    /// its request for the sender's credentials.
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.daemon), signal).unwrap();
    }

    fn set_rule(&self, is_there: bool) {
        let _ = fs::remove_file(PATH);
        if is_there {
            fs::write(PATH, RULE).unwrap();
        }
        self.signal(Signal::HUP);
        settle();
    }
}

fn is_running() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
    let output = Command::new("udevadm").args(["control", "--ping"]).output();
    output.unwrap().status.success()
}

/// Waits until udev has handled all events, and what they have caused.
fn settle() {
    run("udevadm", &["settle", "--timeout", "300"]);
}

impl Drop for Udev {
    fn drop(&mut self) {
        let _ = fs::remove_file(PATH);
        self.signal(Signal::TERM);
        let _ = self.daemon.wait();
    }
}

/// A raw block volume, with what kubelet has of it.
struct Volume<'a> {
    fixture: &'a Fixture,
    image: Image,
    staging: PathBuf,
}

impl<'a> Volume<'a> {
    fn new(fixture: &'a Fixture) -> Self {
        // As that of an object: the rule matches no other name.
        let uid = new_uuid().parse().unwrap();
        Self {
            fixture,
            image: fixture.create_as(uid, "raw", Bytes::mib(160), None),
            staging: fixture.machine.staging("raw"),
        }
    }

    /// Stages it, which makes its device.
    fn stage(&self) {
        must(self.fixture.stage_block(&self.image, &self.staging));
        settle();
    }

    /// Unstages it, and ends its device.
    fn unstage(&self) -> Result<(), Error> {
        let result = self.fixture.machine.root().unstage(&self.staging);
        settle();
        if result.is_ok() && self.fixture.engine.images().is_none() {
            // As a reboot does: a logical volume stays active.
            set_active(self.fixture, &format!("cistern-{}", self.image.uid), false);
        }
        result
    }

    fn remove(self) {
        must(self.fixture.engine.remove(&self.image.uid));
        settle();
    }

    /// The device as the host knows it.
    fn device(&self) -> String {
        let node = fs::metadata(self.staging.join(self.image.uid.as_str())).unwrap();
        let kind = if major(node.rdev()) == 7 {
            "loop"
        } else {
            "dm-"
        };
        format!("/dev/{kind}{}", minor(node.rdev()))
    }
}

/// Activates a logical volume of a group, or deactivates it.
fn set_active(fixture: &Fixture, name: &str, is_active: bool) {
    let to = if is_active { "y" } else { "n" };
    let path = fixture.engine.path().join(name);
    lvm(&["lvchange", "--activate", to, path.to_str().unwrap()]);
    settle();
}

/// What udev knows of a device.
fn properties(device: &str) -> String {
    run("udevadm", &["info", "--query", "property", device])
}

/// udev has not looked at what is on a device.
#[track_caller]
fn is_not_examined(device: &str) {
    let found = properties(device);
    assert!(!found.contains("ID_FS_"), "{found}");
    assert!(found.contains("SYSTEMD_READY=0"), "{found}");
}

fn lvm(arguments: &[&str]) {
    run("lvm", &[arguments, &["--config", ALONE]].concat());
}

fn new_uuid() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    text.trim().to_owned()
}

/// Lets a pod write to plain and encrypted volumes, and attaches them again: with the rule of Cistern the host does nothing.
/// Without it the host acts, which `acts` shows and undoes.
fn check(write: impl Fn(&str), acts: impl Fn(&Volume<'_>)) {
    let udev = Udev::start();
    check_with(&udev, &Fixture::images(), &write, &acts);
    check_with(&udev, &Fixture::images().encrypted(), &write, &acts);
    // The node plugin reports whether the host has the rule.
    for (has_rule, seen) in [(true, HostRule::Installed), (false, HostRule::Missing)] {
        udev.set_rule(has_rule);
        run("udevadm", &["trigger", "--settle", "/dev/loop-control"]);
        assert_eq!(host_rule().unwrap(), seen);
    }
}

/// As [`check`], with one volume.
fn check_with(udev: &Udev, fixture: &Fixture, write: impl Fn(&str), acts: impl Fn(&Volume<'_>)) {
    let machine = &fixture.machine;
    let loops = machine.inventory().loops.len();
    let volume = Volume::new(fixture);
    udev.set_rule(true);
    volume.stage();
    write(&volume.device());
    must(volume.unstage());

    udev.set_rule(false);
    volume.stage();
    acts(&volume);
    // The rule is installed while the volume is attached.
    udev.set_rule(true);
    run("udevadm", &["trigger", "--settle", &volume.device()]);
    is_not_examined(&volume.device());
    must(volume.unstage());
    has_loops(machine, loops);

    for _ in 0..3 {
        volume.stage();
        is_not_examined(&volume.device());
        must(volume.unstage());
        has_loops(machine, loops);
    }
    volume.remove();
}

/// Writes the superblock of an array of one disk.
fn write_array(device: &str) {
    let create = ["--create", "/dev/md50", "--run", "--force", "--level", "1"];
    let of = ["--raid-devices", "1", "--metadata", "1.2", device];
    run("mdadm", &[&create[..], &of[..]].concat());
    run("mdadm", &["--stop", "/dev/md50"]);
}

/// The host has assembled an array, which keeps the volume staged until it is stopped.
fn is_assembled(volume: &Volume<'_>) {
    let error = volume.unstage().unwrap_err();
    let Error::Held { holders, .. } = &error else {
        panic!("{error}");
    };
    assert!(error.to_string().contains("the array md"), "{error}");
    run("mdadm", &["--stop", &format!("/dev/{}", holders[0].name)]);
    settle();
}

#[test]
#[ignore = "needs udev and device-mapper in a machine of its own"]
fn a_volume_group_in_a_raw_block_volume_is_activated_by_the_host_only_without_the_rule() {
    let group = format!("vg{}", std::process::id());
    check(
        |device| {
            lvm(&["pvcreate", "-ff", "-y", device]);
            lvm(&["vgcreate", &group, device]);
            let rest = [
                "lvcreate", "-y", "-an", "-Zn", "-Wn", "-l", "100%FREE", "-n", "data",
            ];
            lvm(&[&rest[..], &[&group]].concat());
        },
        |volume| {
            let error = volume.unstage().unwrap_err();
            let holder = format!("the logical volume {group}-data (dm-");
            assert!(error.to_string().contains(&holder), "{error}");
            lvm(&["vgchange", "-an", &group]);
            settle();
        },
    );
}

#[test]
#[ignore = "needs udev and device-mapper in a machine of its own"]
fn an_array_in_a_raw_block_volume_is_assembled_by_the_host_only_without_the_rule() {
    check(write_array, is_assembled);
}

#[test]
#[ignore = "needs udev and device-mapper in a machine of its own"]
fn an_array_in_a_logical_volume_is_assembled_by_the_host_only_without_the_rule() {
    let udev = Udev::start();
    let fixture = Fixture::logical_volumes();
    check_with(&udev, &fixture, write_array, is_assembled);
    // The rule is there, and the host knows what is in its own logical volumes, but not in one that an expansion makes.
    let growth = format!("cistern-{}-growth", new_uuid());
    for (name, is_known) in [("data", true), ("cistern-data", true), (&growth, false)] {
        let group = fixture.engine.path();
        let of = ["--name", name, group.to_str().unwrap()];
        let own = ["lvcreate", "--yes", "-Wn", "-Zn", "--extents", "4"];
        lvm(&[&own[..], &of].concat());
        let (uuid, device) = (new_uuid(), group.join(name));
        run("mkfs.ext4", &["-q", "-U", &uuid, device.to_str().unwrap()]);
        settle();
        set_active(&fixture, name, false);
        set_active(&fixture, name, true);
        let link = format!("/dev/disk/by-uuid/{uuid}");
        assert_eq!(fs::exists(link).unwrap(), is_known, "{name}");
    }
}

#[test]
#[ignore = "needs udev and device-mapper in a machine of its own"]
fn an_array_is_assembled_on_the_loop_device_of_kubelet_only_without_the_rule() {
    let udev = Udev::start();
    for fixture in [Fixture::images, Fixture::logical_volumes] {
        let fixture = fixture();
        let volume = Volume::new(&fixture);
        // Nothing has examined the volume's own device.
        udev.set_rule(true);
        volume.stage();
        write_array(&volume.device());
        let target = fixture.start_block_pod(&volume.image, &volume.staging);
        for has_rule in [false, true] {
            udev.set_rule(has_rule);
            let mapped = Mapped::new(&fixture.machine, &target);
            settle();
            let holders = mapped.lock.replace("/dev", "/sys/block") + "/holders";
            let holders = fs::read_dir(holders).unwrap();
            let holders: Vec<_> = holders.map(|it| it.unwrap().file_name()).collect();
            if has_rule {
                assert!(holders.is_empty(), "{holders:?}");
                is_not_examined(&mapped.lock);
            } else {
                assert_eq!(holders.len(), 1, "{}", properties(&mapped.lock));
                let array = format!("/dev/{}", holders[0].display());
                run("mdadm", &["--stop", &array]);
                settle();
            }
            mapped.end();
        }
        must(fixture.machine.root().unpublish(&target));
        must(volume.unstage());
        volume.remove();
    }
}

#[test]
#[ignore = "needs udev and device-mapper in a machine of its own"]
fn a_btrfs_in_a_raw_block_volume_is_registered_by_the_host_only_without_the_rule() {
    let uuid = new_uuid();
    let link = PathBuf::from(format!("/dev/disk/by-uuid/{uuid}"));
    let forget = |device: &str| run("btrfs", &["device", "scan", "--forget", device]);
    check(
        |device| {
            run("mkfs.btrfs", &["-q", "-f", "--uuid", &uuid, device]);
            forget(device);
            assert!(!link.exists());
        },
        |volume| {
            assert!(properties(&volume.device()).contains("ID_BTRFS_READY=1"));
            assert!(link.exists(), "the host has a name that the pod has chosen");
            // That fails when the kernel does not know it.
            forget(&volume.device());
        },
    );
    assert!(!link.exists());
}
