//! Disks of one node, which no other node sees.

use std::time::Duration;

use cistern_crds::Bytes;

use crate::{Driver, Folder, LoopDevice, process::output};

/// Makes the names in `/dev/disk/by-id` visible in the mount namespace of the node alone.
const OWN_NAMES: &str = "mkdir -p /dev/disk
mountpoint -q /dev/disk || mount -t tmpfs names /dev/disk
mkdir -p /dev/disk/by-id";
/// Timeout of the script.
const SCRIPT: Duration = Duration::from_mins(3);

/// A disk of a node: a loop device over a file.
#[derive(Debug)]
pub struct NodeDisk {
    /// The loop device.
    pub device: LoopDevice,
    /// Its path in `/dev/disk/by-id` of the node.
    pub path: String,
    _folder: Folder,
}

impl NodeDisk {
    /// Attaches a blank disk with this name in `/dev/disk/by-id` of the node.
    pub async fn attach(driver: &Driver, name: &str, size: Bytes) -> Self {
        let folder = Folder::new();
        let file = folder.join("disk");
        std::fs::File::create(&file)
            .unwrap()
            .set_len(size.0)
            .unwrap();
        let script = format!(
            "{OWN_NAMES}
            device=$(losetup --find --show {})
            ln -s $device /dev/disk/by-id/{name}
            echo $device",
            file.display()
        );
        let mut command = driver.command_on_node("sh");
        command.args(["-euc", &script]);
        Self {
            device: LoopDevice::new(&output(command, SCRIPT).await),
            path: format!("/dev/disk/by-id/{name}"),
            _folder: folder,
        }
    }
}
