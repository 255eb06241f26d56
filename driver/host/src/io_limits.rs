//! Limits of the I/O of volumes, by `io.max` of the cgroup that holds all pods (cgroup v2).
//!
//! A limit of a cgroup holds for the sum of all cgroups below it, so no pod has to be found. It
//! holds for this process, too, which runs in a pod: a limit is removed before work that must end
//! soon, such as an unmount.
//!
//! *Invariant:* only limits of the devices of volumes, and of loop devices that are bound to nothing, are changed. The
//! limit of a loop device outlives its binding; that of a device of device-mapper ends with it.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use cistern_types::{Bytes, IoLimits};

use crate::{
    id::Uid,
    root::Root,
    system::{DeviceNumber, System},
    volume_device,
};

/// Mount point of the cgroup filesystem.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Names of the cgroup that kubelet makes for all pods, by the driver cgroupfs and by systemd.
const ALL_PODS: &str = "kubepods";
const ALL_PODS_SLICE: &str = "kubepods.slice";

/// The cgroup that holds all pods of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoController {
    /// Its file `io.max`.
    file: PathBuf,
}

/// The reason why the limits of volumes cannot be enforced on a node.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The node uses cgroup v1.
    #[error("the node uses cgroup v1, and limits need cgroup v2")]
    Version1,
    /// This process does not run in a cgroup of pods.
    #[error("the node plugin runs in cgroup {own}, which is not below a cgroup kubepods")]
    NoPods {
        /// Path of the process's cgroup.
        own: String,
    },
    /// The cgroup of all pods has no file `io.max`.
    #[error(
        "{} does not exist: the kernel lacks CONFIG_BLK_DEV_THROTTLING, or the controller io is off", file.display()
    )]
    NoController {
        /// The missing file.
        file: PathBuf,
    },
    /// The cgroup of this process cannot be read.
    #[error("the cgroup of the node plugin cannot be read")]
    Unreadable(#[from] io::Error),
}

impl IoController {
    /// Finds the cgroup that holds all pods, above the one of this process. Fails with the reason
    /// why limits cannot be enforced on this node.
    pub fn find() -> Result<Self, Unavailable> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        Self::below(Path::new(CGROUPS), &own)
    }

    /// Finds the cgroup below a mount point of cgroup v2; `own` is the text of `/proc/self/cgroup`
    /// (cgroups(7)). Fails with the reason why limits cannot be enforced.
    pub fn below(mount: &Path, own: &str) -> Result<Self, Unavailable> {
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .filter(|_| mount.join("cgroup.controllers").exists())
            .ok_or(Unavailable::Version1)?;
        let all_pods = Path::new(own).ancestors().find(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name == ALL_PODS || name.ends_with(ALL_PODS_SLICE))
        });
        let all_pods = all_pods.ok_or_else(|| {
            let own = format!("/{own}");
            Unavailable::NoPods { own }
        })?;
        let file = mount.join(all_pods).join("io.max");
        if file.exists() {
            Ok(Self { file })
        } else {
            Err(Unavailable::NoController { file })
        }
    }

    /// Sets the limits of a device and reads them back. Fails if the kernel then reports other
    /// limits.
    fn set(&self, system: &dyn System, device: DeviceNumber, limits: &IoLimits) -> io::Result<()> {
        system.write_io_limits(&self.file, &line(device, limits))?;
        let found = self
            .limits(system)?
            .remove(&device)
            .unwrap_or(IoLimits::NONE);
        if found == *limits {
            return Ok(());
        }
        let why = format!("the kernel has {found} for device {device}, and not {limits}");
        Err(io::Error::other(why))
    }

    /// The limits of all limited devices.
    fn limits(&self, system: &dyn System) -> io::Result<BTreeMap<DeviceNumber, IoLimits>> {
        let text = system.io_limits(&self.file)?;
        let parse_error = |line: &str| io::Error::other(format!("cannot parse {line:?} of io.max"));
        text.lines()
            .map(|line| parse(line).ok_or_else(|| parse_error(line)))
            .collect()
    }
}

/// Returns the line for `io.max` that sets these limits and removes those that are absent.
fn line(device: DeviceNumber, limits: &IoLimits) -> String {
    let mut line = device.to_string();
    for (name, limit) in [
        ("rbps", limits.read_bytes_per_second.map(|bytes| bytes.0)),
        ("wbps", limits.write_bytes_per_second.map(|bytes| bytes.0)),
        ("riops", limits.read_iops),
        ("wiops", limits.write_iops),
    ] {
        let limit = limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
        // Writing to a String cannot fail.
        let _ = write!(line, " {name}={limit}");
    }
    line
}

fn parse(line: &str) -> Option<(DeviceNumber, IoLimits)> {
    let mut words = line.split_whitespace();
    let device = DeviceNumber::parse(words.next()?)?;
    let mut limits = IoLimits::NONE;
    for word in words {
        let (name, value) = word.split_once('=')?;
        let value = match value {
            "max" => None,
            value => Some(value.parse().ok()?),
        };
        match name {
            "rbps" => limits.read_bytes_per_second = value.map(Bytes),
            "wbps" => limits.write_bytes_per_second = value.map(Bytes),
            "riops" => limits.read_iops = value,
            "wiops" => limits.write_iops = value,
            _ => {}
        }
    }
    Some((device, limits))
}

impl Root {
    /// Sets the limits of the attached images among `wanted`, and removes those of loop devices
    /// that are bound to nothing. Returns the errors by image. Fails if the current limits or the
    /// loop devices cannot be read, or if limits cannot be removed.
    pub fn limit_io(
        &self,
        controller: &IoController,
        wanted: &HashMap<Uid, IoLimits>,
    ) -> io::Result<HashMap<Uid, io::Error>> {
        let system = &*self.system;
        let mut present = controller.limits(system)?;
        let mut failed = HashMap::new();
        for volume in volume_device::list(system)? {
            // The limits of a mapping end with it.
            let device = volume.topmost(system)?;
            let found = present.remove(&device).unwrap_or(IoLimits::NONE);
            if let Some(limits) = wanted.get(&volume.image)
                && *limits != found
                && let Err(error) = controller.set(system, device, limits)
            {
                failed.insert(volume.image, error);
            }
        }
        for foreign in volume_device::foreign(system)? {
            present.remove(&foreign);
        }
        for device in present.into_keys().filter(|it| it.as_loop().is_some()) {
            controller.set(system, device, &IoLimits::NONE)?;
        }
        Ok(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder like cgroup v2 with these cgroups, each with a file `io.max`.
    fn cgroups(paths: &[&str]) -> tempfile::TempDir {
        let mount = tempfile::tempdir().unwrap();
        fs::write(mount.path().join("cgroup.controllers"), "io").unwrap();
        for path in paths {
            fs::create_dir_all(mount.path().join(path)).unwrap();
            fs::write(mount.path().join(path).join("io.max"), "").unwrap();
        }
        mount
    }

    #[test]
    fn the_cgroup_of_all_pods_is_found_with_each_cgroup_driver() {
        for (path, own) in [
            ("kubepods", "0::/kubepods/burstable/pod1/c1\n"),
            ("kubelet/kubepods", "0::/kubelet/kubepods/pod1/c1\n"),
            (
                "kubepods.slice",
                "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-1.scope\n",
            ),
            (
                "kubelet.slice/kubelet-kubepods.slice",
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice/cri-1.scope\n",
            ),
        ] {
            let mount = cgroups(&[path]);
            let found = IoController::below(mount.path(), own).unwrap();
            assert_eq!(found.file, mount.path().join(path).join("io.max"));
        }
    }

    #[test]
    fn the_reason_why_limits_are_not_enforced_is_named() {
        let mount = cgroups(&[]);
        let why = |own: &str| {
            let error = IoController::below(mount.path(), own).unwrap_err();
            error.to_string()
        };
        assert!(why("12:blkio:/kubepods/pod1\n1:name=systemd:/\n").contains("cgroup v1"));
        assert!(why("0::/system.slice/cistern.service\n").contains("/system.slice"));
        assert!(why("0::/kubepods/pod1\n").contains("kubepods/io.max"));
    }

    #[test]
    fn limits_are_written_and_read_in_the_format_of_the_kernel() {
        let device = DeviceNumber::of_loop(3);
        let limits = IoLimits {
            write_iops: Some(200),
            read_bytes_per_second: Some(Bytes::mib(1)),
            ..IoLimits::NONE
        };
        let text = "7:3 rbps=1048576 wbps=max riops=max wiops=200";
        assert_eq!(line(device, &limits), text);
        assert_eq!(parse(text), Some((device, limits)));
        assert_eq!(parse("7:x rbps=1"), None);
    }
}
