//! Reads the kernel's tables of loop devices, mounts, and filesystem error counters.

use std::{
    io,
    path::{Path, PathBuf},
};

use cistern_types::FilesystemType;

use super::{VolumeSubject, VolumeTrouble};
use crate::{
    device_nodes,
    id::Uid,
    image::Content,
    system::{DeviceNumber, Mount, System},
    volume_device::{self, VolumeDevice},
};

/// The current devices of images, and the current mounts.
#[derive(Debug)]
pub(super) struct Attachments {
    devices: Vec<Device>,
    /// The bind mounts of device nodes, each with the number that identifies its volume.
    nodes: Vec<(DeviceNumber, Mount)>,
    mounts: Vec<Mount>,
}

/// The device of an image.
#[derive(Debug)]
struct Device {
    volume: VolumeDevice,
    /// The device that a pod uses.
    topmost: DeviceNumber,
    is_read_only: bool,
}

impl Attachments {
    /// Reads the current tables.
    pub(super) fn read(system: &dyn System) -> io::Result<Self> {
        let mut devices = Vec::new();
        for volume in volume_device::list(system)? {
            let topmost = volume.topmost(system)?;
            match system.is_read_only(topmost) {
                Ok(is_read_only) => devices.push(Device {
                    volume,
                    topmost,
                    is_read_only,
                }),
                // The device was detached.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mounts = system.mounts()?;
        Ok(Self {
            devices,
            nodes: device_nodes::nodes_among(system, &mounts, |_| true)?,
            mounts,
        })
    }

    /// Mounts of the root of a device's filesystem.
    fn mounts_of(&self, device: &VolumeDevice) -> impl Iterator<Item = &Mount> {
        let mounts = self.mounts.iter();
        mounts.filter(|mount| mount.is_whole(device.number))
    }

    fn nodes_of(&self, number: DeviceNumber) -> impl Iterator<Item = &Mount> {
        let nodes = self.nodes.iter();
        nodes.filter_map(move |(found, mount)| (*found == number).then_some(mount))
    }

    fn devices_of(&self, image: &Uid) -> impl Iterator<Item = &Device> {
        self.devices
            .iter()
            .filter(move |device| device.volume.image == *image)
    }

    /// Mount point of a volume with an XFS.
    pub(super) fn xfs_of(&self, volume: &VolumeSubject<'_>) -> Option<PathBuf> {
        if volume.content.filesystem() != Some(FilesystemType::Xfs) {
            return None;
        }
        let mut devices = self.devices_of(volume.image);
        let mount = devices.find_map(|device| self.mounts_of(&device.volume).next())?;
        Some(mount.mount_point.clone())
    }

    /// The troubles of a volume according to the kernel's tables.
    pub(super) fn examine(
        &self,
        system: &dyn System,
        volume: &VolumeSubject<'_>,
    ) -> Vec<VolumeTrouble> {
        let mut troubles = Vec::new();
        self.find_lost_nodes(volume, &mut troubles);
        for device in self.devices_of(volume.image) {
            let name = volume_device::path_of(device.volume.number);
            if device.volume.is_deleted {
                troubles.push(VolumeTrouble::ImageDeleted {
                    device: name.clone(),
                });
            }
            let mounts: Vec<&Mount> = match volume.content {
                Content::Filesystem { .. } => self.mounts_of(&device.volume).collect(),
                Content::Block => self.nodes_of(device.volume.number).collect(),
            };
            let mut writable = mounts.iter().filter(|mount| !mount.has("ro"));
            if device.is_read_only
                && let Some(mount) = writable.next()
            {
                troubles.push(VolumeTrouble::DeviceReadOnly {
                    device: name,
                    path: mount.mount_point.clone(),
                });
            }
            // A logical volume stays active when it is unstaged.
            if device.volume.path.is_some() || !mounts.is_empty() {
                troubles.extend(missing_mount(volume, &mounts));
            }
            troubles.extend(examine_filesystem(
                system,
                volume.content,
                device.topmost,
                &mounts,
            ));
        }
        troubles
    }

    /// A node at a staging path, which contains the image's name, remains after its device is detached.
    fn find_lost_nodes(&self, volume: &VolumeSubject<'_>, troubles: &mut Vec<VolumeTrouble>) {
        for (number, node) in &self.nodes {
            let is_bound = || {
                self.devices_of(volume.image)
                    .any(|device| device.volume.number == *number)
            };
            if device_nodes::is_staging(node, volume.image) && !is_bound() {
                troubles.push(VolumeTrouble::DeviceMissing {
                    device: volume_device::path_of(*number),
                    path: node.mount_point.clone(),
                });
            }
        }
    }
}

/// Whether a bound device is not mounted at the staging path of its volume.
fn missing_mount(volume: &VolumeSubject<'_>, mounts: &[&Mount]) -> Option<VolumeTrouble> {
    let is_staged = match (volume.content, volume.staging) {
        (Content::Filesystem { .. }, Some(staging)) => {
            mounts.iter().any(|mount| mount.mount_point == staging)
        }
        // Only another mount, for example in a container, keeps the device bound.
        (Content::Filesystem { .. }, None) => !mounts.is_empty(),
        (Content::Block, Some(staging)) => {
            let node = staging.join(volume.image.as_str());
            mounts.iter().any(|mount| mount.mount_point == node)
        }
        // A device that is not mounted is unused: a stage was interrupted.
        (Content::Block, None) => {
            mounts.is_empty()
                || mounts
                    .iter()
                    .any(|node| device_nodes::is_staging(node, volume.image))
        }
    };
    let path = volume.staging.map(Path::to_owned);
    (!is_staged).then_some(VolumeTrouble::MountMissing { path })
}

/// The troubles of a filesystem according to its mounts and error counters.
fn examine_filesystem(
    system: &dyn System,
    content: Content,
    device: DeviceNumber,
    mounts: &[&Mount],
) -> Vec<VolumeTrouble> {
    let Content::Filesystem { filesystem, uuid } = content else {
        return Vec::new();
    };
    let mut troubles = Vec::new();
    if mounts.iter().any(|mount| mount.has_shut_down()) {
        troubles.push(VolumeTrouble::FilesystemShutDown);
    }
    let turned = |mount: &&&Mount| !mount.has("ro") && mount.is_read_only();
    if let Some(mount) = mounts.iter().find(turned) {
        troubles.push(VolumeTrouble::MountReadOnly {
            path: mount.mount_point.clone(),
        });
    }
    let counted = match filesystem {
        _ if mounts.is_empty() => Ok(None),
        FilesystemType::Ext4 => system.ext4_errors(device),
        FilesystemType::Btrfs => system.btrfs_errors(uuid),
        // XFS has no counter, and reports its damage itself.
        FilesystemType::Xfs => Ok(None),
    };
    match counted {
        Ok(None | Some(0)) => {}
        Ok(Some(count)) => troubles.push(VolumeTrouble::FilesystemErrors { count }),
        Err(error) => {
            let operation = format!("ask for the errors of device {device}");
            troubles.push(VolumeTrouble::failed(operation, &error));
        }
    }
    troubles
}
