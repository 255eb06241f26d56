//! The parts of each mode, put together.

use std::{error::Error, sync::Arc};

use cistern_client::http::{self, Readiness};
use cistern_proto::csi::v1::{
    controller_server::ControllerServer, identity_server::IdentityServer,
};
use futures::{
    FutureExt as _, TryFutureExt as _,
    future::{BoxFuture, Shared},
};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tonic::service::Routes;

use crate::{
    config,
    csi::{controller::Controller, identity::Identity},
    registration::{self, Registrar},
    server, socket,
    volumes::Volumes,
};

/// What ended a mode, for `main` to print.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The end of a mode.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// The signal to stop, for every part of the process.
type Shutdown = Shared<BoxFuture<'static, ()>>;

/// Runs the controller until the process is asked to stop.
pub async fn controller(options: config::Service) -> Result {
    let shutdown = shutdown()?;
    let readiness = Readiness::default();
    let mut registry = Registry::default();
    let operations = server::Operations::new(&mut registry);
    let identity = Identity::new(readiness.clone(), Arc::new(|| Ok(())));
    let (volumes, watches) = Volumes::new(Client::try_default().await?, readiness.clone());
    let services = Routes::new(IdentityServer::new(identity))
        .add_service(ControllerServer::new(Controller::new(volumes)));

    let csi = socket::bind(options.endpoint.path()).await?;
    let listener = TcpListener::bind(options.http).await?;
    tracing::info!(csi = %options.endpoint.path().display(), http = %listener.local_addr()?, "serving");
    let serving = futures::future::try_join(
        server::serve(csi, services, operations, shutdown.clone()).err_into::<Failure>(),
        http::serve(listener, readiness, Arc::new(registry), shutdown).err_into::<Failure>(),
    );
    tokio::select! {
        served = serving => served.map(drop),
        () = watches => Err("the watches have ended".into()),
    }
}

/// Runs the node plugin and its agent until the process is asked to stop.
pub async fn node(options: config::Node) -> Result {
    let shutdown = shutdown()?;
    let readiness = Readiness::default();
    let mut registry = Registry::default();
    let operations = server::Operations::new(&mut registry);
    let identity = Identity::new(readiness.clone(), Arc::new(|| Ok(())));
    let services = Routes::new(IdentityServer::new(identity));

    let endpoint = options.service.endpoint.path();
    let csi = socket::bind(endpoint).await?;
    // kubelet calls the CSI socket as soon as it sees this one.
    let folder = options.registration_socket_dir();
    let registration = socket::bind(&registration::socket_path(&folder)).await?;
    let registrar = Registrar::new(endpoint).into_routes();
    let listener = TcpListener::bind(options.service.http).await?;
    tracing::info!(csi = %endpoint.display(), http = %listener.local_addr()?, "serving");
    let registering = server::serve(
        registration,
        registrar,
        operations.clone(),
        shutdown.clone(),
    );
    futures::try_join!(
        server::serve(csi, services, operations, shutdown.clone()).err_into::<Failure>(),
        registering.err_into::<Failure>(),
        http::serve(listener, readiness, Arc::new(registry), shutdown).err_into::<Failure>(),
    )?;
    Ok(())
}

fn shutdown() -> Result<Shutdown> {
    Ok(cistern_client::shutdown::requested()?.boxed().shared())
}
