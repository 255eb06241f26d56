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

/// A simulated disk of a node.
#[derive(Clone, Debug)]
pub struct Disk {
    harness: Harness,
    node: String,
    size: Bytes,
    slot: u32,
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
        let remove = format!("{}; rm -rf {folder}", this.pulling_out());
        this.shell(&remove).await;
        test.afterwards(harness, node, &remove);
        let plug_in = this.plugging_in(&second);
        let heal = format!(
            "echo {} >{folder}/{NAME}.mode; systemctl is-active --quiet {unit} || {{ {plug_in}; }}",
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

    /// Starts the program and attaches the device. A previous use of the device may still hold it, and ends when its
    /// last user closes it.
    fn plugging_in(&self, device: &str) -> String {
        let (folder, unit, size) = (self.folder(), self.unit(), self.size.0);
        // A disk that a killed test left hanging ends after this time.
        format!(
            "systemd-run --quiet --collect --unit={unit} --property=RuntimeMaxSec=1h \
               {folder}/program {folder}/mount {folder}/{NAME} {size}
             for attempt in $(seq 100); do ! mountpoint -q {folder}/mount || break; sleep 0.1; done
             attempts=300
             until error=$(losetup {device} {folder}/mount/{NAME} 2>&1); do
               attempts=$((attempts - 1))
               [ $attempts != 0 ] || {{ echo \"$error\" >&2; exit 1; }}
               sleep 0.1
             done"
        )
    }

    /// Ends the program, which fails all pending I/O of the disk, and detaches the devices. A device that is in
    /// use is detached when its last user closes it.
    fn pulling_out(&self) -> String {
        let (folder, unit, [first, second]) = (self.folder(), self.unit(), self.names());
        format!(
            "systemctl kill --signal=KILL {unit} 2>/dev/null || true
             for attempt in $(seq 100); do systemctl is-active --quiet {unit} || break; sleep 0.1; done
             for device in {first} {second}; do
               ! losetup $device >/dev/null 2>&1 || losetup --detach $device
             done
             umount --lazy {folder}/mount 2>/dev/null || true"
        )
    }

    async fn shell(&self, script: &str) {
        self.harness.shell(&self.node, script).await;
    }
}
