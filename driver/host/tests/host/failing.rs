//! A block device that fails on demand: a loop device over the file that `failing-disk` serves.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use failing_disk::{FailingDisk, Mode};

use crate::harness::{Machine, must, run};

const SIZE: u64 = 320 << 20;

/// The device. Pending I/O fails when this is dropped.
pub(crate) struct FailingDevice {
    pub(crate) path: PathBuf,
    disk: Option<FailingDisk>,
}

impl FailingDevice {
    pub(crate) fn new(machine: &Machine) -> Self {
        let folder = machine.path("failing");
        fs::create_dir(&folder).unwrap();
        Self::start(&folder)
    }

    /// Unplugs the disk and plugs it in again under another name. Existing mounts keep the old device.
    pub(crate) fn replug(mut self, machine: &Machine) -> Self {
        drop(self.disk.take());
        Self::start(&machine.path("failing"))
    }

    fn start(folder: &Path) -> Self {
        // It runs in the namespace of this thread, and the kernel kills it when the thread ends.
        #[expect(clippy::disallowed_methods, reason = "the test's own tools")]
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(must(failing_disk::program()));
        let disk = must(FailingDisk::start(command, folder, SIZE));
        let device = run("losetup", &["-f", "--show", text(&disk.path())]);
        Self {
            path: device.trim().into(),
            disk: Some(disk),
        }
    }

    pub(crate) fn set(&self, mode: Mode) {
        must(self.disk.as_ref().unwrap().set(mode));
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
