//! Problems of pools and volumes are reported while they last, affect no other pool or volume, and are
//! cleared when they end.

mod calls;
mod disk;

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolVolume, VolumeProblem, VolumeSeverity, condition,
};
use cistern_e2e::{ControlPlane, Driver, driver::Options, eventually};
use failing_disk::Mode;
use kube::{Api, ResourceExt as _};

use self::disk::Disk;
use crate::{
    Fixture, SOON, has_condition,
    node_service::{KubeletVolume, text},
    orphans::has_orphan,
    status,
};

/// The interval is short enough for a test and long enough for the disk of a busy machine.
pub(crate) const OPTIONS: Options = Options {
    log_level: "info,cistern_driver=debug,cistern_node=debug,cistern_host=debug",
    health_interval: "4s",
    transfer_rate: 0,
    cgroup: None,
};

impl Fixture {
    pub(crate) async fn probing_often(name: &str) -> Self {
        Self::start_as(ControlPlane::shared().await, name, OPTIONS).await
    }

    /// Waits until a volume reports this problem and no other.
    pub(crate) async fn until_problem(
        &self,
        volume: &str,
        severity: VolumeSeverity,
        reason: &str,
    ) -> VolumeProblem {
        let is_reported = |object: &PoolVolume| {
            let problems = status(object).problems;
            matches!(&problems[..], [one] if one.severity == severity && one.reason == reason)
                && has_condition(ConditionType::Healthy, "False", reason)(object)
        };
        let what = format!("to report {reason}");
        let object = self.until(volume, &what, is_reported).await;
        status(&object).problems.remove(0)
    }

    pub(crate) async fn until_healthy(&self, volume: &str) -> PoolVolume {
        let is_healthy = |object: &PoolVolume| {
            status(object).problems.is_empty()
                && has_condition(ConditionType::Healthy, "True", "Reconciled")(object)
                && has_condition(ConditionType::Ready, "True", "Reconciled")(object)
        };
        self.until(volume, "to be healthy", is_healthy).await
    }

    /// Checks that the fixture's own pool provisions a volume and that the node plugin is alive.
    async fn serves_others(&self, volume: &str) {
        let object = self.volume(volume, Bytes::mib(64)).await;
        self.remove(&object.name_any()).await;
        let alive = self.driver.node().get("/healthz").await.unwrap();
        assert!(alive.starts_with("HTTP/1.1 200 "), "{alive}");
    }
}

/// The log of the node plugin at the moment when a fault has been caused.
struct LogAtFault {
    bytes: usize,
}

impl LogAtFault {
    fn of(node: &Fixture) -> Self {
        let bytes = node.driver.node().process().log().len();
        Self { bytes }
    }

    /// Asserts that the problem, which is the first of its kind, is reported within three probes of the pool. The first
    /// of them may have begun before the fault, and a reconcile may report it before any, even while it is being caused.
    fn has_a_problem_within_three_probes(&self, node: &Fixture, pool: &str, problem: &str) {
        let log = node.driver.node().process().log();
        let reported = log.find(problem).unwrap();
        let between = log.get(self.bytes..reported).unwrap_or_default();
        let is_probe = |line: &&str| line.contains("probed the pool") && line.contains(pool);
        let probes = between.lines().filter(is_probe).count();
        assert!(probes <= 3, "{probes} probes in {between}");
    }
}

/// The pool's or the volume's line in the log.
const POOL: &str = "the pool has a problem";
const VOLUME: &str = "the volume has a problem";

/// Whether a pool is published as neither ready nor healthy, and has no room.
fn is_unavailable(pool: &NodePoolStatus) -> bool {
    let not = |kind| condition::find(&pool.conditions, kind).is_some_and(|it| it.status == "False");
    let room = pool.thin_room.max(pool.thick_room);
    not(ConditionType::Ready) && not(ConditionType::Healthy) && room == Bytes::ZERO
}

/// Whether a pool is unavailable, for this reason only.
fn is_unreachable(pool: &NodePoolStatus, reason: &str) -> bool {
    let mut conditions = pool.conditions.iter();
    is_unavailable(pool) && conditions.all(|condition| condition.reason == reason)
}

fn is_healthy(pool: &NodePoolStatus) -> bool {
    condition::holds(&pool.conditions, ConditionType::Healthy)
        && pool.problems.is_empty()
        && pool.is_ready()
        && pool.thin_room > Bytes::ZERO
}

// Shows: NUP-05, NUS-05.
#[tokio::test]
async fn a_pool_whose_disk_fails_accepts_no_volumes_until_it_recovers_and_other_pools_are_unaffected()
 {
    let mut node = Fixture::probing_often("agent-health-failing").await;
    let disk = Disk::attach(&node).await;
    let before = disk.pool_until(&node, "to be healthy", is_healthy).await;
    let object = disk.volume(&node, "kept").await;
    let name = object.name_any();
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("target", &[], false).await.unwrap();
    node.shell(
        "echo kept > $1/file && sync $1/file",
        &[&text(&kubelet.staging)],
    )
    .await;

    disk.set(Mode::Eio);
    let log = LogAtFault::of(&node);
    let failed = |pool: &NodePoolStatus| {
        let mut problems = pool.problems.iter();
        let found = problems.find(|problem| problem.reason == "ProbeFailed");
        found.map(|problem| problem.since)
    };
    let is_failed = |pool: &NodePoolStatus| is_unavailable(pool) && failed(pool).is_some();
    let reported = disk.pool_until(&node, "to be unreachable", is_failed);
    let since = failed(&reported.await);
    log.has_a_problem_within_three_probes(&node, disk.pool(), POOL);
    let not_ready = has_condition(ConditionType::Healthy, "False", "PoolNotReady");
    node.until(&name, "to be inaccessible", not_ready).await;
    node.serves_others("meanwhile").await;
    drop(kubelet);
    // The problem keeps its start time across a restart of the agent.
    node.driver.restart_node().await;
    let reported = disk.pool_until(&node, "to be still unreachable", is_failed);
    assert_eq!(failed(&reported.await), since);
    let kubelet = KubeletVolume::of(&node, &object);
    // NUP-05, NUS-05: unpublish and unstage need no pool.
    kubelet.unpublish("target").await.unwrap();
    kubelet.unstage().await.unwrap();

    disk.set(Mode::Ok);
    let after = disk.pool_until(&node, "to recover", is_healthy).await;
    assert_eq!(after.filesystem_uuid, before.filesystem_uuid);
    let recovered = node.until_healthy(&name).await;
    assert_eq!(status(&recovered).image, status(&object).image);
    kubelet.stage(&[]).await.unwrap();
    node.shell("grep kept $1/file", &[&text(&kubelet.staging)])
        .await;
    kubelet.unstage().await.unwrap();
    disk.detach(&node).await;
    node.finish().await;
}

#[tokio::test]
async fn blocks_punched_out_of_a_pools_file_are_reallocated() {
    let node = Fixture::probing_often("agent-health-sparse").await;
    let file = node.images().parent().unwrap().with_extension("img");
    let blocks = async || {
        let blocks = node.shell("stat -c %b $1", &[&text(&file)]).await;
        blocks.trim().parse::<u64>().unwrap() * 512
    };
    let script = "fallocate -p -o 900MiB -l 64MiB $1";
    node.shell(script, &[&text(&file)]).await;
    eventually(
        "the file to be allocated in full",
        SOON,
        async || match blocks().await {
            enough if enough >= Bytes::gib(1).0 => Ok(()),
            few => Err(few.to_string()),
        },
    )
    .await;
    node.pool_until("to be healthy", is_healthy).await;
    node.finish().await;
}

#[tokio::test]
async fn r16_a_pool_whose_disk_hangs_delays_no_others_and_accumulates_no_threads() {
    let node = Fixture::probing_often("agent-health-hanging").await;
    let disk = Disk::attach(&node).await;
    let object = disk.volume(&node, "kept").await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("target", &[], false).await.unwrap();
    let before = threads(&node);

    disk.set(Mode::Hang);
    let log = LogAtFault::of(&node);
    let hangs = |pool: &NodePoolStatus| is_unreachable(pool, "ProbeTimedOut");
    disk.pool_until(&node, "to be unreachable", hangs).await;
    log.has_a_problem_within_three_probes(&node, disk.pool(), POOL);
    let not_ready = has_condition(ConditionType::Healthy, "False", "PoolNotReady");
    node.until(&object.name_any(), "to be inaccessible", not_ready)
        .await;
    for volume in ["first", "second", "third"] {
        node.serves_others(volume).await;
    }
    kubelet.unpublish("target").await.unwrap();
    // Those that have nothing to do any more end after some seconds.
    eventually("few threads to be left", SOON, async || {
        let now = threads(&node);
        let are_few = now < before + 16;
        are_few
            .then_some(())
            .ok_or_else(|| format!("{now}, and {before} before"))
    })
    .await;

    disk.set(Mode::Ok);
    disk.pool_until(&node, "to recover", is_healthy).await;
    node.until_healthy(&object.name_any()).await;
    kubelet.unstage().await.unwrap();
    disk.detach(&node).await;
    node.finish().await;
}

#[tokio::test]
async fn r16_an_orphan_on_a_disk_that_hangs_delays_no_comparison_of_the_node() {
    let control_plane = ControlPlane::shared().await;
    // No periodic probe finds the failure first.
    let options = Options {
        health_interval: "30m",
        ..OPTIONS
    };
    let driver = Driver::start_with(control_plane, "agent-orphan-hanging", options).await;
    let name = "agent-orphan-hanging";
    driver.add_image_pool(name, Bytes::gib(1)).await;
    let mut node = Fixture {
        driver,
        volumes: Api::all(control_plane.client()),
        name: name.to_owned(),
    };
    let disk = Disk::attach(&node).await;
    let object = disk.volume(&node, "lost").await;
    let image = object.uid().unwrap();
    node.force_delete(&object.name_any()).await;
    disk.pool_until(&node, "to have an orphan", has_orphan(&image, false))
        .await;
    node.age_orphans().await;
    node.reclaim_after_an_hour().await;
    disk.pool_until(
        &node,
        "to have trashed the orphan",
        has_orphan(&image, true),
    )
    .await;

    // Its retention ends, and its removal hangs.
    disk.set(Mode::Hang);
    let pool = text(&disk.path(&node));
    let age = "for it in $1/trash/$2.*; do mv $it ${it%.*}.$((${it##*.} - 7200)); done";
    node.shell(age, &[&pool, &image]).await;
    for file in ["first.txt", "second.txt"] {
        node.shell("touch $0/$1", &[file]).await;
        // A pool that does not answer may take 20 seconds of each comparison.
        let patience = 4 * SOON;
        eventually(&format!("{file} to be reported"), patience, async || {
            let drift = node.driver.storage_node().await.status.unwrap().drift;
            let mut objects = drift.iter().map(|finding| &finding.object);
            if objects.any(|object| object.ends_with(file)) {
                Ok(())
            } else {
                Err(format!("{drift:?}"))
            }
        })
        .await;
    }

    disk.set(Mode::Ok);
    let is_gone = |pool: &NodePoolStatus| pool.orphans.is_empty();
    disk.pool_until(&node, "to have no orphan", is_gone).await;
    node.shell("rm $0/first.txt $0/second.txt", &[]).await;
    disk.detach(&node).await;
    node.finish().await;
}

/// Number of threads of the node plugin.
fn threads(node: &Fixture) -> usize {
    let pid = node.driver.node().process().id();
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .count()
}

#[tokio::test]
async fn a_pool_that_became_read_only_is_mounted_again_as_soon_as_nothing_uses_it() {
    let node = Fixture::probing_often("agent-health-read-only").await;
    let object = node.volume("kept", Bytes::mib(64)).await;
    let uuid = node
        .pool_until("to be healthy", is_healthy)
        .await
        .filesystem_uuid;
    // A process uses the pool itself, not a volume in it, and does not write.
    let mut user = node.driver.command_on_node("sh");
    user.args(["-euc", "cd $0 && exec sleep infinity"])
        .arg(node.images());
    let mut user = user.spawn().unwrap();
    let folder = format!("/proc/{}/cwd", user.id());
    eventually(
        "the pool to be in use",
        SOON,
        async || match std::fs::read_link(&folder) {
            Ok(path) if path.ends_with("images") => Ok(()),
            seen => Err(format!("{seen:?}")),
        },
    )
    .await;
    let pool = node.images().join("..");
    node.remount_read_only(&pool).await;
    let log = LogAtFault::of(&node);
    let read_only = |pool: &NodePoolStatus| is_unreachable(pool, "ReadOnly");
    node.pool_until("to be read-only", read_only).await;
    log.has_a_problem_within_three_probes(&node, &node.name, POOL);
    user.kill().unwrap();
    user.wait().unwrap();
    let after = node.pool_until("to recover", is_healthy).await;
    assert_eq!(after.filesystem_uuid, uuid);
    node.until_healthy(&object.name_any()).await;
    node.finish().await;
}

#[tokio::test]
async fn an_image_problem_is_reported_on_its_volume_until_the_image_is_back() {
    let node = Fixture::probing_often("agent-health-images").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let other = node.volume("other", Bytes::mib(64)).await.name_any();
    let (name, uid) = (object.name_any(), object.uid().unwrap());
    node.until_healthy(&name).await;
    let before = node.until_healthy(&other).await.resource_version();
    let change = async |script: &str| {
        node.shell(script, &[&uid]).await;
    };
    let data_loss = VolumeSeverity::DataLoss;
    let keep = "cp --archive --reflink=always $0/$1 $0/../kept";
    let restore = "mv $0/../kept $0/$1";

    change("mv $0/$1 $0/../kept").await;
    let reported = node.until_problem(&name, data_loss, "ImageMissing").await;
    assert!(reported.message.contains(&name), "{}", reported.message);
    change(restore).await;
    node.until_healthy(&name).await;

    change(keep).await;
    change("truncate --size=32M $0/$1").await;
    node.until_problem(&name, data_loss, "ImageTooSmall").await;
    change(restore).await;
    node.until_healthy(&name).await;

    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    change(keep).await;
    change("rm $0/$1").await;
    let reported = node.until_problem(&name, data_loss, "ImageDeleted").await;
    assert!(
        reported.message.contains("copy the data"),
        "{}",
        reported.message
    );
    kubelet.unstage().await.unwrap();
    change(restore).await;
    node.until_healthy(&name).await;
    // R05: the agent wrote nothing to a volume that did not change.
    let after = node.get(&other).await.resource_version();
    assert_eq!(after, before);
    node.finish().await;
}

#[tokio::test]
async fn errors_that_a_filesystem_counts_are_reported_until_it_is_checked() {
    let node = Fixture::probing_often("agent-health-errors").await;
    let kubelet = KubeletVolume::new(&node).await;
    kubelet.stage(&[]).await.unwrap();
    let staging = text(&kubelet.staging);
    let script = "device=$(findmnt --noheadings --output SOURCE $1); \
                  echo test > /sys/fs/ext4/${device#/dev/}/trigger_fs_error";
    node.shell(script, &[&staging]).await;
    let degraded = VolumeSeverity::Degraded;
    node.until_problem(&kubelet.volume, degraded, "FilesystemErrors")
        .await;
    kubelet.unstage().await.unwrap();
    kubelet.stage(&[]).await.unwrap();
    node.until_healthy(&kubelet.volume).await;
    kubelet.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn a_volume_that_became_read_only_under_its_pod_is_reported_within_three_probes() {
    let node = Fixture::probing_often("agent-health-volume-read-only").await;
    let kubelet = KubeletVolume::new(&node).await;
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("target", &[], false).await.unwrap();
    node.until_healthy(&kubelet.volume).await;
    node.remount_read_only(&kubelet.staging).await;
    let log = LogAtFault::of(&node);
    let degraded = VolumeSeverity::Degraded;
    node.until_problem(&kubelet.volume, degraded, "MountReadOnly")
        .await;
    log.has_a_problem_within_three_probes(&node, &node.name, VOLUME);
    kubelet.unpublish("target").await.unwrap();
    kubelet.unstage().await.unwrap();
    node.until_healthy(&kubelet.volume).await;
    node.finish().await;
}
