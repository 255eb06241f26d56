//! A mount namespace for the processes of one test node.
//!
//! *Invariant:* no mount of a test is visible outside, and all end with the test, including loop devices that
//! only those mounts keep in use.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{Process, eventually, process::dying_with_us};

/// The namespace. It outlives the processes that run in it, as a host does, until it is dropped.
#[derive(Debug)]
pub struct MountNamespace {
    holder: Process,
}

impl MountNamespace {
    /// Creates a private copy of the current mount namespace, without mount propagation in either direction.
    pub async fn new(folder: &Path) -> Self {
        let mut command = dying_with_us("unshare");
        command.args([
            "--mount",
            "--propagation=private",
            "--",
            "sleep",
            "infinity",
        ]);
        let holder = Process::start("sleep", &folder.join("mounts.log"), command);
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
        let (ours, pid) = (
            of("self").expect("/proc is mounted"),
            holder.id().to_string(),
        );
        eventually(
            "the mount namespace",
            Duration::from_mins(5),
            async || match of(&pid) {
                Ok(its) if its != ours => Ok(()),
                seen => Err(format!("{seen:?}")),
            },
        )
        .await;
        Self { holder }
    }

    /// Returns a command that runs in it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = dying_with_us("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .arg("--")
            .arg(program);
        command
    }

    /// Returns the mounts below a folder, in the order of the mount table.
    pub fn mounts_below(&self, folder: &Path) -> Vec<PathBuf> {
        let table = format!("/proc/{}/mounts", self.holder.id());
        let table = fs::read_to_string(table).expect("the holder runs");
        table
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .map(PathBuf::from)
            .filter(|path| path.starts_with(folder))
            .collect()
    }
}

/// Returns the files below a folder that are attached to loop devices.
pub fn attached_below(folder: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").expect("/sys is mounted");
    devices
        .filter_map(|device| {
            // Devices that are not attached, or are not loop devices, lack this file.
            let file = device.ok()?.path().join("loop/backing_file");
            fs::read_to_string(file).ok()
        })
        .map(|file| PathBuf::from(file.trim_end()))
        .filter(|file| file.starts_with(folder))
        .collect()
}
