//! Assembles and runs the parts of each mode.

use std::{error::Error, io::Write as _, num::NonZeroU64, process::ExitCode, sync::Arc};

use chrono::Utc;
use cistern_client::{
    Chain,
    http::{self, Readiness},
    listen,
    metrics::{self, Requests},
};
use cistern_controller::{
    groups::Groups,
    metadata::{self, Relay},
    node_plugins::NodePlugins,
    objects::{Objects, nodes::Nodes},
    snapshots::Snapshots,
    volumes::Volumes,
};
use cistern_crds::{PoolSnapshot, PoolSnapshotGroup, PoolVolume};
use cistern_host::{Linux, Root, command, encryption, snapshot::FREEZE_LIMIT};
use cistern_node::{
    agent,
    blocking::on_host,
    controllers::{self, Controllers},
    fsck,
    metadata::{Metadata, on_node::OnNode},
    mounting::Mounter,
    sending::Sending,
};
use cistern_proto::csi::v1::{
    controller_server::ControllerServer, group_controller_server::GroupControllerServer,
    identity_server::IdentityServer, node_server::NodeServer,
    snapshot_metadata_server::SnapshotMetadataServer,
};
use cistern_proto::group::v1alpha1::group_snapshots_server::GroupSnapshotsServer;
use cistern_transfer::{KeyPair, PublicKey, Rate, Source as _};
use futures::{
    FutureExt as _, TryFutureExt as _,
    future::{self, BoxFuture, Shared},
};
use kube::Client;
use prometheus_client::registry::Registry;
use tonic::{
    Request, Status,
    service::{Interceptor, Routes},
};

use crate::{
    config,
    csi::{
        controller::Controller,
        group::{GroupController, part::GroupParts},
        identity::Identity,
        metadata::{SnapshotMetadata, relay::RelayedMetadata},
        node::Node,
    },
    inspection::Inspection,
    registration::{self, Registrar},
    server, socket,
};

/// The error that ended a mode, which `main` prints.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The result of a mode.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// Resolves when the process is asked to stop.
type Shutdown = Shared<BoxFuture<'static, ()>>;

/// Runs the controller until the process is asked to stop. Fails if it cannot start to serve, or if
/// a server or the watches end before.
pub async fn controller(options: config::Controller) -> Result {
    let config::Controller {
        service: options,
        pod_name,
    } = options;
    let shutdown = shutdown()?;
    let readiness = Readiness::default();
    let mut registry = Registry::default();
    metrics::register(&mut registry, env!("CARGO_PKG_VERSION"));
    let operations = server::Operations::new(&mut registry);
    let identity = Identity::new(readiness.clone(), Arc::new(|| Ok(())));
    let client = Requests::new(&mut registry).connect().await?;
    let keys = KeyPair::generate()?;
    let publishing = metadata::publish(client.clone(), pod_name, keys.public(), Utc::now());
    let (nodes, watch_nodes) = Nodes::watched(client.clone(), readiness.clone());
    let of_volumes = Objects::<PoolVolume>::new(client.clone(), Arc::clone(&nodes));
    let of_snapshots = Objects::<PoolSnapshot>::new(client.clone(), Arc::clone(&nodes));
    let (volumes, watch_volumes) =
        Volumes::new(of_volumes.clone(), of_snapshots.clone(), readiness.clone());
    let (snapshots, watch_snapshots) = Snapshots::new(of_snapshots, of_volumes, readiness.clone());
    let plugins = NodePlugins::new(Arc::clone(&nodes), keys);
    let relay = Relay::new(client.clone(), plugins.clone());
    let of_groups = Objects::<PoolSnapshotGroup>::new(client, nodes);
    let (groups, watch_groups) = Groups::new(
        of_groups,
        Arc::clone(&snapshots),
        plugins,
        readiness.clone(),
    );
    let services = Routes::new(IdentityServer::new(identity))
        .add_service(ControllerServer::new(Controller::new(volumes, snapshots)))
        .add_service(GroupControllerServer::new(GroupController::new(groups)))
        .add_service(SnapshotMetadataServer::new(RelayedMetadata::new(relay)));

    let csi = socket::bind(options.endpoint.path()).await?;
    let listener = listen(options.http)?;
    tracing::info!(csi = %options.endpoint.path().display(), http = %listener.local_addr()?, "serving");
    let serving = future::try_join(
        server::serve(csi, services, operations, shutdown.clone()).err_into::<Failure>(),
        http::serve(
            listener,
            http::routes(readiness, Arc::new(registry)),
            shutdown,
        )
        .map(Ok),
    );
    tokio::select! {
        served = serving => served.map(drop),
        _ = future::join4(watch_nodes, watch_volumes, watch_snapshots, watch_groups) => {
            Err("the watches have ended".into())
        }
        () = publishing => Err("the task that publishes the key has ended".into()),
    }
}

/// Runs the node plugin and its agent until the process is asked to stop. Fails if it cannot start
/// to serve, or if a server or the agent ends before.
pub async fn node(options: config::Node) -> Result {
    encryption::forbid_core_dumps()?;
    let shutdown = shutdown()?;
    let readiness = Readiness::default();
    let mut registry = Registry::default();
    metrics::register(&mut registry, env!("CARGO_PKG_VERSION"));
    let node_name = &options.location.node_name;
    let operations = server::Operations::new(&mut registry).on_node(node_name);
    let client = Requests::new(&mut registry).connect().await?;
    let keys = KeyPair::generate()?;
    let agent = agent::Parts::new(
        &client,
        node_name,
        root(&options.location).keeping(options.keep_free_percent),
        keys.clone(),
        Utc::now,
    );
    let intervals = agent::Intervals {
        health: options.health_interval,
        drift: options.drift_interval,
    };
    // Runs before anything can wait for a filesystem or unmount one.
    agent.agent().node().thaw().await;
    agent::metrics::register(&agent.agent(), &mut registry);
    let node = Node::new(Mounter::new(agent.agent()), node_name, options.max_volumes);
    let inspection = Inspection::new(agent.agent()).routes();
    let on_node = || OnNode::new(agent.agent(), client.clone());
    let metadata = SnapshotMetadata::new(Metadata::new(Arc::new(on_node())));
    let controllers = Arc::new(Controllers::default());
    let sending = Arc::new(Sending::new(agent.agent(), on_node()));
    let (granting, permitted) = (Arc::clone(&sending), Arc::clone(&controllers));
    let admits = Arc::new(move |key: &PublicKey| granting.admits(key) || permitted.have(key));
    let rate = Arc::new(Rate::new(NonZeroU64::new(
        options.transfer_bytes_per_second,
    )));
    let identity = Identity::new(readiness.clone(), Arc::new(command::check_tools));
    let services = Routes::new(IdentityServer::new(identity))
        .add_service(NodeServer::new(node))
        .add_service(SnapshotMetadataServer::new(metadata.clone()));
    let asked = ForControllers(Arc::clone(&controllers));
    let asked = SnapshotMetadataServer::with_interceptor(metadata, asked);
    let taken = ForControllers(Arc::clone(&controllers));
    let taken = GroupSnapshotsServer::with_interceptor(GroupParts::new(agent.agent()), taken);
    let for_peers = Routes::new(cistern_transfer::service(sending, rate))
        .add_service(asked)
        .add_service(taken);

    let endpoint = options.service.endpoint.path();
    let csi = socket::bind(endpoint).await?;
    // kubelet calls the CSI socket as soon as it sees this one.
    let folder = options.registration_socket_dir();
    let registration = socket::bind(&registration::socket_path(&folder)).await?;
    let registrar = Registrar::new(endpoint).into_routes();
    let listener = listen(options.service.http)?;
    let transfers = listen(options.transfer)?;
    let (http, transfer) = (listener.local_addr()?, transfers.local_addr()?);
    tracing::info!(node = node_name, csi = %endpoint.display(), %http, %transfer, "serving");
    let root = agent.agent().node().root.clone();
    let thawing = shutdown.clone().then(|()| thawed(&root));
    let sent = cistern_transfer::serve(transfers, &keys, admits, for_peers, shutdown.clone());
    let serving = future::try_join5(
        server::serve(csi, services, operations.clone(), shutdown.clone()).err_into::<Failure>(),
        server::serve(registration, registrar, operations, shutdown.clone()).err_into::<Failure>(),
        http::serve(
            listener,
            http::routes(readiness.clone(), Arc::new(registry)).merge(inspection),
            shutdown,
        )
        .map(Ok),
        sent.err_into::<Failure>(),
        // The agent runs until this has ended, so that it can write the outcome of a snapshot.
        thawing.map(Ok),
    );
    let ended = tokio::select! {
        served = serving => served.map(drop),
        () = agent.run(&readiness, intervals) => Err("the watches have ended".into()),
        () = controllers::watch(client, controllers) => Err("the watch of the keys has ended".into()),
    };
    // Repeated, because a failure above ends the first wait early.
    thawed(&root).await;
    ended
}

/// Answers controllers and no other peers: a node plugin that receives a copy is not one.
#[derive(Clone, Debug)]
struct ForControllers(Arc<Controllers>);

impl Interceptor for ForControllers {
    fn call(&mut self, request: Request<()>) -> std::result::Result<Request<()>, Status> {
        let key = request.extensions().get::<PublicKey>();
        if key.is_some_and(|key| self.0.have(key)) {
            return Ok(request);
        }
        let why = "only the controller may call SnapshotMetadata and GroupSnapshots";
        Err(Status::permission_denied(why))
    }
}

/// Prevents further freezes, and waits until no filesystem is frozen, at most as long as a freeze
/// may last.
async fn thawed(root: &Root) {
    let root = root.clone();
    match on_host((), move || root.end_freezes(FREEZE_LIMIT)).await {
        Ok(0) => {}
        Ok(count) => tracing::error!(
            count,
            "filesystems cannot be thawed and may stay frozen: restart the node plugin, which thaws \
             them"
        ),
        Err(error) => tracing::error!(error = %Chain(&error), "filesystems may be left frozen"),
    }
}

/// Compares this node with its custom resources and prints the findings. Exit code 0 without
/// findings, 1 with findings. Fails if the comparison fails, or if the findings cannot be printed.
pub async fn fsck(options: config::Fsck) -> Result<ExitCode> {
    let client = Client::try_default().await?;
    let report = fsck::check(client, &options.location.node_name, root(&options.location)).await?;
    let text = if options.json {
        format!("{}\n", serde_json::to_string_pretty(&report)?)
    } else {
        report.to_string()
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::from(u8::from(!report.is_clean())))
}

/// The directory of Cistern on this host.
fn root(location: &config::NodeLocation) -> Root {
    let devices = location.root.join("dev");
    Root::new(&location.root, Arc::new(Linux::new(devices)))
        .allowing(location.pool_directories.iter().cloned())
}

fn shutdown() -> Result<Shutdown> {
    Ok(cistern_client::shutdown::requested()?.boxed().shared())
}
