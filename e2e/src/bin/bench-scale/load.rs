//! Creates and deletes volumes at a steady rate, as external-provisioner does it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cistern_crds::{Bytes, names};
use cistern_e2e::{
    ControlPlane, Replica, measure::milliseconds, objects, requests::create_claimed_volume,
};
use cistern_proto::csi::v1::{
    CreateVolumeRequest, DeleteVolumeRequest, Topology, TopologyRequirement,
    controller_client::ControllerClient,
};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};
use tonic::{Status, transport::Channel};

use crate::{
    fill::{POOLS, node_name, persistent_volume},
    stage::Size,
};

/// Calls at a time, and the deadline of each: as in the manifests.
const WORKERS: usize = 100;
const DEADLINE: Duration = Duration::from_mins(1);

/// What happened to the calls.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Milliseconds of each CreateVolume that succeeded.
    pub(crate) created: Vec<f64>,
    /// Milliseconds of each DeleteVolume that succeeded.
    pub(crate) deleted: Vec<f64>,
    /// Calls that failed, by gRPC code.
    pub(crate) failed: BTreeMap<String, usize>,
}

/// A source of calls.
pub(crate) struct Load {
    client: ControllerClient<Channel>,
    persistent: Api<PersistentVolume>,
    nodes: usize,
    /// Distinguishes the volumes of this load.
    prefix: String,
    /// The volumes to delete next.
    present: Mutex<VecDeque<String>>,
    outcome: Mutex<Outcome>,
}

impl Load {
    /// A load on a cluster of this size, which deletes these volumes first.
    pub(crate) async fn new(
        control_plane: &ControlPlane,
        replica: &Replica,
        size: Size,
        volumes: VecDeque<String>,
    ) -> Arc<Self> {
        Arc::new(Self {
            client: replica.client().await,
            persistent: Api::all(control_plane.client()),
            nodes: size.nodes,
            prefix: format!("{:08}", size.volumes),
            present: Mutex::new(volumes),
            outcome: Mutex::default(),
        })
    }

    /// Runs for a time, then waits for the last calls. Each round creates a volume and deletes another.
    pub(crate) async fn run(self: &Arc<Self>, rate: f64, duration: Duration) -> Outcome {
        let workers = Arc::new(Semaphore::new(WORKERS));
        let mut rounds = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
        let started = Instant::now();
        for number in 0.. {
            rounds.tick().await;
            if started.elapsed() >= duration {
                break;
            }
            let worker = Arc::clone(&workers).acquire_owned().await;
            let this = Arc::clone(self);
            tokio::spawn(async move {
                this.create(number).await;
                drop(worker);
            });
            let worker = Arc::clone(&workers).acquire_owned().await;
            let this = Arc::clone(self);
            tokio::spawn(async move {
                this.delete().await;
                drop(worker);
            });
        }
        let all = u32::try_from(WORKERS).expect("a hundred");
        // All have ended when none holds a permit.
        drop(workers.acquire_many(all).await);
        std::mem::take(
            &mut *self
                .outcome
                .lock()
                .expect("no thread panics while it holds it"),
        )
    }

    async fn create(&self, number: usize) {
        let name = format!("pvc-{}-{number:08}-4000-8000-000000000000", self.prefix);
        let (node, pool) = (node_name(number % self.nodes), POOLS[number % POOLS.len()]);
        let request = self.request(&name, number, pool);
        let started = Instant::now();
        let mut client = self.client.clone();
        let result = timeout(DEADLINE, client.create_volume(request)).await;
        let elapsed = milliseconds(started);
        let made = match result.unwrap_or_else(|_| Err(Status::deadline_exceeded(""))) {
            Ok(made) => made.into_inner().volume.expect("it is required"),
            Err(status) => return self.failed("CreateVolume", &status),
        };
        self.outcome().created.push(elapsed);
        let volume = persistent_volume(&made.volume_id, &node, pool);
        objects::create(&self.persistent, volume).await;
        let mut present = self
            .present
            .lock()
            .expect("no thread panics while it holds it");
        present.push_back(made.volume_id);
    }

    async fn delete(&self) {
        let next = self
            .present
            .lock()
            .expect("no thread panics while it holds it")
            .pop_front();
        let Some(name) = next else { return };
        let request = DeleteVolumeRequest {
            volume_id: name.clone(),
            ..DeleteVolumeRequest::default()
        };
        let started = Instant::now();
        let mut client = self.client.clone();
        let result = timeout(DEADLINE, client.delete_volume(request)).await;
        let elapsed = milliseconds(started);
        match result.unwrap_or_else(|_| Err(Status::deadline_exceeded(""))) {
            Ok(_) => self.outcome().deleted.push(elapsed),
            Err(status) => return self.failed("DeleteVolume", &status),
        }
        // The protection of volumes in use is removed by a controller that does not run here.
        let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let parameters = PatchParams::default();
        let bare = self.persistent.patch(&name, &parameters, &bare).await;
        bare.expect("it is there");
        let parameters = DeleteParams::default();
        let deleted = self.persistent.delete(&name, &parameters).await;
        deleted.expect("it is there");
    }

    /// A request with the topology of all nodes, the chosen one first: that of external-provisioner without
    /// `--strict-topology`.
    fn request(&self, name: &str, number: usize, pool: &str) -> CreateVolumeRequest {
        let mut request = create_claimed_volume(name, pool, Bytes::gib(1));
        let topology = |number: usize| Topology {
            segments: [(names::TOPOLOGY_KEY.to_owned(), node_name(number))].into(),
        };
        let rotated = (0..self.nodes).map(|offset| topology((number + offset) % self.nodes));
        request.accessibility_requirements = Some(TopologyRequirement {
            requisite: (0..self.nodes).map(topology).collect(),
            preferred: rotated.collect(),
        });
        request
    }

    fn failed(&self, call: &str, status: &Status) {
        eprintln!("{call} failed: {status}");
        let code = format!("{call} {:?}", status.code());
        *self.outcome().failed.entry(code).or_default() += 1;
    }

    fn outcome(&self) -> std::sync::MutexGuard<'_, Outcome> {
        self.outcome
            .lock()
            .expect("no thread panics while it holds it")
    }
}
