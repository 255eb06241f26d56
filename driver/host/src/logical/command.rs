//! The commands of lvm(8).
//!
//! ```text
//! all devices           to open a group, and to look for copies of its disks and for new ones before it is changed
//! the disks of a group  to read it; for everything while a look at all devices waits for one that does not answer
//! ```
//!
//! *Invariants:* a command names the devices that it may read, so that no label of a volume group that a pod has written
//! to a raw block volume is seen. No command is killed. While one is left that waits for a device, no other is started that
//! would wait for the same.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cistern_types::Bytes;

use super::report::{self, Report};
use crate::{
    cause::Cause,
    command::{Command, Output},
    pool::is_own_file,
    root::Root,
    system::{
        DeviceNumber, LOGICAL_VOLUME, MAPPING, MAPPING_UUID, MappingName, OFlags, StackedDevice,
    },
};

/// The program of all commands.
pub(super) const PROGRAM: &str = "lvm";
/// How long to wait for a command, of which each waits for the one before it on the same machine.
const DEADLINE: Duration = Duration::from_secs(90);
/// How long to wait for a look at all devices, of which one may not answer.
const LOOK: Duration = Duration::from_secs(5);
/// Some hundred bytes for each of some thousand volumes.
const OUTPUT: Bytes = Bytes::mib(8);
/// Settings that differ from those of the host: LVM neither waits for udev, which may be missing, nor writes files of its
/// own or starts a daemon, and clears no part of a device (`issue_discards` would, where a volume was).
const CONFIG: &str = "devices { use_devicesfile=0 hints=\"none\" obtain_device_list_from_udev=0 \
    external_device_info_source=\"none\" scan_lvs=0 issue_discards=0 } \
    global { event_activation=0 use_lvmpolld=0 notify_dbus=0 } \
    activation { udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0 } \
    backup { backup=0 archive=0 }";

/// How to call LVM.
#[derive(Clone, Debug)]
pub(super) struct Lvm {
    root: Root,
    /// An empty input.
    input: Arc<OwnedFd>,
    /// The devices that a command may read; none for all that can belong to a group.
    only: Option<BTreeSet<DeviceNumber>>,
    /// While a command of this name is left that still runs, no other one is started.
    name: String,
    deadline: Duration,
}

impl Lvm {
    /// For commands that may read all devices.
    pub(super) fn new(root: &Root) -> io::Result<Self> {
        let input = root.system.open("/dev/null".as_ref(), OFlags::RDONLY)?;
        Ok(Self {
            root: root.clone(),
            input: Arc::new(input),
            only: None,
            name: PROGRAM.to_owned(),
            deadline: DEADLINE,
        })
    }

    /// For a look at all devices, which is not waited for long.
    pub(super) fn looking(&self) -> Self {
        Self {
            name: format!("{PROGRAM} that looks at all devices"),
            deadline: LOOK,
            ..self.clone()
        }
    }

    /// For commands of one group, which may read all devices.
    pub(super) fn of_group(&self, group: &str) -> Self {
        Self {
            name: format!("{PROGRAM} of {group}"),
            ..self.clone()
        }
    }

    /// For commands that may read these devices alone, as long as one of them is there.
    pub(super) fn only(self, disks: BTreeSet<DeviceNumber>) -> Self {
        Self {
            only: Some(disks),
            ..self
        }
    }

    /// The folder of Cistern on the host whose groups the commands change.
    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    /// A command without its arguments.
    pub(super) fn command(&self, verb: &'static str) -> Command {
        Command::new(PROGRAM, self.deadline)
            .keeping(OUTPUT)
            .arg(verb)
            .option("--config", CONFIG)
    }

    /// Runs a command that must succeed.
    pub(super) fn run(&self, command: &Command) -> Result<Output, Cause> {
        let output = self.start(command)?;
        match output.exit {
            Some(0) => Ok(output),
            _ => Err(command.failed(&output).into()),
        }
    }

    /// Runs a command. It may read the devices that are there now: LVM takes a disk of a group that it may not read for a
    /// missing one.
    fn start(&self, command: &Command) -> Result<Output, Cause> {
        let command = command.clone().option("--devices", self.devices()?);
        let command = command.never_killed(&self.name);
        Ok(self.root.system.run(&command, self.input.as_fd())?)
    }

    /// The devices that a command may read, separated by commas.
    fn devices(&self) -> io::Result<OsString> {
        let all = self.root.system.stacked_devices()?;
        if let Some(only) = &self.only {
            let found = searched(&self.root, &all, |number| only.contains(&number));
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(searched(&self.root, &all, |_| true))
    }

    /// Runs a command that lists rows of one kind, of a group or of a logical volume.
    pub(super) fn report<T: Report>(&self, of: &str) -> Result<Vec<T>, Cause> {
        Ok(self.report_with_warnings(of)?.0)
    }

    /// As [`Self::report`], with what LVM warns of.
    pub(super) fn report_with_warnings<T: Report>(
        &self,
        of: &str,
    ) -> Result<(Vec<T>, String), Cause> {
        let output = self.run(&self.reporting::<T>().operand(of))?;
        Ok((report::parse(&output.stdout)?, output.stderr))
    }

    /// Lists all rows of one kind. If LVM could not read all of them, those that it has read, and why.
    pub(super) fn report_all<T: Report>(&self) -> Result<(Vec<T>, Option<Cause>), Cause> {
        let command = self.reporting::<T>();
        let output = self.start(&command)?;
        let failure = (output.exit != Some(0)).then(|| Cause::from(command.failed(&output)));
        match (report::parse(&output.stdout), failure) {
            (Ok(rows), failure) => Ok((rows, failure)),
            (Err(_), Some(failure)) => Err(failure),
            (Err(error), None) => Err(error.into()),
        }
    }

    /// Makes durable what LVM has written to these disks: it only writes, and a disk may keep that in a cache.
    pub(super) fn flush<'a>(&self, disks: impl IntoIterator<Item = &'a PathBuf>) -> io::Result<()> {
        let system = &*self.root.system;
        for disk in disks {
            let opened = system.open_following(disk, OFlags::RDONLY)?;
            system.sync(opened.as_fd())?;
        }
        Ok(())
    }

    fn reporting<T: Report>(&self) -> Command {
        self.command(T::VERB)
            .option("--reportformat", "json")
            .option("--units", "b")
            .arg("--nosuffix")
            .option("--options", T::FIELDS)
    }
}

/// The devices of these numbers that can belong to a volume group, separated by commas: neither logical volumes, nor
/// devices with the data of a volume of Cistern, in which a pod writes, nor what is built on these.
fn searched(
    root: &Root,
    all: &[StackedDevice],
    is_wanted: impl Fn(DeviceNumber) -> bool,
) -> OsString {
    let with_data = |device: &&StackedDevice| has_volume(root, device);
    let mut excluded: BTreeSet<DeviceNumber> =
        all.iter().filter(with_data).map(|it| it.number).collect();
    loop {
        let is_above = |device: &&StackedDevice| {
            let mut beneath = device.beneath.iter();
            !excluded.contains(&device.number) && beneath.any(|it| excluded.contains(it))
        };
        let above: Vec<DeviceNumber> = all.iter().filter(is_above).map(|it| it.number).collect();
        if above.is_empty() {
            break;
        }
        excluded.extend(above);
    }
    let mut devices = OsString::new();
    for device in all.iter().filter(|device| is_wanted(device.number)) {
        let is_memory = device.name.starts_with("ram") || device.name.starts_with("zram");
        if is_memory || is_logical_volume(device) || excluded.contains(&device.number) {
            continue;
        }
        if !devices.is_empty() {
            devices.push(",");
        }
        devices.push(&device.path);
    }
    devices
}

/// Whether a device has the data of a volume of Cistern, or of a file of it.
fn has_volume(root: &Root, device: &StackedDevice) -> bool {
    let is_device = |file: &Path| {
        // kubelet binds a loop device to the node of each raw block volume, in a folder of this name.
        file.starts_with("/dev") || file.iter().any(|part| part == "volumeDevices")
    };
    let in_file = |file: &PathBuf| is_own_file(root, file) || is_device(file);
    let uuid = device.mapping.as_ref().and_then(|it| it.uuid.as_deref());
    let of_image = format!("-{MAPPING}");
    let is_mapping =
        uuid.is_some_and(|uuid| uuid.starts_with(MAPPING_UUID) && uuid.contains(&of_image));
    let logical = device
        .mapping
        .as_ref()
        .and_then(MappingName::logical_volume);
    let is_volume = logical.is_some_and(|name| name.starts_with(MAPPING));
    device.backing_file.as_ref().is_some_and(in_file) || is_mapping || is_volume
}

fn is_logical_volume(device: &StackedDevice) -> bool {
    let uuid = device.mapping.as_ref().and_then(|it| it.uuid.as_deref());
    uuid.is_some_and(|uuid| uuid.starts_with(LOGICAL_VOLUME))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::system::Linux;

    fn root() -> Root {
        Root::new("/var/lib/cistern", Arc::new(Linux::new("/run/cistern")))
    }

    /// The UUID of a logical volume.
    fn logical() -> String {
        format!("{LOGICAL_VOLUME}{}", "a".repeat(64))
    }

    fn device(minor: u32, path: &str) -> StackedDevice {
        StackedDevice {
            name: path.trim_start_matches("/dev/").to_owned(),
            number: DeviceNumber { major: 8, minor },
            path: path.into(),
            ..StackedDevice::default()
        }
    }

    fn mapped(minor: u32, name: &str, uuid: &str) -> StackedDevice {
        StackedDevice {
            mapping: Some(MappingName {
                name: name.to_owned(),
                uuid: Some(uuid.to_owned()),
            }),
            ..device(minor, &format!("/dev/dm-{minor}"))
        }
    }

    fn bound(minor: u32, file: &str) -> StackedDevice {
        StackedDevice {
            backing_file: Some(file.into()),
            ..device(minor, &format!("/dev/loop{minor}"))
        }
    }

    fn on(beneath: u32, device: StackedDevice) -> StackedDevice {
        let beneath = vec![DeviceNumber {
            major: 8,
            minor: beneath,
        }];
        StackedDevice { beneath, ..device }
    }

    #[test]
    fn groups_are_searched_on_devices_of_the_host_and_not_on_those_in_which_a_pod_writes() {
        let root = root();
        let uid = "11111111-2222-3333-4444-555555555555";
        let searched = |device: &StackedDevice| {
            let one = std::slice::from_ref(device);
            !searched(&root, one, |_| true).is_empty()
        };
        for device in [
            device(1, "/dev/sda"),
            bound(1, "/srv/disk.img"),
            mapped(1, "root", "CRYPT-LUKS2-0123-root"),
            mapped(1, "mpatha", "mpath-3600"),
            mapped(1, "mpatha1", "part1-mpath-3600"),
        ] {
            assert!(searched(&device), "{device:?}");
        }
        for device in [
            device(1, "/dev/ram0"),
            device(1, "/dev/zram0"),
            bound(1, &format!("/var/lib/cistern/pools/p/images/{uid}")),
            bound(1, &format!("/x/images/{uid}")),
            bound(1, "/dev/sdb"),
            bound(
                1,
                &format!("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pv/dev/{uid}"),
            ),
            mapped(
                1,
                &format!("cistern-{uid}"),
                &format!("CRYPT-LUKS2-0123-cistern-{uid}"),
            ),
            mapped(1, "vg-data", &logical()),
            mapped(1, "vg-cistern--11111111--2222", &logical()),
        ] {
            assert!(!searched(&device), "{device:?}");
        }
    }

    #[test]
    fn groups_are_not_searched_on_what_is_built_on_the_device_of_a_volume() {
        let root = root();
        let all = [
            on(4, mapped(5, "deep", "CRYPT-PLAIN-deep")),
            on(3, mapped(4, "vg-cistern--1p1", "part1-LVM-abc")),
            mapped(3, "vg-cistern--1", &logical()),
            // A host may have a group on an encrypted logical volume.
            mapped(6, "vg-root", &logical()),
            on(6, mapped(7, "root", "CRYPT-LUKS2-0123-root")),
            device(1, "/dev/sda"),
            on(1, device(2, "/dev/sda1")),
        ];
        let found = searched(&root, &all, |_| true);
        assert_eq!(found, "/dev/dm-7,/dev/sda,/dev/sda1");
        // The number of a disk can belong to the device of a volume by now.
        let found = searched(&root, &all, |number| [1, 3, 6].contains(&number.minor));
        assert_eq!(found, "/dev/sda");
    }
}
