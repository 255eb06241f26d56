//! The commands of lvm(8).
//!
//! *Invariants:* a command names the devices that it may read, so that no label of a volume group that a pod has written
//! to a raw block volume is seen. No command is killed.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use cistern_types::Bytes;

use super::report::{self, Report};
use crate::{
    cause::Cause,
    command::{Command, Output},
    pool::own_file,
    root::Root,
    system::{LOGICAL_VOLUME, MAPPING, MAPPING_UUID, OFlags, System},
};

/// The program of all commands.
pub(super) const PROGRAM: &str = "lvm";
/// How long to wait for a command, of which each waits for the one before it on the same machine.
const DEADLINE: Duration = Duration::from_secs(50);
/// Some hundred bytes for each of some thousand volumes.
const OUTPUT: Bytes = Bytes::mib(8);
/// Settings that differ from those of the host: LVM neither waits for udev, which may be missing, nor writes files of its
/// own or starts a daemon, and clears no part of a device (`issue_discards` would, where a volume was).
const CONFIG: &str = "devices { use_devicesfile=0 hints=\"none\" obtain_device_list_from_udev=0 \
    external_device_info_source=\"none\" scan_lvs=0 issue_discards=0 } \
    global { event_activation=0 use_lvmpolld=0 notify_dbus=0 } \
    activation { udev_sync=0 udev_rules=0 verify_udev_operations=0 monitoring=0 } \
    backup { backup=0 archive=0 }";

/// How to call LVM for one group.
#[derive(Debug)]
pub(super) struct Lvm {
    /// The devices that it may read, separated by commas.
    devices: OsString,
    /// An empty input.
    input: OwnedFd,
}

impl Lvm {
    /// Finds the devices that can belong to a volume group. Others are in a pool, or are logical volumes themselves.
    pub(super) fn new(root: &Root) -> io::Result<Self> {
        let system = &*root.system;
        let mut not_searched = system.mapped_devices()?;
        not_searched.retain(|device| device.mapping.uuid.as_deref().is_some_and(is_not_searched));
        let mut paths: Vec<PathBuf> = Vec::new();
        for (name, number) in system.block_devices()? {
            let is_memory = name.starts_with("ram") || name.starts_with("zram");
            let mut not_searched = not_searched.iter();
            if !is_memory
                && !not_searched.any(|device| device.number == number)
                && own_file(root, number)?.is_none()
            {
                paths.push(system.device_path(&name, number)?);
            }
        }
        let mut devices = OsString::new();
        for path in paths {
            if !devices.is_empty() {
                devices.push(",");
            }
            devices.push(path);
        }
        let input = system.open("/dev/null".as_ref(), OFlags::RDONLY)?;
        Ok(Self { devices, input })
    }

    /// A command without its arguments.
    pub(super) fn command(&self, verb: &'static str) -> Command {
        Command::new(PROGRAM, DEADLINE)
            .never_killed()
            .keeping(OUTPUT)
            .arg(verb)
            .option("--config", CONFIG)
            .option("--devices", self.devices.clone())
    }

    /// Runs a command that must succeed.
    pub(super) fn run(&self, system: &dyn System, command: &Command) -> Result<Output, Cause> {
        let output = system.run(command, self.input.as_fd())?;
        match output.exit {
            Some(0) => Ok(output),
            _ => Err(command.failed(&output).into()),
        }
    }

    /// Runs a command that lists rows of one kind, of a group or of a logical volume.
    pub(super) fn report<T: Report>(&self, system: &dyn System, of: &str) -> Result<Vec<T>, Cause> {
        let output = self.run(system, &self.reporting::<T>().operand(of))?;
        Ok(report::parse(&output.stdout)?)
    }

    /// Lists all rows of one kind. If LVM could not read all of them, those that it has read, and why.
    pub(super) fn report_all<T: Report>(
        &self,
        system: &dyn System,
    ) -> Result<(Vec<T>, Option<Cause>), Cause> {
        let command = self.reporting::<T>();
        let output = system.run(&command, self.input.as_fd())?;
        let failure = (output.exit != Some(0)).then(|| Cause::from(command.failed(&output)));
        match (report::parse(&output.stdout), failure) {
            (Ok(rows), failure) => Ok((rows, failure)),
            (Err(_), Some(failure)) => Err(failure),
            (Err(error), None) => Err(error.into()),
        }
    }

    fn reporting<T: Report>(&self) -> Command {
        self.command(T::VERB)
            .option("--reportformat", "json")
            .option("--units", "b")
            .arg("--nosuffix")
            .option("--options", T::FIELDS)
    }
}

/// Whether a device with this UUID is a logical volume, or a mapping of an encrypted image, in which a pod writes.
fn is_not_searched(uuid: &str) -> bool {
    let of_image = format!("-{MAPPING}");
    uuid.starts_with(LOGICAL_VOLUME) || uuid.starts_with(MAPPING_UUID) && uuid.contains(&of_image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_searched_on_mappings_of_the_host_and_not_on_those_of_volumes() {
        for (uuid, expected) in [
            ("CRYPT-LUKS2-0123-cistern-u-1", true),
            ("LVM-abc", true),
            ("CRYPT-LUKS2-0123-root", false),
            ("mpath-3600", false),
            ("part1-mpath-3600", false),
        ] {
            assert_eq!(is_not_searched(uuid), expected, "{uuid}");
        }
    }
}
