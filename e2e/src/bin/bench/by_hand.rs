//! Does what Cistern does for a volume with the tools of an administrator.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_e2e::{Driver, process::output};

const MAKE: &str = "mkdir staging target
    truncate --size 64M image
    mkfs.ext4 -q -b 4096 -m 0 image";
const MOUNT: &str = "device=$(losetup --find --show --direct-io=on --sector-size 4096 image)
    mount \"$device\" staging
    mount --bind staging target";
const UNMOUNT: &str = "device=$(findmnt --noheadings --output SOURCE staging)
    umount target staging
    losetup --detach \"$device\"";
const REMOVE: &str = "rm image
    rmdir staging target";

/// An ext4 image in a folder of the node that has no other content.
pub(crate) struct ByHand<'a> {
    driver: &'a Driver,
    folder: PathBuf,
}

impl<'a> ByHand<'a> {
    /// Creates the image.
    pub(crate) async fn new(driver: &'a Driver, folder: &Path) -> Self {
        let folder = folder.to_owned();
        let by_hand = Self { driver, folder };
        by_hand.shell(MAKE).await;
        by_hand
    }

    /// Mounts the image like kubelet mounts volumes; returns the mount point.
    pub(crate) async fn mount(&self) -> PathBuf {
        self.shell(MOUNT).await;
        self.folder.join("target")
    }

    /// Undoes [`Self::mount`].
    pub(crate) async fn unmount(&self) {
        self.shell(UNMOUNT).await;
    }

    /// Removes all files.
    pub(crate) async fn remove(self) {
        self.shell(REMOVE).await;
    }

    async fn shell(&self, script: &str) {
        // A process that enters a mount namespace starts in its root folder.
        let script = format!("set -e\ncd {}\n{script}", self.folder.display());
        let mut command = self.driver.command_on_node("sh");
        command.args(["-c", &script]);
        output(command, Duration::from_secs(30)).await;
    }
}
