//! A block device that fails on demand: a loop device over the file that `failing-disk` serves.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use failing_disk::{FailingDisk, Mode};

use crate::harness::{Machine, must, run};

const SIZE: u64 = 320 << 20;

/// The device. Whoever waits for it gets an error when this ends.
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

    /// Takes the disk out. It comes back under another name: whoever has this one mounted keeps that.
    pub(crate) fn replug(mut self, machine: &Machine) -> Self {
        drop(self.disk.take());
        Self::start(&machine.path("failing"))
    }

    fn start(folder: &Path) -> Self {
        // In the namespace of this thread, and ended with it by the kernel.
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
        // What is mounted from it keeps it until that ends.
        run("losetup", &["-d", text(&self.path)]);
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
