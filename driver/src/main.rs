//! `cistern-driver`: reads its configuration, runs the mode, and reports why it ends.

use std::{process::ExitCode, time::Duration};

use cistern_client::{Chain, logging};
use cistern_driver::{
    config::{Config, Mode},
    process,
};
use clap::Parser as _;

/// How long work on the host may take after everything else has ended.
const GRACE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let config = Config::parse();
    let failure = match config.mode {
        Mode::Controller(_) | Mode::Node(_) => 1,
        // Exit code 1 means findings.
        Mode::Fsck(_) => 2,
    };
    match run(config) {
        Ok(code) => code,
        Err(error) => {
            // Not a log line, so that it is printed at every log level.
            eprintln!("cistern-driver: {}", Chain(error.as_ref()));
            ExitCode::from(failure)
        }
    }
}

fn run(config: Config) -> process::Result<ExitCode> {
    logging::start(&config.logging)?;
    // Two threads serve. Blocking work runs on threads of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        match config.mode {
            Mode::Controller(options) => process::controller(options).await?,
            Mode::Node(options) => Box::pin(process::node(options)).await?,
            Mode::Fsck(options) => return process::fsck(options).await,
        }
        Ok(ExitCode::SUCCESS)
    });
    // Does not wait for work on a hanging disk, which may never end.
    runtime.shutdown_timeout(GRACE);
    result
}
