//! A disk of a node that can be pulled out, and that fails or hangs on demand: a loop device over the
//! file that the program `failing-disk` serves.
//!
//! *Invariant:* nothing hangs for longer than its test. The program ends with that, however it ends,
//! and by itself where the test was killed; the kernel then fails whatever waits for the disk.

use cistern_crds::Bytes;
use failing_disk::{Mode, NAME};

use super::{Harness, Test};

/// Where all of it lies on the node.
const FOLDER: &str = "/var/cistern-e2e-disk";
/// The program's unit of systemd.
const UNIT: &str = "failing-disk";
/// Numbers that nobody else takes: free ones are given out from the lowest. A disk that is pulled out
/// and put back gets the other one, as disks do.
const DEVICES: [&str; 2] = ["/dev/loop123", "/dev/loop124"];

/// Ends the program, and with it whatever waits for the disk; then lets go of what is left. A device
/// that is in use goes with its last user.
const PULL_OUT: &str = "
    unit=failing-disk folder=/var/cistern-e2e-disk
    systemctl kill --signal=KILL $unit 2>/dev/null || true
    for attempt in $(seq 100); do systemctl is-active --quiet $unit || break; sleep 0.1; done
    for device in /dev/loop123 /dev/loop124; do
      ! losetup $device >/dev/null 2>&1 || losetup --detach $device
    done
    umount --lazy $folder/mount 2>/dev/null || true";

/// A disk of a node.
#[derive(Clone, Debug)]
pub struct Disk {
    harness: Harness,
    node: String,
    size: Bytes,
}

impl Disk {
    /// Puts a blank disk into a node, for as long as the test and its pools are there.
    pub async fn plug_in(test: &Test, harness: Harness, node: &str, size: Bytes) -> Self {
        let this = Self {
            harness,
            node: node.to_owned(),
            size,
        };
        let remove = format!("{PULL_OUT}; rm -rf {FOLDER}");
        this.shell(&remove).await;
        test.afterwards(harness, node, &remove);
        let plug_in = this.plugging_in(DEVICES[1]);
        let heal = format!(
            "echo {} >{FOLDER}/{NAME}.mode; systemctl is-active --quiet {UNIT} || {{ {plug_in}; }}",
            Mode::Ok
        );
        test.if_it_fails(harness, node, &heal);
        this.shell(&format!("mkdir -p {FOLDER}/mount")).await;
        let program = failing_disk::program().expect("e2e/steps has it built");
        let to = format!("{FOLDER}/program");
        harness.copy(node, &program, &to).await;
        this.shell(&this.plugging_in(DEVICES[0])).await;
        this
    }

    /// The names that it may have.
    pub fn names(&self) -> [&'static str; 2] {
        DEVICES
    }

    /// Pulls it out of the node while it is in use.
    pub async fn pull_out(&self) {
        self.shell(PULL_OUT).await;
    }

    /// Puts it back with all that was on it, under another name.
    pub async fn put_back(&self) {
        self.shell(&self.plugging_in(DEVICES[1])).await;
    }

    /// Sets how it behaves from now on.
    pub async fn set(&self, mode: Mode) {
        self.shell(&format!("echo {mode} >{FOLDER}/{NAME}.mode"))
            .await;
    }

    fn plugging_in(&self, device: &str) -> String {
        let size = self.size.0;
        // What a killed test has left hanging ends by itself.
        format!(
            "systemd-run --quiet --collect --unit={UNIT} --property=RuntimeMaxSec=1h \
               {FOLDER}/program {FOLDER}/mount {FOLDER}/{NAME} {size}
             for attempt in $(seq 100); do ! mountpoint -q {FOLDER}/mount || break; sleep 0.1; done
             losetup {device} {FOLDER}/mount/{NAME}"
        )
    }

    async fn shell(&self, script: &str) {
        self.harness.shell(&self.node, script).await;
    }
}
