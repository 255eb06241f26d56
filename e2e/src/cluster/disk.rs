//! A disk of a node that can be pulled out, and that fails or hangs on demand: a loop device over the
//! file that the program `failing-disk` serves.
//!
//! *Invariant:* nothing hangs for longer than its test. The program ends with that, however it ends,
//! and by itself where the test was killed; the kernel then fails whatever waits for the disk.

use cistern_crds::Bytes;
use failing_disk::{Mode, NAME};

use super::{Harness, Test};

/// Loop devices from this number on nobody else takes: free ones are given out from the lowest.
const FIRST_DEVICE: u32 = 123;

/// A disk of a node.
#[derive(Clone, Debug)]
pub struct Disk {
    harness: Harness,
    node: String,
    size: Bytes,
    slot: u32,
}

impl Disk {
    /// Puts a blank disk into a node, for as long as the test and its pools are there. No two that are
    /// there at a time have the same slot.
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

    /// The names that it may have: one that is pulled out and put back gets the other one, as disks
    /// do.
    pub fn names(&self) -> [String; 2] {
        [0, 1].map(|other| format!("/dev/loop{}", FIRST_DEVICE + 2 * self.slot + other))
    }

    /// Pulls it out of the node while it is in use.
    pub async fn pull_out(&self) {
        self.shell(&self.pulling_out()).await;
    }

    /// Puts it back with all that was on it, under another name.
    pub async fn put_back(&self) {
        let [_, second] = self.names();
        self.shell(&self.plugging_in(&second)).await;
    }

    /// Sets how it behaves from now on.
    pub async fn set(&self, mode: Mode) {
        let folder = self.folder();
        self.shell(&format!("echo {mode} >{folder}/{NAME}.mode"))
            .await;
    }

    /// Where all of it lies on the node.
    fn folder(&self) -> String {
        format!("/var/cistern-e2e-disk-{}", self.slot)
    }

    /// The program's unit of systemd.
    fn unit(&self) -> String {
        format!("failing-disk-{}", self.slot)
    }

    fn plugging_in(&self, device: &str) -> String {
        let (folder, unit, size) = (self.folder(), self.unit(), self.size.0);
        // What a killed test has left hanging ends by itself.
        format!(
            "systemd-run --quiet --collect --unit={unit} --property=RuntimeMaxSec=1h \
               {folder}/program {folder}/mount {folder}/{NAME} {size}
             for attempt in $(seq 100); do ! mountpoint -q {folder}/mount || break; sleep 0.1; done
             losetup {device} {folder}/mount/{NAME}"
        )
    }

    /// Ends the program, and with it whatever waits for the disk; then lets go of what is left. A
    /// device that is in use goes with its last user.
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
