//! A disk of a node that can be removed, and that fails or hangs on demand. It is a loop device over the file
//! that the program `failing-disk` serves.
//!
//! *Invariant:* nothing hangs for longer than its test. The program ends with the test, and after a timeout if
//! the test was killed; the kernel then fails all pending I/O of the disk.

use cistern_crds::Bytes;
use failing_disk::{Mode, NAME};

use super::{Harness, Test};

/// The first loop device number of these disks. Other users get the lowest free numbers.
const FIRST_DEVICE: u32 = 123;
/// Scripts for the node, which end with a newline.
const PLUG_IN: &str = include_str!("../../scripts/plug-in-disk");
const PULL_OUT: &str = include_str!("../../scripts/pull-out-disk");

/// A simulated disk of a node.
#[derive(Clone, Debug)]
pub struct Disk {
    harness: Harness,
    node: String,
    size: Bytes,
    slot: u32,
}

/// A script for a node that removes the file of a disk with the loop devices over it. They are found by the inode of the file, so
/// a device of somebody else that has the same name is left alone.
pub fn remove_file(file: &str) -> String {
    format!(
        "[ ! -e {file} ] || losetup --noheadings --output NAME --associated {file} \
         | xargs --no-run-if-empty losetup --detach; rm -f {file}"
    )
}

impl Disk {
    /// Attaches a blank disk to a node until the test and its pools are removed. Disks that exist at the same
    /// time must have different slots.
    pub async fn plug_in(
        test: &Test,
        harness: Harness,
        node: &str,
        size: Bytes,
        slot: u32,
    ) -> Self {
        let this = Self {
            harness,
            node: node.to_owned(),
            size,
            slot,
        };
        let (folder, unit, [first, second]) = (this.folder(), this.unit(), this.names());
        let remove = format!("{}rm -rf {folder}", this.pulling_out());
        this.shell(&remove).await;
        test.afterwards(harness, node, &remove);
        let plug_in = this.plugging_in(&second);
        let heal = format!(
            "echo {} >{folder}/{NAME}.mode; systemctl is-active --quiet {unit} || {{\n{plug_in}}}",
            Mode::Ok
        );
        test.if_it_fails(harness, node, &heal);
        this.shell(&format!("mkdir -p {folder}/mount")).await;
        let program = failing_disk::program().expect("e2e/steps has it built");
        let to = format!("{folder}/program");
        harness.copy(node, &program, &to).await;
        this.shell(&this.plugging_in(&first)).await;
        this
    }

    /// Returns both device names of the disk. A disk that is removed and reinserted gets the other name, as real
    /// disks do.
    pub fn names(&self) -> [String; 2] {
        [0, 1].map(|other| format!("/dev/loop{}", FIRST_DEVICE + 2 * self.slot + other))
    }

    /// Removes the disk from the node while it is in use.
    pub async fn pull_out(&self) {
        self.shell(&self.pulling_out()).await;
    }

    /// Reinserts the disk with its data, under the other name.
    pub async fn put_back(&self) {
        let [_, second] = self.names();
        self.shell(&self.plugging_in(&second)).await;
    }

    /// Sets how the disk responds to I/O.
    pub async fn set(&self, mode: Mode) {
        let folder = self.folder();
        self.shell(&format!("echo {mode} >{folder}/{NAME}.mode"))
            .await;
    }

    /// Returns the folder of the disk's files on the node.
    fn folder(&self) -> String {
        format!("/var/cistern-e2e-disk-{}", self.slot)
    }

    /// Returns the name of the program's systemd unit.
    fn unit(&self) -> String {
        format!("failing-disk-{}", self.slot)
    }

    /// Starts the program and attaches the device.
    fn plugging_in(&self, device: &str) -> String {
        let (folder, unit, size) = (self.folder(), self.unit(), self.size.0);
        format!("folder={folder} unit={unit} size={size} name={NAME} device={device}\n{PLUG_IN}")
    }

    /// Ends the program and detaches the devices.
    fn pulling_out(&self) -> String {
        let (folder, unit, [first, second]) = (self.folder(), self.unit(), self.names());
        format!("folder={folder} unit={unit} first={first} second={second}\n{PULL_OUT}")
    }

    async fn shell(&self, script: &str) {
        self.harness.shell(&self.node, script).await;
    }
}
