//! A real etcd and kube-apiserver on loopback, without nodes.
//!
//! RBAC is on and service account tokens are real (the API server issues them). No scheduler and no controller
//! run: only the test and the processes under test change objects.

mod processes;

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use cistern_crds::{Bytes, definitions};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{conditions::is_crd_established, wait::Condition as _},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use self::processes::Processes;
use crate::{Folder, Process, environment::variable, eventually, objects::change};

/// A kubeconfig for a control plane that something else has started, with the custom resources. Tests in a virtual machine
/// use one on the machine around it.
const STARTED: &str = "CISTERN_CONTROL_PLANE";
const START: Duration = Duration::from_mins(5);
/// A size that Kubernetes reads, and Cistern does not. The definitions refuse it.
pub const UNREADABLE_SIZE: &str = "1e12";

/// An API server with Cistern's custom resources, and its etcd.
#[derive(Debug)]
pub struct ControlPlane {
    config: Config,
    kubeconfig: PathBuf,
    /// None if something else has started them.
    processes: Option<Processes>,
}

impl ControlPlane {
    /// Returns the control plane that all tests of this binary share. Cluster-scoped objects are shared, too, so
    /// a test must give them unique names.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        SHARED
            .get_or_init(async || match variable(STARTED) {
                Some(kubeconfig) => Self::connect(kubeconfig).await,
                None => Self::start().await,
            })
            .await
    }

    /// Starts a new control plane and establishes the custom resources.
    pub async fn start() -> Self {
        let this = Self::start_without_definitions().await;
        this.install_definitions().await;
        this
    }

    /// Starts a new control plane that does not know the custom resources.
    pub async fn start_without_definitions() -> Self {
        Self::start_bare(&[]).await
    }

    /// Starts a new control plane in which these feature gates are on, and establishes the custom resources.
    pub async fn start_with_feature_gates(gates: &[&str]) -> Self {
        let this = Self::start_bare(gates).await;
        this.install_definitions().await;
        this
    }

    async fn start_bare(feature_gates: &[&str]) -> Self {
        let mut processes = Processes::start(feature_gates).await;
        let kubeconfig = processes.kubeconfig();
        let config = eventually("the API server to be ready", START, async || {
            processes.check_apiserver();
            ready(&kubeconfig).await.map_err(|error| error.to_string())
        })
        .await;
        Self {
            config,
            kubeconfig,
            processes: Some(processes),
        }
    }

    /// Connects to a control plane that something else has started.
    async fn connect(kubeconfig: String) -> Self {
        let kubeconfig = PathBuf::from(kubeconfig);
        let config = eventually("the API server to answer", START, async || {
            ready(&kubeconfig).await.map_err(|error| error.to_string())
        })
        .await;
        Self {
            config,
            kubeconfig,
            processes: None,
        }
    }

    /// Returns a client with all permissions. A client belongs to the runtime of its test, so each test gets its own.
    pub fn client(&self) -> Client {
        Client::try_from(self.config.clone()).expect("it worked at the start")
    }

    /// Returns a client configuration to modify, for example to impersonate a user.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// Returns a kubeconfig for the same user, for other processes.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the API server's process, to stop it, suspend it or read its log.
    pub fn apiserver(&self) -> &Process {
        &self.processes().apiserver
    }

    /// Returns the process of etcd.
    pub fn etcd(&self) -> &Process {
        &self.processes().etcd
    }

    /// Returns where etcd serves its clients, with HTTP and without TLS.
    pub fn etcd_address(&self) -> SocketAddr {
        self.processes().etcd_address
    }

    /// Returns the API server's metrics.
    pub async fn metrics(&self) -> String {
        let request = http::Request::get("/metrics").body(Vec::new());
        let request = request.expect("it is a request");
        let metrics = self.client().request_text(request).await;
        metrics.expect("the API server has metrics")
    }

    /// Returns the folder of all files.
    pub fn folder(&self) -> &Folder {
        &self.processes().folder
    }

    fn processes(&self) -> &Processes {
        let processes = self.processes.as_ref();
        processes.unwrap_or_else(|| {
            panic!("this test needs a control plane of its own; {STARTED} is set")
        })
    }

    /// Applies the custom resource definitions and waits until they are served.
    pub async fn install_definitions(&self) {
        self.install(definitions()).await;
    }

    /// Does the same as [`Self::install_definitions`], but leaves out one definition.
    ///
    /// # Panics
    /// If no definition has this name.
    pub async fn install_definitions_except(&self, name: &str) {
        let (left_out, others) = definitions()
            .into_iter()
            .partition::<Vec<_>, _>(|definition| definition.name_any() == name);
        assert_eq!(left_out.len(), 1, "{name} is a definition");
        self.install(others).await;
    }

    /// Replaces the definition of a kind by one that accepts each size, also [`UNREADABLE_SIZE`]: one of a later version may have
    /// accepted what this one cannot read. The API server uses it a moment later.
    ///
    /// # Panics
    /// If Cistern does not define the kind.
    pub async fn accept_each_size<K: Resource<DynamicType = ()>>(&self) {
        let name = format!("{}.{}", K::plural(&()), K::group(&()));
        let ours = definitions().into_iter().find(|it| it.name_any() == name);
        let mut versions = json!(ours.expect("it is a kind of Cistern").spec.versions);
        remove_pattern_of_sizes(&mut versions);
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        change(&api, &name, json!({"spec": {"versions": versions}})).await;
    }

    async fn install(&self, definitions: Vec<CustomResourceDefinition>) {
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        let parameters = PatchParams::apply("cistern-e2e").force();
        for definition in &definitions {
            api.patch(
                &definition.name_any(),
                &parameters,
                &Patch::Apply(definition),
            )
            .await
            .expect("the API server takes the definitions");
        }
        for definition in &definitions {
            let name = definition.name_any();
            eventually(&format!("{name} to be established"), START, async || {
                let seen = api
                    .get_opt(&name)
                    .await
                    .map_err(|error| error.to_string())?;
                if is_crd_established().matches_object(seen.as_ref()) {
                    Ok(())
                } else {
                    Err(format!("{:?}", seen.and_then(|seen| seen.status)))
                }
            })
            .await;
        }
    }
}

/// Removes the pattern of sizes from a schema.
fn remove_pattern_of_sizes(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, value| name != "pattern" || *value != Bytes::PATTERN);
            fields.values_mut().for_each(remove_pattern_of_sizes);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_pattern_of_sizes),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns a client configuration if the API server is ready.
async fn ready(kubeconfig: &Path) -> Result<Config, Box<dyn std::error::Error>> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let request = http::Request::get("/readyz").body(Vec::new())?;
    Client::try_from(config.clone())?
        .request_text(request)
        .await?;
    Ok(config)
}

/// Returns free addresses, each only once. Each process uses a loopback address derived from its id, so no other test
/// can take a port before it is used.
pub fn free_addresses<const COUNT: usize>() -> [SocketAddr; COUNT] {
    static TAKEN: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());
    let mut taken = TAKEN.lock().expect("no holder of the lock panics");
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 64 + high % 64, middle, low);
    [(); COUNT].map(|()| {
        loop {
            let listener = TcpListener::bind((ip, 0)).expect("a loopback address has free ports");
            let address = listener.local_addr().expect("it is bound");
            if taken.insert(address) {
                return address;
            }
        }
    })
}
