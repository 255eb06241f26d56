//! Runs one test on the cluster: creates its namespace, checks for leftovers, and shows the state when it fails.
//!
//! The tests take turns here and not in groups of cargo-nextest. There each test is a process of its own, so the installation
//! of Cistern that all share would need a step outside of the tests; and where no package has it, it costs a cold machine
//! ten minutes of compilation, which is more than these forty lines are worth.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use cistern_crds::{PoolVolume, StoragePool};
use futures::FutureExt as _;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, StatefulSet},
        core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::{CSIStorageCapacity, StorageClass, VolumeAttributesClass},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::sleep,
};

use super::{Cluster, NAMESPACE, PATIENCE, TEST_LABEL, nodes::ChangedNodes, snapshots};
use crate::{eventually, process::run};

/// The number of tests that a small machine can run in parallel. They mostly wait.
const BESIDE: u32 = 4;
/// A test takes one permit, or all permits if it runs alone.
static PLACES: Semaphore = Semaphore::const_new(BESIDE as usize);
/// Tests that wait to run alone. Other tests let them run first: one after the other they use little of a machine
/// that initially also runs other steps of `make test`.
static ALONE: AtomicU32 = AtomicU32::new(0);
/// How often a waiting test tries to start.
const TURN_INTERVAL: Duration = Duration::from_millis(200);
/// The names of the tests that have run.
static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A test with its namespace and cluster.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Test {
    /// The cluster.
    pub cluster: Cluster,
    /// The namespace of its pods and claims.
    pub namespace: String,
    pub(super) name: String,
    started: Timestamp,
    may_repeat: Mutex<BTreeSet<String>>,
    pub(super) changed_nodes: Mutex<ChangedNodes>,
}

/// Counts a test as one that waits to run alone, until it has ended.
struct Waiting;

impl Waiting {
    fn new() -> Self {
        ALONE.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        ALONE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for this many permits. There is no queue, because a test that waits for all permits would block the others.
async fn turn(places: u32) -> SemaphorePermit<'static> {
    loop {
        let may_run = places == BESIDE || ALONE.load(Ordering::SeqCst) == 0;
        if may_run && let Ok(taken) = PLACES.try_acquire_many(places) {
            return taken;
        }
        sleep(TURN_INTERVAL).await;
    }
}

impl Test {
    /// Runs a test in parallel with a few others. If it passes, removes all objects it created and checks that
    /// nothing is left. If it fails, keeps all objects and prints its events and Cistern's logs.
    pub async fn run(name: &str, body: impl AsyncFnOnce(&Self)) {
        let _place = turn(1).await;
        Self::run_now(name, false, body).await;
    }

    /// Runs a test that would disturb others alone, for example one that replaces agents or stops a node. If it
    /// fails, also installs what it may have removed.
    pub async fn run_alone(name: &str, body: impl AsyncFnOnce(&Self)) {
        let _waiting = Waiting::new();
        let _places = turn(BESIDE).await;
        Self::run_now(name, true, body).await;
    }

    async fn run_now(name: &str, alone: bool, body: impl AsyncFnOnce(&Self)) {
        let test = Self::start(name).await;
        let begun = Instant::now();
        let checked = async {
            body(&test).await;
            test.check_calls().await;
            test.clean_up().await;
        };
        let ended = AssertUnwindSafe(Box::pin(checked)).catch_unwind().await;
        if let Err(panic) = ended {
            test.show().await;
            Box::pin(test.undo(alone)).await;
            std::panic::resume_unwind(panic);
        }
        test.uncordon_all().await;
        eprintln!("{name} took {:.1} s", begun.elapsed().as_secs_f32());
    }

    /// Undoes after a failed test what would make later tests fail.
    async fn undo(&self, alone: bool) {
        also("allowing pods on all nodes", self.uncordon_all()).await;
        self.start_stopped_nodes().await;
        self.tidy_nodes_after_failure().await;
        if alone {
            self.restore_cistern().await;
        }
    }

    async fn start(name: &str) -> Self {
        claim_name(name);
        let cluster = Cluster::connect().await;
        let namespaces: Api<Namespace> = Api::all(cluster.client());
        let namespace = json!({
            "metadata": {"generateName": format!("{name}-"), "labels": {TEST_LABEL: name}},
        });
        let namespace = serde_json::from_value(namespace).expect("it is a namespace");
        let namespace = namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .expect("a namespace can be made");
        Self {
            namespace: namespace.name_any(),
            name: name.to_owned(),
            // The API server's clock, which may differ from the local one.
            started: namespace.creation_timestamp().expect("it has been made").0,
            may_repeat: Mutex::default(),
            changed_nodes: Mutex::default(),
            cluster,
        }
    }

    /// Returns the name of a cluster-scoped object of this test.
    pub fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// Allows repeated CreateVolume calls for this claim. It cannot be bound and its class does not wait for a
    /// pod, so the provisioner retries.
    pub fn may_repeat(&self, claim: &PersistentVolumeClaim) {
        let volume = format!("pvc-{}", claim.uid().expect("it has been made"));
        self.may_repeat
            .lock()
            .expect("no holder of the lock panics")
            .insert(volume);
    }

    /// Counts, by volume id, the CreateVolume calls since the test began that name one of its pools.
    pub async fn create_volume_calls(&self) -> BTreeMap<String, usize> {
        let pools = self.own("");
        self.cluster.create_volume_calls(self.started, &pools).await
    }

    /// Checks that no claim needed more than two calls of CreateVolume.
    async fn check_calls(&self) {
        let calls = self.create_volume_calls().await;
        let may_repeat = self
            .may_repeat
            .lock()
            .expect("no holder of the lock panics")
            .clone();
        for (volume, count) in calls {
            assert!(
                count <= 2 || may_repeat.contains(&volume),
                "CreateVolume was called {count} times for {volume}"
            );
        }
    }

    /// Removes all objects in the order that a user would, and waits for each removal.
    async fn clean_up(&self) {
        remove_all::<Pod>(&self.namespaced(), "").await;
        remove_all::<PersistentVolumeClaim>(&self.namespaced(), "").await;
        self.remove_snapshots().await;
        let label = format!("{TEST_LABEL}={}", self.name);
        self.wait_until_volumes_are_gone().await;
        // Check that the ledgers are empty while the pools still exist.
        for pool in list::<StoragePool>(&self.all(), &label).await {
            self.wait_until_empty(&pool.name_any()).await;
        }
        self.fsck().await;
        remove_all::<StorageClass>(&self.all(), &label).await;
        remove_all::<VolumeAttributesClass>(&self.all(), &label).await;
        snapshots::remove_snapshot_classes(&self.cluster, &label).await;
        remove_all::<StoragePool>(&self.all(), &label).await;
        self.wait_until_capacities_are_gone().await;
        unlabel_nodes(&self.cluster, &self.name).await;
        self.tidy_nodes().await;
        self.fsck().await;
        let namespaces: Api<Namespace> = self.all();
        let deleted = namespaces
            .delete(&self.namespace, &DeleteParams::default())
            .await;
        deleted.expect("the namespace can be deleted");
    }

    async fn wait_until_volumes_are_gone(&self) {
        let (volumes, ours): (Api<PersistentVolume>, Api<PoolVolume>) = (self.all(), self.all());
        eventually("the test's volumes to be gone", PATIENCE, async || {
            let left: Vec<String> = list(&volumes, "")
                .await
                .iter()
                .filter(|v| self.made(v))
                .map(PersistentVolume::name_any)
                .collect();
            let ours: Vec<PoolVolume> = list(&ours, "").await;
            let ours: Vec<&PoolVolume> = ours
                .iter()
                .filter(|v| v.spec.pool_name.starts_with(&self.own("")))
                .collect();
            if left.is_empty() && ours.is_empty() {
                return Ok(());
            }
            Err(format!("PersistentVolumes {left:?}, PoolVolumes {ours:#?}"))
        })
        .await;
    }

    fn made(&self, volume: &PersistentVolume) -> bool {
        let spec = volume.spec.as_ref();
        let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
        claim.is_some_and(|claim| claim.namespace.as_deref() == Some(&self.namespace))
    }

    async fn wait_until_empty(&self, pool: &str) {
        let pools: Api<StoragePool> = self.all();
        eventually(
            &format!("pool {pool} to hold nothing"),
            PATIENCE,
            async || {
                let status = pools
                    .get(pool)
                    .await
                    .map_err(|error| error.to_string())?
                    .status;
                match &status {
                    Some(status)
                        if (status.volumes, status.snapshots, status.reserved.0) == (0, 0, 0) =>
                    {
                        Ok(())
                    }
                    _ => Err(format!("{status:?}")),
                }
            },
        )
        .await;
    }

    async fn wait_until_capacities_are_gone(&self) {
        let capacities: Api<CSIStorageCapacity> = Api::namespaced(self.cluster.client(), NAMESPACE);
        eventually(
            "the capacities of the test's classes to be gone",
            PATIENCE,
            async || {
                let left: Vec<String> = list(&capacities, "")
                    .await
                    .into_iter()
                    .map(|capacity: CSIStorageCapacity| capacity.storage_class_name)
                    .filter(|class| class.starts_with(&self.own("")))
                    .collect();
                if left.is_empty() {
                    Ok(())
                } else {
                    Err(format!("{left:?}"))
                }
            },
        )
        .await;
    }

    /// Prints what a developer needs to see why the test failed.
    async fn show(&self) {
        eprintln!(
            "\n=== {} failed; namespace {} is kept",
            self.name, self.namespace
        );
        let since = format!("--since-time={}", self.started);
        let ours = "app.kubernetes.io/part-of=cistern";
        for arguments in [
            &[
                "get",
                "pods,pvc,pv,events",
                "--namespace",
                &self.namespace,
                "--output=wide",
            ][..],
            &["get", "pods", "--namespace", NAMESPACE, "--output=wide"],
            &[
                "get",
                "csistoragecapacities",
                "--namespace",
                NAMESPACE,
                "--output=wide",
            ],
            &[
                "get",
                "storagepools,storagenodes,poolvolumes,poolsnapshots,poolsnapshotgroups",
                "--output=yaml",
            ],
            &[
                "get",
                "volumesnapshots,volumegroupsnapshots,volumesnapshotcontents,volumegroupsnapshotcontents",
                "--namespace",
                &self.namespace,
                "--output=yaml",
            ],
            &[
                "logs",
                "--namespace",
                NAMESPACE,
                "--selector",
                ours,
                "--all-containers",
                "--prefix",
                "--tail=200",
                &since,
            ],
        ] {
            let line = format!("kubectl {}", arguments.join(" "));
            // With a node down, it may take too long.
            let shown = async {
                let output = run(self.cluster.kubectl_command(arguments), PATIENCE).await;
                eprintln!(
                    "--- {line}\n{}{}",
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&output.stderr)
                );
            };
            also(&line, shown).await;
        }
    }
}

/// Does something after a failed test. Its own failure is printed only: the test's says more, and what follows must be done too.
pub(super) async fn also(what: &str, work: impl Future<Output = ()>) {
    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
        eprintln!("{what} failed after a failed test: later tests may fail for this reason");
    }
}

/// Reserves a test name. Names of a test's objects begin with its name, so no name may be a prefix of another.
fn claim_name(name: &str) {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let begins = |a: &str, b: &str| a.starts_with(&format!("{b}-"));
    let other = names
        .iter()
        .find(|other| begins(name, other) || begins(other, name));
    assert!(other.is_none(), "test {name} would meddle with {other:?}");
    names.insert(name.to_owned());
}

/// Removes the objects that failed tests of earlier runs have kept.
pub(super) async fn remove_leftovers(cluster: &Cluster) {
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    for namespace in list(&namespaces, TEST_LABEL).await {
        let name = namespace.name_any();
        eprintln!("removing what an earlier run has kept in namespace {name}");
        remove_all::<StatefulSet>(&Api::namespaced(cluster.client(), &name), "").await;
        remove_all::<Deployment>(&Api::namespaced(cluster.client(), &name), "").await;
        remove_all::<Pod>(&Api::namespaced(cluster.client(), &name), "").await;
        remove_all::<PersistentVolumeClaim>(&Api::namespaced(cluster.client(), &name), "").await;
        snapshots::remove_snapshots_of(cluster, &name).await;
    }
    remove_all::<Namespace>(&namespaces, TEST_LABEL).await;
    remove_all::<StorageClass>(&Api::all(cluster.client()), TEST_LABEL).await;
    remove_all::<VolumeAttributesClass>(&Api::all(cluster.client()), TEST_LABEL).await;
    snapshots::remove_snapshot_classes(cluster, TEST_LABEL).await;
    remove_all::<StoragePool>(&Api::all(cluster.client()), TEST_LABEL).await;
    unlabel_nodes(cluster, "").await;
}

/// Removes the labels that add nodes to the pools of the test.
async fn unlabel_nodes(cluster: &Cluster, test: &str) {
    let nodes: Api<Node> = Api::all(cluster.client());
    let beginning = super::objects::pool_label(test);
    for node in list(&nodes, "").await {
        for label in node
            .labels()
            .keys()
            .filter(|label| label.starts_with(&beginning))
        {
            let patch = json!({"metadata": {"labels": {label: null}}});
            nodes
                .patch(
                    &node.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(patch),
                )
                .await
                .expect("nodes can be labelled");
        }
    }
}

pub(super) async fn list<K>(api: &Api<K>, label: &str) -> Vec<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let parameters = ListParams::default().labels(label);
    let list = api.list(&parameters).await;
    list.expect("objects can be listed").items
}

pub(super) async fn remove_all<K>(api: &Api<K>, label: &str)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    for object in list(api, label).await {
        // The object may already be gone.
        let _ = api
            .delete(&object.name_any(), &DeleteParams::default())
            .await;
    }
    all_gone(api, label).await;
}

/// Waits until every object with the label is gone; an empty label matches all objects.
async fn all_gone<K>(api: &Api<K>, label: &str)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let what = format!("every {} of the test to be gone", K::kind(&()));
    eventually(&what, PATIENCE, async || match list(api, label).await {
        none if none.is_empty() => Ok(()),
        some => Err(format!(
            "{:#?}",
            some.iter().map(Resource::meta).collect::<Vec<_>>()
        )),
    })
    .await;
}
