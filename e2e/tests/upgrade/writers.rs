//! Pods that write sequence numbers without a pause, and end if a write takes too long.

use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::pod_spec},
    eventually,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;

/// A writer fails, and stays failed, if more seconds than these pass between two of its synced writes. It is its own limit,
/// so a write that hangs is not hidden by a test that waits. The disk of a busy machine takes seconds for a sync.
const LONGEST_GAP: u64 = 20;

/// Blocks that the writer of a device uses in turn.
const BLOCKS: u64 = 64;
const BLOCK: u64 = 4096;

/// Writes the numbers 1, 2, 3 … by the command `write`, and notes the longest gap in seconds in `/gap`.
fn script(write: &str) -> String {
    format!(
        "n=0 longest=0; read -r last _ < /proc/uptime; last=${{last%.*}}
while n=$((n + 1)); {write}; do
  read -r now _ < /proc/uptime; now=${{now%.*}}
  if [ $((now - last)) -gt $longest ]; then longest=$((now - last)); echo $longest > /gap; fi
  [ $longest -le {LONGEST_GAP} ] || break
  last=$now; sleep 0.1
done; exit 1"
    )
}

/// The writing pods, in the state in which they were created.
pub(crate) struct Writers<'a> {
    test: &'a Test,
    pods: Vec<Pod>,
}

impl<'a> Writers<'a> {
    pub(crate) fn new(test: &'a Test) -> Self {
        let pods = Vec::new();
        Self { test, pods }
    }

    /// Starts one that appends to `/data/log` in the filesystem of the claim of the same name.
    pub(crate) async fn add_to_filesystem(&mut self, name: &str) {
        let write = script("echo $n >> /data/log && sync -d /data/log");
        self.pods
            .push(self.test.pod(name, name, &write, json!({})).await);
        self.test.running(name).await;
    }

    /// Starts one that writes to the device of the claim of the same name.
    pub(crate) async fn add_to_device(&mut self, name: &str) {
        let dd = format!("dd of=/dev/data bs={BLOCK} seek=$((n % {BLOCKS})) conv=notrunc,fsync");
        let write = script(&format!("printf '%-{BLOCK}d' $n | {dd} 2> /dev/null"));
        let claim = json!({"persistentVolumeClaim": {"claimName": name}});
        let mut spec = pod_spec(&write, claim);
        spec["containers"][0]["volumeMounts"] = json!([]);
        spec["containers"][0]["volumeDevices"] =
            json!([{"name": "data", "devicePath": "/dev/data"}]);
        self.pods.push(self.test.object(name, spec).await);
        self.test.running(name).await;
    }

    /// Checks that no pod was restarted or replaced, that each writes on, and that no number is lost.
    pub(crate) async fn go_on(&self) {
        for pod in &self.pods {
            let name = pod.name_any();
            let has_device = pod.spec.as_ref().unwrap().containers[0]
                .volume_devices
                .is_some();
            if has_device {
                self.device_goes_on(&name).await;
            } else {
                self.test.writes_go_on(&name).await;
            }
            let now = self.test.namespaced::<Pod>().get(&name).await.unwrap();
            assert_eq!(now.uid(), pod.uid(), "{name} was replaced");
            let status = now.status.unwrap();
            let containers = status.container_statuses.unwrap_or_default();
            let restarts: i32 = containers.iter().map(|it| it.restart_count).sum();
            assert_eq!(
                (status.phase.as_deref(), restarts),
                (Some("Running"), 0),
                "{name}"
            );
            let gap = self.test.shell(&name, "cat /gap 2> /dev/null || echo 0");
            let gap = gap.await.unwrap();
            eprintln!("{name}: the longest gap so far is {} s", gap.trim());
        }
    }

    async fn device_goes_on(&self, name: &str) {
        let mut before = None;
        eventually(&format!("{name} to go on writing"), PATIENCE, async || {
            let now = self.last_of_device(name).await?;
            match *before.get_or_insert(now) {
                before if now > before + 3 => Ok(()),
                before => Err(format!("{now} is the last number, {before} was it before")),
            }
        })
        .await;
    }

    /// Returns the last number on the device. The numbers before it must be there too.
    async fn last_of_device(&self, name: &str) -> Result<u64, String> {
        let read = format!("head -c $(({BLOCK} * {BLOCKS})) /dev/data | tr -s ' \\0' '\\n'");
        let numbers = self.test.shell(name, &read).await?;
        let mut numbers: Vec<u64> = numbers
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect();
        numbers.sort_unstable();
        let last = numbers.last().copied().ok_or("nothing is written")?;
        // One block may be written while they are read.
        let first = (last + 2).saturating_sub(BLOCKS).max(1);
        let expected: Vec<u64> = (first..=last).collect();
        assert!(
            numbers.ends_with(&expected),
            "the device of {name} has lost writes: {numbers:?}"
        );
        Ok(last)
    }
}
