//! A disk in memory. Pages of zeros take no memory and no compression there, so a request costs the processor
//! little, and what lies above the disk shows.
//!
//! *Invariant:* the kernel's device ends with this process, however it ends.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use crate::process;

const CONTROL: &str = "/sys/class/zram-control";
/// Memory for pages that are not zeros: metadata of filesystems. Above it the disk answers with errors, which is
/// better than a machine without memory.
const MEMORY: &str = "2G";

/// The disk. It is removed when dropped, or after the process if it is never dropped.
#[derive(Debug)]
pub struct Zram {
    number: String,
    remover: Child,
}

impl Zram {
    /// Creates a disk of this size, or says why the kernel has none.
    pub fn new(bytes: u64) -> Result<Self, String> {
        if !Path::new(CONTROL).exists() {
            let mut modprobe = process::command("modprobe");
            modprobe.args(["zram", "num_devices=0"]);
            // Where it fails, the next step says what is missing.
            let _ = modprobe.output();
        }
        // Reading this file creates a device and returns its number.
        let number = fs::read_to_string(format!("{CONTROL}/hot_add"))
            .map_err(|error| format!("the kernel has no zram: {CONTROL}/hot_add: {error}"))?;
        let number = number.trim().to_owned();
        let block = PathBuf::from(format!("/sys/block/zram{number}"));
        let remover = remover(&number, &block)
            .map_err(|error| format!("zram{number} would not be removed: {error}"))?;
        let disk = Self { number, remover };
        for (file, value) in [
            ("mem_limit", MEMORY.to_owned()),
            ("disksize", bytes.to_string()),
        ] {
            fs::write(block.join(file), value)
                .map_err(|error| format!("{}: {error}", block.join(file).display()))?;
        }
        Ok(disk)
    }

    /// Returns the path of the device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        let removed = self.remover.wait();
        assert!(
            removed.is_ok_and(|status| status.success()) || std::thread::panicking(),
            "zram{} is still in use",
            self.number
        );
    }
}

fn remover(number: &str, block: &Path) -> io::Result<Child> {
    use std::os::unix::process::CommandExt as _;

    let device = fs::read_to_string(block.join("dev"))?;
    let mut command = process::command(process::workspace().join("e2e/scripts/remove-zram"));
    command
        .args([number, device.trim()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // An interrupt from the terminal ends the process, not its remover.
        .process_group(0);
    command.spawn()
}
