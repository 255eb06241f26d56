//! The real driver, controller and node service, for one node on this machine.
//!
//! No kubelet and no operator run: a test calls the CSI sockets as kubelet and the sidecars do, and declares the
//! pools of the node as the operator does.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use cistern_crds::{
    Bytes, NodePool, NodePoolStatus, StorageNode, StorageNodeSpec, controller_keys, names,
    testing::{image_source, node_pool},
};
use cistern_proto::csi::v1::{
    GetCapacityRequest, Topology, controller_client::ControllerClient,
    group_controller_client::GroupControllerClient, identity_client::IdentityClient,
    node_client::NodeClient, snapshot_metadata_client::SnapshotMetadataClient,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tonic::transport::Channel;

use crate::{
    ControlPlane, Folder,
    control_plane::free_addresses,
    eventually,
    mounts::{MountNamespace, attached_below},
    process::{binary, dying_with_us, run},
    service::{Service, socket},
};

const CONTROLLER: &str = "controller";
const NODE: &str = "node";

/// `cistern-driver controller` and `cistern-driver node`.
#[derive(Debug)]
pub struct Driver {
    // Dropped in this order: the processes, what they use, their files.
    controller: Service,
    node: Service,
    host: Host,
    nodes: Api<StorageNode>,
}

/// Options of the processes that a test can change.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The filter of their log lines.
    pub log_level: &'static str,
    /// How often the node probes the health of pools and volumes, in the format of its option.
    pub health_interval: &'static str,
    /// Bytes per second that the node sends to other nodes at most; 0 for no limit.
    pub transfer_rate: u64,
    /// The cgroup in which the node's process starts, as a folder. None is the one of the test.
    pub cgroup: Option<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log_level: "info,cistern_driver=debug,cistern_node=debug,cistern_host=debug",
            health_interval: "15s",
            transfer_rate: 0,
            cgroup: None,
        }
    }
}

/// The host state that exists whether or not the driver runs.
#[derive(Debug)]
struct Host {
    name: String,
    kubeconfig: PathBuf,
    controller_http: SocketAddr,
    node_http: SocketAddr,
    transfer: SocketAddr,
    options: Options,
    mounts: MountNamespace,
    folder: Folder,
}

impl Driver {
    /// Starts both processes for a node of this name without pools.
    pub async fn start(control_plane: &ControlPlane, node_name: &str) -> Self {
        Self::start_with(control_plane, node_name, Options::default()).await
    }

    /// Starts both processes as [`Self::start`] does, with other options.
    pub async fn start_with(
        control_plane: &ControlPlane,
        node_name: &str,
        options: Options,
    ) -> Self {
        let folder = Folder::new();
        let [controller_http, node_http, transfer] = free_addresses();
        let host = Host {
            name: node_name.to_owned(),
            kubeconfig: control_plane.kubeconfig().to_owned(),
            controller_http,
            node_http,
            transfer,
            options,
            mounts: MountNamespace::new(folder.path()).await,
            folder,
        };
        host.make_folders();
        let nodes: Api<StorageNode> = Api::all(control_plane.client());
        let spec = StorageNodeSpec {
            topology: [(
                names::TOPOLOGY_KEY.to_owned(),
                names::topology_value(node_name),
            )]
            .into(),
            machine_id: None,
            // As the operator writes it, from the pod of the agent.
            transfer_endpoint: Some(transfer.to_string()),
            pools: Vec::new(),
        };
        let node = StorageNode::new(node_name, spec);
        nodes
            .create(&PostParams::default(), &node)
            .await
            .expect("the StorageNode is new");
        create_keys(control_plane).await;
        let command = host.controller_command();
        let folder = host.folder.path();
        Self {
            controller: Service::start(CONTROLLER, folder, controller_http, command).await,
            node: Service::start(NODE, folder, node_http, host.node_command()).await,
            host,
            nodes,
        }
    }

    /// Adds a pool of thin and thick volumes in an image file, and waits until it is ready.
    pub async fn add_image_pool(&self, name: &str, size: Bytes) -> NodePoolStatus {
        let pool = node_pool(name, &format!("uid-of-{name}"), image_source(size));
        let mut pools = self.storage_node().await.spec.pools;
        pools.push(pool);
        self.set_pools(pools).await;
        self.ready_pool(name).await
    }

    /// Replaces the pools in the node's spec.
    pub async fn set_pools(&self, pools: Vec<NodePool>) {
        let patch = Patch::Merge(json!({"spec": {"pools": pools}}));
        self.nodes
            .patch(&self.host.name, &PatchParams::default(), &patch)
            .await
            .expect("the API server takes the pools");
    }

    /// Waits until the pool is ready and the controller knows it, and returns its status as the agent reports it.
    pub async fn ready_pool(&self, name: &str) -> NodePoolStatus {
        let what = format!("pool {name} to be ready on {}", self.host.name);
        eventually(&what, Duration::from_mins(5), async || {
            let pools = self.storage_node().await.status.unwrap_or_default().pools;
            let pool = match pools.into_iter().find(|pool| pool.name == name) {
                Some(pool) if pool.is_ready() => pool,
                other => return Err(format!("{other:?}")),
            };
            // The controller's watch delivers a change shortly after the API server stores it.
            let known = self.room_known_to_controller(name).await;
            if known == pool.thin_room.to_i64() {
                Ok(pool)
            } else {
                Err(format!("the controller knows of {known} bytes: {pool:?}"))
            }
        })
        .await
    }

    /// Returns the bytes for thin volumes that the controller reports for the pool on this node.
    async fn room_known_to_controller(&self, pool: &str) -> i64 {
        let here = (
            names::TOPOLOGY_KEY.to_owned(),
            names::topology_value(&self.host.name),
        );
        let request = GetCapacityRequest {
            parameters: [("pool".to_owned(), pool.to_owned())].into(),
            accessible_topology: Some(Topology {
                segments: [here].into(),
            }),
            ..GetCapacityRequest::default()
        };
        let answer = self.controller_client().await.get_capacity(request).await;
        answer
            .expect("the controller tells its room")
            .into_inner()
            .available_capacity
    }

    /// Returns the node's custom resource.
    pub async fn storage_node(&self) -> StorageNode {
        let name = &self.host.name;
        self.nodes
            .get(name)
            .await
            .expect("the StorageNode is there")
    }

    /// The controller's process.
    pub fn controller(&self) -> &Service {
        &self.controller
    }

    /// The node's process.
    pub fn node(&self) -> &Service {
        &self.node
    }

    /// Returns the address at which the node sends images to other nodes.
    pub fn transfer(&self) -> SocketAddr {
        self.host.transfer
    }

    /// The CSI controller service.
    pub async fn controller_client(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.controller.channel().await)
    }

    /// The CSI group controller service.
    pub async fn group_client(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.controller.channel().await)
    }

    /// The CSI node service.
    pub async fn node_client(&self) -> NodeClient<Channel> {
        NodeClient::new(self.node.channel().await)
    }

    /// The CSI snapshot metadata service of the node.
    pub async fn metadata_client(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.node.channel().await)
    }

    /// Returns the path of the controller's CSI socket, for a sidecar.
    pub fn controller_socket(&self) -> &Path {
        self.controller.socket()
    }

    /// The CSI snapshot metadata service of the controller, which asks the node.
    pub async fn relayed_metadata_client(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.controller.channel().await)
    }

    /// The CSI identity services of both processes.
    pub async fn identity_clients(&self) -> [IdentityClient<Channel>; 2] {
        [
            IdentityClient::new(self.controller.channel().await),
            IdentityClient::new(self.node.channel().await),
        ]
    }

    /// Returns the folder that stands in for kubelet's, which contains staging and target paths.
    pub fn kubelet_root(&self) -> PathBuf {
        self.host.kubelet_root()
    }

    /// Returns the folder of the pools.
    pub fn storage_root(&self) -> PathBuf {
        self.host.storage_root()
    }

    /// Returns the directory in which pools may be, beside the folder of the pools. It is not created.
    pub fn pool_directory(&self) -> PathBuf {
        self.host.pool_directory()
    }

    /// Returns the mounts below a folder of the node.
    pub fn mounts_below(&self, folder: &Path) -> Vec<PathBuf> {
        self.host.mounts.mounts_below(folder)
    }

    /// Returns a command that runs in the node's mount namespace.
    pub fn command_on_node(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.host.mounts.command(program)
    }

    /// Kills the controller's process and starts it again.
    pub async fn restart_controller(&mut self) {
        self.controller.kill();
        let command = self.host.controller_command();
        self.controller.start_again(command).await;
    }

    /// Kills the node's process and starts it again. Mounts stay, as when a pod restarts.
    pub async fn restart_node(&mut self) {
        self.kill_node();
        self.start_node().await;
    }

    /// Stops the node's process with SIGTERM and waits until it has ended.
    ///
    /// # Panics
    /// When it ends with an error.
    pub async fn stop_node(&mut self) {
        self.node.stop().await;
    }

    /// Kills the controller's process.
    pub fn kill_controller(&mut self) {
        self.controller.kill();
    }

    /// Starts the controller's process after [`Self::kill_controller`].
    pub async fn start_controller(&mut self) {
        let command = self.host.controller_command();
        self.controller.start_again(command).await;
    }

    /// Kills the node's process.
    pub fn kill_node(&mut self) {
        self.node.kill();
    }

    /// Starts the node's process after [`Self::kill_node`].
    pub async fn start_node(&mut self) {
        self.node.start_again(self.host.node_command()).await;
    }

    /// Simulates a reboot: kills the node's process, unmounts everything, and starts it again.
    pub async fn reboot_node(&mut self) {
        self.node.kill();
        self.host.mounts = MountNamespace::new(self.host.folder.path()).await;
        self.host.wait_until_detached().await;
        self.node.start_again(self.host.node_command()).await;
    }

    /// Runs `cistern-driver fsck` on the node until it finds nothing. The agent publishes the
    /// reservations of its pools a moment after they change.
    ///
    /// # Panics
    /// When findings remain.
    pub async fn fsck(&self) {
        eventually("fsck to find nothing", Duration::from_mins(5), async || {
            let output = run(self.host.fsck_command(), Duration::from_mins(2)).await;
            let found = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success().then_some(()).ok_or(found)
        })
        .await;
    }

    /// Stops the driver.
    ///
    /// # Panics
    /// When `fsck` reports findings, a volume is still mounted, a process ends with an error, or a loop device is left.
    pub async fn finish(mut self) {
        self.fsck().await;
        let mounts = self.mounts_below(&self.kubelet_root());
        assert_eq!(mounts, Vec::<PathBuf>::new(), "volumes are still mounted");
        self.controller.stop().await;
        self.node.stop().await;
        // Only pools are mounted now. They stay mounted until a reboot.
        self.host.mounts = MountNamespace::new(self.host.folder.path()).await;
        self.host.wait_until_detached().await;
    }
}

/// Creates the ConfigMap for the keys of controllers, as the manifests do.
async fn create_keys(control_plane: &ControlPlane) {
    let api = Api::<ConfigMap>::default_namespaced(control_plane.client());
    let keys = ConfigMap {
        metadata: ObjectMeta {
            name: Some(controller_keys::CONFIG_MAP.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    match api.create(&PostParams::default(), &keys).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        created => drop(created.expect("the API server takes a ConfigMap")),
    }
}

impl Host {
    fn storage_root(&self) -> PathBuf {
        self.folder.join("cistern")
    }

    fn kubelet_root(&self) -> PathBuf {
        self.folder.join("kubelet")
    }

    fn pool_directory(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn make_folders(&self) {
        let registry = self.kubelet_root().join("plugins_registry");
        for folder in [self.storage_root(), registry] {
            std::fs::create_dir_all(folder).expect("the folder is ours");
        }
    }

    fn controller_command(&self) -> Command {
        let mut command = dying_with_us(binary("cistern-driver"));
        command.arg(CONTROLLER);
        command.arg(format!("--pod-name={}", self.name));
        self.serve(&mut command, CONTROLLER, self.controller_http);
        command
    }

    fn node_command(&self) -> Command {
        let mut command = self.driver_on_node();
        command.arg(NODE);
        self.serve(&mut command, NODE, self.node_http);
        self.place(&mut command);
        command.arg(format!("--transfer={}", self.transfer));
        let rate = self.options.transfer_rate;
        command.arg(format!("--transfer-bytes-per-second={rate}"));
        // The machine that runs the tests may be full, and no kubelet evicts pods here.
        command.arg("--keep-free-percent=0");
        let interval = self.options.health_interval;
        command.arg(format!("--health-interval={interval}"));
        // A short interval shows that no state during a test counts as drift.
        command.arg("--drift-interval=1s");
        command
    }

    fn driver_on_node(&self) -> Command {
        let driver = binary("cistern-driver");
        let Some(cgroup) = self.options.cgroup else {
            return self.mounts.command(driver);
        };
        let mut command = self.mounts.command("sh");
        let script = "echo 0 >\"$0/cgroup.procs\"; exec \"$@\"";
        command.args(["-euc", script, cgroup]).arg(driver);
        command
    }

    fn fsck_command(&self) -> Command {
        let mut command = self.mounts.command(binary("cistern-driver"));
        command.arg("fsck");
        self.place(&mut command);
        command
    }

    fn serve(&self, command: &mut Command, name: &str, http: SocketAddr) {
        let socket = socket(self.folder.path(), name);
        command
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!("--http={http}"))
            .arg(format!("--log-level={}", self.options.log_level))
            .env("KUBECONFIG", &self.kubeconfig);
    }

    fn place(&self, command: &mut Command) {
        command
            .arg(format!("--node-name={}", self.name))
            .arg(format!("--root={}", self.storage_root().display()))
            .arg(format!("--kubelet-root={}", self.kubelet_root().display()))
            .arg(format!(
                "--pool-directories={}",
                self.pool_directory().display()
            ))
            .env("KUBECONFIG", &self.kubeconfig);
    }

    async fn wait_until_detached(&self) {
        let what = "the node's loop devices to be detached";
        eventually(
            what,
            Duration::from_mins(5),
            async || match attached_below(self.folder.path()) {
                none if none.is_empty() => Ok(()),
                some => Err(format!("{some:?}")),
            },
        )
        .await;
    }
}
