//! Watches a cluster, and checks the connection to it.
//!
//! *Invariant:* each kind is listed once; afterwards the API server sends only changes. Lists at an
//! interval would read all pods and all volumes of the cluster each time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, Utc};
use cistern_client::Chain;
use cistern_crds::{ImageTransfer, PoolSnapshot, PoolVolume, StorageNode, StoragePool, VolumeMove};
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec},
    storage::v1::StorageClass,
};
use kube::{Resource, core::DeserializeGuard, runtime::watcher};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinSet;

use super::watched::{State, Watched};
use crate::{
    Connection, Error,
    cluster::{CLAIM_WARNINGS, Cluster, Users},
    unreadable::UnreadableObjects,
};

/// Interval and timeout of the requests that check whether the API server answers.
const PULSE: Duration = Duration::from_secs(5);

/// The state of the connection, for the page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Name of the kubeconfig context; absent if there is no kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// URL of the API server.
    pub server: String,
    /// Kinds whose first list is not complete.
    pub listing: Vec<String>,
    /// Messages about kinds that are not shown, or whose changes are not shown.
    pub notes: Vec<String>,
    /// The outage of the API server, if it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
}

/// An outage of the API server.
#[derive(Clone, Debug, Serialize)]
pub struct Outage {
    /// Time of the first request without an answer.
    pub since: DateTime<Utc>,
    /// Description and suggested action.
    pub message: String,
}

/// A watched cluster. Its watches end when this is dropped.
#[derive(Debug)]
pub struct Following {
    context: Option<String>,
    server: String,
    pools: Watched<DeserializeGuard<StoragePool>>,
    nodes: Watched<DeserializeGuard<StorageNode>>,
    volumes: Watched<DeserializeGuard<PoolVolume>>,
    snapshots: Watched<DeserializeGuard<PoolSnapshot>>,
    moves: Watched<DeserializeGuard<VolumeMove>>,
    transfers: Watched<DeserializeGuard<ImageTransfer>>,
    classes: Watched<StorageClass>,
    claims: Watched<PersistentVolumeClaim>,
    persistent_volumes: Watched<PersistentVolume>,
    pods: Watched<Pod>,
    events: Watched<Event>,
    changes: Arc<AtomicU64>,
    outage: Arc<Mutex<Option<Outage>>>,
    _tasks: JoinSet<()>,
}

impl Following {
    /// Starts the watches and the check of the connection. `context` is the name of the kubeconfig
    /// context.
    pub fn start(connection: &Connection, context: Option<String>) -> Self {
        let (mut tasks, changes) = (JoinSet::new(), Arc::new(AtomicU64::new(0)));
        let outage = Arc::new(Mutex::new(None));
        tasks.spawn(examine(connection.clone(), Arc::clone(&outage)));
        let all = watcher::Config::default;
        let (api, tasks_) = (connection, &mut tasks);
        Self {
            context,
            server: connection.url().to_owned(),
            pools: Watched::start(tasks_, api.everywhere(), all(), bare, changes.clone()),
            nodes: Watched::start(tasks_, api.everywhere(), all(), bare, changes.clone()),
            volumes: Watched::start(tasks_, api.everywhere(), all(), bare, changes.clone()),
            snapshots: Watched::start(tasks_, api.everywhere(), all(), bare, changes.clone()),
            moves: Watched::start(tasks_, api.everywhere(), all(), bare, changes.clone()),
            transfers: Watched::start(tasks_, api.everywhere(), all(), bare, changes.clone()),
            classes: Watched::start(tasks_, api.everywhere(), all(), bare, changes.clone()),
            claims: Watched::start(tasks_, api.everywhere(), all(), bare, changes.clone()),
            persistent_volumes: Watched::start(
                tasks_,
                api.everywhere(),
                all(),
                bare,
                changes.clone(),
            ),
            pods: Watched::start(
                tasks_,
                api.everywhere(),
                all(),
                only_volumes,
                changes.clone(),
            ),
            events: Watched::start(
                tasks_,
                api.everywhere(),
                all().fields(CLAIM_WARNINGS),
                bare,
                changes.clone(),
            ),
            changes,
            outage,
            _tasks: tasks,
        }
    }

    /// Returns a number that grows with every event of a watch.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns copies of the objects, as of the latest events of the watches.
    pub fn cluster(&self) -> Cluster {
        let mut unreadable = UnreadableObjects::default();
        let own = Cluster {
            pools: unreadable.sort_out(self.pools.objects()),
            nodes: unreadable.sort_out(self.nodes.objects()),
            volumes: unreadable.sort_out(self.volumes.objects()),
            snapshots: unreadable.sort_out(self.snapshots.objects()),
            moves: unreadable.sort_out(self.moves.objects()),
            transfers: unreadable.sort_out(self.transfers.objects()),
            unreadable,
            ..Cluster::default()
        };
        own.with(Users {
            classes: self.classes.allowed(),
            claims: self.claims.allowed(),
            persistent_volumes: self.persistent_volumes.allowed(),
            pods: self.pods.allowed(),
            events: self.events.allowed(),
        })
    }

    /// Returns the state of the connection.
    pub fn session(&self) -> Session {
        let mut session = Session {
            context: self.context.clone(),
            server: self.server.clone(),
            listing: Vec::new(),
            notes: Vec::new(),
            outage: self.outage.lock().clone(),
        };
        session.add(&self.pools);
        session.add(&self.nodes);
        session.add(&self.volumes);
        session.add(&self.snapshots);
        session.add(&self.moves);
        session.add(&self.transfers);
        session.add(&self.classes);
        session.add(&self.claims);
        session.add(&self.persistent_volumes);
        session.add(&self.pods);
        session.add(&self.events);
        session
    }
}

impl Session {
    /// Adds a kind whose first list is not complete, or a note about a kind that is not shown or
    /// not live.
    fn add<K>(&mut self, watched: &Watched<K>)
    where
        K: Resource<DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + Sync,
    {
        let kind = K::plural(&());
        let ask =
            format!("ask a cluster administrator for the rights `list` and `watch` of {kind}");
        match watched.state() {
            State::Listing => self.listing.push(kind.to_string()),
            State::Live => {}
            State::ListDenied => {
                let note = format!("{kind} are not shown: you may not list them; {ask}");
                self.notes.push(note);
            }
            State::WatchDenied => {
                let note = format!("{kind} are not live: you may not watch them; {ask}");
                self.notes.push(note);
            }
            State::Failed(why) => self.notes.push(format!("{kind} are not shown: {why}")),
        }
    }
}

/// Requests the version of the API server at an interval, and records an outage while it does not
/// answer.
async fn examine(connection: Connection, outage: Arc<Mutex<Option<Outage>>>) {
    let client = connection.client();
    loop {
        let answer = connection.ask("cannot read its version", client.apiserver_version());
        let answer = tokio::time::timeout(PULSE, answer).await;
        let error = match answer {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(Error::TimedOut {
                what: "the API server is asked for its version".to_owned(),
                after: PULSE,
            }),
        };
        let message = error.map(|error| Chain(&error).to_string());
        {
            let mut outage = outage.lock();
            *outage = message.map(|message| Outage {
                since: outage.as_ref().map_or_else(Utc::now, |known| known.since),
                message,
            });
        }
        tokio::time::sleep(PULSE).await;
    }
}

/// Removes the fields that take the most memory and that no view needs.
fn bare<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// Keeps only the metadata without annotations, the volumes, the node and the phase of a pod.
fn only_volumes(pod: &mut Pod) {
    bare(pod);
    pod.metadata.annotations = None;
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        volumes: spec.volumes,
        node_name: spec.node_name,
        ..PodSpec::default()
    });
    if let Some(status) = &mut pod.status {
        let phase = status.phase.take();
        *status = k8s_openapi::api::core::v1::PodStatus {
            phase,
            ..Default::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;

    use super::*;
    use crate::testing::{at, pod};

    impl Following {
        /// A cluster that does not change.
        pub(crate) fn of_cluster(cluster: Cluster) -> Self {
            let pods = cluster.pods.into_values().flatten();
            Self {
                context: Some("test".to_owned()),
                server: "https://kubernetes".to_owned(),
                pools: Watched::fixed(guarded(cluster.pools)),
                nodes: Watched::fixed(guarded(cluster.nodes)),
                volumes: Watched::fixed(guarded(cluster.volumes)),
                snapshots: Watched::fixed(guarded(cluster.snapshots)),
                moves: Watched::fixed(guarded(cluster.moves)),
                transfers: Watched::fixed(guarded(cluster.transfers)),
                classes: Watched::fixed(cluster.classes),
                claims: Watched::fixed(cluster.claims),
                persistent_volumes: Watched::fixed(
                    cluster.persistent_volumes.into_values().collect(),
                ),
                pods: Watched::fixed(pods.map(|pod| (*pod).clone()).collect()),
                events: Watched::fixed(cluster.events),
                changes: Arc::default(),
                outage: Arc::default(),
                _tasks: JoinSet::new(),
            }
        }
    }

    fn guarded<K>(objects: Vec<K>) -> Vec<DeserializeGuard<K>> {
        let objects = objects.into_iter();
        objects.map(|object| DeserializeGuard(Ok(object))).collect()
    }

    #[test]
    fn a_followed_cluster_names_an_unreadable_object_and_has_the_others() {
        let mut following = Following::of_cluster(crate::testing::cluster());
        let mut pools = guarded(crate::testing::cluster().pools);
        pools.push(crate::unreadable::tests::strange("strange"));
        following.pools = Watched::fixed(pools);
        let cluster = following.cluster();
        assert_eq!(cluster.pools, crate::testing::cluster().pools);
        let named = cluster.unreadable.iter().map(|it| it.name.as_str());
        assert_eq!(named.collect::<Vec<_>>(), ["strange"]);
    }

    #[test]
    fn a_followed_cluster_has_the_same_views_as_a_listed_one() {
        let listed = crate::testing::cluster();
        let followed = Following::of_cluster(listed.clone()).cluster();
        let view = |cluster| serde_json::to_value(crate::status::Status::of(cluster, at(600)));
        assert_eq!(view(&followed).unwrap(), view(&listed).unwrap());
    }

    #[test]
    fn a_pruned_pod_is_still_found_by_its_claim() {
        let mut pod = pod("db-0", "data", "Running");
        only_volumes(&mut pod);
        let pods = crate::cluster::by_claim(vec![pod]);
        let claim = ("shop".to_owned(), "data".to_owned());
        assert_eq!(pods.get(&claim).unwrap()[0].name_any(), "db-0");
    }
}
