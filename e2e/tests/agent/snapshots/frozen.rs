//! A filesystem that is held still: what waits for it, and what does not.

use std::time::Duration;

use cistern_crds::{Bytes, Consistency};
use cistern_e2e::eventually;
use kube::ResourceExt as _;
use tokio::time::timeout;

use super::{stage, unstage, write};
use crate::{Fixture, SOON, node_service::Place};

/// Writes to `$1` in the background, and to `$2` once that is done: on a frozen filesystem it waits,
/// and nothing can end it.
const WRITER: &str =
    "(echo x > $1/probe && sync $1/probe && echo done > $2) </dev/null >/dev/null 2>&1 &";

#[tokio::test]
async fn what_a_dead_agent_left_frozen_is_written_again_as_soon_as_it_is_back() {
    let mut node = Fixture::start("agent-frozen").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    let mounted = stage(&node, &volume, "one").await;
    let path = mounted.to_str().unwrap().to_owned();
    let done = node.driver.kubelet_root().join("done");
    node.shell("fsfreeze --freeze $1", &[&path]).await;
    node.shell(WRITER, &[&path, done.to_str().unwrap()]).await;
    // Nobody else waits for it.
    let place = Place::at(&node, &volume, "one");
    let asked = timeout(Duration::from_secs(10), place.statistics(&mounted));
    assert!(asked.await.unwrap().is_ok());
    node.volume("two", Bytes::mib(64)).await;
    node.snapshot("while-frozen", &volume).await;

    node.driver.kill_node();
    assert!(!done.exists());
    node.driver.start_node().await;
    eventually("the writer to go on", SOON, async || {
        let is_done = done.exists();
        is_done
            .then_some(())
            .ok_or_else(|| "it still waits".to_owned())
    })
    .await;
    unstage(&node, &volume, "one").await;
    node.finish().await;
}

#[tokio::test]
async fn a_filesystem_that_was_at_rest_in_its_snapshot_is_written_right_after() {
    let node = Fixture::start("agent-at-rest").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    let mounted = stage(&node, &volume, "one").await;
    let path = mounted.to_str().unwrap().to_owned();
    // Written and not through to the disk: a filesystem at rest has it all the same.
    node.shell("echo cached > $1/cached", &[&path]).await;
    let mut wish = node.wish_for_snapshot("rest", &volume);
    wish.spec.consistency = Consistency::Filesystem;
    let made = node.create_snapshot(&wish).await;
    let snapshot = node.ready_snapshot(&made.name_any()).await;
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
