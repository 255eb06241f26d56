//! Loop devices that tests make, which stand for disks.

use std::path::{Path, PathBuf};

use crate::process::dying_with_us;

/// A loop device that a test made, which it detaches also when it fails: no other test then finds a device
/// whose file is gone.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Takes over what `losetup --find --show` has printed.
    pub fn new(printed: &str) -> Self {
        Self(printed.trim().into())
    }

    /// Its path in `/dev`.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file that it shows, unless it is detached.
    fn file(&self) -> Option<String> {
        let name = self.0.file_name()?;
        let block = Path::new("/sys/block").join(name);
        std::fs::read_to_string(block.join("loop/backing_file")).ok()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let file = self.file();
        let mut detach = dying_with_us("losetup");
        let output = detach.arg("--detach").arg(&self.0).output();
        // The kernel detaches a device that is still mounted with its last mount, and has nothing left to do if
        // that was before.
        let detached = output.as_ref().is_ok_and(|output| output.status.success());
        assert!(
            detached || file.is_none() || self.file() != file || std::thread::panicking(),
            "{}: {output:?}",
            self.0.display()
        );
    }
}
