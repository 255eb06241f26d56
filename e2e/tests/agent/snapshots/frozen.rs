//! Frozen filesystems: which operations wait for the thaw, and which do not.

use std::{
    path::PathBuf,
    process::{Child, Stdio},
};

use cistern_crds::{Bytes, Consistency, PoolVolume};
use cistern_e2e::{Frozen, eventually};
use kube::ResourceExt as _;
use rustix::process::Signal;
use tokio::time::timeout;

use super::{stage, status_of, unstage, write};
use crate::{Fixture, SOON, node_service::KubeletVolume};

/// Writes to `$1` in the background, and to `$2` once that is done. On a frozen filesystem the process
/// waits, and no signal can end it.
const WRITER: &str =
    "(echo x > $1/probe && sync $1/probe && echo done > $2) </dev/null >/dev/null 2>&1 &";

#[tokio::test]
async fn a_filesystem_that_a_dead_agent_left_frozen_is_thawed_at_its_next_start() {
    let mut node = Fixture::start("agent-frozen").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    let mounted = stage(&node, &volume, "one").await;
    let path = mounted.to_str().unwrap().to_owned();
    let done = node.driver.kubelet_root().join("done");
    let mut thaw = node.driver.command_on_node("fsfreeze");
    thaw.args(["--unfreeze", &path]);
    let frozen = Frozen::until_dropped(thaw);
    node.shell("fsfreeze --freeze $1", &[&path]).await;
    node.shell(WRITER, &[&path, done.to_str().unwrap()]).await;
    // Statistics, other volumes and snapshots do not wait for it.
    let kubelet = KubeletVolume::at(&node, &volume, "one");
    let asked = timeout(SOON, kubelet.statistics(&mounted));
    assert!(asked.await.unwrap().is_ok());
    node.volume("two", Bytes::mib(64)).await;
    node.snapshot("while-frozen", &volume).await;

    node.driver.kill_node();
    assert!(!done.exists());
    node.driver.start_node().await;
    eventually("the writer to continue", SOON, async || {
        let is_done = done.exists();
        is_done
            .then_some(())
            .ok_or_else(|| "it still waits".to_owned())
    })
    .await;
    // It says that it fails: the agent has thawed the filesystem already.
    drop(frozen);
    unstage(&node, &volume, "one").await;
    node.finish().await;
}

#[tokio::test]
async fn a_filesystem_that_was_frozen_for_its_snapshot_is_writable_right_after_it() {
    let node = Fixture::start("agent-at-rest").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    let mounted = stage(&node, &volume, "one").await;
    let path = mounted.to_str().unwrap().to_owned();
    // Written but not synced: the freeze writes it to the disk.
    node.shell("echo cached > $1/cached", &[&path]).await;
    let mut desired = node.desired_snapshot("rest", &volume);
    desired.spec.consistency = Consistency::Filesystem;
    let created = node.create_snapshot(&desired).await;
    let snapshot = node.ready_snapshot(&created.name_any()).await;
    write(&node, &mounted, "after", 1).await;
    let copy = node
        .volume_from("copy", Bytes::mib(64), &snapshot, |_| {})
        .await;
    let beside = stage(&node, &copy, "copy").await;
    let text = node
        .shell("cat $1/cached; ls $1", &[beside.to_str().unwrap()])
        .await;
    assert!(
        text.starts_with("cached\n") && !text.contains("after"),
        "{text}"
    );
    unstage(&node, &copy, "copy").await;
    unstage(&node, &volume, "one").await;
    node.finish().await;
}

/// Takes a lease (F_SETLEASE) on the file `$1`, creates the file `$2`, and keeps the lease when the
/// kernel breaks it.
const LEASE: &str = "$SIG{IO} = 'IGNORE'; open F, '<', $ARGV[0] or die; fcntl(F, 1024, 0) or die $!; \
                     open R, '>', $ARGV[1] or die; close R; sleep 60";
/// Truncates the file `$1` in the background. Until the lease is released, the write is in progress,
/// and the kernel freezes no filesystem during a write.
const TRUNCATE: &str = "(: > $1) </dev/null >/dev/null 2>&1 &";

/// An agent in the middle of a group snapshot: one filesystem is frozen, and another cannot be frozen
/// while a process has a lease on a file in it. The agent is stopped, because a freeze ends after some seconds.
struct Halfway {
    frozen: PoolVolume,
    busy: PoolVolume,
    group: String,
    lease: Child,
    /// A file that exists once a writer to the frozen filesystem continues.
    written: PathBuf,
}

impl Halfway {
    async fn begin(node: &Fixture) -> Self {
        let frozen = node.volume("frozen", Bytes::mib(64)).await;
        let busy = node.volume("busy", Bytes::mib(64)).await;
        let mounted = stage(node, &frozen, "frozen").await;
        let file = stage(node, &busy, "busy").await.join("leased");
        let file = file.to_str().unwrap();
        node.shell("echo x > $1", &[file]).await;
        let leased = node.driver.kubelet_root().join("leased");
        let mut perl = node.driver.command_on_node("perl");
        perl.args(["-e", LEASE, file]).arg(&leased);
        let lease = perl.stdout(Stdio::null()).spawn().unwrap();
        eventually("the lease", SOON, async || {
            let is_there = leased.exists();
            is_there.then_some(()).ok_or_else(|| "none".to_owned())
        })
        .await;
        node.shell(TRUNCATE, &[file]).await;
        eventually("a write in progress", SOON, async || {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            let holder = format!(" {} ", lease.id());
            let mut held = locks.lines().filter(|line| line.contains(&holder));
            if held.any(|line| line.contains("BREAKING")) {
                Ok(())
            } else {
                Err(locks)
            }
        })
        .await;

        let members = [&frozen, &busy];
        let group = node.create_group(&members, Consistency::Crash).await;
        eventually("one of two to be frozen", SOON, async || {
            let mut states = freezing_threads(node);
            states.sort_unstable();
            // One thread sleeps until the thaw, and the other waits in the kernel.
            if states == ['D', 'S'] {
                Ok(())
            } else {
                Err(format!("{states:?}"))
            }
        })
        .await;
        node.driver.node().process().signal(Signal::STOP);
        let written = node.driver.kubelet_root().join("written");
        let paths = [&mounted, &written].map(|path| path.to_str().unwrap());
        node.shell(WRITER, &paths).await;
        Self {
            frozen,
            busy,
            group,
            lease,
            written,
        }
    }

    /// Releases the lease, so that the other filesystem freezes.
    fn release_lease(&mut self) {
        self.lease.kill().unwrap();
        self.lease.wait().unwrap();
    }

    async fn is_written(&self) {
        eventually("the writer to continue", SOON, async || {
            let is_done = self.written.exists();
            is_done
                .then_some(())
                .ok_or_else(|| "it still waits".to_owned())
        })
        .await;
    }

    async fn finish(self, node: Fixture) {
        node.ready_group(&self.group).await;
        node.remove_group(&self.group).await;
        unstage(&node, &self.frozen, "frozen").await;
        unstage(&node, &self.busy, "busy").await;
        node.finish().await;
    }
}

/// The states of the agent's threads that each keep a filesystem frozen, in the notation of proc(5).
fn freezing_threads(node: &Fixture) -> Vec<char> {
    let pid = node.driver.node().process().id();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let states = tasks.filter_map(|task| {
        // The thread may have ended.
        let state = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (_, after) = state.split_once(" (freeze) ")?;
        after.chars().next()
    });
    states.collect()
}

#[tokio::test]
async fn an_agent_that_is_terminated_thaws_its_filesystems_before_it_exits() {
    let mut node = Fixture::start("agent-stops-frozen").await;
    let mut halfway = Halfway::begin(&node).await;
    for signal in [Signal::TERM, Signal::CONT] {
        node.driver.node().process().signal(signal);
    }
    // No other agent starts: the DaemonSet may be gone.
    halfway.is_written().await;
    halfway.release_lease();
    node.driver.stop_node().await;
    node.driver.start_node().await;
    halfway.finish(node).await;
}

#[tokio::test]
async fn a_filesystem_frozen_for_a_snapshot_by_a_killed_agent_is_thawed_at_the_next_start() {
    let mut node = Fixture::start("agent-killed-frozen").await;
    let mut halfway = Halfway::begin(&node).await;
    node.driver.node().process().signal(Signal::KILL);
    // The thread that waits in the kernel ends as soon as its wait does.
    halfway.release_lease();
    node.driver.kill_node();
    assert!(!halfway.written.exists());
    node.driver.start_node().await;
    halfway.is_written().await;
    let (group, snapshots) = node.ready_group(&halfway.group).await;
    let creation_time = group.status.unwrap().creation_time;
    assert!(creation_time.is_some(), "the next agent takes it");
    for snapshot in &snapshots {
        assert_eq!(status_of(snapshot).creation_time, creation_time);
    }
    halfway.finish(node).await;
}
