//! Tests of the harness: its scripts remove loop devices, and no test is skipped silently.

#![allow(
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod ways;

use std::{fs, path::Path, time::Duration};

use cistern_e2e::{
    Folder,
    cluster::skipped,
    eventually,
    mounts::MountNamespace,
    process::{command, dying_with_us, output, run, workspace},
};

/// `docker` only prints the path of the node's volume: neither the engine nor the node runs.
const CLEANING: &str = r#"
set -o pipefail
source "$1/lib/common.sh"
source "$1/lib/cluster.sh"
docker() { echo "$0"; }
detach_loops_of node ''
"#;

const PATIENCE: Duration = Duration::from_mins(5);

#[tokio::test]
async fn the_loop_devices_of_a_node_that_was_killed_with_its_engine_are_detached() {
    let folder = Folder::new();
    let node = MountNamespace::new(folder.path()).await;
    let mut leave = node.command(workspace().join("e2e/scripts/leave-loop-devices"));
    leave.arg(folder.path());
    let made = output(leave, PATIENCE).await;
    // This removes all mounts, but no device.
    drop(node);
    let devices: Vec<Device> = made.split_whitespace().map(Device::of).collect();
    assert_eq!(devices.iter().filter(|it| it.is_bound()).count(), 3);

    let mut clean = dying_with_us("bash");
    clean.args(["-euc", CLEANING]).arg(folder.path());
    clean.arg(workspace().join("e2e/cluster"));
    output(clean, PATIENCE).await;
    eventually("every device to be free", PATIENCE, async || {
        let mut bound = devices.iter().filter(|device| device.is_bound());
        bound
            .next()
            .map_or(Ok(()), |device| Err(format!("{device:?}")))
    })
    .await;
}

#[test]
fn a_test_that_fails_hides_no_other_in_any_lane() {
    let steps = fs::read_to_string(workspace().join("e2e/steps")).unwrap();
    let lanes = steps.lines().filter(|line| line.contains("cargo test "));
    let (all, stopping): (Vec<&str>, Vec<&str>) =
        lanes.partition(|line| line.contains("--no-fail-fast"));
    assert!(all.len() >= 4 && stopping.is_empty(), "{stopping:?}");
    // A failed lint or unit test does not end the run before the lanes.
    assert!(steps.contains("\n  check || status=1\n"));
    let check = steps.split("\ncheck() {").nth(1).unwrap();
    let runs = check.split("\n}").next().unwrap().replace("\\\n", "");
    for line in runs.lines().filter(|line| line.starts_with("  run ")) {
        let goes_on = line.ends_with(" || status=1") || line.ends_with(" || return 1");
        assert!(goes_on, "{line}");
    }
}

#[tokio::test]
async fn a_test_that_skips_itself_on_the_harness_own_cluster_fails() {
    let this = std::env::current_exe().unwrap();
    let skipping = async |harness: &str| {
        let mut test = dying_with_us(&this);
        test.args(["--exact", "skips_itself_when_it_is_asked_to", "--nocapture"])
            .env("CISTERN_SKIP_ITSELF", "1")
            .env("CISTERN_HARNESS_CLUSTER", harness);
        run(test, PATIENCE).await
    };
    let elsewhere = skipping("").await;
    let said = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(
        elsewhere.status.success() && said.contains("SKIPPED everything"),
        "{said}"
    );
    assert!(!skipping("1").await.status.success());
}

/// Helper that the test above runs in a separate process.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "only the test above sets the variable"
)]
fn skips_itself_when_it_is_asked_to() {
    if std::env::var_os("CISTERN_SKIP_ITSELF").is_some() {
        skipped("everything", "this is a test");
    }
}

/// A loop device, identified by its backing file and the number of its attachment. Dropping it detaches the device.
#[derive(Debug)]
struct Device {
    path: String,
    attachment: [String; 2],
}

impl Device {
    fn of(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            attachment: attachment_of(path).unwrap(),
        }
    }

    fn is_bound(&self) -> bool {
        attachment_of(&self.path).as_ref() == Some(&self.attachment)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_bound() {
            let _ = command("losetup").args(["--detach", &self.path]).status();
        }
    }
}

/// Returns nothing for a device that is detached. Linux before 5.15 does not number the attachments.
fn attachment_of(device: &str) -> Option<[String; 2]> {
    let block = Path::new("/sys/block").join(Path::new(device).file_name()?);
    let file = fs::read_to_string(block.join("loop/backing_file")).ok()?;
    let number = fs::read_to_string(block.join("diskseq")).unwrap_or_default();
    Some([file, number])
}
