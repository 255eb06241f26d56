//! Puts the operator's parts together.

use std::{error::Error, io, process::ExitCode, sync::Arc};

use cistern_client::{Chain, http, http::Readiness, logging, shutdown};
use cistern_operator::{Stop, config::Config, metrics::Metrics};
use clap::Parser as _;
use futures::FutureExt as _;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match start(Config::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %Chain(error.as_ref()), "the operator ends");
            ExitCode::FAILURE
        }
    }
}

async fn start(config: Config) -> Result<(), Box<dyn Error>> {
    logging::start(&config.logging)?;
    let stop: Stop = shutdown::requested()?.boxed().shared();
    let client = Client::try_default().await?;
    let listener = bind(&config).await?;
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let readiness = Readiness::default();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        namespace = config.namespace,
        http = %listener.local_addr()?,
        "the operator starts"
    );
    let operator = cistern_operator::run(client, &config, metrics, readiness.clone(), stop.clone());
    let server = http::serve(listener, readiness, Arc::new(registry), stop);
    let ((), result) = tokio::join!(operator, server);
    tracing::info!("the operator has stopped");
    Ok(result?)
}

async fn bind(config: &Config) -> io::Result<TcpListener> {
    let address = config.http;
    TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    })
}
