//! Starts the operator.

use std::{error::Error, process::ExitCode, sync::Arc};

use cistern_client::{
    Chain, http,
    http::Readiness,
    listen, logging,
    metrics::{self, Requests},
    shutdown,
};
use cistern_operator::{Operator, Stop, config::Config};
use clap::Parser as _;
use futures::FutureExt as _;
use prometheus_client::registry::Registry;

// Two threads, so that a probe is answered while a large list is read.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    match start(Config::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %Chain(error.as_ref()), "the operator exits with an error");
            ExitCode::FAILURE
        }
    }
}

async fn start(config: Config) -> Result<(), Box<dyn Error>> {
    logging::start(&config.logging)?;
    let stop: Stop = shutdown::requested()?.boxed().shared();
    let mut registry = Registry::default();
    metrics::register(&mut registry, env!("CARGO_PKG_VERSION"));
    let client = Requests::new(&mut registry).connect().await?;
    let listener = listen(config.http)?;
    let readiness = Readiness::default();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        namespace = config.namespace,
        http = %listener.local_addr()?,
        "the operator starts"
    );
    let operator = Operator::new(client, &config, &mut registry, &readiness);
    let server = http::serve(
        listener,
        http::routes(readiness, Arc::new(registry)),
        stop.clone(),
    );
    tokio::join!(operator.run(stop), server);
    tracing::info!("the operator has stopped");
    Ok(())
}
