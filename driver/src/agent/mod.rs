//! The agent of a node: makes what the custom resources ask of the node true, and says how it is.
//!
//! ```text
//! StorageNode ──▶ look  ──▶ pools ──▶ report ──▶ StorageNode.status
//! PoolVolume  ──▶ volume ──▶ pools, ledger   ──▶ PoolVolume.status
//! ```
//!
//! *Invariant:* the agent is the only allocator of its node and writes no metadata at all; what it
//! must remember stands in the status that it wrote, and is checked against the disk before use.

pub mod blocking;
pub mod damage;
pub mod desired;
pub mod filesystems;
pub mod lanes;
pub mod ledger;
pub mod look;
pub mod metrics;
pub mod pools;
pub mod promises;
pub mod report;
pub mod volume;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::{Chain, Retries, http::Readiness};
use cistern_crds::{Bytes, ConditionType, PoolVolume, Reason, StorageNode, condition};
use cistern_host::Root;
use futures::{Stream, StreamExt as _, stream};
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{
        applier,
        controller::{self, Action, ReconcileRequest, trigger_self},
        reflector::ObjectRef,
        watcher,
    },
};
use tokio::sync::{Notify, mpsc, watch};

use self::{
    damage::Damage,
    desired::{Changes, Desired, Guarded, readable},
    filesystems::{Filesystems, Seen},
    lanes::Lanes,
    ledger::{Promise, Refusal},
    pools::{PoolLook, Pools},
    promises::{Claim, Promises},
    report::Report,
};
use crate::locks::VolumeLocks;

/// How long to wait before a volume that failed is tried again: at first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(2));
/// Waited for until the first lists have come and every pool was looked at.
const AGENT: &str = "agent";

/// The PoolVolumes of this node, by name of their pool.
type VolumesByPool = HashMap<String, Vec<Arc<Guarded<PoolVolume>>>>;

/// What the agent works with; the Node service shares it.
pub struct Agent {
    /// Name of the node.
    pub node_name: String,
    /// What is to be.
    pub desired: Desired,
    /// The pools at the last look.
    pub pools: Pools,
    /// One operation at a time per volume.
    pub locks: VolumeLocks,
    /// The folder of Cistern on the host.
    pub root: Root,
    /// Filesystems that are not mounted because they are damaged.
    pub damage: Damage,
    nodes: Api<StorageNode>,
    volumes: Api<PoolVolume>,
    promises: Promises,
    filesystems: Filesystems,
    lanes: Lanes,
    report: Report,
    /// Asks for a look at the pools.
    look: Notify,
    /// Which spec the last look at the pools was for; none before the first.
    looked: watch::Sender<Option<Version>>,
    /// Asks for a pass over a volume, by name.
    queue: mpsc::UnboundedSender<String>,
    retries: Retries<String>,
    now: fn() -> DateTime<Utc>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

/// Which StorageNode, and which of its specs. Nothing of both where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Version {
    uid: String,
    generation: Option<i64>,
}

/// An agent that is not running yet.
pub struct Parts {
    agent: Arc<Agent>,
    node_changes: Changes<Guarded<StorageNode>>,
    volume_changes: Changes<Guarded<PoolVolume>>,
    requests: mpsc::UnboundedReceiver<String>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.agent.fmt(f)
    }
}

impl Parts {
    /// An agent for one node.
    pub fn new(client: &Client, node_name: &str, root: Root, now: fn() -> DateTime<Utc>) -> Self {
        let (desired, node_changes, volume_changes) = desired::watch(client, node_name);
        let (queue, requests) = mpsc::unbounded_channel();
        let agent = Agent {
            node_name: node_name.to_owned(),
            desired,
            pools: Pools::default(),
            locks: VolumeLocks::default(),
            root,
            damage: Damage::default(),
            nodes: Api::all(client.clone()),
            volumes: Api::all(client.clone()),
            promises: Promises::default(),
            filesystems: Filesystems::default(),
            lanes: Lanes::default(),
            report: Report::default(),
            look: Notify::new(),
            looked: watch::Sender::new(None),
            queue,
            retries: Retries::new(BACK_OFF.0, BACK_OFF.1),
            now,
        };
        Self {
            agent: Arc::new(agent),
            node_changes,
            volume_changes,
            requests,
        }
    }

    /// What the Node service works with.
    pub fn agent(&self) -> Arc<Agent> {
        Arc::clone(&self.agent)
    }

    /// Works until dropped.
    pub async fn run(self, readiness: &Readiness) {
        readiness.wait_for(AGENT, "the pools of the node were not looked at yet");
        let Self {
            agent,
            node_changes,
            volume_changes,
            requests,
        } = self;
        let ready = async {
            agent.looked().await;
            readiness.done(AGENT);
        };
        tokio::join!(
            look::on_changes(&agent, node_changes),
            look::run(&agent),
            report::run(&agent),
            run_volumes(Arc::clone(&agent), volume_changes, requests),
            ready,
        );
    }
}

impl Agent {
    /// Asks for a pass over a volume soon: something about it has changed on the node.
    pub fn touch(&self, volume: &str) {
        // The receiver goes only with the process.
        let _ = self.queue.send(volume.to_owned());
    }

    /// Takes note of a volume's filesystem that was mounted: a condition that says otherwise goes.
    pub fn saw_mounted(&self, volume: &str) {
        let object = self.desired.volume(volume);
        let object = object.as_ref().and_then(|object| readable(object));
        if self.damage.mounted(volume, object) {
            self.touch(volume);
        }
    }

    /// Takes note of whether a volume's filesystem has all of its image: a condition says so if it
    /// has not, or did not before.
    pub fn saw_filesystem(&self, volume: &str, seen: Seen) {
        let is_news = seen.is_err() || self.is_filesystem_smaller(volume);
        if is_news {
            self.filesystems.saw(volume, seen);
            self.touch(volume);
        }
    }

    /// Whether a volume's filesystem does not have all of its image, as far as that was seen.
    fn is_filesystem_smaller(&self, volume: &str) -> bool {
        let told = self.desired.volume(volume).is_some_and(|object| {
            let status = readable(&object).and_then(|volume| volume.status.as_ref());
            let conditions = status.map_or(&[][..], |status| &status.conditions);
            condition::find(conditions, ConditionType::Expanded)
                .is_some_and(|expanded| expanded.reason == Reason::FilesystemSmaller.as_str())
        });
        told || self.filesystems.get(volume).is_some()
    }

    /// Resolves when the pools were looked at for the first time.
    pub async fn looked(&self) {
        // The sender lives as long as `self`.
        let _ = self.looked.subscribe().wait_for(Option::is_some).await;
    }

    /// One volume's custom resource from the API server itself, for one that is younger than the
    /// watch.
    pub async fn fetch(&self, volume: &str) -> Result<Option<PoolVolume>, kube::Error> {
        self.volumes.get_opt(volume).await
    }

    /// Promises a volume its bytes, or says why not.
    fn promise(
        &self,
        volume: &PoolVolume,
        size: Bytes,
        look: &PoolLook,
        claim: Claim,
    ) -> Result<(), Refusal> {
        let uid = volume.uid().unwrap_or_default();
        let spec = &volume.spec;
        let promise = Promise {
            size,
            provisioning: spec.provisioning,
        };
        let all = self.volumes_by_pool();
        self.settle_promises(&all);
        let nothing = Vec::new();
        let volumes = all.get(&spec.pool_name).unwrap_or(&nothing);
        self.promises
            .make(&uid, &spec.pool_name, promise, claim, |pending| {
                look.ledger(None, volumes, pending)
            })
    }

    /// Forgets the pending promises that the watch shows by now.
    fn settle_promises(&self, volumes: &VolumesByPool) {
        let by_uid: HashMap<&str, &PoolVolume> = volumes
            .values()
            .flatten()
            .filter_map(|object| readable(object))
            .filter_map(|volume| Some((volume.metadata.uid.as_deref()?, volume)))
            .collect();
        self.promises.settle(|uid| by_uid.get(uid).copied());
    }
}

/// Runs a pass over every volume that changed, that asked for it, or whose wait is over.
async fn run_volumes(
    agent: Arc<Agent>,
    changes: Changes<Guarded<PoolVolume>>,
    requests: mpsc::UnboundedReceiver<String>,
) {
    let store = agent.desired.volume_store();
    let passes = applier(
        |object, agent: Arc<Agent>| Box::pin(pass(object, agent)),
        |object, error: &volume::Error, agent: Arc<Agent>| {
            let name = desired::name(&object);
            let wait = agent.retries.failed(name.clone());
            tracing::warn!(volume = name, error = %Chain(error), ?wait, "a pass failed");
            Action::requeue(wait)
        },
        Arc::clone(&agent),
        store,
        queue(changes, requests),
        // Without a limit of its own: the pools' lanes have one each.
        controller::Config::default(),
    );
    passes
        .for_each(|result| {
            match result {
                Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
                // It is gone; what it left on the disk is found by a look.
                Err(controller::Error::ObjectNotFound(object)) => {
                    agent.retries.forget(&object.name);
                    agent.damage.forget(&object.name);
                    agent.filesystems.forget(&object.name);
                    agent.look.notify_one();
                    agent.report.request();
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "the watch of volumes is disturbed");
                }
            }
            std::future::ready(())
        })
        .await;
}

async fn pass(
    object: Arc<Guarded<PoolVolume>>,
    agent: Arc<Agent>,
) -> Result<Action, volume::Error> {
    // Before it nobody knows which pools there are.
    agent.looked().await;
    volume::reconcile(object, agent).await
}

fn queue(
    changes: Changes<Guarded<PoolVolume>>,
    requests: mpsc::UnboundedReceiver<String>,
) -> impl Stream<Item = Result<ReconcileRequest<Guarded<PoolVolume>>, watcher::Error>> {
    let requests = stream::unfold(requests, async |mut requests| {
        let name = requests.recv().await?;
        Some((Ok(ObjectRef::new(&name).into()), requests))
    });
    stream::select(trigger_self(changes, ()), requests.boxed())
}
