//! A block device that fails on demand: a loop device over the file that `failing-disk` serves.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use failing_disk::{FailingDisk, Mode};

use crate::harness::{Machine, must, run};

/// The smallest disk for a pool.
pub(crate) const SIZE: u64 = 320 << 20;

/// The device. Pending I/O fails when this is dropped.
pub(crate) struct FailingDevice {
    pub(crate) path: PathBuf,
    disk: Option<FailingDisk>,
}

impl FailingDevice {
    pub(crate) fn new(machine: &Machine) -> Self {
        Self::with_size(machine, SIZE)
    }

    /// A device of so many bytes.
    pub(crate) fn with_size(machine: &Machine, size: u64) -> Self {
        let folder = machine.path("failing");
        fs::create_dir(&folder).unwrap();
        Self::start(&folder, size)
    }

    /// Unplugs the disk and plugs it in again under another name. Existing mounts keep the old device.
    pub(crate) fn replug(mut self, machine: &Machine) -> Self {
        drop(self.disk.take());
        Self::start(&machine.path("failing"), SIZE)
    }

    fn start(folder: &Path, size: u64) -> Self {
        // It runs in the namespace of this thread, and the kernel kills it when the thread ends.
        #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(must(failing_disk::program()));
        let disk = must(FailingDisk::start(command, folder, size));
        let device = run("losetup", &["-f", "--show", text(&disk.path())]);
        Self {
            path: device.trim().into(),
            disk: Some(disk),
        }
    }

    pub(crate) fn set(&self, mode: Mode) {
        must(self.disk().set(mode));
    }

    pub(crate) fn disk(&self) -> &FailingDisk {
        self.disk.as_ref().unwrap()
    }
}

impl Drop for FailingDevice {
    fn drop(&mut self) {
        drop(self.disk.take());
        // Mounts keep the device until they end.
        run("losetup", &["-d", text(&self.path)]);
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
