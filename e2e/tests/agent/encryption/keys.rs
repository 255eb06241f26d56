//! What anybody on the node can see of a key while it is used.

use std::{
    collections::BTreeSet,
    fs,
    sync::mpsc::{self, TryRecvError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cistern_crds::{Bytes, PoolVolume};
use cistern_e2e::patience;
use kube::ResourceExt as _;
use serde_json::json;

use super::{SIZE, with_keys};
use crate::{
    Fixture,
    node_service::KubeletVolume,
    search::{found_below, has},
    status,
};

/// Keys of this test alone: other tests of this process may name theirs in arguments.
const FIRST: &str = "canary-of-arguments-the-first-key-of-two";
const SECOND: &str = "canary-of-arguments-the-second-key-of-two";
/// The commands of cryptsetup that get a key.
const WITH_KEY: [&str; 5] = [
    "luksFormat",
    "open",
    "resize",
    "luksAddKey",
    "luksRemoveKey",
];
/// Longer than the test can take, times the patience of the machine.
const LONGEST: Duration = Duration::from_mins(30);

/// What the arguments and the environments of all processes have shown.
#[derive(Debug, Default)]
struct Seen {
    /// Each process that has shown a key, with what it has shown.
    leaks: BTreeSet<String>,
    /// The arguments of cryptsetup.
    arguments: BTreeSet<String>,
}

impl Seen {
    /// Looks at all processes once.
    fn look(&mut self) {
        for entry in fs::read_dir("/proc").unwrap() {
            let folder = entry.unwrap().path();
            for name in ["cmdline", "environ"] {
                let file = folder.join(name);
                // It is no process, or has ended.
                let Ok(bytes) = fs::read(&file) else {
                    continue;
                };
                let words = || bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy);
                if [FIRST, SECOND]
                    .iter()
                    .any(|key| has(&bytes, key.as_bytes()))
                {
                    let words: Vec<_> = words().collect();
                    self.leaks.insert(format!("{}: {words:?}", file.display()));
                }
                if name == "cmdline" && words().next().is_some_and(|it| it.ends_with("cryptsetup"))
                {
                    self.arguments.extend(words().map(String::from));
                }
            }
        }
    }
}

/// A thread that looks at all processes again and again, until this is dropped.
struct Watch {
    over: mpsc::Sender<()>,
    thread: JoinHandle<Seen>,
}

impl Watch {
    fn begin() -> Self {
        let (over, asked) = mpsc::channel();
        let (started, longest) = (Instant::now(), LONGEST * patience());
        let watch = move || {
            let mut seen = Seen::default();
            while asked.try_recv() == Err(TryRecvError::Empty) {
                assert!(started.elapsed() < longest, "the test has not ended");
                seen.look();
                // Leaves the processor to those that it looks at.
                thread::sleep(Duration::from_millis(1));
            }
            seen
        };
        let thread = thread::spawn(watch);
        Self { over, thread }
    }

    fn end(self) -> Seen {
        drop(self.over);
        self.thread.join().unwrap()
    }
}

/// Fails if a file of the driver has a key: its pools, its logs, and kubelet's folder with the mounted volumes.
fn no_file_has_a_key(node: &Fixture) {
    let kubelet = node.driver.kubelet_root();
    let folder = node.seen_on_node(kubelet.parent().unwrap());
    for key in [FIRST, SECOND] {
        let found = found_below(&folder, key.as_bytes());
        assert!(found.is_empty(), "{key}: {found:?}");
        node.has_nowhere(key);
    }
    // Its logs have this name, so the search finds what is there.
    let found = found_below(&folder, node.name.as_bytes());
    assert!(!found.is_empty(), "{}", folder.display());
}

/// Grows a published volume, as kubelet does.
async fn grow(node: &Fixture, kubelet: &KubeletVolume<'_>, size: Bytes) {
    let volume = &kubelet.volume;
    node.patch(volume, json!({"spec": {"size": size}})).await;
    let has_grown = |object: &PoolVolume| status(object).size == Some(size);
    node.until(volume, "to grow", has_grown).await;
    kubelet.expand("pod").await.unwrap();
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_key_is_in_no_argument_and_no_environment_and_in_no_file_or_log_of_the_driver() {
    let node = Fixture::start("agent-encrypted-keys").await;
    let object = node.encrypted_volume("keys", node.ext4("keys")).await;
    let watch = Watch::begin();
    let mut size = SIZE;
    // The first stage formats, and the last one replaces the key.
    let (own, next) = (("key", FIRST), [("key", SECOND), ("previousKey", FIRST)]);
    for keys in [&[own][..], &[own], &[own], &next] {
        let kubelet = with_keys(&node, &object, "staging", keys);
        kubelet.stage(&[]).await.unwrap();
        kubelet.publish("pod", &[], false).await.unwrap();
        size = size.saturating_add(Bytes::mib(16));
        grow(&node, &kubelet, size).await;
        no_file_has_a_key(&node);
        kubelet.unpublish("pod").await.unwrap();
        kubelet.unstage().await.unwrap();
    }
    node.remove(&object.name_any()).await;
    no_file_has_a_key(&node);
    let seen = watch.end();
    assert!(seen.leaks.is_empty(), "{:#?}", seen.leaks);
    // It has looked often enough to see each command that gets a key.
    for command in WITH_KEY {
        let is_seen = seen.arguments.contains(command);
        assert!(is_seen, "{command}: {:?}", seen.arguments);
    }
    node.finish().await;
}
