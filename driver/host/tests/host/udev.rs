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
    Image, ImageRequest, Pool,
    mounting::Error,
    udev::{HostRule, host_rule},
};
use cistern_types::Bytes;
use rustix::fs::{major, minor};

use crate::{
    encryption::{keys, raw, stage_block},
    harness::{Machine, eventually, has_loops, must, open_new, run},
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
        eventually("udev", || control("--ping"));
        udev
    }
}

/// Sends udev a command; false if it does not answer.
fn control(command: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
    let output = Command::new("udevadm").args(["control", command]).output();
    output.unwrap().status.success()
}

fn set_rule(is_there: bool) {
    let _ = fs::remove_file(PATH);
    if is_there {
        fs::write(PATH, RULE).unwrap();
    }
    assert!(control("--reload"));
    settle();
}

/// Waits until udev has handled all events, and what they have caused.
fn settle() {
    run("udevadm", &["settle", "--timeout", "300"]);
}

impl Drop for Udev {
    fn drop(&mut self) {
        let _ = fs::remove_file(PATH);
        if !control("--exit") {
            let _ = self.daemon.kill();
        }
        let _ = self.daemon.wait();
    }
}

/// A raw block volume, plain or encrypted.
struct Volume<'a> {
    machine: &'a Machine,
    pool: &'a Pool,
    image: Image,
    staging: PathBuf,
}

impl<'a> Volume<'a> {
    fn new(machine: &'a Machine, pool: &'a Pool, is_encrypted: bool) -> Self {
        let request = raw(machine);
        let request = ImageRequest {
            // As that of an object: the rule matches no other name.
            uid: new_uuid().parse().unwrap(),
            size: Bytes::mib(160),
            encryption: request.encryption.filter(|_| is_encrypted),
            ..request
        };
        Self {
            machine,
            pool,
            image: must(pool.create_image(&request)),
            staging: machine.staging("raw"),
        }
    }

    fn stage(&self) {
        let keys = self.image.encryption().map(|_| keys(b'a'));
        must(stage_block(
            self.pool,
            &self.image,
            keys.as_ref(),
            &self.staging,
        ));
        settle();
    }

    fn unstage(&self) -> Result<(), Error> {
        let result = self.machine.root().unstage(&self.staging);
        settle();
        result
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

    /// What udev knows of the device.
    fn properties(&self) -> String {
        run("udevadm", &["info", "--query", "property", &self.device()])
    }
}

fn new_uuid() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    text.trim().to_owned()
}

/// Lets a pod write to plain and encrypted volumes, and attaches them again: with the rule of Cistern the host does nothing.
/// Without it the host acts, which `acts` shows and undoes.
fn check(write: impl Fn(&str), acts: impl Fn(&Volume<'_>)) {
    let _udev = Udev::start();
    for is_encrypted in [false, true] {
        let machine = Machine::new();
        let pool = open_new(&machine);
        let volume = Volume::new(&machine, &pool, is_encrypted);
        set_rule(true);
        volume.stage();
        write(&volume.device());
        must(volume.unstage());

        set_rule(false);
        volume.stage();
        acts(&volume);
        must(volume.unstage());
        has_loops(&machine, 1);

        set_rule(true);
        for _ in 0..3 {
            volume.stage();
            let found = volume.properties();
            assert!(!found.contains("ID_FS_"), "{found}");
            assert!(found.contains("SYSTEMD_READY=0"), "{found}");
            must(volume.unstage());
            has_loops(&machine, 1);
        }
        must(pool.remove_image(&volume.image.uid));
    }
    // The node plugin reports whether the host has the rule.
    for (has_rule, seen) in [(true, HostRule::Installed), (false, HostRule::Missing)] {
        set_rule(has_rule);
        run("udevadm", &["trigger", "--settle", "/dev/loop-control"]);
        assert_eq!(host_rule().unwrap(), seen);
    }
}

#[test]
#[ignore = "needs udev and device-mapper in a machine of its own"]
fn a_volume_group_in_a_raw_block_volume_is_activated_by_the_host_only_without_the_rule() {
    let group = format!("vg{}", std::process::id());
    let lvm = |arguments: &[&str]| {
        run("lvm", &[arguments, &["--config", ALONE]].concat());
    };
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
    check(
        |device| {
            let create = ["--create", "/dev/md50", "--run", "--force", "--level", "1"];
            let of = ["--raid-devices", "1", "--metadata", "1.2", device];
            run("mdadm", &[&create[..], &of[..]].concat());
            run("mdadm", &["--stop", "/dev/md50"]);
        },
        |volume| {
            let error = volume.unstage().unwrap_err();
            let Error::Held { holders, .. } = &error else {
                panic!("{error}");
            };
            assert!(error.to_string().contains("the array md"), "{error}");
            run("mdadm", &["--stop", &format!("/dev/{}", holders[0].name)]);
            settle();
        },
    );
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
            assert!(volume.properties().contains("ID_BTRFS_READY=1"));
            assert!(link.exists(), "the host has a name that the pod has chosen");
            // That fails when the kernel does not know it.
            forget(&volume.device());
        },
    );
    assert!(!link.exists());
}
