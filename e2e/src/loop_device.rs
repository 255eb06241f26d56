//! Loop devices that tests make, which stand for disks.

use std::path::{Path, PathBuf};

use crate::process::dying_with_us;

/// A loop device that a test made, which it detaches also when it fails: no other test then finds a device
/// whose file is gone.
///
/// The kernel detaches a device with its last mount if it was asked to before, and then gives its name to the next user. So
/// the device is identified by its name and by the number that the kernel gives to each attachment.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    attachment: Option<String>,
}

impl LoopDevice {
    /// Takes over what `losetup --find --show` has printed.
    pub fn new(printed: &str) -> Self {
        let path = PathBuf::from(printed.trim());
        Self {
            attachment: attachment(&path),
            path,
        }
    }

    /// Its path in `/dev`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_attached(&self) -> bool {
        self.attachment.is_some() && attachment(&self.path) == self.attachment
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if !self.is_attached() {
            return;
        }
        let mut detach = dying_with_us("losetup");
        let output = detach.arg("--detach").arg(&self.path).output();
        let detached = output.as_ref().is_ok_and(|output| output.status.success());
        // The last mount may have ended meanwhile.
        assert!(
            detached || !self.is_attached() || std::thread::panicking(),
            "{}: {output:?}",
            self.path.display()
        );
    }
}

/// Returns the number of the device's attachment, or nothing if it is detached. Linux before 5.15 has no such numbers: there, all
/// attachments are equal. The path of the file is no identity, because it changes with mounts and when the file is removed.
fn attachment(device: &Path) -> Option<String> {
    let block = Path::new("/sys/block").join(device.file_name()?);
    let is_attached = block.join("loop/backing_file").exists();
    is_attached.then(|| std::fs::read_to_string(block.join("diskseq")).unwrap_or_default())
}
